"""The loader of a private run: one batch per step, drawn as the accountant assumes.

Iterating gives every batch from the present step to the end of the plan. The loader remembers
how many batches it handed out, so that a run can tell whether its batches were drawn here or by
the caller.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from noisewise.training.records import Records, record_count
from noisewise.training.sampling import Sampler

__all__ = ["PrivateLoader"]


class PrivateLoader:
    """Batches of a run, one per step.

    Parameters
    ----------
    records : TensorRecords or MapRecords
    sampler : Sampler
    steps : int
        Where the plan ends.
    steps_per_epoch : int
        For :meth:`epoch`.
    device : torch.device, optional
        Where batches are moved, without waiting.
    """

    def __init__(
        self,
        records: Records,
        sampler: Sampler,
        steps: int,
        steps_per_epoch: int = 1,
        device: torch.device | None = None,
    ) -> None:
        self.records = records
        self.sampler = sampler
        self.steps = steps
        self.steps_per_epoch = steps_per_epoch
        self.device = device
        self.position = 0
        self._fresh: int | None = None
        self.unused = 0

    def __len__(self) -> int:
        """Return the number of batches that are left."""
        return max(0, self.steps - self.position)

    def __iter__(self) -> Iterator[Any]:
        """Hand out all batches that are left."""
        return self._until(self.steps)

    def epoch(self) -> Iterator[Any]:
        """Hand out the batches of one epoch (1/q steps), for loops that count epochs."""
        return self._until(min(self.steps, self.position + self.steps_per_epoch))

    def take(self, count: int) -> Iterator[Any]:
        """Hand out at most `count` batches."""
        return islice(self._until(min(self.steps, self.position + count)), count)

    def seek(self, step: int) -> None:
        """Continue with the batch of that step."""
        self.position = step
        self._fresh = None

    def claim(self, count: int) -> bool:
        """Whether the next step takes the batch that was handed out last, all of it."""
        fresh, self._fresh = self._fresh, None
        return fresh is not None and fresh == count

    def _until(self, stop: int) -> Iterator[Any]:
        start = self.position
        for batch in self.records.batches(self._indices(start, stop)):
            if self._fresh is not None:
                self.unused += 1
            self.position += 1
            self._fresh = record_count(batch)
            yield self._moved(batch)

    def _indices(self, start: int, stop: int) -> Iterator[Tensor]:
        return (self.sampler.indices(step) for step in range(start, stop))

    def _moved(self, value: Any) -> Any:
        if self.device is None:
            return value
        if isinstance(value, Tensor):
            return value.to(self.device, non_blocking=True)
        if isinstance(value, dict):
            return {key: self._moved(item) for key, item in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(self._moved(item) for item in value))
        if isinstance(value, (tuple, list)):
            return type(value)(self._moved(item) for item in value)
        return value
