"""Records on which the user's program raises: they count nothing, and the step is taken.

An exception that ends a run tells that a record was drawn. So the records of a piece that fail are
looked for: some of them stay, made-up ones stand in the places of the others, and each part that
still fails is halved. An operation raises for several records if and only if it raises for one of
them (docs/proofs/separation.md), so whether a record fails is a matter of that record alone. What
fails on made-up records as well is a mistake in the program, and its error is shown. Code that
raises by itself has read a value or counts its calls, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from noisewise.gradients.batches import Part
from noisewise.gradients.slots import KINDS, one_record_everywhere

__all__ = ["without_failing"]


def without_failing(part: Part, shown: Exception, fails: Callable[[Part], bool]) -> Part:
    """The piece with made-up rows, which count nothing, in the places of the records that fail."""
    here = list(range(len(part.places)))
    zeros = pytree.tree_map(_zeros, (part.x, part.y))
    made_up = (one_record_everywhere(part.x, part.y, 0, kind) for kind in KINDS[:-1])
    for filler in (zeros, *made_up):
        if not fails(_only([], part, filler)):
            break
    else:
        raise shown from None
    found = _failing(here, part, filler, fails, known=True)
    barred = torch.zeros(len(here), dtype=torch.bool)
    barred[found] = True
    if part.barred is not None:
        barred |= part.barred
    left = _only([slot for slot in here if not barred[slot]], part, filler)
    return left._replace(barred=barred)


def _zeros(value: Any) -> Any:
    return torch.zeros_like(value) if isinstance(value, Tensor) else value


def _failing(
    slots: list[int], part: Part, filler: Any, fails: Callable[[Part], bool], known: bool = False
) -> list[int]:
    if not slots or not (known or fails(_only(slots, part, filler))):
        return []
    if len(slots) == 1:
        return slots
    half = len(slots) // 2
    return [
        *_failing(slots[:half], part, filler, fails),
        *_failing(slots[half:], part, filler, fails),
    ]


def _only(slots: list[int], part: Part, filler: Any) -> Part:
    """The records in these slots, made-up ones in all others."""
    stays = torch.zeros(len(part.places), dtype=torch.bool)
    stays[slots] = True

    def leaf(value: Any, other: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        shape = (-1, *(1,) * (value.dim() - 1))
        return torch.where(stays.to(value.device).reshape(shape), value, other)

    x, y = pytree.tree_map(leaf, (part.x, part.y), filler)
    return part._replace(x=x, y=y)
