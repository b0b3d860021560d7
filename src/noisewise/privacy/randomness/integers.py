"""Exact integers and events from uniform 64-bit words: no probability is rounded."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from noisewise import checks

__all__ = ["WORDS", "below_each", "below_one", "bernoulli", "checked_bounds", "checked_rate"]

WORDS = 2**64
Words: TypeAlias = NDArray[np.uint64]
Source: TypeAlias = Callable[[int], Words]


def below_one(draw: Source, bound: int, count: int) -> Words:
    """Return `count` uniform integers in [0, bound), for a bound below 2^64.

    The 2^64 mod bound smallest words are refused: the others make a whole number of
    cycles of the remainder.
    """
    words = draw(count)
    refused = np.flatnonzero(words < np.uint64(WORDS % bound))
    result: Words = words % np.uint64(bound)
    if refused.size:
        result[refused] = below_one(draw, bound, refused.size)
    return result


def below_each(draw: Source, bounds: Words) -> Words:
    """Return a uniform integer below each of the bounds, in the same way."""
    result = np.empty(bounds.shape, np.uint64)
    todo = np.arange(bounds.size)
    while todo.size:
        bound = bounds[todo]
        words = draw(todo.size)
        # Negation modulo 2^64 gives 2^64 - bound, which has the remainder of 2^64.
        kept = words >= (np.uint64(0) - bound) % bound
        result[todo[kept]] = words[kept] % bound[kept]
        todo = todo[~kept]
    return result


def bernoulli(draw: Source, count: int, rate: Fraction) -> NDArray[np.bool_]:
    """Return `count` events of probability `rate`, exactly.

    A uniform number is below the rate if its first digit that differs is. One digit in
    base 2^16 decides all but one in 65536; the others compare further digits in base 2^64.
    """
    if rate == 1:
        return np.ones(count, np.bool_)
    digit, rest = divmod(rate * 2**16, 1)
    short = draw(-(-count // 4)).view(np.uint16)[:count]
    result: NDArray[np.bool_] = short < np.uint16(digit)
    todo = np.flatnonzero(short == np.uint16(digit))
    # When no digit of the rate is left, a number that equals it so far is not below it.
    while todo.size and rest:
        digit, rest = divmod(rest * WORDS, 1)
        words = draw(todo.size)
        result[todo] = words < np.uint64(digit)
        todo = todo[words == np.uint64(digit)]
    return result


def checked_bounds(bound: NDArray[Any]) -> Words:
    """Return bounds as 64-bit words, if each of them leaves something to draw."""
    if bound.dtype.kind not in "iu":
        raise TypeError(f"bound must hold integers, got dtype {bound.dtype}")
    if (bound < 1).any():
        raise ValueError("bound must be >= 1 everywhere: no integer lies in [0, 0)")
    return bound.astype(np.uint64)


def checked_rate(rate: float | Fraction) -> Fraction:
    """Return a probability as the rational number that it is."""
    if not isinstance(rate, Fraction):
        return Fraction(checks.probability("rate", rate, zero=True))
    if not 0 <= rate <= 1:
        raise ValueError(f"rate must lie in [0, 1], got {rate!r}")
    return rate
