"""The interface of a contraction: one use of parameters, seen by its two factors.

A contraction knows, for every record of a batch, the activation that entered an operation
and the cotangent that arrived at its output. It can state the exact norm of each record's
gradient, a cheaper upper bound, the norm of the Jacobian, and the sum over records with one
factor each. It never holds the gradients of all records at once unless they are given.

Numbers (docs/proofs/contract.md#numbers): what is measured is what is added. The norms that a
contraction states cover the rounding of the very sum that it computes; docs/proofs/rounding.md
has the proof, `noisewise.gradients.contractions.rounding` its constants.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from noisewise.separation import RefusedError

__all__ = [
    "CHUNK_BYTES",
    "Contraction",
    "Sums",
    "Target",
    "add_to",
    "chunks",
    "even",
    "runs",
    "working",
]

#: Size that per-record gradients of one layer may take at a time: about a core's cache.
CHUNK_BYTES = 4 << 20

Rule = Callable[[Tensor], Tensor]
Sums = dict[str, Tensor]


@dataclass(frozen=True)
class Target:
    """A parameter (or rows of it, for packed projections) that a use contributes to."""

    name: str
    shape: tuple[int, ...]
    rows: tuple[int, int] | None = None

    def place(self, part: Tensor) -> Tensor:
        """Return a tensor of the whole parameter's shape that holds `part` in its rows."""
        if self.rows is None:
            return part if part.shape == self.shape else part.reshape(self.shape)
        whole = part.new_zeros(self.shape)
        whole[self.rows[0] : self.rows[1]] = part.reshape(whole[self.rows[0] : self.rows[1]].shape)
        return whole

    def place_each(self, part: Tensor) -> Tensor:
        """The same for every record; the first axis counts them."""
        if self.rows is None:
            return part.reshape(part.shape[0], *self.shape)
        whole = part.new_zeros((part.shape[0], *self.shape))
        view = whole[:, self.rows[0] : self.rows[1]]
        view.copy_(part.reshape(view.shape))
        return whole


def working(tensor: Tensor) -> Tensor:
    """Return the tensor in the type in which norms and sums are computed."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def chunks(records: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of consecutive chunks of at most `size` records."""
    for start in range(0, records, size):
        yield start, min(start + size, records)


def runs(records: int, size: int, step: int) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of chunks of at most `step` records that cross no multiple of `size`.

    The last bits of a product may depend on how many are computed beside it. So what is measured is
    cut in the same places as what is added.
    """
    for start, stop in chunks(records, size):
        for a, b in chunks(stop - start, step):
            yield start + a, start + b


def even(start: int, stop: int, size: int, records: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (first, last, a, b): records a to b, to be computed among those from first to last.

    That are `size` of all `records` each time, so that a record meets a kernel of the same size
    wherever it is: the last of them reach back to some that were computed before.
    """
    size = min(size, records)
    for a, b in chunks(stop - start, size):
        last = max(start + b, size)
        yield last - size, last, start + a, start + b


def add_to(sums: Sums, parts: Sums) -> None:
    """Add parts to running sums, which become float64 with the second part."""
    for name, part in parts.items():
        if name not in sums:
            sums[name] = part
        elif sums[name].dtype == torch.float64:
            sums[name].add_(part)
        else:
            sums[name] = sums[name].double().add_(part)


