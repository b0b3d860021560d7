"""A Bayesian lower bound on epsilon from one threshold (Zanella-Béguelin et al., 2023).

The two error rates get independent Jeffreys priors, Beta(1/2, 1/2); their joint
posterior gives the probability that they lie outside the region that
(epsilon, delta)-DP allows. The bound is the largest epsilon for which that
probability reaches the level. Its status is *credible*, not frequentist: right on
average over the prior, with no promise for any one mechanism.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import betainc, betaincinv

from noisewise.auditing.bounds.bound import Bound
from noisewise.auditing.bounds.direct import perfect_threshold
from noisewise.auditing.bounds.thresholds import Threshold, chosen_counts, rule_sentence
from noisewise.auditing.scores import Scores

__all__ = ["joint_beta"]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(200)


def joint_beta(
    scores: Scores, *, delta: float, confidence: float = 0.95, threshold: Threshold | None = None
) -> Bound:
    """Largest epsilon that the posterior exceeds with probability `confidence`.

    Parameters
    ----------
    scores : Scores
        Independent scores.
    delta, confidence : float
    threshold : "split" or float, optional
        Default: the scores' midpoint if it was fixed in advance, else "split".
    """
    if threshold is None:
        threshold = "split" if scores.midpoint is None else scores.midpoint
    at, *counts = chosen_counts(scores, threshold)
    _, *ideal = chosen_counts(scores.perfect(), perfect_threshold(scores, threshold))
    return Bound(
        epsilon=_quantile(tuple(counts), delta, confidence),
        largest=_quantile(tuple(ideal), delta, confidence),
        method="joint-beta",
        kind="credible",
        threshold=at,
        rule=rule_sentence(scores, threshold),
        assumptions=("error rates have independent Jeffreys priors: credible, not frequentist",),
    )


@lru_cache(maxsize=1024)
def _quantile(counts: tuple[int, ...], delta: float, level: float) -> float:
    def surplus(epsilon: float) -> float:
        return _outside(counts, epsilon, delta) - level

    if surplus(0.0) <= 0.0:
        return 0.0
    high = 1.0
    while surplus(high) > 0.0:
        high *= 2
    return float(brentq(surplus, 0.0, high, xtol=1e-7))


def _outside(counts: Sequence[int], epsilon: float, delta: float) -> float:
    """Posterior probability that the rates contradict (epsilon, delta)-DP.

    For each false-positive rate p the false-negative rates n that contradict it are
    n < 1 - delta - e^eps p, n < (1 - delta - p) / e^eps, and, by symmetry of the test,
    those of the reversed test with (1 - p, 1 - n).
    """
    fp, out, fn, inside = counts
    level = 0.5 * (_NODES + 1.0)
    weight = 0.5 * _WEIGHTS
    p = betaincinv(fp + 0.5, out - fp + 0.5, level)
    growth = math.exp(epsilon)
    low = np.maximum(1 - delta - growth * p, (1 - delta - p) / growth)
    high = 1.0 - np.maximum(1 - delta - growth * (1 - p), (p - delta) / growth)
    shape = (fn + 0.5, inside - fn + 0.5)
    below = betainc(*shape, np.clip(low, 0.0, 1.0))
    above = 1.0 - betainc(*shape, np.clip(high, 0.0, 1.0))
    return float(np.sum(weight * np.minimum(below + above, 1.0)))
