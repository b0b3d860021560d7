"""What a program keeps in plain values: counters, schedules, generators of its own.

They are state like buffers: how often they move must not tell how many pieces a batch had, nor
whether a record made the program raise. Plain values are looked at wherever the program's code
reaches (`gradients/reach.py`), and put back. A program that counts elsewhere is noticed because it
treats pieces differently (`Comparing.compare_pieces`).
"""

from __future__ import annotations

import copy
import itertools
import random
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from operator import is_
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from noisewise.gradients.doors import handing_over, unseen_code
from noisewise.gradients.reach import LONGEST, MISSING, Space, spaces
from noisewise.separation import RefusedError

__all__ = ["Attributes", "HeldAttributes"]

_SIMPLE = frozenset((bool, int, float, complex, str, bytes, type(None)))
_SAID = frozenset((torch.Size, torch.dtype, torch.device, range))
_LISTS = frozenset((list, deque, set))
_DICTS = frozenset((dict, Counter, OrderedDict, defaultdict))
_FIXED = frozenset((tuple, frozenset))
_GENERATORS = (random.Random, np.random.RandomState, np.random.Generator)
_ITERATORS: tuple[type, ...] = (
    itertools.count,
    itertools.cycle,
    type(iter([])),
    type(iter(())),
    enumerate,
)
#: Code and modules, which nobody exchanges from step to step, and numbers.
_LASTING = (
    np.number,
    np.bool_,
    np.character,
    np.datetime64,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
    type,
    nn.Module,
)
#: What has entries that can be written; a row of a structured array is such a thing, too.
_ARRAYS = (np.ndarray, np.void)
#: Entries of an array that is state.
_ENTRIES = 2**16


class _Look:
    """One space as it was.

    Attributes
    ----------
    values : list
        Where it is, under which name, and what it was.
    count : int
        How many names there were.
    mark : list or None
        As of the space, where nothing in it can change but by another object in its place.
    """

    __slots__ = ("count", "mark", "space", "values")

    def __init__(self, space: Space) -> None:
        mark, items = space.mark(), space.items()
        self.space, self.count = space, len(items)
        self.values = [(space, n, _held(value)) for n, value in items if _can_be_kept(value)]
        fixed = mark is not None and all(_is_fixed(value) for _, value in items)
        self.mark = mark if fixed else None

    def is_same(self) -> bool:
        """Whether everything is still there, and could not change."""
        if self.mark is None:
            return False
        now = self.space.mark()
        return now is not None and len(now) == len(self.mark) and all(map(is_, now, self.mark))


class HeldAttributes(NamedTuple):
    """Values as they were.

    Attributes
    ----------
    looks : list
        Where all was looked at; empty if only what moves was.
    alone : list
        Where other values are, under which name, and what they were.
    """

    looks: list[_Look]
    alone: list[tuple[Space, Any, Any]]

    @property
    def values(self) -> list[tuple[Space, Any, Any]]:
        """All of them."""
        return [*self.alone, *(value for look in self.looks for value in look.values)]

    @property
    def spaces(self) -> dict[int, int]:
        """Where all was looked at, and how many names were there."""
        return {look.space.key: look.count for look in self.looks}


