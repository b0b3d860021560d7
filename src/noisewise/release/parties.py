"""Who holds the records, adds them up and adds the noise.

On one machine all is done in one place. Workers of a training run and parties that never show
their records do it otherwise; for :func:`noisewise.release.release` all are :class:`Parties`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from noisewise.privacy import Randomness
from noisewise.release.noise import Noise
from noisewise.release.query import Query

__all__ = [
    "Aggregator",
    "Agreed",
    "Approval",
    "Parties",
    "StatedAggregator",
    "Summed",
    "ThisProcess",
    "parties_of",
]

#: Decides, with the noisy value at hand and before anybody else sees it, whether it is released.
Approval = Callable[[Any], bool]


@dataclass(frozen=True, eq=False)
class Agreed:
    """How these parties make one release.

    Parameters
    ----------
    noise : Noise
        Its event is that of the noise which survives the worst allowed collusion.
    assumptions : tuple of str
        Whom one must trust for what.
    """

    noise: Noise
    assumptions: tuple[str, ...] = ()


class Parties(Protocol):
    """Those who can answer a query together; every method is called by all of them."""

    def agree(self, query: Query, noise: Noise) -> Agreed:
        """Return how `noise` is added, before anything is spent or summed; or refuse."""
        ...

    def first(self, act: Callable[[], object]) -> None:
        """Let the one who keeps the account act; if that fails, it fails for all."""
        ...

    def noisy(
        self, query: Query, noise: Noise, rng: Randomness, approve: Approval | None = None
    ) -> Any:
        """Return the query over all records with noise added once, and show nothing else.

        With `approve`, the one who keeps the account asks it before anybody sees the value;
        None if that declines.
        """
        ...


@dataclass(frozen=True, eq=False)
class ThisProcess:
    """The trusted curator: records, sum and noise on one machine.

    Parameters
    ----------
    records : object
        Whatever the query measures. Its `assumptions`, if it has any, are stated.
    """

    records: Any = None

    def count(self) -> int:
        """Number of records, asked for only if it is public."""
        return len(self.records)

    def agree(self, query: Query, noise: Noise) -> Agreed:
        """Add the noise as it was planned; nobody else is trusted but who made the records."""
        return Agreed(noise, tuple(getattr(self.records, "assumptions", ())))

    def first(self, act: Callable[[], object]) -> None:
        """Act."""
        act()

    def noisy(
        self, query: Query, noise: Noise, rng: Randomness, approve: Approval | None = None
    ) -> Any:
        """Measure and add the noise."""
        value = noise.applied(query.measure(self.records), rng)
        return value if approve is None or approve(value) else None


class Aggregator(Protocol):
    """Adds up a statistic over records that it alone can see, and adds noise to the sum."""

    def count(self, data: Any) -> int:
        """Number of records, asked for only if it is public."""
        ...

    def noisy_sum(
        self,
        data: Any,
        statistic: Callable[[Any], Any],
        noise: Callable[[Randomness], Any],
        rng: Randomness,
    ) -> Any:
        """Return the sum of `statistic` over all records, plus `noise`, and nothing else.

        Parameters
        ----------
        data : object
            The records, in whatever form this aggregator holds them (for several parties:
            a list of each party's records).
        statistic : callable
            Maps some records to the sum of their contributions, a vector of integers. It is
            additive: the statistic of all records is the sum over any division of them.
        noise : callable
            Draws the noise of the whole sum, to be added once, before anyone who may not see
            the data sees the sum; for a :class:`StatedAggregator`, what it agreed that each
            contributor of noise draws.
        rng : Randomness
            Where to draw it from, if it is drawn in one place.
        """
        ...


@runtime_checkable
class StatedAggregator(Aggregator, Protocol):
    """An aggregator that says what it must be trusted for, as those of noisewise.federated do."""

    def agree(self, data: Any, noise: Any) -> Agreed:
        """Return how `noise` is added by these parties, before anything is summed.

        Only the number of parties is read of `data`.
        """
        ...


@dataclass(frozen=True, eq=False)
class Summed:
    """Parties whose records an aggregator adds up, with noise from each that contributes some.

    Parameters
    ----------
    aggregator : Aggregator
    records : object
        One entry for each party.
    """

    aggregator: Aggregator
    records: Any

    def count(self) -> int:
        """Number of records, asked for only if it is public."""
        return self.aggregator.count(self.records)

    def agree(self, query: Query, noise: Noise) -> Agreed:
        """Ask the aggregator who adds what; one that does not say so is the caller's promise."""
        if isinstance(self.aggregator, StatedAggregator):
            return self.aggregator.agree(self.records, noise)
        return Agreed(
            noise,
            (
                f"records were summed by {type(self.aggregator).__name__}, which states no threat "
                "model: that it adds the noise in full before anybody sees the sum, and who must "
                "not collude, is the caller's promise",
            ),
        )

    def first(self, act: Callable[[], object]) -> None:
        """Act: the account is here."""
        act()

    def noisy(
        self, query: Query, noise: Any, rng: Randomness, approve: Approval | None = None
    ) -> Any:
        """Let every contributor add what was agreed."""
        drawn = getattr(noise, "draw_share", noise.draw)
        value = self.aggregator.noisy_sum(self.records, query.measure, drawn, rng)
        return value if approve is None or approve(value) else None


def parties_of(aggregator: Aggregator | None, records: Any) -> ThisProcess | Summed:
    """Return who holds the records: this process, or those that an aggregator adds up."""
    return ThisProcess(records) if aggregator is None else Summed(aggregator, records)
