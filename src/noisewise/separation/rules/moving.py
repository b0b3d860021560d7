"""Values are only moved: their shadows move the same way, by the same operation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from noisewise.separation.call import Call, Planes
from noisewise.separation.registry import rule
from noisewise.separation.shadow import PLANE

__all__ = ["moved"]


@rule(
    "cat stack repeat roll flip rot90 constant_pad_nd slice_backward select_backward slice_scatter",
    "select_scatter diag_embed diagonal_backward pixel_shuffle pixel_unshuffle",
    "channel_shuffle trace_backward _reshape_copy view_copy diagonal_scatter",
    "diagonal_copy expand_copy permute_copy",
)
def moved(call: Call) -> list[Planes]:
    """Run the operation on both planes; a number that is filled in is public."""
    found = []
    for index in range(2):

        def plane(value: Any, index: int = index) -> Any:
            return call.planes(value)[index] if isinstance(value, Tensor) else value

        arguments = {
            name: 0 if name == "value" else pytree.tree_map(plane, value)
            for name, value in call.arguments.items()
        }
        found.append(call.function(**arguments))
    return [torch.stack(found)]


@rule("unfold_backward")
def unfolded(call: Call) -> list[Planes]:
    """Windows may overlap: an entry collects what arrives at every window that holds it."""
    gradient, sizes = call["grad_in"], call["input_sizes"]
    entries = torch.Size(sizes).numel()
    places = torch.arange(entries).reshape(sizes)
    windows = places.unfold(call["dim"], call["size"], call["step"]).reshape(1, -1)
    planes = call.planes(gradient).reshape(2, -1)
    base = torch.zeros(2, entries, dtype=PLANE)
    base.scatter_reduce_(1, windows.expand(2, -1), planes, "amax")
    return [base.reshape(2, *sizes)]