class Attributes:
    """Those that code of a model, of a loss and of an augmentation reaches."""

    def __init__(self, model: nn.Module, *others: Any) -> None:
        self._roots = (model, *(other for other in others if other is not None))
        self._looks: list[_Look] | None = None
        #: By what records could leave a run (`gradients/doors.py`).
        self.handing = self.unseen = ""
        #: Values that a run changes, as far as runs were looked at.
        self.moving: dict[tuple[int, Any], Space] = {}

    def look(self) -> None:
        """Find out anew what the program reaches."""
        reached = spaces(*self._roots)
        self.handing, self.unseen = handing_over(reached), unseen_code(reached)
        self._looks = [
            _Look(space)
            for space in reached
            if not (isinstance(space.owner, (list, dict)) and _can_be_kept(space.owner))
        ]

    def remember(self, moving_only: bool = False) -> HeldAttributes:
        """All of them as they are, or those that move."""
        if moving_only:
            moving = ((space, name, space.get(name)) for (_, name), space in self.moving.items())
            return HeldAttributes([], [(s, n, _held(v)) for s, n, v in moving if _can_be_kept(v)])
        if self._looks is None:
            self.look()
        assert self._looks is not None
        # Most of it stays as it is from step to step, and is asked for at every one.
        self._looks = [look if look.is_same() else _Look(look.space) for look in self._looks]
        return HeldAttributes(self._looks, [])

    def learn(self, before: HeldAttributes) -> None:
        """Note which values have changed since, and which are new."""
        before = _perhaps_changed(before)
        known: dict[int, tuple[Space, dict[Any, Any]]] = {}
        for space, name, value in before.values:
            # Listing names takes longer than looking at one, and this is asked at every step.
            found = known.get(id(space))
            if found is None:
                found = known[id(space)] = space, dict(space.items())
            now = found[1].get(name, MISSING)
            if now is value and now.__class__ in _SIMPLE:
                continue
            if _can_be_kept(now) and not _is(now, value):
                if isinstance(value, _Running):
                    raise RefusedError(*_GENERATOR, value.line)
                self.moving[space.key, name] = space
        for space, name in self._new(before):
            self.moving[space.key, name] = space

    def restore(self, before: HeldAttributes) -> None:
        """Give attributes the values that they had; if all were held, others had none.

        A plain value that has become something else (a cache that was filled) is left alone.
        """
        before = _perhaps_changed(before)
        for space, name, value in before.values:
            now = space.get(name)
            if value is MISSING:
                if now is not MISSING:
                    space.remove(name)
            elif _can_be_kept(now) and not _is(now, value):
                space.set(name, _released(value))
        for space, name in self._new(before):
            space.remove(name)

    def _new(self, before: HeldAttributes) -> list[tuple[Space, Any]]:
        """Plain values under names that were none, where all was looked at.

        Beside something that is not plain they are part of a cache, and left there.
        """
        found: list[tuple[Space, Any]] = []
        grown = [
            (look, items) for look in before.looks if look.count != len(items := look.space.items())
        ]
        known = {(space.key, name) for space, name, _ in before.values} if grown else set()
        for look, items in grown:
            new = [
                (look.space, name)
                for name, value in items
                if (look.space.key, name) not in known and _is_new(value)
            ]
            if len(new) == len(items) - look.count:
                found += new
        return found


def _perhaps_changed(before: HeldAttributes) -> HeldAttributes:
    """Without the spaces in which everything is as it was."""
    return before._replace(looks=[look for look in before.looks if not look.is_same()])


def _is_new(value: Any) -> bool:
    """Whether it counts; what hangs together with a cache of tensors is left there."""
    return value.__class__ in _SIMPLE or isinstance(value, np.generic)


_GENERATOR = (
    "the model, the loss or the augmentation takes values from a generator (a function with yield) "
    "that goes on from call to call. A batch is computed in pieces, so how far it has come would "
    "tell how many records were drawn, and it cannot be put back",
    "Keep a counter in an attribute and compute the value from it: attributes move once a step.",
)


class _Kept:
    """A container or an array with what it held: given back as the same object."""

    __slots__ = ("parts", "value")

    def __init__(self, value: Any, parts: Any) -> None:
        self.value, self.parts = value, parts


class _Draws:
    """The state of somebody's own generator."""

    __slots__ = ("_write", "generator", "state")

    def __init__(self, generator: Any) -> None:
        self.generator = generator
        read, self._write = _access(generator)
        self.state = read()

    def restore(self) -> Any:
        self._write(self.state)
        return self.generator


class _Iterator:
    """An iterator, and one that stands where it stood."""

    __slots__ = ("copied", "shown", "value")

    def __init__(self, value: Any) -> None:
        self.value, self.shown = value, repr(value.__reduce__())
        self.copied = copy.deepcopy(value)


class _Running:
    """A function with yield, and how far it was."""

    __slots__ = ("line", "value", "where")

    def __init__(self, value: types.GeneratorType[Any, Any, Any]) -> None:
        self.value, self.where = value, _where(value)
        self.line = f"{value.gi_code.co_filename}:{value.gi_code.co_firstlineno}"


def _where(value: types.GeneratorType[Any, Any, Any]) -> Any:
    frame = value.gi_frame
    if frame is None:
        return None
    plain = [(n, repr(v)) for n, v in frame.f_locals.items() if v.__class__ in _SIMPLE]
    return frame.f_lasti, plain


def _access(generator: Any) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    if isinstance(generator, random.Random):
        return generator.getstate, generator.setstate
    if isinstance(generator, np.random.RandomState):
        return generator.get_state, generator.set_state
    bits = generator.bit_generator

    def write(state: Any) -> None:
        bits.state = state

    return lambda: bits.state, write


def _can_be_kept(value: Any) -> bool:
    """Whether it is plain; what holds tensors or objects of others, a cache perhaps, is not."""
    kind: Any = value.__class__
    if kind in _SIMPLE or value is MISSING or kind in _SAID:
        return True
    if kind in _FIXED or kind in _LISTS:
        if len(value) > LONGEST and kind in (list, deque):
            return _can_be_kept(value[0]) and _can_be_kept(value[-1])
        return all(map(_can_be_kept, value))
    if kind in _DICTS:
        return all(map(_can_be_kept, value.values()))
    if isinstance(value, _ARRAYS):
        return bool(value.dtype != object and value.size <= _ENTRIES)
    if isinstance(value, _GENERATORS):
        return not isinstance(value, random.SystemRandom)
    return isinstance(value, (np.generic, types.GeneratorType, *_ITERATORS))


