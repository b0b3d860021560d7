"""How a batch becomes one bounded sum: the tape, and one small estimator per idea.

For every linear operation a record's gradient is a contraction of two factors, its layer
input and the cotangent arriving at its output. The tape sees both, asks the estimator for
one factor per record, and contracts once.
"""

from noisewise.gradients.combinations import PerLayer, Schedule
from noisewise.gradients.engine import GradientEngine, bounded_sum
from noisewise.gradients.estimators import (
    BatchMaxScaled,
    Clipped,
    Estimator,
    Factored,
    InputScaled,
    Propagated,
)
from noisewise.gradients.grouping import GroupSpec
from noisewise.gradients.interception import FallbackWarning
from noisewise.gradients.proving import prove_apart
from noisewise.gradients.registry import GRADIENT_RULES, rule_named
from noisewise.gradients.runner import WatchedWarning
from noisewise.gradients.sums import SLACK, BoundedSum, Group

__all__ = [
    "GRADIENT_RULES",
    "SLACK",
    "BatchMaxScaled",
    "BoundedSum",
    "Clipped",
    "Estimator",
    "Factored",
    "FallbackWarning",
    "GradientEngine",
    "Group",
    "GroupSpec",
    "InputScaled",
    "PerLayer",
    "Propagated",
    "Schedule",
    "WatchedWarning",
    "bounded_sum",
    "prove_apart",
    "rule_named",
]
