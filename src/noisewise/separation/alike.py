"""Whether a program treats all records of a batch alike, whatever their place in it.

Which place a record has depends on who else was drawn, so a program that treats places differently
(the first half of a batch, a constant that varies from row to row) makes a record's contribution
depend on others though it never mixes them. Here it is shown that it does not: operation by
operation, for all values. Where records lie along one axis of every operand and of the result,
every operation of torch treats the indices of that axis alike, unless

- it reads or writes only some of the records,
- a public operand is not the same for all of them, or
- it takes other entries of one record than of another (a diagonal, an index that varies).

The last two are found by labels: each entry of an operand is labelled with what it is within its
record, the operation's own rule says which labels reach which entry of the result, and these must
be the same for every record. What is not shown is not refused: such records keep places of their
own (`noisewise.gradients.places`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from noisewise.separation.call import HIDDEN, Call, Planes, UnfollowedError, all_but
from noisewise.separation.registry import Operation, words
from noisewise.separation.rules.indexing import embedding_bag
from noisewise.separation.rules.losses import ctc
from noisewise.separation.rules.products import matrices
from noisewise.separation.sameness import PLACED, classes, labels_of, places_of, reached
from noisewise.separation.shadow import PLANE, TOP, Shadow, is_mixed, overlaps

__all__ = ["Layout", "alike", "label", "layout_of"]

#: Places are chosen by an index, and what was in them is overwritten or added to.
_PLACING = words(
    "index_add index_reduce index_copy index_fill scatter scatter_add scatter_reduce index_put",
    "_index_put_impl_ _unsafe_index_put index_add_ index_reduce_ index_copy_ index_fill_ scatter_",
    "scatter_add_ scatter_reduce_ index_put_ put put_ masked_scatter masked_scatter_",
    "_embedding_bag _embedding_bag_forward_only",
)
#: Arguments that only say which entries are taken: seen by what is taken.
_INDICES = words("indices index")


class Layout(NamedTuple):
    """Where records lie in a tensor.

    Attributes
    ----------
    axis : int
    order : Tensor
        (records, indices of each along the axis).
    """

    axis: int
    order: Tensor

    def agree(self, labels: Tensor) -> bool:
        """Whether labels, entry by entry, are the same for every record."""
        if labels.stride(self.axis) == 0 and self.order.shape[1] == 1:
            return True
        rows = self._rows(labels)
        return torch.equal(rows, rows[:1].expand_as(rows))

    def same(self, other: Layout) -> bool:
        """Whether records lie in the same places."""
        return self.axis == other.axis and torch.equal(self.order, other.order)

    def disjoint(self, labels: Tensor) -> bool:
        """Whether every record has labels of its own, in the same arrangement."""
        rows = self._rows(labels)
        shifted = rows - rows[:, :1]
        if not torch.equal(shifted, shifted[:1].expand_as(shifted)):
            return False
        own = [int(torch.unique(part).numel()) for part in (rows, rows[0])]
        return own[0] == len(rows) * own[1]

    def local(self, size: int) -> Tensor:
        """Which index of its record every index of the axis is; -1 for those of no record."""
        count = self.order.shape[1]
        found = torch.full((size,), -1)
        found[self.order.flatten()] = torch.arange(count).repeat(len(self.order))
        return found

    def _rows(self, labels: Tensor) -> Tensor:
        moved = labels.movedim(self.axis, 0)
        flat = self.order.flatten()
        if len(flat) != len(moved) or not torch.equal(flat, torch.arange(len(flat))):
            moved = moved[flat]
        return moved.reshape(len(self.order), -1)


def layout_of(planes: Tensor, records: int) -> Layout | None:
    """The axis along which all records lie, equally often each; None if there is none."""
    for axis in range(planes.dim() - 1):
        owners = all_but(planes, axis).reshape(2, -1)
        if bool(is_mixed(owners).any()) or not bool(owners[0].all()):
            continue  # public rows beside the records: who meets which of them is not followed
        counts = torch.bincount(owners[0].long(), minlength=records + 1)[1:]
        if len(counts) != records or not counts.numel() or int(counts.min()) == 0:
            continue
        if int(counts.min()) != int(counts.max()):
            continue
        order = owners[0].argsort(stable=True)[-records * int(counts[0]) :]
        return Layout(axis, order.reshape(records, -1))
    return None


def label(shadow: Shadow, tensor: Tensor, layout: Layout | None) -> None:
    """Number the entries of a tensor with records, those of every record alike."""
    if layout is None:
        shadow.label(tensor, None)
        return
    numbers = torch.zeros((), dtype=torch.int32)
    for axis, size in enumerate(tensor.shape):
        index = layout.local(size) if axis == layout.axis else torch.arange(size)
        after = (1,) * (tensor.dim() - axis - 1)
        numbers = numbers * size + index.to(torch.int32).reshape(-1, *after)
    shadow.label(tensor, numbers, layout)


def alike(
    call: Call, operation: Operation, found: list[Planes], records: int
) -> list[Layout | None] | None:
    """Where records lie in the results if all are treated alike; None if that is not shown."""
    layouts: list[Layout | None] = []
    for planes, result in zip(found, call.results, strict=True):
        if planes is None or not planes.numel() or bool(is_mixed(planes).all()):
            layouts.append(None)  # no record, or a sum that nobody takes for one
            continue
        if not bool(planes.any()):
            layouts.append(None)
            continue
        layout = None
        if planes.dim() == result.dim() + 1:
            layout = layout_of(planes, records)  # less to look at before it is broadcast
        if layout is None:
            layout = layout_of(planes.expand(2, *result.shape), records)
        if layout is None:
            layout = _among_public(call, operation, len(layouts), records)
        if layout is None or overlaps(result):
            return None
        layouts.append(layout)
    if all(layout is None for layout in layouts):
        return layouts
    if "ctc" in call.name and any(
        isinstance(v, (list, tuple)) and len(set(v)) > 1 for v in call.arguments.values()
    ):
        return None  # a length for every record, in numbers of Python
    if call.name in PLACED and any(
        layout is not None and layout.axis >= result.dim() - 2
        for layout, result in zip(layouts, call.results, strict=True)
    ):
        return None
    if operation.pointwise:
        same = all(_entry_by_entry(call, layouts))
    else:
        same = all(_by_labels(call, operation, layouts, records))
    return layouts if same else None


def _among_public(call: Call, operation: Operation, which: int, records: int) -> Layout | None:
    """Where records lie in a result with public rows, if each of these lies among a record's own.

    A token that is the same for all, or a position that no loss looks at: merged with other axes
    they are rows of their own. Whose they are is known from the operand.
    """
    assert operation.rule is not None
    planes = operation.rule(call.with_shadow(_Homes(call.shadow)))[which]
    shape = call.results[which].shape
    return None if planes is None else layout_of(planes.expand(2, *shape), records)


class _Homes(Shadow):
    """A shadow in which public entries among a record's own count as that record's."""

    def __init__(self, real: Shadow) -> None:
        super().__init__()
        self._real = real

    def read(self, tensor: Tensor | None) -> Tensor | None:
        """Planes without public entries among records."""
        return None if tensor is None else self._real.homes(tensor)

    def const(self, tensor: Tensor) -> bool:
        """As it is."""
        return self._real.const(tensor)

    def write(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: rules are only asked."""


