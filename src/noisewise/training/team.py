"""Who takes part in a step: one process, or several that behave like one.

A :class:`Team` decides three things: that a step is charged once before anything is released,
that the sums of all workers are added, and that noise is added exactly once. The team of several
processes is in :mod:`noisewise.training.distributed`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from noisewise.privacy import Randomness
from noisewise.release import Agreed, Approval, Noise, Query, TensorNoise, ThisProcess
from noisewise.training.records import Records
from noisewise.training.sampling import Shard

__all__ = ["Solo", "Team", "Workers"]


class Team(Protocol):
    """The workers of a run; every method is called by all of them, in the same order."""

    @property
    def worker(self) -> int:
        """Number of this worker; 0 holds the ledger and draws the noise."""
        ...

    @property
    def workers(self) -> int:
        """How many workers there are."""
        ...

    def prepare(self, model: nn.Module, plan: str) -> None:
        """Begin with the same weights and the same plan everywhere."""
        ...

    def gathered(self, model: nn.Module) -> AbstractContextManager[None]:
        """Hold the whole weights on this worker for a while."""
        ...

    def public_size(self, held: int) -> int:
        """Number of records of all workers, if this one was given `held`."""
        ...

    def compare(self, records: Records | None, declared: int | None) -> str:
        """Raise if a record could be drawn by two workers; what the statement must say of it."""
        ...

    def compare_units(
        self, records: Records, units: Any, codes: Tensor, declared: int | None
    ) -> str:
        """Raise if rows of one unit could be drawn by two workers; what must be said of it."""
        ...

    def shard(self, held: int) -> Shard:
        """Which of the records that this worker was given are its own to draw."""
        ...

    def first(self, action: Callable[[], object]) -> None:
        """Let worker 0 act; if that fails, it fails on all."""
        ...

    def agree(self, flag: bool) -> bool:
        """Whether the flag is set on any worker."""
        ...

    def share(self, number: int) -> int:
        """Return worker 0's number on every worker."""
        ...

    def largest(self, values: Sequence[float]) -> list[float]:
        """Largest of each value over the workers."""
        ...

    def noisy(
        self, query: Query, noise: TensorNoise, rng: Randomness, approve: Approval | None = None
    ) -> dict[str, Tensor] | None:
        """Add all workers' sums, add noise once, divide; the same result on every worker.

        Worker 0 asks `approve` before it shows the result to anybody; None if that declines.
        """
        ...

    def write(self, parameter: nn.Parameter, gradient: Tensor | None) -> None:
        """Give the optimizer the gradient of a parameter, or of this worker's part of it."""
        ...

    def whole(self, value: Any) -> Any:
        """Nested values in which every tensor is whole, to be saved."""
        ...

    def load(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]
    ) -> None:
        """Set model and optimizer to the state that :meth:`whole` returned of theirs."""
        ...

    def each(self, tensor: Tensor) -> list[Tensor]:
        """Every worker's tensor, in order, on every worker."""
        ...

    def barrier(self) -> None:
        """Wait for the others."""
        ...


class Solo:
    """One process."""

    worker = 0
    workers = 1

    def prepare(self, model: nn.Module, plan: str) -> None:
        """Nothing to compare with."""

    def gathered(self, model: nn.Module) -> AbstractContextManager[None]:
        """The weights are whole."""
        return contextlib.nullcontext()

    def public_size(self, held: int) -> int:
        """Return what this worker was given."""
        return held

    def compare(self, records: Records | None, declared: int | None) -> str:
        """Nobody to compare with."""
        return ""

    def compare_units(
        self, records: Records, units: Any, codes: Tensor, declared: int | None
    ) -> str:
        """Nobody to compare with."""
        return ""

    def shard(self, held: int) -> Shard:
        """All records."""
        return Shard(held)

    def first(self, action: Callable[[], object]) -> None:
        """Act."""
        action()

    def agree(self, flag: bool) -> bool:
        """Return the flag."""
        return flag

    def share(self, number: int) -> int:
        """Return the number."""
        return number

    def largest(self, values: Sequence[float]) -> list[float]:
        """Return the values."""
        return list(values)

    def noisy(
        self, query: Query, noise: TensorNoise, rng: Randomness, approve: Approval | None = None
    ) -> dict[str, Tensor] | None:
        """Add noise and divide."""
        mean: dict[str, Tensor] | None = ThisProcess().noisy(query, noise, rng, approve)
        return mean

    def write(self, parameter: nn.Parameter, gradient: Tensor | None) -> None:
        """Set the gradient."""
        parameter.grad = gradient

    def whole(self, value: Any) -> Any:
        """Return the value."""
        return value

    def load(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]
    ) -> None:
        """Set the states."""
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])

    def each(self, tensor: Tensor) -> list[Tensor]:
        """Return the one."""
        return [tensor]

    def barrier(self) -> None:
        """Nobody to wait for."""


@dataclass(frozen=True, eq=False)
class Workers:
    """A team as the parties of a release: worker 0 keeps the account and adds the noise."""

    team: Team

    def agree(self, query: Query, noise: Noise) -> Agreed:
        """Add the noise as it was planned, once."""
        return Agreed(noise)

    def first(self, act: Callable[[], object]) -> None:
        """Let worker 0 act."""
        self.team.first(act)

    def noisy(
        self, query: Query, noise: Any, rng: Randomness, approve: Approval | None = None
    ) -> dict[str, Tensor] | None:
        """Add all workers' sums, and noise once."""
        return self.team.noisy(query, noise, rng, approve)
