"""What was made private is what is trained: the same parameters, in model and optimizer.

A parameter that comes later (a new head, a group added to the optimizer, a layer that is unfrozen)
is unknown to the engine, so its gradient is neither bounded nor noised. :class:`Binding` remembers
every module and parameter by identity and is asked before every forward pass and every step,
before anything is charged. It compares pointers, which takes microseconds.
"""

from __future__ import annotations

from operator import is_
from typing import Any

import torch
from torch import nn

from noisewise.training.errors import StepError
from noisewise.training.records import leaves

__all__ = ["Binding", "require_constant"]

_REMEDY = (
    "Its gradient would be neither bounded nor noised, so no step is taken and nothing is charged. "
    "Change model and optimizer first, and call make_private again (with the same ledger)."
)
_OUTSIDE = (
    "Gradients outside the model are neither bounded nor noised, so no step is taken and nothing "
    "is charged. Make such parameters part of the model before make_private"
)


class Binding:
    """The parameters of a run as they were when it began.

    Parameters
    ----------
    model : nn.Module
    optimizer : torch.optim.Optimizer
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._modules = [
            (path, module, tuple(module._modules.values()), tuple(module._parameters.values()))
            for path, module in model.named_modules()
        ]
        self._parameters = [
            (name, p, p.requires_grad, p.shape, p.dtype) for name, p in model.named_parameters()
        ]
        self._optimizer = optimizer
        self._groups = [tuple(group["params"]) for group in optimizer.param_groups]

    def require(self, optimizer: torch.optim.Optimizer) -> None:
        """Raise unless everything is still as it was."""
        self.require_optimizer(optimizer)
        for path, module, children, parameters in self._modules:
            now = module._modules
            if (now or children) and not _same(now.values(), children):
                raise StepError(
                    f"a module inside {path or 'the model'!r} was replaced, added or removed after "
                    f"make_private. {_REMEDY}"
                )
            own = module._parameters
            if (own or parameters) and not _same(own.values(), parameters):
                raise StepError(
                    f"a parameter of {path or 'the model'!r} was replaced, added or removed after "
                    f"make_private. {_REMEDY}"
                )
        for name, parameter, learns, shape, kind in self._parameters:
            if parameter.requires_grad is not learns:
                raise StepError(
                    f"the parameter {name!r} was {'frozen' if learns else 'unfrozen'} after "
                    f"make_private. {_REMEDY}"
                )
            if parameter.shape != shape or parameter.dtype is not kind:
                raise StepError(
                    f"the parameter {name!r} was given another shape or type after make_private. "
                    f"{_REMEDY}"
                )

    def require_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Raise unless this is the optimizer of the run, over the same parameters."""
        if optimizer is not self._optimizer:
            raise StepError(f"run.optimizer was replaced after make_private. {_REMEDY}")
        groups = optimizer.param_groups
        if len(groups) != len(self._groups) or not all(
            _same(group["params"], held) for group, held in zip(groups, self._groups, strict=True)
        ):
            raise StepError(
                "parameters were added to the optimizer, removed from it or replaced in it after "
                f"make_private. {_REMEDY}"
            )


def require_constant(x: Any) -> None:
    """Refuse inputs through which a gradient would flow to something outside the model."""
    for tensor in leaves(x):
        if not tensor.requires_grad:
            continue
        raise StepError(
            "the inputs or targets require a gradient: they were computed by parameters outside "
            f"the model. {_OUTSIDE}, or detach the inputs."
        )


def _same(now: Any, before: tuple[Any, ...]) -> bool:
    return len(now) == len(before) and all(map(is_, now, before))
