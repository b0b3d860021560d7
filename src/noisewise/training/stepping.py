"""Where somebody else's trainer meets a private run: its loader and its optimizer.

A trainer asks for batches and calls ``optimizer.step()`` when a batch is done. The first are the
run's Poisson batches, one per step; the second takes the run's step on the batch at hand. Between
them no gradient exists that anybody could look at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

from noisewise.training.errors import StepError
from noisewise.training.private_run import PrivateRun

__all__ = ["EpochLoader", "SteppingOptimizer"]


class EpochLoader:
    """The batches of a run, epoch by epoch; a resumed run goes on within its epoch.

    Parameters
    ----------
    run : callable
        Returns the run; there is none yet when the trainer asks for the loader.
    steps_per_epoch : int
    """

    def __init__(self, run: Callable[[], PrivateRun], steps_per_epoch: int) -> None:
        self._run = run
        self._steps_per_epoch = steps_per_epoch

    def __len__(self) -> int:
        """Return the number of steps of an epoch."""
        return self._steps_per_epoch

    def __iter__(self) -> Iterator[Any]:
        """Hand out the batches up to the end of the epoch."""
        loader = self._run().loader
        return loader.take(self._steps_per_epoch - loader.position % self._steps_per_epoch)


class SteppingOptimizer(torch.optim.Optimizer):
    """A run's optimizer as a trainer sees it: its step is the run's step on the batch at hand.

    Parameters
    ----------
    run : PrivateRun
    within : callable
        Returns a context in which steps are taken.
    """

    def __init__(self, run: PrivateRun, within: Callable[[], AbstractContextManager[Any]]) -> None:
        # Nothing of its own: groups and state are those of the run's optimizer.
        self.run = run
        self._within = within
        self._batch: tuple[Any, Any] | None = None

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Those of the run's optimizer, which schedulers change."""
        return self.run.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """That of the run's optimizer."""
        return self.run.optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """Those of the run's optimizer."""
        return self.run.optimizer.defaults

    def expect(self, x: Any, y: Any) -> None:
        """Take the next step on this batch."""
        if self._batch is not None:
            raise StepError(
                "a second batch was given before the step on the first was taken; one step is one "
                "Poisson batch. Nothing was charged for either."
            )
        self._batch = (x, y)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take the private step."""
        if closure is not None:
            raise StepError(
                "the optimizer's step was given a closure, which would compute gradients that are "
                "not private"
            )
        if self._batch is None:
            raise StepError("there is no batch to step on. Nothing was released or charged.")
        batch, self._batch = self._batch, None
        with self._within():
            self.run.step(*batch)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear gradients, which are public once a step was taken."""
        self.run.optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the run's optimizer."""
        return self.run.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of the run's optimizer."""
        self.run.optimizer.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Hand it to the run's optimizer; the run refuses to step with it."""
        self.run.optimizer.add_param_group(param_group)

    def __repr__(self) -> str:
        return f"SteppingOptimizer({self.run.optimizer!r})"
