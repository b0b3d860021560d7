"""What a model or a loss keeps in plain attributes: counters, schedules, generators of its own.

They are state like buffers: how often they move must not tell how many pieces a batch had. Only
plain values are looked at, since nothing else can be put back; a program that counts elsewhere is
noticed because it treats pieces differently (`Comparing.compare_pieces`).
"""

from __future__ import annotations

import copy
import random
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from torch import nn

__all__ = ["Attributes", "HeldAttributes"]

_PLAIN = frozenset((bool, int, float, complex, str, bytes, type(None)))
_LISTS = frozenset((tuple, list, set, frozenset, deque))
#: Longer lists are data rather than state.
_LONGEST = 64
_CODE = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)


class _Missing:
    """There was no such attribute."""


#: Object, name of the attribute, and what it was.
HeldAttributes = list[tuple[Any, str, Any]]


class Attributes:
    """Those of a model's modules, of a loss and of an augmentation."""

    def __init__(self, model: nn.Module, *others: Any) -> None:
        self._model, self._others = model, others
        #: Attributes that a run changes, as far as runs were watched.
        self.moving: dict[tuple[int, str], Any] = {}

    def remember(self, moving_only: bool = False) -> HeldAttributes:
        """All of them as they are, or those that move."""
        if moving_only:
            return [
                (holder, name, _state(vars(holder).get(name, _Missing)))
                for (_, name), holder in self.moving.items()
                if _can_be_kept(vars(holder).get(name, _Missing))
            ]
        return [
            (holder, name, _state(value))
            for holder in self._holders()
            for name, value in vars(holder).items()
            if _can_be_kept(value)
        ]

    def learn(self, before: HeldAttributes) -> None:
        """Note which attributes have changed since."""
        known = {(id(holder), name) for holder, name, _ in before}
        for holder, name, value in before:
            now = vars(holder).get(name, _Missing)
            if _can_be_kept(now) and not _same(_state(now), value):
                self.moving[id(holder), name] = holder
        for holder in self._holders():
            for name, value in vars(holder).items():
                if (id(holder), name) not in known and _can_be_kept(value):
                    self.moving[id(holder), name] = holder

    def restore(self, before: HeldAttributes, whole: bool) -> None:
        """Give attributes the values that they had; if all were held, others had none.

        A plain value that has become something else (a cache that was filled) is left alone.
        """
        for holder, name, value in before:
            now = vars(holder).get(name, _Missing)
            if value is _Missing:
                holder.__dict__.pop(name, None)
            elif isinstance(value, _Draws):
                value.restore()
            elif _can_be_kept(now) and not _same(now, value):
                holder.__dict__[name] = copy.deepcopy(value)
        if whole:
            held = {(id(holder), name) for holder, name, _ in before}
            for key, holder in self.moving.items():
                if key not in held:
                    holder.__dict__.pop(key[1], None)

    def _holders(self) -> Iterator[Any]:
        seen: set[int] = set()
        for root in (self._model, *self._others):
            owner = getattr(root, "__self__", root)
            found = owner.modules() if isinstance(owner, nn.Module) else [owner]
            for holder in found:
                if id(holder) in seen or isinstance(holder, _CODE):
                    continue
                seen.add(id(holder))
                if hasattr(holder, "__dict__"):
                    yield holder


class _Draws:
    """The state of somebody's own generator."""

    def __init__(self, generator: Any) -> None:
        self._read, self._write = _access(generator)
        self.state = self._read()

    def restore(self) -> None:
        self._write(self.state)


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
    return value is _Missing or _draws(value) or _is_plain(value)


def _draws(value: Any) -> bool:
    known = (random.Random, np.random.RandomState, np.random.Generator)
    return isinstance(value, known) and not isinstance(value, random.SystemRandom)


def _is_plain(value: Any) -> bool:
    kind: Any = type(value)
    if kind in _PLAIN:
        return True
    if (kind is not dict and kind not in _LISTS) or len(value) > _LONGEST:
        return False
    parts = [*value.keys(), *value.values()] if kind is dict else list(value)
    return all(_is_plain(part) for part in parts)


def _state(value: Any) -> Any:
    if _draws(value):
        return _Draws(value)
    return copy.deepcopy(value) if value.__class__ not in _PLAIN and _is_plain(value) else value


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, _Draws) and isinstance(other, _Draws):
        return bool(_as_text(one.state) == _as_text(other.state))
    return one is other or (type(one) is type(other) and bool(_as_text(one) == _as_text(other)))


def _as_text(value: Any) -> Any:
    """Comparable, also where numbers are not equal to themselves."""
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, dict):
        return [(key, _as_text(item)) for key, item in value.items()]
    if isinstance(value, (tuple, list, deque)):
        return [_as_text(part) for part in value]
    return value.hex() if isinstance(value, float) else value
