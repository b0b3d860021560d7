"""A model's state through the pieces of a step: it moves once a step, however many there are.

How many pieces a batch has depends on how many records were drawn. A counter or a running average
of weights that moved with every piece would tell; so it moves with the first piece of a step
alone, and with an empty batch as well.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from noisewise.gradients.attributes import Attributes, HeldAttributes
from noisewise.gradients.reach import MISSING
from noisewise.separation import Content, RefusedError, storage_key

__all__ = ["Buffers", "Held", "Stage"]


class Held(NamedTuple):
    """State as it was."""

    buffers: list[tuple[nn.Module, str, Tensor, int, Tensor]]
    attributes: HeldAttributes


class _Memory:
    """Where parameters and buffers lie, and what torch counted; what numpy shares is copied."""

    def __init__(self, model: nn.Module) -> None:
        named = [*model.named_parameters(), *model.named_buffers()]
        self._named = [(name, t) for name, t in named if _is_plain(t)]
        self._parameters = [t for t in model.parameters() if _is_plain(t)]
        self._lying = [t.data_ptr() for t in self._parameters]
        self._versions = [t._version for t in self._parameters]
        self._shared = [
            (name, t, t._version, Content(t))
            for name, t in self._named
            if not t.untyped_storage().resizable()
        ]

    def changed(self) -> str | None:
        """Name of a parameter that was written or exchanged since; None if there is none."""
        pairs = zip(self._parameters, self._lying, self._versions, strict=True)
        for parameter, place, version in pairs:
            if parameter.data_ptr() != place or parameter._version != version:
                return self._name(parameter)
        for name, tensor, version, content in self._shared:
            if tensor._version == version and not content.holds(tensor):
                return name
        return None

    def _name(self, tensor: Tensor) -> str:
        return next(name for name, t in self._named if t is tensor)


def _is_plain(tensor: Tensor) -> bool:
    plain = type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__
    return plain and tensor.layout == torch.strided and tensor.device.type != "meta"


def written(name: str) -> tuple[str, str]:
    """Why a program that changes a parameter is refused, and what to do about it."""
    return (
        f'the program itself changes "{name}" while it runs: it writes the parameter, exchanges '
        "its memory, or shares it with numpy. A batch is computed in pieces, so how a record is "
        "treated would depend on who else is in the batch",
        "Keep what changes in a buffer that "
        "torch writes (register_buffer; it moves once a step), or change it between the steps.",
    )


class Buffers:
    """Those of one model, and the plain attributes that it, a loss or an augmentation keep.

    Attributes
    ----------
    moving : set of (module, name)
        Buffers that a run changes, as far as runs were watched.
    line_that : callable
        Looks for the line of the program after which something has changed.
    """

    def __init__(self, model: nn.Module, *others: Any) -> None:
        self.model = model
        self.attributes = Attributes(model, *others)
        self.moving: set[tuple[nn.Module, str]] = set()
        #: Of these, those that were written in ways which torch does not count.
        self._silent: set[tuple[nn.Module, str]] = set()
        self.current: Stage | None = None
        self.line_that: Callable[[Callable[[], bool]], str] = lambda changes: ""
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
                raise RefusedError(
                    f'the buffer "{name}" of {type(module).__name__} was written by code outside '
                    "the model since private training began, so it may hold values of records and "
                    "nothing is summed or charged",
                    "Let the model write it in its forward pass, "
                    "where it is followed; use a Python number for a schedule; or change it first "
                    "and call make_private again (with the same ledger).",
                )

    def _all(self) -> Iterator[tuple[nn.Module, str, Tensor]]:
        for module in self.model.modules():
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    yield module, name, buffer

    def remember(self) -> Held:
        """All state as it is."""
        held = [(m, n, b, b._version, b.detach().clone()) for m, n, b in self._all()]
        return Held(held, self.attributes.remember())

    def learn(self, before: Held) -> bool:
        """Note what has changed since; whether more moves than was known."""
        count = self.count
        self.attributes.learn(before.attributes)
        for module, name, buffer, version, _ in before.buffers:
            now = module._buffers.get(name)
            if now is not buffer or buffer._version != version:
                self.moving.add((module, name))
        return self.count > count

    def restore(self, before: Held) -> None:
        """Give everything the value that it had."""
        self.attributes.restore(before.attributes)
        with torch.no_grad():
            for module, name, buffer, version, value in before.buffers:
                if buffer._version != version or (module, name) in self._silent:
                    buffer.copy_(value)
                module._buffers[name] = buffer

    def restore_moving(self, before: Held) -> None:
        """Give what a run changes the value that it had."""
        moving = self.attributes.moving
        values = [held for held in before.attributes.values if (held[0].key, held[1]) in moving]
        new = moving.keys() - {(held[0].key, held[1]) for held in values}
        looked = before.attributes.spaces
        values += [(moving[key], key[1], MISSING) for key in new if key[0] in looked]
        buffers = [held for held in before.buffers if held[:2] in self.moving]
        self.restore(Held(buffers, HeldAttributes(values)))

    def write(self, keys: Mapping[int, str]) -> None:
        """Memory of the model that a watched run wrote, torch counted it or not, and where."""
        for name, parameter in self.model.named_parameters():
            if (key := storage_key(parameter)) is not None and key in keys:
                raise RefusedError(*written(name), keys[key])
        for module, name, buffer in self._all():
            if storage_key(buffer) in keys:
                self.moving.add((module, name))
                self._silent.add((module, name))

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Whatever runs here leaves all state as it is."""
        held = self.remember()
        try:
            yield
        finally:
            self.restore(held)

    def rewind(self) -> None:
        """All state as it was when the stage under way began: a record made the program raise."""
        if self.current is not None:
            self.restore(self.current.start)

    def moved(self) -> Held:
        """All that moves, as it is."""
        held = [
            (module, name, buffer, buffer._version, buffer.detach().clone())
            for module, name in self.moving
            if (buffer := module._buffers.get(name)) is not None
        ]
        return Held(held, self.attributes.remember(moving_only=True))

    def stage(self, held: Held | None = None) -> Stage:
        """All pieces of a batch, one after the other, begin here; `held` is all state as it is."""
        self.current = Stage(self, self.remember() if held is None else held)
        return self.current


class Stage:
    """Every piece begins with the state of the first; it moves with the first alone."""

    def __init__(self, buffers: Buffers, held: Held) -> None:
        self._buffers, self._first = buffers, True
        #: All state as it was.
        self.start = held
        self._count = buffers.count
        self._ended = self._outgrew = False
        self._memory = _Memory(buffers.model)

    @property
    def outgrown(self) -> bool:
        """Whether more turned out to move than was known when the first piece began."""
        return self._outgrew if self._ended else self._buffers.count > self._count

    def end(self) -> None:
        """No piece follows, and code of others may run: see what has moved."""
        if not self._ended:
            self._buffers.learn(self.start)
            self._buffers.current = None
            self._outgrew, self._ended = self.outgrown, True

    def _require_parameters(self) -> None:
        """Refuse a program that writes or exchanges its parameters while it runs."""
        name = self._memory.changed()
        if name is not None:
            now = _Memory(self._buffers.model)
            line = self._buffers.line_that(lambda: now.changed() is not None)
            raise RefusedError(*written(name), line)

    @contextlib.contextmanager
    def piece(self) -> Iterator[None]:
        """One piece."""
        if self._first or not self._buffers.count:
            self._first = False
            yield
            self._require_parameters()
            return
        after = self._buffers.moved()
        self._buffers.restore_moving(self.start)
        try:
            yield
            self._require_parameters()
        finally:
            self._buffers.restore(after)
