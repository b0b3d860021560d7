"""The field of 2^61 - 1 elements, in 64-bit words and whole vectors at once.

Products of two elements are computed with 64-bit words: with 2^61 = 1 (mod p), the high and low
parts of a 122-bit product add up.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["PRIME", "Field", "from_field", "multiply", "negative", "reduced", "to_field", "total"]

PRIME = 2**61 - 1
Field: TypeAlias = NDArray[np.uint64]

_P = np.uint64(PRIME)
_LOW32 = np.uint64(0xFFFFFFFF)


def reduced(values: Field) -> Field:
    """Bring words below 2^64 into [0, p)."""
    once: Field = (values & _P) + (values >> np.uint64(61))
    reduced: Field = once - _P * (once >= _P)
    return reduced


def multiply(a: Field, b: Field) -> Field:
    """Multiply field elements, exactly."""
    a, b = np.asarray(a, np.uint64), np.asarray(b, np.uint64)
    a0, a1 = a & _LOW32, a >> np.uint64(32)  # a1, b1 < 2^29
    b0, b1 = b & _LOW32, b >> np.uint64(32)
    low, high = a0 * b0, a1 * b1
    middle = a0 * b1 + a1 * b0  # < 2^62
    # a b = high 2^64 + middle 2^32 + low, with 2^64 = 8 and
    # middle 2^32 = (middle >> 29) 2^61 + (middle mod 2^29) 2^32.
    total = reduced(low) + reduced(high << np.uint64(3))
    total = reduced(total) + (middle >> np.uint64(29))
    return reduced(reduced(total) + reduced((middle & np.uint64((1 << 29) - 1)) << np.uint64(32)))


def negative(elements: Field) -> Field:
    """Return the additive inverses."""
    return reduced(_P - np.asarray(elements, np.uint64))


def total(elements: Field, axis: int = 0) -> Field:
    """Add up at most 2^32 elements along an axis."""
    # The halves are summed apart, so that 64 bits are enough.
    low, high = (elements & _LOW32).sum(axis), (elements >> np.uint64(32)).sum(axis)
    return reduced(reduced(low) + multiply(reduced(high), np.uint64(1 << 32)))


def to_field(values: Any) -> Field:
    """Return signed integers of size below 2^60 as field elements."""
    whole = np.asarray(values)
    if whole.dtype.kind not in "iu":
        raise TypeError(f"values must hold integers, got dtype {whole.dtype}")
    if whole.size and (int(whole.max()) >= 2**60 or int(whole.min()) <= -(2**60)):
        raise ValueError("values must lie between -2^60 and 2^60 to be shared in this field")
    signed = whole.astype(np.int64)
    return np.where(signed < 0, signed + PRIME, signed).astype(np.uint64)


def from_field(elements: Field) -> NDArray[np.int64]:
    """Return field elements as signed integers of size below 2^60."""
    signed = np.asarray(elements, np.uint64).astype(np.int64)
    return np.where(signed > PRIME // 2, signed - PRIME, signed)
