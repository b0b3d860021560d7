"""The interface of a contraction: one use of parameters, seen by its two factors.

A contraction knows, for every record of a batch, the activation that entered an operation
and the cotangent that arrived at its output. It can state the exact norm of each record's
gradient, a cheaper upper bound, the norm of the Jacobian, and the sum over records with one
factor each. It never holds the gradients of all records at once unless they are given.

Numbers (contract, point 7): factors are float32 at least; sums run over at most 256 records
in that type, at most four of those are added in it, and all others in float64.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = [
    "CHUNK_BYTES",
    "RECORDS",
    "RUN",
    "Contraction",
    "Sums",
    "Target",
    "add_to",
    "chunks",
    "working",
]

#: Largest number of records whose contributions are summed by one float32 kernel.
RECORDS = 256
#: How many such sums are added in float32 before float64 takes over. Each addition rounds by
#: at most 6e-8 of the sum so far, which is at most 1024 C long: three of them are within 2e-4 C
#: of the exact sum, a fifth of the slack on every sensitivity.
RUN = 4 * RECORDS
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
            return part.reshape(self.shape)
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

    @abstractmethod
    def squares(self) -> Tensor:
        """Exact squared norm of each record's gradient, all targets together."""

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

    def bound(self) -> Tensor:
        """Upper bound of the norm of each record's gradient; exact unless overridden."""
        return self.squares().sqrt()

    def input_squares(self) -> Tensor:
        """Squared upper bound of the norm of the output's Jacobian in the targets."""
        raise NotImplementedError

    def clipped_sums(self, rule: Rule, cheap: bool) -> tuple[Sums, Tensor]:
        """Scale every record by rule(its norm) and sum; returns also the norms.

        `cheap` permits an upper bound in place of the norm.
        """
        norm = self.bound() if cheap else self.squares().sqrt()
        finite = torch.isfinite(norm)
        scale = torch.where(finite, rule(norm), torch.zeros_like(norm))
        return self.sums(scale, needed(finite)), norm

    def condensed(self) -> Contraction:
        """Return the same use in whatever form takes the least memory while it waits."""
        return self

    def merged(self, other: Contraction) -> Contraction | None:
        """One contraction for two uses of the same targets, if their factors can be joined."""
        return None


def needed(finite: Tensor) -> Tensor | None:
    """Return the mask of finite records, or None if it masks nothing.

    Asking is free on a CPU; elsewhere it would wait for the device, so the mask is applied.
    """
    if finite.device.type == "cpu" and bool(finite.all()):
        return None
    return finite


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
