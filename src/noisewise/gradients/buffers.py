"""A model's state through the pieces of a step: it moves once a step, however many there are.

How many pieces a batch has depends on how many records were drawn. A counter or a running average
of weights that moved with every piece would tell; so it moves with the first piece of a step
alone, and with an empty batch as well.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from noisewise.gradients.attributes import Attributes, HeldAttributes
from noisewise.gradients.census import Census
from noisewise.gradients.reach import MISSING
from noisewise.separation import Content, RefusedError, storage_key

if TYPE_CHECKING:
    from typing import TypeGuard

__all__ = ["Buffers", "Held", "Stage"]


class Held(NamedTuple):
    """State as it was."""

    buffers: list[tuple[nn.Module, str, Tensor, int, Tensor]]
    attributes: HeldAttributes


class _Memory:
    """Where parameters and buffers lie, and what torch counted; what numpy shares is copied."""

    def __init__(self, model: nn.Module, census: Census) -> None:
        self._model = model
        modules = census.modules()
        parameters = [p for m in modules for p in m._parameters.values() if _is_plain(p)]
        buffers = [b for m in modules if m._buffers for b in m._buffers.values() if _is_plain(b)]
        self._parameters = [(p, p.data_ptr(), p._version) for p in parameters]
        self._shared = [
            (t, t._version, Content(t))
            for t in (*parameters, *buffers)
            if not t.untyped_storage().resizable()
        ]

    def changed(self) -> str | None:
        """Name of a parameter that was written or exchanged since; None if there is none."""
        for parameter, place, version in self._parameters:
            if parameter.data_ptr() != place or parameter._version != version:
                return self._name(parameter)
        for tensor, version, content in self._shared:
            if tensor._version == version and not content.holds(tensor):
                return self._name(tensor)
        return None

    def _name(self, tensor: Tensor) -> str:
        named = (*self._model.named_parameters(), *self._model.named_buffers())
        return next((name for name, t in named if t is tensor), "a parameter that was removed")


_DISPATCH = Tensor.__torch_dispatch__


def _is_plain(tensor: Tensor | None) -> TypeGuard[Tensor]:
    return (
        tensor is not None
        and type(tensor).__torch_dispatch__ is _DISPATCH
        and tensor.layout is torch.strided
        and not tensor.is_meta
    )


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
        self.census = Census(model)
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
        for module in self.census.modules():
            if module._buffers:
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
        self.restore(Held(buffers, HeldAttributes([], values)))

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
        self._memory = _Memory(buffers.model, buffers.census)

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

    def require_parameters(self) -> None:
        """Refuse a program that writes or exchanges its parameters while it runs."""
        name = self._memory.changed()
        if name is not None:
            now = _Memory(self._buffers.model, self._buffers.census)
            line = self._buffers.line_that(lambda: now.changed() is not None)
            raise RefusedError(*written(name), line)

    def piece(self) -> _Turn:
        """One piece."""
        returns = not self._first and self._buffers.count > 0
        self._first = False
        return _Turn(self, returns)

    def forth(self) -> Held:
        """State is that of the first piece; returns what it was."""
        after = self._buffers.moved()
        self._buffers.restore_moving(self.start)
        return after

    def back(self, after: Held) -> None:
        """State is what the first piece left."""
        self._buffers.restore(after)


class _Turn:
    """A piece of a stage, after which state is what the first one left."""

    __slots__ = ("_after", "_returns", "_stage")

    def __init__(self, stage: Stage, returns: bool) -> None:
        self._stage, self._returns = stage, returns

    def __enter__(self) -> None:
        self._after = self._stage.forth() if self._returns else None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            if kind is None:
                self._stage.require_parameters()
        finally:
            if self._after is not None:
                self._stage.back(self._after)
