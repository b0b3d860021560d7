"""Noise that was drawn for places in advance, and leaves for each place once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from noisewise.errors import UnsoundError
from noisewise.privacy import Event, Randomness, Sensitivity
from noisewise.release.noise import Additive, IntArray

__all__ = ["NoiseSlots", "SlotNoise"]


class NoiseSlots:
    """One number of noise for each of a row of places, handed out in order.

    All of it is drawn when the first is needed, which is after the account was charged. Who takes
    noise says for which places, and owns it from then on: nothing stays behind that could be
    used, or taken for noise, a second time.

    Parameters
    ----------
    draw : callable
        Draws the noise of all places.
    planned : Sensitivity
        How far one unit shifts the noise that hides it, over all places.
    event : Event
        What all places together cost.
    description : str
    """

    def __init__(
        self,
        draw: Callable[[Randomness], IntArray],
        planned: Sensitivity,
        event: Event,
        description: str,
    ) -> None:
        self.planned, self.event, self.description = planned, event, description
        self._draw = draw
        self._left: IntArray | None = None
        self._next = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> Any:
        raise UnsoundError("noise cannot be copied: the copy would use it a second time")

    def places(self, start: int, end: int) -> SlotNoise:
        """Return the noise of the places from `start` up to, not including, `end`."""
        return SlotNoise(self, start, end)

    def taken(self, start: int, end: int, rng: Randomness) -> IntArray:
        """Move the noise of these places out.

        Raises
        ------
        UnsoundError
            If it was taken before, is not the next in order, or was never drawn.
        """
        with self._lock:
            if self._left is None:
                self._left = self._draw(rng)
            if start != self._next or not start <= end <= self._next + self._left.size:
                raise UnsoundError(
                    f"noise for places {start} to {end} was asked for, but the next place is "
                    f"{self._next} and {self._left.size} are left: noise is used once, in order. "
                    "This is a mistake in noisewise; nothing was released."
                )
            found: IntArray = self._left[: end - start].copy()
            self._left = self._left[end - start :]
            self._next = end
            return found


@dataclass(frozen=True, eq=False)
class SlotNoise(Additive):
    """The noise of some places; its event is that of all of them, which are paid for together."""

    slots: NoiseSlots
    start: int
    end: int

    @property
    def sensitivity(self) -> tuple[Sensitivity, ...]:
        """Over all places."""
        return (self.slots.planned,)

    @property
    def event(self) -> Event:
        """Of all places."""
        return self.slots.event

    @property
    def description(self) -> str:
        """One line."""
        return self.slots.description

    @property
    def assumptions(self) -> tuple[str, ...]:
        """None of its own."""
        return ()

    def draw(self, rng: Randomness) -> IntArray:
        """Take the noise of these places, once."""
        return self.slots.taken(self.start, self.end, rng)
