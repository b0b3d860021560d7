"""The loader of a run: who draws from which rows, as the plan says."""

from __future__ import annotations

import torch

from noisewise.training.loader import PrivateLoader
from noisewise.training.records import Records
from noisewise.training.resolved import ResolvedPlan
from noisewise.training.sampling import SAMPLERS, Sampler, Shard
from noisewise.training.streams import Streams
from noisewise.training.team import Team
from noisewise.training.units import UnitTable, sampler_of

__all__ = ["make_loader"]


def make_loader(
    records: Records | None,
    table: UnitTable | None,
    resolved: ResolvedPlan,
    team: Team,
    streams: Streams,
    device: torch.device | None,
) -> PrivateLoader | None:
    """Return the loader of a run; None if the caller draws all batches."""
    if records is None:
        return None

    def drawing(shard: Shard) -> Sampler:
        return SAMPLERS[resolved.plan.sampling].of(shard, resolved.sample_rate, streams)

    return PrivateLoader(
        records,
        drawing(team.shard(len(records)))
        if table is None
        else sampler_of(table, resolved, drawing, streams, team.shard(len(table))),
        resolved.steps,
        resolved.steps_per_epoch,
        device,
        None if table is None else table.codes,
    )
