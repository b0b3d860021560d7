"""Epsilon straight from error rates, with nothing assumed about the mechanism.

If a mechanism is (epsilon, delta)-DP, every test between neighbours has
TPR <= e^epsilon FPR + delta and TNR <= e^epsilon FNR + delta (Kairouz, Oh and
Viswanath, 2015). Clopper-Pearson bounds on the rates give a lower bound on
epsilon (Jagielski, Ullman and Oprea, 2020; Nasr et al., 2021).
"""

from __future__ import annotations

import math

from noisewise.auditing.bounds.bound import Bound
from noisewise.auditing.bounds.thresholds import Rates, Threshold, rates, rule_sentence
from noisewise.auditing.scores import Scores

__all__ = [
    "clopper_pearson",
    "epsilon_from_rates",
    "epsilon_from_total",
    "perfect_threshold",
    "strongest",
]


def epsilon_from_rates(false_positive: float, false_negative: float, delta: float) -> float:
    """Smallest epsilon >= 0 that allows a test with these error rates.

    Examples
    --------
    >>> round(epsilon_from_rates(0.1, 0.5, 0.0), 4)     # log(0.5 / 0.1)
    1.6094
    """
    best = 0.0
    for alarm, miss in ((false_positive, false_negative), (false_negative, false_positive)):
        hits = 1.0 - miss - delta
        if hits > 0.0:
            best = max(best, math.inf if alarm == 0.0 else math.log(hits / alarm))
    return best


def epsilon_from_total(total: float, delta: float) -> float:
    """Smallest epsilon >= 0 that allows error rates whose sum is so small.

    The least sum under (epsilon, delta)-DP is 2 (1 - delta) / (1 + e^epsilon), where the two
    lines that bound the region meet.

    Examples
    --------
    >>> round(epsilon_from_total(0.5, 0.0), 4)          # log(3), as for rates of 1/4 each
    1.0986
    """
    if total <= 0.0:
        return math.inf
    return max(0.0, math.log(max(2.0 * (1.0 - delta) / total - 1.0, 1e-300)))


def strongest(bounds: Rates, delta: float) -> tuple[float, float]:
    """Largest epsilon that follows from any of the rates, and its threshold."""
    found = bounds.best(lambda fp, fn: epsilon_from_rates(fp, fn, delta))
    if bounds.total is None:
        return found
    together = epsilon_from_total(bounds.total.rate, delta)
    return max(found, (together, bounds.total.threshold))


def clopper_pearson(
    scores: Scores, *, delta: float, confidence: float = 0.95, threshold: Threshold = "all"
) -> Bound:
    """Lower bound on epsilon that holds for every mechanism.

    The scores must be independent of each other: one canary a run, or noise that
    is independent by construction.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> scores = Scores(rng.laplace(1.0, 1.0, 4000), rng.laplace(0.0, 1.0, 4000))
    >>> bound = clopper_pearson(scores, delta=0.0)
    >>> 0.7 < bound.epsilon < 1.0                       # the truth is 1
    True
    """
    error = 1 - confidence
    epsilon, at = strongest(rates(scores, threshold, error), delta)
    ideal = rates(scores.perfect(), perfect_threshold(scores, threshold), error)
    largest, _ = strongest(ideal, delta)
    return Bound(
        epsilon=epsilon,
        largest=largest,
        method="clopper-pearson",
        kind="confidence",
        threshold=at,
        rule=rule_sentence(scores, threshold),
    )


def perfect_threshold(scores: Scores, threshold: Threshold) -> Threshold:
    """Threshold between the two groups of :meth:`Scores.perfect`."""
    if isinstance(threshold, str):
        return threshold
    return 0.0 if scores.midpoint is None else scores.midpoint
