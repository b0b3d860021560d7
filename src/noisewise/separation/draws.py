"""Whether torch's generator goes on from draw to draw, or was set in between.

What is drawn is fresh for every entry only if nobody sets the generator. Functions that do are
doors (:mod:`noisewise.separation.threads`), but a generator has methods of its own, which cannot be
exchanged for others. So while a run is watched, every draw must begin where the last one ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

__all__ = ["Draws"]


class Draws:
    """Where the next draw of a run has to begin."""

    #: How often torch's recomputation, or the library between runs, has set a generator.
    settings: ClassVar[int] = 0

    def __init__(self) -> None:
        #: Where somebody has set a generator: the draw after it.
        self.were_set = ""
        self.expect()

    def expect(self) -> None:
        """From here on."""
        self._states, self._settings = _states(), Draws.settings

    def begin(self, place: Callable[[], str]) -> None:
        """A draw begins; it must do so where the last one has ended."""
        if self._settings == Draws.settings and not all(
            torch.equal(one, other) for one, other in zip(_states(), self._states, strict=True)
        ):
            self.were_set = self.were_set or place()


def _states() -> list[Tensor]:
    generators = [torch.default_generator]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        generators += torch.cuda.default_generators
    return [generator.get_state() for generator in generators]
