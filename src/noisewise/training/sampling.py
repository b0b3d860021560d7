"""Which records a step takes: exactly what the accountant assumes.

A new sampler is one class here that :func:`register` enters: a plan takes its word, the table of
``docs/training.md`` is made from the registry, and ``tests/common/test_common_samplers.py`` asks
for the event that accounts for it.

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
from typing import ClassVar, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from noisewise import checks
from noisewise.privacy import Randomness
from noisewise.training.streams import Streams

__all__ = ["REFUSED", "SAMPLERS", "FullSampler", "PoissonSampler", "Sampler", "Shard", "register"]


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


class PlannedSampler(Sampler, Protocol):
    """A sampler that a plan can ask for.

    Attributes
    ----------
    word, told : str
        The word for it in a plan, and what it does, in one sentence.
    proof : str
        Where the event that accounts for it is proven: page and anchor of the documentation.
    takes_all : bool
        Whether every record takes part in every step, so that the rate is one.
    """

    word: ClassVar[str]
    told: ClassVar[str]
    proof: ClassVar[str]
    takes_all: ClassVar[bool]

    @classmethod
    def of(cls, shard: Shard, sample_rate: float, streams: Streams) -> Sampler:
        """The sampler of a run."""
        ...


_Kind = TypeVar("_Kind", bound=type[PlannedSampler])

#: Every sampler by its word.
SAMPLERS: dict[str, type[PlannedSampler]] = {}

#: Samplers that people ask for, and why there is no epsilon for them.
REFUSED = {
    "shuffle": (
        "batches of a shuffled dataset have no analysis as tight as Poisson's: one epoch with "
        "noise multiplier 0.5 that Poisson accounting calls epsilon 3.2 costs at least 10"
    ),
    "fixed": "batches of a fixed size drawn without replacement need an analysis of their own",
    "weighted": "records drawn with unequal probabilities need an analysis for the largest one",
}


def register(kind: _Kind) -> _Kind:
    """Enter a sampler into the registry."""
    if kind.word in SAMPLERS or kind.word in REFUSED:
        raise ValueError(f"there is a sampler called {kind.word!r}")
    SAMPLERS[kind.word] = kind
    return kind


@register
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

    word: ClassVar[str] = "poisson"
    told: ClassVar[str] = "Each record independently, with probability q; a batch may be empty."
    proof: ClassVar[str] = "proofs/events.md#poisson-gaussian"
    takes_all: ClassVar[bool] = False
    shard: Shard
    sample_rate: float
    streams: Streams = field(repr=False)

    @classmethod
    def of(cls, shard: Shard, sample_rate: float, streams: Streams) -> PoissonSampler:
        """The sampler of a run."""
        return cls(shard, sample_rate, streams)

    def __post_init__(self) -> None:
        checks.probability("sample_rate", self.sample_rate)

    def indices(self, step: int) -> Tensor:
        """Positions of the records of a step, in random order."""
        rng = self.streams.batch(step)
        drawn = rng.poisson_indices(self.shard.count, self.sample_rate)
        return self.shard.positions(_shuffled(drawn, rng))


@register
@dataclass(frozen=True)
class FullSampler:
    """All records, every time."""

    word: ClassVar[str] = "full"
    told: ClassVar[str] = (
        "Every record in every step, which also bounds any batches of distinct records."
    )
    proof: ClassVar[str] = "proofs/events.md#poisson-gaussian"
    takes_all: ClassVar[bool] = True
    shard: Shard
    streams: Streams | None = field(default=None, repr=False)

    @classmethod
    def of(cls, shard: Shard, sample_rate: float, streams: Streams) -> FullSampler:
        """The sampler of a run."""
        return cls(shard, streams)

    def indices(self, step: int) -> Tensor:
        """Positions of all records, in random order if there is a generator."""
        every = torch.arange(self.shard.count)
        if self.streams is not None:
            every = _shuffled(every, self.streams.batch(step))
        return self.shard.positions(every)


def _shuffled(indices: Tensor, rng: Randomness) -> Tensor:
    """Return the indices in the order of as many random numbers (equal ones: never)."""
    return indices[torch.from_numpy(np.argsort(rng.uint64(len(indices))))]
