"""Code of the user's own that runs within the backward pass.

An autograd function or a hook on saved tensors can exchange one tensor for another without calling
torch, so no path tells what it did: a run that has such code is watched. The library's own
functions are trusted, and so is torch's recomputation of a forward pass (checkpointing), whose
calls are on the path like those of the forward pass itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

__all__ = ["noticing_backward_code"]

_TRUSTED = ("noisewise.", "torch.utils.checkpoint")

#: Runs of several threads come and go.
_LOCK = threading.Lock()
#: Who is told, innermost last.
_TOLD: list[Callable[[Any, bool], None]] = []
_FUNCTION: Any = torch.autograd.Function
_HOOKS: Any = saved_tensors_hooks
#: What is there while nobody is told.
_ORIGINALS: dict[str, Any] = {}


def _apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
    if not cls.__module__.startswith("noisewise."):
        for notice in _TOLD[::-1]:
            notice(cls, not cls.__module__.startswith(_TRUSTED))
    return _ORIGINALS["apply"].__func__(cls, *args, **kwargs)


def _enter(self: Any) -> Any:
    own = type(self) is saved_tensors_hooks or not type(self).__module__.startswith("torch.")
    for notice in _TOLD[::-1]:
        notice(type(self), own)
    return _ORIGINALS["enter"](self)


_STAND_IN = classmethod(_apply)


class noticing_backward_code:  # noqa: N801 - a context, entered at every step: no generator
    """Tell of every autograd function and every hook on saved tensors, and whether to trust it."""

    def __init__(self, notice: Callable[[Any, bool], None]) -> None:
        self._notice = notice

    def __enter__(self) -> None:
        with _LOCK:
            if not _TOLD:
                _ORIGINALS.update(apply=vars(_FUNCTION)["apply"], enter=_HOOKS.__enter__)
                _FUNCTION.apply, _HOOKS.__enter__ = _STAND_IN, _enter
            _TOLD.append(self._notice)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        with _LOCK:
            _TOLD.remove(self._notice)
            if not _TOLD:
                _FUNCTION.apply, _HOOKS.__enter__ = _ORIGINALS["apply"], _ORIGINALS["enter"]
