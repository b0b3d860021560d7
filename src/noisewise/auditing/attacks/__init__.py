"""How scores are obtained: gradient canaries, canaries in training data, membership."""

from noisewise.auditing.attacks.gradients import (
    PrivateSum,
    crowd_canaries,
    gradient_canaries,
    run_canaries,
    stepwise_canaries,
)
from noisewise.auditing.attacks.runs import PrivateSteps, private_steps
from noisewise.auditing.attacks.training import Train, membership, one_run_losses, two_worlds

__all__ = [
    "PrivateSteps",
    "PrivateSum",
    "Train",
    "crowd_canaries",
    "gradient_canaries",
    "membership",
    "one_run_losses",
    "private_steps",
    "run_canaries",
    "stepwise_canaries",
    "two_worlds",
]
