"""Argument checks, in one place, so that every error reads alike.

Each check returns the value in the type that the caller needs, or raises a
``ValueError`` (``TypeError`` for a wrong type) that names the argument, the
value that was given and the range that is valid.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "array",
    "budget",
    "choice",
    "finite",
    "fraction",
    "integer",
    "positive",
    "probability",
]

#: Beyond them noise no longer fits into numbers of 64 bits, or is lost in their rounding.
_LEAST_EPSILON, _LARGEST_EPSILON = 1e-9, 1e9


def _number(name: str, value: Any) -> float:
    """Accept Python and NumPy numbers and zero-dimensional tensors, nothing else."""
    if isinstance(value, (bool, np.bool_, str, bytes)) or value is None:
        raise TypeError(f"{name} must be a number, got {value!r}")
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be a number, got {value!r}") from error
    except OverflowError as error:
        raise ValueError(f"{name} must be finite, got more than a float can hold") from error
    if math.isnan(number):
        raise ValueError(f"{name} must be a number, got NaN")
    return number


def finite(name: str, value: Any) -> float:
    """Return `value` as a float that is neither infinite nor NaN."""
    number = _number(name, value)
    if math.isinf(number):
        raise ValueError(f"{name} must be finite, got {value!r}")
    return number


def positive(name: str, value: Any, *, zero: bool = False, hint: str = "") -> float:
    """Return `value` as a finite float > 0, or >= 0 if `zero` is allowed."""
    number = finite(name, value)
    if number < 0 or (number == 0 and not zero):
        valid = ">= 0" if zero else "> 0"
        raise ValueError(f"{name} must be {valid}, got {value!r}{_sentence(hint)}")
    return number


def budget(value: Any) -> float:
    """Return an epsilon that somebody asks for as a float, within what can be kept."""
    hint = "no noise is large enough for epsilon 0; leave the data out instead"
    number = positive("epsilon", value, hint=hint)
    if not _LEAST_EPSILON <= number <= _LARGEST_EPSILON:
        raise ValueError(
            f"epsilon must lie between {_LEAST_EPSILON:g} and {_LARGEST_EPSILON:g}, got {value!r}: "
            "with less the noise drowns everything, with more it protects nobody. Between 0.1 and "
            "10 is usual."
        )
    return number


def probability(name: str, value: Any, *, zero: bool = False, one: bool = True) -> float:
    """Return `value` as a float in (0, 1], with the ends opened or closed as asked."""
    number = finite(name, value)
    low_ok = number > 0 or (zero and number == 0)
    high_ok = number < 1 or (one and number == 1)
    if not (low_ok and high_ok):
        interval = f"{'[' if zero else '('}0, 1{']' if one else ')'}"
        raise ValueError(f"{name} must lie in {interval}, got {value!r}")
    return number


def fraction(name: str, value: Any) -> float:
    """Return `value` as a float in (0, 1), both ends excluded."""
    return probability(name, value, one=False)


def integer(name: str, value: Any, *, minimum: int = 0, maximum: int | None = None) -> int:
    """Return `value` as an int within the range; 3.0 is accepted, 3.5 is not."""
    number = finite(name, value)
    whole = int(value) if isinstance(value, (int, np.integer)) else int(number)
    if not isinstance(value, (int, np.integer)) and number != whole:
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    if whole < minimum or (maximum is not None and whole > maximum):
        upper = "" if maximum is None else f" and <= {maximum}"
        raise ValueError(f"{name} must be a whole number >= {minimum}{upper}, got {value!r}")
    return whole


def array(name: str, value: Any) -> NDArray[Any]:
    """Return an array, a tensor or a sequence as a plain array; entries with a mask are refused.

    Arithmetic leaves out what lies under a mask, and conversions bring it back to light, so it
    would be counted here and spared by the noise there.
    """
    if hasattr(value, "detach"):  # a tensor, without importing torch here
        kept = value.detach().cpu()
        value = (kept.double() if kept.is_floating_point() else kept).numpy()
    if np.any(np.ma.getmask(value)):
        raise ValueError(
            f"{name} holds masked entries, which are no numbers to be counted or published. Leave "
            "such records out or put a public constant there, by a rule that looks at one record "
            "at a time."
        )
    return np.asarray(value)


def choice(name: str, value: Any, allowed: Collection[str]) -> str:
    """Return `value` if it is one of the allowed words."""
    if not isinstance(value, str) or value not in allowed:
        words = ", ".join(repr(word) for word in allowed)
        raise ValueError(f"{name} must be one of {words}, got {value!r}")
    return value


def _sentence(hint: str) -> str:
    return f"; {hint}" if hint else ""
