"""Contractions whose per-record gradients are given, and uses that only add up one by one.

For small parameters (affine scales, biases, class tokens) and for what torch.func computes,
the gradient of every record exists already. Uses of one parameter by different operations
(a tied embedding, say) are added record by record, a chunk at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from noisewise.gradients.contractions.base import (
    CHUNK_BYTES,
    RECORDS,
    Contraction,
    Rule,
    Sums,
    Target,
    add_to,
    chunks,
    masked,
    needed,
    working,
)

__all__ = ["ChunkedContraction", "CombinedContraction", "GivenContraction", "weighted"]


def weighted(scale: Tensor | None, gradients: Tensor) -> Tensor:
    """Sum of the rows, each times its factor."""
    flat = gradients.flatten(1)
    total = flat.sum(0) if scale is None else scale.to(flat.dtype) @ flat
    return total.reshape(gradients.shape[1:])


def row_squares(gradients: Tensor) -> Tensor:
    """Squared norm of every row."""
    norms: Tensor = torch.linalg.vector_norm(gradients.flatten(1), dim=1)
    return norms.square()


class ChunkedContraction(Contraction):
    """Everything from `instantiate`, a chunk of records at a time."""

    @property
    def step(self) -> int:
        """How many records' gradients exist at a time."""
        entries = sum(torch.Size(target.shape).numel() for target in self.targets)
        return max(1, min(RECORDS, CHUNK_BYTES // (4 * max(entries, 1))))

    def squares(self) -> Tensor:
        """Chunk by chunk."""
        parts = [
            torch.stack([row_squares(g) for g in self.instantiate(a, b).values()]).sum(0)
            for a, b in chunks(self.records, self.step)
        ]
        return torch.cat(parts) if parts else torch.zeros(0)

    def sums(self, scale: Tensor | None, keep: Tensor | None) -> Sums:
        """Chunk by chunk."""
        total: Sums = {}
        for a, b in chunks(self.records, self.step):
            part = self.instantiate(a, b)
            mask = None if keep is None else keep[a:b]
            factor = None if scale is None else scale[a:b]
            add_to(total, {n: weighted(factor, masked(g, mask)) for n, g in part.items()})
        return total

    def clipped_sums(self, rule: Rule, cheap: bool) -> tuple[Sums, Tensor]:
        """Norm, scale and sum in one pass over the chunks."""
        total: Sums = {}
        norms = []
        for a, b in chunks(self.records, self.step):
            part = self.instantiate(a, b)
            norm = torch.stack([row_squares(g) for g in part.values()]).sum(0).sqrt()
            finite = torch.isfinite(norm)
            keep = needed(finite)
            scale = torch.where(finite, rule(norm), torch.zeros_like(norm))
            add_to(total, {n: weighted(scale, masked(g, keep)) for n, g in part.items()})
            norms.append(norm)
        return total, torch.cat(norms) if norms else torch.zeros(0)


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
