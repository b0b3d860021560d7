"""Exact Polya numbers: h of them, with shape 1/h each, sum to a geometric number.

P(k) = (1 - q)^(1/h) a_k q^k with q = exp(-1/scale) and a_k = prod_(j<=k) (j - 1 + 1/h)/j. As
a_k <= 1, a geometric number k of ratio q that is kept with the rational probability a_k has this
law exactly. That probability is compared with a uniform number digit by digit: 64 binary
digits decide all but one candidate in about 2^63, and exact fractions decide the others.
One candidate in (1 - q)^(1 - 1/h) is kept, so the work grows with the scale.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from noisewise.ecdf.mechanisms.protocol import IntArray
from noisewise.privacy import _validate
from noisewise.privacy.discrete import Scale, exact_scale
from noisewise.privacy.randomness import Randomness
from noisewise.privacy.randomness.exponential import exponentials

__all__ = ["LARGEST_SCALE", "polya", "polya_pmf"]

LARGEST_SCALE = 1 << 14
_BATCH = 1 << 16
# Guard digits of the table beyond the 64 that are compared.
_GUARD = 64


def polya(size: int, shares: int, scale: Scale, rng: Randomness) -> IntArray:
    """Draw numbers of which `shares` independent ones sum to a geometric number.

    Parameters
    ----------
    size : int
        How many.
    shares : int
        h; the shape is 1/h.
    scale : int, Fraction or float
        Of the discrete Laplace noise that two such sums differ by.
    rng : Randomness

    Examples
    --------
    >>> int(polya(3, 1000, 5, Randomness.seeded(1)).max()) < 100
    True
    """
    size = _validate.integer("size", size)
    shares = _validate.integer("shares", shares, minimum=1)
    exact = exact_scale(scale)
    if shares > 1 and exact > LARGEST_SCALE:
        raise ValueError(
            f"divisible Laplace shares are drawn exactly up to scale {LARGEST_SCALE}, got "
            f"{float(exact):.4g}: let every contributor add the full noise (honest=1), or use "
            "delta > 0 (Gaussian shares)"
        )
    result = np.zeros(size, np.int64)
    filled = 0
    expected = float(exact) ** (1 - 1 / shares)
    while filled < size:
        count = min(_BATCH, int((size - filled) * expected * 1.1) + 64)
        drawn = exponentials(rng, count).floor_times(exact)
        kept = drawn if shares == 1 else drawn[_keep(drawn, shares, rng)]
        kept = kept[: size - filled]
        result[filled : filled + kept.size] = kept
        filled += kept.size
    return result


def _keep(drawn: IntArray, shares: int, rng: Randomness) -> NDArray[np.bool_]:
    """Keep k with probability a_k."""
    largest = int(drawn.max(initial=0))
    # Powers of two, so that few tables are made.
    low, high = _table(shares, 1 << max(8, (largest + 1).bit_length()))
    words = rng.uint64(drawn.size)
    keep: NDArray[np.bool_] = words < low[drawn]
    keep |= drawn == 0
    open_ = np.flatnonzero((words >= low[drawn]) & (words <= high[drawn]) & (drawn > 0))
    for index in open_:
        exact = _acceptance(int(drawn[index]), shares)
        rest = exact * 2**64 - int(words[index])
        # More digits of the uniform number until it differs from the probability's.
        while 0 < rest < 1:
            rest = rest * 2**64 - int(rng.uint64(1)[0])
        keep[index] = rest >= 1
    return keep


@lru_cache(maxsize=8)
def _table(shares: int, size: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """64-bit words between which the binary digits of every a_k, k < size, lie."""
    low = np.zeros(size, np.uint64)
    high = np.zeros(size, np.uint64)
    below = above = 1 << (64 + _GUARD)
    for k in range(1, size):
        below = below * ((k - 1) * shares + 1) // (k * shares)
        above = -(-above * ((k - 1) * shares + 1) // (k * shares))
        low[k] = below >> _GUARD
        high[k] = above >> _GUARD
    return low, high


def _acceptance(k: int, shares: int) -> Fraction:
    numerator = denominator = 1
    for j in range(1, k + 1):
        numerator *= (j - 1) * shares + 1
        denominator *= j * shares
    return Fraction(numerator, denominator)


def polya_pmf(count: int, shares: int, scale: Scale) -> NDArray[np.float64]:
    """Return the probabilities of 0 .. count - 1."""
    q = np.exp(-1 / float(exact_scale(scale)))
    k = np.arange(1, count)
    factors = np.concatenate([[1.0], (k - 1 + 1 / shares) / k * q])
    return np.asarray((1 - q) ** (1 / shares) * np.cumprod(factors))
