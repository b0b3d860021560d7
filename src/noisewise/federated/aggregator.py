"""What every aggregator across parties answers, and the simplest one: a trusted curator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np

from noisewise.ecdf.mechanisms.protocol import IntArray
from noisewise.errors import UnsoundError
from noisewise.federated.domain import Records
from noisewise.federated.noise import SharedNoise
from noisewise.federated.questions import Question, with_noise
from noisewise.federated.results import Sums
from noisewise.federated.threat import ThreatModel
from noisewise.privacy.randomness import Randomness

__all__ = ["Aggregator", "LocalAggregator", "without_noise"]


class Aggregator(Protocol):
    """Adds up what several parties hold, adds noise, and shows nobody anything else.

    An aggregator across parties can do what the curves of :mod:`noisewise.ecdf` ask of their
    ``aggregator=``, and says what it must be trusted for.
    """

    @property
    def threat(self) -> ThreatModel:
        """Who must be trusted for what; its sentences stand in every statement."""
        ...

    @property
    def noise(self) -> SharedNoise:
        """Who adds noise, and how much of it survives."""
        ...

    @property
    def noiseless(self) -> bool:
        """Whether noise is switched off for a test."""
        ...

    def count(self, data: Any) -> int:
        """Number of records, asked for only if it is public."""
        ...

    def noisy_sum(
        self,
        data: Any,
        statistic: Callable[[Any], IntArray],
        noise: Callable[[Randomness], IntArray],
        rng: Randomness,
    ) -> IntArray:
        """Sum `statistic` over the parties in `data` with full noise from each contributor."""
        ...

    def ask(self, question: Question, parties: Sequence[Records], rng: Randomness) -> Sums:
        """Return the noisy sums of `question` over all parties' records."""
        ...


A = TypeVar("A")


def without_noise(aggregator: A) -> A:
    """Return an aggregator that adds no noise, for comparisons in tests.

    Its threat model says so, so that every statement about its results raises
    :class:`~noisewise.errors.UnsoundError`: no epsilon can be printed.
    """
    quiet: A = replace(aggregator, noiseless=True)  # type: ignore[type-var]
    return quiet


def refuse_unstated(noiseless: bool) -> None:
    """Stop a noiseless aggregator where the caller would state an epsilon without asking it."""
    if noiseless:
        raise UnsoundError(
            "an aggregator without noise works only through noisewise.federated, whose "
            "statements know it; the curves of noisewise.ecdf would print an epsilon"
        )


def draw_full(
    noise: Callable[[Randomness], IntArray], sources: Sequence[Randomness]
) -> list[IntArray]:
    """Draw the full noise once for each contributor, each from its own generator."""
    return [np.asarray(noise(source), np.int64) for source in sources]


def contributor_sources(rng: Randomness, count: int) -> list[Randomness]:
    """Return one generator for each contributor; a single one draws from `rng` itself."""
    return [rng] if count == 1 else rng.spawn(count)


@dataclass(frozen=True)
class LocalAggregator:
    """A trusted curator: all parties' records, the sum and the noise on one machine.

    Examples
    --------
    >>> from noisewise.federated import ecdf
    >>> hospitals = [np.array([0.2, 0.4]), np.array([0.9])]
    >>> F = ecdf(hospitals, LocalAggregator(), bounds=(0, 1), bins=8, epsilon=1.0, rng=1)
    >>> "protocol: trusted curator" in F.statement().assumptions
    True
    """

    noiseless: bool = False

    @property
    def noise(self) -> SharedNoise:
        """Added once, in full."""
        return SharedNoise()

    @property
    def threat(self) -> ThreatModel:
        """Everything rests on the curator."""
        return ThreatModel(
            protocol="trusted curator",
            adversary="none: the curator is trusted with the records",
            must_not_collude="the curator with anybody",
            server_sees="all records",
            result_goes_to="whoever the curator gives it to",
            drop_outs="a party that does not send its records is not counted",
            noise=self.noise.sentence,
            noiseless=self.noiseless,
        )

    def count(self, data: Any) -> int:
        """Number of records of all parties."""
        return sum(len(party) for party in data)

    def noisy_sum(
        self,
        data: Any,
        statistic: Callable[[Any], IntArray],
        noise: Callable[[Randomness], IntArray],
        rng: Randomness,
    ) -> IntArray:
        """Sum over all parties and add noise once."""
        refuse_unstated(self.noiseless)
        total = sum_parties([np.asarray(statistic(party), np.int64) for party in data])
        return total + noise(rng)

    def ask(self, question: Question, parties: Sequence[Records], rng: Randomness) -> Sums:
        """Sum over all parties and add noise once."""
        mechanism = with_noise(question, self.noise)
        total = sum_parties([question.statistic(party) for party in parties])
        if not self.noiseless:
            total = total + mechanism.draw(rng)
        public = question.relation.count_is_public
        records = sum(len(party) for party in parties)
        return Sums(total, mechanism, self.threat, rng.description, records if public else None)


def sum_parties(parts: Sequence[IntArray]) -> IntArray:
    """Add up the vectors of several parties."""
    if not parts:
        raise ValueError("there are no parties: nothing to sum")
    total: IntArray = np.sum(np.stack(parts), axis=0, dtype=np.int64)
    return total
