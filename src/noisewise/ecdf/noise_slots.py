"""Noise that was drawn for places in advance, and leaves for each place once."""

from __future__ import annotations

import threading

from noisewise.ecdf.mechanisms.protocol import IntArray
from noisewise.errors import UnsoundError

__all__ = ["NoiseSlots"]


class NoiseSlots:
    """One number of noise for each of a row of places, handed out in order.

    Who takes noise says for which places, and owns it from then on: nothing stays behind that
    could be used, or taken for noise, a second time.

    Parameters
    ----------
    noise : array of int
        Nobody else may hold it.
    """

    def __init__(self, noise: IntArray) -> None:
        self._left = noise
        self._next = 0
        self._lock = threading.Lock()

    def take(self, start: int, end: int) -> IntArray:
        """Move the noise of the places from `start` up to, not including, `end` out.

        Raises
        ------
        UnsoundError
            If it was taken before, is not the next in order, or was never drawn.
        """
        with self._lock:
            if start != self._next or not start <= end <= self._next + self._left.size:
                raise UnsoundError(
                    f"noise for places {start} to {end} was asked for, but the next place is "
                    f"{self._next} and {self._left.size} are left: noise is used once, in order. "
                    "This is a mistake in noisewise; nothing was released."
                )
            taken: IntArray = self._left[: end - start].copy()
            self._left = self._left[end - start :]
            self._next = end
            return taken
