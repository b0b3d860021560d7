"""Doors to where no mode of torch follows: other threads, other libraries, the generator."""

from __future__ import annotations

import _thread
import contextlib
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from multiprocessing import pool
from typing import Any

import torch
from torch.utils import dlpack

__all__ = ["noticing_threads"]

_DOORS: tuple[tuple[Any, str], ...] = (
    (threading.Thread, "start"),
    (futures.ThreadPoolExecutor, "submit"),
    (futures.ProcessPoolExecutor, "submit"),
    (queue.Queue, "put"),
    (pool.Pool, "_check_running"),  # asked by everything that hands work to a pool
    (_thread, "start_new_thread"),
    (dlpack, "to_dlpack"),  # another library may read the memory from now on
    (torch._C, "_to_dlpack"),
    (torch._tensor_str, "_str"),
    (torch, "manual_seed"),  # draws are fresh for every entry only if nobody sets them back
    (torch.random, "manual_seed"),
    (torch, "set_rng_state"),
    (torch.random, "set_rng_state"),
)
#: Recomputation draws again what it drew before, which is what makes it the same.
_TRUSTED = ("torch.utils.checkpoint", "torch.random", "noisewise.")


@contextlib.contextmanager
def noticing_threads(notice: Callable[[str], None]) -> Iterator[None]:
    """Tell when this thread uses one of the doors."""
    own = threading.get_ident()
    changed = []

    def watched(kind: Any, name: str, original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1).f_globals.get("__name__", "")
            if threading.get_ident() == own and not caller.startswith(_TRUSTED):
                notice(f"{kind.__name__}.{name}")
            return original(*args, **kwargs)

        return call

    for kind, name in _DOORS:
        original = vars(kind).get(name)
        setattr(kind, name, watched(kind, name, original))
        changed.append((kind, name, original))
    try:
        yield
    finally:
        for kind, name, original in changed:
            setattr(kind, name, original)
