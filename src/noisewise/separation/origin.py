"""Where in the user's code something happened."""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Any

import torch
from torch import nn

__all__ = ["place"]

_TORCH = os.path.dirname(torch.__file__) + os.sep
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# The run that is watched stands here: what called it is the training loop, not the model.
_BOTTOM = (os.path.join("gradients", "piece.py"), ("forward", "loss", "backward"))


def place() -> str:
    """The innermost line that is neither torch's nor ours; else the module or the autograd node."""
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
        if not name.startswith((_TORCH, _OURS, "<")):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    node: Any = torch._C._current_autograd_node()
    if node is not None:
        return f"backward of {node.name()}"
    return module or "the loss or the model"
