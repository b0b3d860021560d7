"""What others have put around a run: parameters of their own, and modes that change operations."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch
from torch import Tensor
from torch._C import (
    _len_torch_dispatch_stack as _dispatch_modes,
    _len_torch_function_stack as _function_modes,
)
from torch.overrides import _get_current_function_mode_stack as _all_function_modes
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as _all_dispatch_modes

from noisewise.separation import RefusedError, Shadow

__all__ = ["require_known", "require_no_modes"]

_LEAF: Any = torch._C._functions.AccumulateGrad  # type: ignore[attr-defined]


def require_known(losses: Tensor, known: Container[int], shadow: Shadow) -> None:
    """Refuse a backward pass that would reach anything but known parameters, or records."""
    seen: set[Any] = set()
    waiting: list[Any] = [] if losses.grad_fn is None else [losses.grad_fn]
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is None or node in seen:
                continue
            seen.add(node)
            if type(node) is not _LEAF:
                waiting.append(node)
            elif id(node.variable) not in known and shadow.read(node.variable) is None:
                raise RefusedError(
                    "the loss depends on parameters that are not part of the model: a loss with "
                    "parameters of its own, or a layer that the model keeps in a plain list. Their "
                    "gradients are neither bounded nor noised, so nothing is summed or charged",
                    "Make them part of the model before make_private, or freeze them with "
                    "requires_grad_(False).",
                )


def require_no_modes() -> None:
    """Refuse to run below a mode: what it makes of an operation nobody could follow."""
    if not (_dispatch_modes() or _function_modes()):
        return
    around: Any = (*_all_dispatch_modes(), *_all_function_modes())  # type: ignore[no-untyped-call]
    for mode in map(type, around):
        # A context of a device, as of torch.set_default_device, says where tensors are made.
        if mode is not DeviceContext and not mode.__module__.startswith("noisewise."):
            raise RefusedError(
                f"the step runs within {mode.__name__}, a mode that sees all operations of torch "
                "and may change their results behind the proof, so nothing is summed or charged",
                "Leave it before run.step or run.model, and count or log what it counts with the "
                "plain model.",
            )
