"""Intervals for the area under a private ROC curve.

The area is ``A(P, N) / (P_T N_T)`` with A the trapezoid sum
``sum_i (N_i - N_(i-1)) (P_i + P_(i-1)) / 2`` over prefix counts P of positives and N of
negatives: a ratio of two bilinear forms of counts whose noise has a known law.

* "simulation": Fieller's interval. A value a is kept if ``A - a P_T N_T`` of the released
  counts is no larger than its noise would be at the level, simulated around the released counts
  less another draw of their noise, which stand for the true ones. Where noise is small against
  the counts this replacement does not matter and the coverage is the level; where it is not,
  the counts are rougher than the true ones twice over, which makes the interval wider. Since
  this is an argument of second order and no proof, a tenth of the probability to miss is kept
  as a cushion. Checked by ``benchmarks/ecdf_auc_coverage.py``. Narrow, and honest where a
  class may be empty: it becomes (0, 1).
* "band": all counts lie within a simultaneous band with probability at least the level, and
  A grows with P and falls with N, so the areas of the two extreme curves are limits with
  guaranteed coverage. Wider.
"""

from __future__ import annotations

import math

import numpy as np

from noisewise.ecdf.mechanisms.protocol import FloatArray
from noisewise.ecdf.two_class import TwoClassCounts

__all__ = ["area_under", "delong_variance", "fieller_interval", "pivot_covers", "trapezoid"]

# Numbers simulated at once.
CHUNK = 1 << 22
# The share of the probability to miss that is not spent.
CUSHION = 0.1


def pivot_covers(release: TwoClassCounts, area: float, level: float, draws: int, seed: int) -> bool:
    """Whether the interval keeps `area`: the test it consists of, at one value."""
    rank = _rank(draws, level)
    numerator, denominator = simulate_pivot(release, draws, np.random.default_rng(seed))
    limit = np.sort(np.abs(numerator - area * denominator))[rank - 1]
    negatives, positives = release.noisy
    found = float(trapezoid(negatives, positives)) - area * float(negatives[-1] * positives[-1])
    return bool(abs(found) <= limit)


def trapezoid(negatives: FloatArray, positives: FloatArray) -> FloatArray:
    """Return A(P, N) of prefix counts along the last axis (they start from zero)."""
    steps = np.diff(negatives, prepend=0.0, axis=-1)
    heights = positives - np.diff(positives, prepend=0.0, axis=-1) / 2
    return np.asarray((steps * heights).sum(-1))


def area_under(x: FloatArray, y: FloatArray) -> float:
    """Area under straight lines between points."""
    return float(np.sum(np.diff(x) * (y[1:] + y[:-1])) / 2)


def delong_variance(negatives: FloatArray, positives: FloatArray) -> float:
    """Variance of the area over independent samples (DeLong et al. 1988), from monotone counts."""
    n, m = max(float(negatives[-1]), 1.0), max(float(positives[-1]), 1.0)
    fall = np.clip(np.diff(negatives, prepend=0.0), 0.0, None) / n
    rise = np.clip(np.diff(positives, prepend=0.0), 0.0, None) / m
    # The share of the other class on the far side of a record, ties counted half.
    above = 1 - (np.cumsum(fall) - fall / 2)
    below = np.cumsum(rise) - rise / 2
    area = float(rise @ above)
    of_positives = float(rise @ (above - area) ** 2)
    of_negatives = float(fall @ (below - area) ** 2)
    return of_positives / m + of_negatives / n


def _rank(draws: int, level: float) -> int:
    """Which of the sorted simulated values is the limit."""
    inner = 1 - (1 - level) * (1 - CUSHION)
    rank = math.ceil((draws + 1) * inner)
    if rank > draws:
        needed = math.ceil(inner / (1 - inner))
        raise ValueError(f"level={level!r} needs more simulated curves: give draws >= {needed}")
    return rank


def simulate_pivot(
    release: TwoClassCounts, draws: int, generator: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Return draws of the noise of A and of P_T N_T, around what stands for the true counts."""
    negatives, positives = release.noisy
    step = min(draws, max(2, CHUNK // (2 * release.grid.bins)))
    top, bottom = [], []
    for start in range(0, draws, step):
        size = min(step, draws - start)
        noise = release.mechanism.simulate(generator, size).reshape(size, 2, -1)
        other = np.roll(noise, 1, axis=0)
        if size == 1:
            other = release.mechanism.simulate(generator, 1).reshape(1, 2, -1)
        f, e = noise[:, 0], noise[:, 1]
        n, p = negatives - other[:, 0], positives - other[:, 1]
        top.append(trapezoid(n, e) + trapezoid(f, p) + trapezoid(f, e))
        bottom.append(e[:, -1] * n[:, -1] + p[:, -1] * f[:, -1] + e[:, -1] * f[:, -1])
    return np.concatenate(top), np.concatenate(bottom)


def fieller_interval(
    release: TwoClassCounts, level: float, *, population: bool, draws: int, seed: int
) -> tuple[float, float]:
    """Return the simulated interval; see the module's text."""
    negatives, positives = release.noisy
    rank = _rank(draws, level)
    generator = np.random.default_rng(seed)
    numerator, denominator = simulate_pivot(release, draws, generator)
    area = float(trapezoid(negatives, positives))
    product = float(negatives[-1] * positives[-1])
    if population:
        spread = math.sqrt(delong_variance(*release.counts)) * abs(product)
        numerator = numerator + spread * generator.standard_normal(draws)
    candidates = [np.linspace(0.0, 1.0, 501)]
    if product > 0:
        centre = min(max(area / product, 0.0), 1.0)
        reach = 8 * float(np.std(numerator - centre * denominator)) / product
        candidates.append(np.clip(np.linspace(centre - reach, centre + reach, 801), 0.0, 1.0))
    grid = np.unique(np.concatenate(candidates))
    limits = np.empty(grid.size)
    for start in range(0, grid.size, 256):
        part = grid[start : start + 256, None]
        error = np.abs(numerator - part * denominator)
        limits[start : start + 256] = np.partition(error, rank - 1, axis=1)[:, rank - 1]
    kept = np.flatnonzero(np.abs(area - grid * product) <= limits)
    if kept.size == 0:
        return 0.0, 1.0
    # One step outwards: the true limit lies between two candidates.
    low, high = max(int(kept[0]) - 1, 0), min(int(kept[-1]) + 1, grid.size - 1)
    return float(grid[low]), float(grid[high])
