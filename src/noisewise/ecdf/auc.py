"""Intervals for the area under a private ROC curve.

The area is ``A(P, N) / (P_T N_T)`` with A the trapezoid sum
``sum_i (N_i - N_(i-1)) (P_i + P_(i-1)) / 2`` over prefix counts P of positives and N of
negatives: a ratio of two bilinear forms of counts whose noise has a known law.

* "simulation": Fieller's interval. A value a is kept if ``A - a P_T N_T`` of the released
  counts is no larger than its noise, simulated with the released counts in the place of the
  true ones, would be at the level. Approximate (the replacement is an error of second order,
  and to the safe side), narrow, and honest where a class may be empty: it becomes (0, 1).
* "band": all counts lie within a simultaneous band with probability at least the level, and
  A grows with P and falls with N, so the areas of the two extreme curves are limits with
  guaranteed coverage. Wider.
"""

from __future__ import annotations

import math

import numpy as np

from noisewise.ecdf.mechanisms.protocol import FloatArray
from noisewise.ecdf.two_class import TwoClassCounts

__all__ = ["area_under", "delong_variance", "fieller_interval", "trapezoid"]

# Numbers simulated at once.
CHUNK = 1 << 22


def trapezoid(negatives: FloatArray, positives: FloatArray) -> FloatArray:
    """Return A(P, N) of prefix counts along the last axis (they start from zero)."""
    steps = np.diff(negatives, prepend=0.0, axis=-1)
    heights = positives - np.diff(positives, prepend=0.0, axis=-1) / 2
    return np.asarray((steps * heights).sum(-1))


def area_under(x: FloatArray, y: FloatArray) -> float:
    """Area under straight lines between points."""
    return float(np.sum(np.diff(x) * (y[1:] + y[:-1])) / 2)


def delong_variance(negatives: FloatArray, positives: FloatArray) -> float:
    """Variance of the area over independent samples (DeLong 1988), from monotone counts."""
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


def fieller_interval(
    release: TwoClassCounts, level: float, *, population: bool, draws: int, seed: int
) -> tuple[float, float]:
    """Return the simulated interval; see the module's text."""
    negatives, positives = release.noisy
    rank = math.ceil((draws + 1) * level)
    if rank > draws:
        needed = math.ceil(level / (1 - level))
        raise ValueError(f"level={level!r} needs more simulated curves: give draws >= {needed}")
    generator = np.random.default_rng(seed)
    step = max(1, CHUNK // (2 * release.grid.bins))
    top, bottom = [], []
    for start in range(0, draws, step):
        size = min(step, draws - start)
        noise = release.mechanism.simulate(generator, size).reshape(size, 2, -1)
        e, f = noise[:, 1], noise[:, 0]
        top.append(trapezoid(negatives, e) + trapezoid(f, positives) - trapezoid(f, e))
        ends, ends_f = e[:, -1], f[:, -1]
        bottom.append(ends * negatives[-1] + positives[-1] * ends_f - ends * ends_f)
    numerator = np.concatenate(top)
    denominator = np.concatenate(bottom)
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
