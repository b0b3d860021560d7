"""Trees of counts with chosen fan-outs, read out by least squares.

Every node below the root is counted; one record changes one node of each level by one
(added or removed) or two (replaced). Fan-outs and the split of the budget over the levels
minimise the closed-form variance of :mod:`noisewise.ecdf.mechanisms.tree_estimate`. The tree
with one level is the plain histogram.

Proof: docs/proofs/curves.md#trees.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from noisewise.ecdf.budget import Budget
from noisewise.ecdf.mechanisms.calibrating import calibrate
from noisewise.ecdf.mechanisms.protocol import (
    Change,
    FloatArray,
    IntArray,
    Mechanism,
    Norm,
    Setting,
)
from noisewise.ecdf.mechanisms.registry import Counting, Objective, Wanted, register
from noisewise.ecdf.mechanisms.resolution import check_range, power_of_two
from noisewise.ecdf.mechanisms.tree_estimate import (
    estimate_leaves,
    prefix_covariance,
    prefix_variance,
    prefix_weights,
    subtree_variances,
)

__all__ = ["CountTree", "choose_tree", "histogram_mechanism", "kary_mechanism"]

Kind = Literal["laplace", "gaussian"]


@dataclass(frozen=True)
class CountTree:
    """Counts of all nodes of a tree below its root.

    Parameters
    ----------
    setting : Setting
        What is public.
    fanouts : tuple of int
        Children of a node, from the parents of leaves to the root. Their product is at
        least the number of bins; leaves beyond it are empty.
    shares : tuple of float
        The split of the budget over the levels.
    variances : tuple of float
        Variance of the noise of each level, up to a common factor: the weights of the
        least-squares estimate.
    resolution : int
        Grid points of the noise in one count.
    """

    setting: Setting
    fanouts: tuple[int, ...]
    shares: tuple[float, ...]
    variances: tuple[float, ...]
    resolution: int = 1

    @property
    def name(self) -> str:
        """A short name."""
        return "kary" if len(self.fanouts) > 1 else "histogram"

    @property
    def description(self) -> str:
        """One line that says which strategy it is."""
        if len(self.fanouts) == 1:
            return "histogram, summed up"
        shape = " x ".join(map(str, reversed(self.fanouts)))
        return f"tree of counts ({shape}) with least squares"

    @property
    def blocks(self) -> tuple[int, ...]:
        """Number of nodes of each level, leaves first."""
        sizes = [math.prod(self.fanouts)]
        for fanout in self.fanouts[:-1]:
            sizes.append(sizes[-1] // fanout)
        return tuple(sizes)

    def shift(self, change: Change, norm: Norm) -> tuple[Fraction, ...]:
        """One node of each level changes by one, or two nodes do."""
        nodes = 1 if change == "suffix" else 2
        unit = self.resolution if norm == "l1" else self.resolution**2
        return (Fraction(nodes * unit),) * len(self.fanouts)

    def touched(self, change: Change) -> int:
        """One node of each level, or two (a flipped label: one of each curve)."""
        return len(self.fanouts) * (1 if change == "suffix" else 2)

    def measure(self, counts: IntArray) -> IntArray:
        """Count all nodes, in grid units."""
        check_range(int(counts.sum()), self.resolution)
        leaves = np.zeros(self.blocks[0], np.int64)
        leaves[: counts.size] = counts
        levels = [leaves]
        for fanout in self.fanouts[:-1]:
            levels.append(levels[-1].reshape(-1, fanout).sum(1))
        return np.concatenate(levels) * self.resolution

    def spread(self, noise: NDArray[np.generic]) -> NDArray[np.generic]:
        """Each node has its own noise."""
        return noise

    def reconstruct(self, measurements: NDArray[np.generic], total: float) -> FloatArray:
        """Least squares, then sums; the last one is the total if that is public."""
        values = measurements.astype(np.float64) / self.resolution
        ends = np.cumsum(self.blocks)
        levels = [
            values[..., end - size : end] for end, size in zip(ends, self.blocks, strict=True)
        ]
        public = self.setting.total_is_public
        root = np.full(values.shape[:-1], total) if public else None
        leaves = estimate_leaves(levels, self.fanouts, self.variances, root)
        prefix = np.cumsum(leaves[..., : self.setting.bins], axis=-1)
        if public:
            prefix[..., -1] = total
        return prefix

    def variance(self, blocks: tuple[float, ...]) -> FloatArray:
        """Return the closed form, exact if `blocks` are proportional to the weights."""
        unit = [variance / self.resolution**2 for variance in blocks]
        public = self.setting.total_is_public
        lengths = np.arange(1, self.setting.bins + 1)
        variance = prefix_variance(lengths, self.fanouts, unit, public)
        if public:
            variance[-1] = 0.0
        return variance

    def total_covariance(self, blocks: tuple[float, ...]) -> FloatArray:
        """Return the closed form."""
        bins = self.setting.bins
        if self.setting.total_is_public:
            return np.zeros(bins)
        unit = [variance / self.resolution**2 for variance in blocks]
        return prefix_covariance(np.arange(1, bins + 1), bins, self.fanouts, unit)


def _relative_variances(shares: Sequence[float], nodes: int, kind: Kind) -> list[float]:
    """Variance of each level at epsilon 1, or at ratio 1 (rho 1/2)."""
    if kind == "laplace":
        return [2.0 * (nodes / share) ** 2 for share in shares]
    return [nodes / share for share in shares]


def _candidates(bins: int, kind: Kind) -> list[tuple[int, ...]]:
    found: set[tuple[int, ...]] = {(bins,)}
    for height in range(2, 9 if kind == "laplace" else 12):
        root = bins ** (1 / height)
        if root < 1.9:
            break
        factors = (0.5, 0.63, 0.72, 0.8, 0.9, 1.0, 1.12, 1.25, 1.4, 1.6, 2.0)
        options = sorted({max(2, round(root * factor)) for factor in factors})
        if height <= 4:
            for fanouts in itertools.product(options, repeat=height):
                if bins <= math.prod(fanouts) <= 1.4 * bins + 2:
                    found.add(fanouts)
        else:
            fanouts = (math.ceil(root - 1e-9),) * height
            for lower in range(height + 1):
                mixed = (fanouts[0] - 1,) * lower + fanouts[lower:]
                if min(mixed) >= 2 and math.prod(mixed) >= bins:
                    found.add(mixed)
    return sorted(found)


def _equal(fanouts: tuple[int, ...]) -> tuple[float, ...]:
    return (1 / len(fanouts),) * len(fanouts)


@lru_cache(maxsize=256)
def choose_tree(
    bins: int, total_is_public: bool, nodes: int, kind: Kind, objective: Objective
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return the fan-outs and budget shares of least closed-form variance.

    `nodes` is how many nodes of a level one record changes. The best eight of all fan-outs
    with equal shares get their shares optimised. A tree with more leaves than bins may be
    the best one: a prefix that is a small part of it has less noise.

    The search adds, multiplies and divides only, in one order, so that every processor finds
    the same tree: kernels for exponentials and products of matrices differ in the last bits,
    and a search would go another way from there.
    """
    points = max(1, bins - 1 if total_is_public else bins)
    # On fine grids a random choice of thresholds stands for all (a regular one would be in
    # step with the tree).
    everywhere = np.arange(1, points + 1)
    if points > 1024:
        everywhere = np.sort(np.random.default_rng(0).integers(1, points + 1, 1024))

    def prepared(fanouts: tuple[int, ...]) -> Callable[[Sequence[float]], float]:
        """Return the error as a function of the shares."""
        of_levels, of_root = prefix_weights(everywhere, fanouts)
        if objective == "mean":
            count = of_root.size
            of_levels = np.array([[math.fsum(level) / count] for level in of_levels])
            of_root = np.array([math.fsum(of_root) / count])

        def error(shares: Sequence[float]) -> float:
            variances = _relative_variances(shares, nodes, kind)
            upward, root = subtree_variances(fanouts, variances, total_is_public)
            found = root * of_root
            for variance, weights in zip(upward, of_levels, strict=True):
                found = found + variance * weights
            return float(found.max())

        return error

    def roughly(fanouts: tuple[int, ...]) -> float:
        """Sum over the levels of the mean (largest) value of the bridge of a family."""
        variances = _relative_variances(_equal(fanouts), nodes, kind)
        upward, root = subtree_variances(fanouts, variances, total_is_public)
        divisor = 6.0 if objective == "mean" else 4.0
        inside = sum(u * (k - 1) / divisor for u, k in zip(upward, fanouts, strict=True))
        filled = bins / math.prod(fanouts)
        return inside + root * filled**2 / (3.0 if objective == "mean" else 1.0)

    near = sorted(_candidates(bins, kind), key=roughly)[:100]
    ranked = sorted((prepared(fanouts)(_equal(fanouts)), fanouts) for fanouts in near)[:8]
    best = (*ranked[0], _equal(ranked[0][1]))
    for start, fanouts in ranked:
        if len(fanouts) == 1:
            continue
        error = prepared(fanouts)

        def shares_of(logits: NDArray[np.float64]) -> tuple[float, ...]:
            weights = [1.0 + a if a >= 0 else 1.0 / (1.0 - a) for a in logits.tolist()]
            total = math.fsum(weights)
            return tuple(weight / total for weight in weights)

        def loss(
            logits: NDArray[np.float64],
            error: Callable[[Sequence[float]], float] = error,
            start: float = start,
        ) -> float:
            return error(shares_of(logits)) / start

        options: Any = {"maxiter": 40 * len(fanouts), "xatol": 1e-3, "fatol": 1e-5}
        objective_function: Any = loss
        equal = np.zeros(len(fanouts))
        found = minimize(objective_function, equal, method="Nelder-Mead", options=options)
        value = found.fun * start
        if value < best[0]:
            best = (value, fanouts, shares_of(found.x))
    return best[1], best[2]


