"""Carries the shadow through every ATen operation of a run: forward, loss and backward.

`Watch` is a dispatch mode: it sees what torch computes, whoever asked for it (modules, hooks,
custom autograd functions, recomputation). `Leaks` is a function mode: it sees the few doors
through which values leave torch without an operation. No value of a record is ever read.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from noisewise.separation import rules
from noisewise.separation.call import Call, Planes, UnfollowedError, everything
from noisewise.separation.origin import place
from noisewise.separation.registry import ESCAPES, Operation, operation_of
from noisewise.separation.shadow import LARGEST, PLANE, TOP, Origin, Shadow, is_mixed, storage_key

__all__ = ["Leaks", "Watch"]

assert rules  # importing them fills the registry


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The shadows of one run, and everything in it that could mix records.

    Parameters
    ----------
    known : sequence of Tensor
        Public tensors: parameters and buffers.
    private : sequence of Tensor
        Tensors that hold many records (the dataset itself): mixed wherever they are read.
    strict : bool
        Tell memory that existed before from memory that was made behind our back. That takes a
        look at every object there is, so it is done only for runs that met such memory.

    Attributes
    ----------
    strangers : bool
        Whether memory was met that no operation made and that is not known.
    unknown : dict of Origin
        Operations on records that no rule speaks for.
    escapes : dict of Origin
        Where Python learnt something of a record.
    outside : dict of Origin
        Where tensors were read that were made before, and are neither inputs nor known.
    """

    def __init__(
        self, known: Sequence[Tensor], private: Sequence[Tensor] = (), strict: bool = False
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shadow = Shadow()
        self.paused = False
        self.unknown: dict[Origin, None] = {}
        self.escapes: dict[Origin, None] = {}
        self.outside: dict[Origin, None] = {}
        self.known = {storage_key(t) for t in known}
        everywhere = torch.full((2, 1), TOP - 1, dtype=PLANE)
        for tensor in private:
            planes = everywhere.reshape(2, *(1,) * tensor.dim())
            self.shadow.write(
                tensor, planes, False, Origin("the training data", "outside the batch")
            )
        self.before = _storages() if strict else None
        self.strangers = False

    def mark(self, tensor: Tensor, owners: Tensor) -> None:
        """Say which record each row of a tensor belongs to (negative: none)."""
        if owners.numel() and int(owners.max()) >= LARGEST:
            raise ValueError(f"a batch of at most {LARGEST} records can be followed")
        own = (owners + 1).to(PLANE)
        planes = torch.stack([own, torch.where(own > 0, TOP - own, own)])
        self.shadow.write(tensor, planes.reshape(2, -1, *(1,) * (tensor.dim() - 1)))

    def notice(self, what: str) -> None:
        """Something that cannot be followed happened."""
        if not self.paused:
            self.escapes.setdefault(Origin(what, place()))

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Let the library itself compute, unwatched."""
        was, self.paused = self.paused, True
        try:
            with torch._C.DisableTorchFunction(), _disable_current_modes():
                yield
        finally:
            self.paused = was

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation, then follow it."""
        kwargs = kwargs or {}
        # Function modes follow what the user calls, not what the watch calls in turn.
        with torch._C.DisableTorchFunction():
            result = func(*args, **kwargs)
            if not self.paused:
                self._follow(func, args, kwargs, result)
        return result

    def _follow(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        operation = operation_of(func)
        if operation.reshapes:
            return
        shadow = self.shadow
        read = kwargs
        if operation.outs:
            read = {name: value for name, value in kwargs.items() if name not in operation.outs}
        call = Call(func, operation.names, operation.defaults, args, read, shadow)
        cells = [shadow.cell(t) for t in call.tensors]
        private = any(cell is not None and cell.planes is not None for cell in cells)
        fresh = call.name == "lift_fresh"
        if not fresh:
            self._strangers([t for t, c in zip(call.tensors, cells, strict=True) if c is None])
        if private and call.name in ESCAPES:
            self.escapes.setdefault(Origin(call.name, place()))
        self._find_results(call, operation, kwargs, result, fresh)
        if not call.results:
            return
        const = fresh or (
            not operation.random and all(cell is not None and cell.const for cell in cells)
        )
        if not private:
            for tensor in call.results:
                shadow.write(tensor, None, const)
            return
        origins = [cell.origin for cell in cells if cell is not None and cell.origin is not None]
        for tensor, planes in zip(call.results, self._apply(call, operation), strict=True):
            origin = None
            if planes is not None and planes.numel() and bool(is_mixed(planes).any()):
                origin = origins[0] if origins else Origin(call.name, place())
            shadow.write(tensor, planes, False, origin)

    def _find_results(
        self, call: Call, operation: Operation, kwargs: dict[str, Any], result: Any, fresh: bool
    ) -> None:
        """Memory that was written; a result in an operand's memory is a view: nothing to do."""
        if operation.written:
            named = {**call.arguments, **kwargs}
            written = [named.get(name) for name in operation.written]
            call.results = [t for t in pytree.tree_leaves(written) if isinstance(t, Tensor)]
        old = set() if fresh else {storage_key(t) for t in (*call.tensors, *call.results)}
        leaves = [t for t in pytree.tree_leaves(result) if isinstance(t, Tensor)]
        call.results += [t for t in leaves if storage_key(t) not in old]

    def _apply(self, call: Call, operation: Operation) -> list[Planes]:
        """What the rule says; everything together where there is none, or it read too little."""
        try:
            if any(storage_key(t) is None for t in (*call.tensors, *call.results)):
                raise UnfollowedError("a tensor without plain memory")
            if operation.rule is None:
                raise UnfollowedError("it has no rule")
            found = operation.rule(call)
            unread = [
                t
                for t in call.tensors
                if id(t) not in call.read and self.shadow.read(t) is not None
            ]
            if unread:
                raise UnfollowedError("its rule does not read every operand")
            if len(found) != len(call.results):
                raise UnfollowedError("its rule does not fit this form of it")
            return found
        except UnfollowedError as reason:
            self.unknown.setdefault(Origin(f"{call.name} ({reason})", place()))
        except (RuntimeError, IndexError, TypeError, AttributeError, ValueError):
            self.unknown.setdefault(Origin(f"{call.name} (a form that its rule misses)", place()))
        call.tensors = [t for t in call.tensors if storage_key(t) is not None]
        return everything(call)

    def _strangers(self, tensors: list[Tensor]) -> None:
        """Memory that no operation made: from before, or made behind our back."""
        for tensor in tensors:
            key = storage_key(tensor)
            if key is None or key in self.known:
                continue
            self.strangers = True
            if self.before is not None and key in self.before:
                self.outside.setdefault(Origin("a tensor made before", place()))
            elif tensor.numel():
                self.escapes.setdefault(Origin("a tensor of unknown origin", place()))


def _storages() -> dict[int, StorageWeakRef]:
    """All memory of tensors that exist now: not made from the records of a run that follows."""
    kinds, found = {Tensor}, [Tensor]
    while found:
        found = [kind for parent in found for kind in parent.__subclasses__()]
        kinds.update(found)
    result = {}
    for value in gc.get_objects():
        if type(value) in kinds and value.layout == torch.strided:
            with contextlib.suppress(Exception):  # functional or unfinished tensors
                storage = value.untyped_storage()
                result[storage._cdata] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
    return result


class Leaks(TorchFunctionMode):
    """Sees the values of records leave torch without an operation."""

    DOORS = frozenset(
        (
            "tolist",
            "numpy",
            "__array__",
            "data_ptr",
            "untyped_storage",
            "storage",
            "_typed_storage",
            "storage_type",
            "__dlpack__",
            "__deepcopy__",
            "__reduce_ex__",
            "share_memory_",
            "item",
            "__repr__",
            "__str__",
            "__format__",
        )
    )

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Look at who leaves."""
        name = getattr(func, "__name__", "")
        if name in self.DOORS and not self.watch.paused and args and isinstance(args[0], Tensor):
            with self.watch.pause():
                private = self.watch.shadow.read(args[0]) is not None
            if private:
                self.watch.escapes.setdefault(Origin(name, place()))
        return func(*args, **(kwargs or {}))
