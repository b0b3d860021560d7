"""Lookup tables: the gradient of an embedding has one row per distinct token of a record.

A token that occurs twice in a record gets the sum of two cotangents, so equal (record,
token) pairs are added before norms are taken; distinct rows are orthogonal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from noisewise.gradients.contractions.base import (
    Contraction,
    Sums,
    Target,
    chunks,
    masked,
    scaled,
    working,
)
from noisewise.gradients.contractions.rounding import RECORDS, alike, row_norms

__all__ = ["RowsContraction"]


@dataclass
class RowsContraction(Contraction):
    """T rows per record: tokens (records, T), cotangents (records, T, width).

    A table with more than two axes counts as one whose rows are `width` entries in a line.

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
        self._rows: tuple[Tensor, Tensor] | None = None

    @property
    def targets(self) -> tuple[Target, ...]:
        """The table."""
        return (self.table,)

    def only(self, names: frozenset[str]) -> RowsContraction:
        """There is nothing to drop."""
        return self

    def grouped(self, each: int) -> RowsContraction:
        """Rows of a unit are one longer lookup."""
        length = each * self.tokens.shape[1]
        tokens = self.tokens.reshape(-1, length)
        cotangent = self.cotangent.reshape(-1, length, self.cotangent.shape[2])
        return RowsContraction(tokens, cotangent, self.table, self.skipped)

    def cotangents(self, start: int, stop: int) -> Tensor:
        """Cotangents of a run of records, zero for the token that does not learn."""
        part = working(self.cotangent[start:stop])
        if self.skipped is None:
            return part
        learns = (self.tokens[start:stop] != self.skipped).unsqueeze(-1)
        return torch.where(learns, part, torch.zeros((), dtype=part.dtype, device=part.device))

    def distinct(self) -> tuple[Tensor, Tensor]:
        """Return rows of the records' gradients and their tokens, equal tokens of a record added.

        Norms and sums are made of these same numbers, so they are kept.
        """
        if self._rows is None:
            records, length = self.tokens.shape
            # Equal tokens of a record share the place of their first one. Sorting tells without
            # asking how many are distinct, for which a device would have to be waited for.
            ordered, order = self.tokens.sort(1)
            first = torch.ones_like(ordered)
            first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
            run = first.cumsum(1) - 1
            place = torch.empty_like(run).scatter_(1, order, run)
            owner = torch.arange(records, device=place.device).unsqueeze(1)
            rows = self.cotangents(0, records)
            summed = torch.zeros_like(rows).flatten(0, 1)
            summed.index_add_(0, (owner * length + place).flatten(), rows.flatten(0, 1))
            # Places that no token took keep a zero row, of whatever token is first.
            tokens = self.tokens[:, :1].repeat(1, length).scatter_(1, run, ordered)
            self._rows = summed.reshape(rows.shape), tokens
        return self._rows

    def lengths(self, cheap: bool) -> Tensor:
        """Add equal tokens of a record, then take the norm over all rows."""
        if self.tokens.numel() == 0:
            return self.tokens.new_zeros((2, self.records), dtype=torch.float64)
        return alike(row_norms(self.distinct()[0]))

    def sums(self, scale: Tensor | None, keep: Tensor | None, wide: bool = False) -> Sums:
        """Scatter scaled rows into the table, in float64 if a kernel's records do not do."""
        few = self.records <= RECORDS and not wide
        kind = working(self.cotangent).dtype if few else torch.float64
        table = torch.zeros(self.table.shape, dtype=kind, device=self.cotangent.device)
        if self.tokens.numel() == 0:
            return {self.table.name: table}
        whole = table.view(-1, self.cotangent.shape[2])
        every, tokens = self.distinct()
        for a, b in chunks(self.records, RECORDS):
            rows = masked(every[a:b], None if keep is None else keep[a:b])
            rows = scaled(rows, None if scale is None else scale[a:b]).flatten(0, 1)
            whole.index_add_(0, tokens[a:b].flatten(), rows.to(kind))
        return {self.table.name: table}

    def instantiate(self, start: int, stop: int) -> Sums:
        """One table per record."""
        rows = self.cotangents(start, stop)
        tables = rows.new_zeros((stop - start, *self.table.shape))
        places = self.tokens[start:stop].unsqueeze(-1).expand_as(rows)
        tables.view(stop - start, -1, rows.shape[2]).scatter_add_(1, places, rows)
        return {self.table.name: tables}

    def input_squares(self) -> Tensor:
        """The largest number of times that a record looks up one row (at most T)."""
        ordered = self.tokens.sort(1).values
        same = (ordered.unsqueeze(2) == ordered.unsqueeze(1)).sum(2)
        counts: Tensor = same.amax(1) if ordered.shape[1] else same.sum((1,))
        return counts.double()

    def merged(self, others: Sequence[Contraction]) -> Contraction | None:
        """Several lookups in one table are one longer lookup."""
        uses = [self]
        for other in others:
            if not isinstance(other, RowsContraction) or other.targets != self.targets:
                return None
            if other.skipped != self.skipped:
                return None
            uses.append(other)
        tokens: Any = torch.cat([use.tokens for use in uses], 1)
        cotangent = torch.cat([use.cotangent for use in uses], 1)
        return RowsContraction(tokens, cotangent, self.table, self.skipped)
