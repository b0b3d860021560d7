"""The interface of a loss rule, and the list of losses that have one.

For one record with output z of known shape and norm bound, ``lipschitz`` bounds the norm
of the gradient of its loss with respect to z, whatever the target; ``losses`` computes the
loss of every record by itself. Both belong together: targets outside the range for which
the bound holds are first moved into it, by a map of that record alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar

from torch import Tensor, nn
from torch.nn import functional

from noisewise.bounds.layer import Signal
from noisewise.errors import UnsupportedModelError

__all__ = [
    "LossRule",
    "loss_rule_for",
    "per_record",
    "refuse_loss",
    "register_loss",
    "registered_losses",
]

L = TypeVar("L")
RuleType = TypeVar("RuleType", bound="type[LossRule[Any]]")


class LossRule(Generic[L]):
    """Everything about one loss type.

    Attributes
    ----------
    shift_invariant : bool
        Adding a constant to all outputs changes nothing, so gradients sum to zero and
        only the centred outputs matter.
    """

    shift_invariant: ClassVar[bool] = False

    def check(self, loss: L, output: Signal) -> None:
        """Refuse a configuration for which the rule does not hold."""

    def lipschitz(self, loss: L, output: Signal) -> float:
        """Bound on the gradient of one record's loss with respect to its output."""
        raise NotImplementedError

    def simplex(self, loss: L, output: Signal) -> float | None:
        """Return s such that all gradients lie in s * conv{e_j - e_k}, if there is one."""
        return None

    def losses(self, loss: L, output: Tensor, target: Tensor) -> Tensor:
        """One loss per record."""
        raise NotImplementedError


_RULES: dict[type, LossRule[Any]] = {}
_REFUSALS: dict[type, str] = {}

# Functions are read as the module that computes the same.
_FUNCTIONS: dict[Any, Callable[[], nn.Module]] = {
    functional.cross_entropy: nn.CrossEntropyLoss,
    functional.nll_loss: nn.NLLLoss,
    functional.l1_loss: nn.L1Loss,
    functional.smooth_l1_loss: nn.SmoothL1Loss,
    functional.huber_loss: nn.HuberLoss,
    functional.binary_cross_entropy_with_logits: nn.BCEWithLogitsLoss,
    functional.multi_margin_loss: nn.MultiMarginLoss,
    functional.mse_loss: nn.MSELoss,
}


def register_loss(*loss_types: type) -> Callable[[RuleType], RuleType]:
    """Class decorator: the rule of these losses."""

    def remember(rule_type: RuleType) -> RuleType:
        for loss_type in loss_types:
            _RULES[loss_type] = rule_type()
        return rule_type

    return remember


def refuse_loss(loss_type: type, reason: str, fix: str) -> None:
    """Record that a loss can have no bound, and why."""
    _REFUSALS[loss_type] = f"the loss {loss_type.__name__} {reason} {fix}"


def registered_losses() -> Mapping[type, LossRule[Any]]:
    """Every loss type that has a rule."""
    return MappingProxyType(_RULES)


def loss_rule_for(loss: Any) -> tuple[LossRule[Any], Any]:
    """Return the rule of a loss, and the loss as a module.

    Raises
    ------
    UnsupportedModelError
        If nothing is known about the loss. A subclass counts as unknown.
    """
    if callable(loss) and loss in _FUNCTIONS:
        loss = _FUNCTIONS[loss]()
    rule = _RULES.get(type(loss))
    if type(loss) in _REFUSALS:
        raise UnsupportedModelError(_REFUSALS[type(loss)])
    if rule is None or "forward" in vars(loss) or has_hooks(loss):
        name = getattr(loss, "__name__", type(loss).__name__)
        raise UnsupportedModelError(
            f"the loss {name} has no rule, so the gradient of one record's loss has no bound. Use "
            "one of noisewise.nn.losses, for example CrossEntropy(), or prove its constant and "
            "register it: @noisewise.bounds.register_loss above a LossRule subclass."
        )
    return rule, loss


def has_hooks(loss: Any) -> bool:
    """Whether code of others runs before or after a loss."""
    kinds = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
    return any(vars(loss).get(kind) for kind in kinds)


def per_record(loss: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function (outputs, targets) to one loss per record, whatever the loss reduces to.

    A torch loss with ``reduction="mean"`` averages over the entries of a record, never
    over records; with "sum" or "none" it sums them.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> per_record(nn.L1Loss())(torch.ones(2, 4), torch.zeros(2, 4))
    tensor([1., 1.])
    """
    rule, module = loss_rule_for(loss)
    return lambda output, target: rule.losses(module, output, target)
