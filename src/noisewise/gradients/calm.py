"""Chance replaced by its middle, to compare runs that would draw differently."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Calm"]


class Calm(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dropout keeps everything, draws are constant, permutations change nothing."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation; if it draws, forget what it drew."""
        # Function modes follow what the user calls, not what is called here in turn.
        with torch._C.DisableTorchFunction():
            return self._calmed(func, args, kwargs or {})

    def _calmed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if name == "native_dropout":
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        if name == "bernoulli_":
            return args[0].fill_(1)
        if name in ("rrelu_with_noise", "rrelu_with_noise_"):
            args[1].copy_(torch.where(args[0] > 0, 1.0, 0.5))
            return func(args[0], args[1], 0.5, 0.5, False)
        result = func(*args, **kwargs)
        if name == "randperm":
            return result.copy_(torch.arange(len(result)))
        return pytree.tree_map(_level, result)


def _level(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.fill_(0.5) if value.is_floating_point() else value.zero_()
