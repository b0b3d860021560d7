"""Exact Polya numbers: h of them, with shape r = 1/h each, sum to a geometric number.

P(k) is proportional to a_k q^k with q = exp(-1/b), b the scale, and
a_k = Gamma(k + r) / (Gamma(r) k!), rational and decreasing from a_0 = 1. Drawn by rejection: with T
the power of two above b, k = V T + U, where V is geometric of ratio q^T and U < T comes from
dyadic intervals [2^(i-1), 2^i), each chosen with a weight at least its size times the a of its
first number, and uniform inside. It is kept with probability q^U times a_k over the weight per
number. About one candidate in five is kept, whatever scale and h are.

No probability is rounded: weights are integers, q^U is an exponential number compared with a
fraction, and a_k is compared with a uniform number of 64 binary digits, first in floating
point with a margin far above its error, then, in one case in 10^8, by Stirling's series in 60
decimal digits with its remainder (at most the first omitted term), then by the exact fraction.
"""

from __future__ import annotations

import math
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from noisewise import checks
from noisewise.privacy import Randomness
from noisewise.privacy.randomness import Scale, exact_scale, exponentials
from noisewise.release.noise import FloatArray, IntArray

__all__ = ["LARGEST_SCALE", "polya", "polya_pmf"]

LARGEST_SCALE = 1 << 40
_BATCH = 1 << 15
# Below, a_k comes from a table; from there on Stirling's series has more digits than needed.
_TABLE = 1 << 12
# Far above the error of the floating-point estimates, which is below 1e-13.
_MARGIN = 1e-9


def polya(size: int, shares: int, scale: Scale, rng: Randomness) -> IntArray:
    """Draw numbers of which `shares` independent ones sum to a geometric number.

    Parameters
    ----------
    size : int
        How many.
    shares : int
        h; the shape is 1/h.
    scale : int, Fraction or float
        Of the discrete Laplace noise that two such sums differ by, at most 2^40.
    rng : Randomness

    Examples
    --------
    >>> int(polya(3, 1000, 5, Randomness.seeded(1)).max()) < 100
    True
    """
    size = checks.integer("size", size)
    shares = checks.integer("shares", shares, minimum=1)
    exact = exact_scale(scale)
    if exact > LARGEST_SCALE:
        raise ValueError(f"scale must be at most 2^40, got {float(exact):.4g}")
    result = np.zeros(size, np.int64)
    filled = 0
    while filled < size:
        kept = _candidates(min(_BATCH, 6 * (size - filled) + 32), shares, exact, rng)
        kept = kept[: size - filled]
        result[filled : filled + kept.size] = kept
        filled += kept.size
    return result


def _candidates(count: int, shares: int, scale: Fraction, rng: Randomness) -> IntArray:
    """Draw `count` candidates and return those that are kept."""
    levels = max(0, (math.ceil(scale) - 1).bit_length())
    weights, digits = _weights(shares, levels)
    ends = np.cumsum(np.array(weights, np.uint64))
    level = np.searchsorted(ends, rng.below(int(ends[-1]), count), side="right")
    first = np.where(level > 0, np.int64(1) << np.maximum(level - 1, 0), 0)
    inside = (rng.uint64(count) & (np.maximum(first, 1) - 1).astype(np.uint64)).astype(np.int64)
    part = first + inside
    block = exponentials(rng, count).floor_times(scale / (1 << levels))
    number = (block << levels) + part
    # Keep with probability q^part.
    wide = scale.denominator << levels >= 1 << 63
    above = (part.astype(object) if wide else part.astype(np.uint64)) * scale.denominator
    kept = np.flatnonzero(exponentials(rng, count).at_least_ratios(above, scale.numerator))
    number, level = number[kept], level[kept]
    # Keep with probability a_k over the weight per number of the interval.
    sizes = np.maximum(np.int64(1) << np.maximum(level - 1, 0), 1)
    chance = np.array([2.0**digits / float(weight) for weight in weights])[level] * sizes
    estimate = _estimate(number, shares) * chance
    words = rng.uint64(number.size)
    uniform = words.astype(np.float64) * 2.0**-64
    keep: NDArray[np.bool_] = uniform < estimate
    for index in np.flatnonzero(np.abs(uniform - estimate) < _MARGIN):
        factor = Fraction((1 << digits) * int(sizes[index]), weights[int(level[index])])
        keep[index] = _decide(int(number[index]), shares, factor, int(words[index]), rng)
    return number[keep]


