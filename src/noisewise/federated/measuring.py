"""Measurements of secret shares: the strategies' linear maps, computed modulo 2^64.

A share of a histogram is a vector of uniform 64-bit words. Trees, prefix sums and histograms are
sums, which wrap around as they should. The Toeplitz strategy computes its product by a
floating-point FFT, which is exact for counts but not for words, so here it is a plain
product of 64-bit words.
"""

from __future__ import annotations

import numpy as np

from noisewise.ecdf.mechanisms.protocol import IntArray, Strategy
from noisewise.ecdf.mechanisms.toeplitz import ScaledToeplitz
from noisewise.ecdf.two_class import TwoCurves

__all__ = ["measure_modulo"]


def measure_modulo(strategy: Strategy, histogram: IntArray) -> IntArray:
    """Apply ``strategy.measure`` modulo 2^64, as signed words.

    Parameters
    ----------
    strategy : Strategy
    histogram : array of int64
        Counts, or a share of them (any words).
    """
    words = np.ascontiguousarray(histogram, np.int64)
    if isinstance(strategy, TwoCurves):
        halves = np.split(words, 2)
        return np.concatenate([measure_modulo(strategy.single, half) for half in halves])
    if isinstance(strategy, ScaledToeplitz):
        points = strategy.setting.points
        scaled = words[:points] * strategy.columns
        product = np.convolve(strategy.coefficients[:points], scaled)[:points]
        return np.asarray(product * strategy.rows, np.int64)
    return np.asarray(strategy.measure(words), np.int64)
