"""Code of the user's own that torch runs by itself: in the backward pass, or as a script.

An autograd function or a hook on saved tensors can exchange one tensor for another without calling
torch, so no path tells what it did: a run that has such code is watched. So is one that calls a
script, which is compiled and calls torch's operations unseen. The library's own functions are
trusted, and so is torch's recomputation of a forward pass (checkpointing), whose
calls are on the path like those of the forward pass itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import checkpoint

from noisewise.separation.origin import is_ours

__all__ = ["noticing_backward_code"]

#: Runs of several threads come and go.
_LOCK = threading.Lock()
#: Who is told, innermost last.
_TOLD: list[Callable[[Any, str], None]] = []
#: What torch makes of a function whenever it is applied, by whatever name.
_NODE: Any = BackwardCFunction
_KINDS_OF_SCRIPTS: Any = (torch._C.ScriptFunction, torch._C.ScriptMethod)
#: The library's own functions, forward and backward, as far as they were met.
_OWN: dict[tuple[int, int], tuple[Any, Any]] = {}
_RETURNS = "runs code of its own in the backward pass"
_HOOKS: Any = saved_tensors_hooks
_ENTER = saved_tensors_hooks.__enter__


def _tell(kind: Any, unseen: str) -> None:
    for notice in _TOLD[::-1]:
        notice(kind, unseen)


def _begin(self: Any) -> None:
    if not _TOLD:
        return
    kind = self._forward_cls
    pair = kind.forward, kind.backward
    known = _ids(pair)
    if known in _OWN:
        return
    files = {file for function in pair for file in _files_of(function)}
    if all(map(is_ours, files)):
        _OWN[known] = pair
    else:
        _tell(kind, "" if files == {checkpoint.__file__} else _RETURNS)


def _ids(pair: tuple[Any, Any]) -> tuple[int, int]:
    return id(pair[0]), id(pair[1])


def _files_of(function: Any) -> Iterator[str]:
    """Where a function was written, and what it says that it wraps, whatever its module says."""
    seen: set[int] = set()
    while function is not None and id(function) not in seen:
        seen.add(id(function))
        code = getattr(function, "__code__", None)
        yield "" if code is None else code.co_filename
        function = getattr(function, "__wrapped__", None)


def _enter(self: Any) -> Any:
    own = type(self) is saved_tensors_hooks or not type(self).__module__.startswith("torch.")
    _tell(type(self), _RETURNS if own else "")
    return _ENTER(self)


def _run_script(kind: Any) -> Callable[..., Any]:
    original = kind.__call__

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        _tell(kind, "is compiled code, in which calls of torch cannot be seen")
        return original(self, *args, **kwargs)

    return run


#: What stands in the place of what, from the first run on. It is never taken back: each change of a
#: type makes Python forget what it knew of all types below it, which took a fifth of a small step.
#: Where nobody is told it does nothing. Every run looks whether all of it is still there.
_STAND_INS: list[tuple[Any, str, Any]] = [
    (_NODE, "__init__", _begin),
    (_HOOKS, "__enter__", _enter),
    *((kind, "__call__", _run_script(kind)) for kind in _KINDS_OF_SCRIPTS),
]


class noticing_backward_code:  # noqa: N801 - a context, entered at every step: no generator
    """Tell of autograd functions, hooks on saved tensors and scripts, and what they do unseen."""

    def __init__(self, notice: Callable[[Any, str], None]) -> None:
        self._notice = notice

    def __enter__(self) -> None:
        with _LOCK:
            for kind, name, stand_in in _STAND_INS:
                if kind.__dict__.get(name) is not stand_in:
                    setattr(kind, name, stand_in)
            _TOLD.append(self._notice)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        with _LOCK:
            _TOLD.remove(self._notice)
