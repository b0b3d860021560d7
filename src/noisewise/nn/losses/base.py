"""What the losses share: one number per record, whatever the reduction over records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from noisewise import checks
from noisewise.bounds import LossRule, Signal
from noisewise.errors import UnsupportedModelError

__all__ = ["EntryLoss", "RecordLoss", "RecordLossRule", "one_hot", "public_weights", "signs"]


class RecordLoss(nn.Module):
    """A loss that is defined for one record; `reduction` only says how records are combined."""

    def __init__(self, reduction: str = "none") -> None:
        super().__init__()
        self.reduction = checks.choice("reduction", reduction, ("none", "sum", "mean"))

    def per_record(self, output: Tensor, target: Tensor) -> Tensor:
        """One loss per record."""
        raise NotImplementedError

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """Losses of a batch: one per record, or their sum or mean."""
        losses = self.per_record(output, target)
        if self.reduction == "none":
            return losses
        return losses.sum() if self.reduction == "sum" else losses.mean()


class RecordLossRule(LossRule[Any]):
    """Common part of the rules below."""

    classes = False

    def check(self, loss: Any, output: Signal) -> None:
        """Class losses need one axis of outputs."""
        if self.classes and len(output.shape) != 1:
            raise UnsupportedModelError(
                f"the loss {type(loss).__name__} takes outputs of shape (batch, classes), got "
                f"records of shape {output.shape}. Flatten the model's output."
            )

    def losses(self, loss: RecordLoss, output: Tensor, target: Tensor) -> Tensor:
        """One loss per record."""
        return loss.per_record(output, target)


class EntryLoss(RecordLoss):
    """A function of each output, summed or averaged over the outputs of a record."""

    def __init__(self, over: str = "mean", reduction: str = "none") -> None:
        super().__init__(reduction)
        self.over = checks.choice("over", over, ("mean", "sum"))

    def extra_repr(self) -> str:
        """Return the settings, as given."""
        return f"over={self.over!r}"


def one_hot(target: Tensor, output: Tensor) -> Tensor:
    """Return True at the class of each record; a label that is no class marks none."""
    return target.reshape(-1, 1) == torch.arange(output.shape[1], device=output.device)


def signs(output: Tensor, target: Tensor) -> Tensor:
    """Return +1 at the class of each record (or for a yes), -1 elsewhere."""
    single = output.shape[1] == 1
    positive = target.reshape(-1, 1) > 0 if single else one_hot(target, output)
    return torch.where(positive, 1.0, -1.0).to(output.dtype)


def public_weights(weight: float | Sequence[float] | Tensor | None) -> Tensor | None:
    """Return constants that a user gave, as a tensor."""
    if weight is None:
        return None
    values = torch.as_tensor(weight, dtype=torch.get_default_dtype()).detach().clone().reshape(-1)
    if not bool(torch.isfinite(values).all()) or bool((values < 0).any()):
        raise ValueError(f"weights must be finite and >= 0, got {weight!r}")
    return values
