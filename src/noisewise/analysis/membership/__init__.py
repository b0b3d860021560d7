"""Membership inference: whether an attacker can tell who was in the training data."""

from noisewise.analysis.membership.attacks import confidence_score, logistic, loss_threshold
from noisewise.analysis.membership.likelihood_ratio import Shadows, train_shadows
from noisewise.analysis.membership.result import AttackResult

__all__ = [
    "AttackResult",
    "Shadows",
    "confidence_score",
    "logistic",
    "loss_threshold",
    "train_shadows",
]