def kary_mechanism(
    setting: Setting,
    budget: Budget,
    *,
    kind: Kind | None = None,
    objective: Objective = "mean",
    fanouts: tuple[int, ...] | None = None,
    change: Change | None = None,
) -> Mechanism:
    """Return a tree of counts with the noise that `budget` allows.

    Parameters
    ----------
    setting, budget : Setting, Budget
        What is public and what a release may cost.
    kind : {"laplace", "gaussian"}, optional
        Which noise; Laplace for a pure budget, Gaussian otherwise.
    objective : {"mean", "max"}
        Which variance the fan-outs minimise.
    fanouts : tuple of int, optional
        Fixed fan-outs (leaves to root) with equal shares instead of the search.
    change : {"suffix", "interval", "joint"}, optional
        What one record may do.
    """
    kind = kind or ("laplace" if budget.kind == "pure" else "gaussian")
    nodes = 1 if (change or setting.change) == "suffix" else 2
    if fanouts is not None:
        if math.prod(fanouts) < setting.bins:
            raise ValueError(f"fanouts {fanouts} hold fewer than {setting.bins} bins")
        return _calibrated(setting, budget, kind, change, fanouts, _equal(fanouts))
    # The search looks at some thresholds only; the two results are compared at all of them.
    goals: tuple[Objective, ...] = ("mean", "max")
    found = [
        _calibrated(
            setting,
            budget,
            kind,
            change,
            *choose_tree(setting.bins, setting.total_is_public, nodes, kind, goal),
        )
        for goal in goals
    ]
    return min(found, key=lambda m: m.mean_variance if objective == "mean" else m.max_variance)


