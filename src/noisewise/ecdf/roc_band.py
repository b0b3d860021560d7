"""A simultaneous band for both rates of a ROC curve.

A rate F = p / n is a ratio of a noisy count and a noisy class total. With noise e of p and t of n,
``p' - F n' = e - F t = (1 - F) e + F (e - t)``. If |e| <= c s and |e - t| <= c s' at all
thresholds of both classes, with s and s' the deviations of e and e - t, then |p' - F n'| is at
most c ((1 - F) s + F s'), which is linear in F. The factor c is a quantile of simulated noise
(the k-th of m draws with k = ceil((m + 1) level), which covers at least at the level because
the true noise is one more draw of the same law).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from noisewise.ecdf.auc import area_under
from noisewise.ecdf.mechanisms.protocol import FloatArray, Mechanism
from noisewise.ecdf.two_class import TwoClassCounts

__all__ = ["RateBand", "limits_at", "rate_band", "spread_at"]

# Numbers simulated at once.
CHUNK = 1 << 22


@dataclass(frozen=True, eq=False)
class RateBand:
    """Limits of both rates at every threshold, all at once.

    The ROC curve lies below the points (fpr_low, tpr_high) and above (fpr_high, tpr_low).
    """

    thresholds: FloatArray
    fpr_low: FloatArray
    fpr_high: FloatArray
    tpr_low: FloatArray
    tpr_high: FloatArray
    level: float

    @property
    def auc(self) -> tuple[float, float]:
        """Areas under the lowest and the highest curve."""
        low = area_under(self.fpr_high, self.tpr_low)
        return low, area_under(self.fpr_low, self.tpr_high)


def rate_band(release: TwoClassCounts, level: float, draws: int, seed: int = 0) -> RateBand:
    """Return limits of both rates that hold together with probability at least `level`."""
    rank = math.ceil((draws + 1) * level)
    if rank > draws:
        needed = math.ceil(level / (1 - level))
        raise ValueError(f"level={level!r} needs more simulated curves: give draws >= {needed}")
    variance = release.variance[1]  # the same in both classes
    covariance = np.split(release.mechanism.total_covariance, 2)[1]
    own = np.sqrt(variance)
    rest = np.sqrt(np.maximum(variance - 2 * covariance + variance[-1], 0.0))
    rest[-1] = 0.0
    with np.errstate(divide="ignore"):
        inverse = np.where(own > 0, 1 / own, 0.0)
        inverse_rest = np.where(rest > 0, 1 / rest, 0.0)
    generator = np.random.default_rng(seed)
    step = max(1, CHUNK // (2 * release.grid.bins))
    largest = []
    for start in range(0, draws, step):
        size = min(step, draws - start)
        noise = release.mechanism.simulate(generator, size).reshape(size, 2, -1)
        worst = np.abs(noise) * inverse
        worst = np.maximum(worst, np.abs(noise - noise[:, :, -1:]) * inverse_rest)
        largest.append(worst.reshape(size, -1).max(1))
    factor = float(np.sort(np.concatenate(largest))[rank - 1])
    (fpr_low, fpr_high), (tpr_low, tpr_high) = (
        _limits(row, factor * own, factor * (rest - own)) for row in release.noisy
    )
    thresholds = np.concatenate([[np.inf], release.thresholds])
    return RateBand(thresholds, fpr_low, fpr_high, tpr_low, tpr_high, level)


@dataclass(frozen=True)
class Spread:
    """Deviations of a count's noise and of count less total, and how many of them are allowed."""

    own: float
    rest: float
    factor: float


def spread_at(
    mechanism: Mechanism, place: int, level: float, draws: int = 1000, seed: int = 0
) -> Spread:
    """Return within how many deviations all noise at one threshold lies together, at `level`."""
    variance = np.split(mechanism.variance, 2)[1]
    covariance = float(np.split(mechanism.total_covariance, 2)[1][place])
    own = math.sqrt(variance[place])
    rest = math.sqrt(max(float(variance[place] - 2 * covariance + variance[-1]), 0.0))
    draws = max(draws, math.ceil(level / (1 - level)))
    generator = np.random.default_rng(seed)
    worst = []
    bins = mechanism.setting.bins // 2
    step = max(1, CHUNK // (2 * bins))
    for start in range(0, draws, step):
        size = min(step, draws - start)
        noise = mechanism.simulate(generator, size).reshape(size, 2, -1)
        here, last = noise[:, :, place], noise[:, :, -1]
        parts = [np.abs(here) / own if own else 0 * here]
        parts.append(np.abs(here - last) / rest if rest else 0 * here)
        worst.append(np.max(np.concatenate(parts, axis=1), axis=1))
    rank = min(draws, math.ceil((draws + 1) * level))  # the two differ by rounding only
    return Spread(own, rest, float(np.sort(np.concatenate(worst))[rank - 1]))


def limits_at(release: TwoClassCounts, place: int, level: float) -> dict[str, tuple[float, float]]:
    """Return limits of recall, false-positive rate and precision at one threshold of the grid.

    All three hold together with probability at least `level`: the band above at one place, where
    the factor is smaller. Precision G = p / (p + f), with noise e of the positives p and d of the
    negatives f found, has ``(1 - G) p' - G f' = (1 - G) e - G d``, at most c s in size.
    """
    spread = spread_at(release.mechanism, place, level)
    width, excess = spread.factor * spread.own, spread.factor * (spread.rest - spread.own)
    found = {}
    for row, name in enumerate(("false_positive_rate", "recall")):
        count, whole = float(release.noisy[row][place]), float(release.noisy[row][-1])
        low = (count - width) / (whole + excess) if whole + excess > 0 else 0.0
        high = (count + width) / (whole - excess) if whole - excess > 0 else 1.0
        found[name] = (min(1.0, max(0.0, low)), min(1.0, max(0.0, high)))
    right, wrong = float(release.noisy[1][place]), float(release.noisy[0][place])
    both = right + wrong
    found["precision"] = (0.0, 1.0)
    if both > 0:
        ends = ((right - width) / both, (right + width) / both)
        found["precision"] = (min(1.0, max(0.0, ends[0])), min(1.0, max(0.0, ends[1])))
    return found


def _limits(
    noisy: FloatArray, width: FloatArray, excess: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Solve ``p' -+ width = F (n' +- excess)`` for F; monotony narrows the result."""
    total = float(noisy[-1])
    with np.errstate(divide="ignore", invalid="ignore"):
        low = np.where(total + excess > 0, (noisy - width) / (total + excess), 0.0)
        high = np.where(total - excess > 0, (noisy + width) / (total - excess), 1.0)
    low, high = np.clip(low, 0.0, 1.0), np.clip(high, 0.0, 1.0)
    low[-1] = high[-1] = 1.0
    low = np.maximum.accumulate(low[:-1])
    high = np.minimum.accumulate(high[-2::-1])[::-1]
    return np.concatenate([[0.0], low, [1.0]]), np.concatenate([[0.0], high, [1.0]])
