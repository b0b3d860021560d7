"""Running counts with integer noise from a tree, all of it drawn when the segment begins."""

from __future__ import annotations

import numpy as np

from noisewise.ecdf import noising
from noisewise.ecdf.mechanisms.protocol import FloatArray, IntArray
from noisewise.ecdf.noise_slots import NoiseSlots
from noisewise.ecdf.stream_noise import KaryNoise, PathNoise
from noisewise.privacy.randomness import Randomness

__all__ = ["TreeSegment"]


class TreeSegment:
    """Noisy running counts of at most `length` items.

    Parameters
    ----------
    noise : KaryNoise or PathNoise
    rng : Randomness
    """

    def __init__(self, noise: KaryNoise | PathNoise, rng: Randomness) -> None:
        self.length = noise.length
        self._noise = NoiseSlots(noise.draw(rng))
        self._variance = noise.variance()
        self._position = 0
        self._sum = 0

    def add(self, items: IntArray) -> FloatArray:
        """Return the running counts after each of these items."""
        sums = self._sum + np.cumsum(items)
        end = self._position + items.size
        released = noising.add(sums, self._noise.take(self._position, end))
        self._position, self._sum = end, int(sums[-1])
        return released.astype(np.float64)

    def variance_at(self, position: int) -> float:
        """Variance of the running count after `position` items."""
        return float(self._variance[position - 1])
