"""Contractions whose per-record gradients are given, and uses that only add up one by one.

For small parameters (affine scales, biases, class tokens) and for what torch.func computes,
the gradient of every record exists already. Uses of one parameter by different operations
(a tied embedding, say) are added record by record, a chunk at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from noisewise.gradients.contractions.base import (
    CHUNK_BYTES,
    Contraction,
    Rule,
    Sums,
    Target,
    chunks,
    masked,
    needed,
    runs,
    working,
)
from noisewise.gradients.contractions.rounding import RECORDS, Totals, alike, row_norms

__all__ = ["ChunkedContraction", "CombinedContraction", "GivenContraction", "weighted"]


def weighted(scale: Tensor | None, gradients: Tensor) -> Tensor:
    """Sum of the rows, each times its factor."""
    flat = gradients.reshape(gradients.shape[0], -1)
    total = flat.sum(0) if scale is None else scale.to(flat.dtype) @ flat
    return total.reshape(gradients.shape[1:])


class ChunkedContraction(Contraction):
    """Everything from `instantiate`, a chunk of records at a time.

    What is measured are the very numbers that are added, so only the addition over records
    rounds: docs/proofs/rounding.md#given.
    """

    @property
    def step(self) -> int:
        """How many records' gradients exist at a time."""
        entries = sum(torch.Size(target.shape).numel() for target in self.targets)
        return max(1, min(RECORDS, CHUNK_BYTES // (4 * max(entries, 1))))

    def lengths(self, cheap: bool) -> Tensor:
        """Chunk by chunk; what is added are single products, no longer than the norm."""
        cut = runs(self.records, RECORDS, self.step)
        parts = [_norms(self.instantiate(a, b)) for a, b in cut]
        return alike(torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64))

    def sums(self, scale: Tensor | None, keep: Tensor | None) -> Sums:
        """Chunk by chunk."""

        def given(start: int, stop: int, part: Sums) -> tuple[Tensor | None, Tensor | None]:
            factor = None if scale is None else scale[start:stop]
            return factor, None if keep is None else keep[start:stop]

        return self._summed(given)

    def clipped_sums(self, rule: Rule, cheap: bool) -> tuple[Sums, Tensor]:
        """Norm, scale and sum in one pass over the chunks."""
        found: list[Tensor] = []

        def measured(start: int, stop: int, part: Sums) -> tuple[Tensor | None, Tensor | None]:
            norm = _norms(part)
            found.append(norm)
            return rule(norm), needed(torch.isfinite(norm))

        sums = self._summed(measured)
        return sums, torch.cat(found) if found else torch.zeros(0, dtype=torch.float64)

    def _summed(self, factors: _Chunk) -> Sums:
        total = Totals()
        for start, stop in chunks(self.records, RECORDS):
            kernel: Sums = {}
            for a, b in chunks(stop - start, self.step):
                part = self.instantiate(start + a, start + b)
                scale, keep = factors(start + a, start + b, part)
                for name, gradients in part.items():
                    added = weighted(scale, masked(gradients, keep))
                    kernel[name] = kernel[name].add_(added) if name in kernel else added
            for name, value in kernel.items():
                total.add(name, value)
        return total.result()


_Chunk = Callable[[int, int, Sums], tuple[Tensor | None, Tensor | None]]
#: For every group, what gives records their factors.
Factors = Mapping[str, Callable[[Tensor], Tensor]]


def _norms(gradients: Sums) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(
        torch.stack([row_norms(g) for g in gradients.values()]), dim=0
    )
    return norms


@dataclass
class GivenContraction(ChunkedContraction):
    """Gradients of all records, as they are.

    Attributes
    ----------
    gradients : dict of Target to Tensor
        First axis: records. Rows of a target that is only part of a parameter.
    jacobian_squares : callable, optional
        Squared bound on the Jacobian, for estimators that divide by it.
    """

    gradients: dict[Target, Tensor]
    jacobian_squares: Callable[[], Tensor] | None = None

    def __post_init__(self) -> None:
        self.gradients = {target: working(g) for target, g in self.gradients.items()}
        self.records = next(iter(self.gradients.values())).shape[0]

    @property
    def targets(self) -> tuple[Target, ...]:
        """Those that gradients are given for."""
        return tuple(self.gradients)

    @property
    def step(self) -> int:
        """All in one piece: they exist anyway."""
        return RECORDS

    def only(self, names: frozenset[str]) -> GivenContraction:
        """Keep some of the gradients."""
        kept = {t: g for t, g in self.gradients.items() if t.name in names}
        return GivenContraction(kept, self.jacobian_squares)

    def grouped(self, each: int) -> GivenContraction:
        """Add them up; what is measured is the sum."""
        shaped = {t: g.reshape(-1, each, *g.shape[1:]) for t, g in self.gradients.items()}
        return GivenContraction({t: g.sum(1) for t, g in shaped.items()})

    def instantiate(self, start: int, stop: int) -> Sums:
        """Return a slice."""
        return {t.name: t.place_each(g[start:stop]) for t, g in self.gradients.items()}

    def input_squares(self) -> Tensor:
        """As given."""
        if self.jacobian_squares is None:
            raise NotImplementedError
        return self.jacobian_squares()


@dataclass
class CombinedContraction(ChunkedContraction):
    """Several uses of the same parameters, added record by record."""

    uses: Sequence[Contraction]

    def __post_init__(self) -> None:
        self.records = self.uses[0].records

    @property
    def targets(self) -> tuple[Target, ...]:
        """All parameters that some use contributes to, whole."""
        found = {t.name: Target(t.name, t.shape) for use in self.uses for t in use.targets}
        return tuple(found.values())

    def only(self, names: frozenset[str]) -> CombinedContraction:
        """Restrict every use."""
        return CombinedContraction([u.only(names) for u in self.uses if names & set(u.names)])

    def instantiate(self, start: int, stop: int) -> Sums:
        """Add the uses up."""
        total: Sums = {}
        for use in self.uses:
            for name, gradient in use.instantiate(start, stop).items():
                total[name] = total[name] + gradient if name in total else gradient
        return total


class Room:
    """What gradients that would be made twice may take, over all layers of a piece."""

    def __init__(self, size: int) -> None:
        self._left = size

    def condensed(self, part: Contraction) -> Contraction:
        """What waits for other layers, as gradients where these fit into what is left."""
        found = part.condensed(self._left)
        if found is not part and isinstance(found, GivenContraction):
            self._left -= sum(g.numel() * g.element_size() for g in found.gradients.values())
        return found
