"""Where the records sit in a tensor, and how it is laid out with records first.

A layer may meet its records along the first axis, along another (sequence first), merged with
positions (B*T rows, windows, frames) or in any other fixed order. The shadow of the tensor tells
which position belongs to whom; a `Layout` brings all positions of a record together, so that the
first axis counts records, each with the same number of rows, and undoes it for the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from noisewise.separation import Shadow, is_mixed

__all__ = [
    "CONSTANT",
    "FIRST",
    "NOT_APART",
    "Layout",
    "is_foreign",
    "joined_planes",
    "layout_of",
    "owners_along",
]


@dataclass(frozen=True)
class Layout:
    """How the positions of a call are brought into the order of the records.

    Attributes
    ----------
    constant : bool
        No record is in it at all: part of a weight.
    axis : int
        The axis that carries the records; -1 if all axes before the features together do.
    order : Tensor, optional
        Positions, record after record; the number of positions stands for a row of zeros.
    inverse : Tensor, optional
        Where each position went.
    owners : Tensor, optional
        The record of each position.
    """

    constant: bool = False
    axis: int = 0
    order: Tensor | None = None
    inverse: Tensor | None = None
    owners: Tensor | None = None

    @property
    def is_first(self) -> bool:
        """Whether nothing needs to be moved."""
        return self.axis == 0 and self.order is None

    def on(self, device: torch.device) -> Layout:
        """Return the layout with its indices on a device."""
        indices = [self.order, self.inverse, self.owners]
        return Layout(
            self.constant, self.axis, *(None if i is None else i.to(device) for i in indices)
        )

    def first(self, x: Tensor, features: int = 1) -> Tensor:
        """Lay a tensor out with the positions of record after record along the first axis."""
        if self.axis < 0:
            x = x.flatten(0, x.dim() - 1 - features) if x.dim() > features + 1 else x
        elif self.axis:
            x = x.movedim(self.axis, 0)
        if self.order is None:
            return x
        if self.inverse is not None and len(self.order) != len(self.inverse):
            x = torch.cat([x, x.new_zeros(1, *x.shape[1:])])
        return x.index_select(0, self.order)

    def back(self, result: Tensor, like: Tensor, features: int = 1) -> Tensor:
        """Give a result the places that the tensor `like` had."""
        if self.inverse is not None:
            result = result.index_select(0, self.inverse)
        if self.axis < 0:
            leading = like.shape[: like.dim() - features]
            return result.reshape(*leading, *result.shape[1:])
        return result.movedim(0, self.axis) if self.axis else result


FIRST = Layout()
CONSTANT = Layout(constant=True)
#: Stands for a use in which the records cannot be told apart.
NOT_APART = Layout(axis=-2)


def owners_along(planes: Tensor, axis: int) -> Tensor | None:
    """The record (plus one; zero for none) of every index of an axis; None if some has several."""
    others = [d + 1 for d in range(planes.dim() - 1) if d != axis]
    flat = planes.amax(others) if others else planes
    return None if bool(is_mixed(flat).any()) else flat[0].long()


def layout_of(planes: Tensor | None, records: int, features: int) -> Layout | None:
    """The layout of a tensor with these planes; None if its records cannot be told apart.

    Parameters
    ----------
    planes : Tensor, optional
        (2, *shape); None or zeros for a tensor without records.
    features : int
        How many last axes belong to every position; -1 if only the first axis counts positions.
    """
    if planes is None or not bool(planes.any()):
        return CONSTANT
    rank = planes.dim() - 1
    axes = range(1) if features < 0 else range(max(rank - features, 0))
    for axis in axes:
        own = owners_along(planes, axis)
        found = None if own is None else _arranged(own, records, axis)
        if found is not None:
            return found
    if features < 0 or rank - features < 2:
        return None
    joint = planes.flatten(1, rank - features)
    own = owners_along(joint, 0)
    return None if own is None else _arranged(own, records, -1)


def _arranged(own: Tensor, records: int, axis: int) -> Layout | None:
    positions = len(own)
    places = torch.arange(positions)
    public = own == 0
    if positions % records == 0:
        each = positions // records
        if bool((public | (own == places // each + 1)).all()):
            return Layout(axis=axis, owners=places // each) if axis or each > 1 else FIRST
        if bool((public | (own == places % records + 1)).all()):
            order = places.reshape(each, records).t().reshape(-1)
            return Layout(False, axis, order, _inverse(order, positions), places % records)
    if bool(public.any()) or int(own.max()) > records:
        return None
    counts = torch.bincount(own - 1, minlength=records)
    each = int(counts.max())
    sorted_places = own.argsort(stable=True)
    starts = counts.cumsum(0) - counts
    slots = (own[sorted_places] - 1) * each + (places - starts[own[sorted_places] - 1])
    order = torch.full((records * each,), positions)
    order[slots] = sorted_places
    inverse = torch.empty_like(places)
    inverse[sorted_places] = slots
    return Layout(False, axis, order, inverse, own - 1)


def _inverse(order: Tensor, positions: int) -> Tensor:
    inverse = torch.empty(positions, dtype=torch.long)
    inverse[order] = torch.arange(positions)
    return inverse


def is_foreign(planes: Tensor | None, records: int) -> bool:
    """Whether a factor holds anything but each record's own values, in the order of the records."""
    if planes is None or not planes.numel():
        return False
    own = planes.reshape(2, records, -1)
    expected = torch.arange(1, records + 1).unsqueeze(1)
    return bool(((own[0] > 0) & ((own[0] != expected) | is_mixed(own))).any())


def joined_planes(
    shadow: Shadow, operands: Sequence[Tensor], shape: Sequence[int]
) -> Tensor | None:
    """Whose values are where in what several operands are broadcast to."""
    total: Tensor | None = None
    for operand in operands:
        planes = shadow.read(operand)
        if planes is not None:
            planes = planes.reshape(2, *(1,) * (len(shape) - operand.dim()), *operand.shape)
            planes = planes.expand(2, *shape)
            total = planes if total is None else torch.maximum(total, planes)
    return total
