"""Which slots of which piece the rows of a unit take.

Rows of a unit lie side by side, in as many slots as the least divisor of a piece's size that holds
them all, so that all pieces have one size and one proof speaks for them. A unit with more rows than
a piece has fills pieces of its own, whose sums are added before they are bounded. Where a unit
goes depends on its own number of rows, and on the order of the units or on chance
(docs/proofs/units.md#places).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from noisewise.gradients.places import in_order, spread

__all__ = ["UnitPlaces", "in_units", "units_by_chance", "units_by_content"]

#: From units of one class and the number of their places in a piece to pieces of them; -1: none.
Runs = Callable[[Tensor, int], list[Tensor]]


class UnitPlaces(NamedTuple):
    """The rows of a piece.

    Attributes
    ----------
    places : Tensor
        Which row of the batch is in each slot; -1 for none.
    each : int
        Slots of one unit.
    owners : Tensor
        The unit in each run of `each` slots; -1 for none.
    left : int or None
        Of a unit that fills several pieces: how many of them follow.
    """

    places: Tensor
    each: int
    owners: Tensor
    left: int | None = None


def in_units(codes: Tensor, size: int) -> Iterator[UnitPlaces]:
    """One unit after the other, those with about the same number of rows together.

    Parameters
    ----------
    codes : Tensor
        The unit of every row, numbered from 0 in the order in which they come.
    size : int
        Slots of a piece.
    """
    return _placed(codes, size, lambda units, room: in_order(len(units), room))


def units_by_chance(codes: Tensor, size: int) -> Iterator[UnitPlaces]:
    """Each unit in slots that are drawn for it alone, among those of its number of rows."""
    return _placed(
        codes, size, lambda units, room: spread(torch.randint(room, (len(units),)), room)
    )


def units_by_content(codes: Tensor, size: int, x: Any, y: Any) -> Iterator[UnitPlaces]:
    """Each unit in slots that follow from its own rows, whatever other units there are."""
    rows = len(codes)
    columns = [
        t.detach().cpu().contiguous().reshape(rows, -1).view(torch.uint8).numpy()
        for t in pytree.tree_leaves((x, y))
        if isinstance(t, Tensor) and t.numel()
    ]
    digests = [hashlib.blake2b(digest_size=16) for _ in range(int(codes.max()) + 1)]
    for row, code in enumerate(codes.tolist()):
        for column in columns:
            digests[code].update(column[row].tobytes())
    contents = [digest.digest() for digest in digests]
    return _placed(codes, size, lambda units, room: _by_content(units, room, contents))


def _placed(codes: Tensor, size: int, runs: Runs) -> Iterator[UnitPlaces]:
    codes = codes.cpu()
    counts = torch.bincount(codes)
    order = codes.argsort(stable=True)
    starts = counts.cumsum(0) - counts
    divisors = [each for each in range(1, size + 1) if size % each == 0]
    for least, each in zip([0, *divisors], divisors, strict=False):
        units = ((counts > least) & (counts <= each)).nonzero().flatten()
        if not len(units):
            continue
        inside = torch.arange(each)
        slots = starts[units].unsqueeze(1) + inside
        slots = torch.where(inside < counts[units].unsqueeze(1), slots, -1)
        rows = torch.where(slots >= 0, order[slots.clamp_min(0)], -1)
        for chosen in runs(units, size // each):
            owners = torch.where(chosen >= 0, units[chosen.clamp_min(0)], -1)
            places = torch.where((chosen >= 0).unsqueeze(1), rows[chosen.clamp_min(0)], -1)
            yield UnitPlaces(places.flatten(), each, owners)
    for unit in (counts > size).nonzero().flatten().tolist():
        rows = order[starts[unit] : starts[unit] + counts[unit]]
        pieces = -(-len(rows) // size)
        filled = torch.full((pieces * size,), -1)
        filled[: len(rows)] = rows
        for number, places in enumerate(filled.reshape(pieces, size)):
            yield UnitPlaces(places, size, torch.tensor([unit]), pieces - 1 - number)


def _by_content(units: Tensor, room: int, contents: list[bytes]) -> list[Tensor]:
    """Piece by piece, which of the units goes where; -1 for none."""
    copies: Counter[bytes] = Counter()
    depth: Counter[int] = Counter()
    pieces: list[Tensor] = []
    for index, unit in enumerate(units.tolist()):
        copies[contents[unit]] += 1
        numbered = contents[unit] + copies[contents[unit]].to_bytes(8, "little")
        slot = int.from_bytes(hashlib.blake2b(numbered, digest_size=8).digest(), "little") % room
        if depth[slot] == len(pieces):
            pieces.append(torch.full((room,), -1))
        pieces[depth[slot]][slot] = index
        depth[slot] += 1
    return pieces
