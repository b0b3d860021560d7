"""Which thresholds a bound may look at, and what the error rates are at most there.

Three rules, all valid although the best threshold is chosen afterwards: one
threshold fixed before the scores were seen; all thresholds at once, by
simultaneous bands; a threshold chosen on one half of the scores and used on the
other half.

At a threshold in the middle, fixed in advance, the *sum* of both rates is bounded
as one number: with fair coins a guess is wrong with half that probability, so the
errors of all canaries together are one binomial count. Bounding the rates one by
one costs twice the quantile and wastes a third of the sharpness at small epsilon.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from noisewise import checks
from noisewise.auditing.bounds.rates import band, upper_rate
from noisewise.auditing.scores import Scores

__all__ = ["Rates", "Threshold", "Total", "chosen_counts", "rates", "rule_sentence"]

Array = NDArray[np.float64]
Threshold = str | float

RULES = ("all", "split")
_SPLIT_SEED = 0


@dataclass(frozen=True)
class Total:
    """Upper bound of the sum of both error rates at one threshold."""

    threshold: float
    rate: float


@dataclass(frozen=True)
class Rates:
    """Upper bounds of both error rates at some thresholds, all holding together."""

    thresholds: Array
    false_positive: Array
    false_negative: Array
    total: Total | None = None

    def best(self, value: Callable[[float, float], float]) -> tuple[float, float]:
        """Largest `value(false_positive, false_negative)`, and its threshold."""
        values = [
            value(float(p), float(n))
            for p, n in zip(self.false_positive, self.false_negative, strict=True)
        ]
        index = int(np.argmax(values))
        return values[index], float(self.thresholds[index])

    def frontier(self) -> Rates:
        """Drop the thresholds at which another one is at least as good in both rates."""
        order = np.lexsort((self.false_negative, self.false_positive))
        lowest = np.minimum.accumulate(self.false_negative[order])
        keep = order[np.append(True, lowest[1:] < lowest[:-1])]
        return replace(
            self,
            thresholds=self.thresholds[keep],
            false_positive=self.false_positive[keep],
            false_negative=self.false_negative[keep],
        )


def rates(scores: Scores, threshold: Threshold, error: float) -> Rates:
    """Bound both error rates of "score >= threshold means in".

    Parameters
    ----------
    scores : Scores
    threshold : "all", "split" or float
        "all": every threshold; if the scores have a midpoint fixed in advance, half
        of `error` is spent on it alone. "split": the one that is best on one random
        half of the scores, judged on the other. A number: that one, which must not come
        from the scores.
    error : float
        Probability with which any of the bounds may fail.
    """
    if isinstance(threshold, str):
        checks.choice("threshold", threshold, RULES)
    if threshold == "split":
        count = chosen_counts(scores, "split")
        return _single(*count, error)
    if threshold != "all":
        return _single(*_counts(scores, checks.finite("threshold", threshold)), error)
    if scores.midpoint is None:
        return _everywhere(scores, error).frontier()
    every = _everywhere(scores, error / 2)
    if _can_add_up(scores):
        return replace(every.frontier(), total=_total(scores, scores.midpoint, error / 2))
    one = _single(*_counts(scores, scores.midpoint), error / 2)
    return Rates(
        np.append(one.thresholds, every.thresholds),
        np.append(one.false_positive, every.false_positive),
        np.append(one.false_negative, every.false_negative),
    ).frontier()


def rule_sentence(scores: Scores, threshold: Threshold) -> str:
    """Say how the threshold is chosen, for the report."""
    if threshold == "split":
        return "threshold chosen on a random half of the scores, rates bounded on the rest"
    if threshold != "all":
        return f"threshold {float(threshold):g} fixed before the scores were seen"
    if scores.midpoint is None:
        return "all thresholds at once, by simultaneous Clopper-Pearson bands"
    how = ", where the two error rates are bounded by their sum," if _can_add_up(scores) else ""
    return (
        f"threshold {scores.midpoint:g} fixed in advance{how} and, at half of the error "
        "probability each, all thresholds at once"
    )


Counts = tuple[float, int, int, int, int]  # threshold, false positives, out, false negatives, in


def chosen_counts(scores: Scores, threshold: Threshold) -> Counts:
    """Errors at one threshold that does not depend on the scores that are counted."""
    if threshold != "split":
        if isinstance(threshold, str):
            raise ValueError(f"threshold must be 'split' or a number here, got {threshold!r}")
        return _counts(scores, checks.finite("threshold", threshold))
    inside, outside = scores.inside, scores.outside
    if min(inside.size, outside.size) < 2:
        raise ValueError("splitting needs at least two scores in and two out")
    # Scores may come sorted, and halves of sorted scores are not independent.
    order = np.random.default_rng(_SPLIT_SEED)
    inside, outside = order.permutation(inside), order.permutation(outside)
    best = _best_threshold(np.sort(inside[::2]), np.sort(outside[::2]))
    return _counts(Scores(inside[1::2], outside[1::2]), best)


def _counts(scores: Scores, threshold: float) -> Counts:
    false_positives = int((scores.outside >= threshold).sum())
    false_negatives = int((scores.inside < threshold).sum())
    return threshold, false_positives, scores.outside.size, false_negatives, scores.inside.size


def _single(threshold: float, fp: int, out: int, fn: int, inside: int, error: float) -> Rates:
    return Rates(
        np.array([threshold]),
        np.array([upper_rate(fp, out, error / 2)]),
        np.array([upper_rate(fn, inside, error / 2)]),
    )


def _can_add_up(scores: Scores) -> bool:
    """Whether errors of both kinds are one binomial count, and both kinds matter alike.

    With coins every canary errs by chance (a + b) / 2. With as many canaries in as out their
    mean chance of erring is the same number. A sampled canary stands out at a threshold where
    misses are frequent and alarms rare; their plain sum says little there.
    """
    equal = scores.inside.size == scores.outside.size
    return (scores.coins or equal) and scores.observed != "step"


def _total(scores: Scores, threshold: float, error: float) -> Total:
    _, alarms, out, misses, inside = _counts(scores, threshold)
    wrong, count = alarms + misses, out + inside
    rate = upper_rate(wrong, count, error)
    # Hoeffding (1956): below their mean, counts of trials with unequal chances are less spread
    # than binomial ones. This keeps the count below the mean.
    rate = min(1.0, max(rate, (wrong + 1) / count))
    return Total(threshold, 2.0 * rate)


def _everywhere(scores: Scores, error: float) -> Rates:
    inside, outside = np.sort(scores.inside), np.sort(scores.outside)
    thresholds = np.unique(np.concatenate([inside, outside]))
    below = np.searchsorted(inside, thresholds, side="left")
    above = outside.size - np.searchsorted(outside, thresholds, side="left")
    return Rates(
        thresholds, band(outside.size, error / 2)[above], band(inside.size, error / 2)[below]
    )


def _best_threshold(inside: Array, outside: Array) -> float:
    """Threshold with the largest lower bound of log(TPR / FPR), a good general choice."""
    thresholds = np.unique(np.concatenate([inside, outside]))
    below = np.searchsorted(inside, thresholds, side="left")
    above = outside.size - np.searchsorted(outside, thresholds, side="left")
    # Two pseudo-errors stand for the cost of confidence; only power depends on them.
    miss = np.minimum((below + 2.0) / (inside.size + 2.0), 1.0)
    alarm = np.minimum((above + 2.0) / (outside.size + 2.0), 1.0)
    with np.errstate(divide="ignore"):
        value = np.maximum(np.log1p(-miss) - np.log(alarm), np.log1p(-alarm) - np.log(miss))
    return float(thresholds[int(np.argmax(value))])
