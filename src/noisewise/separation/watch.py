"""Carries the shadow through every ATen operation of a run: forward, loss and backward.

`Watch` is a dispatch mode: it sees what torch computes, whoever asked for it (modules, hooks,
custom autograd functions, recomputation). `Leaks` is a function mode: it sees the few doors
through which values leave torch without an operation. No value of a record is ever read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from noisewise.separation import rules
from noisewise.separation.before import Storages, storages
from noisewise.separation.call import HIDDEN, Call, Planes, UnfollowedError, everything
from noisewise.separation.origin import place
from noisewise.separation.registry import Operation, operation_of, words
from noisewise.separation.shadow import LARGEST, PLANE, TOP, Origin, Shadow, is_mixed, storage_key

__all__ = ["Leaks", "Storages", "Watch", "storages"]

assert rules  # importing them fills the registry

_EVERYBODY = torch.full((2,), TOP - 1, dtype=PLANE)
_PLAIN = Tensor.__torch_dispatch__


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The shadows of one run, and everything in it that could mix records.

    Parameters
    ----------
    known : sequence of Tensor
        Public tensors: parameters and buffers.
    private : sequence of Tensor
        Tensors that hold many records (the dataset itself): mixed wherever they are read.
    before : Storages, optional
        Memory from before any record was met, to tell it from memory that was made behind our
        back. Without it every such memory counts as strange, and the run has to be made again.

    Attributes
    ----------
    strangers : bool
        Whether memory was met that no operation made and that is not known.
    random : bool
        Whether anything was drawn.
    unknown : dict of Origin
        Operations on records that no rule speaks for.
    escapes : dict of Origin
        Where Python learnt something of a record.
    outside : dict of Origin
        Where tensors were read that were made before, and are neither inputs nor known.
    """

    def __init__(
        self,
        known: Sequence[Tensor],
        private: Sequence[Tensor] = (),
        before: Storages | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shadow = Shadow()
        self.paused = False
        self.unknown: dict[Origin, None] = {}
        self.escapes: dict[Origin, None] = {}
        self.outside: dict[Origin, None] = {}
        self.known = {storage_key(t) for t in known}
        for tensor in private:
            planes = _EVERYBODY.reshape(2, *(1,) * tensor.dim())
            self.shadow.given.add(tensor.untyped_storage()._cdata)
            self.shadow.write(
                tensor, planes, False, Origin("the training data", "outside the batch")
            )
        self.before = before
        self.strangers = False
        self.random = False
        #: How many operations on records were seen, and how many torch functions are under way.
        self.reads = 0
        self.calls = 0
        self._exported: set[int] = set()

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
            try:
                result = func(*args, **kwargs)
            except Exception:
                # Whoever catches it learns something of the operands.
                if not self.paused and self._any_private((args, kwargs)):
                    self.escapes.setdefault(Origin(f"{_name(func)} (it raises)", place()))
                raise
            if not self.paused:
                self._follow(func, args, kwargs, result)
        return result

    def left_behind(self) -> set[int]:
        """Memory without records that the run made and somebody keeps."""
        cells = self.shadow.cells.items()
        return {k for k, c in cells if k not in self.known and c.planes is None and c.alive}

    def export(self, tensor: Tensor) -> None:
        """Another library may read this memory from now on, so no record may be written to it."""
        key = storage_key(tensor)
        if key is not None:
            self._exported.add(key)

    def _any_private(self, values: Any) -> bool:
        leaves = pytree.tree_leaves(values)
        return any(isinstance(t, Tensor) and self.shadow.read(t) is not None for t in leaves)

    def _follow(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        operation = operation_of(func)
        self.random = self.random or operation.random
        if operation.foreign:
            self.unknown.setdefault(Origin(f"{func} (not an operation of torch)", place()))
        if kwargs.get("generator") is not None:
            what = f"{_name(func)} (it draws from a generator of its own, which is not followed)"
            self.unknown.setdefault(Origin(what, place()))
        if operation.reshapes:
            return
        shadow = self.shadow
        read = kwargs
        if operation.outs:
            read = {name: value for name, value in kwargs.items() if name not in operation.outs}
        call = Call(func, operation.names, operation.defaults, args, read, shadow)
        cells = [shadow.cell(t) for t in call.tensors]
        private = any(cell is not None and cell.planes is not None for cell in cells)
        self.reads += private
        fresh = call.name == "lift_fresh"
        if fresh and not self.calls:
            # An old constructor, which no function mode sees: its entries may be anybody's.
            self.escapes.setdefault(Origin("a tensor of unknown origin", place()))
        if not fresh:
            self._strangers([t for t, c in zip(call.tensors, cells, strict=True) if c is None])
        if private and operation.escapes:
            self.escapes.setdefault(Origin(call.name, place()))
        self._find_results(call, operation, kwargs, result, fresh)
        if private and not _tensors_only(result) and call.name not in Leaks.FACTS:
            self.escapes.setdefault(Origin(call.name, place()))
        if not call.results:
            return
        if operation.unwritten:
            for tensor in call.results:
                origin = Origin(f"{call.name} (memory that nobody has written)", place())
                shadow.write(tensor, _EVERYBODY.reshape(2, *(1,) * tensor.dim()), False, origin)
            return
        # Floats are not always part of the path, so nothing that follows from one is constant.
        const = (
            all(not t.is_floating_point() for t in call.results)
            if fresh
            else (
                not operation.random
                and all(cell is not None and cell.const for cell in cells)
                and HIDDEN not in call.arguments.values()
            )
        )
        if not private:
            for tensor in call.results:
                shadow.write(tensor, None, const)
            return
        origins = [cell.origin for cell in cells if cell is not None and cell.origin is not None]
        written = call.results[: call.overwritten]
        for tensor, planes in zip(call.results, self._apply(call, operation), strict=True):
            first: Origin | None = None
            if planes is not None and planes.numel() and bool(is_mixed(planes).any()):
                first = origins[0] if origins else Origin(call.name, place())
            if planes is not None:
                self._check_memory(tensor, made=not any(tensor is t for t in written))
            shadow.write(tensor, planes, False, first)

    def _find_results(
        self, call: Call, operation: Operation, kwargs: dict[str, Any], result: Any, fresh: bool
    ) -> None:
        """Memory that was written; a result in an operand's memory is a view: nothing to do."""
        if operation.written:
            named = {**call.arguments, **kwargs}
            written = [named.get(name) for name in operation.written]
            call.results = [t for t in pytree.tree_leaves(written) if isinstance(t, Tensor)]
            call.overwritten = len(call.results)
        old = set() if fresh else {storage_key(t) for t in (*call.tensors, *call.results)}
        leaves = [t for t in pytree.tree_leaves(result) if isinstance(t, Tensor)]
        call.results += [t for t in leaves if storage_key(t) not in old]

    def _apply(self, call: Call, operation: Operation) -> list[Planes]:
        """What the rule says; everything together where there is none, or it read too little."""
        try:
            if any(storage_key(t) is None for t in (*call.tensors, *call.results)):
                raise UnfollowedError("a tensor without plain memory")
            if any(
                type(t).__torch_dispatch__ is not _PLAIN for t in (*call.tensors, *call.results)
            ):
                raise UnfollowedError("a tensor with operations of its own")
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
            if self.before is not None and self.before.hold(tensor):
                self.outside.setdefault(Origin("a tensor made before", place()))
            elif tensor.numel():
                self.escapes.setdefault(Origin("a tensor of unknown origin", place()))

    def _check_memory(self, tensor: Tensor, made: bool) -> None:
        """Records are written only into memory of this run, which nobody else can read."""
        key = storage_key(tensor)
        if key is None:
            return
        storage = tensor.untyped_storage()
        if (
            key in self._exported
            or not storage.resizable()
            or (not made and key not in self.shadow.cells)
        ):
            what = "a record is written into memory that others can read"
            self.escapes.setdefault(Origin(what, place()))


def _name(func: Any) -> str:
    name: str = func.overloadpacket.__name__
    return name


class Leaks(TorchFunctionMode):
    """Sees the values of records leave torch without an operation.

    What a function on records returns is a tensor, or a fact that holds for every record alike
    (`FACTS`). Anything else may be a value.
    """

    #: What is said of a tensor without looking at its values. Those of the last line end in an
    #: operation, where they are followed.
    FACTS = words(
        "__get__ __set__ size dim stride numel nelement element_size storage_offset is_contiguous",
        "is_floating_point is_complex is_signed is_set_to is_same_size ndimension get_device type",
        "__len__ __hash__ __iter__ register_hook retain_grad is_pinned is_shared has_names is_conj",
        "is_inference __dir__ _is_view is_neg is_tensor is_storage result_type can_cast",
        "promote_types __dlpack_device__ dim_order is_distributed _is_zerotensor grad __delattr__",
        "register_post_accumulate_grad_hook has_torch_function is_coalesced nested_size",
        "item allclose equal is_nonzero __contains__ __bool__ __int__ __float__ __index__ backward",
        "__complex__ __setitem__",
    )
    #: These hand values to Python code, or memory to others, and return tensors.
    DOORS = words("apply_ map_ map2_ share_memory_ __deepcopy__ _ctc_loss tensor_split")
    #: These hand out memory that may be written later.
    EXPORTS = words(
        "numpy __array__ data_ptr untyped_storage storage _typed_storage __dlpack__ share_memory_"
    )

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Look at who leaves."""
        watch = self.watch
        reads = watch.reads
        watch.calls += 1
        try:
            result = func(*args, **(kwargs or {}))
        finally:
            watch.calls -= 1
        name = getattr(func, "__name__", "")
        leaking = name in self.DOORS or (
            name not in self.FACTS
            # New memory from records takes an operation that reads them.
            and (not _tensors_only(result) or (watch.reads == reads and _is_new(result, args)))
        )
        if (leaking or (kwargs and "out" in kwargs)) and not self.watch.paused:
            with self.watch.pause():
                leaves = pytree.tree_leaves((args, kwargs))
                tensors = [t for t in leaves if isinstance(t, Tensor)]
                if leaking and any(self.watch.shadow.read(t) is not None for t in tensors):
                    self.watch.escapes.setdefault(Origin(name, place()))
                if "out" in (kwargs or {}) and self._unseen(kwargs["out"], tensors):
                    self.watch.escapes.setdefault(Origin(f"{name} (into out=)", place()))
                if name in self.EXPORTS:
                    for tensor in tensors:
                        self.watch.export(tensor)
        return result

    def _unseen(self, out: Any, tensors: list[Tensor]) -> bool:
        """Whether a result was put into memory though no operation was seen to write it there."""
        written = [t for t in pytree.tree_leaves(out) if isinstance(t, Tensor)]
        read = self.watch.shadow.read
        given = [t for t in tensors if all(t is not w for w in written)]
        return any(read(t) is not None for t in given) and any(read(t) is None for t in written)


def _is_new(result: Any, args: Any) -> bool:
    """Whether a tensor was made in memory that no argument has."""
    if not isinstance(result, Tensor) or (args and result is args[0]):
        return False
    given = [t for t in pytree.tree_leaves(args) if isinstance(t, Tensor)]
    try:
        return storage_key(result) not in {storage_key(t) for t in given}
    except NotImplementedError:  # inside vmap, where operations are followed one level below
        return False


def _tensors_only(result: Any) -> bool:
    if isinstance(result, (tuple, list)):
        return all(map(_tensors_only, result))
    return result is None or isinstance(result, Tensor)
