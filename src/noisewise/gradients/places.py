"""Which slot of which piece a record takes.

Model, loss and kernels may treat the slots of a piece differently: in the last bits of a product,
or by a constant that differs from row to row. So nobody may move when a record is left out: it
leaves a hole, and what fills the hole counts nothing. Where all slots are shown to be treated
alike, records may stand in any order.
"""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

__all__ = ["by_chance", "by_content", "in_order", "spread", "takes_all"]


def in_order(records: int, size: int) -> list[Tensor]:
    """One record after the other; returns, piece by piece, the record in every slot, or -1."""
    return list(_in_order(records, size) if records <= _SMALL else _cut(records, size))


def _cut(records: int, size: int) -> tuple[Tensor, ...]:
    slots = torch.arange(-(-records // size) * size, device="cpu")
    slots[records:] = -1
    return tuple(slots[start : start + size] for start in range(0, len(slots), size))


#: Records of a batch whose places are remembered: nobody writes to them.
_SMALL = 1024
_in_order = functools.lru_cache(maxsize=256)(_cut)


def takes_all(places: Tensor, records: int) -> bool:
    """Whether these are known to be all records of a batch, in their order: a piece that is all."""
    size = places.shape[0]
    return size == records <= _SMALL and _in_order(records, size)[0] is places


def by_chance(records: int, size: int) -> list[Tensor]:
    """Each record in a slot that is drawn for it alone; those that share one, in several pieces."""
    return spread(torch.randint(size, (records,)), size)


def spread(slots: Tensor, size: int) -> list[Tensor]:
    """Pieces in which every record has its slot."""
    records = len(slots)
    order = slots.argsort(stable=True)
    counts = torch.bincount(slots, minlength=size)
    first = counts.cumsum(0) - counts
    pieces = torch.full((int(counts.max()), size), -1)
    pieces[torch.arange(records) - first[slots[order]], slots[order]] = order
    return list(pieces)


def by_content(x: Any, y: Any, records: int, size: int) -> list[Tensor]:
    """Each record in a slot that follows from itself; those that share one, in several pieces.

    Equal records are numbered, so that they spread; which of them is left out makes no difference.
    """
    rows = [
        t.detach().cpu().contiguous().reshape(records, -1).view(torch.uint8).numpy()
        for t in pytree.tree_leaves((x, y))
        if isinstance(t, Tensor) and t.numel()
    ]
    copies: Counter[bytes] = Counter()
    piece_of: Counter[int] = Counter()
    pieces: list[Tensor] = []
    for record in range(records):
        digest = hashlib.blake2b(digest_size=16)
        for columns in rows:
            digest.update(columns[record].tobytes())
        content = digest.digest()
        copies[content] += 1
        numbered = content + copies[content].to_bytes(8, "little")
        slot = int.from_bytes(hashlib.blake2b(numbered, digest_size=8).digest(), "little") % size
        if piece_of[slot] == len(pieces):
            pieces.append(torch.full((size,), -1))
        pieces[piece_of[slot]][slot] = record
        piece_of[slot] += 1
    return pieces
