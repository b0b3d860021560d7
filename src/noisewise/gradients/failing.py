"""Records on which the user's program raises: they count nothing, and the step is taken.

An exception that ends a run tells that a record was drawn. So the records of a piece that fail are
looked for: some of them stay, others stand in the places of the rest, and each part that still
fails is halved. An operation raises for several records if and only if it raises for one of them
(docs/proofs/separation.md), so whether a record fails is a matter of that record alone. Zeros stand
in if the program takes zeros, else copies of records that stay. What fails on zeros and on every
record of a batch is a mistake in the program, and its error is shown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from noisewise.gradients.batches import Part, leading
from noisewise.gradients.places import in_order

__all__ = ["without_failing"]


def without_failing(
    part: Part,
    shown: Exception,
    fails: Callable[[Part], bool],
    whole: tuple[Any, Any],
) -> Part:
    """The piece with what counts nothing in the places of the records that fail.

    Parameters
    ----------
    part : Part
        Fails.
    shown : Exception
        Raised if the program fails on zeros and on all records.
    fails : callable
        Whether the program raises on a piece.
    whole : tuple
        Inputs and targets of the batch, of which a record may stand in.
    """
    slots = list(range(len(part.places)))
    zeros = not fails(_only([], part, zeros=True))
    found = set(_failing(slots, part, fails, zeros, known=True))
    barred = torch.tensor([slot in found for slot in slots])
    if part.barred is not None:
        barred |= part.barred
    good = [slot for slot in slots if not barred[slot]]
    if good or zeros:
        return _only(good, part, zeros)._replace(barred=barred)
    for places in in_order(leading(whole[0]), len(slots)):
        other = Part.of(*whole, places, part.number)
        if takes := _taken(other, fails):
            chosen = _only([takes[0]], other, zeros=False)
            return part._replace(x=chosen.x, y=chosen.y, barred=barred)
    raise shown from None


def _taken(part: Part, fails: Callable[[Part], bool]) -> list[int]:
    """Slots of records that stay."""
    slots = list(range(len(part.places)))
    return sorted(set(slots) - set(_failing(slots, part, fails, zeros=False)))


def _failing(
    slots: list[int],
    part: Part,
    fails: Callable[[Part], bool],
    zeros: bool,
    known: bool = False,
) -> list[int]:
    if not slots or not (known or fails(_only(slots, part, zeros))):
        return []
    if len(slots) == 1:
        return slots
    half = len(slots) // 2
    return [
        *_failing(slots[:half], part, fails, zeros),
        *_failing(slots[half:], part, fails, zeros),
    ]


def _only(slots: list[int], part: Part, zeros: bool) -> Part:
    """The records in these slots, zeros or copies of them in all others.

    A unit is filled up with copies of its own rows, if it has one left: lengths of its factors are
    measured together, and must not depend on anybody else's.
    """
    stays = torch.zeros(len(part.places), dtype=torch.bool)
    stays[slots] = True
    first: dict[int, int] = {}
    for slot in slots:
        first.setdefault(slot // part.each, slot)
    standing = torch.tensor(
        [
            slot if stay or not slots else first.get(slot // part.each, slots[0])
            for slot, stay in enumerate(stays.tolist())
        ]
    )

    def leaf(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if not zeros:
            return value.index_select(0, standing.to(value.device))
        shape = (-1, *(1,) * (value.dim() - 1))
        return torch.where(stays.to(value.device).reshape(shape), value, torch.zeros_like(value))

    x, y = pytree.tree_map(leaf, (part.x, part.y))
    return part._replace(x=x, y=y)
