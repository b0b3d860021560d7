"""Calibration of a classifier on private records, with differential privacy.

Confidence and correctness of each record form a binary calibration problem, released by
:func:`noisewise.ecdf.private_calibration` (ECE, accuracy, mean confidence, the reliability
diagram). Losses are released as private distribution functions on a public range
(:func:`noisewise.ecdf.dp_ecdf`), whose mean is the NLL of losses capped at that range, and the
Brier score. Each part has its share of epsilon; the statement composes them. MCE is not
released: a maximum over bins of noisy differences is mostly noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from noisewise import checks
from noisewise.analysis.inputs import as_labels, as_log_probabilities
from noisewise.ecdf import (
    Budget,
    PrivateCalibration,
    PrivateECDF,
    account_of,
    calibration_event,
    dp_ecdf,
    plan,
    private_calibration,
)
from noisewise.privacy import Randomness, Relation, Statement
from noisewise.privacy.randomness import resolve
from noisewise.release import LedgerOrPath, compose, one_vocabulary, together

__all__ = ["PrivateReliability", "private_reliability"]

#: Shares of epsilon: reliability, distribution of the loss, distribution of the Brier score.
RELIABILITY_SHARE, LOSS_SHARE, BRIER_SHARE = 0.5, 0.25, 0.25
#: Thresholds of the two distributions.
CURVE_BINS = 2**10


@dataclass(frozen=True, eq=False)
class PrivateReliability:
    """What may be told of a classifier's calibration on private records.

    Parameters
    ----------
    reliability : PrivateCalibration
        Correctness against confidence.
    loss : PrivateECDF
        Distribution of -log(probability of the true class), capped at a public bound.
    brier : PrivateECDF
        Distribution of sum_k (p_k - y_k)^2, between 0 and 2.
    delta : float
        The delta of the whole release.
    """

    reliability: PrivateCalibration
    loss: PrivateECDF
    brier: PrivateECDF
    delta: float

    @property
    def ece(self) -> float:
        """Private ECE; see ``reliability.ece_interval`` for its limits."""
        return self.reliability.ece

    @property
    def confidence(self) -> float:
        """Private mean confidence."""
        parts = self.reliability
        mean = float(np.maximum(parts.counts, 0.0) @ parts.prob_pred) / parts.total
        return min(max(mean, 0.0), 1.0)

    @property
    def accuracy(self) -> float:
        """Private accuracy: mean confidence plus the mean residual."""
        residual = float(self.reliability.residuals.sum()) / self.reliability.total
        return min(max(self.confidence + residual, 0.0), 1.0)

    def summary(self) -> dict[str, float]:
        """Return the private numbers by name."""
        return {
            "accuracy": self.accuracy,
            "confidence": self.confidence,
            "nll": self.loss.mean(),
            "brier": self.brier.mean(),
            "ece": self.ece,
        }

    def statement(self) -> Statement:
        """Return the promise of the whole release."""
        parts = [part.statement() for part in (self.reliability, self.loss, self.brier)]
        return compose(parts, self.delta)


@one_vocabulary
def private_reliability(
    scores: Any,
    labels: Any,
    *,
    epsilon: float,
    delta: float = 0.0,
    logits: bool = False,
    bins: int = 15,
    loss_bound: float = 10.0,
    relation: Relation | str = "add-remove",
    ledger: LedgerOrPath = None,
    seed: Randomness | int | None = None,
) -> PrivateReliability:
    """Release the calibration of a classifier on private records.

    Parameters
    ----------
    scores, labels, logits
        As of :func:`noisewise.analysis.calibration.measure`.
    epsilon, delta : float
        The whole budget.
    bins : int
        Bins of confidence, of equal width: their limits are public.
    loss_bound : float
        Public cap of a record's NLL; losses above it count as this.
    relation, ledger, seed
        See :func:`noisewise.ecdf.dp_ecdf`.

    Examples
    --------
    >>> import numpy as np
    >>> p = np.random.default_rng(0).uniform(0.5, 1.0, 20_000)
    >>> y = (np.random.default_rng(1).random(20_000) < p).astype(int)
    >>> found = private_reliability(p, y, epsilon=1.0, seed=2)
    >>> abs(found.accuracy - 0.75) < 0.03, found.statement().epsilon <= 1.0 + 1e-9
    (True, True)
    """
    epsilon = checks.budget(epsilon)
    cap = checks.positive("loss_bound", loss_bound)
    relation, source = Relation.of(relation), resolve(seed)
    logs = as_log_probabilities(scores, logits=logits)
    truth = as_labels(labels, logs.shape[1], logs.shape[0])
    probabilities = np.exp(logs)
    rows = np.arange(truth.size)
    loss = np.minimum(-logs[rows, truth], cap)
    distance = probabilities.copy()
    distance[rows, truth] -= 1.0
    brier = np.minimum((distance**2).sum(1), 2.0)
    parts = [Budget(epsilon * share, delta / 2) for share in (LOSS_SHARE, BRIER_SHARE)]
    events = [plan(CURVE_BINS, relation, part).event for part in parts]
    events.append(calibration_event(epsilon * RELIABILITY_SHARE, relation))
    with account_of(ledger, relation, Budget(epsilon, delta)) as opened:
        account = together(opened, events, source)
        # Labels as bools say which of two values is the positive one even if only one occurs.
        reliability = private_calibration(
            probabilities.argmax(1) == truth,
            np.minimum(probabilities.max(1), 1.0),
            epsilon=epsilon * RELIABILITY_SHARE,
            n_bins=bins,
            relation=relation,
            ledger=account,
            seed=source,
        )
        curves = [
            dp_ecdf(
                values,
                bounds=(0.0, top),
                epsilon=part.epsilon,
                delta=part.delta,
                bins=CURVE_BINS,
                relation=relation,
                ledger=account,
                seed=source,
            )
            for values, top, part in ((loss, cap, parts[0]), (brier, 2.0, parts[1]))
        ]
    return PrivateReliability(reliability, curves[0], curves[1], delta)
