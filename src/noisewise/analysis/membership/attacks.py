"""Membership attacks that need one model: logistic regression and the loss threshold.

The first is the attack of Bu, Wang, Dai and Long (2021, figure 5): a black-box adversary fits a
logistic regression to logits and labels. It is cross-fitted: each record is scored by a
regression that did not see it, because one that was scored on its own training data would find
"members" in pure noise. The second (Yeom et al., 2018) calls a record a member if its loss is
small, and needs no fitting at all.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from scipy.special import log_softmax, logsumexp
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from noisewise import checks
from noisewise.analysis.inputs import FloatArray, as_labels, as_logits
from noisewise.analysis.membership.result import AttackResult, as_members

__all__ = ["confidence_score", "logistic", "loss_threshold"]


def confidence_score(logits: Any, labels: Any) -> FloatArray:
    """Return log(p / (1 - p)) of the true class, without rounding p to 0 or 1.

    The score of Carlini et al. (2022), nearly normal over trainings.
    """
    z = as_logits(logits)
    truth = as_labels(labels, z.shape[1], z.shape[0])
    rows = np.arange(truth.size)
    others = z.copy()
    others[rows, truth] = -np.inf
    return np.asarray(z[rows, truth] - logsumexp(others, axis=1))


def loss_threshold(logits: Any, labels: Any, members: Any) -> AttackResult:
    """Score records by minus their cross-entropy."""
    z = as_logits(logits)
    truth = as_labels(labels, z.shape[1], z.shape[0])
    scores = log_softmax(z, axis=1)[np.arange(truth.size), truth]
    return AttackResult(scores, as_members(members, truth.size), truth, "loss threshold")


def logistic(
    logits: Any,
    labels: Any,
    members: Any,
    *,
    features: Literal["paper", "interaction"] = "paper",
    folds: int = 5,
    seed: int = 0,
) -> AttackResult:
    """Fit and cross-fit the attack of Bu, Wang, Dai and Long (2021).

    Parameters
    ----------
    logits, labels, members : array or tensor
        Of records whose membership the attacker's study knows.
    features : {"paper", "interaction"}
        Logits and label; or also what a linear model cannot form from them: loss, logit of
        the true class, its margin, and whether the prediction is right. The second is
        stronger.
    folds, seed : int
        Cross-fitting.
    """
    checks.choice("features", features, ("paper", "interaction"))
    folds = checks.integer("folds", folds, minimum=2)
    z = as_logits(logits)
    truth = as_labels(labels, z.shape[1], z.shape[0])
    inside = as_members(members, truth.size)
    fewest = int(min(inside.sum(), (~inside).sum()))
    if fewest < folds:
        raise ValueError(f"{folds} folds need as many members and non-members, got {fewest}")
    columns = [z, np.eye(z.shape[1])[truth]]
    if features == "interaction":
        rows = np.arange(truth.size)
        columns += [
            np.column_stack(
                [
                    -log_softmax(z, axis=1)[rows, truth],
                    z[rows, truth],
                    confidence_score(z, truth),
                    z.argmax(1) == truth,
                ]
            )
        ]
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    split = StratifiedKFold(folds, shuffle=True, random_state=seed)
    scores = cross_val_predict(
        model, np.hstack(columns), inside, cv=split, method="decision_function"
    )
    return AttackResult(scores, inside, truth, f"logistic regression ({features})")
