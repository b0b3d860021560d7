"""Say that something long goes on, where nobody knows how long it will take.

Certificates, audits and features of pictures have no steps to count. On a terminal a line with the
seconds appears after two of them and goes away at the end; elsewhere plain lines are printed, ever
more rarely.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from rich.console import Console

__all__ = ["tell", "working"]


def tell(text: str) -> None:
    """Print on standard error; on a terminal, lines end between words."""
    console = Console(stderr=True, highlight=False)
    console.print(text, markup=False, soft_wrap=not console.is_terminal)


@contextlib.contextmanager
def working(what: str, *, after: float = 2.0, quiet: bool = False) -> Iterator[None]:
    """Tell on standard error that `what` is going on, if it takes long.

    Parameters
    ----------
    what : str
        In words, e.g. "certifying the model".
    after : float
        Seconds of silence at the beginning.
    quiet : bool
        Say nothing.

    Examples
    --------
    >>> with working("counting"):
    ...     total = sum(range(10))
    """
    if quiet:
        yield
        return
    console = Console(stderr=True, highlight=False)
    done = threading.Event()
    teller = threading.Thread(target=_tell, args=(what, after, console, done), daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()


def _tell(what: str, after: float, console: Console, done: threading.Event) -> None:
    started = time.monotonic()
    if done.wait(after):
        return
    if console.is_terminal:
        with console.status(what) as line:
            while not done.wait(1.0):
                line.update(f"{what}: {time.monotonic() - started:.0f} s")
        return
    pause = 5.0
    while True:
        passed = time.monotonic() - started
        console.print(f"{what}: {passed:.0f} s", markup=False, soft_wrap=True)
        if done.wait(pause):
            return
        pause = min(2 * pause, 60.0)
