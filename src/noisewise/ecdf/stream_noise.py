"""Integer noise for running counts: trees whose nodes are added and subtracted.

A running count needs no future data if its noise needs none: release ``s_t + g_t(w)`` with w
the noise of the nodes of a tree over time and g linear with *integer* coefficients such that
g of the nodes' true counts is the running count itself. Then changing item t by d is the same
as shifting the noise of the nodes above t by d, one on each of m levels: epsilon = m |d| / b for
Laplace noise of scale b. The argument holds step by step, so also if items are chosen
after seeing earlier releases; and as all numbers are integers, no rounding weakens it.

* :class:`KaryNoise`: in a node with k children the first d of them are summed, or the last
  k - d are subtracted from the node itself, whichever has fewer terms (k-ary tree with
  subtraction; cf. Andersson, Pagh, Steiner and Torkamani 2024).
* :class:`PathNoise`: the thesis's Theorem 6.3.2, the noise of all nodes above t.

Proof: docs/proofs/curves.md#streams.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from noisewise.ecdf.mechanisms.laminar import least_l1
from noisewise.ecdf.mechanisms.protocol import FloatArray, IntArray
from noisewise.privacy import Randomness
from noisewise.privacy.randomness import discrete_laplace_variance, exact_scale
from noisewise.release import Block

__all__ = ["KaryNoise", "PathNoise", "choose_kary"]


def _scale(shift: int, epsilon: float) -> Fraction:
    wanted = Fraction(shift) / Fraction(epsilon)
    return exact_scale(math.nextafter(float(wanted), math.inf))


@dataclass(frozen=True)
class KaryNoise:
    """Noise of `length` running counts from a k-ary tree with subtraction.

    Parameters
    ----------
    length : int
        Number of running counts.
    fanout : int
        Children of a node.
    height : int
        Levels below the root; ``fanout ** height`` is at least `length`.
    root : bool
        Whether the root has noise of its own, so that the top level can subtract too.
    scale : Fraction
        Of the discrete Laplace noise of each node.
    """

    length: int
    fanout: int
    height: int
    root: bool
    scale: Fraction

    @classmethod
    def of(cls, length: int, epsilon: float, bound: int = 1) -> KaryNoise:
        """Return the tree of least mean variance."""
        fanout, height, root = choose_kary(length)
        return cls(length, fanout, height, root, _scale((height + root) * bound, epsilon))

    @property
    def description(self) -> str:
        """One line."""
        return f"{self.fanout}-ary tree of height {self.height} with subtraction"

    def epsilon(self, bound: int) -> Fraction:
        """Exact epsilon towards a change of one item by at most `bound`."""
        return Fraction((self.height + self.root) * bound) / self.scale

    def sizes(self) -> tuple[int, ...]:
        """Nodes of each level that can hold an item, leaves first."""
        levels = range(self.height + self.root)
        return tuple(-(-self.length // self.fanout**level) for level in levels)

    def draw(self, rng: Randomness) -> IntArray:
        """Draw the noise of all running counts."""
        return self.combine([Block("laplace", self.scale, size).draw(rng) for size in self.sizes()])

    def combine(self, levels: list[IntArray]) -> IntArray:
        """Return g: running counts from the numbers of the nodes, leaves first."""
        k = self.fanout
        prefix = np.arange(1, self.length + 1)
        result = np.zeros(self.length, np.int64)
        for level, nodes in enumerate(levels[: self.height]):
            parents = -(-nodes.size // k)
            children = np.zeros((parents, k), np.int64)
            children.ravel()[: nodes.size] = nodes
            sums = np.concatenate([np.zeros((parents, 1), np.int64), children.cumsum(1)], axis=1)
            whole = prefix // k**level
            parent, digit = whole // k, whole % k
            inside = parent < parents  # the full prefix ends where no node begins
            parent = np.where(inside, parent, 0)
            part = sums[parent, digit]
            if level + 1 < len(levels):
                rest = levels[level + 1][parent] - sums[parent, k] + part
                part = np.where(digit > (k + 1) // 2, rest, part)
            result += np.where(inside, part, 0)
        if self.length == k**self.height:
            top = levels[self.height] if self.root else levels[self.height - 1]
            result[-1] = top.sum()
        return result

    def variance(self) -> FloatArray:
        """Variance of the noise of each running count."""
        terms = np.zeros(self.length)
        prefix = np.arange(1, self.length + 1)
        for level in range(self.height):
            digit = prefix // self.fanout**level % self.fanout
            subtracts = self.root or level + 1 < self.height
            terms += _terms(digit, self.fanout, subtracts)
        if self.length == self.fanout**self.height:
            terms[-1] = 1 if self.root else self.fanout
        return terms * discrete_laplace_variance(self.scale)


def _terms(digit: IntArray, fanout: int, subtracts: bool) -> IntArray:
    if not subtracts:
        return digit
    return np.where(digit > (fanout + 1) // 2, 1 + fanout - digit, digit)


@lru_cache(maxsize=128)
def choose_kary(length: int) -> tuple[int, int, bool]:
    """Return fan-out, height and whether the root has noise, of least mean variance."""
    some = np.random.default_rng(0).integers(1, length + 1, 4096)
    best = (math.inf, 2, 1, True)
    for fanout in range(2, 65):
        height = 1
        while fanout**height < length:
            height += 1
        for root in (False, True):
            terms = np.zeros(some.size)
            for level in range(height):
                digit = some // fanout**level % fanout
                terms += _terms(digit, fanout, root or level + 1 < height)
            error = float(terms.mean()) * (height + root) ** 2
            if error < best[0] and (height + root) > 0:
                best = (error, fanout, height, root)
    return best[1:]


@dataclass(frozen=True)
class PathNoise:
    """Theorem 6.3.2 of Barczewski (2025): each running count gets the noise of its path.

    Parameters
    ----------
    length : int
    height : int
        L; there are ``2 ** height`` leaves.
    scale : Fraction
        ceil((L+1)/2) / epsilon, the exact sensitivity of a suffix.
    """

    length: int
    height: int
    scale: Fraction

    @classmethod
    def of(cls, length: int, epsilon: float, bound: int = 1) -> PathNoise:
        """Return the tree over `length` steps."""
        height = max(0, math.ceil(math.log2(length)))
        return cls(length, height, _scale(int(least_l1(2, height).suffix) * bound, epsilon))

    @property
    def description(self) -> str:
        """One line."""
        return f"binary tree noise along paths, height {self.height}"

    def epsilon(self, bound: int) -> Fraction:
        """Exact epsilon towards a change of one item by at most `bound`."""
        return Fraction(int(least_l1(2, self.height).suffix) * bound) / self.scale

    def draw(self, rng: Randomness) -> IntArray:
        """Draw the noise of all running counts."""
        index = np.arange(self.length)
        total = np.zeros(self.length, np.int64)
        for level in range(self.height + 1):
            place = index >> level
            total += Block("laplace", self.scale, int(place[-1]) + 1).draw(rng)[place]
        return total

    def variance(self) -> FloatArray:
        """Variance of the noise of each running count."""
        single = discrete_laplace_variance(self.scale)
        return np.full(self.length, (self.height + 1) * single)