def _entry_by_entry(call: Call, layouts: list[Layout | None]) -> Any:
    """Every operand, broadcast to the result, has the same entries for every record."""
    for result, layout in zip(call.results, layouts, strict=True):
        if layout is None:
            continue
        for tensor in call.tensors:
            known = call.shadow.arrangement(tensor)
            if known is not None and tensor.shape == result.shape and known.same(layout):
                continue
            drawn = call.shadow.holds_draws(tensor)
            if drawn and call.shadow.kind(tensor) != "drawn":
                yield False  # seen as numbers of another size
            labels = places_of(tensor) if drawn else labels_of(call.shadow, tensor)
            if labels is None:
                continue
            labels = labels.expand(result.shape)
            if not drawn:
                yield layout.agree(labels)
            else:
                # One draw for all records of a piece ties them to each other: who is in which piece
                # would matter.
                yield layout.disjoint(labels) and _claimed(call.shadow, tensor, result, layout)


def _claimed(shadow: Shadow, tensor: Tensor, result: Tensor, layout: Layout) -> bool:
    """Whether what was drawn for every record was not used for another before."""
    axis = layout.axis - (result.dim() - tensor.dim())
    if axis < 0 or tensor.shape[axis] != result.shape[layout.axis]:
        return False
    owners = torch.zeros(tensor.shape[axis], dtype=PLANE)
    records, count = layout.order.shape
    owners[layout.order.flatten()] = torch.arange(1, records + 1, dtype=PLANE).repeat_interleave(
        count
    )
    return shadow.claim(tensor, owners.reshape(-1, *(1,) * (tensor.dim() - axis - 1)))


