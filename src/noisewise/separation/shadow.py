"""Shadow memory: for every element of every storage, the records it may depend on.

Beside the memory of a tensor lie two planes of small integers: ``hi``, the largest record plus
one, and ``lo``, TOP - 1 minus the smallest. Both are zero for what depends on no record, and an
elementwise maximum joins two dependences. An element is public (0, 0), one record's own, or mixed
(its largest record is not its smallest).

The planes lie in the host's memory, wherever the tensor is, and belong to its *storage*. Views,
in-place writes, detach, saved tensors and aliases need no rule: a shadow is read with the tensor's
own size, strides and offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from noisewise.separation.origin import place
from noisewise.separation.refusal import RefusedError, is_line

__all__ = [
    "MOST_RECORDS",
    "PLANE",
    "TOP",
    "Cell",
    "Origin",
    "Shadow",
    "broadcast_shapes",
    "is_mixed",
    "overlaps",
    "storage_key",
]

PLANE = torch.int16
#: Records are numbered 0 ... MOST_RECORDS - 1, so that two planes add up without overflow.
TOP = 16000
MOST_RECORDS = TOP - 2


class Origin(NamedTuple):
    """The operation that mixed records, and where the user's code asked for it."""

    operation: str
    place: str

    @property
    def said(self) -> str:
        """In words."""
        return f"{self.operation} {'at' if is_line(self.place) else 'from'} {self.place}"


def storage_key(tensor: Tensor) -> int | None:
    """Identity of a tensor's memory; None for tensors without one (sparse layouts)."""
    if tensor.layout != torch.strided:
        return None
    try:
        key: int = tensor.untyped_storage()._cdata
    except NotImplementedError:
        raise RefusedError(
            f"a tensor within torch.func (vmap, grad, jvp) at {place()} has no memory of its own, "
            "so it cannot be told on which records it depends",
            "Write it for the whole batch, record by record along the first axis. For derivatives "
            "by inputs call torch.autograd.grad(output.sum(), x, create_graph=True), or jvp, "
            "jacobian and hessian of torch.autograd.functional with create_graph=True.",
        ) from None
    return key


def overlaps(tensor: Tensor) -> bool:
    """Whether entries of a tensor may share memory with each other."""
    if tensor.is_contiguous():
        return False
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False


def broadcast_shapes(*shapes: Sequence[int]) -> torch.Size:
    """The shape that tensors of these shapes are broadcast to."""
    result: torch.Size = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    return result


def is_mixed(planes: Tensor) -> Tensor:
    """Which elements depend on more than one record."""
    return planes[0] + planes[1] > TOP


def _covers(tensor: Tensor) -> bool:
    """Whether a tensor has every entry of its memory once."""
    size = tensor.numel() * tensor.element_size()
    return size == tensor.untyped_storage().nbytes() and not overlaps(tensor)


