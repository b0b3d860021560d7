"""Convolutions: of integers, exactly; of real series, fast.

The product of integer sequences is computed by a floating-point FFT and rounded. The error of
such a product is at most about ``13 log2(size) 2^-53 |a| |b|`` in Euclidean norms (Brent,
Percival and Zimmermann 2007, Theorem 5.1, with accurate twiddle factors); one factor is cut into
shorter digits until four times as much is below 1/2, so that rounding gives the exact
integers.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft

from noisewise.ecdf.mechanisms.protocol import FloatArray, IntArray

__all__ = ["convolve", "exact_convolve", "series_inverse"]


def convolve(series: FloatArray, values: NDArray[np.generic], length: int) -> FloatArray:
    """First `length` terms of the product of two real sequences (last axis of `values`)."""
    size = next_fast_len(series.size + values.shape[-1], real=True)
    product = irfft(rfft(series, size) * rfft(values.astype(np.float64), size), size)
    return np.asarray(product[..., :length])


def exact_convolve(series: IntArray, values: IntArray, length: int) -> IntArray:
    """First `length` terms of the product of two integer sequences, exactly."""
    size = next_fast_len(series.size + values.size, real=True)
    transformed = rfft(series.astype(np.float64), size)
    limit = 2.0**53 / (8 * 13 * math.log2(size)) / max(1.0, float(np.linalg.norm(series)))
    largest = float(np.abs(values).max(initial=0))
    if float(np.abs(series).sum()) * largest >= 2.0**62 or largest >= 2.0**53:
        raise OverflowError("counts are too large for 64-bit measurements; use fewer records")
    result = np.zeros(length, np.int64)
    rest = values.astype(np.int64)
    shift = 0
    while True:
        # Digits of b bits have norm below 2^b sqrt(count).
        norm = float(np.linalg.norm(rest.astype(np.float64)))
        if norm <= limit:
            digits, bits = rest, 0
        else:
            bits = max(1, math.floor(math.log2(limit / math.sqrt(rest.size))))
            digits = rest & ((1 << bits) - 1)
        product = irfft(transformed * rfft(digits.astype(np.float64), size), size)[:length]
        result += np.rint(product).astype(np.int64) << shift
        if bits == 0:
            return result
        rest = rest >> bits
        shift += bits


def series_inverse(series: FloatArray) -> FloatArray:
    """Coefficients of 1 / series, as many as there are, by Newton's iteration."""
    inverse = np.array([1.0 / series[0]])
    while inverse.size < series.size:
        length = min(2 * inverse.size, series.size)
        correction = -convolve(series[:length], inverse, length)
        correction[0] += 2.0
        inverse = convolve(inverse, correction, length)
    return inverse
