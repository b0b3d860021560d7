"""Who takes part in a step: one process, or several that behave like one.

A :class:`Team` decides three things: that a step is charged once before anything is released,
that the sums of all workers are added, and that noise is added exactly once. The team of several
processes is in :mod:`noisewise.training.distributed`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from noisewise.privacy import Randomness
from noisewise.training.account import Account
from noisewise.training.release import GroupLike, NoisePlan, add_noise
from noisewise.training.sampling import Shard

__all__ = ["Solo", "Team"]


class Team(Protocol):
    """The workers of a run."""

    @property
    def worker(self) -> int:
        """Number of this worker; 0 holds the ledger and draws the noise."""
        ...

    @property
    def workers(self) -> int:
        """How many workers there are."""
        ...

    def charge(self, account: Account, step: int) -> None:
        """Charge a step once for all workers, or raise on all of them."""
        ...

    def agree(self, flag: bool) -> bool:
        """Whether the flag is set on any worker."""
        ...

    def public_size(self, held: int) -> int:
        """Number of records of all workers, if this one was given `held`."""
        ...

    def shard(self, held: int) -> Shard:
        """Which of the records that this worker was given are its own to draw."""
        ...

    def noisy(
        self, groups: Sequence[GroupLike], noise: NoisePlan, rng: Randomness, divisor: float
    ) -> dict[str, Tensor]:
        """Add all workers' sums, add noise once, divide; the same result on every worker."""
        ...

    def write(self, parameter: nn.Parameter, gradient: Tensor | None) -> None:
        """Give the optimizer the gradient of a parameter, or of this worker's part of it."""
        ...

    def full_state(self, model: nn.Module) -> Mapping[str, Any]:
        """The whole model's state, wherever its parts are."""
        ...

    def load_state(self, model: nn.Module, state: Mapping[str, Any]) -> None:
        """Set the model to a state of :meth:`full_state`."""
        ...

    def share(self, value: Any) -> Any:
        """Return what worker 0 holds, on every worker."""
        ...

    def barrier(self) -> None:
        """Wait for the others."""
        ...


class Solo:
    """One process."""

    worker = 0
    workers = 1

    def charge(self, account: Account, step: int) -> None:
        """Charge the step."""
        account.charge(step)

    def agree(self, flag: bool) -> bool:
        """Return the flag."""
        return flag

    def public_size(self, held: int) -> int:
        """Return what this worker was given."""
        return held

    def shard(self, held: int) -> Shard:
        """All records."""
        return Shard(held)

    def noisy(
        self, groups: Sequence[GroupLike], noise: NoisePlan, rng: Randomness, divisor: float
    ) -> dict[str, Tensor]:
        """Add noise and divide."""
        return add_noise(groups, noise, rng, divisor)

    def write(self, parameter: nn.Parameter, gradient: Tensor | None) -> None:
        """Set the gradient."""
        with torch.no_grad():
            parameter.grad = gradient

    def full_state(self, model: nn.Module) -> Mapping[str, Any]:
        """The model's state."""
        return model.state_dict()

    def load_state(self, model: nn.Module, state: Mapping[str, Any]) -> None:
        """Set the model's state."""
        model.load_state_dict(state)

    def share(self, value: Any) -> Any:
        """Return the value."""
        return value

    def barrier(self) -> None:
        """Nobody to wait for."""
