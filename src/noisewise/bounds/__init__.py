"""What can be proven: certified norms, a rule per layer and loss, propagation both ways."""

from noisewise.bounds import rules as rules  # registers the rules of torch's layers
from noisewise.bounds.cache import NormCache as NormCache
from noisewise.bounds.certificate import Certificate, bounds_its_input as bounds_its_input, certify
from noisewise.bounds.graph import Graph, trace
from noisewise.bounds.improvements import Improvements
from noisewise.bounds.layer import Call, Diagonal, LayerBounds, LayerRule, Shape as Shape, Signal
from noisewise.bounds.losses import (
    LossRule,
    loss_rule_for,
    per_record,
    register_loss,
    registered_losses,
)
from noisewise.bounds.propagation import Propagation, propagate, uses_of as uses_of
from noisewise.bounds.registry import refuse_type, register, registered, rule_for
from noisewise.bounds.robustness import certified_radius, robust_accuracy

__all__ = [
    "Call",
    "Certificate",
    "Diagonal",
    "Graph",
    "Improvements",
    "LayerBounds",
    "LayerRule",
    "LossRule",
    "Propagation",
    "Signal",
    "certified_radius",
    "certify",
    "loss_rule_for",
    "per_record",
    "propagate",
    "refuse_type",
    "register",
    "register_loss",
    "registered",
    "registered_losses",
    "robust_accuracy",
    "rule_for",
    "trace",
]
