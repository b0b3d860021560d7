"""Where a backward pass would arrive, besides the model's own parameters."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch
from torch import Tensor

from noisewise.separation.refusal import RefusedError
from noisewise.separation.shadow import Shadow

__all__ = ["require_known"]

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
