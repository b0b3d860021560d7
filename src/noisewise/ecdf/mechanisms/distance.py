"""Sensitivities of ``C = diag(rows) T diag(columns)``: upper bounds, nearly exact.

Columns are c_s = columns_s (rows_i t_(i-s))_i. The longest column is a correlation. The
longest difference |c_s - c_t|^2 over all pairs s < t is found by branch and bound over
blocks of t: with t non-increasing and t, t1 in a block [t0, t1],

    sum_i rows_i^2 t_(i-s) t_(i-t)  >=  sum_(k <= M-1-t1) min_block(rows^2)_k t_k t_(k + t1 - s),

one correlation for all s at once. Floating-point errors are covered by a relative slack of
1e-9 of the largest squared length.

Proof: docs/proofs/curves.md#factorisations.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import pairwise

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft
from scipy.ndimage import minimum_filter1d

from noisewise.ecdf.mechanisms.protocol import FloatArray, IntArray

__all__ = ["block_bound", "longest_column", "longest_difference"]

SLACK = 1e-9


def _squared_lengths(coefficients: IntArray, rows: IntArray, columns: IntArray) -> FloatArray:
    """Squared lengths of all columns, by a correlation."""
    count = coefficients.size
    size = next_fast_len(2 * count, real=True)
    squares = rfft(coefficients.astype(np.float64) ** 2, size)
    weights = rfft(rows.astype(np.float64) ** 2, size)
    lengths = irfft(weights * squares.conj(), size)[:count]
    return np.asarray(lengths * columns.astype(np.float64) ** 2)


def longest_column(coefficients: IntArray, rows: IntArray, columns: IntArray) -> float:
    """Return an upper bound of the squared length of the longest column, tight to 1e-9."""
    if coefficients.size == 0:
        return 1.0
    return float(_squared_lengths(coefficients, rows, columns).max() * (1 + SLACK))


def block_bound(
    coefficients: IntArray, rows: IntArray, columns: IntArray
) -> Callable[[int, int], float]:
    """Return the function that bounds |c_s - c_t|^2 over s < t, t in a block first..last."""
    count = coefficients.size
    lengths = _squared_lengths(coefficients, rows, columns)
    size = next_fast_len(2 * count, real=True)
    series = coefficients.astype(np.float64)
    spectrum = rfft(series, size)
    squares = rows.astype(np.float64) ** 2
    scales = columns.astype(np.float64)
    slack = SLACK * float(lengths.max())

    def bound(first: int, last: int) -> float:
        """Bound of |c_s - c_t|^2 over t in first..last and s < t."""
        width = last - first + 1
        lowest = squares[first:]
        if width > 1:
            # Position k of the filter sees rows first + k, ..., last + k.
            lowest = minimum_filter1d(lowest, width, origin=-(width // 2), mode="nearest")
        kept = count - last
        product = irfft(spectrum * rfft(lowest[:kept] * series[:kept], size).conj(), size)[:count]
        lag = np.maximum(last - np.arange(last), width - 1)
        inner = scales[:last] * scales[first : last + 1].min() * np.maximum(product[lag], 0.0)
        value = lengths[:last] + lengths[first : last + 1].max() - 2 * inner
        return float(value.max()) + slack

    return bound


def longest_difference(
    coefficients: IntArray,
    rows: IntArray,
    columns: IntArray,
    tolerance: float = 1e-3,
    most: int | None = None,
) -> float:
    """Return an upper bound of the largest squared difference of two columns.

    Parameters
    ----------
    coefficients, rows, columns : int array
        The matrix; `coefficients` must be positive and not increasing.
    tolerance : float
        Blocks whose bound is within this factor of the best pair are not split.
    most : int
        Number of splits after which the bounds that stand are taken: looser, still true.
        By default what takes about a second.
    """
    count = coefficients.size
    if count < 2:
        return 0.0
    if np.any(np.diff(coefficients) > 0) or coefficients[-1] < 0:
        raise ValueError("coefficients must be non-negative and not increasing")
    if rows.min() == rows.max() and columns.min() == columns.max():
        # Pairs with equal t - s look alike, and the first one is the longest.
        lengths = _squared_lengths(coefficients, rows, columns)
        size = next_fast_len(2 * count, real=True)
        spectrum = rfft(coefficients.astype(np.float64), size)
        lags = irfft(spectrum * spectrum.conj(), size)[1:count] * float(rows[0] * columns[0]) ** 2
        return float((lengths[0] + lengths[1:] - 2 * lags).max()) + SLACK * float(lengths[0])
    bound = block_bound(coefficients, rows, columns)
    best = max(bound(t, t) for t in np.unique(np.linspace(1, count - 1, 24).astype(int)).tolist())
    edges = np.unique(np.linspace(1, count, 33).astype(int)).tolist()
    heap = [(-bound(a, b - 1), a, b - 1) for a, b in pairwise(edges)]
    heapq.heapify(heap)
    for _ in range(max(150, (1 << 22) // count) if most is None else most):
        top, first, last = heap[0]
        if -top <= best * (1 + tolerance) or first == last:
            break
        heapq.heappop(heap)
        middle = (first + last) // 2
        best = max(best, bound(middle, middle))
        for part in ((first, middle), (middle + 1, last)):
            heapq.heappush(heap, (-bound(*part), *part))
    return max(best, -heap[0][0])
