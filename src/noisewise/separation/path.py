"""The path that a run takes through the user's code, as one number.

A proof holds for the operations that were watched. Later runs of the same shapes are bound to it
by their path: every torch function in order, with its operands (which earlier result each is),
their shapes, and all whole numbers, words and flags among the arguments. What a path leaves out
cannot change which entries meet: the values of tensors and of Python floats.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

__all__ = ["Path"]

_PLAIN = (str, type(None), torch.dtype, torch.device, torch.layout)


class Path:
    """Follows one run; `digest` is equal for runs that did the same.

    Attributes
    ----------
    wired : bool
        Whether operands are told apart. Not in the backward pass, whose wiring follows from the
        forward pass: there autograd hands out the same memory as other objects from run to run.
    """

    __slots__ = ("_count", "_numbers", "digest", "wired")

    def __init__(self) -> None:
        self.digest = 0
        self.wired = True
        self._count = 0
        self._numbers: dict[int, tuple[Any, int]] = {}

    def name(self, tensor: Tensor) -> None:
        """Give a tensor the next number."""
        self._count += 1
        self._numbers[id(tensor)] = (weakref.ref(tensor), self._count)

    def note(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        """One call of a torch function."""
        seen: list[Any] = [self.digest, function]
        self._describe(args, seen)
        if kwargs:
            for key, value in kwargs.items():
                seen.append(key)
                self._describe((value,), seen)
        self.digest = hash(tuple(seen))
        if not self.wired:
            return
        if isinstance(result, Tensor):
            self.name(result)
        elif isinstance(result, (tuple, list)):
            for part in result:
                if isinstance(part, Tensor):
                    self.name(part)

    def _describe(self, values: Any, seen: list[Any]) -> None:
        for value in values:
            if isinstance(value, Tensor):
                if self.wired:
                    found = self._numbers.get(id(value))
                    seen.append(found[1] if found is not None and found[0]() is value else -1)
                seen.append(value.shape)
                seen.append(value.requires_grad)
            elif isinstance(value, float):
                seen.append("float")
            elif isinstance(value, int):
                # -1 and -2 have the same hash, and are the commonest axes.
                seen.append(2 * value if value >= 0 else -2 * value + 1)
            elif isinstance(value, _PLAIN):
                seen.append(value)
            elif isinstance(value, (tuple, list)):
                seen.append(len(value))
                self._describe(value, seen)
            elif isinstance(value, slice):
                self._describe((value.start, value.stop, value.step), seen)
            else:
                seen.append(type(value))
