"""The hypothesis tests that the checks rest on, and the level at which they speak.

Every p-value is compared with the same fixed level ``LEVEL``. One check computes at most a
few hundred of them, so by the union bound the probability that correct code is accused by
chance is below ``LEVEL`` times that number (:func:`family_bound`), about 3e-5. Besides, an
accusation needs an effect that matters in practice; large models would otherwise be
accused for rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import stats

__all__ = [
    "LEVEL",
    "Places",
    "Vector",
    "binomial",
    "coincidences",
    "correlation",
    "family_bound",
    "goodness_of_fit",
    "kurtosis",
    "loud_places",
    "normal_shape",
    "skewness",
    "slope_test",
    "variance_ratio",
]

Vector: TypeAlias = NDArray[np.float64]
#: Which coordinates are meant.
Places: TypeAlias = NDArray[np.bool_]

LEVEL = 1e-7
# The Kolmogorov-Smirnov statistic of more numbers costs time and finds nothing further.
_MOST = 200_000


def family_bound(count: int) -> float:
    """Bound the probability that any of `count` tests accuses correct code."""
    return min(1.0, count * LEVEL)


def variance_ratio(sum_of_squares: float, expected: float, count: int) -> float:
    """Return the two-sided p-value of a chi-square test of a known variance."""
    if expected <= 0:
        return 0.0 if sum_of_squares > 0 else 1.0
    statistic = sum_of_squares / expected
    tails = stats.chi2.cdf(statistic, count), stats.chi2.sf(statistic, count)
    return float(min(1.0, 2 * min(tails)))


def normal_shape(values: Vector) -> tuple[float, float]:
    """Return p-values for the shape of a normal law: Kolmogorov-Smirnov, and tail counts.

    The scale is estimated, which makes the first conservative. The second counts values
    beyond 2.5, 3 and 3.5 deviations, where truncated noise has too few.
    """
    sample = values[:_MOST]
    deviation = float(np.sqrt(np.mean(sample**2)))
    if deviation == 0.0:
        return 0.0, 0.0
    standard = np.abs(sample / deviation)
    shape = float(stats.kstest(sample / deviation, "norm").pvalue)
    tails = [
        binomial(int((standard > bound).sum()), sample.size, float(2 * stats.norm.sf(bound)))
        for bound in (2.5, 3.0, 3.5)
    ]
    # Numbers that are cut off lie on top of each other at the limit. Gaps between the largest are
    # exponential, of mean 1 / (i z) for the i-th, so that all six lie within s with (z s)^5.
    largest = np.sort(standard)[-6:]
    if largest.size == 6 and sample.size > 1_000:
        tails.append(min(1.0, float(largest[-1] * (largest[-1] - largest[0])) ** 5))
    return shape, min(1.0, len(tails) * min(tails))


def kurtosis(values: Vector) -> tuple[float, float]:
    """Return the excess kurtosis and its p-value under a normal law (Anscombe and Glynn, 1983).

    It is the test with the most power against sums of a few bounded numbers, which look normal
    to all others: their fourth cumulant is the first that is wrong.
    """
    if values.size < 1_000:
        return 0.0, 1.0
    excess = float(stats.kurtosis(values))
    return excess, float(stats.kurtosistest(values).pvalue)


def skewness(values: Vector) -> tuple[float, float]:
    """Return the skewness and its p-value under a normal law (D'Agostino, 1970)."""
    if values.size < 1_000:
        return 0.0, 1.0
    return float(stats.skew(values)), float(stats.skewtest(values).pvalue)


def binomial(successes: int, trials: int, probability: float) -> float:
    """Return the exact two-sided p-value of a count."""
    return float(stats.binomtest(successes, trials, probability).pvalue)


def goodness_of_fit(counts: Iterable[int], trials: int, probability: float) -> float:
    """Return the p-value that numbers of successes are binomial, by their dispersion.

    A fixed batch size has no dispersion; a batch that is copied has too much.
    """
    sizes = np.asarray(list(counts), dtype=np.float64)
    variance = trials * probability * (1 - probability)
    spread = float(np.sum((sizes - trials * probability) ** 2))
    return variance_ratio(spread, variance, sizes.size)


def correlation(first: Vector, second: Vector) -> tuple[float, float]:
    """Return the correlation of two zero-mean samples and its p-value under independence.

    Places where either is zero are none of the sample: weights that are not trained.
    """
    scale = float(np.linalg.norm(first) * np.linalg.norm(second))
    count = min(loud_places(first), loud_places(second))
    if scale == 0.0 or count < 4:
        return 0.0, 1.0
    value = float(first @ second) / scale
    # Student's law with n degrees of freedom (means are known to be zero).
    statistic = abs(value) * math.sqrt(count / max(1e-12, 1 - value**2))
    return value, float(min(1.0, 2 * stats.t.sf(statistic, count - 1)))


def loud_places(values: Vector) -> int:
    """Return how many entries are not zero, up to rounding."""
    return int(np.count_nonzero(np.abs(values) > 1e-6 * float(np.max(np.abs(values), initial=0.0))))


def coincidences(values: Vector, part: float = 0.05) -> tuple[float, float]:
    """Return the share of values that nearly equal another one, and its p-value.

    Gaps between the sorted values of a continuous law are locally exponential: one in twenty is
    shorter than a twentieth of those around it, and so for every `part`. The p-value allows three
    times as many, for the neighbours that the local mean is taken over, and needs no density.
    """
    ordered = np.sort(values)
    gaps = np.diff(ordered)
    width = 31
    if gaps.size < 3 * width:
        return 0.0, 1.0
    around = np.convolve(gaps, np.ones(width) / width, mode="same")[width:-width]
    close = gaps[width:-width] < part * around
    p_value = float(stats.binom.sf(int(close.sum()) - 1, close.size, 3 * part))
    return float(close.mean()), p_value


def slope_test(horizontal: Vector, vertical: Vector) -> tuple[float, float]:
    """Return slope and p-value of the regression t-test; a flat line has p-value 1."""
    spread = float(np.ptp(vertical))
    if spread <= 1e-9 * float(np.max(np.abs(vertical)) or 1.0):
        return 0.0, 1.0
    fit = stats.linregress(horizontal, vertical)
    return float(fit.slope), float(fit.pvalue)
