"""Upper bounds on error rates, at one threshold or at all thresholds at once.

Clopper and Pearson (1934) bound one binomial rate exactly. Choosing the
threshold after looking at the scores breaks that, so :func:`band` bounds the
rates of *all* thresholds at once: if r scores lie below t, the rate below t is at
most the probability below the (r+1)-th score, and those probabilities are the
order statistics of uniform numbers. One level is chosen for all ranks so that
all of these bounds hold together with the probability asked for; it is computed
exactly by a Poisson recursion (Moscovich and Nadler, 2017) for small samples and
by the union bound over few ranks for large ones.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv
from scipy.stats import poisson

__all__ = ["band", "upper_rate"]

Array = NDArray[np.float64]

#: Above this many scores the union bound over ranks is used; it loses little there.
LARGEST_EXACT = 4_096
_RANKS_PER_DOUBLING = 3


def upper_rate(count: int, total: int, error: float) -> float:
    """Bound a binomial rate from above, exact at every sample size.

    Parameters
    ----------
    count : int
        Successes seen.
    total : int
        Trials.
    error : float
        Probability with which the bound may fail.

    Examples
    --------
    >>> round(upper_rate(0, 100, 0.05), 4)
    0.0295
    """
    if count >= total:
        return 1.0
    return float(betaincinv(count + 1, total - count, 1.0 - error))


@lru_cache(maxsize=128)
def band(total: int, error: float) -> Array:
    """Upper bounds of the rate below t for every number of scores below t.

    Entry r holds for every threshold that has r of the `total` scores below it;
    all entries hold together with probability at least 1 - `error`.
    """
    ranks = _ranks(total)
    level = error / ranks.size
    if total <= LARGEST_EXACT:
        level = _largest_level(ranks, total, error)
    at_ranks = _limits(ranks, total, level)
    following = np.searchsorted(ranks, np.arange(total))
    return np.append(at_ranks[following], 1.0)


def _ranks(total: int) -> NDArray[np.int64]:
    """Ranks that are used: dense at both ends, where rates change by factors."""
    doublings = max(1.0, math.log2(total))
    steps = np.arange(0, math.ceil(_RANKS_PER_DOUBLING * doublings) + 1) / _RANKS_PER_DOUBLING
    near = np.unique(np.floor(2.0**steps).astype(np.int64) - 1)
    near = near[near <= total // 2]
    return np.unique(np.concatenate([near, total - 1 - near]))


def _limits(ranks: NDArray[np.int64], total: int, level: float) -> Array:
    limits = betaincinv(ranks + 1.0, (total - ranks).astype(np.float64), 1.0 - level)
    return np.asarray(limits, dtype=np.float64)


def _largest_level(ranks: NDArray[np.int64], total: int, error: float) -> float:
    low, high = error / ranks.size, error
    for _ in range(30):
        middle = math.sqrt(low * high)
        if _some_exceed(_limits(ranks, total, middle), ranks, total) <= error:
            low = middle
        else:
            high = middle
        if high < low * 1.002:
            break
    return low


def _some_exceed(limits: Array, ranks: NDArray[np.int64], total: int) -> float:
    """Probability that some (r+1)-th smallest of uniform numbers exceeds its limit.

    It does not exceed its limit exactly if at least r+1 numbers lie below the limit.
    Uniform numbers are a Poisson process that happens to have `total` points.
    """
    alive = np.zeros(total + 1)
    alive[0] = 1.0
    before = 0.0
    for limit, rank in zip(limits, ranks, strict=True):
        alive = _add_points(alive, total * (float(limit) - before))
        alive[: rank + 1] = 0.0
        before = float(limit)
    alive = _add_points(alive, total * (1.0 - before))
    # One part in 10^9 covers the rounding of the convolutions.
    return 1.0 - float(alive[total] / poisson.pmf(total, total)) + 1e-9


def _add_points(alive: Array, mean: float) -> Array:
    if mean <= 0.0:
        return alive
    reach = int(min(alive.size, mean + 12 * math.sqrt(mean) + 40))
    return np.convolve(alive, poisson.pmf(np.arange(reach), mean))[: alive.size]
