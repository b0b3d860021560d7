"""Operations whose weight gradient is a product of two matrices, record by record.

For one record the gradient of a dense layer, a sequence of them or a convolution is
``left @ right.T`` with left (M, T) the cotangents and right (N, T) the inputs at T positions.

* T = 1: the norm is the product of the two norms, exactly, and costs nothing.
* few positions: |L R'|^2 = <L'L, R'R>, Gram matrices of size T (the ghost norm of Li et al.,
  2022), in float64 because the inner product may cancel.
* many positions: the gradient itself, a few records at a time that fit the cache. Summing
  the scaled pieces replaces the ordinary contraction, so the exact norm is almost free.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from noisewise.gradients.contractions.base import (
    CHUNK_BYTES,
    RECORDS,
    RUN,
    Contraction,
    Rule,
    Sums,
    Target,
    add_to,
    chunks,
    masked,
    needed,
    scaled,
    working,
)
from noisewise.gradients.contractions.given import GivenContraction, row_squares, weighted

__all__ = ["LinearContraction", "PairContraction"]

# Entries of a gradient that cost as much as one multiplication each when written and read
# back, and the price of float64: measured ratios, they only steer the choice of a kernel.
_MEMORY = 30
_DOUBLE = 4


class PairContraction(Contraction):
    """A weight that meets pairs of factors at several positions, and a bias.

    Subclasses give the factors of any run of records and a kernel that contracts a whole run.
    """

    weight: Target | None
    bias: Target | None
    groups: int = 1

    @property
    @abstractmethod
    def sizes(self) -> tuple[int, int, int]:
        """M and N per group, and the number of positions T."""

    @abstractmethod
    def left(self, start: int, stop: int) -> Tensor:
        """Cotangents (records, groups, M, T)."""

    @abstractmethod
    def right(self, start: int, stop: int) -> Tensor:
        """Inputs (records, groups, N, T)."""

    @abstractmethod
    def bias_gradients(self, start: int, stop: int) -> Tensor:
        """Cotangents summed over positions (records, entries of the bias)."""

    @abstractmethod
    def contract(
        self,
        start: int,
        stop: int,
        scale: Tensor | None,
        keep: Tensor | None,
        total: Tensor | None = None,
    ) -> Tensor:
        """Weight gradient of some records, each times its factor, added to `total` if given."""

    @abstractmethod
    def positions_bound(self) -> Tensor:
        """Upper bound of the weight's gradient norm: sum over positions of |l_t| |r_t|."""

    @property
    def targets(self) -> tuple[Target, ...]:
        """Weight and bias, as far as they learn."""
        return tuple(t for t in (self.weight, self.bias) if t is not None)

    def _costs(self) -> tuple[float, float, float]:
        """Prices of instantiating, of Gram matrices and of the contraction alone."""
        m, n, t = self.sizes
        contraction = self.groups * m * n * t
        instantiate = contraction + _MEMORY * self.groups * m * n
        gram = self.groups * _DOUBLE * t * (t + 8) * (m + n)
        return float(instantiate), float(gram), float(contraction)

    @property
    def step(self) -> int:
        """How many records' gradients exist at a time."""
        return max(1, min(RECORDS, CHUNK_BYTES // (4 * self.held)))

    @property
    def held(self) -> int:
        """Numbers that exist for one record while its gradient is computed."""
        m, n, _ = self.sizes
        return self.groups * m * n

    @property
    @abstractmethod
    def factor_entries(self) -> int:
        """Numbers in the two factors of one record."""

    def _gradients(self, start: int, stop: int) -> Tensor:
        """Weight gradients of a run of records (records, groups * M * N)."""
        left, right = self.left(start, stop), self.right(start, stop)
        return torch.matmul(left, right.transpose(-1, -2)).flatten(1)

    def _bias_squares(self) -> Tensor | None:
        if self.bias is None:
            return None
        return row_squares(self.bias_gradients(0, self.records))

    def _weight_squares(self) -> Tensor:
        _, _, positions = self.sizes
        if self.groups == 1 and positions == 1:
            left, right = self.left(0, self.records), self.right(0, self.records)
            return row_squares(left) * row_squares(right)
        instantiate, gram, _ = self._costs()
        if instantiate <= gram:
            runs = chunks(self.records, self.step)
            return torch.cat([row_squares(self._gradients(a, b)) for a, b in runs])
        return torch.cat([self._gram_squares(a, b) for a, b in chunks(self.records, RECORDS)])

    def _gram_squares(self, start: int, stop: int) -> Tensor:
        left, right = self.left(start, stop), self.right(start, stop)
        dtype, left, right = left.dtype, left.double(), right.double()
        product = (left.transpose(-1, -2) @ left) * (right.transpose(-1, -2) @ right)
        return product.flatten(1).sum(1).clamp_min(0.0).to(dtype)

    def squares(self) -> Tensor:
        """Weight by the cheapest exact way, bias by its gradients."""
        if self.records == 0:
            return self.left(0, 0).new_zeros(0)
        bias = self._bias_squares()
        if self.weight is None:
            assert bias is not None
            return bias
        weight = self._weight_squares()
        return weight if bias is None else weight + bias

    def bound(self) -> Tensor:
        """Exact where that costs little more than the contraction, else over positions."""
        _, gram, contraction = self._costs()
        _, _, positions = self.sizes
        if self.weight is None or positions == 1 or gram <= contraction:
            return self.squares().sqrt()
        weight = self.positions_bound()
        bias = self._bias_squares()
        return weight if bias is None else (weight.square() + bias).sqrt()

    def _instantiating_is_cheap(self, cheap: bool) -> bool:
        instantiate, gram, contraction = self._costs()
        _, _, positions = self.sizes
        if self.weight is None or positions == 1:
            return False
        # A bound needs the contraction too; exactness is worth as much again, twice over.
        return instantiate <= (3 * contraction if cheap else gram + contraction)

    def clipped_sums(self, rule: Rule, cheap: bool) -> tuple[Sums, Tensor]:
        """In one pass where the gradients of a few records at a time are affordable."""
        if self.records == 0 or not self._instantiating_is_cheap(cheap):
            return super().clipped_sums(rule, cheap)
        total: Sums = {}
        norms: list[Tensor] = []
        for a, b in chunks(self.records, RECORDS):
            add_to(total, self._clipped_run(a, b, rule, norms))
        return self._placed(total), torch.cat(norms)

    def _clipped_run(self, start: int, stop: int, rule: Rule, norms: list[Tensor]) -> Sums:
        """Norms and scaled sums of a run of records that may be summed in float32."""
        assert self.weight is not None
        total: Tensor | None = None
        biases, of_bias = None, None
        if self.bias is not None:
            biases = self.bias_gradients(start, stop)
            of_bias = row_squares(biases)
        scales, kept = [], []
        for a, b in chunks(stop - start, self.step):
            gradients = self._gradients(start + a, start + b)
            square = row_squares(gradients)
            norm = (square if of_bias is None else square + of_bias[a:b]).sqrt()
            finite = torch.isfinite(norm)
            keep = needed(finite)
            scale = torch.where(finite, rule(norm), torch.zeros_like(norm)).to(gradients.dtype)
            flat = masked(gradients, keep).t()
            total = flat @ scale if total is None else total.addmv_(flat, scale)
            norms.append(norm)
            scales.append(scale)
            kept.append(keep)
        assert total is not None
        parts = {self.weight.name: total}
        if self.bias is not None and biases is not None:
            if any(keep is not None for keep in kept):
                biases = masked(biases, torch.isfinite(torch.cat(norms[-len(kept) :])))
            parts[self.bias.name] = weighted(torch.cat(scales), biases)
        return parts

    def condensed(self) -> Contraction:
        """The gradients themselves where they take less memory than the two factors.

        For the group that waits for other layers: then nothing is contracted a second time.
        """
        m, n, positions = self.sizes
        if self.weight is None or positions == 1 or m * n * self.groups > self.factor_entries:
            return self
        if self.records == 0:
            return self
        kind = self.left(0, 0)
        gradients = kind.new_empty(self.records, self.groups, m, n)
        for a, b in chunks(self.records, self.step):
            left, right = self.left(a, b), self.right(a, b)
            torch.matmul(left, right.transpose(-1, -2), out=gradients[a:b])
        given = {self.weight: gradients.flatten(1)}
        if self.bias is not None:
            given[self.bias] = self.bias_gradients(0, self.records)
        return GivenContraction(given)

    def _placed(self, total: Sums) -> Sums:
        return {t.name: t.place(total[t.name]) for t in self.targets if t.name in total}

    def sums(self, scale: Tensor | None, keep: Tensor | None) -> Sums:
        """Contract scaled factors, at most 256 records at a time."""
        total: Sums = {}
        for a, b in chunks(self.records, RUN):
            factor = None if scale is None else scale[a:b]
            mask = None if keep is None else keep[a:b]
            parts: Sums = {}
            if self.weight is not None:
                parts[self.weight.name] = self._contract_run(a, b, factor, mask)
            if self.bias is not None:
                biases = masked(self.bias_gradients(a, b), mask)
                parts[self.bias.name] = weighted(factor, biases)
            add_to(total, parts)
        return self._placed(total)

    def _contract_run(
        self, start: int, stop: int, scale: Tensor | None, keep: Tensor | None
    ) -> Tensor:
        """Add the contractions of a few kernels' worth of records."""
        total: Tensor | None = None
        for a, b in chunks(stop - start, RECORDS):
            factor = None if scale is None else scale[a:b]
            mask = None if keep is None else keep[a:b]
            total = self.contract(start + a, start + b, factor, mask, total)
        assert total is not None
        return total

    def instantiate(self, start: int, stop: int) -> Sums:
        """Products and summed cotangents."""
        parts: Sums = {}
        if self.weight is not None:
            parts[self.weight.name] = self.weight.place_each(self._gradients(start, stop))
        if self.bias is not None:
            parts[self.bias.name] = self.bias.place_each(self.bias_gradients(start, stop))
        return parts


@dataclass
class LinearContraction(PairContraction):
    """A dense layer at T positions: x (records, T, N), cotangent (records, T, M)."""

    x: Tensor
    cotangent: Tensor
    weight: Target | None
    bias: Target | None

    def __post_init__(self) -> None:
        self.records = self.x.shape[0]

    @staticmethod
    def of(
        x: Tensor, cotangent: Tensor, views: int, weight: Target | None, bias: Target | None
    ) -> LinearContraction:
        """Fold views of a record and all leading axes into positions."""
        records = x.shape[0] // views
        return LinearContraction(_folded(x, records), _folded(cotangent, records), weight, bias)

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

    def left(self, start: int, stop: int) -> Tensor:
        """Cotangents, positions last."""
        return working(self.cotangent[start:stop]).transpose(1, 2).unsqueeze(1)

    def right(self, start: int, stop: int) -> Tensor:
        """Inputs, positions last."""
        return working(self.x[start:stop]).transpose(1, 2).unsqueeze(1)

    def bias_gradients(self, start: int, stop: int) -> Tensor:
        """Sum of the cotangents over positions."""
        part = working(self.cotangent[start:stop])
        return part[:, 0] if part.shape[1] == 1 else part.sum(1)

    def contract(
        self,
        start: int,
        stop: int,
        scale: Tensor | None,
        keep: Tensor | None,
        total: Tensor | None = None,
    ) -> Tensor:
        """One matrix product; the smaller factor is scaled."""
        x = masked(working(self.x[start:stop]), keep)
        cotangent = masked(working(self.cotangent[start:stop]), keep)
        if x.shape[2] <= cotangent.shape[2]:
            x = scaled(x, scale)
        else:
            cotangent = scaled(cotangent, scale)
        left, right = cotangent.flatten(0, 1).t(), x.flatten(0, 1)
        return left @ right if total is None else total.addmm_(left, right)

    def positions_bound(self) -> Tensor:
        """Sum over positions of the product of norms."""
        x = torch.linalg.vector_norm(working(self.x), dim=2)
        cotangent = torch.linalg.vector_norm(working(self.cotangent), dim=2)
        bound: Tensor = (x * cotangent).sum(1)
        return bound

    def input_squares(self) -> Tensor:
        """Squared norm of all inputs, and one per position for the bias."""
        square = row_squares(working(self.x)) if self.weight is not None else 0.0
        ones = float(self.x.shape[1]) if self.bias is not None else 0.0
        result = square + ones
        return result if isinstance(result, Tensor) else self.x.new_full((self.records,), result)

    def merged(self, other: Contraction) -> Contraction | None:
        """Two uses of one layer are one use with more positions."""
        if not isinstance(other, LinearContraction) or other.targets != self.targets:
            return None
        return replace(
            self,
            x=torch.cat([self.x, other.x], 1),
            cotangent=torch.cat([self.cotangent, other.cotangent], 1),
        )


def _folded(tensor: Tensor, records: int) -> Tensor:
    features = tensor.shape[-1]
    positions = tensor.numel() // max(records * features, 1) if records else 1
    return tensor.reshape(records, positions, features)