def _is_fixed(value: Any) -> bool:
    """Whether it says the same as long as it is there, and may be kept there by a list of ours.

    A tensor or an object of the program's own may not: what a program lets go of must be gone.
    """
    kind: Any = value.__class__
    if kind in _SIMPLE or kind in _SAID or isinstance(value, _LASTING):
        return True
    return kind in _FIXED and all(part.__class__ in _SIMPLE for part in value)


def _held(value: Any) -> Any:
    """What a value is now; parts that cannot be kept are kept as they are."""
    kind: Any = value.__class__
    if kind in _SIMPLE or value is MISSING:
        return value
    if kind in _FIXED:
        return (
            value
            if all(part.__class__ in _SIMPLE for part in value)
            else _Kept(value, [_held(part) for part in value])
        )
    if kind in _DICTS:
        if len(value) > LONGEST:
            return _Kept(value, len(value))
        return _Kept(value, {key: _held(part) for key, part in value.items()})
    if kind in _LISTS:
        return _Kept(value, len(value) if len(value) > LONGEST else [_held(v) for v in value])
    if isinstance(value, _ARRAYS):
        return _Kept(value, value.copy())
    if isinstance(value, _GENERATORS) and not isinstance(value, random.SystemRandom):
        return _Draws(value)
    if isinstance(value, _ITERATORS):
        try:
            return _Iterator(value)
        except Exception:  # of things that cannot be copied
            return value
    return _Running(value) if isinstance(value, types.GeneratorType) else value


def _is(now: Any, held: Any) -> bool:
    """Whether a value is what it was."""
    if isinstance(held, _Kept):
        return now is held.value and _same_parts(now, held.parts)
    if isinstance(held, _Draws):
        return now is held.generator and _as_text(_Draws(now).state) == _as_text(held.state)
    if isinstance(held, _Iterator):
        return now is held.value and repr(now.__reduce__()) == held.shown
    if isinstance(held, _Running):
        return now is held.value and _where(now) == held.where
    if now is held:
        return True
    return type(now) is type(held) and _is_simple(now) and _as_text(now) == _as_text(held)


def _is_simple(value: Any) -> bool:
    kind: Any = value.__class__
    simple = kind in _SIMPLE or kind in _FIXED or kind in _SAID
    return simple or (isinstance(value, np.generic) and not isinstance(value, np.void))


def _same_parts(now: Any, parts: Any) -> bool:
    if isinstance(parts, int):
        return len(now) == parts
    if isinstance(now, _ARRAYS):
        return bool(now.shape == parts.shape and now.tobytes() == parts.tobytes())
    if len(now) != len(parts):
        return False
    if isinstance(now, dict):
        return all(_is(a, parts.get(key, MISSING)) for key, a in now.items())
    return all(_is(a, b) for a, b in zip(now, parts, strict=True))


def _released(held: Any) -> Any:
    """The value as it was."""
    if isinstance(held, _Draws):
        return held.restore()
    if isinstance(held, _Iterator):
        return copy.deepcopy(held.copied)
    if isinstance(held, _Running):
        return held.value
    if not isinstance(held, _Kept):
        return held
    value, parts = held.value, held.parts
    if isinstance(value, np.ndarray):
        if value.shape == parts.shape and value.flags.writeable:
            value[...] = parts
    elif isinstance(value, np.void):
        for name in value.dtype.names or ():
            value[name] = parts[name]
    elif isinstance(parts, int):
        _shorten(value, parts)
    elif isinstance(value, dict):
        there = {key: _released(part) for key, part in parts.items()}
        value.clear()
        dict.update(value, there)
    elif isinstance(value, tuple(_FIXED)):
        for part in parts:
            _released(part)
    else:
        those = [_released(part) for part in parts]
        value.clear()
        (value.update if isinstance(value, set) else value.extend)(those)
    return value


def _shorten(value: Any, length: int) -> None:
    """Take off what was added at the end of something long."""
    while len(value) > length:
        if isinstance(value, dict):
            value.popitem()
        elif isinstance(value, (list, deque)):
            value.pop()
        else:
            return


def _as_text(value: Any) -> Any:
    """Comparable, also where numbers are not equal to themselves."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tobytes()
    if isinstance(value, dict):
        return [(key, _as_text(item)) for key, item in value.items()]
    if isinstance(value, (tuple, list, deque)):
        return [_as_text(part) for part in value]
    return value.hex() if isinstance(value, float) else value
