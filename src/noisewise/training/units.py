"""Units of several rows in training: which rows a drawn unit brings, and which ever take part.

Identifiers become numbers here, before anything else is done, and are not kept. Two rules
(docs/proofs/units.md#training):

* "units": each unit is drawn with probability q; the rows of a drawn unit, all or a few of them
  chosen anew, give one gradient.
* "rows": of each unit at most k rows are chosen, once; each of these is drawn with probability q by
  itself, and the accountant knows that a unit has k.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from noisewise.privacy import Randomness, unit_codes
from noisewise.release import UNIT_NAME, Units
from noisewise.training.errors import StepError
from noisewise.training.resolved import ResolvedPlan
from noisewise.training.sampling import Sampler, Shard
from noisewise.training.streams import Streams

__all__ = ["ChosenRows", "UnitSampler", "UnitTable", "batch_units", "sampler_of"]


@dataclass(frozen=True, eq=False)
class UnitTable:
    """The rows of every unit; of identifiers nothing is left.

    Attributes
    ----------
    codes : Tensor
        The unit of every row.
    order, starts, counts : Tensor
        Rows sorted by unit, where those of each unit begin, and how many they are.
    name : str
        What one unit is, for the statement.
    """

    codes: Tensor = field(repr=False)
    order: Tensor = field(repr=False)
    starts: Tensor = field(repr=False)
    counts: Tensor = field(repr=False)
    name: str = UNIT_NAME

    @classmethod
    def of(cls, units: Any, rows: int | None = None) -> UnitTable:
        """Read identifiers, one per row."""
        if isinstance(units, UnitTable):
            if rows is not None and len(units.codes) != rows:
                raise ValueError(f"units are of {len(units.codes)} rows, but the data have {rows}")
            return units
        codes = torch.from_numpy(unit_codes(units, rows))
        counts = torch.bincount(codes)
        name = units.name if isinstance(units, Units) else UNIT_NAME
        return cls(codes, codes.argsort(stable=True), counts.cumsum(0) - counts, counts, name)

    def __len__(self) -> int:
        """Return the number of units."""
        return len(self.counts)

    def rows_of(self, units: Tensor, most: int | None, rng: Randomness) -> Tensor:
        """Rows of some units, one unit after the other; at most so many of each, by chance."""
        counts = self.counts[units]
        total = int(counts.sum())
        ends = counts.cumsum(0)
        owner = torch.repeat_interleave(torch.arange(len(units)), counts)
        inside = torch.arange(total) - (ends - counts)[owner]
        rows = self.order[self.starts[units][owner] + inside]
        if most is None or not total or int(counts.max()) <= most:
            return rows
        # Each unit's rows in an order of their own; its first ones stay.
        chance = rng.uint64(total)
        shuffled = np.lexsort((chance, owner.numpy()))
        kept = torch.from_numpy(shuffled[inside.numpy() < most])
        return rows[kept]


@dataclass(frozen=True)
class UnitSampler:
    """Draws units, and hands out their rows.

    Parameters
    ----------
    units : Sampler
        Of positions of units.
    table : UnitTable
    most : int or None
        Rows of a drawn unit that take part in the step, chosen anew in every step.
    streams : Streams
    """

    units: Sampler
    table: UnitTable
    most: int | None
    streams: Streams = field(repr=False)

    def indices(self, step: int) -> Tensor:
        """Rows of the units of a step, one unit after the other."""
        drawn = self.units.indices(step)
        return self.table.rows_of(drawn, self.most, self.streams.choice(step))


@dataclass(frozen=True)
class ChosenRows:
    """Draws rows, each by itself, from those that were chosen once.

    Parameters
    ----------
    among : Sampler
        Of positions among the chosen rows.
    rows : Tensor
        The chosen rows.
    """

    among: Sampler
    rows: Tensor = field(repr=False)

    def indices(self, step: int) -> Tensor:
        """Rows of a step."""
        return self.rows[self.among.indices(step)]


def sampler_of(
    table: UnitTable,
    resolved: ResolvedPlan,
    drawing: Callable[[Shard], Sampler],
    streams: Streams,
    mine: Shard,
) -> Sampler:
    """Draw units with their rows, or rows that were chosen once; of all units those of a worker."""
    most = resolved.plan.unit_rows
    if resolved.unit_rule == "units":
        return UnitSampler(drawing(mine), table, most, streams)
    rows = table.rows_of(mine.positions(torch.arange(mine.count)), most, streams.choice(-1))
    return ChosenRows(drawing(Shard(len(rows))), rows)


def batch_units(
    rule: str | None, most: int | None, known: Tensor | None, own: bool, given: Any, count: int
) -> Tensor | None:
    """The unit of every row of a batch, where rows of one unit are bounded together.

    Parameters
    ----------
    rule : {"units", "rows"} or None
        Of the run.
    most : int, optional
        Rows of a unit that may take part in a step, where each is bounded by itself.
    known : Tensor, optional
        The units of the loader's batch.
    own : bool
        Whether the batch is the loader's, or a part of it.
    given : sequence, optional
        What the caller says of a batch.
    count : int
        Rows of the batch.
    """
    if rule is None:
        if given is not None:
            raise StepError(
                "this run protects single rows; to protect units, give them to make_private, which "
                "knows how units are drawn"
            )
        return None
    if own:
        if given is not None:
            raise StepError("the units of a batch of run.loader are known: leave them out")
        return known if rule == "units" else None
    if given is None:
        raise StepError(
            "this batch does not come from run.loader, so it is not known which of its rows belong "
            "to one unit. Call run.step(x, y, units=...) with one identifier for each row, or step "
            "on the batches of run.loader. Nothing was charged."
        )
    codes = torch.from_numpy(unit_codes(given, count))
    if rule == "units":
        return codes
    if count and int(torch.bincount(codes).max()) > (most or 0):
        raise StepError(
            f"a unit has more than {most} rows in this batch, and unit_rows={most} is what epsilon "
            "is derived from: choose that many of each unit, by chance that depends on no other "
            "one, and draw from those. Nothing was charged."
        )
    return None
