"""What torch was asked to compute in one run, operation by operation, as one number.

The path notes what a program calls. Code of one's own in the backward pass can do otherwise without
calling anything, by handing one tensor on instead of another; the operations that follow tell.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from noisewise.separation.origin import place
from noisewise.separation.refusal import RefusedError
from noisewise.separation.shadow import Cell, Shadow, storage_key

__all__ = ["Trace"]

_NAMED_BY_VALUE = (
    bool,
    int,
    float,
    complex,
    str,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)


class Trace:
    """Follows one watched run; `digest` is equal for runs that computed the same.

    Memory is known by the order in which the run meets it, and memory from outside by where it is.
    """

    def __init__(self, shadow: Shadow) -> None:
        self.digest = 0
        self._shadow = shadow
        self._numbers: dict[Cell, int] = {}

    def add(self, what: Any, *values: Any) -> None:
        """One operation with its operands, or something that takes tensors."""
        seen: list[Any] = [self.digest, what]
        for value in pytree.tree_leaves(values):
            if isinstance(value, Tensor):
                seen.extend(self._place(value))
            elif isinstance(value, _NAMED_BY_VALUE):
                seen.append(repr(value))
            else:  # generators, process groups: shown with their address, which says nothing
                seen.append(type(value))
        self.digest = hash(tuple(seen))

    def enter(self, tensor: Tensor) -> None:
        """A tensor that was made of Python's numbers: what it holds is part of the run."""
        with _disable_current_modes():
            rows = tensor.detach().reshape(-1, 1).contiguous().view(torch.uint8)
            self.digest = hash((self.digest, rows.cpu().numpy().tobytes()))

    def _place(self, tensor: Tensor) -> tuple[Any, ...]:
        if tensor.is_nested:
            raise RefusedError(
                f"a nested tensor at {place()} has rows of several records in one memory, and no "
                "rule speaks for it",
                "Pad the rows to one length, and mask what was filled in.",
            )
        if tensor.layout != torch.strided:
            return (tensor.layout, tensor.shape)
        cell = self._shadow.cell(tensor)
        if cell is None:
            memory: Any = ("outside", storage_key(tensor))
        else:
            memory = self._numbers.setdefault(cell, len(self._numbers))
        return memory, tensor.shape, tensor.stride(), tensor.storage_offset()
