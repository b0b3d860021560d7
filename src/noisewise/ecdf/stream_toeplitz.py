"""Running counts from a lower triangular Toeplitz strategy with Gaussian noise.

Measured is z = C x + w with the integer matrix C of :mod:`noisewise.ecdf.mechanisms.toeplitz`;
row t of C reads items up to t only, and so does row t of the read-out A C^-1. What is released
is computed from z alone, so rounding errors are post-processing. As C is lower triangular,
the guarantee also holds if items are chosen after seeing earlier releases (Denisov et al. 2022).
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from noisewise.ecdf.budget import Budget
from noisewise.ecdf.mechanisms.calibrating import calibrate
from noisewise.ecdf.mechanisms.convolution import series_inverse
from noisewise.ecdf.mechanisms.protocol import (
    FloatArray,
    IntArray,
    Mechanism,
    Setting,
)
from noisewise.ecdf.mechanisms.resolution import power_of_two
from noisewise.ecdf.mechanisms.toeplitz import ScaledToeplitz, build
from noisewise.privacy import REPLACE_ONE
from noisewise.release import NoiseSlots

__all__ = ["ToeplitzSegment", "plain_root"]


def plain_root(length: int, budget: Budget) -> ScaledToeplitz:
    """Return the square-root factorisation on a grid fine enough for `budget`.

    Without scaled ends: its variance takes one transform, also for a million steps.
    """
    setting = Setting(length, False)
    strategy = build(setting, None)
    (square,) = strategy.shift("suffix", "l2-squared")
    needed = budget.least_deviation(length) * budget.ratio
    return build(setting, None, power_of_two(needed / math.sqrt(square)))


class ToeplitzSegment:
    """Noisy running counts of at most `length` items.

    Parameters
    ----------
    length : int
    budget : Budget
        With delta > 0.
    """

    def __init__(self, length: int, budget: Budget) -> None:
        self.length = length
        self._strategy = plain_root(length, budget)
        self.mechanism: Mechanism = calibrate(self._strategy, budget, "gaussian", change="suffix")
        # An item that is another one moves all counts from its step on, like one that comes.
        (planned,) = self.mechanism.sensitivity
        self.slots = NoiseSlots(
            self.mechanism.draw,
            replace(planned, relation=REPLACE_ONE),
            self.mechanism.event,
            self.mechanism.description,
        )
        self._items = np.zeros(length, np.int64)
        self._measured = np.zeros(length, np.int64)
        self._inverse = series_inverse(self._strategy.coefficients.astype(np.float64))
        self._last = 0.0

    def measure(self, items: IntArray, position: int) -> IntArray:
        """Return the measurements of the steps from `position` on, without noise."""
        start, end = position, position + items.size
        self._items[start:end] = items
        # Few items: one scalar product each; many: one fast transform for all.
        return self._rows(start, end) if items.size < 64 else self._all(start, end)

    def read(self, items: IntArray, position: int, noisy: IntArray) -> FloatArray:
        """Return the running counts that follow from all measurements so far."""
        start, end = position, position + items.size
        self._measured[start:end] = noisy
        if items.size < 64:
            released = self._read(start, end)
        else:
            released = self._strategy.reconstruct(self._measured, 0.0)[start:end]
        self._last = float(released[-1])
        return released

    def _rows(self, start: int, end: int) -> IntArray:
        scaled = self._items * self._strategy.columns
        reverse = self._strategy.coefficients[::-1]
        size = self.length
        sums = [int(reverse[size - 1 - t :] @ scaled[: t + 1]) for t in range(start, end)]
        return np.array(sums, np.int64) * self._strategy.rows[start:end]

    def _all(self, start: int, end: int) -> IntArray:
        return self._strategy.measure(self._items)[start:end]

    def _read(self, start: int, end: int) -> FloatArray:
        """Rows of A C^-1 times z: the counts c = C^-1 z, added to the last running count."""
        reverse = self._inverse[::-1]
        rows = self._strategy.rows
        counts = np.empty(end - start)
        for row, t in enumerate(range(start, end)):
            seen = self._measured[: t + 1] / rows[: t + 1]
            counts[row] = float(reverse[self.length - 1 - t :] @ seen)
        return np.asarray(self._last + np.cumsum(counts / self._strategy.columns[start:end]))

    def variance_at(self, position: int) -> float:
        """Variance of the running count after `position` items."""
        return float(self.mechanism.variance[position - 1])
