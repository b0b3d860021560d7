"""Running counts with integer noise from a tree, all of it drawn when the segment begins."""

from __future__ import annotations

import numpy as np

from noisewise.ecdf.mechanisms.protocol import FloatArray, IntArray, round_up
from noisewise.ecdf.stream_noise import KaryNoise, PathNoise
from noisewise.privacy import REPLACE_ONE, Pure, Sensitivity
from noisewise.release import NoiseSlots

__all__ = ["TreeSegment"]


class TreeSegment:
    """Noisy running counts of at most `length` items.

    Parameters
    ----------
    noise : KaryNoise or PathNoise
    bound : int
        Of an item.
    """

    def __init__(self, noise: KaryNoise | PathNoise, bound: int) -> None:
        self.length = noise.length
        shift = noise.epsilon(bound) * noise.scale
        self.slots = NoiseSlots(
            noise.draw,
            Sensitivity(round_up(shift), "l1", REPLACE_ONE),
            Pure(round_up(noise.epsilon(bound))),
            noise.description,
        )
        self._variance = noise.variance()
        self._sum = 0

    def measure(self, items: IntArray, position: int) -> IntArray:
        """Return the running counts of these items, without noise."""
        return self._sum + np.cumsum(items)

    def read(self, items: IntArray, position: int, noisy: IntArray) -> FloatArray:
        """Return the running counts as they are released."""
        self._sum += int(items.sum())
        return noisy.astype(np.float64)

    def variance_at(self, position: int) -> float:
        """Variance of the running count after `position` items."""
        return float(self._variance[position - 1])
