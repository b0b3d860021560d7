"""Few neighbours instead of all: who shares keys with whom in a round of very many parties.

As in SecAgg+ (Bell et al. 2020) parties stand on a ring in random order, and each has the `reach`
parties before it and the `reach` after it as neighbours (a Harary graph). Only neighbours mask with
each other and hold shares of each other's secrets, so work grows with n k and not with n^2.

Two numbers keep a lying server from what it could not learn among all:

* `reach` and `least` are such that no `reach` places in a row hold `least` helpers of the server,
  but for a probability of 2^-40;
* whoever signs a list of survivors checks that each of them has at least `least` survivors among
  the `reach` before and after it.

So every honest survivor has an honest one within reach on both sides, whatever the server says
about drop-outs: the honest survivors are a closed chain of unknown masks, of which no part can be
opened. And of 2 `least` - 1 shares that rebuild a secret, helpers have at most 2 `least` - 2.

The order is drawn from all advertised keys, through scrypt. Whoever comes last could try many keys,
and a server many lists of who takes part; so the probability for one order is 2^-80, which leaves
2^-40 after 2^40 tries, of 64 MB and some tenths of a second each.

Proof and derivation: docs/proofs/neighbours.md.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from noisewise.privacy import Randomness

__all__ = ["FAILURE_BITS", "TRIES_BITS", "Few", "Ring", "plan_neighbours", "ring_of"]

#: A round fails, or its promise, with probability at most 2^-FAILURE_BITS ...
FAILURE_BITS = 40
#: ... even if somebody tries 2^TRIES_BITS orders of the ring before one is taken.
TRIES_BITS = 40
#: One party in so many is planned for as a helper of the server, at least.
LEAST_HELPERS = 20
_SCRYPT = {"n": 1 << 16, "r": 8, "p": 1, "maxmem": 1 << 27, "dklen": 32}


@dataclass(frozen=True)
class Few:
    """How many neighbours a party has, and how many of them must stay.

    Parameters
    ----------
    reach : int
        Neighbours on each side.
    least : int
        Survivors that a survivor must have on each side.
    """

    reach: int
    least: int

    @property
    def neighbours(self) -> int:
        """Of one party."""
        return 2 * self.reach

    @property
    def threshold(self) -> int:
        """Shares that rebuild a secret: one more than helpers can have."""
        return 2 * self.least - 1


@lru_cache(maxsize=64)
def plan_neighbours(parties: int, threshold: int, colluding: int) -> Few:
    """Return the fewest neighbours that are as good as all, but for 2^-40.

    Parameters
    ----------
    parties : int
    threshold : int
        How many stay to the end. If no more than the others drop out, whoever they are as long as
        they do not choose by the order of the ring, the round has a result but for 2^-40.
    colluding : int
        How many may help the server, chosen before the order is drawn. At least one in twenty is
        planned for, so that no party holds another's secret alone even if nobody is said to.

    Raises
    ------
    ValueError
        If all parties would have to be neighbours.

    Examples
    --------
    >>> few = plan_neighbours(1000, 900, 50)
    >>> few.neighbours, few.least, few.threshold
    (118, 30, 59)
    """
    helpers = max(colluding, math.ceil(parties / LEAST_HELPERS))
    for reach in range(1, (parties - 2) // 2 + 1):
        low, high = 1, reach + 1
        while low < high:
            least = (low + high) // 2
            tail = _tail(parties, helpers, reach, least) + math.log2(parties)
            if tail <= -(FAILURE_BITS + TRIES_BITS) - 1e-3:
                high = least
            else:
                low = least + 1
        if low > reach:
            continue
        # Too few survivors: so many places of those who leave, before or after some party.
        leaving = _tail(parties, parties - threshold, reach, reach - low + 1)
        if leaving + math.log2(2 * parties) <= -FAILURE_BITS - 1e-3:
            return Few(reach, low)
    raise ValueError(
        f"among {parties} parties, of whom {parties - threshold} may drop out and {colluding} help "
        "the server, few neighbours are not safe enough: leave out neighbours='few', so that "
        "everybody shares keys with everybody"
    )


def _tail(parties: int, marked: int, reach: int, least: int) -> float:
    """Return log2 of the probability that `reach` of the parties hold `least` marked ones."""

    def ways(of: int, take: int) -> float:
        return math.lgamma(of + 1) - math.lgamma(take + 1) - math.lgamma(of - take + 1)

    terms = [
        ways(marked, found) + ways(parties - marked, reach - found) - ways(parties, reach)
        for found in range(max(least, reach - parties + marked), min(marked, reach) + 1)
    ]
    if not terms:
        return -math.inf
    top = max(terms)
    return (top + math.log(math.fsum(math.exp(term - top) for term in terms))) / math.log(2)


@dataclass(frozen=True)
class Ring:
    """The order of all invited parties, and what follows from it.

    Parameters
    ----------
    root : bytes
        Digest of all advertised keys, from which the order was drawn.
    order : tuple of int
        Numbers of the parties, from 1.
    few : Few
    """

    root: bytes
    order: tuple[int, ...]
    few: Few

    @cached_property
    def _place(self) -> NDArray[np.int64]:
        place = np.zeros(len(self.order) + 1, np.int64)
        place[list(self.order)] = np.arange(len(self.order))
        return place

    @cached_property
    def _neighbours(self) -> NDArray[np.int64]:
        reach, size = self.few.reach, len(self.order)
        steps = np.array([*range(-reach, 0), *range(1, reach + 1)])
        around = np.array(self.order)[(np.arange(size)[:, None] + steps) % size]
        return np.sort(around[self._place[1:]], axis=1)

    def of(self, number: int) -> list[int]:
        """Return the neighbours of a party, present or not, by their numbers."""
        found: list[int] = self._neighbours[number - 1].tolist()
        return found

    def held(self, holders: Iterable[int]) -> NDArray[np.int64]:
        """Return how many of some holders are neighbours of each party, from the first."""
        present = np.zeros(len(self.order) + 1, np.int64)
        present[list(holders)] = 1
        counts: NDArray[np.int64] = present[self._neighbours].sum(axis=1)
        return counts

    def lonely(self, survivors: Iterable[int]) -> list[int]:
        """Return the survivors that have too few of them before or after."""
        reach, size = self.few.reach, len(self.order)
        present = np.zeros(size, np.int64)
        places = np.sort(self._place[sorted(set(survivors))])
        present[places] = 1
        around = np.concatenate([[0], np.cumsum(np.concatenate([present] * 3))])
        middle = places + size
        after = around[middle + reach + 1] - around[middle + 1]
        before = around[middle] - around[middle - reach]
        few = np.minimum(before, after) < self.few.least
        return sorted(self.order[place] for place in places[few].tolist())


@lru_cache(maxsize=8)
def ring_of(name: bytes, root: bytes, parties: int, few: Few) -> Ring:
    """Draw the order of the parties from the digest of all that they advertised."""
    seed = hashlib.scrypt(root, salt=b"noisewise/masking/ring/1/" + name, **_SCRYPT)
    rng = Randomness.seeded(b"noisewise/masking/ring/1/" + seed)
    order = list(range(1, parties + 1))
    for last in range(parties - 1, 0, -1):
        other = int(rng.below(last + 1, ()))
        order[last], order[other] = order[other], order[last]
    return Ring(root, tuple(order), few)
