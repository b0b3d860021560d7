"""The state of the generators that programs share: those of torch, Python and numpy.

Every step asks whether Python or numpy have drawn. Their own ways to tell build lists of numbers,
which took a third of a small model's step; so their memory is compared. Where it is not laid out as
expected (another interpreter, another bit generator), they are asked as usual.
"""

from __future__ import annotations

import _random
import contextlib
import ctypes
import pickle
import random
import struct
import sys
from typing import Any, Protocol

import numpy as np
import torch

from noisewise.separation import Draws

__all__ = ["Chance"]

_WORDS = 624
_TWISTER = struct.Struct(f"={_WORDS}Ii")
#: In Python's generator the position comes first.
_PYTHONS = struct.Struct(f"=i{_WORDS}I")
_HEADER = object.__basicsize__


class _Access(Protocol):
    """Reads a generator's state, equal if and only if nothing was drawn, and writes it."""

    def read(self) -> Any: ...

    def write(self, state: Any) -> None: ...


class _AskedPython:
    def __init__(self, generator: random.Random) -> None:
        self.read, self.write = generator.getstate, generator.setstate


class _Python:
    """Python's generator, by its memory."""

    def __init__(self, generator: random.Random) -> None:
        self._generator, self._address = generator, id(generator) + _HEADER

    def read(self) -> Any:
        memory = ctypes.string_at(self._address, _PYTHONS.size)
        return memory, self._generator.gauss_next  # type: ignore[attr-defined]

    def write(self, state: Any) -> None:
        position, *words = _PYTHONS.unpack(state[0])
        self._generator.setstate((random.Random.VERSION, (*words, position), state[1]))


class _AskedNumpy:
    def __init__(self, generator: np.random.RandomState) -> None:
        self._generator = generator

    def read(self) -> Any:
        return pickle.dumps(self._generator.get_state(legacy=False))

    def write(self, state: Any) -> None:
        self._generator.set_state(pickle.loads(state))


class _Numpy:
    """numpy's generator, by its memory: that of its bits, and its own, where a normal may wait."""

    def __init__(self, generator: np.random.RandomState) -> None:
        self._generator, self._asked = generator, _AskedNumpy(generator)
        self._address = id(generator) + _HEADER
        self._size = type(generator).__basicsize__ - _HEADER

    def read(self) -> Any:
        bits: Any = self._generator._bit_generator
        if type(bits) is not np.random.MT19937:
            return self._asked.read()
        own = ctypes.string_at(self._address, self._size)
        return own, ctypes.string_at(bits.ctypes.state_address, _TWISTER.size)

    def write(self, state: Any) -> None:
        if isinstance(state, bytes):
            self._asked.write(state)
            return
        *words, position = _TWISTER.unpack(state[1])
        waits, normal = _WAITING.unpack_from(state[0], _waiting_at())
        key = np.array(words, np.uint32)
        self._generator.set_state(("MT19937", key, position, waits, normal))


#: Whether a normal number waits, and which.
_WAITING = struct.Struct("@id")
_AT: list[int] = []


def _waiting_at() -> int:
    """Where in its memory numpy keeps the second of two normal numbers."""
    if not _AT:
        generator = np.random.RandomState(1)
        generator.standard_normal()
        held = generator.get_state(legacy=False)
        size = type(generator).__basicsize__ - _HEADER
        memory = ctypes.string_at(id(generator) + _HEADER, size)
        _AT.append(memory.index(_WAITING.pack(held["has_gauss"], held["gauss"])))
    return _AT[0]


def _works(access: _Access, ask: _Access, draws: Any) -> bool:
    """Whether every draw shows in memory, and a state that was read there is the right one."""
    seen = []
    for draw in draws:
        first, asked = access.read(), ask.read()
        draw()
        seen.append(first != access.read())
        access.write(first)
        seen += [asked == ask.read(), first == access.read()]
        draw()
    return all(seen)


def _python(generator: random.Random) -> _Access:
    if sys.implementation.name == "cpython" and _HEADER + _PYTHONS.size <= (
        _random.Random.__basicsize__
    ):
        own = random.Random(1)
        with contextlib.suppress(Exception):
            if _works(_Python(own), _AskedPython(own), [own.random, lambda: own.gauss(0, 1)] * 3):
                return _Python(generator)
    return _AskedPython(generator)


def _numpy(generator: np.random.RandomState) -> _Access:
    if sys.implementation.name == "cpython":
        own = np.random.RandomState(1)
        with contextlib.suppress(Exception):
            if _works(_Numpy(own), _AskedNumpy(own), [own.random_sample, own.standard_normal] * 3):
                return _Numpy(generator)
    return _AskedNumpy(generator)


_SHARED: tuple[_Access, _Access] = (
    _python(random.getstate.__self__),  # type: ignore[attr-defined]
    _numpy(np.random.mtrand._rand),
)


class Chance:
    """What programs that share generators will draw from now on, to draw the same again."""

    __slots__ = ("_device", "_host", "_numpy", "_python", "_state")

    def __init__(self, device: torch.device) -> None:
        self._host = torch.default_generator.get_state()
        python, numpy = _SHARED
        self._python, self._numpy = python.read(), numpy.read()
        self._device = device if device.type == "cuda" else None
        self._state = None if self._device is None else torch.cuda.get_rng_state(self._device)

    def restore(self) -> None:
        """Draw from here on as before."""
        Draws.settings += 1
        torch.random.set_rng_state(self._host)
        for access, state in zip(_SHARED, (self._python, self._numpy), strict=True):
            access.write(state)
        if self._state is not None:
            torch.cuda.set_rng_state(self._state, self._device)  # type: ignore[arg-type]

    @property
    def is_unseen(self) -> bool:
        """Whether Python or numpy have drawn since, which no tensor shows."""
        python, numpy = _SHARED
        return bool(self._python != python.read() or self._numpy != numpy.read())
