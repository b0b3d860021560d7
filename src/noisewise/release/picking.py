"""One of many regions, with probability proportional to measure times exp(-score), exactly.

The probabilities are never computed. A uniform number, of which as many binary digits are drawn as
are needed, is compared with sums that are enclosed between two integers, ever more closely, until
it is certain in which region it lies. Regions whose scores are hopeless are looked at only if that
cannot be decided without them. So the law is exact. The running time is not protected.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext
from fractions import Fraction
from itertools import accumulate
from typing import NamedTuple, TypeVar

from noisewise.privacy import Randomness

__all__ = ["Regions", "exp_between", "pick"]

T = TypeVar("T")
#: Binary digits at first; doubled until they are enough.
_DIGITS = 128


class Regions(NamedTuple):
    """Some of the regions, in order; the others have scores above what was asked for."""

    scores: list[int]
    masses: list[int]
    points: list[tuple[int, int]]
    marks: list[int]


def pick(
    regions: Callable[[Fraction], Regions], rate: Fraction, whole: int, rng: Randomness
) -> tuple[Regions, int, int]:
    """Draw a region, and a place in it.

    Parameters
    ----------
    regions : callable
        From a score to all regions with at most that score, and perhaps others.
    rate : Fraction
        A region's probability is its mass times exp(-rate score), up to a constant.
    whole : int
        Mass of all regions, at least.
    rng : Randomness

    Returns
    -------
    tuple
        The regions, the number of the one drawn, and a uniform whole number below its mass.
    """
    uniform, digits = 0, 0
    while True:
        more = max(digits, _DIGITS)
        uniform = (uniform << more) | int.from_bytes(rng.bytes(more // 8), "big")
        digits += more
        # exp(-reach rate) is below 2^-digits / whole.
        reach = Fraction(digits + whole.bit_length()) / rate
        found = regions(reach)
        number = _decided(found, rate, reach, whole, uniform, digits)
        if number is not None:
            return found, number, _below(found.masses[number], rng)


def _decided(
    found: Regions, rate: Fraction, reach: Fraction, whole: int, uniform: int, digits: int
) -> int | None:
    """Return in which region the uniform number surely lies, if that can be told."""
    if not found.scores:
        return None
    best = min(found.scores)
    table = _exponentials(sorted({score - best for score in found.scores}), rate, digits)
    between = [table[score - best] for score in found.scores]
    low = [mass * part[0] for mass, part in zip(found.masses, between, strict=True)]
    high = [mass * part[1] for mass, part in zip(found.masses, between, strict=True)]
    outside = whole * exp_between(max(rate * (reach - best), Fraction(0)), digits)[1]
    lower, upper = [0, *accumulate(low)], [0, *accumulate(high)]
    least, most = lower[-1], upper[-1] + outside
    number = bisect_right(lower, uniform * least >> digits) - 1
    # From the last region that may begin before it, back to one that surely does.
    for region in range(min(number, len(low) - 1), max(number - 3, -1), -1):
        if (upper[region] << digits) <= uniform * least:
            sure = (uniform + 1) * most <= (lower[region + 1] << digits)
            return region if sure else None
    return None


def _exponentials(scores: list[int], rate: Fraction, digits: int) -> dict[int, tuple[int, int]]:
    """Enclose 2^digits exp(-rate score) for increasing scores, the first of which is 0."""
    found = {0: (1 << digits, 1 << digits)}
    factors: dict[int, tuple[int, int]] = {}
    before, low, high = 0, 1 << digits, 1 << digits
    for score in scores[1:]:
        step = score - before
        if step not in factors:
            factors[step] = exp_between(rate * step, digits)
        low, high = low * factors[step][0] >> digits, (high * factors[step][1] >> digits) + 1
        found[score] = (low, high)
        before = score
    return found


def exp_between(exponent: Fraction, digits: int) -> tuple[int, int]:
    """Enclose 2^digits exp(-exponent) between two integers.

    Examples
    --------
    >>> exp_between(Fraction(1), 10)
    (376, 377)
    """
    size = len(str(int(exponent)))
    with localcontext() as context:
        context.prec = int(digits * 0.302) + size + 20
        argument = Decimal(exponent.numerator) / Decimal(exponent.denominator)
        # Correctly rounded, as the argument is: errors of one unit in the last place each.
        value = (-argument).exp() * (1 << digits)
        error = value * Decimal(10) ** (size + 2 - context.prec)
        low = (value - error).to_integral_value(ROUND_FLOOR)
        high = (value + error).to_integral_value(ROUND_CEILING)
    return max(int(low), 0), max(int(high), 1)


def _below(bound: int, rng: Randomness) -> int:
    """Return a uniform whole number below a bound of any size, by rejection."""
    digits = bound.bit_length()
    while True:
        number = int.from_bytes(rng.bytes((digits + 7) // 8), "big") >> (-digits % 8)
        if number < bound:
            return number
