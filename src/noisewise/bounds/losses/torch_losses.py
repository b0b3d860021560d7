"""Rules of torch's own losses, read per record whatever their reduction."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from noisewise.arithmetic import loose, product, root, total
from noisewise.bounds.layer import Signal
from noisewise.bounds.losses import constants
from noisewise.bounds.losses.rule import LossRule, refuse_loss, register_loss
from noisewise.bounds.rules.vectors import largest_entry, wide
from noisewise.errors import UnsupportedModelError

__all__ = ["class_labels", "reduce_entries", "to_simplex"]


def reduce_entries(values: Tensor, reduction: str) -> Tensor:
    """One number per record: the mean or the sum of its entries."""
    flat = values.flatten(1) if values.dim() > 1 else values[:, None]
    return flat.mean(dim=1) if reduction == "mean" else flat.sum(dim=1)


def to_simplex(target: Tensor) -> Tensor:
    """Move soft targets where their weights are >= 0 and sum to at most one (axis 1)."""
    positive = target.clamp_min(0.0)
    return positive / positive.sum(dim=1, keepdim=True).clamp_min(1.0)


def class_labels(target: Tensor, classes: int, ignored: int = -100) -> Tensor:
    """Class labels of which those that are no class are ignored, entry by entry.

    A loss that raised for them would tell, by ending, that a record with such a label was drawn.
    """
    inside = (target >= 0) & (target < classes)
    return torch.where(inside, target.long(), ignored)


def _refuse(loss: Any, reason: str, fix: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"the loss {type(loss).__name__} {reason} {fix}")


def _positions(output: Signal) -> int:
    return math.prod(output.shape[1:])


def _over_positions(constant: float, output: Signal, reduction: str) -> float:
    """T positions of one record, each with its own loss, summed or averaged."""
    positions = _positions(output)
    if reduction == "mean":
        return loose(constant / math.sqrt(positions))
    return product(root(positions), constant)


def _check_classes(loss: Any, output: Signal) -> None:
    if not output.shape:
        raise _refuse(loss, "needs one output per class.", "Let the model return (batch, classes).")


@register_loss(nn.CrossEntropyLoss)
class CrossEntropyRule(LossRule[nn.CrossEntropyLoss]):
    """p - e_y times the class weight; label smoothing and soft targets are means of that."""

    shift_invariant = True

    def check(self, loss: nn.CrossEntropyLoss, output: Signal) -> None:
        _check_classes(loss, output)

    def lipschitz(self, loss: nn.CrossEntropyLoss, output: Signal) -> float:
        constant = constants.cross_entropy(output.shape[0], output.norm)
        return _over_positions(product(self._weight(loss), constant), output, loss.reduction)

    def simplex(self, loss: nn.CrossEntropyLoss, output: Signal) -> float | None:
        if len(output.shape) != 1:
            return None
        scale = constants.cross_entropy_simplex(output.shape[0], output.norm)
        return product(self._weight(loss), scale)

    @staticmethod
    def _weight(loss: nn.CrossEntropyLoss) -> float:
        # Smoothing may meet two class weights at once, (1 - s) w_y + s mean(w) <= max w.
        return largest_entry(loss.weight)

    def losses(self, loss: nn.CrossEntropyLoss, output: Tensor, target: Tensor) -> Tensor:
        if target.is_floating_point():
            target = to_simplex(target)
        else:
            target = class_labels(target, output.shape[1], loss.ignore_index)
        values = functional.cross_entropy(
            output,
            target,
            weight=loss.weight,
            ignore_index=loss.ignore_index,
            label_smoothing=loss.label_smoothing,
            reduction="none",
        )
        return reduce_entries(values, loss.reduction)


@register_loss(nn.NLLLoss)
class NegativeLogLikelihoodRule(LossRule[nn.NLLLoss]):
    """-w_y z_y on log probabilities: gradient w_y."""

    def check(self, loss: nn.NLLLoss, output: Signal) -> None:
        _check_classes(loss, output)

    def lipschitz(self, loss: nn.NLLLoss, output: Signal) -> float:
        return _over_positions(largest_entry(loss.weight), output, loss.reduction)

    def losses(self, loss: nn.NLLLoss, output: Tensor, target: Tensor) -> Tensor:
        target = class_labels(target, output.shape[1], loss.ignore_index)
        values = functional.nll_loss(
            output, target, loss.weight, ignore_index=loss.ignore_index, reduction="none"
        )
        return reduce_entries(values, loss.reduction)


@register_loss(nn.MultiMarginLoss)
class MultiMarginRule(LossRule[nn.MultiMarginLoss]):
    """sum_{i != y} max(0, m - z_y + z_i)/c: gradient at most sqrt((c - 1)/c).

    With p = 2 each term has slope 2 max(0, m - z_y + z_i) <= 2 (m + sqrt(2) B).
    """

    shift_invariant = True

    def check(self, loss: nn.MultiMarginLoss, output: Signal) -> None:
        if len(output.shape) != 1:
            raise _refuse(loss, "takes (batch, classes).", "Flatten the output.")

    def lipschitz(self, loss: nn.MultiMarginLoss, output: Signal) -> float:
        classes = output.shape[0]
        steep = 1.0
        if loss.p == 2:
            reach = total(abs(loss.margin), product(root(2.0), output.norm))
            steep = product(2.0, reach)
        spread = loose(math.sqrt((classes - 1) / classes))
        return product(steep, largest_entry(loss.weight), spread)

    def losses(self, loss: nn.MultiMarginLoss, output: Tensor, target: Tensor) -> Tensor:
        known = class_labels(target, output.shape[1], -1)
        values = functional.multi_margin_loss(
            output,
            known.clamp_min(0),
            p=loss.p,
            margin=loss.margin,
            weight=loss.weight,
            reduction="none",
        )
        return values * (known >= 0)


class _Entrywise(LossRule[Any]):
    """A sum or mean over entries of a function of each output."""

    def slope(self, loss: Any) -> float:
        raise NotImplementedError

    def values(self, loss: Any, output: Tensor, target: Tensor) -> Tensor:
        raise NotImplementedError

    def lipschitz(self, loss: Any, output: Signal) -> float:
        return constants.entrywise(self.slope(loss), output.size, loss.reduction)

    def losses(self, loss: Any, output: Tensor, target: Tensor) -> Tensor:
        return reduce_entries(self.values(loss, output, target), loss.reduction)


@register_loss(nn.L1Loss)
class AbsoluteRule(_Entrywise):
    """Slope 1."""

    def slope(self, loss: nn.L1Loss) -> float:
        return 1.0

    def values(self, loss: nn.L1Loss, output: Tensor, target: Tensor) -> Tensor:
        return functional.l1_loss(output, target, reduction="none")


@register_loss(nn.SmoothL1Loss)
class SmoothAbsoluteRule(_Entrywise):
    """Slope 1, whatever beta."""

    def slope(self, loss: nn.SmoothL1Loss) -> float:
        return 1.0

    def values(self, loss: nn.SmoothL1Loss, output: Tensor, target: Tensor) -> Tensor:
        return functional.smooth_l1_loss(output, target, beta=loss.beta, reduction="none")


@register_loss(nn.HuberLoss)
class HuberRule(_Entrywise):
    """Slope delta."""

    def slope(self, loss: nn.HuberLoss) -> float:
        return float(loss.delta)

    def values(self, loss: nn.HuberLoss, output: Tensor, target: Tensor) -> Tensor:
        return functional.huber_loss(output, target, delta=loss.delta, reduction="none")


@register_loss(nn.BCEWithLogitsLoss)
class BinaryCrossEntropyRule(LossRule[nn.BCEWithLogitsLoss]):
    """Slope max(1, pos_weight) times the entry's weight, for targets in [0, 1]."""

    def check(self, loss: nn.BCEWithLogitsLoss, output: Signal) -> None:
        for name in ("weight", "pos_weight"):
            given = getattr(loss, name)
            if given is None:
                continue
            shape = tuple(given.shape)
            if given.numel() != 1 and shape != output.shape[-len(shape) :]:
                raise _refuse(
                    loss,
                    f"has {name} of shape {shape} for outputs of shape {output.shape}, which may "
                    "weight records of a batch.",
                    "Give one weight per output.",
                )
            if bool((given < 0).any()):
                raise _refuse(loss, f"has a negative {name}.", "Use weights >= 0.")

    def lipschitz(self, loss: nn.BCEWithLogitsLoss, output: Signal) -> float:
        slopes = torch.ones(output.shape or (1,), dtype=torch.float64)
        if loss.pos_weight is not None:
            slopes = torch.maximum(slopes, wide(loss.pos_weight).cpu())
        if loss.weight is not None:
            slopes = slopes * wide(loss.weight).cpu()
        return constants.entrywise(slopes.flatten().tolist(), output.size, loss.reduction)

    def losses(self, loss: nn.BCEWithLogitsLoss, output: Tensor, target: Tensor) -> Tensor:
        values = functional.binary_cross_entropy_with_logits(
            output,
            target.to(output.dtype).clamp(0.0, 1.0),
            weight=loss.weight,
            pos_weight=loss.pos_weight,
            reduction="none",
        )
        return reduce_entries(values, loss.reduction)


refuse_loss(
    nn.MSELoss,
    "has a gradient that grows with the error, without limit.",
    "Use noisewise.nn.losses.MeanSquared(low, high), which clamps targets to a public range, or "
    "Huber.",
)
refuse_loss(
    nn.BCELoss,
    "has a gradient 1/p that grows without limit as a probability approaches 0.",
    "Use BCEWithLogitsLoss on the logits.",
)
