"""Where a program can keep plain values: everything that its own code can reach.

Attributes of modules and of objects that hang on them, what functions close over, globals that
their code names, default arguments and attributes of classes. Code of libraries is not looked into,
only their objects.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from noisewise.separation import is_users

__all__ = ["CONTAINERS", "MISSING", "Space", "spaces"]


class Missing:
    """There is no such value."""


MISSING = Missing()
#: Containers whose parts are state; longer ones are data, of which only the end is looked at.
CONTAINERS = (list, tuple, dict, set, frozenset, deque)
LONGEST = 4096
#: How many objects are looked at, at most: beyond are somebody's data.
_MOST = 20_000
_LIBRARIES = frozenset((*sys.stdlib_module_names, "torch", "numpy", "noisewise"))
_PLAIN_OBJECTS = (types.SimpleNamespace, argparse.Namespace)
#: What torch itself keeps in a module, and what the engine puts there.
_OF_MODULES = frozenset(name for name in vars(nn.Module()) if name.startswith("_")) | {"forward"}


class Space:
    """Names with values: those of an object, of a class, of a function, or global ones."""

    __slots__ = ("_listed", "_mark", "_remove", "_write", "key", "owner", "values")

    def __init__(
        self,
        owner: Any,
        values: Any,
        listed: Callable[[], Iterator[tuple[Any, Any]]] | None = None,
        write: Callable[[Any, Any], None] | None = None,
        remove: Callable[[Any], Any] | None = None,
        mark: Callable[[], list[Any]] | None = None,
    ) -> None:
        self.owner, self.values, self.key = owner, values, id(values)
        self._listed, self._write, self._remove = listed, write, remove
        self._mark = mark

    def mark(self) -> list[Any] | None:
        """Names and values, or more: while all of them are the same objects, `items` are too.

        None if nothing less than `items` tells.
        """
        if self._mark is not None:
            return self._mark()
        return None if self._listed is not None else [*self.values, *self.values.values()]

    def items(self) -> list[tuple[Any, Any]]:
        """Names and values as they are now."""
        return list(self.values.items() if self._listed is None else self._listed())

    def get(self, name: Any) -> Any:
        """One of them, or `MISSING`."""
        if self._listed is None:
            return self.values.get(name, MISSING)
        return dict(self._listed()).get(name, MISSING)

    def set(self, name: Any, value: Any) -> None:
        """Give a name a value."""
        if self._write is None:
            self.values[name] = value
        else:
            self._write(name, value)

    def remove(self, name: Any) -> None:
        """Take a name away."""
        if self._remove is not None:
            self._remove(name)
        elif self._write is None:
            self.values.pop(name, None)


def spaces(*roots: Any) -> list[Space]:
    """All of them that code of these objects reaches."""
    found: list[Space] = []
    seen: set[tuple[int, Any]] = set()  # objects, and names in spaces
    waiting: deque[Any] = deque(roots)
    kept: list[Any] = []
    while waiting and len(found) < _MOST:
        value = waiting.popleft()
        if isinstance(value, (Tensor, *_SIMPLE)) or (id(value), None) in seen:
            continue
        kept.append(value)  # or its number would be given to another
        seen.add((id(value), None))
        for space in _spaces_of(value):
            names = tuple(name for name, _ in space.items()) if space.owner is None else None
            key = (space.key, names or "own")
            if key not in seen:
                seen.add(key)
                found.append(space)
                waiting.extend(part for _, part in space.items())
        waiting.extend(_parts_of(value))
    return found


_SIMPLE = (bool, int, float, complex, str, bytes, type(None))


def _parts_of(value: Any) -> Iterator[Any]:
    """What hangs on a value beside its names."""
    if isinstance(value, nn.Module):
        yield from value._modules.values()
    elif isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, types.MethodType):
        yield from (value.__self__, value.__func__)
    elif isinstance(value, (property, classmethod, staticmethod)):
        yield from (getattr(value, n, None) for n in ("fget", "fset", "__func__"))
    elif isinstance(value, CONTAINERS) and len(value) <= LONGEST:
        yield from value.values() if isinstance(value, dict) else value
    elif isinstance(value, types.GeneratorType) and value.gi_frame is not None:
        yield from value.gi_frame.f_locals.values()
    if _has_own_state(value) and is_users(type(value).__module__):
        yield type(value)
    if isinstance(value, type) and is_users(value.__module__):
        yield from value.__bases__


def _spaces_of(value: Any) -> Iterator[Space]:
    if isinstance(value, types.FunctionType):
        if is_users(value.__module__):
            yield from _of_function(value)
    elif isinstance(value, type):
        if is_users(value.__module__):
            yield _of_class(value)
    elif isinstance(value, nn.Module):
        own = vars(value)
        yield Space(
            value,
            own,
            lambda: (item for item in own.items() if item[0] not in _OF_MODULES),
            own.__setitem__,
            lambda name: own.pop(name, None),
            lambda: [*own, *own.values()],
        )
    elif isinstance(value, functools._lru_cache_wrapper):
        yield Space(value, vars(value))
    elif isinstance(value, dict) and len(value) <= LONGEST:
        yield Space(value, value)
    elif isinstance(value, list) and len(value) <= LONGEST:
        yield Space(
            value,
            value,
            lambda: iter(list(enumerate(value))),
            value.__setitem__,
            lambda name: None,
        )
    elif _has_own_state(value):
        if hasattr(value, "__dict__"):
            yield Space(value, vars(value))
        names = [n for kind in type(value).__mro__ for n in _slots_of(kind)]
        if names:
            yield Space(
                value,
                value,
                lambda: ((n, getattr(value, n)) for n in names if hasattr(value, n)),
                functools.partial(object.__setattr__, value),
                functools.partial(object.__delattr__, value),
            )


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    slots = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(name for name in slots if name not in ("__dict__", "__weakref__"))


def _has_own_state(value: Any) -> bool:
    """An object of a class of the user's or of a library that is not torch's or Python's."""
    if isinstance(value, _PLAIN_OBJECTS):
        return True
    if isinstance(value, (type, types.ModuleType)):
        return False
    kind = type(value)
    return str(kind.__module__).partition(".")[0] not in _LIBRARIES


