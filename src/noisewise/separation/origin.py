"""Where in the user's code something happened."""

from __future__ import annotations

import functools
import os
import sys
from types import FrameType
from typing import Any

import torch
from torch import nn

__all__ = [
    "calling_line",
    "defined_at",
    "is_anybodys",
    "is_ours",
    "is_torchs",
    "is_users",
    "place",
]

_TORCH = os.path.dirname(torch.__file__) + os.sep
_STANDARD = os.path.dirname(os.__file__) + os.sep
_INSTALLED = ("site-packages", "dist-packages")
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# The run that is watched stands here: what called it is the training loop, not the model.
_BOTTOM = (os.path.join("gradients", "piece.py"), ("forward", "loss", "backward"))


def is_torchs(file: str) -> bool:
    """Whether a file of code is torch's."""
    return file.startswith(_TORCH)


def is_ours(file: str) -> bool:
    """Whether a file of code is this library's."""
    return file.startswith(_OURS)


@functools.cache
def is_users(module: str) -> bool:
    """Whether a module is neither Python's, nor torch's, ours or an installed library's."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return module not in sys.builtin_module_names
    file = os.path.abspath(file)
    return not file.startswith((_TORCH, _OURS, _STANDARD)) and not any(
        part in file for part in _INSTALLED
    )


@functools.cache
def is_anybodys(file: str) -> bool:
    """Whether a file of code is the user's or another library's, not torch's, ours or Python's."""
    standard = file.startswith(_STANDARD) and not any(part in file for part in _INSTALLED)
    return not standard and not file.startswith((_TORCH, _OURS, "<"))


def defined_at(*programs: Any) -> str:
    """Where the first of these that is not torch's or ours is defined; empty if none is."""
    for program in programs:
        for code in (
            program,
            vars(type(program)).get("__call__"),
            getattr(program, "forward", None),
        ):
            found = getattr(getattr(code, "__func__", code), "__code__", None)
            if found is not None and is_anybodys(found.co_filename):
                return f"{found.co_filename}:{found.co_firstlineno}"
    return ""


def place() -> str:
    """The innermost line that is the user's or another library's, not torch's, ours or Python's.

    If there is none, the module or the autograd node.
    """
    frame: FrameType | None = sys._getframe(1)
    module = ""
    while frame is not None:
        code = frame.f_code
        name = code.co_filename
        if name == _OURS + _BOTTOM[0] and code.co_name in _BOTTOM[1]:
            break
        owner = frame.f_locals.get("self")
        if not module and isinstance(owner, nn.Module):
            module = f"{type(owner).__name__} ({name.removeprefix(_TORCH)}:{frame.f_lineno})"
        if is_anybodys(name):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    node: Any = torch._C._current_autograd_node()
    if node is not None:
        return f"backward of {node.name()}"
    return module or "the loss or the model"


def calling_line() -> str:
    """The line that called into the library: the user's, or else another library's."""
    frame: FrameType | None = sys._getframe(1)
    found = ""
    while frame is not None:
        name = frame.f_code.co_filename
        shell = name.startswith("<") and not name.startswith("<frozen")
        if is_anybodys(name) or shell:
            line = f"{name}:{frame.f_lineno}"
            if not shell and not any(part in name for part in _INSTALLED):
                return line
            found = found or line
        frame = frame.f_back
    return found or "<unknown>:0"
