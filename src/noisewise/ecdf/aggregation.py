"""The one thing a curve asks of whoever holds the data: a noisy sum over records.

A sum of a function of single records is a U-statistic of order 1 (Section 6.2.1 of Barczewski
2025). Every measurement here is one, with integer values, so that any protocol that sums
integers, secret or not, can compute it: the curve then inherits the protocol's security.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from noisewise.ecdf.mechanisms.protocol import IntArray
from noisewise.privacy.randomness import Randomness

__all__ = ["Aggregator", "LocalSum"]


class Aggregator(Protocol):
    """Adds up a statistic over records that it alone can see, and adds noise to the sum."""

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
            Draws the noise of the whole sum. It must be added once, before anyone who may
            not see the data sees the sum.
        rng : Randomness
            Where to draw it from, if it is drawn in one place.
        """
        ...


@dataclass(frozen=True)
class LocalSum:
    """The trusted curator: data, sum and noise on one machine."""

    def count(self, data: Any) -> int:
        """Number of records."""
        return len(data)

    def noisy_sum(
        self,
        data: Any,
        statistic: Callable[[Any], IntArray],
        noise: Callable[[Randomness], IntArray],
        rng: Randomness,
    ) -> IntArray:
        """Return the sum plus noise."""
        return statistic(data) + noise(rng)
