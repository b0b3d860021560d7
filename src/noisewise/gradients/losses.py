"""One loss per record, from whatever loss the user brings."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from noisewise.bounds import loss_rule_for
from noisewise.errors import UnsupportedModelError
from noisewise.separation import RefusedError

__all__ = ["check_losses", "record_losses"]


def record_losses(loss: Any) -> Callable[[Any, Any], Tensor]:
    """Return a function (output, target) to one loss per record.

    A loss with a rule is read by it. Any other torch loss with a ``reduction`` is computed
    without one, then reduced within each record. A function must return one loss per record
    itself.
    """
    if isinstance(loss, type):
        raise TypeError(f"give the loss as an object, {loss.__name__}(), not as a class")
    try:
        rule, module = loss_rule_for(loss)
    except UnsupportedModelError:
        return _unruled(loss)
    return lambda output, target: rule.losses(module, output, target)


def _unruled(loss: Any) -> Callable[[Any, Any], Tensor]:
    if not callable(loss):
        raise TypeError(
            f"the loss must be a torch loss or a function (output, target) -> one loss per record, "
            f"got {type(loss).__name__}"
        )
    name = getattr(loss, "__name__", "")
    if name and getattr(functional, name, None) is loss:
        raise RefusedError(
            f"the function {name} reduces over the batch",
            f"Give the module instead (for example nn.CrossEntropyLoss()), or a function that "
            f"calls {name} with "
            "reduction='none' and returns one loss per record.",
        )
    if type(loss) is nn.BCELoss:
        return _unruled(_Probabilities(loss))
    reduction = getattr(loss, "reduction", None)
    if isinstance(loss, nn.Module) and reduction in ("mean", "sum", "batchmean"):
        plain = copy.copy(loss)
        plain.reduction = "none"  # type: ignore[assignment]

        def reduced(output: Any, target: Any) -> Tensor:
            values: Tensor = plain(output, target)
            flat = values.flatten(1) if values.dim() > 1 else values.unsqueeze(1)
            return flat.mean(1) if reduction == "mean" else flat.sum(1)

        return reduced
    function: Callable[[Any, Any], Tensor] = loss
    return function


class _Probabilities(nn.Module):
    """Binary cross-entropy of probabilities, in which what is none counts nothing.

    The loss itself would raise for it, and by ending tell that such a record was drawn.
    """

    def __init__(self, loss: nn.BCELoss) -> None:
        super().__init__()
        self.reduction = loss.reduction
        self._weight: Tensor | None = loss.weight

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        """One value per entry."""
        counts = (output >= 0) & (output <= 1) & (target >= 0) & (target <= 1)
        values = functional.binary_cross_entropy(
            torch.where(counts, output, 0.5),
            torch.where(counts, target.to(output.dtype), 0.5),
            self._weight,
            reduction="none",
        )
        return values * counts


def check_losses(values: Any, rows: int) -> Tensor:
    """Refuse what is not one finite-typed loss per record."""
    if not isinstance(values, Tensor) or tuple(values.shape) != (rows,):
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise RefusedError(
            f"the loss must return one value per record, shape ({rows},), but returned {got}",
            "Do not average over the batch: compute with reduction='none' and sum or average "
            "within each record (over its tokens, with your mask). If the model itself returns a "
            "mean loss (transformers with labels=), compute the loss from its logits.",
        )
    return values
