"""A file of which one thread of one process at a time may read, decide and write.

The lock is on the file itself, not on another one beside it: whatever name, link or mount leads
to the file, there is one lock. Every act opens the file anew, so threads exclude each other like
processes do, and the system frees the lock of a process that dies. A child that is forked while
another thread holds a lock gets no part in it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from noisewise.files.durable import open_regular

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = ["locked", "process_guard"]

#: Seconds after which an act that cannot begin is given up.
PATIENCE = 120.0

#: Held while descriptors are opened or closed, and while the process forks.
process_guard = threading.RLock()
_descriptors: dict[object, int] = {}


@contextlib.contextmanager
def locked(path: Path, *, create: bool = False, patience: float | None = None) -> Iterator[int]:
    """Hold the file that `path` names, alone; yields a descriptor to read and write it.

    Raises
    ------
    OSError
        If it is no regular file.
    TimeoutError
        If another one holds it for `patience` seconds.
    """
    deadline = time.monotonic() + (PATIENCE if patience is None else patience)
    while True:
        act = object()
        descriptor = _open(act, path, create)
        try:
            _wait(descriptor, deadline)
            if _is_at(descriptor, path):
                yield descriptor
                return
        finally:
            _close(act)


def _open(act: object, path: Path, create: bool) -> int:
    with process_guard:
        descriptor = open_regular(path, os.O_RDWR | (os.O_CREAT if create else 0))
        _descriptors[act] = descriptor
    return descriptor


def _close(act: object) -> None:
    with process_guard:
        descriptor = _descriptors.pop(act, None)
        if descriptor is not None:  # else this is a forked copy of the act
            try:
                # Said aloud: closing alone would leave the lock to a child that has a copy.
                _unlock(descriptor)
            finally:
                os.close(descriptor)


def _wait(descriptor: int, deadline: float) -> None:
    pause = 0.0005
    while not _try_lock(descriptor):
        if time.monotonic() > deadline:
            raise TimeoutError("the file is held by another one")
        time.sleep(pause)
        pause = min(2 * pause, 0.01)


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the path still names this file: another may have been put there while we waited."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


if sys.platform == "win32":
    _FAR = 1 << 30  # one byte that no content reaches, since such locks keep others from reading

    def _try_lock(descriptor: int) -> bool:
        os.lseek(descriptor, _FAR, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _unlock(descriptor: int) -> None:
        os.lseek(descriptor, _FAR, os.SEEK_SET)
        with contextlib.suppress(OSError):  # it was never taken
            msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:

    def _try_lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _unlock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _after_fork_in_child() -> None:
    for descriptor in _descriptors.values():
        os.close(descriptor)  # the parent's copy keeps the lock
    _descriptors.clear()
    process_guard.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=process_guard.acquire,
        after_in_parent=process_guard.release,
        after_in_child=_after_fork_in_child,
    )
