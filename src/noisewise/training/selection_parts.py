"""Records and units of a choice among settings: who is trained on, who decides, by how much."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Subset

from noisewise.privacy import Randomness
from noisewise.training.records import MapRecords, Records, TensorRecords, map_tensors
from noisewise.training.units import UnitTable

__all__ = ["Split", "one_by_one", "summed"]


@dataclass(frozen=True, eq=False)
class Split:
    """Records for training and records for the score, divided by coins; of units, whole ones."""

    training: Records
    held: Records | None
    units: UnitTable | None = None
    held_units: UnitTable | None = None

    @staticmethod
    def of(
        records: Records, share: float, rng: Randomness, table: UnitTable | None = None
    ) -> Split:
        """Toss a coin for every record, or for every unit with all its rows."""
        if share == 0.0:
            return Split(records, None, table)
        if table is None:
            mask = rng.poisson_mask(len(records), share)
            return Split(_rows(records, ~mask), _rows(records, mask))
        mask = rng.poisson_mask(len(table), share)[table.codes]
        return Split(
            _rows(records, ~mask),
            _rows(records, mask),
            UnitTable.of(table.codes[~mask]),
            UnitTable.of(table.codes[mask]),
        )


def _rows(records: Records, mask: Tensor) -> Records:
    positions = mask.nonzero()[:, 0]
    if isinstance(records, TensorRecords):
        chosen = map_tensors(records.tensors, lambda t: t.index_select(0, positions.to(t.device)))
        return TensorRecords(chosen, records.pin_memory)
    return MapRecords(
        Subset(records.dataset, positions.tolist()),
        records.collate,
        workers=records.workers,
        pin_memory=records.pin_memory,
        **records.options,
    )


def summed(scores: list[int], units: UnitTable | None) -> int:
    """Add up scores; of a unit the mean over its rows, rounded down, so that it adds no more."""
    if units is None:
        return sum(scores)
    totals = torch.zeros(len(units), dtype=torch.int64)
    totals.index_add_(0, units.codes, torch.tensor(scores, dtype=torch.int64))
    return int((totals // units.counts).sum())


def one_by_one(records: Records) -> Iterator[Any]:
    """Read records in batches of one."""
    return records.batches(torch.tensor([i]) for i in range(len(records)))
