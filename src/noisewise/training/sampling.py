"""Which records a step takes: exactly what the accountant assumes.

``PoissonSampler`` draws each record independently with probability q, by one vectorised draw
whose probability is exact (:meth:`noisewise.privacy.Randomness.poisson_indices`); the batch may
be empty. ``FullSampler`` takes all. Batch k is a function of the step k and the run's generators
alone, so workers may prefetch and a resumed run draws what it would have drawn.

Records come in an order drawn from the same generator. Then a record that is left out leaves all
others but one in their places, and with them the rounding of their sum
(docs/proofs/rounding.md#order).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from noisewise.privacy import Randomness, _validate
from noisewise.training.streams import Streams

__all__ = ["FullSampler", "PoissonSampler", "Sampler", "Shard"]


@dataclass(frozen=True)
class Shard:
    """Every `workers`-th record of `total`, beginning with number `worker`."""

    total: int
    worker: int = 0
    workers: int = 1

    @property
    def count(self) -> int:
        """How many records this worker holds."""
        return len(range(self.worker, self.total, self.workers))

    def positions(self, indices: Tensor) -> Tensor:
        """Where the records of the shard are in the whole dataset."""
        return indices if self.workers == 1 else indices * self.workers + self.worker


class Sampler(Protocol):
    """Draws the records of a step."""

    def indices(self, step: int) -> Tensor:
        """Positions of the records that take part in that step; may be none."""
        ...


@dataclass(frozen=True)
class PoissonSampler:
    """Each record independently, with probability `sample_rate`.

    Examples
    --------
    >>> sampler = PoissonSampler(Shard(1000), 0.1, Streams(seed=3))
    >>> first = sampler.indices(0)
    >>> bool((first == sampler.indices(0)).all()), 60 < len(first) < 140
    (True, True)
    """

    shard: Shard
    sample_rate: float
    streams: Streams = field(repr=False)

    def __post_init__(self) -> None:
        _validate.probability("sample_rate", self.sample_rate)

    def indices(self, step: int) -> Tensor:
        """Positions of the records of a step, in random order."""
        rng = self.streams.batch(step)
        drawn = rng.poisson_indices(self.shard.count, self.sample_rate)
        return self.shard.positions(_shuffled(drawn, rng))


@dataclass(frozen=True)
class FullSampler:
    """All records, every time."""

    shard: Shard
    streams: Streams | None = field(default=None, repr=False)

    def indices(self, step: int) -> Tensor:
        """Positions of all records, in random order if there is a generator."""
        every = torch.arange(self.shard.count)
        if self.streams is not None:
            every = _shuffled(every, self.streams.batch(step))
        return self.shard.positions(every)


def _shuffled(indices: Tensor, rng: Randomness) -> Tensor:
    """Return the indices in the order of as many random numbers (equal ones: never)."""
    return indices[torch.from_numpy(np.argsort(rng.uint64(len(indices))))]