def _by_labels(call: Call, operation: Operation, layouts: list[Layout | None], records: int) -> Any:
    """Entries of every operand, axis by axis, reach every record's results in the same way."""
    indices = [i for name in _INDICES for i in pytree.tree_leaves(call[name])]
    for tensor in call.tensors:
        if not tensor.numel():
            continue
        planes = call.shadow.read(tensor)
        local: Layout | None = None
        if planes is not None and bool(planes.any()):
            if bool(is_mixed(planes).all()):
                continue  # it does not reach the results, or they were mixed, too
            local = call.shadow.arrangement(tensor)
            if local is None:
                homes = call.shadow.homes(tensor)
                assert homes is not None
                local = layout_of(homes, records)
                labels = labels_of(call.shadow, tensor)
                yield local is not None and labels is not None and local.agree(labels)
        elif any(tensor is i for i in indices) and call.shadow.const(tensor):
            # It is seen by what it takes.
            if call.name in _PLACING:
                yield _placed(call, layouts, records)
            continue
        if call.shadow.holds_draws(tensor):
            yield False  # every record meets all of it
        for axis, size in enumerate(tensor.shape):
            if local is None:
                numbers = classes(call.shadow, tensor, axis)
                if numbers is not None:
                    yield _says_enough(call, operation, layouts)
                    numbers = _exact(call, operation, tensor, axis, numbers)
            else:
                numbers = local.local(size) + 1 if axis == local.axis else torch.arange(size)
            if numbers is None and axis:
                continue
            numbers = torch.zeros(size, dtype=torch.long) if numbers is None else numbers
            yield all(
                layout is None or layout.agree(plane)
                for layout, planes in zip(
                    layouts, reached(call, operation, tensor, axis, numbers), strict=True
                )
                for plane in planes
            )


def _says_enough(call: Call, operation: Operation, layouts: list[Layout | None]) -> bool:
    """Whether a rule tells which entries of a public operand are used; it may say too much."""
    if operation.rule in (matrices, embedding_bag, ctc):
        return False
    return "convolution" not in call.name or all(x is None or x.axis == 0 for x in layouts)


def _exact(call: Call, operation: Operation, tensor: Tensor, axis: int, numbers: Tensor) -> Tensor:
    """Numbers of an axis, all different unless every result uses a single index of it.

    Where they repeat, different entries may have the same outermost numbers.
    """
    every = torch.arange(len(numbers))
    if len(torch.unique(numbers)) == len(numbers):
        return numbers
    single = all(
        bool(((first == 0) | (first + second == TOP)).all())
        for planes in reached(call, operation, tensor, axis, every)
        for first, second in zip(planes[::2], planes[1::2], strict=True)
    )
    return numbers if single else every


def _placed(call: Call, layouts: list[Layout | None], records: int) -> bool:
    """Whether an index puts the same entries into the same places of every record.

    Shown by the operation itself on whole numbers that are the same for every record.
    """
    drawn = torch.Generator().manual_seed(0)
    indices = [i for name in _INDICES for i in pytree.tree_leaves(call[name])]

    def numbers(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return 1 if value is HIDDEN else value
        if any(value is i for i in indices):
            # Of a record's own index only that it is one matters here.
            return value if call.shadow.const(value) else torch.zeros_like(value)
        if call.shadow.const(value):
            return torch.unique(value.cpu(), return_inverse=True)[1]
        planes = call.shadow.homes(value)
        layout = None if planes is None or not bool(planes.any()) else layout_of(planes, records)
        if layout is None:
            if value.numel() > 1 and call.shadow.kind(value) != "flat":
                raise UnfollowedError("an operand that is not the same for all records")
            return torch.ones(value.shape, dtype=torch.long)
        shape = list(value.shape)
        shape[layout.axis] = layout.order.shape[1] + 1  # the last for indices of no record
        local = torch.randint(1, 2**30, shape, generator=drawn)
        return local.index_select(
            layout.axis, layout.local(value.shape[layout.axis]) % shape[layout.axis]
        )

    arguments = {name: pytree.tree_map(numbers, v) for name, v in call.arguments.items()}
    result = call.function(**arguments)
    return all(layout is None or layout.agree(result) for layout in layouts)
