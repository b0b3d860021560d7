"""A table that is looked up and also multiplied with: the tied embeddings of language models.

The two gradients of a record are added before the norm is taken. The table of every record is as
large as the vocabulary, so it is never made: the norm of the sum comes from the norms of both parts
and their inner product, in float64 (docs/proofs/rounding.md#tied).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from noisewise.gradients.contractions.base import Contraction, Sums, Target, add_to, working
from noisewise.gradients.contractions.given import CombinedContraction
from noisewise.gradients.contractions.linear import LinearContraction
from noisewise.gradients.contractions.rounding import gamma, row_norms
from noisewise.gradients.contractions.rows import RowsContraction

__all__ = ["TiedContraction", "tied"]

#: Rows are added in float64, so they may be so many times longer than what both parts add up to.
_LONGER = 2.0**10


@dataclass
class TiedContraction(Contraction):
    """Lookups in a table, and a layer whose weight the table is."""

    rows: RowsContraction
    layer: LinearContraction

    def __post_init__(self) -> None:
        self.records = self.rows.records

    @property
    def targets(self) -> tuple[Target, ...]:
        """The table."""
        return self.rows.targets

    def only(self, names: frozenset[str]) -> TiedContraction:
        """There is nothing to drop."""
        return self

    def ingredients(self) -> Iterator[tuple[str, Tensor]]:
        """Those of both parts."""
        yield from self.rows.ingredients()
        yield from self.layer.ingredients()

    def counting(self, valid: Tensor) -> TiedContraction:
        """Both parts with the cotangents of some records set to zero."""
        rows, layer = self.rows.counting(valid), self.layer.counting(valid)
        assert isinstance(rows, RowsContraction)
        assert isinstance(layer, LinearContraction)
        return TiedContraction(rows, layer)

    def lengths(self, cheap: bool) -> Tensor:
        """From |A|^2 + |B|^2 + 2 <A, B>."""
        if not self.records or not self.rows.tokens.shape[1]:
            return self.layer.lengths(cheap)
        parts = [self._lengths(record) for record in range(self.records)]
        return torch.stack(parts, 1)

    def _lengths(self, record: int) -> Tensor:
        run = slice(record, record + 1)
        squares, products, unknown = self.layer.gram(record, record + 1)
        looked = self.rows.cotangents(record, record + 1)[0]
        tokens = self.rows.tokens[record]
        seen, arriving = (working(t[run])[0].double() for t in (self.layer.x, self.layer.cotangent))
        inner = ((looked.double() @ seen.t()) * arriving.t()[tokens]).sum()
        own = row_norms(self.rows.distinct()[0][run])
        reach = products + row_norms(looked).sum()
        count = looked.numel() + seen.numel() + tokens.numel() ** 2
        known = unknown + gamma(2 * count, torch.float64) * reach.square()
        total = (squares + own.square() + 2 * inner + known).clamp_min(0.0).sqrt()
        positions = len(seen) + len(tokens)
        norm = total + gamma(positions + 2, self.layer.kernel_type) * reach
        rounding = torch.hypot(products / self.layer.spread(), own / _LONGER)
        return torch.cat([norm, rounding])

    def sums(self, scale: Tensor | None, keep: Tensor | None) -> Sums:
        """Both, each by itself: rows in float64, products in the kernels of the layer."""
        self.layer.spread()
        total = self.layer.sums(scale, keep)
        add_to(total, self.rows.sums(scale, keep, wide=True))
        return total

    def instantiate(self, start: int, stop: int) -> Sums:
        """Both added."""
        return CombinedContraction([self.rows, self.layer]).instantiate(start, stop)


def tied(cluster: list[Contraction]) -> list[Contraction] | None:
    """Take a cluster of lookups in a table and of layers with it apart; None if it is another."""
    rows = [use for use in cluster if isinstance(use, RowsContraction)]
    layers = [use for use in cluster if type(use) is LinearContraction]
    if not rows or not layers or len(rows) + len(layers) != len(cluster):
        return None
    table = rows[0].merged(rows[1:])
    layer = layers[0].merged(layers[1:])
    if not isinstance(table, RowsContraction) or not isinstance(layer, LinearContraction):
        return None
    if layer.weight != table.table or table.table.rows is not None or layer.sizes[2] == 1:
        return None
    if table.cotangent.shape[2] != layer.x.shape[2]:
        return None
    found: list[Contraction] = [TiedContraction(table, layer.only(frozenset((table.table.name,))))]
    if layer.bias is not None:
        found.append(layer.only(frozenset((layer.bias.name,))))
    return found