@lru_cache(maxsize=64)
def _weights(shares: int, levels: int) -> tuple[tuple[int, ...], int]:
    """Integer weights of 0 and of the dyadic intervals, in units of 2^-digits."""
    digits = 60 - levels
    weights = [1 << digits]
    for level in range(1, levels + 1):
        size = 1 << (level - 1)
        weights.append(math.ceil(_bounds(size, shares)[1] * size * (1 << digits)))
    return tuple(weights), digits


def _estimate(numbers: IntArray, shares: int) -> FloatArray:
    """Return a_k in floating point, with an error below 1e-13 of it."""
    table = _table(shares)
    small = table[np.minimum(numbers, _TABLE - 1)]
    large = np.maximum(numbers, _TABLE - 1).astype(np.float64)

    def logarithm(x: FloatArray) -> FloatArray:
        """Return log Gamma(x + r) - log Gamma(x + 1), but for a constant and O(x^-4)."""
        less = 1 / shares - 1
        whole = less * np.log(x + 1) + (x + less + 0.5) * np.log1p(less / (x + 1))
        return np.asarray(whole + (1 / (x + 1 + less) - 1 / (x + 1)) / 12)

    start = logarithm(np.array([float(_TABLE - 1)]))
    grown = table[-1] * np.exp(logarithm(large) - start)
    return np.where(numbers < _TABLE, small, grown)


@lru_cache(maxsize=8)
def _table(shares: int) -> FloatArray:
    """a_k for k below _TABLE, from integers, so that errors do not add up."""
    values = np.ones(_TABLE)
    value = 1 << 256
    for k in range(1, _TABLE):
        value = value * ((k - 1) * shares + 1) // (k * shares)
        values[k] = float(Fraction(value, 1 << 256))
    return values


def _decide(k: int, shares: int, factor: Fraction, word: int, rng: Randomness) -> bool:
    """Whether a uniform number that begins with `word` is below a_k times `factor`."""
    low, high = _bounds(k, shares)
    place, unit = Fraction(word, 2**64), Fraction(1, 2**64)
    while True:
        if low * factor >= place + unit:
            return True
        if high * factor <= place:
            return False
        if low == high or unit > (high - low) * factor:
            place, unit = place + unit * Fraction(int(rng.uint64(1)[0]), 2**64), unit / 2**64
        else:
            low = high = _exact(k, shares)


def _exact(k: int, shares: int) -> Fraction:
    """Return a_k as a fraction."""
    top = bottom = 1
    for j in range(1, k + 1):
        top *= (j - 1) * shares + 1
        bottom *= j * shares
    return Fraction(top, bottom)


@lru_cache(maxsize=256)
def _bounds(k: int, shares: int) -> tuple[Fraction, Fraction]:
    """Return fractions between which a_k lies; equal below _TABLE."""
    if k < _TABLE:
        exact = _exact(k, shares)
        return exact, exact
    start = _TABLE - 1
    with localcontext(Context(prec=60)):
        r = Decimal(1) / shares
        change = (
            _log_gamma(k + r) - _log_gamma(Decimal(k + 1))
            - _log_gamma(start + r) + _log_gamma(Decimal(start + 1))
        )  # fmt: skip
        # Remainders of four series, each below 1 / (1680 x^7) < 1e-27, and the rounding of
        # numbers below 10^15 with 60 digits.
        slack = Decimal("1e-26")
        low, high = (change - slack).exp(), (change + slack).exp()
    anchor = _exact(start, shares)
    guard = Fraction(1, 10**50)
    return anchor * Fraction(low) * (1 - guard), anchor * Fraction(high) * (1 + guard)


def _log_gamma(x: Decimal) -> Decimal:
    """Stirling's series without its constant; its error is at most 1 / (1680 x^7)."""
    series = 1 / (12 * x) - 1 / (360 * x**3) + 1 / (1260 * x**5)
    return (x - Decimal("0.5")) * x.ln() - x + series


def polya_pmf(count: int, shares: int, scale: Scale) -> FloatArray:
    """Return the probabilities of 0 .. count - 1."""
    q = math.exp(-1 / float(exact_scale(scale)))
    k = np.arange(1, count)
    factors = np.concatenate([[1.0], (k - 1 + 1 / shares) / k * q])
    return np.asarray((1 - q) ** (1 / shares) * np.cumprod(factors))
