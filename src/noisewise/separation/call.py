"""One ATen operation as a rule sees it, and the small algebra that rules are written in."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from noisewise.separation.shadow import PLANE, Shadow

__all__ = ["Call", "Planes", "UnfollowedError", "all_but", "everything", "over"]

#: One result's shadow; None for public.
Planes = Tensor | None


class _Hidden:
    """Stands for a float among the arguments, which later runs may change: no rule sees it."""

    def __repr__(self) -> str:
        return "<a float>"


HIDDEN = _Hidden()


class UnfollowedError(Exception):
    """A call whose dependences the rule cannot tell."""


class Call:
    """One operation: its arguments by name, its results, and the shadows of its tensors.

    Attributes
    ----------
    arguments : dict
        By the names of the operation's schema, with defaults filled in; floats are hidden.
    tensors : list of Tensor
        All tensors among the arguments, in order.
    results : list of Tensor
        Those whose shadow the rule must give; the first `overwritten` had memory before.
    """

    def __init__(
        self,
        function: Any,
        names: Sequence[str],
        defaults: dict[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        shadow: Shadow,
    ) -> None:
        self.function, self.shadow = function, shadow
        self.name: str = function.overloadpacket.__name__
        given = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
        self.arguments = {n: HIDDEN if isinstance(v, float) else v for n, v in given.items()}
        self.tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        self.results: list[Tensor] = []
        self.overwritten = 0
        self.read: set[int] = set()

    def with_shadow(self, shadow: Shadow) -> Call:
        """The same call, to be asked about another shadow."""
        other = copy.copy(self)
        other.shadow, other.read = shadow, set()
        return other

    def __getitem__(self, name: str) -> Any:
        return self.arguments.get(name)

    def found(self, tensor: Tensor | None) -> Tensor | None:
        """Planes of an operand, or None if it is public or absent."""
        self.read.add(id(tensor))
        return self.shadow.read(tensor)

    def planes(self, tensor: Tensor) -> Tensor:
        """Planes of an operand (2, *shape), zeros if it is public."""
        found = self.found(tensor)
        if found is not None:
            return found
        return torch.zeros((), dtype=PLANE).expand(2, *tensor.shape)

    def skip(self, *names: str) -> None:
        """These arguments give only a shape, or repeat what other arguments say."""
        self.read.update(id(self.arguments.get(name)) for name in names)

    def joined(self, tensors: Sequence[Any], shape: Sequence[int]) -> Tensor:
        """Maximum over operands, broadcast to a shape."""
        total: Tensor | None = None
        for tensor in tensors:
            if not isinstance(tensor, Tensor):
                continue
            found = self.found(tensor)
            if found is not None:
                found = found.reshape(2, *(1,) * (len(shape) - tensor.dim()), *tensor.shape)
                total = found if total is None else torch.maximum(total, found)
        if total is None:
            total = torch.zeros(2, *(1,) * len(shape), dtype=PLANE)
        return total.expand(2, *shape)


def over(planes: Tensor, *axes: int) -> Tensor:
    """Maximum over axes of the tensor, which keep the size 1."""
    count = planes.dim() - 1
    chosen = sorted({axis % count + 1 for axis in axes}) if count else []
    return planes.amax(chosen, keepdim=True) if chosen and planes.numel() else planes


def all_but(planes: Tensor, *axes: int) -> Tensor:
    """Maximum over all axes but these."""
    return over(planes, *[axis for axis in range(planes.dim() - 1) if axis not in axes])


def everything(call: Call) -> list[Planes]:
    """Every result depends on all operands: right for every operation, and the loosest."""
    flat = [call.planes(t).reshape(2, -1).amax(1) for t in call.tensors if t.numel()]
    for tensor in call.tensors:
        call.read.add(id(tensor))
    if not flat:
        return [None] * len(call.results)
    total = torch.stack(flat).amax(0)
    return [total.reshape(2, *(1,) * result.dim()) for result in call.results]
