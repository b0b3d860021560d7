"""What every aggregator across parties answers, and the simplest one: a trusted curator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np

from noisewise.ecdf.mechanisms import IntArray
from noisewise.errors import UnsoundError
from noisewise.federated.domain import Records
from noisewise.federated.noise import SharedNoise
from noisewise.federated.questions import Question, with_noise
from noisewise.federated.results import Sums
from noisewise.federated.threat import ThreatModel
from noisewise.privacy import Randomness
from noisewise.release import Agreed, with_share

#: Maps some records to the sum of their contributions.
Statistic: TypeAlias = Callable[[Any], IntArray]
#: Draws the noise of a sum.
Noise: TypeAlias = Callable[[Randomness], IntArray]

__all__ = ["AcrossParties", "Aggregator", "LocalAggregator", "SummedInOnePlace", "without_noise"]


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

    def agree(self, data: Any, noise: Any) -> Agreed:
        """Return who adds which noise to a curve of noisewise.ecdf, and the threat model."""
        ...

    def noisy_sum(self, data: Any, statistic: Statistic, noise: Noise, rng: Randomness) -> IntArray:
        """Sum `statistic` over the parties in `data`; each contributor of noise adds a draw."""
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


class AcrossParties(ABC):
    """What all aggregators do alike: count, agree on the noise, and sum any statistic.

    A subclass says who adds noise and who must be trusted (`noise`, `threat`), adds up vectors
    (:meth:`add_up`) and answers questions (``ask``).
    """

    noiseless: bool

    @property
    @abstractmethod
    def noise(self) -> SharedNoise:
        """Who adds noise, and how much of it survives."""

    @property
    @abstractmethod
    def threat(self) -> ThreatModel:
        """Who must be trusted for what."""

    @abstractmethod
    def add_up(self, vectors: Sequence[IntArray], noise: Noise, rng: Randomness) -> IntArray:
        """Return the sum of the parties' vectors with one draw from every contributor of noise."""

    def noise_for(self, parties: int) -> SharedNoise:
        """Return who adds noise if so many parties take part, all of them to the end."""
        return self.noise

    def threat_for(self, parties: int, noise: SharedNoise) -> ThreatModel:
        """Return the threat model for so many parties and this noise."""
        return self.threat

    def count(self, data: Any) -> int:
        """Number of records of all parties."""
        _require_parties(data)
        return sum(len(party) for party in data)

    def agree(self, data: Any, noise: Any) -> Agreed:
        """Return who adds which noise to a curve of noisewise.ecdf, and the threat model.

        The accountant gets the noise that survives the worst allowed collusion.
        """
        if self.noiseless:
            raise UnsoundError(
                "an aggregator without noise works only through noisewise.federated, whose results "
                "know it; functions of noisewise.ecdf return bare numbers that would pass for "
                "private ones"
            )
        _require_parties(data)
        parties = len(data)
        shares = self.noise_for(parties)
        return Agreed(shares.apply(noise), self.threat_for(parties, shares).sentences)

    def noisy_sum(self, data: Any, statistic: Statistic, noise: Noise, rng: Randomness) -> IntArray:
        """Sum any statistic of the parties' records; `noise` is what one contributor adds."""
        return self.add_up([np.asarray(statistic(party), np.int64) for party in data], noise, rng)


def _require_parties(data: Any) -> None:
    if len(data) == 0:
        raise ValueError("there are no parties: nothing to sum")
    if any(getattr(party, "ndim", 1) == 0 or not hasattr(party, "__len__") for party in data):
        raise ValueError(
            "with an aggregator, give a list with one array of records for each party, got "
            "single numbers"
        )


class SummedInOnePlace(AcrossParties):
    """Somebody trusted learns the sum and adds the noise, once and in full."""

    @abstractmethod
    def total(self, vectors: Sequence[IntArray]) -> IntArray:
        """Return the sum of the parties' vectors, without noise."""

    @property
    def noise(self) -> SharedNoise:
        """Added once, in full."""
        return SharedNoise()

    def add_up(self, vectors: Sequence[IntArray], noise: Noise, rng: Randomness) -> IntArray:
        """Return the sum of the parties' vectors with one draw of noise."""
        return self.total(vectors) + noise(rng)

    def ask(self, question: Question, parties: Sequence[Records], rng: Randomness) -> Sums:
        """Sum over all parties and add noise once."""
        mechanism = with_noise(question, self.noise)

        def whole(held: Sequence[Records]) -> IntArray:
            return self.total([question.statistic(party) for party in held])

        if self.noiseless:
            total = whole(parties)
        else:
            total = with_share(replace(question.query, measure=whole), mechanism, parties, rng)
        public = question.relation.count_is_public
        records = self.count(parties) if public else None
        return Sums(total, mechanism, self.threat, rng.description, records)


@dataclass(frozen=True)
class LocalAggregator(SummedInOnePlace):
    """A trusted curator: all parties' records, the sum and the noise on one machine.

    Examples
    --------
    >>> from noisewise.federated import ecdf
    >>> hospitals = [np.array([0.2, 0.4]), np.array([0.9])]
    >>> F = ecdf(hospitals, LocalAggregator(), bounds=(0, 1), bins=8, epsilon=1.0, seed=1)
    >>> "protocol: trusted curator" in F.statement().assumptions
    True
    """

    noiseless: bool = False

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

    def total(self, vectors: Sequence[IntArray]) -> IntArray:
        """Add up the parties' vectors."""
        if not vectors:
            raise ValueError("there are no parties: nothing to sum")
        total: IntArray = np.sum(np.stack(vectors), axis=0, dtype=np.int64)
        return total
