"""Records as a piece takes them: cut off from what made them, marked if they are followed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from noisewise.separation import Watch

__all__ = ["constant", "followed", "tensors"]


def constant(values: Any) -> Any:
    """Records through which no gradient flows to anything outside."""
    if isinstance(values, Tensor):
        return values.detach() if values.requires_grad else values
    return pytree.tree_map(
        lambda v: v.detach() if isinstance(v, Tensor) and v.requires_grad else v, values
    )


def followed(watch: Watch, values: Any) -> Any:
    """Copies whose rows are marked with their records."""
    copies = pytree.tree_map(lambda v: v.detach().clone() if isinstance(v, Tensor) else v, values)
    for tensor in tensors(copies):
        watch.mark(tensor, torch.arange(tensor.shape[0]))
    return copies


def tensors(values: Any) -> list[Tensor]:
    """All tensors of a structure."""
    if isinstance(values, Tensor):
        return [values]
    return [t for t in pytree.tree_leaves(values) if isinstance(t, Tensor)]