def _view_of(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.storage_offset()


class Cell:
    """The shadow of one storage.

    Attributes
    ----------
    planes : Tensor or None
        (2, elements); None if nothing in the storage depends on a record.
    const : bool
        Whether the values follow from Python constants alone: not from records, weights or chance.
    origin : Origin or None
        What first mixed records here.
    kind : str or None
        Without records: "flat" if all entries are equal, "drawn" if each is drawn alike.
    labels : Tensor or None
        What each entry is within its record, by numbers that only this storage knows.
    labelled : bool
        Whether it ever had labels.
    shared : bool
        Whether others may write to it.
    place : str
        Where records were written here last.
    arranged : tuple or None
        The view in which labels were given last, and the layout of its records.
    drawn_for : Tensor or None
        Of what was drawn: which record each entry was used for, -1 for all of them.
    """

    def __init__(self, tensor: Tensor, const: bool) -> None:
        # A weak reference keeps the address from being given to other memory.
        self.reference = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        self.planes: Tensor | None = None
        self.unit = tensor.element_size()
        self.const = const
        self.origin: Origin | None = None
        self.kind: str | None = None
        self.labels: Tensor | None = None
        self.labelled = self.shared = False
        self.place = ""
        self.drawn_for: Tensor | None = None
        self.arranged: tuple[Any, Any] | None = None

    @property
    def alive(self) -> bool:
        """Whether the memory is still there."""
        return not self.reference.expired()  # type: ignore[no-untyped-call]


class Shadow:
    """The shadows of all storages that were seen."""

    def __init__(self) -> None:
        self.cells: dict[int, Cell] = {}
        #: Memory that held records before, the dataset itself.
        self.given: set[int] = set()
        self._writes = 0
        self._numbered = 0

    def cell(self, tensor: Tensor) -> Cell | None:
        """Return what is known of a tensor's memory."""
        key = storage_key(tensor)
        return None if key is None else self.cells.get(key)

    def const(self, tensor: Tensor) -> bool:
        """Whether a tensor's values follow from Python constants alone."""
        cell = self.cell(tensor)
        return cell is not None and cell.const

    def read(self, tensor: Tensor | None) -> Tensor | None:
        """Planes (2, *shape) of a tensor; None if it is public."""
        cell = None if tensor is None else self.cell(tensor)
        if tensor is None or cell is None or cell.planes is None:
            return None
        seen = self._view(tensor, cell)
        return seen.amax(-1) if tensor.element_size() > cell.unit else seen

    def kind(self, tensor: Tensor) -> str | None:
        """Of public memory: "flat" if all entries are equal, "drawn" if each is drawn alike."""
        cell = self.cell(tensor)
        if cell is None or cell.planes is not None or cell.unit != tensor.element_size():
            return None
        return cell.kind

    def holds_draws(self, tensor: Tensor) -> bool:
        """Whether memory was drawn, whatever it is taken for."""
        cell = self.cell(tensor)
        return cell is not None and cell.planes is None and cell.kind == "drawn"

    def share(self, tensor: Tensor) -> None:
        """Others may write to this memory from now on: nothing is known of what it holds."""
        cell = self.cell(tensor)
        if cell is not None:
            cell.shared, cell.const, cell.kind, cell.labels = True, False, None, None

    def labels(self, tensor: Tensor) -> Tensor | None:
        """What each entry of a tensor with records is within its record; None without records."""
        cell = self.cell(tensor)
        if cell is None or (cell.planes is None and cell.labels is None):
            return None
        if cell.labels is None or cell.unit != tensor.element_size():
            raise RuntimeError("entries without labels")
        view: Tensor = cell.labels.as_strided(
            tensor.shape, tensor.stride(), tensor.storage_offset()
        )
        return view

    def claim(self, tensor: Tensor, owners: Tensor) -> bool:
        """Say for which record each drawn entry is used (-1: all); False if it was for another."""
        cell = self.cell(tensor)
        if cell is None or overlaps(tensor) or cell.unit != tensor.element_size():
            return False
        if cell.drawn_for is None:
            entries = tensor.untyped_storage().nbytes() // tensor.element_size()
            cell.drawn_for = torch.zeros(entries, dtype=PLANE)
        layout = (tensor.shape, tensor.stride(), tensor.storage_offset())
        seen = cell.drawn_for.as_strided(*layout)
        free = bool(((seen == 0) | (seen == owners)).all())
        seen.copy_(owners)
        return free

    def arrangement(self, tensor: Tensor) -> Any:
        """The layout that a tensor was labelled by, if it is still the same."""
        cell = self.cell(tensor)
        if cell is None or cell.arranged is None or cell.arranged[0] != _view_of(tensor):
            return None
        return cell.arranged[1]

    def homes(self, tensor: Tensor) -> Tensor | None:
        """Planes of a tensor, in which public entries among a record's own count as that record's.

        None if nothing is known of it.
        """
        cell, planes = self.cell(tensor), self.read(tensor)
        if planes is None or cell is None or cell.arranged is None:
            return planes
        (shape, stride, offset), layout = cell.arranged
        if tensor.element_size() != cell.unit:
            return planes
        rows = torch.zeros(shape[layout.axis], dtype=PLANE)
        records, count = layout.order.shape
        own = torch.arange(1, records + 1, dtype=PLANE)
        rows[layout.order.flatten()] = own.repeat_interleave(count)
        homes = torch.zeros(tensor.untyped_storage().nbytes() // cell.unit, dtype=PLANE)
        seen = homes.as_strided(shape, stride, offset)
        seen.copy_(rows.reshape(-1, *(1,) * (len(shape) - layout.axis - 1)))
        own = homes.as_strided(*_view_of(tensor))
        own = torch.stack([own, torch.where(own > 0, TOP - own, own)])
        return torch.where(planes > 0, planes, own)

    def label(self, tensor: Tensor, numbers: Tensor | None, layout: Any = None) -> None:
        """Give every entry of a tensor with records its number; None: it is not known."""
        cell = self.cell(tensor)
        if cell is None:
            return
        entries = tensor.untyped_storage().nbytes() // cell.unit
        if numbers is None or cell.unit != tensor.element_size():
            cell.labels = None
            return
        if cell.labels is None or len(cell.labels) < entries:
            if tensor.numel() < entries and (cell.labels is not None or cell.labelled):
                return  # parts of it are not known
            # What was there before is the same as itself alone, unless all of it is equal.
            cell.labels = -1 - torch.arange(entries, dtype=torch.int32)
            if cell.kind == "flat":
                cell.labels.fill_(-1)
        cell.labelled = True
        seen = cell.labels.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        seen.copy_(numbers + self._numbered)
        self._numbered = (self._numbered + tensor.numel()) % 2**30
        cell.arranged = None if layout is None else (_view_of(tensor), layout)

    def write(
        self,
        tensor: Tensor,
        planes: Tensor | None,
        const: bool = False,
        origin: Origin | None = None,
        kind: str | None = None,
    ) -> None:
        """Set the shadow of the elements that a tensor covers."""
        key = storage_key(tensor)
        if key is None:
            return
        cell = self.cells.get(key)
        whole = _covers(tensor)
        if cell is None:
            cell = self.cells[key] = Cell(tensor, const)
            cell.kind = kind if whole else None
        elif planes is None:
            if whole and cell.unit == tensor.element_size():
                cell.planes = cell.labels = None  # nothing is left of what was there
                cell.kind, cell.labelled, cell.drawn_for = kind, False, None
            elif cell.planes is None:
                cell.kind = cell.labels = None  # parts of it are one thing, parts another
        cell.const = cell.const and const and not cell.shared
        cell.kind = None if cell.shared else cell.kind
        cell.arranged = None
        if planes is not None or cell.planes is not None:
            if cell.planes is None:
                entries = tensor.untyped_storage().nbytes() // cell.unit
                cell.planes = torch.zeros(2, entries, dtype=PLANE)
            missing = tensor.untyped_storage().nbytes() // cell.unit - cell.planes.shape[1]
            if missing > 0:  # the memory has grown
                cell.planes = torch.cat([cell.planes, cell.planes.new_zeros(2, missing)], 1)
            seen = self._view(tensor, cell)
            if overlaps(tensor):
                # Entries share memory: whatever is written may end up in, or add to, any of them.
                join = seen.reshape(2, -1).amax(1, keepdim=True)
                if planes is not None:
                    join = torch.maximum(join, planes.reshape(2, -1).amax(1, keepdim=True))
                places = torch.arange(cell.planes.shape[1])
                layout = (seen.shape[1:], seen.stride()[1:], seen.storage_offset())
                cell.planes[:, places.as_strided(*layout).flatten()] = join
            elif planes is None:
                seen.zero_()
            else:
                if planes.untyped_storage()._cdata == cell.planes.untyped_storage()._cdata:
                    planes = planes.clone()  # what a rule read of the memory that is written
                planes = planes.expand(2, *tensor.shape)
                seen.copy_(planes.unsqueeze(-1) if seen.dim() > tensor.dim() + 1 else planes)
            cell.origin = origin or cell.origin
        self._writes += 1
        if self._writes % 500 == 0:
            self.cells = {k: c for k, c in self.cells.items() if c.alive}

    def _view(self, tensor: Tensor, cell: Cell) -> Tensor:
        """(2, *shape), with one more axis if the tensor's elements are wider than the shadow's."""
        assert cell.planes is not None
        size = tensor.element_size()
        if size < cell.unit:  # complex numbers seen as real ones: an entry for every part
            cell.planes = cell.planes.repeat_interleave(cell.unit // size, 1)
            cell.unit = size
        times, total = size // cell.unit, cell.planes.shape[1]
        shape: tuple[int, ...] = (2, *tensor.shape)
        strides: tuple[int, ...] = (total, *(s * times for s in tensor.stride()))
        if times > 1:
            shape, strides = (*shape, times), (*strides, 1)
        return cell.planes.as_strided(shape, strides, tensor.storage_offset() * times)
