"""Lookup tables: the gradient of an embedding has one row per distinct token of a record.

A token that occurs twice in a record gets the sum of two cotangents, so equal (record,
token) pairs are added before norms are taken; distinct rows are orthogonal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from noisewise.gradients.contractions.base import (
    RECORDS,
    Contraction,
    Sums,
    Target,
    add_to,
    chunks,
    masked,
    scaled,
    working,
)
from noisewise.gradients.contractions.given import row_squares

__all__ = ["RowsContraction"]


@dataclass
class RowsContraction(Contraction):
    """T rows per record: tokens (records, T), cotangents (records, T, width).

    Attributes
    ----------
    skipped : int, optional
        A token whose row does not learn (``padding_idx``).
    """

    tokens: Tensor
    cotangent: Tensor
    table: Target
    skipped: int | None = None

    def __post_init__(self) -> None:
        self.records = self.tokens.shape[0]

    @property
    def targets(self) -> tuple[Target, ...]:
        """The table."""
        return (self.table,)

    def only(self, names: frozenset[str]) -> RowsContraction:
        """There is nothing to drop."""
        return self

    def _cotangents(self, start: int, stop: int) -> Tensor:
        part = working(self.cotangent[start:stop])
        if self.skipped is None:
            return part
        return part * (self.tokens[start:stop] != self.skipped).unsqueeze(-1)

    def squares(self) -> Tensor:
        """Add equal tokens of a record, then take the norm over all rows."""
        if self.tokens.numel() == 0:
            return working(self.cotangent).new_zeros(self.records)
        records, length = self.tokens.shape
        # Equal tokens of a record share the place of their first one. Sorting tells without
        # asking how many are distinct, for which a device would have to be waited for.
        ordered, order = self.tokens.sort(1)
        first = torch.ones_like(ordered)
        first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
        run = first.cumsum(1) - 1
        place = torch.empty_like(run).scatter_(1, order, run)
        owner = torch.arange(records, device=place.device).unsqueeze(1)
        rows = self._cotangents(0, records).flatten(0, 1)
        summed = torch.zeros_like(rows).index_add_(0, (owner * length + place).flatten(), rows)
        return row_squares(summed).reshape(records, length).sum(1)

    def sums(self, scale: Tensor | None, keep: Tensor | None) -> Sums:
        """Scatter scaled cotangents into the table."""
        total: Sums = {}
        for a, b in chunks(self.records, RECORDS):
            rows = masked(self._cotangents(a, b), None if keep is None else keep[a:b])
            rows = scaled(rows, None if scale is None else scale[a:b]).flatten(0, 1)
            table = rows.new_zeros(self.table.shape)
            add_to(total, {self.table.name: table.index_add_(0, self.tokens[a:b].flatten(), rows)})
        return total

    def instantiate(self, start: int, stop: int) -> Sums:
        """One table per record."""
        rows = self._cotangents(start, stop)
        tables = rows.new_zeros((stop - start, *self.table.shape))
        places = self.tokens[start:stop].unsqueeze(-1).expand_as(rows)
        return {self.table.name: tables.scatter_add_(1, places, rows)}

    def input_squares(self) -> Tensor:
        """The largest number of times that a record looks up one row (at most T)."""
        ordered = self.tokens.sort(1).values
        same = (ordered.unsqueeze(2) == ordered.unsqueeze(1)).sum(2)
        counts: Tensor = same.amax(1) if ordered.shape[1] else same.sum((1,))
        return counts.to(working(self.cotangent).dtype)

    def merged(self, other: Contraction) -> Contraction | None:
        """Two lookups in one table are one longer lookup."""
        if not isinstance(other, RowsContraction) or other.targets != self.targets:
            return None
        if other.skipped != self.skipped:
            return None
        tokens: Any = torch.cat([self.tokens, other.tokens], 1)
        cotangent = torch.cat([self.cotangent, other.cotangent], 1)
        return RowsContraction(tokens, cotangent, self.table, self.skipped)
