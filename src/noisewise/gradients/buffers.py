"""A model's state through the pieces of a step: it moves once a step, however many there are.

How many pieces a batch has depends on how many records were drawn. A counter or a running average
of weights that moved with every piece would tell; so it moves with the first piece of a step
alone, and with an empty batch as well.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from noisewise.errors import UnsupportedModelError
from noisewise.gradients.attributes import Attributes, HeldAttributes
from noisewise.separation import Content

__all__ = ["Buffers", "Held", "Stage"]


class Held(NamedTuple):
    """State as it was."""

    buffers: list[tuple[nn.Module, str, Tensor, int, Tensor]]
    attributes: HeldAttributes
    whole: bool = False


class Buffers:
    """Those of one model, and the plain attributes that it, a loss or an augmentation keep.

    Attributes
    ----------
    moving : set of (module, name)
        Buffers that a run changes, as far as runs were watched.
    """

    def __init__(self, model: nn.Module, *others: Any) -> None:
        self.model = model
        self.attributes = Attributes(model, *others)
        self.moving: set[tuple[nn.Module, str]] = set()
        self._held: dict[tuple[nn.Module, str], Content] = {}
        self.accept()

    @property
    def count(self) -> int:
        """How many buffers and attributes a run changes, as far as runs were watched."""
        return len(self.moving) + len(self.attributes.moving)

    def accept(self) -> None:
        """Take the buffers as they are now for public."""
        self._held = {(m, n): Content(b) for m, n, b in self._all()}

    def accept_moved(self) -> None:
        """Take what runs that were followed have written for public."""
        for module, name in self.moving:
            buffer = module._buffers.get(name)
            if buffer is not None:
                self._held[module, name] = Content(buffer)

    def require_unchanged(self) -> None:
        """Refuse values that came from elsewhere than from runs that were followed."""
        for module, name, buffer in self._all():
            key = (module, name)
            before = self._held.get(key)
            if before is None or not before.holds(buffer):
                raise UnsupportedModelError(
                    f'the buffer "{name}" of {type(module).__name__} was written by code outside '
                    "the model since private training began, so it may hold values of records and "
                    "nothing is summed or charged. Let the model write it in its forward pass, "
                    "where it is followed; use a Python number for a schedule; or change it first "
                    "and call make_private again (with the same ledger)."
                )

    def _all(self) -> Iterator[tuple[nn.Module, str, Tensor]]:
        for module in self.model.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    yield module, name, buffer

    def remember(self, known: bool = False) -> Held:
        """All state as it is; of attributes those that move, if these are `known`."""
        held = [(m, n, b, b._version, b.detach().clone()) for m, n, b in self._all()]
        return Held(held, self.attributes.remember(moving_only=known), not known)

    def learn(self, before: Held) -> bool:
        """Note what has changed since; whether more moves than was known."""
        count = self.count
        if before.whole:
            self.attributes.learn(before.attributes)
        for module, name, buffer, version, _ in before.buffers:
            now = module._buffers.get(name)
            if now is not buffer or buffer._version != version:
                self.moving.add((module, name))
        return self.count > count

    def restore(self, before: Held) -> None:
        """Give everything the value that it had."""
        self.attributes.restore(before.attributes, before.whole)
        with torch.no_grad():
            for module, name, buffer, version, value in before.buffers:
                if buffer._version != version:
                    buffer.copy_(value)
                module._buffers[name] = buffer

    def moved(self) -> Held:
        """All that moves, as it is."""
        held = [
            (module, name, buffer, buffer._version, buffer.detach().clone())
            for module, name in self.moving
            if (buffer := module._buffers.get(name)) is not None
        ]
        return Held(held, self.attributes.remember(moving_only=True))

    def stage(self) -> Stage:
        """All pieces of a batch, one after the other, begin here."""
        return Stage(self)


class Stage:
    """Every piece begins with the state of the first; it moves with the first alone."""

    def __init__(self, buffers: Buffers) -> None:
        self._buffers, self._start, self._first = buffers, buffers.moved(), True
        self._count = buffers.count

    @property
    def outgrown(self) -> bool:
        """Whether more turned out to move than was known when the first piece began."""
        return self._buffers.count > self._count

    @contextlib.contextmanager
    def piece(self) -> Iterator[None]:
        """One piece."""
        if self._first or not self._buffers.count:
            self._first = False
            yield
            return
        after = self._buffers.moved()
        self._buffers.restore(self._start)
        try:
            yield
        finally:
            self._buffers.restore(after)