def _calibrated(
    setting: Setting,
    budget: Budget,
    kind: Kind,
    change: Change | None,
    fanouts: tuple[int, ...],
    shares: tuple[float, ...],
) -> Mechanism:
    # The shares must not sum to more than one after rounding.
    shares = tuple(share * (1 - 1e-12) for share in shares)
    tree = CountTree(setting, fanouts, shares, (1.0,) * len(fanouts))
    if kind == "gaussian":
        nodes = 1 if (change or setting.change) == "suffix" else 2
        deviation = math.sqrt(nodes) / budget.ratio
        finest = budget.least_deviation(tree.touched(change or setting.change)) / deviation
        tree = replace(tree, resolution=power_of_two(finest))
    mechanism = calibrate(tree, budget, kind, change=change)
    weights = tuple(max(block.variance, 1e-100) for block in mechanism.noise)
    return replace(mechanism, strategy=replace(tree, variances=weights))


def histogram_mechanism(
    setting: Setting,
    budget: Budget,
    *,
    kind: Kind | None = None,
    change: Change | None = None,
) -> Mechanism:
    """Return the noisy histogram, summed up: best for few bins."""
    return kary_mechanism(setting, budget, kind=kind, fanouts=(setting.bins,), change=change)


def _kary(setting: Setting, budget: Budget, wanted: Wanted) -> Mechanism:
    return kary_mechanism(setting, budget, objective=wanted.objective, change=wanted.change)


def _both_kinds(setting: Setting, budget: Budget, wanted: Wanted) -> Iterator[Mechanism]:
    kinds: tuple[tuple[Kind, bool], ...] = (
        ("laplace", budget.allows_laplace),
        ("gaussian", budget.allows_gaussian),
    )
    for kind, allowed in kinds:
        if allowed:
            yield kary_mechanism(
                setting, budget, kind=kind, objective=wanted.objective, change=wanted.change
            )


register(
    Counting(
        "kary",
        "Counts of all nodes of a tree, least squares. Fan-outs and the split of the budget over "
        "the levels minimise the closed-form variance. Best for pure budgets.",
        "proofs/curves.md#trees",
        _kary,
        _both_kinds,
    )
)
register(
    Counting(
        "histogram",
        "Noise on every bin, summed up. Best for a handful of bins.",
        "proofs/curves.md#trees",
        lambda setting, budget, wanted: histogram_mechanism(setting, budget, change=wanted.change),
    )
)
