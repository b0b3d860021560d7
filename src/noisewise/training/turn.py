"""One thread at a time takes a step of a run.

Two threads in one model would add their records to one sum, write each other's gradients and count
one step for two releases. So a thread takes the turn when a step begins, with `run.step` or with
the forward pass of a loop by hand, and gives it back when the step is taken or dropped; another
one is refused meanwhile, before it touches anything. Runs of their own do not meet.
"""

from __future__ import annotations

import threading

from noisewise.training.errors import StepError

__all__ = ["Turn"]


class Turn:
    """Whose step it is.

    Examples
    --------
    >>> turn = Turn()
    >>> turn.take()
    >>> turn.take()  # the same thread may ask again
    >>> turn.give()
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: threading.Thread | None = None

    def take(self) -> None:
        """Take the turn, unless another thread has it.

        Raises
        ------
        StepError
        """
        with self._lock:
            self.require()
            self._owner = threading.current_thread()

    def require(self) -> None:
        """Raise if another thread has the turn; one that ended in the middle has lost it."""
        owner = self._owner
        if owner not in (None, threading.current_thread()) and owner.is_alive():
            raise StepError(
                "another thread is in the middle of a step of this run: its records and these "
                "would meet in one sum, under one charge. Take the steps of a run in one thread, "
                "or one after the other; a batch that is not stepped on is dropped there with "
                "run.discard(). Nothing was charged."
            )

    def give(self) -> None:
        """Let any thread take the next step."""
        with self._lock:
            if self._owner is threading.current_thread():
                self._owner = None