def _of_class(kind: type) -> Space:
    def listed() -> Iterator[tuple[Any, Any]]:
        return (
            (name, value)
            for name, value in vars(kind).items()
            if not (name.startswith("__") and name.endswith("__"))
        )

    def write(name: Any, value: Any) -> None:
        type.__setattr__(kind, name, value)

    def remove(name: Any) -> None:
        if name in vars(kind):
            type.__delattr__(kind, name)

    names = vars(kind)
    return Space(kind, kind, listed, write, remove, lambda: [*names, *names.values()])


def _of_function(function: types.FunctionType) -> Iterator[Space]:
    code, cells = function.__code__, function.__closure__ or ()
    for name, cell in zip(code.co_freevars, cells, strict=True):
        yield _of_cell(name, cell)
    named = tuple(sorted(_names(code)))
    within = [function.__globals__]
    within += [
        vars(module)
        for name in named
        if isinstance(module := function.__globals__.get(name), types.ModuleType)
        and is_users(module.__name__)
    ]
    for values in within:
        yield _of_globals(values, named)
    defaults: dict[Any, Any] = dict(enumerate(function.__defaults__ or ()))
    defaults.update(function.__kwdefaults__ or {})
    if defaults:
        given = {f"default {name}": value for name, value in defaults.items()}
        yield Space(function, function, lambda: iter(given.items()), lambda name, value: None)
    yield Space(function, vars(function))


def _of_globals(values: dict[str, Any], named: tuple[str, ...]) -> Space:
    def listed() -> Iterator[tuple[Any, Any]]:
        return ((name, values[name]) for name in named if name in values)

    def mark() -> list[Any]:
        return list(map(values.get, named, itertools.repeat(MISSING)))

    def remove(name: Any) -> None:
        values.pop(name, None)

    return Space(None, values, listed, values.__setitem__, remove, mark)


def _of_cell(name: Any, cell: Any) -> Space:
    def listed() -> Iterator[tuple[Any, Any]]:
        try:
            yield name, cell.cell_contents
        except ValueError:  # nothing in it yet
            return

    def write(_: Any, value: Any) -> None:
        cell.cell_contents = value

    def mark() -> list[Any]:
        return [value for _, value in listed()]

    return Space(cell, cell, listed, write, mark=mark)


def _names(code: types.CodeType) -> set[str]:
    """Names that code, and code within it, looks up."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _names(constant)
    return found
