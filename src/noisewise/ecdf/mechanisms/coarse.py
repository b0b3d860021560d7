"""A tree of counts over blocks of bins; between the ends of blocks the curve is a straight line.

On a fine grid most of the noise of a curve pays for telling neighbouring bins apart. Measuring
blocks of `width` bins instead costs less noise and an error of interpolation, which
:mod:`noisewise.ecdf.adaptive` measures privately before it asks for this strategy.

The first and the last bin are blocks of their own: records outside the bounds are moved there.
A record moves at most as many blocks as bins, so the tree's own guarantee holds as it is.

Proof: docs/proofs/curves.md#trees.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from noisewise.ecdf.mechanisms.kary import CountTree
from noisewise.ecdf.mechanisms.protocol import Change, FloatArray, IntArray, Norm, Setting

__all__ = ["CoarseTree"]


@dataclass(frozen=True)
class CoarseTree:
    """A tree of counts whose leaves are blocks of bins.

    Parameters
    ----------
    tree : CountTree
        Over the blocks.
    bins : int
        Number of bins.
    width : int
        Bins of a block; the last one before the last bin may have fewer.
    """

    tree: CountTree
    bins: int
    width: int

    @property
    def name(self) -> str:
        """A short name."""
        return "adaptive"

    @property
    def description(self) -> str:
        """One line that says which strategy it is."""
        return f"{self.tree.description} over blocks of {self.width} bins"

    @property
    def setting(self) -> Setting:
        """All bins."""
        return Setting(self.bins, self.tree.setting.total_is_public)

    @property
    def blocks(self) -> tuple[int, ...]:
        """As the tree's."""
        return self.tree.blocks

    @property
    def shares(self) -> tuple[float, ...]:
        """As the tree's."""
        return self.tree.shares

    @staticmethod
    def count(bins: int, width: int) -> int:
        """Return the number of blocks."""
        return 2 + math.ceil((bins - 2) / width)

    @cached_property
    def _starts(self) -> IntArray:
        """The first bin of each block."""
        inner = np.arange(1, self.bins - 1, self.width)
        return np.concatenate([[0], inner, [self.bins - 1]]).astype(np.int64)

    @cached_property
    def ends(self) -> IntArray:
        """The last bin of each block: where prefix counts are measured."""
        return np.append(self._starts[1:], self.bins) - 1

    @cached_property
    def _position(self) -> tuple[IntArray, FloatArray]:
        """Return the block of each bin and which fraction of it the bin ends at."""
        sizes = self.ends - self._starts + 1
        block = np.repeat(np.arange(sizes.size), sizes)
        return block, (np.arange(self.bins) + 1 - self._starts[block]) / sizes[block]

    def interpolate(self, prefix: FloatArray) -> FloatArray:
        """Return prefix counts of all bins (last axis) from those at the ends of blocks."""
        block, fraction = self._position
        before = np.concatenate([np.zeros_like(prefix[..., :1]), prefix[..., :-1]], axis=-1)
        low = before[..., block]
        values = low + fraction * (prefix[..., block] - low)
        values[..., self.ends] = prefix
        return np.asarray(values)

    def between(self, low: FloatArray, high: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return limits of a monotone curve for all bins, given those at the ends of blocks."""
        block, _ = self._position
        lowest = np.concatenate([[0.0], low[self.ends]])[block]
        lowest[self.ends] = low[self.ends]
        return lowest, high[self.ends][block]

    def shift(self, change: Change, norm: Norm) -> tuple[Fraction, ...]:
        """As the tree's: a record is in one block."""
        return self.tree.shift(change, norm)

    def touched(self, change: Change) -> int:
        """As the tree's."""
        return self.tree.touched(change)

    def measure(self, counts: IntArray) -> IntArray:
        """Count all nodes over blocks."""
        return self.tree.measure(np.add.reduceat(counts, self._starts))

    def spread(self, noise: NDArray[np.generic]) -> NDArray[np.generic]:
        """Each node has its own noise."""
        return noise

    def reconstruct(self, measurements: NDArray[np.generic], total: float) -> FloatArray:
        """Least squares over blocks, straight lines inside them."""
        return self.interpolate(self.tree.reconstruct(measurements, total))

    def variance(self, blocks: tuple[float, ...]) -> FloatArray:
        """Return the variance of the noise, in closed form.

        All leaves of a tree have estimates of one variance, that of the first, which gives the
        covariance of neighbouring prefixes: (V_a + V_b - V_1) / 2; that with a public total is 0.
        """
        at_end = self.tree.variance(blocks)
        before = np.concatenate([[0.0], at_end[:-1]])
        covariance = (before + at_end - at_end[0]) / 2
        covariance[at_end == 0] = 0.0
        block, fraction = self._position
        rest = 1 - fraction
        value = rest**2 * before[block] + fraction**2 * at_end[block]
        return np.asarray(np.maximum(value + 2 * fraction * rest * covariance[block], 0.0))

    def total_covariance(self, blocks: tuple[float, ...]) -> FloatArray:
        """Return the closed form: covariances are interpolated as counts are."""
        return self.interpolate(self.tree.total_covariance(blocks))
