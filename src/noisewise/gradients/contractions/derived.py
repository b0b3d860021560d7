"""Weights that are computed from parameters: the gradient is pulled back record by record.

A slice of a table of positions, a merged adapter W + BA, a normalised weight: functions of
parameters alone. The gradient in the computed weight, record by record, goes through the
transposed Jacobian of that function, which autograd recorded.

A layer with ``pull_back`` (weight standardisation) is different: its bound, its noise and its
sum belong to the effective weight, and the noisy sum is pulled back afterwards
(docs/proofs/layers.md#effective).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from noisewise.gradients.contractions.base import Contraction, Sums, Target, working
from noisewise.gradients.contractions.given import ChunkedContraction
from noisewise.separation import RefusedError

__all__ = ["Derived", "PulledBackContraction", "check_lost", "pulled_back"]


@dataclass(frozen=True)
class Derived:
    """A tensor computed from parameters, those parameters, and the leaf that stands for it."""

    tensor: Tensor
    target: Target
    bases: dict[str, Tensor]
    leaf: Tensor
    effective: bool = False

    @property
    def names(self) -> list[str]:
        """Parameters that its gradient reaches."""
        return [self.target.name] if self.effective else list(self.bases)


@dataclass
class PulledBackContraction(ChunkedContraction):
    """A contraction some of whose targets are computed from parameters."""

    inner: Contraction
    sources: dict[str, Derived]

    def __post_init__(self) -> None:
        self.records = self.inner.records

    @property
    def targets(self) -> tuple[Target, ...]:
        """The parameters themselves."""
        found: dict[str, Target] = {}
        for target in self.inner.targets:
            source = self.sources.get(target.name)
            if source is None:
                found[target.name] = Target(target.name, target.shape)
            else:
                for name, base in source.bases.items():
                    found[name] = Target(name, tuple(base.shape))
        return tuple(found.values())

    def only(self, names: frozenset[str]) -> Contraction:
        """Restrict what is pulled back."""
        return _Restricted(self, names)

    def instantiate(self, start: int, stop: int) -> Sums:
        """Gradients in the computed weights, through the transposed Jacobians."""
        total: Sums = {}

        def add(name: str, value: Tensor) -> None:
            wide = working(value)  # what a model of lower precision gave is not rounded again
            total[name] = total[name] + wide if name in total else wide

        for name, gradient in self.inner.instantiate(start, stop).items():
            source = self.sources.get(name)
            if source is None:
                add(name, gradient)
                continue
            pulled = torch.autograd.grad(
                source.tensor,
                list(source.bases.values()),
                gradient.to(source.tensor.dtype),
                retain_graph=True,
                allow_unused=True,
                materialize_grads=True,
                is_grads_batched=True,
            )
            for base, value in zip(source.bases, pulled, strict=True):
                add(base, value)
        return total


@dataclass
class _Restricted(ChunkedContraction):
    whole: PulledBackContraction
    names_kept: frozenset[str]

    def __post_init__(self) -> None:
        self.records = self.whole.records

    @property
    def targets(self) -> tuple[Target, ...]:
        return tuple(t for t in self.whole.targets if t.name in self.names_kept)

    def only(self, names: frozenset[str]) -> Contraction:
        return _Restricted(self.whole, self.names_kept & names)

    def instantiate(self, start: int, stop: int) -> Sums:
        every = self.whole.instantiate(start, stop)
        return {name: value for name, value in every.items() if name in self.names_kept}


def pulled_back(contraction: Contraction, derived: Mapping[int, Derived]) -> Contraction:
    """Wrap a contraction if some of its targets are computed from parameters."""
    if not derived:
        return contraction
    by_name = {d.target.name: d for d in derived.values() if not d.effective}
    sources = {name: by_name[name] for name in contraction.names if name in by_name}
    return PulledBackContraction(contraction, sources) if sources else contraction


def check_lost(computed: Iterable[Derived]) -> None:
    """Refuse gradients that reached a computed weight and found no way on to its parameters."""
    for derived in computed:
        if derived.leaf.grad is not None:
            names = ", ".join(f'"{name}"' for name in derived.names)
            raise RefusedError(
                f"what is computed from {names} is used by an operation that is not taken "
                "apart (as the first state of a recurrent layer, for example), so its gradient "
                "would be lost",
                "Expand it over the batch, for example "
                "state.expand(-1, x.shape[0], -1), or freeze it.",
            )
