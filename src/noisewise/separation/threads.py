"""Doors to where no mode of torch follows: other threads, other libraries, the generator."""

from __future__ import annotations

import _thread
import queue
import sys
import threading
import time
from collections.abc import Callable
from concurrent import futures
from multiprocessing import pool
from typing import Any

import torch
from torch.utils import dlpack

from noisewise.separation.draws import Draws

__all__ = ["noticing_threads"]

#: What starts a thread in the end, by version of Python.
_JOINABLE = [n for n in ("_start_new_thread", "_start_joinable_thread") if hasattr(threading, n)]
_STARTS = {"start_new_thread", *_JOINABLE}
#: Seconds in which threads begin that are being started when starts begin to be noted, once.
_SETTLED = 0.01

_DOORS: tuple[tuple[Any, str], ...] = (
    (threading.Thread, "start"),
    (futures.ThreadPoolExecutor, "submit"),
    (futures.ProcessPoolExecutor, "submit"),
    (queue.Queue, "put"),
    (pool.Pool, "_check_running"),  # asked by everything that hands work to a pool
    (_thread, "start_new_thread"),
    *((threading, name) for name in _JOINABLE),
    (dlpack, "to_dlpack"),  # another library may read the memory from now on
    (torch._C, "_to_dlpack"),
    (torch._tensor_str, "_str"),
    (torch, "manual_seed"),  # draws are fresh for every entry only if nobody sets them back
    (torch.random, "manual_seed"),
    (torch, "set_rng_state"),
    (torch.random, "set_rng_state"),
)
_SETTINGS = {"manual_seed", "set_rng_state"}
#: Recomputation draws again what it drew before, which is what makes it the same.
_TRUSTED = ("torch.utils.checkpoint", "torch.random", "noisewise.")


class _Door:
    """One of them, and what stands in its place while somebody wants to know."""

    def __init__(self, kind: Any, name: str) -> None:
        self.kind, self.name = kind, name
        self.original: Any = None
        self.names = vars(kind)
        self.watched = self._stand_in()  # made once, since runs open and close it all the time

    def _stand_in(self) -> Any:
        def watched(*args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1).f_globals.get("__name__", "")
            if not caller.startswith(_TRUSTED):
                own = threading.get_ident()
                told = [notice for thread, notice in _TOLD if thread == own][-1:]
                for notice in told:
                    notice(f"{self.kind.__name__}.{self.name}")
                if not told and self.name in _STARTS:
                    args = (_Elsewhere.starting(args[0]), *args[1:])
            elif self.name in _SETTINGS:
                Draws.settings += 1
            return self.original(*args, **kwargs)

        return watched

    def watch(self) -> None:
        self.original = self.names.get(self.name)
        setattr(self.kind, self.name, self.watched)
        if self.name in _STARTS:
            time.sleep(_SETTLED)


class _Elsewhere:
    """Threads that were started by threads that nobody follows: not by the program.

    So many were asked for, and so many of them run by now.
    """

    asked = running = 0

    @classmethod
    def starting(cls, function: Callable[..., Any]) -> Callable[..., Any]:
        """Note that a thread is asked for, and return what it has to do, after it was noted."""
        with _LOCK:
            cls.asked += 1

        def noted(*args: Any, **kwargs: Any) -> Any:
            with _LOCK:
                cls.running += 1
            return function(*args, **kwargs)

        return noted


_ALL = tuple(_Door(kind, name) for kind, name in _DOORS)
#: Of the others, starts that are under way would be missed the next time.
_CLOSED = tuple(door for door in _ALL if door.name not in _STARTS)
#: Runs of several threads come and go.
_LOCK = threading.Lock()
#: Who wants to know, and in which thread; those that came last are told.
_TOLD: list[tuple[int, Callable[[str], None]]] = []


class noticing_threads:  # noqa: N801 - a context, entered at every step: no generator
    """Tell when this thread uses one of the doors."""

    def __init__(self, notice: Callable[[str], None]) -> None:
        self._notice, self._caller = notice, (threading.get_ident(), notice)

    def __enter__(self) -> None:
        with _LOCK:
            if not _TOLD:
                for door in _ALL:
                    if door.names.get(door.name) is not door.watched:
                        door.watch()
            _TOLD.append(self._caller)
        # Never less than those of all others, whoever is about to start now.
        running = _Elsewhere.running
        self._before = torch.initial_seed(), _thread._count() - running

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        seed, count = self._before
        try:
            if kind is None and torch.initial_seed() != seed:
                self._notice("a seed of torch's generator")
            if kind is None and _thread._count() - _Elsewhere.asked > count:
                self._notice("a thread that was started")
        finally:
            with _LOCK:
                _TOLD.remove(self._caller)
                if not _TOLD:
                    for door in _CLOSED:
                        setattr(door.kind, door.name, door.original)
