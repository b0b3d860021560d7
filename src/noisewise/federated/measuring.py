"""Measurements of secret shares: the strategies' linear maps, computed modulo 2^64.

A share of a histogram is a vector of uniform 64-bit words, for which strategies are not made: they
check that counts do not overflow, and multiply by floating-point transforms that are exact for
counts only. But their maps are linear. So words are cut into digits, which are small counts; each
is measured as usual, and the results are shifted and added up modulo 2^64. What comes out of
it is checked for being possible at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from noisewise.ecdf import Mechanism, TwoCurves
from noisewise.ecdf.mechanisms import IntArray, PinnedCirculant, ScaledToeplitz, Strategy
from noisewise.federated.masking.session import AggregationError
from noisewise.federated.sharing.additive import Words, as_signed
from noisewise.federated.sharing.field import PRIME, Field, multiply, reduced

__all__ = ["check_plausible", "measure_in_field", "measure_modulo", "reach"]

#: More records than anybody has; the bound where their number is private.
MANY_RECORDS = 1 << 36
# Digits of words, shorter ones where a strategy finds that the longer overflow.
DIGIT_BITS = (16, 8, 4)


def measure_modulo(strategy: Strategy, histogram: IntArray) -> IntArray:
    """Apply ``strategy.measure`` modulo 2^64, as signed words.

    Parameters
    ----------
    strategy : Strategy
    histogram : array of int64
        Counts, or a share of them (any words).
    """
    words = np.ascontiguousarray(histogram, np.int64).view(np.uint64)
    for bits in DIGIT_BITS[:-1]:
        try:
            return _by_digits(strategy, words, bits)
        except OverflowError:
            continue
    return _by_digits(strategy, words, DIGIT_BITS[-1])


def _by_digits(strategy: Strategy, words: Words, bits: int) -> IntArray:
    total: Words | None = None
    for shift in range(0, 64, bits):
        digits = (words >> np.uint64(shift)) & np.uint64((1 << bits) - 1)
        if total is not None and not digits.any():
            continue
        part = strategy.measure(digits.astype(np.int64)).view(np.uint64) << np.uint64(shift)
        total = part if total is None else total + part
    assert total is not None
    return as_signed(total)


def measure_in_field(
    measure: Callable[[IntArray], IntArray], share: Field, furthest: int
) -> IntArray:
    """Apply a linear map to elements of the field of :mod:`~noisewise.federated.sharing.field`.

    Parameters
    ----------
    measure : callable
        Linear, right for results below 2^63.
    share : array
        One element for each cell.
    furthest : int
        What one record adds to a result, at most.

    Returns
    -------
    array of int64
        Elements of the field.
    """
    share = np.asarray(share).astype(np.uint64)
    # Digits that are counts so small that no result reaches 2^62.
    bits = min(32, 62 - (furthest * share.size).bit_length())
    if bits < 1:
        raise OverflowError("this question's sums are too large for the field; take fewer bins")
    total = np.zeros(1, np.uint64)
    for shift in range(0, 61, bits):
        digits = (share >> np.uint64(shift)) & np.uint64((1 << bits) - 1)
        part = (measure(digits.astype(np.int64)) % PRIME).astype(np.uint64)
        total = reduced(total + multiply(part, np.uint64(1 << shift)))
    return total.astype(np.int64)


def reach(strategy: Strategy) -> int:
    """Return how much one record adds to a measurement, at most."""
    if isinstance(strategy, TwoCurves):
        return reach(strategy.single)
    if isinstance(strategy, ScaledToeplitz):
        parts = (strategy.coefficients, strategy.columns, strategy.rows)
        return math.prod(int(np.abs(part).max(initial=1)) for part in parts)
    if isinstance(strategy, PinnedCirculant):
        return int(np.abs(strategy.kernel).sum())
    return int(getattr(strategy, "resolution", 1))


def check_plausible(noisy: IntArray, mechanism: Mechanism, one: int, records: int | None) -> None:
    """Raise if no records and no likely noise give these sums: a share is missing or spoiled.

    Words that do not belong together sum to uniform 64-bit numbers, so this finds a round that
    went wrong, and not an owner who counts a few records too many. It looks at the noisy sums only,
    so it costs no privacy.

    Parameters
    ----------
    noisy : array
    mechanism : Mechanism
        With the noise that was added.
    one : int
        What one record adds to a sum, at most.
    records : int or None
        Their number, if it is known.
    """
    most = one * (MANY_RECORDS if records is None else records)
    if most >= 1 << 62:
        if records is None:
            most = 1 << 62
        else:
            raise OverflowError("too many records for 64-bit measurements; use mechanism='kary'")
    # Each measurement carries at most one number of noise from each level of a tree of 64; a
    # hundred deviations of a Laplace or Gaussian number have a probability below 1e-60.
    deviation = max(math.sqrt(block.variance) for block in mechanism.noise)
    limit = most + 64 * 100 * deviation
    if noisy.size and float(np.abs(noisy.astype(np.float64)).max()) > limit:
        raise AggregationError(
            "the sums are larger than any records could make them: shares do not belong "
            "together, or somebody sent a spoiled contribution. Ask for the shares again; if they "
            "are the same, this round has no result."
        )
