"""Shamir secret sharing over the field of 2^61 - 1 elements, for whole vectors at once.

A secret is the value at 0 of a polynomial of degree threshold - 1 whose other coefficients are
uniform; share i is its value at i. Any `threshold` shares give it back by Lagrange
interpolation, and any fewer are uniform and independent of it (Shamir 1979). Shares of several
secrets may be added before the reconstruction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from noisewise import checks
from noisewise.federated.sharing.field import (
    PRIME,
    Field,
    from_field,
    multiply,
    reduced,
    to_field,
    total,
)
from noisewise.privacy import Randomness
from noisewise.privacy.randomness import resolve

__all__ = ["PRIME", "Field", "combine", "from_field", "multiply", "share", "to_field"]


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
    count = checks.integer("count", count, minimum=1, maximum=1 << 20)
    threshold = checks.integer("threshold", threshold, minimum=1, maximum=count)
    source, secret = resolve(rng), _elements(values)
    coefficients = [source.below(PRIME, secret.shape) for _ in range(threshold - 1)]
    # All holders at once: as many steps as the polynomial has coefficients.
    points = np.arange(1, count + 1, dtype=np.uint64).reshape(-1, *(1,) * secret.ndim)
    values = np.zeros((count, *secret.shape), np.uint64)
    for coefficient in reversed(coefficients):
        values = multiply(reduced(values + coefficient), points)
    return dict(enumerate(reduced(values + secret), start=1))


def combine(shares: Mapping[int, Field], threshold: int) -> Field:
    """Return what was shared, from at least `threshold` shares.

    Surplus shares are checked against the polynomial of the first ones: a wrong share is an
    error, not a wrong result, wherever that can be seen.
    """
    threshold = checks.integer("threshold", threshold, minimum=1)
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
    return total(terms)


def _elements(values: Any) -> Field:
    elements = np.asarray(values)
    if elements.dtype.kind not in "iu" or (
        elements.size and (int(elements.min()) < 0 or int(elements.max()) >= PRIME)
    ):
        raise ValueError("values must be field elements, integers from 0 to 2^61 - 2")
    return elements.astype(np.uint64)
