"""Records and units of a choice among settings: who is trained on, who decides, by how much.

And that trials are draws of one kind: each begins with a model that no other has trained.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Subset

from noisewise.errors import UnsoundError
from noisewise.gradients import Chance
from noisewise.privacy import Randomness
from noisewise.training.records import MapRecords, Records, TensorRecords, map_tensors
from noisewise.training.units import UnitTable

__all__ = ["Built", "Split", "one_by_one", "same_chance", "summed"]


@dataclass(frozen=True, eq=False)
class Split:
    """Records for training and records for the score, divided by coins; of units, whole ones."""

    training: Records
    held: Records | None
    units: UnitTable | None = None
    held_units: UnitTable | None = None

    @staticmethod
    def of(
        records: Records, share: float, rng: Randomness, table: UnitTable | None = None
    ) -> Split:
        """Toss a coin for every record, or for every unit with all its rows."""
        if share == 0.0:
            return Split(records, None, table)
        if table is None:
            mask = rng.poisson_mask(len(records), share)
            return Split(_rows(records, ~mask), _rows(records, mask))
        mask = rng.poisson_mask(len(table), share)[table.codes]
        return Split(
            _rows(records, ~mask),
            _rows(records, mask),
            UnitTable.of(table.codes[~mask]),
            UnitTable.of(table.codes[mask]),
        )


def _rows(records: Records, mask: Tensor) -> Records:
    positions = mask.nonzero()[:, 0]
    if isinstance(records, TensorRecords):
        chosen = map_tensors(records.tensors, lambda t: t.index_select(0, positions.to(t.device)))
        return TensorRecords(chosen, records.pin_memory)
    return MapRecords(
        Subset(records.dataset, positions.tolist()),
        records.collate,
        workers=records.workers,
        pin_memory=records.pin_memory,
        **records.options,
    )


def summed(scores: list[int], units: UnitTable | None) -> int:
    """Add up scores; of a unit the mean over its rows, rounded down, so that it adds no more."""
    if units is None:
        return sum(scores)
    totals = torch.zeros(len(units), dtype=torch.int64)
    totals.index_add_(0, units.codes, torch.tensor(scores, dtype=torch.int64))
    return int((totals // units.counts).sum())


def one_by_one(records: Records) -> Iterator[Any]:
    """Read records in batches of one."""
    return records.batches(torch.tensor([i]) for i in range(len(records)))


@contextlib.contextmanager
def same_chance() -> Iterator[None]:
    """Draw the same in here each time, and go on afterwards as if nothing had been drawn."""
    before = Chance(torch.device("cpu"))
    try:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            random.seed(0)
            np.random.seed(0)  # noqa: NPY002 - the one that other code draws from
            yield
    finally:
        before.restore()


class Built:
    """The models that were built so far, of which no two may learn together."""

    def __init__(self) -> None:
        self._seen: dict[int, weakref.ref[Tensor]] = {}
        self._first: bytes | None = None

    def require_new(self, model: nn.Module) -> None:
        """Refuse a model that shares what it learns with one that was built before."""
        learnt = [p for p in model.parameters() if p.requires_grad]
        for parameter in learnt:
            known = self._seen.get(id(parameter))
            if known is not None and known() is parameter:
                raise UnsoundError(
                    "build returned a model whose parameters belong to one that it returned "
                    "before, so a trial would go on from what another has learnt of the records. "
                    "Make the model inside build, or return copy.deepcopy(model)."
                )
        self._seen.update({id(p): weakref.ref(p) for p in learnt})

    def require_same(self, model: nn.Module) -> None:
        """Refuse a model for one setting and seed that is not the one of the first time."""
        total = hashlib.blake2b(digest_size=32)
        for name, tensor in model.state_dict().items():
            if isinstance(tensor, Tensor):
                held = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
                total.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
                total.update(held.numpy().data)
        if self._first is None:
            self._first = total.digest()
        if total.digest() != self._first:
            raise UnsoundError(
                "build returns other weights for one setting and seed than before: it hands on "
                "what an earlier trial has learnt of the records, or draws from a generator of "
                "its own. Let it begin anew each time, and draw with torch, random or numpy."
            )
