"""Selecting and placing entries by index.

Only an index that follows from Python constants selects. One that comes from records, weights or
chance may point anywhere, so it reaches the whole axis: a random permutation of the batch is
refused even if the identity was drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from noisewise.separation.call import Call, Planes, UnfollowedError, all_but, everything, over
from noisewise.separation.registry import rule
from noisewise.separation.shadow import PLANE, broadcast_shapes

__all__ = ["gather", "index", "scatter"]


def _fixed(call: Call, index: Any) -> Tensor | None:
    """The values of an index that follows from Python constants, for the planes; else None."""
    if not call.shadow.const(index):
        return None
    if index.device.type == "meta":
        raise UnfollowedError("an index without values")
    host: Tensor = index.cpu()
    return host


def _indexing(
    call: Call, indices: Sequence[Any]
) -> tuple[tuple[Any, ...], list[int], Callable[[Tensor], Tensor]]:
    """Indices with the loose ones set to zero, the loose axes, and what adds their shadows."""
    expanded: list[Any] = []
    for i in indices:
        if i is not None and i.dtype in (torch.bool, torch.uint8):
            if not call.shadow.const(i):
                raise UnfollowedError("a selection by a mask that is not constant")
            call.read.add(id(i))
            host = _fixed(call, i)
            assert host is not None
            places = host.nonzero(as_tuple=True)
            for part in places:
                call.shadow.write(part, None, True)
            expanded.extend(places)
        else:
            expanded.append(i)
    used = [d for d, i in enumerate(expanded) if i is not None]
    loose = [d for d in used if not call.shadow.const(expanded[d])]
    fixed = tuple(
        slice(None)
        if i is None
        else torch.zeros(i.shape, dtype=torch.long)
        if d in loose
        else _fixed(call, i)
        for d, i in enumerate(expanded)
    )
    together = used == list(range(used[0], used[-1] + 1))
    start = used[0] if together else 0
    width = len(broadcast_shapes(*[expanded[d].shape for d in used]))

    def mark(planes: Tensor) -> Tensor:
        for d in loose:
            own = call.planes(expanded[d])
            before = (1,) * (start + width - own.dim() + 1)
            after = (1,) * (planes.dim() - 1 - start - width)
            planes = torch.maximum(planes, own.reshape(2, *before, *own.shape[1:], *after))
        return planes

    return fixed, loose, mark


@rule("index _unsafe_index")
def index(call: Call) -> list[Planes]:
    """x[i, j, :]."""
    fixed, loose, mark = _indexing(call, call["indices"])
    planes = over(call.planes(call["self"]), *loose)
    return [mark(torch.stack([planes[0][fixed], planes[1][fixed]]))]


@rule("index_put _index_put_impl_ _unsafe_index_put")
def index_put(call: Call) -> list[Planes]:
    """x[i, j] = v; places that may be hit keep what they had, too."""
    x, indices = call["self"], call["indices"]
    masks = [i for i in indices if i is not None and i.dtype == torch.bool]
    if masks and not all(call.shadow.const(i) for i in masks):
        values = call.planes(call["values"])
        if len(indices) > 1 or values[0].numel() != 1:
            raise UnfollowedError("an assignment of several values through a mask")
        # One value wherever the mask says so: entry by entry.
        mask = call.planes(masks[0])
        mask = mask.reshape(*mask.shape, *(1,) * (x.dim() - masks[0].dim()))
        value = values.reshape(2, *(1,) * x.dim())
        return [torch.maximum(torch.maximum(call.planes(x), mask), value)]
    fixed, loose, mark = _indexing(call, indices)
    shape = [1 if d in loose else size for d, size in enumerate(x.shape)]
    entries = torch.Size(shape).numel()
    place = torch.arange(entries).reshape(shape)[fixed]
    own = mark(call.joined([call["values"]], place.shape)).expand(2, *place.shape).reshape(2, -1)
    base = torch.zeros(2, entries, dtype=PLANE)
    base.scatter_reduce_(1, place.reshape(1, -1).expand(2, -1), own, "amax")
    return [torch.maximum(call.planes(x), base.reshape(2, *shape))]


def _cut(planes: Tensor, shape: Sequence[int], axis: int) -> Tensor:
    """Narrow all axes but one to a shape."""
    for k, size in enumerate(shape):
        if k != axis % len(shape):
            planes = planes.narrow(k + 1, 0, size)
    return planes


@rule("gather")
def gather(call: Call) -> list[Planes]:
    """Entries along one axis."""
    i, axis, planes = call["index"], call["dim"], call.planes(call["self"])
    host = _fixed(call, i)
    if host is not None and i.dim():
        call.read.add(id(i))
        return [planes.gather(axis % i.dim() + 1, host.expand(2, *i.shape))]
    if not i.dim() or not planes.dim() - 1:
        return everything(call)
    return [torch.maximum(_cut(over(planes, axis), i.shape, axis), call.planes(i))]


@rule("scatter scatter_add scatter_reduce")
def scatter(call: Call) -> list[Planes]:
    """The other way round; places that may be hit keep what they had, too."""
    i, axis = call["index"], call["dim"]
    source = call["src"] if "src" in call.arguments else call["value"]
    if not i.dim():
        return everything(call)
    planes = call.planes(i)
    if isinstance(source, Tensor) and source.dim():
        own = _cut(call.planes(source), i.shape, axis).narrow(axis % i.dim() + 1, 0, i.shape[axis])
        planes = torch.maximum(planes, own)
    elif isinstance(source, Tensor):
        planes = torch.maximum(planes, call.planes(source).reshape(2, *(1,) * i.dim()))
    base = call.planes(call["self"]).clone(memory_format=torch.contiguous_format)
    host = _fixed(call, i)
    if host is not None:
        at = host.expand(2, *i.shape)
        return [base.scatter_reduce_(axis % i.dim() + 1, at, planes.expand(at.shape), "amax")]
    part = _cut(base, i.shape, axis)
    part.copy_(torch.maximum(part, over(planes, axis)))
    return [base]


def _along(planes: Tensor, axis: int, rank: int) -> Tensor:
    """Lay a vector of indices along one axis."""
    return planes.reshape(2, *(1,) * axis, -1, *(1,) * (rank - axis - 1))


@rule("index_select")
def index_select(call: Call) -> list[Planes]:
    """Rows by number."""
    x, i = call["self"], call["index"]
    if not x.dim():
        return everything(call)
    axis = call["dim"] % x.dim()
    host = _fixed(call, i)
    if host is not None:
        call.read.add(id(i))
        return [call.planes(x).index_select(axis + 1, host.reshape(-1))]
    return [torch.maximum(over(call.planes(x), axis), _along(call.planes(i), axis, x.dim()))]


@rule("index_add index_copy index_reduce")
def index_add(call: Call) -> list[Planes]:
    """Rows added to or put at numbered places."""
    x, i, source = call["self"], call["index"], call["source"]
    if not x.dim() or not source.dim():
        return everything(call)
    axis = call["dim"] % x.dim()
    planes = torch.maximum(call.planes(source), _along(call.planes(i), axis, source.dim()))
    host = _fixed(call, i)
    if host is not None:
        base = call.planes(x).clone(memory_format=torch.contiguous_format)
        rows = _along(host.reshape(1, -1).expand(2, -1), axis, source.dim()).expand(planes.shape)
        return [base.scatter_reduce_(axis + 1, rows, planes.contiguous(), "amax")]
    return [torch.maximum(call.planes(x), over(planes, axis))]


@rule("index_fill")
def index_fill(call: Call) -> list[Planes]:
    """One value at numbered places."""
    x, i, value = call["self"], call["index"], call["value"]
    if not x.dim():
        return everything(call)
    axis = call["dim"] % x.dim()
    planes = call.planes(x)
    if not call.shadow.const(i):
        planes = torch.maximum(planes, over(_along(call.planes(i), axis, x.dim()), axis))
    call.read.add(id(i))
    if isinstance(value, Tensor):
        planes = torch.maximum(planes, call.planes(value).reshape(2, *(1,) * x.dim()))
    return [planes]


@rule("take")
def take(call: Call) -> list[Planes]:
    """Entries of the flattened tensor."""
    whole = call.planes(call["self"]).reshape(2, -1).amax(1)
    i = call["index"]
    return [torch.maximum(call.planes(i), whole.reshape(2, *(1,) * i.dim()))]


@rule("embedding")
def embedding(call: Call) -> list[Planes]:
    """Rows of a table by token."""
    i = call["indices"]
    table = over(call.planes(call["weight"]), 0).reshape(2, *(1,) * i.dim(), -1)
    return [torch.maximum(call.planes(i).unsqueeze(-1), table)]


@rule("_embedding_bag _embedding_bag_forward_only")
def embedding_bag(call: Call) -> list[Planes]:
    """Bags whose borders are constant."""
    i, start = call["indices"], call["offsets"]
    borders = _fixed(call, start)
    if borders is None or call["include_last_offset"]:
        raise UnfollowedError("bags whose borders are not constant")
    table = all_but(call.planes(call["weight"])).reshape(2, 1)
    planes = torch.maximum(call.joined([i, call["per_sample_weights"]], i.shape), table)
    bag = torch.bucketize(torch.arange(len(i)), borders, right=True) - 1
    bags = torch.zeros(2, len(start), dtype=PLANE)
    bags.scatter_reduce_(1, bag.expand(2, -1), planes, "amax")
    output = call.results[0]
    shaped = bags[:, : len(output), None]
    whole = planes.amax(1)
    rest = [
        shaped if r.dim() == 2 and len(r) == len(output) else whole.reshape(2, *(1,) * r.dim())
        for r in call.results[1:]
    ]
    return [shaped, *rest]


@rule(
    "embedding_dense_backward bincount histc _embedding_bag_backward _embedding_bag_dense_backward",
    "_weight_norm_interface_backward trace",
)
def all_together(call: Call) -> list[Planes]:
    """Sums over everything."""
    return everything(call)


@rule("_weight_norm_interface")
def weight_norm(call: Call) -> list[Planes]:
    """A weight rescaled along one axis."""
    return everything(call)


@rule("searchsorted bucketize")
def searchsorted(call: Call) -> list[Planes]:
    """Each value against all borders."""
    borders = call["sorted_sequence"] if call.name == "searchsorted" else call["boundaries"]
    values = call["self"]
    if not isinstance(values, Tensor):
        return everything(call)
    if borders.dim() > 1:
        border = over(call.planes(borders), -1)
    else:
        border = call.planes(borders).reshape(2, -1).amax(1).reshape(2, *(1,) * values.dim())
    sorter = call["sorter"]
    if isinstance(sorter, Tensor) and call.found(sorter) is not None:
        raise UnfollowedError("a private sorter")
    return [torch.maximum(call.planes(values), border)]
