"""A model's buffers through the pieces of a step: they move once a step, however many there are.

How many pieces a batch has depends on how many records were drawn. A counter or a running average
of weights that moved with every piece would tell; so it moves with the first piece of a step
alone, and with an empty batch as well.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from noisewise.errors import UnsupportedModelError
from noisewise.separation import Content

__all__ = ["Buffers"]


_Held = tuple[nn.Module, str, Tensor, int, Tensor]


class Buffers:
    """Those of one model.

    Attributes
    ----------
    moving : set of (module, name)
        Buffers that a run changes, as far as runs were watched.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.moving: set[tuple[nn.Module, str]] = set()
        self._held: dict[tuple[nn.Module, str], Content] = {}
        self.accept()

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

    def remember(self) -> list[_Held]:
        """All buffers as they are."""
        return [(m, n, b, b._version, b.detach().clone()) for m, n, b in self._all()]

    def learn(self, before: list[_Held]) -> None:
        """Note which buffers have changed since."""
        for module, name, buffer, version, _ in before:
            now = module._buffers.get(name)
            if now is not buffer or buffer._version != version:
                self.moving.add((module, name))

    def restore(self, before: list[_Held]) -> None:
        """Give buffers the values that they had."""
        with torch.no_grad():
            for module, name, buffer, version, value in before:
                if buffer._version != version:
                    buffer.copy_(value)
                module._buffers[name] = buffer

    @contextlib.contextmanager
    def kept_from(self, index: int) -> Iterator[None]:
        """Undo what a piece of a step does to buffers, unless it is the first."""
        if not index or not self.moving:
            yield
            return
        held = [
            (module, name, buffer, buffer._version, buffer.detach().clone())
            for module, name in self.moving
            if (buffer := module._buffers.get(name)) is not None
        ]
        try:
            yield
        finally:
            self.restore(held)