class Contraction(ABC):
    """One use of one or more parameters by an operation, for a batch of records."""

    records: int
    #: Whether no other use shares its bound, and the slack for rounding that its sensitivity has
    #: then; None: the usual one (docs/proofs/rounding.md#alone).
    alone: bool = False
    slack: float | None = None

    @property
    @abstractmethod
    def targets(self) -> tuple[Target, ...]:
        """The parameters that this use contributes to."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the targets."""
        return tuple(target.name for target in self.targets)

    @abstractmethod
    def only(self, names: frozenset[str]) -> Contraction:
        """Return the part of this use that concerns some of its targets."""

    def ingredients(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor in it, by name; the first axis counts records or their rows."""
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                yield field.name, value
            elif isinstance(value, dict):
                yield from ((field.name, part) for part in value.values())

    def counting(self, valid: Tensor) -> Contraction:
        """Return the same use with the cotangents of some records set to zero."""
        return self._with_cotangents(valid, masked)

    def weighted(self, weights: Tensor) -> Contraction:
        """Return the same use with every record's cotangents multiplied by its weight."""
        return self._with_cotangents(weights, scaled)

    def _with_cotangents(
        self, values: Tensor, change: Callable[[Tensor, Tensor], Tensor]
    ) -> Contraction:
        def cut(value: Tensor) -> Tensor:
            return change(value, values.repeat_interleave(value.shape[0] // values.shape[0]))

        changed: dict[str, Any] = {}
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if field.name == "cotangent":
                changed[field.name] = cut(value)
            elif field.name == "gradients":
                changed[field.name] = {target: cut(part) for target, part in value.items()}
        if not changed:
            raise NotImplementedError(f"{type(self).__name__} has no cotangents")
        return replace(self, **changed)  # type: ignore[type-var]

    def grouped(self, each: int) -> Contraction:
        """Return the same use with `each` records after the other taken for one."""
        raise RefusedError(
            f"{type(self).__name__} cannot add up the rows of a unit",
            "Give it a method `grouped`, or train without units.",
        )

    @abstractmethod
    def lengths(self, cheap: bool) -> Tensor:
        """Two lengths of each record, all targets together: (2, records), float64.

        First that of what `sums` adds, never too small by more than rounding that the slack
        covers; an upper bound of it if that is `cheap`. Then the length that its rounding counts
        as, so many times shorter than the products behind the sum as the kernels allow. Uses
        that are orthogonal join each by squares; the norm of a record is the larger of both.
        Not finite for a record whose length cannot be told.
        """

    @abstractmethod
    def sums(self, scale: Tensor | None, keep: Tensor | None) -> Sums:
        """Sum over records of scale times gradient.

        Parameters
        ----------
        scale : Tensor, optional
            One factor per record; None for one.
        keep : Tensor, optional
            False for records that must count zero though their factors may not be finite;
            None if all factors are known to be finite.
        """

    @abstractmethod
    def instantiate(self, start: int, stop: int) -> Sums:
        """Gradients of records start to stop, each by itself (first axis)."""

    def input_squares(self) -> Tensor:
        """Squared upper bound of the norm of the output's Jacobian in the targets; float64."""
        raise NotImplementedError

    def clipped_sums(self, rule: Rule, cheap: bool) -> tuple[Sums, Tensor]:
        """Scale every record by rule(its norm) and sum; returns also the norms.

        The rule gives zero for every norm that is not finite.
        """
        lengths = self.lengths(cheap)
        norm = lengths.amax(0) if lengths.stride(0) else lengths[0]  # else both are one
        return self.sums(rule(norm), needed(norm)), norm

    def condensed(self, room: int = 0) -> Contraction:
        """Return the same use in the form in which it waits best.

        That is the one that takes the least memory, or one that saves work and takes at most
        `room` bytes.
        """
        return self

    def merged(self, others: Sequence[Contraction]) -> Contraction | None:
        """One contraction for several uses of the same targets, if their factors can be joined."""
        return None


def needed(norms: Tensor) -> Tensor | None:
    """Return the mask of records whose norm is finite, or None if it masks nothing.

    Asking is free on a CPU; elsewhere it would wait for the device, so the mask is applied.
    """
    # Norms are not negative: where their sum is finite, all are.
    if norms.device.type == "cpu" and math.isfinite(norms.sum().item()):
        return None
    finite = torch.isfinite(norms)
    return None if norms.device.type == "cpu" and bool(finite.all()) else finite


def masked(tensor: Tensor, keep: Tensor | None) -> Tensor:
    """Set the records (first axis) that do not count to zero."""
    if keep is None:
        return tensor
    shaped = keep.view(-1, *[1] * (tensor.dim() - 1))
    return torch.where(shaped, tensor, torch.zeros((), dtype=tensor.dtype, device=tensor.device))


def scaled(tensor: Tensor, scale: Tensor | None) -> Tensor:
    """Multiply each record (first axis) by its factor."""
    if scale is None:
        return tensor
    return tensor * scale.view(-1, *[1] * (tensor.dim() - 1)).to(tensor.dtype)
