"""What a tensor held at some moment, to see whether it has changed since.

torch counts the writes to a tensor, but memory can be written without it taking notice (through
``.data``, numpy or another library). So its count is not believed: entries are compared, whatever
the size.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

__all__ = ["Content", "same_bits"]


class Content:
    """A tensor as it is now."""

    __slots__ = ("_copy", "_version")

    def __init__(self, tensor: Tensor) -> None:
        self._version = tensor._version
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            # On the meta device there is nothing to compare, and no value to learn.
            self._copy = None if tensor.is_meta else tensor.detach().clone()

    def is_of(self, tensor: Tensor) -> bool:
        """Whether a tensor holds the same, to the bit."""
        return tensor._version == self._version and self.holds(tensor)

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor, perhaps written or moved since, holds the same."""
        if self._copy is None:
            return tensor._version == self._version
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            return same_bits(tensor.detach(), self._copy.to(tensor.device))


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same; numbers that are none count as equal if their bits are."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if torch.equal(one, other):
        return True
    if not one.is_floating_point():
        return False
    first, second = (t.reshape(-1, 1).contiguous().view(torch.uint8) for t in (one, other))
    return torch.equal(first, second)
