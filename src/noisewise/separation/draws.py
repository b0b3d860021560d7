"""Whether torch's generator goes on from draw to draw, or was set in between.

What is drawn is fresh for every entry only if nobody sets the generator. Functions that do are
doors (:mod:`noisewise.separation.threads`), but a generator has methods of its own, which cannot be
exchanged for others. So in every run each draw must begin where the last one ended, and the run end
where its last draw did. A watched run asks at every operation that draws, a bound one at every call
of which a watched one knows that it does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch._C import _len_torch_dispatch_stack as _modes_below
from torch._C._functorch import peek_interpreter_stack as _transforms
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack as _no_transforms
from torch.utils._python_dispatch import _disable_current_modes

__all__ = ["Draws"]


class Draws:
    """Where the next draw of a run has to begin, once `expect` was asked to look."""

    #: How often torch's recomputation, or the library between runs, has set a generator.
    settings: ClassVar[int] = 0

    def __init__(self) -> None:
        #: Where somebody has set a generator: the draw after it.
        self.were_set = ""
        self._states: list[bytes] = []
        self._settings = 0

    def expect(self) -> None:
        """From here on."""
        self._states, self._settings = _states(), Draws.settings

    def begin(self, place: Callable[[], str]) -> None:
        """A draw begins; it must do so where the last one has ended."""
        if self._settings == Draws.settings and self.moved:
            self.were_set = self.were_set or place()

    @property
    def moved(self) -> bool:
        """Whether a generator is elsewhere than expected."""
        return _states() != self._states


def _states() -> list[bytes]:
    if _modes_below() or _transforms() is not None:
        # Of the watch, or of torch.func: they would take states for results.
        with torch._C.DisableTorchFunction(), _disable_current_modes(), _no_transforms():
            return _read()
    return _read()


def _read() -> list[bytes]:
    generators = [torch.default_generator]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        generators += torch.cuda.default_generators
    return [generator.get_state().numpy().tobytes() for generator in generators]
