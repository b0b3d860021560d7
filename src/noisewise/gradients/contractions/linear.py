"""Dense layers at any number of positions, as pairs of matrices: cotangents and inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from noisewise.gradients.contractions.base import Contraction, Target, masked, scaled, working
from noisewise.gradients.contractions.pair import PairContraction, over_positions
from noisewise.gradients.contractions.rounding import POSITIONS, adds_whole, alike, row_norms

__all__ = ["LinearContraction", "TurnedContraction"]

#: Entries of a gradient from which on it is added while it is computed: fewer are computed for
#: several records at a time.
_LARGE = 1 << 13


@dataclass
class LinearContraction(PairContraction):
    """A dense layer at T positions: x (records, T, N), cotangent (records, T, M)."""

    x: Tensor
    cotangent: Tensor
    weight: Target | None
    bias: Target | None

    def __post_init__(self) -> None:
        self.records = self.x.shape[0]

    @classmethod
    def of(
        cls, x: Tensor, cotangent: Tensor, views: int, weight: Target | None, bias: Target | None
    ) -> LinearContraction:
        """Fold views of a record and all leading axes into positions."""
        records = x.shape[0] // views
        return cls(_folded(x, records), _folded(cotangent, records), weight, bias)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Outputs, inputs, positions."""
        return self.cotangent.shape[2], self.x.shape[2], self.x.shape[1]

    @property
    def factor_entries(self) -> int:
        """Outputs and inputs at all positions."""
        return (self.cotangent.shape[2] + self.x.shape[2]) * self.x.shape[1]

    def only(self, names: frozenset[str]) -> LinearContraction:
        """Drop the weight or the bias."""
        return replace(
            self,
            weight=self.weight if self.weight and self.weight.name in names else None,
            bias=self.bias if self.bias and self.bias.name in names else None,
        )

    def grouped(self, each: int) -> LinearContraction:
        """Rows of a unit are more positions."""
        x, cotangent = (
            t.reshape(-1, each * t.shape[1], t.shape[2]) for t in (self.x, self.cotangent)
        )
        return replace(self, x=x, cotangent=cotangent)

    def left(self, start: int, stop: int) -> Tensor:
        """Cotangents, positions last."""
        return working(self.cotangent[start:stop]).transpose(1, 2).unsqueeze(1)

    def right(self, start: int, stop: int) -> Tensor:
        """Inputs, positions last."""
        return working(self.x[start:stop]).transpose(1, 2).unsqueeze(1)

    def bias_gradients(self) -> Tensor:
        """Sum of the cotangents over positions."""
        whole = working(self.cotangent)
        return whole[:, 0] if whole.shape[1] == 1 else over_positions(whole, 1)

    def factors(
        self, start: int, stop: int, scale: Tensor | None, keep: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Slices, scaled."""
        x = masked(working(self.x[start:stop]), keep)
        cotangent = masked(working(self.cotangent[start:stop]), keep)
        if x.shape[2] <= cotangent.shape[2]:
            return scaled(x, scale), cotangent
        return x, scaled(cotangent, scale)

    def contract(self, x: Tensor, cotangent: Tensor, total: Tensor | None) -> Tensor:
        """One matrix product."""
        left, right = cotangent.flatten(0, 1).t(), x.flatten(0, 1)
        # A shape that comes again and again, or one of few.
        again = len(x) == self.shared or self.x.shape[1] == 1
        if total is not None and again and adds_whole(left, right):
            return total.addmm_(left, right)
        return left @ right

    def _by_record(
        self, start: int, stop: int, scale: Tensor | None, keep: Tensor | None
    ) -> Tensor:
        """Large gradients one after the other, each added as a whole while it is computed.

        None of them is written down, and read again, by itself (rounding.md#fused).
        """
        m, n, positions = self.sizes
        left, right = (
            part(start, stop)[:, 0].transpose(1, 2).contiguous() for part in (self.left, self.right)
        )
        worth = m * n >= _LARGE and not self._measured and positions <= POSITIONS
        if not worth or not adds_whole(left[0].t(), right[0]):
            return super()._by_record(start, stop, scale, keep)
        left, right = masked(left, keep), masked(right, keep)
        if m <= n:
            left = scaled(left, scale)
        else:
            right = scaled(right, scale)
        total = left[0].t() @ right[0]
        for one, other in zip(left[1:], right[1:], strict=True):
            total.addmm_(one.t(), other)
        return total.flatten()

    def lengths(self, cheap: bool) -> Tensor:
        """At one position |l| (|r|^2 + 1)^(1/2), from two norms."""
        if self.x.shape[1] != 1 or self.weight is None or self.bias is None:
            return super().lengths(cheap)
        x, cotangent = row_norms(working(self.x)), row_norms(working(self.cotangent))
        return alike(x.square_().add_(1).sqrt_().mul_(cotangent))

    def positions_bound(self) -> Tensor:
        """Sum over positions of the product of norms."""
        x, cotangent = (
            row_norms(working(t).flatten(0, 1)).reshape(t.shape[:2])
            for t in (self.x, self.cotangent)
        )
        return (x * cotangent).sum(1)

    def input_squares(self) -> Tensor:
        """Squared norm of all inputs, and one per position for the bias."""
        square = torch.zeros(self.records, dtype=torch.float64, device=self.x.device)
        if self.weight is not None:
            square = row_norms(working(self.x)).square()
        return square + (float(self.x.shape[1]) if self.bias is not None else 0.0)

    def merged(self, others: Sequence[Contraction]) -> Contraction | None:
        """Several uses of one layer are one use with more positions."""
        uses = [self]
        for other in others:
            if type(other) is not type(self) or other.targets != self.targets:
                return None
            assert isinstance(other, LinearContraction)
            uses.append(other)
        return replace(
            self,
            x=torch.cat([use.x for use in uses], 1),
            cotangent=torch.cat([use.cotangent for use in uses], 1),
        )


class TurnedContraction(LinearContraction):
    """A dense layer whose matrix is stored with its inputs first: x W, as GPT-2 writes it.

    Its gradient is the product of the same pairs with their sides exchanged.
    """

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Inputs, outputs, positions."""
        return self.x.shape[2], self.cotangent.shape[2], self.x.shape[1]

    def left(self, start: int, stop: int) -> Tensor:
        """Inputs, positions last."""
        return super().right(start, stop)

    def right(self, start: int, stop: int) -> Tensor:
        """Cotangents, positions last."""
        return super().left(start, stop)

    def contract(self, x: Tensor, cotangent: Tensor, total: Tensor | None) -> Tensor:
        """One matrix product."""
        return super().contract(cotangent, x, total)


def _folded(tensor: Tensor, records: int) -> Tensor:
    features = tensor.shape[-1]
    positions = tensor.numel() // max(records * features, 1) if records else 1
    return tensor.reshape(records, positions, features)
