"""The one thing a curve asks of whoever holds the data: a noisy sum over records.

A sum of a function of single records is a U-statistic of order 1 (Section 6.2.1 of Barczewski
2025). Every measurement here is one, with integer values, so that any protocol that sums
integers, secret or not, can compute it: the curve then inherits the protocol's security.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

from noisewise.ecdf import noising
from noisewise.ecdf.budget import Budget
from noisewise.ecdf.mechanisms.protocol import IntArray, Mechanism
from noisewise.privacy.randomness import Randomness

__all__ = ["Aggregator", "Agreement", "LocalSum", "Noise", "StatedAggregator", "Statistic", "agree"]

#: Maps some records to the sum of their contributions.
Statistic: TypeAlias = Callable[[Any], IntArray]
#: Draws the noise of a sum.
Noise: TypeAlias = Callable[[Randomness], IntArray]


class Aggregator(Protocol):
    """Adds up a statistic over records that it alone can see, and adds noise to the sum."""

    def count(self, data: Any) -> int:
        """Number of records, asked for only if it is public."""
        ...

    def noisy_sum(self, data: Any, statistic: Statistic, noise: Noise, rng: Randomness) -> IntArray:
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


@dataclass(frozen=True, eq=False)
class Agreement:
    """How one release across parties is made, and what it rests on.

    Parameters
    ----------
    mechanism : Mechanism
        Its guarantee is that of the noise that survives the worst allowed collusion; its
        variance is that of all the noise that is added.
    noise : callable
        What ``noisy_sum`` gets: draws what one contributor of noise adds.
    assumptions : tuple of str
        The threat model, for the statement.
    """

    mechanism: Mechanism
    noise: Noise
    assumptions: tuple[str, ...] = ()


@runtime_checkable
class StatedAggregator(Aggregator, Protocol):
    """An aggregator that says what it must be trusted for, as those of noisewise.federated do."""

    def agree(self, data: Any, mechanism: Mechanism, budget: Budget) -> Agreement:
        """Return how `mechanism` is released by these parties, before anything is summed.

        Parameters
        ----------
        data : object
            As for `noisy_sum`. Only the number of parties is read.
        mechanism : Mechanism
            As planned for one machine.
        budget : Budget
            Noise that cannot be accounted for under it is refused.
        """
        ...


def agree(
    aggregator: Aggregator | None, data: Any, mechanism: Mechanism, budget: Budget
) -> Agreement:
    """Return how a curve is released: alone, or by an aggregator and under its threat model."""
    if aggregator is None:
        return Agreement(mechanism, mechanism.draw)
    if isinstance(aggregator, StatedAggregator):
        return aggregator.agree(data, mechanism, budget)
    return Agreement(
        mechanism,
        mechanism.draw,
        (
            f"records were summed by {type(aggregator).__name__}, which states no threat model: "
            "that it adds the noise in full before anybody sees the sum, and who must not "
            "collude, is the caller's promise",
        ),
    )


@dataclass(frozen=True)
class LocalSum:
    """The trusted curator: data, sum and noise on one machine."""

    def count(self, data: Any) -> int:
        """Number of records."""
        return len(data)

    def noisy_sum(self, data: Any, statistic: Statistic, noise: Noise, rng: Randomness) -> IntArray:
        """Return the sum plus noise."""
        return noising.add(statistic(data), noise(rng))
