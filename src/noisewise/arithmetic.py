"""Arithmetic that rounds upwards, so that a computed bound is never below the true one.

Addition, multiplication, division and square root are correctly rounded in IEEE
arithmetic: the next larger float of the result is above the exact value. ``loose``
serves exponentials and the like, whose last bits a platform may choose freely.
Unbounded means ``inf``; zero times unbounded is unbounded, the safe reading.
"""

from __future__ import annotations

import math

__all__ = ["hypotenuse", "loose", "product", "quotient", "root", "total", "up"]

_TRANSCENDENTAL_SLACK = 1e-14


def up(value: float) -> float:
    """Return the next larger float; zero and infinity stay what they are."""
    return value if value == 0 or math.isinf(value) else math.nextafter(value, math.inf)


def loose(value: float) -> float:
    """Return a value above that of an elementary function computed by the platform."""
    return up(value + abs(value) * _TRANSCENDENTAL_SLACK)


def product(*factors: float) -> float:
    """Product of non-negative factors, rounded up."""
    if any(math.isinf(factor) for factor in factors):
        return math.inf
    if any(factor == 0 for factor in factors):
        return 0.0
    result = 1.0
    for factor in factors:
        if result == 1.0 or factor == 1.0:  # exact, no need to round
            result *= factor
        else:
            result = math.nextafter(result * factor, math.inf)  # also where it underflows
    return result


def total(*terms: float) -> float:
    """Sum of non-negative terms, rounded up."""
    present = [term for term in terms if term != 0]
    if len(present) <= 1:
        return present[0] if present else 0.0
    return up(math.fsum(present))


def quotient(numerator: float, denominator: float) -> float:
    """Non-negative `numerator` over `denominator`, rounded up; unbounded if that is zero."""
    if math.isinf(numerator) or denominator == 0:
        return math.inf
    return 0.0 if numerator == 0 else math.nextafter(numerator / denominator, math.inf)


def root(value: float) -> float:
    """Square root, rounded up; exact where the value is the square of a whole number."""
    if math.isinf(value):
        return math.inf
    result = math.sqrt(value)
    exact = value < 2**53 and result.is_integer() and result * result == value
    return result if exact else up(result)


def hypotenuse(*terms: float) -> float:
    """Root of the sum of squares, rounded up."""
    present = [term for term in terms if term != 0]
    if len(present) <= 1:
        return present[0] if present else 0.0
    return loose(math.hypot(*present))
