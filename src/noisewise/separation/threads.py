"""Work that is handed to other threads, where no mode of torch follows."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

__all__ = ["noticing_threads"]

_DOORS: tuple[tuple[Any, str], ...] = (
    (threading.Thread, "start"),
    (futures.ThreadPoolExecutor, "submit"),
    (futures.ProcessPoolExecutor, "submit"),
    (queue.Queue, "put"),
    (queue.SimpleQueue, "put"),
)


@contextlib.contextmanager
def noticing_threads(notice: Callable[[str], None]) -> Iterator[None]:
    """Tell when this thread starts another or hands something to one."""
    own = threading.get_ident()
    changed = []

    def watched(kind: Any, name: str, original: Any) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == own:
                notice(f"{kind.__name__}.{name}")
            return original(self, *args, **kwargs)

        return call

    for kind, name in _DOORS:
        original = vars(kind).get(name)
        with contextlib.suppress(TypeError):  # kinds that are written in C cannot be changed
            setattr(kind, name, watched(kind, name, original))
            changed.append((kind, name, original))
    try:
        yield
    finally:
        for kind, name, original in changed:
            setattr(kind, name, original)
