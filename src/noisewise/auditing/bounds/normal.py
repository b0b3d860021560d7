"""An *estimate* of epsilon from the means of the scores, if they look normal.

If the scores are normal with equal variances, their standardised difference of
means is noncentral t, and its noncentrality gives the noise multiplier. Nothing
protects this number if the scores are not normal in the tails, where privacy is
lost; it is reported as an estimate and never decides about a claim.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr
from scipy.stats import bartlett, nct

from noisewise.auditing.bounds.bound import Bound
from noisewise.auditing.noise_model import NoiseModel
from noisewise.auditing.scores import Scores

__all__ = ["looks_normal", "normal_estimate"]


def looks_normal(scores: Scores) -> str | None:
    """None if both groups pass tests of normality and equal variance, else the reason.

    Anderson-Darling at 1 per cent for each group, Bartlett at 1 per cent for the
    variances.
    """
    for name, values in (("in", scores.inside), ("out", scores.outside)):
        if values.size < 20:
            return f"fewer than 20 scores of canaries {name}"
        if values.std() == 0.0:
            return f"all scores of canaries {name} are equal"
        # 1.035 is the 1 per cent point with both parameters estimated (Stephens, 1974).
        statistic = _anderson_darling(values) * (1 + 0.75 / values.size + 2.25 / values.size**2)
        if statistic > 1.035:
            return f"scores of canaries {name} are not normal (Anderson-Darling {statistic:.2f})"
    if float(bartlett(scores.inside, scores.outside).pvalue) < 0.01:
        return "scores in and out differ in variance"
    return None


def normal_estimate(
    scores: Scores, *, delta: float, confidence: float = 0.95, model: NoiseModel | None = None
) -> Bound:
    """Estimate of epsilon at the lower confidence limit of the noncentral t.

    Raises
    ------
    ValueError
        If the scores do not look normal.
    """
    family = NoiseModel(relation=scores.relation) if model is None else model
    reason = looks_normal(scores)
    if reason is not None:
        raise ValueError(f"no normal estimate: {reason}")
    if family.observed != "batch" and family.sample_rate < 1.0:
        raise ValueError("no normal estimate: scores of a sampled canary are a mixture, not normal")
    n, m = scores.counts
    pooled = math.sqrt(
        ((n - 1) * scores.inside.var(ddof=1) + (m - 1) * scores.outside.var(ddof=1)) / (n + m - 2)
    )
    root = math.sqrt(1 / n + 1 / m)
    t = float(scores.inside.mean() - scores.outside.mean()) / (pooled * root)
    separation = _lower_noncentrality(t, n + m - 2, 1 - confidence) * root
    noise = family.noise_of_separation(separation)
    epsilon = family.epsilon(noise, delta)
    return Bound(
        epsilon=epsilon,
        largest=math.inf,
        method="normal-estimate",
        kind="estimate",
        noise_multiplier=noise,
        rule="noncentral t of the standardised difference of means",
        assumptions=(
            *family.sentences,
            "the scores are normal with equal variances, also in the "
            "tails: an estimate, not a bound",
        ),
    )


def _lower_noncentrality(t: float, freedom: int, error: float) -> float:
    if t <= 0.0:
        return 0.0

    def excess(noncentrality: float) -> float:
        # P[T >= t] grows with the noncentrality; the limit is where it reaches the error.
        return float(_exceeds(t, freedom, noncentrality)) - error

    if excess(0.0) >= 0.0:
        return 0.0
    return float(brentq(excess, 0.0, t + 10.0, xtol=1e-9))


def _exceeds(t: float, freedom: int, noncentrality: float) -> float:
    if freedom <= 1_000 and noncentrality < 30:
        return float(nct.sf(t, freedom, noncentrality))
    # Johnson and Welch: scipy's series fails for large noncentralities.
    width = math.sqrt(1 + t * t / (2 * freedom))
    return float(ndtr((noncentrality - t * (1 - 1 / (4 * freedom))) / width))


def _anderson_darling(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    ordered = np.sort((values - values.mean()) / values.std(ddof=1))
    size = ordered.size
    weights = 2 * np.arange(1, size + 1) - 1
    terms = weights * (log_ndtr(ordered) + log_ndtr(-ordered[::-1]))
    return float(-size - terms.sum() / size)
