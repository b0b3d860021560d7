"""Parameters that ``fully_shard`` (FSDP2) keeps in parts: telling, gathering, cutting."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["is_sharded", "local_part", "sharded_modules", "whole_tensor"]


def is_sharded(tensor: Any) -> bool:
    """Whether a tensor is a DTensor, of which this process holds a part."""
    return isinstance(tensor, Tensor) and hasattr(tensor, "full_tensor")


def whole_tensor(tensor: Tensor) -> Tensor:
    """The whole tensor; all processes must ask for it."""
    if not is_sharded(tensor):
        return tensor
    whole: Tensor = tensor.full_tensor()  # type: ignore[attr-defined]
    return whole


def local_part(whole: Tensor, like: Any) -> Tensor:
    """Cut this process's part of a whole tensor, placed as another one is."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh, placements = like.device_mesh, like.placements
    shape, offset = compute_local_shape_and_global_offset(like.shape, mesh, placements)
    window = tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))
    part = whole[window].contiguous().to(like.device)
    placed: Tensor = DTensor.from_local(
        part, mesh, placements, run_check=False, shape=like.shape, stride=like.stride()
    )
    return placed


def sharded_modules(model: nn.Module) -> list[Any]:
    """Modules on which ``fully_shard`` was called, outermost first."""
    if not torch.distributed.is_available():
        return []
    try:
        from torch.distributed.fsdp import FSDPModule
    except ImportError:  # torch before 2.6
        return []
    return [module for module in model.modules() if isinstance(module, FSDPModule)]
