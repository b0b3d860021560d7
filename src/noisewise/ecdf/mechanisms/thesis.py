"""The thesis's tree: each prefix count gets the noise of all nodes above its leaf.

Eq. 6.3.1 of Barczewski (2025), with the exact sensitivity instead of the published
one: l1 for Laplace noise, the noise's own covariance for Gaussian noise (see
:mod:`noisewise.ecdf.mechanisms.laminar`).

Gaussian noise lives on a grid of 1/resolution, and the shift must lie on it too. Take the
real shift c* of least squares, and round the sum of c* along each path, keeping leaves
exact: every inner node's c moves by at most 1 grid unit, every leaf's by 1/2. So there is
an integer shift of length at most ``resolution |c*| + sqrt(inner nodes + leaves / 4)``.

Proof: docs/proofs/curves.md#paths.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from noisewise.ecdf.budget import Budget
from noisewise.ecdf.mechanisms.calibrating import calibrate
from noisewise.ecdf.mechanisms.laminar import least_l1, least_squares
from noisewise.ecdf.mechanisms.protocol import (
    Change,
    FloatArray,
    IntArray,
    Mechanism,
    Norm,
    Setting,
)
from noisewise.ecdf.mechanisms.registry import Counting, Wanted, register
from noisewise.ecdf.mechanisms.resolution import check_range, power_of_two

__all__ = ["ThesisTree", "thesis_mechanism"]


@dataclass(frozen=True)
class ThesisTree:
    """Prefix counts with the noise of all tree nodes above them.

    Parameters
    ----------
    setting : Setting
        What is public.
    base : int
        Children of a node.
    resolution : int
        Grid points of the noise in one count.
    """

    setting: Setting
    base: int = 2
    resolution: int = 1

    @property
    def name(self) -> str:
        """A short name."""
        return "thesis"

    @property
    def description(self) -> str:
        """One line that says which strategy it is."""
        return f"tree noise on prefix counts (base {self.base}, {self.height + 1} levels)"

    @property
    def height(self) -> int:
        """L, the least height with a leaf for every noisy prefix count."""
        height = 0
        while self.base**height < self.setting.points:
            height += 1
        return height

    @property
    def levels(self) -> tuple[int, ...]:
        """Number of nodes of each level, leaves first."""
        return tuple(self.base ** (self.height - level) for level in range(self.height + 1))

    @property
    def blocks(self) -> tuple[int, ...]:
        """All nodes share one scale."""
        return (sum(self.levels),)

    @property
    def shares(self) -> tuple[float, ...]:
        """One block takes the whole budget."""
        return (1.0,)

    def shift(self, change: Change, norm: Norm) -> tuple[Fraction, ...]:
        """Exact sensitivity; see the module's text for the rounding of real shifts."""
        least = (least_l1 if norm == "l1" else least_squares)(self.base, self.height)
        cost = {
            "suffix": least.suffix,
            "interval": least.interval,
            "joint": max(least.interval, 2 * least.suffix),
        }[change]
        if norm == "l1":
            return (Fraction(cost) * self.resolution,)
        # A joint change shifts two trees, whose roundings add up in squares.
        trees = 2 if change == "joint" else 1
        leaves = self.levels[0]
        rounding = math.sqrt(trees * (sum(self.levels) - leaves + leaves / 4))
        length = self.resolution * math.sqrt(cost) + rounding
        return (Fraction(length**2 * (1 + 1e-12)),)

    def touched(self, change: Change) -> int:
        """The rounded shift may move the noise of every node, of both trees if labels flip."""
        return sum(self.levels) * (2 if change == "joint" else 1)

    def measure(self, counts: IntArray) -> IntArray:
        """Sum up, in grid units."""
        check_range(int(counts.sum()), self.resolution)
        return np.cumsum(counts)[: self.setting.points] * self.resolution

    def spread(self, noise: NDArray[np.generic]) -> NDArray[np.generic]:
        """Sum the noise along the path from the root to each leaf."""
        ends = np.cumsum(self.levels)
        path = noise[..., ends[-1] - 1 : ends[-1]]
        for level in range(self.height - 1, -1, -1):
            start = ends[level] - self.levels[level]
            path = np.repeat(path, self.base, axis=-1) + noise[..., start : ends[level]]
        return path[..., : self.setting.points]

    def reconstruct(self, measurements: NDArray[np.generic], total: float) -> FloatArray:
        """Back to counts; the last one is the public total."""
        prefix = measurements.astype(np.float64) / self.resolution
        if not self.setting.total_is_public:
            return prefix
        last = np.full((*prefix.shape[:-1], 1), total)
        return np.concatenate([prefix, last], axis=-1)

    def variance(self, blocks: tuple[float, ...]) -> FloatArray:
        """One node of every level on each path."""
        variance = np.zeros(self.setting.bins)
        variance[: self.setting.points] = (self.height + 1) * blocks[0] / self.resolution**2
        return variance

    def total_covariance(self, blocks: tuple[float, ...]) -> FloatArray:
        """Count the nodes that a path shares with the last path."""
        shared = np.zeros(self.setting.bins)
        if self.setting.total_is_public:
            return shared
        index = np.arange(self.setting.bins)
        for level in range(self.height + 1):
            shared += index // self.base**level == index[-1] // self.base**level
        return shared * blocks[0] / self.resolution**2


def thesis_mechanism(
    setting: Setting,
    budget: Budget,
    *,
    base: int = 2,
    kind: Literal["laplace", "gaussian"] | None = None,
    change: Change | None = None,
) -> Mechanism:
    """Return the thesis's tree with the noise that `budget` allows."""
    kind = kind or ("laplace" if budget.kind == "pure" else "gaussian")
    tree = ThesisTree(setting, base)
    if kind == "gaussian":
        nodes = sum(tree.levels)
        # The rounding term is below one part in a thousand of the sensitivity.
        touched = tree.touched(change or setting.change)
        finest = max(1e3 * math.sqrt(nodes), budget.least_deviation(touched) * budget.ratio)
        tree = ThesisTree(setting, base, power_of_two(finest))
    return calibrate(tree, budget, kind, change=change)


def _with_laplace(setting: Setting, budget: Budget, wanted: Wanted) -> Iterator[Mechanism]:
    if budget.allows_laplace:
        yield thesis_mechanism(setting, budget, kind="laplace", change=wanted.change)


register(
    Counting(
        "thesis",
        "Eq. 6.3.1 of Barczewski (2025): a threshold gets the noise of all nodes of a tree above "
        "it, with the exact sensitivity. `base=` takes other trees than binary ones.",
        "proofs/curves.md#paths",
        lambda setting, budget, wanted: thesis_mechanism(
            setting, budget, base=wanted.base, change=wanted.change
        ),
        _with_laplace,
        has_base=True,
    )
)
