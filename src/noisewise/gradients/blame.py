"""Which line of the user's program is to blame: looked for when it is refused, by running it again.

Some refusals rest on what a whole run did: it changed a parameter, or two runs were not the same.
The program is run once more, plainly, with everything put back afterwards; nothing of it is
released.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from noisewise.gradients.buffers import Buffers
from noisewise.gradients.chance import Chance
from noisewise.gradients.interception import Following, Interception
from noisewise.gradients.marking import tensors
from noisewise.gradients.models import call_model
from noisewise.separation import Outside, Path, calling_line, defined_at, is_anybodys, place

__all__ = ["Blame"]

#: Records that are enough to run a program, and how often it is run.
_FEW = 2
_RUNS = 8


class _Lines(Following):
    """Notes where every torch function was called, and the path to it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.lines: list[tuple[Any, str]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = super().__torch_function__(func, types, args, kwargs)
        self.lines.append(((self.path.digest, self.path.floats), place()))
        return result


class Blame:
    """Looks for lines; a part of `Runner`."""

    model: nn.Module
    loss: Any
    losses_of: Callable[[Any, Any], Any]
    augmentation: Callable[[Any], Any] | None
    whole: tuple[Any, Any]
    buffers: Buffers
    interception: Interception
    _owned: list[dict[str, nn.Parameter | None]]

    def _device(self) -> torch.device:
        raise NotImplementedError

    def defined(self) -> str:
        """Where the user's model, loss or augmentation is defined; empty if all are torch's."""
        return defined_at(self.model, self.loss, self.augmentation)

    def line_that(self, changes: Callable[[], bool], backward: bool = True) -> str:
        """The line after which something has changed; empty if none of the user's is found."""
        started = found = ""

        def line(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal started, found
            if not found and changes():
                found = started
            started = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            return line

        def call(frame: FrameType, event: str, argument: Any) -> Any:
            return line if is_anybodys(frame.f_code.co_filename) else None

        before = sys.gettrace()
        with self._undisturbed():
            sys.settrace(call)
            try:
                self._plainly(backward=backward)
            finally:
                sys.settrace(before)
            return found or (started if changes() else "")

    def line_that_varies(self) -> str:
        """The first line that does something else in another run; empty if none is found."""
        outside, loop = Outside(), calling_line()
        first: list[tuple[Any, str]] | None = None
        with self._undisturbed():
            for _ in range(_RUNS):
                path = Path(self.interception.known(), outside, learning=True)
                mode = _Lines(path)
                with self._undisturbed(), mode:
                    self._plainly(path)
                lines = mode.lines
                first = lines if first is None else first
                for one, other in itertools.zip_longest(first, lines, fillvalue=("end", "")):
                    if one[0] != other[0]:
                        # Rather a line that the other run did not come to, or at least one that
                        # is not torch's, called by nobody but the training loop.
                        both = {line for _, line in first} & {line for _, line in lines}
                        own = [line for _, line in (other, one) if line not in ("", loop)]
                        return next((line for line in own if line not in both), (*own, "")[0])
        return ""

    def _plainly(self, path: Path | None = None, backward: bool = True) -> None:
        """Forward, loss and backward of a few records; whatever they raise says nothing here."""
        x, y = pytree.tree_map(
            lambda value: value[:_FEW] if isinstance(value, torch.Tensor) else value, self.whole
        )
        if path is not None:
            for tensor in tensors((x, y)):
                path.name(tensor)
        with contextlib.suppress(Exception), torch.enable_grad():
            if self.augmentation is not None:
                x = self.augmentation(x)
            output = call_model(self.model, x)
            if y is not None:
                losses = self.losses_of(output, y)
                if backward:
                    losses.sum().backward()

    @contextlib.contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Chance, state and gradients are as they were afterwards."""
        chance = Chance(self._device())
        held = [(p, p.grad) for own in self._owned for p in own.values() if p is not None]
        try:
            with self.buffers.kept():
                yield
        finally:
            chance.restore()
            for parameter, gradient in held:
                parameter.grad = gradient
