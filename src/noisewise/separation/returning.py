"""Code of the user's own that runs within the backward pass.

An autograd function or a hook on saved tensors can exchange one tensor for another without calling
torch, so no path tells what it did: a run that has such code is watched. The library's own
functions are trusted, and so is torch's recomputation of a forward pass (checkpointing), whose
calls are on the path like those of the forward pass itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

__all__ = ["noticing_backward_code"]

_TRUSTED = ("noisewise.", "torch.utils.checkpoint")


@contextlib.contextmanager
def noticing_backward_code(notice: Callable[[Any, bool], None]) -> Iterator[None]:
    """Tell of every autograd function and every hook on saved tensors, and whether to trust it."""
    kind: Any = torch.autograd.Function
    applied, entered = vars(kind)["apply"], saved_tensors_hooks.__enter__

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if not cls.__module__.startswith("noisewise."):
            notice(cls, not cls.__module__.startswith(_TRUSTED))
        return applied.__func__(cls, *args, **kwargs)

    def enter(self: Any) -> Any:
        own = type(self) is saved_tensors_hooks or not type(self).__module__.startswith("torch.")
        notice(type(self), own)
        return entered(self)

    kind.apply = classmethod(apply)
    saved_tensors_hooks.__enter__ = enter  # type: ignore[method-assign]
    try:
        yield
    finally:
        kind.apply = applied
        saved_tensors_hooks.__enter__ = entered  # type: ignore[method-assign]
