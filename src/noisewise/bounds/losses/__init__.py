"""What is known of losses: how large the gradient of one record's loss can be."""

from noisewise.bounds.losses import torch_losses as torch_losses
from noisewise.bounds.losses.rule import (
    LossRule,
    loss_rule_for,
    per_record,
    register_loss,
    registered_losses,
)
from noisewise.bounds.losses.torch_losses import (
    class_labels as class_labels,
    reduce_entries as reduce_entries,
    to_simplex as to_simplex,
)

__all__ = ["LossRule", "loss_rule_for", "per_record", "register_loss", "registered_losses"]
