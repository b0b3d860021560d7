"""How a batch becomes one bounded sum: the tape, and one small estimator per idea.

For every linear operation a record's gradient is a contraction of two factors, its layer
input and the cotangent arriving at its output. The tape sees both, asks the estimator for
one factor per record, and contracts once.
"""

from noisewise.gradients.batches import keeps_rows as keeps_rows, same_bits as same_bits
from noisewise.gradients.chance import Chance as Chance
from noisewise.gradients.combinations import (
    PerLayer,
    Schedule,
    propagating as propagating,
    rule_of as rule_of,
)
from noisewise.gradients.compiled import uncompiled as uncompiled
from noisewise.gradients.engine import GradientEngine, bounded_sum
from noisewise.gradients.estimators import (
    BatchMaxScaled,
    Clipped,
    Estimator,
    Factored,
    InputScaled,
    Propagated,
)
from noisewise.gradients.grouping import GroupSpec, layer_of as layer_of
from noisewise.gradients.interception import FallbackWarning, Following as Following
from noisewise.gradients.losses import record_losses as record_losses
from noisewise.gradients.open_batch import selection_of as selection_of, withheld as withheld
from noisewise.gradients.proving import prove_apart
from noisewise.gradients.registry import GRADIENT_RULES, rule_named, rule_words as rule_words
from noisewise.gradients.rules import clip_scale as clip_scale
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
