"""Epsilon through the noise multiplier, for mechanisms that add Gaussian noise.

The error rates of an attack bound the noise multiplier; the accountant gives
epsilon at it. Far stronger than :mod:`.direct`, because a moderate threshold, where
rates are known well, speaks for the whole trade-off curve. The price is an
assumption. A *refuted claim* needs no such assumption: if the claim is itself
Gaussian noise, rates below its trade-off curve contradict it, whatever the truth.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from noisewise.auditing.bounds.bound import Bound
from noisewise.auditing.bounds.direct import perfect_threshold, strongest
from noisewise.auditing.bounds.thresholds import Rates, Threshold, rates, rule_sentence
from noisewise.auditing.noise_model import NoiseModel
from noisewise.auditing.scores import Scores

__all__ = ["gaussian"]

REFUTED = (
    "no noise explains these scores at the claimed sampling rate: the model is refuted and the "
    "bound uses the error rates alone"
)


def gaussian(
    scores: Scores,
    *,
    delta: float,
    confidence: float = 0.95,
    model: NoiseModel | None = None,
    threshold: Threshold = "all",
) -> Bound:
    """Lower bound on epsilon of a mechanism that adds Gaussian noise.

    Parameters
    ----------
    scores : Scores
        Independent scores, or orthogonal canaries of one step.
    delta : float
        > 0.
    confidence : float
    model : NoiseModel, optional
        Sampling rate, number of steps and what one score was computed from. Default:
        one step on the whole data.
    threshold : "all", "split" or float

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> scores = Scores(rng.normal(1, 1, 2500), rng.normal(0, 1, 2500), midpoint=0.5)
    >>> bound = gaussian(scores, delta=1e-5)
    >>> 3.0 < bound.epsilon < 4.377                     # the truth is 4.377
    True
    """
    family = NoiseModel(relation=scores.relation) if model is None else model
    error = 1 - confidence
    found, noise, at = _from_rates(rates(scores, threshold, error), family, delta)
    ideal = rates(scores.perfect(), perfect_threshold(scores, threshold), error)
    largest, _, _ = _from_rates(ideal, family, delta)
    refuted = (REFUTED,) if noise is None else ()
    return Bound(
        epsilon=found,
        largest=max(found, largest),
        method="gaussian",
        kind="confidence",
        threshold=at,
        noise_multiplier=noise,
        rule=rule_sentence(scores, threshold),
        assumptions=(*family.sentences, *refuted),
    )


def _from_rates(
    bounds: Rates, family: NoiseModel, delta: float
) -> tuple[float, float | None, float]:
    """Epsilon, noise multiplier and threshold of the strongest pair of rates."""
    chosen = _few(bounds)
    together = math.inf if bounds.total is None else family.noise_of_total(bounds.total.rate)
    if bounds.total is not None and family.allows(
        chosen.false_positive, chosen.false_negative, together
    ):
        noise, at = together, bounds.total.threshold
    else:
        noise, index = family.tightest(chosen.false_positive, chosen.false_negative)
        at = float(chosen.thresholds[index])
    if noise is None:
        alone, at = strongest(bounds, delta)
        return alone, None, at
    return family.epsilon(noise, delta), noise, at


def _few(bounds: Rates, count: int = 300) -> Rates:
    """Some of the thresholds, evenly spread over the frontier; more would gain nothing."""
    size = bounds.thresholds.size
    if size <= count:
        return bounds
    keep = np.unique(np.linspace(0, size - 1, count).round().astype(int))
    return replace(
        bounds,
        thresholds=bounds.thresholds[keep],
        false_positive=bounds.false_positive[keep],
        false_negative=bounds.false_negative[keep],
    )
