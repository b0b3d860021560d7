"""Lower bounds on epsilon: what an attack proves a mechanism to leak.

:func:`audit` attacks a mechanism, a training function or takes scores, and holds
the bound against a claim. An audit can refute a claim, never confirm one.
"""

from noisewise.auditing.attacks import (
    PrivateSteps,
    PrivateSum,
    Train,
    gradient_canaries,
    membership,
    one_run_losses,
    private_steps,
    run_canaries,
    stepwise_canaries,
    two_worlds,
)
from noisewise.auditing.auditor import ATTACKS, METHODS, audit
from noisewise.auditing.bounds import Bound
from noisewise.auditing.noise_model import NoiseModel
from noisewise.auditing.plotting import audit_pictures as audit_pictures
from noisewise.auditing.result import AuditResult, ViolatedClaimError
from noisewise.auditing.scores import Scores
from noisewise.auditing.screening import (
    Screening,
    mutant_columns,
    records_like as records_like,
    screen,
)

__all__ = [
    "ATTACKS",
    "METHODS",
    "AuditResult",
    "Bound",
    "NoiseModel",
    "PrivateSteps",
    "PrivateSum",
    "Scores",
    "Screening",
    "Train",
    "ViolatedClaimError",
    "audit",
    "gradient_canaries",
    "membership",
    "mutant_columns",
    "one_run_losses",
    "private_steps",
    "run_canaries",
    "screen",
    "stepwise_canaries",
    "two_worlds",
]
