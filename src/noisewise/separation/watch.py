"""Carries the shadow through every ATen operation of a run: forward, loss and backward.

`Watch` is a dispatch mode: it sees what torch computes, whoever asked for it (modules, hooks,
custom autograd functions, recomputation). `Leaks` sees the few doors
through which values leave torch without an operation. No value of a record is ever read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from noisewise.separation import rules
from noisewise.separation.alike import Layout, alike, label, layout_of
from noisewise.separation.before import Storages, storages
from noisewise.separation.call import HIDDEN, Call, Planes, UnfollowedError, everything
from noisewise.separation.draws import Draws
from noisewise.separation.kernels import replaced
from noisewise.separation.leaks import Leaks, tensors_only
from noisewise.separation.origin import place
from noisewise.separation.refusal import RefusedError
from noisewise.separation.registry import Operation, operation_of
from noisewise.separation.sameness import public_kind, uniform_numbers
from noisewise.separation.shadow import (
    MOST_RECORDS,
    PLANE,
    TOP,
    Cell,
    Origin,
    Shadow,
    is_mixed,
    storage_key,
)
from noisewise.separation.trace import Trace

__all__ = ["Storages", "Watch", "storages"]

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
    trace : Trace
        What was computed.
    unknown : dict of Origin
        Operations on records that no rule speaks for.
    escapes : dict of Origin
        Where Python learnt something of a record.
    outside : dict of Origin
        Where tensors were read that were made before, and are neither inputs nor known.
    """

    #: They are seen, to be refused.
    supports_higher_order_operators = True

    def __init__(
        self,
        known: Sequence[Tensor],
        private: Sequence[Tensor] = (),
        before: Storages | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shadow = Shadow()
        self.trace = Trace(self.shadow)
        self.paused = False
        self.draws = Draws()
        self.draws.expect()
        self.unknown: dict[Origin, None] = {}
        self.escapes: dict[Origin, None] = {}
        self.outside: dict[Origin, None] = {}
        self.known = {storage_key(t) for t in known}
        #: Those of them that were written, and where.
        self.written: dict[int, str] = {}
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
        #: What the forward pass of CTC keeps for its backward pass: partly written.
        self._kept: list[Cell] = []
        self._made = 0
        #: How many records are followed, and operations that may treat them differently.
        self.records = 0
        self.unlike: dict[Origin, None] = {}
        #: Operations that may raise because of several records together.
        self.may_raise: dict[Origin, None] = {}
        #: Operations that take more or fewer numbers from the generator by values of records.
        self.shifting: dict[Origin, None] = {}
        #: Whether it is asked at all if they are treated alike.
        self.comparing = True

    def mark(self, tensor: Tensor, owners: Tensor) -> None:
        """Say which record each row of a tensor belongs to (negative: none)."""
        if owners.numel() and int(owners.max()) >= MOST_RECORDS:
            raise ValueError(f"a batch of at most {MOST_RECORDS} records can be followed")
        own = (owners + 1).to(PLANE)
        planes = torch.stack([own, torch.where(own > 0, TOP - own, own)])
        planes = planes.reshape(2, -1, *(1,) * (tensor.dim() - 1))
        self.shadow.write(tensor, planes)
        if owners.numel():
            self.records = max(self.records, int(owners.max()) + 1)
            layout = layout_of(planes, self.records)
            if layout is not None:
                label(self.shadow, tensor, layout)

    def carry(self, old: Tensor, new: Tensor) -> None:
        """Say that the library changed a tensor's entries, each record's by themselves."""
        planes = self.shadow.read(old)
        self.shadow.write(new, planes)
        layout = None if planes is None else layout_of(planes, self.records)
        if layout is not None:
            label(self.shadow, new, layout)

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
                if self.random and not was:
                    self.draws.begin(place)
                yield
        finally:
            self.paused = was
            self.draws.expect()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operation, then follow it."""
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            raise RefusedError(
                f"{func} at {place()} runs functions of its own by values, and no rule "
                "speaks for it",
                "Compute every branch for all records, and choose with torch.where.",
            )
        # Function modes follow what the user calls, not what the watch calls in turn.
        with torch._C.DisableTorchFunction():
            draws = not self.paused and operation_of(func).random
            if draws:
                self.draws.begin(place)
            try:
                result = func(*args, **kwargs)
            except Exception:
                # Whoever catches it learns something of the operands.
                if not self.paused and self._any_private((args, kwargs)):
                    self.escapes.setdefault(Origin(f"{_name(func)} (it raises)", place()))
                raise
            if draws:
                self.draws.expect()
            if not self.paused:
                self.trace.add(func, args, kwargs)
                self._follow(func, args, kwargs, result)
                self.trace.add("result", result)
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

    def _may_raise(self, call: Call, operation: Operation) -> bool:
        """Whether values of several records together decide if an operation raises."""
        names = operation.raised_by
        deciding = call.tensors if names is None else [call.arguments.get(n) for n in names]
        for tensor in pytree.tree_leaves(deciding):
            if not isinstance(tensor, Tensor):
                continue
            if names is not None and "other" in names and tensor.is_floating_point():
                continue  # only whole numbers mind a zero
            planes = self.shadow.read(tensor)
            if planes is not None and planes.numel() and bool(is_mixed(planes).any()):
                return True
        return False

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
        if (others := replaced()) and operation.full_name in others:
            what = f"{func} (its kernel was replaced through torch.library)"
            self.unknown.setdefault(Origin(what, place()))
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
        if call.name != "_ctc_loss_backward" and any(c is k for c in cells for k in self._kept):
            origin = Origin(f"{call.name} (memory that nobody has written)", place())
            self.escapes.setdefault(origin)
        fresh = call.name == "lift_fresh"
        if fresh and not self.calls:
            # An old constructor, which no function mode sees: its entries may be anybody's.
            self.escapes.setdefault(Origin("a tensor of unknown origin", place()))
        if not fresh:
            self._strangers([t for t, c in zip(call.tensors, cells, strict=True) if c is None])
        if private and operation.raised_by != set() and self._may_raise(call, operation):
            self.may_raise.setdefault(Origin(call.name, place()))
        if private and operation.shifts:
            self.shifting.setdefault(Origin(call.name, place()))
        if private and operation.escapes:
            self.escapes.setdefault(Origin(call.name, place()))
        self._find_results(call, operation, kwargs, result, fresh)
        for tensor in call.results[: call.overwritten]:
            if (key := storage_key(tensor)) in self.known and key is not None:
                self.written.setdefault(key, place())
        if fresh:
            self.trace.enter(call.results[0])
        if private and not tensors_only(result) and call.name not in Leaks.FACTS:
            self.escapes.setdefault(Origin(call.name, place()))
        derived = None if private else public_kind(call, operation)
        if call.results or not tensors_only(result):  # more than another view
            self._claim_draws(call, derived == "drawn")
        if not call.results:
            return
        if operation.rule is None and not call.tensors:
            # A file, for one: what it holds others can change, from piece to piece.
            what = f"{call.name} (it makes memory of what nobody can follow)"
            self.unknown.setdefault(Origin(what, place()))
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
            kind = derived
            for tensor in call.results:
                numbers = None if kind is not None or const else self._uniform(call, operation)
                shadow.write(tensor, None, const, kind=kind)
                if numbers is not None:
                    shadow.label(tensor, numbers)
            self._claim_chance(call, operation)
            return
        origins = [cell.origin for cell in cells if cell is not None and cell.origin is not None]
        written = call.results[: call.overwritten]
        found = self._apply(call, operation)
        layouts = self._alike(call, operation, found)
        kind = public_kind(call, operation) if None in found else None
        for tensor, planes in zip(call.results, found, strict=True):
            first: Origin | None = None
            if planes is not None and planes.numel() and bool(is_mixed(planes).any()):
                first = origins[0] if origins else Origin(call.name, place())
            if planes is not None:
                self._check_memory(tensor, made=not any(tensor is t for t in written))
            shadow.write(tensor, planes, False, first, kind)
            if planes is not None and (cell := shadow.cell(tensor)) is not None:
                cell.place = place()
        for tensor, layout in zip(call.results, layouts, strict=True):
            label(shadow, tensor, layout)
        self._claim_chance(call, operation)
        if call.name == "_ctc_loss" and (kept := shadow.cell(call.results[1])) is not None:
            self._kept.append(kept)

    def _claim_draws(self, call: Call, drawn: bool) -> None:
        """What was drawn is used up by what it becomes; anything else may be there for all."""
        private = any(self.shadow.read(t) is not None for t in call.tensors)
        for tensor in call.tensors:
            if private or not self.shadow.holds_draws(tensor):
                continue
            # A second thing made of the same draws meets another owner: they are no draws anew.
            self._made = self._made % 10_000 + 1
            owner = torch.full((), -1 - self._made, dtype=PLANE)
            if not drawn or not self.shadow.claim(tensor, owner):
                self.unlike.setdefault(Origin(call.name, place()))

    def _claim_chance(self, call: Call, operation: Operation) -> None:
        """Chance that is not known to be drawn for every entry by itself may be there for all."""
        if operation.random and any(
            self.shadow.read(t) is None and not self.shadow.holds_draws(t) for t in call.results
        ):
            self.unlike.setdefault(Origin(call.name, place()))

    def _uniform(self, call: Call, operation: Operation) -> Planes:
        """Numbers of a public result that is the same along some axis, for all records perhaps."""
        if len(call.results) != 1 or self.records < 2 or not self.comparing:
            return None
        try:
            return uniform_numbers(call, operation, call.results[0], self.records)
        except (RuntimeError, IndexError, TypeError, AttributeError, ValueError, UnfollowedError):
            return None

    def _alike(
        self, call: Call, operation: Operation, found: list[Planes]
    ) -> Sequence[Layout | None]:
        """Where records lie in the results, if the operation is shown to treat them alike."""
        if self.unlike or not self.comparing:
            return [None] * len(call.results)
        try:
            layouts = alike(call, operation, found, self.records)
        except (RuntimeError, IndexError, TypeError, AttributeError, ValueError, UnfollowedError):
            layouts = None
        if layouts is not None:
            return layouts
        self.unlike.setdefault(Origin(call.name, place()))
        return [None] * len(call.results)

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
