"""Shamir secret sharing over the field of 2^61 - 1 elements, for whole vectors at once.

A secret is the value at 0 of a polynomial of degree threshold - 1 whose other coefficients are
uniform; share i is its value at i. Any `threshold` shares give it back by Lagrange
interpolation, and any fewer are uniform and independent of it (Shamir 1979). Shares of several
secrets may be added before the reconstruction. Products of two field elements are computed
with 64-bit words: with 2^61 = 1 (mod p), the high and low parts of a 122-bit product add up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from noisewise.privacy import _validate
from noisewise.privacy.randomness import Randomness, resolve

__all__ = ["PRIME", "Field", "combine", "from_field", "multiply", "share", "to_field"]

PRIME = 2**61 - 1
Field: TypeAlias = NDArray[np.uint64]

_P = np.uint64(PRIME)
_LOW32 = np.uint64(0xFFFFFFFF)


def _reduce(values: Field) -> Field:
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
    total = _reduce(low) + _reduce(high << np.uint64(3))
    total = _reduce(total) + (middle >> np.uint64(29))
    return _reduce(_reduce(total) + _reduce((middle & np.uint64((1 << 29) - 1)) << np.uint64(32)))


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


def share(
    values: Any, count: int, threshold: int, rng: Randomness | int | None = None
) -> dict[int, Field]:
    """Cut field elements into `count` shares of which any `threshold` are enough.

    Parameters
    ----------
    values : array of integers
        Elements of the field, 0 to 2^61 - 2; see :func:`to_field` for signed numbers.
    count, threshold : int
    rng : None, int or Randomness
        ``None`` is the secure choice; anything else is for tests.

    Returns
    -------
    dict
        From the holder's number, 1 to `count`, to the share.

    Examples
    --------
    >>> shares = share(to_field([5, -7]), count=5, threshold=3, rng=1)
    >>> from_field(combine({i: shares[i] for i in (2, 3, 5)}, threshold=3)).tolist()
    [5, -7]
    """
    count = _validate.integer("count", count, minimum=1, maximum=1 << 20)
    threshold = _validate.integer("threshold", threshold, minimum=1, maximum=count)
    source, secret = resolve(rng), _elements(values)
    coefficients = [source.below(PRIME, secret.shape) for _ in range(threshold - 1)]
    # All holders at once: as many steps as the polynomial has coefficients.
    points = np.arange(1, count + 1, dtype=np.uint64).reshape(-1, *(1,) * secret.ndim)
    values = np.zeros((count, *secret.shape), np.uint64)
    for coefficient in reversed(coefficients):
        values = multiply(_reduce(values + coefficient), points)
    return dict(enumerate(_reduce(values + secret), start=1))


def combine(shares: Mapping[int, Field], threshold: int) -> Field:
    """Return what was shared, from at least `threshold` shares.

    Surplus shares are checked against the polynomial of the first ones: a wrong share is an
    error, not a wrong result, wherever that can be seen.
    """
    threshold = _validate.integer("threshold", threshold, minimum=1)
    holders = sorted(shares)
    if len(holders) < threshold:
        raise ValueError(f"{threshold} shares are needed, got {len(holders)}: nothing can be told")
    if holders[0] < 1:
        raise ValueError(f"holders are numbered from 1, got {holders[0]}")
    used, spare = holders[:threshold], holders[threshold:]
    values = np.stack([_elements(shares[holder]) for holder in used])
    weights = _barycentric(used)
    for holder in spare:
        expected = _interpolate(weights, values, holder)
        if not np.array_equal(expected, _elements(shares[holder])):
            raise ValueError(f"the share of holder {holder} contradicts the others")
    return _interpolate(weights, values, 0)


def _barycentric(holders: list[int]) -> dict[int, int]:
    """Return 1 / prod(x_j - x_k) for every holder.

    It is the part of Lagrange's weights that all points have in common, and the only one whose
    cost is quadratic.
    """
    weights = {}
    for holder in holders:
        product = 1
        for other in holders:
            if other != holder:
                product = product * (holder - other) % PRIME
        weights[holder] = pow(product, -1, PRIME)
    return weights


def _interpolate(weights: Mapping[int, int], values: Field, at: int) -> Field:
    """Return the polynomial's value at a point that is none of the holders'."""
    through = 1
    for holder in weights:
        through = through * (at - holder) % PRIME
    factors = np.array(
        [through * w * pow(at - holder, -1, PRIME) % PRIME for holder, w in weights.items()],
        np.uint64,
    )
    terms = multiply(values, factors.reshape(-1, *(1,) * (values.ndim - 1)))
    # Sums of up to 2^20 terms fit 64 bits if the halves of the terms are summed apart.
    low, high = (terms & _LOW32).sum(0), (terms >> np.uint64(32)).sum(0)
    return _reduce(_reduce(low) + multiply(_reduce(high), np.uint64(1 << 32)))


def _elements(values: Any) -> Field:
    elements = np.asarray(values)
    if elements.dtype.kind not in "iu" or (
        elements.size and (int(elements.min()) < 0 or int(elements.max()) >= PRIME)
    ):
        raise ValueError("values must be field elements, integers from 0 to 2^61 - 2")
    return elements.astype(np.uint64)
