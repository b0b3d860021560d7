"""Memory from before any record was met, and so without any of their values.

A tensor that a model reads and that is neither input, parameter, buffer nor a result of the run is
public if its memory is of this kind and was not written since. What was made or written later, by
a training loop or an earlier batch, may hold records. So does what a program has kept that was
refused for it: it is no more public when the same model is tried again.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
from collections.abc import Container, Iterable

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _disable_current_modes

from noisewise.separation.shadow import storage_key

__all__ = ["Storages", "private_memory", "remember_private", "storages"]

#: Bytes, of all memory together, whose content is remembered: about a second. Memory beyond it
#: counts as unknown, since torch's own count of writes misses those through ``.data`` or numpy.
_ROOM = 2**30


#: Memory that programs have kept of records, as long as it is there.
_PRIVATE: dict[int, StorageWeakRef] = {}


def remember_private(kept: Iterable[tuple[int, StorageWeakRef]]) -> None:
    """Say that memory holds records, whatever becomes of the run that found it."""
    for key in [k for k, held in _PRIVATE.items() if held.expired()]:  # type: ignore[no-untyped-call]
        del _PRIVATE[key]
    _PRIVATE.update(kept)


def private_memory() -> set[int]:
    """Return the keys of what programs have kept of records and is still there."""
    return {key for key, held in _PRIVATE.items() if not held.expired()}  # type: ignore[no-untyped-call]


class Storages:
    """Memory of tensors, with the versions that torch counted for them, and a digest of each."""

    def __init__(self) -> None:
        # A weak reference keeps the address from being given to other memory.
        self._held: dict[int, tuple[StorageWeakRef, set[int], bytes]] = {}
        self._room = _ROOM

    def add(self, tensor: Tensor) -> None:
        """Take in a tensor as it is now, if there is room."""
        storage = tensor.untyped_storage()
        if storage._cdata in _PRIVATE:
            return
        found = self._held.get(storage._cdata)
        if found is None:
            reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
            content = b""
            # A tensor that stands for others (a part of a sharded weight) has no memory to read.
            plain = type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__
            if plain and storage.nbytes() and storage.data_ptr():
                if storage.nbytes() > self._room:
                    return
                content = _digest_of(tensor)
                self._room -= storage.nbytes()
            found = (reference, set(), content)
            self._held[storage._cdata] = found
        found[1].add(tensor._version)

    def hold(self, tensor: Tensor) -> bool:
        """Whether a tensor is one of them, and unchanged."""
        key = storage_key(tensor)
        found = None if key is None else self._held.get(key)
        if found is None or tensor._version not in found[1]:
            return False
        return not found[2] or found[2] == _digest_of(tensor)


def _digest_of(tensor: Tensor) -> bytes:
    """Of all memory of a tensor's storage."""
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        # A copy: memory that numpy has seen can never be resized again.
        whole = whole.set_(tensor.untyped_storage()).clone().cpu()
    return hashlib.blake2b(whole.numpy().tobytes(), digest_size=16).digest()


def storages(
    only: Container[int] | None = None,
    into: Storages | None = None,
    without: Container[int | None] = (),
) -> Storages:
    """All memory of tensors that exists now, or those with these keys, and not with others."""
    kinds, found = {Tensor}, [Tensor]
    while found:
        found = [kind for parent in found for kind in parent.__subclasses__()]
        kinds.update(found)
    result = Storages() if into is None else into
    sized: list[tuple[int, Tensor]] = []
    for value in gc.get_objects():
        if type(value) in kinds and value.layout == torch.strided:
            with contextlib.suppress(Exception):  # functional or unfinished tensors
                key = storage_key(value)
                if key not in without and (only is None or key in only):
                    sized.append((value.untyped_storage().nbytes(), value))
    # Small ones first: the large ones are somebody's data.
    for _, value in sorted(sized, key=lambda pair: pair[0]):
        with contextlib.suppress(Exception):
            result.add(value)
    return result
