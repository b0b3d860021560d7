"""What a model keeps of the records that went through it.

After a run, with everything let go, no memory that depends on a record may still be alive: what
is, the model or something around it has kept (a running average, an attribute, a list, a cache),
and it would be released with the model. A watched run knows which memory that is. Of a run that is
only bound to it everything must be gone but what the watched one was allowed to keep.
"""

from __future__ import annotations

import gc
from collections.abc import Container, Iterator
from typing import Any

import torch
from torch import Tensor, UntypedStorage, nn
from torch.multiprocessing.reductions import StorageWeakRef

from noisewise.separation import (
    KEPT,
    Finding,
    Path,
    Proof,
    Shadow,
    private_memory,
    remember_private,
    storage_key,
)

__all__ = ["Lingering", "kept_by", "remember_kept"]

#: Batches after which what hangs in cycles is collected. Collecting takes longer than a small step,
#: so whoever makes cycles in every step is given twice the time from one collection to the next.
_PATIENCE = 16
_OUTSIDE = "something outside the model (a closure, a global list or a cache)"


def kept_by(model: nn.Module, shadow: Shadow) -> list[Finding]:
    """What keeps records' values, though whoever ran the model keeps none."""
    with torch._C.DisableTorchFunction():
        if not _alive(shadow):
            return []
        gc.collect()  # graphs and outputs may hang in cycles
        alive = _alive(shadow)
        if not alive:
            return []
        return _names(model, {key: shadow.cells[key].place for key in alive})


def remember_kept(shadow: Shadow) -> None:
    """A watched run ends, perhaps by a refusal: what is alive of its records stays private."""
    with torch._C.DisableTorchFunction():
        remember_private((key, shadow.cells[key].reference) for key in _alive(shadow))


class Lingering:
    """What bound runs of a model have left alive, until it is gone."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._batches = 0
        self._patience = _PATIENCE
        #: Since which batch, and torch's own weak references, which are ours to give back.
        self._waiting: list[tuple[int, int]] = []
        self._require_clean()

    def _require_clean(self) -> None:
        """Refuse a model in which there is what a run before, which was refused, has kept."""
        left = dict.fromkeys(private_memory(), "a line of an earlier run, which was refused")
        if left and (named := list(dict.fromkeys(_named(self._model, left)))):
            raise Proof(state=tuple(named)).refusal()

    def note(self, path: Path, lasting: Container[int]) -> None:
        """A bound run is over; results with these numbers may stay."""
        self._waiting += [(self._batches, key) for key in path.hand_on(lasting)]

    def require_gone(self, all_of_it: bool = False) -> None:
        """Refuse what somebody keeps, of all batches or of those that are some time ago."""
        self._batches += 1
        if all_of_it:
            self._require_clean()
        due = self._batches if all_of_it else self._batches - self._patience
        self._let_go()
        if not any(since < due for since, _ in self._waiting):
            return
        gc.collect()
        self._patience *= 1 if all_of_it else 2
        self._let_go()
        kept = [key for since, key in self._waiting if since < due]
        if kept:
            storages = [(key, _storage_of(key)) for key in kept]
            remember_private((k, StorageWeakRef(s)) for k, s in storages if s is not None)  # type: ignore[no-untyped-call]
            keys = dict.fromkeys(kept, "a later step")
            raise Proof(state=tuple(_names(self._model, keys))).refusal()

    def _let_go(self) -> None:
        """Forget what is gone."""
        if not self._waiting:
            return
        left = []
        for since, key in self._waiting:
            if _Memory._expired(key):
                _Memory._free_weak_ref(key)
            else:
                left.append((since, key))
        self._waiting = left

    def __del__(self) -> None:
        for _, key in self._waiting:
            _Memory._free_weak_ref(key)


_Memory: Any = UntypedStorage


def _storage_of(key: int) -> UntypedStorage | None:
    """Memory by its key, if it is there."""
    found: UntypedStorage | None = UntypedStorage._new_with_weak_ptr(key)
    return found


def _names(model: nn.Module, alive: dict[int, str]) -> list[Finding]:
    named = list(dict.fromkeys(_named(model, alive)))
    return named or [Finding(_OUTSIDE, next(iter(alive.values())), KEPT)]


def _alive(shadow: Shadow) -> set[int]:
    return {
        key
        for key, cell in shadow.cells.items()
        if cell.planes is not None
        and cell.alive
        and bool(cell.planes.any())
        and key not in shadow.given
    }


def _named(model: nn.Module, alive: dict[int, str]) -> Iterator[Finding]:
    for path, module in model.named_modules():
        where = path or "(model)"
        for name, value in (*module._parameters.items(), *module._buffers.items()):
            if value is not None and (key := storage_key(value)) in alive and key is not None:
                yield Finding(f'"{path}.{name}"' if path else f'"{name}"', alive[key], KEPT)
        for name, value in vars(module).items():
            if name in ("_parameters", "_buffers", "_modules"):
                continue
            for key in map(storage_key, _inside(value, 3)):
                if key in alive and key is not None:
                    what = f'the attribute {name} of {type(module).__name__} at "{where}"'
                    yield Finding(what, alive[key], KEPT)
                    break


def _inside(value: Any, depth: int) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        # torch.func leaves its wrappers behind, in the list of weights of a recurrent layer, say.
        while torch._C._functorch.is_functorch_wrapped_tensor(value):
            value = torch._C._functorch.get_unwrapped(value)
        yield value
    elif depth and isinstance(value, (list, tuple, set)):
        for item in value:
            yield from _inside(item, depth - 1)
    elif depth and isinstance(value, dict):
        for item in value.values():
            yield from _inside(item, depth - 1)
