"""Objects by which records could leave a run unseen, if a program reaches any.

A thread that runs already may be handed records by a queue or a loop of events, and hand
back tensors it wrote or numbers that it read: no mode follows it. What a program does with such an
object nobody can see, so it must not have one. The call of a compiled script, taken from it before
it could be noticed, runs operations that only a watched run sees.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterable
from multiprocessing.connection import Connection
from typing import Any

import torch

from noisewise.gradients.reach import Space
from noisewise.separation import is_users

__all__ = ["handing_over", "unseen_code"]

_MAILBOXES = (
    queue.SimpleQueue,
    queue.Queue,
    asyncio.AbstractEventLoop,
    threading.Thread,
    Connection,
)
_SCRIPTS: Any = (torch._C.ScriptFunction, torch._C.ScriptMethod, torch.jit.ScriptModule)


def handing_over(spaces: Iterable[Space]) -> str:
    """What a program has by which another thread can be handed records; empty if nothing."""
    for space in spaces:
        if _is_programs(space.owner):
            for name, value in space.items():
                owner = getattr(value, "__self__", value)
                if isinstance(owner, _MAILBOXES):
                    return f'"{name}", of type {type(owner).__name__}'
    return ""


def unseen_code(spaces: Iterable[Space]) -> str:
    """Calls of compiled code that were taken from it before; empty if there are none."""
    for space in spaces:
        for name, value in space.items():
            if not isinstance(value, _SCRIPTS) and isinstance(
                getattr(value, "__self__", None), _SCRIPTS
            ):
                return f'"{name}" is the call of a compiled script, in which none of torch is seen'
    return ""


def _is_programs(owner: Any) -> bool:
    """Whether a space is the user's own, and not an object of a library."""
    if owner is None or isinstance(owner, (type, list, dict, torch.nn.Module)):
        return True
    return is_users(type(owner).__module__) or type(owner).__module__ == "builtins"
