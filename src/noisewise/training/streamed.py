"""Datasets that can only be read from the beginning to the end, of a public number of records.

Poisson sampling needs every record to be drawn for every step by a coin of its own. In a stream
the coins are thrown beforehand: a pass over the stream serves a number of steps, each place of the
stream is marked with the steps that it takes part in, and what is marked is kept until the pass is
over. The marks know nothing of the records, so it does not matter in which order a pass gives them,
as long as it gives each of them once. Memory holds the batches of one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from torch import Tensor
from torch.utils.data import default_collate

from noisewise import checks
from noisewise.errors import UnsoundError
from noisewise.training.errors import StepError
from noisewise.training.records import MapRecords, collated_apart, map_tensors

__all__ = ["Streamed"]

#: Libraries whose streams drop, repeat or resample records on their way.
_SHARDS = ("webdataset", "wids", "litdata", "streaming")


class Streamed(MapRecords):
    """A stream of records, to be given to `make_private` as data.

    Parameters
    ----------
    dataset : iterable
        Such as a `torch.utils.data.IterableDataset` or a streaming dataset of Hugging Face. Each
        ``iter(dataset)`` is a pass that gives every record once, in any order; an item depends on
        its record alone.
    records : int
        How many records a pass gives, at most; declared public.
    steps_per_pass : int
        Steps that one pass serves: more need fewer passes and more memory.
    collate : callable, optional
        From a list of items to a batch; called with one item at a time.

    Examples
    --------
    >>> import torch
    >>> stream = Streamed([(torch.zeros(2), torch.tensor(0))] * 10, records=10)
    >>> [len(x) for x, y in stream.batches([torch.tensor([3, 7]), torch.tensor([], dtype=int)])]
    [2, 0]
    """

    def __init__(
        self,
        dataset: Iterable[Any],
        records: int,
        *,
        steps_per_pass: int = 16,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        kind = type(dataset)
        if any(base.__module__.split(".")[0] in _SHARDS for base in kind.__mro__):
            raise UnsoundError(
                f"{kind.__name__} reads shards: it may resample them, split them among workers "
                "and drop what does not fill a batch, so some records come twice in a pass and "
                "others never. Then no record is drawn independently with a known probability, "
                "and Poisson accounting would be false. Read the shards as a map-style dataset "
                "(with __len__ and __getitem__), or give an iterable of your own that yields every "
                "record of every shard once a pass."
            )
        if not hasattr(dataset, "__iter__") or iter(dataset) is dataset:
            raise UnsoundError(
                f"{kind.__name__} can be read only once, but every pass must give all records. "
                "Give an object whose iter() starts from the beginning."
            )
        self.dataset, self.workers = dataset, 0
        self.records = checks.integer("records", records, minimum=1)
        self.steps_per_pass = checks.integer("steps_per_pass", steps_per_pass, minimum=1)
        self.collate = collate or default_collate
        self._empty: Any = None

    def __len__(self) -> int:
        return self.records

    def batches(self, batches: Iterable[Tensor]) -> Iterator[Any]:
        """Read the marked places of every batch, several batches in one pass."""
        coming = iter(batches)
        while marks := list(islice(coming, self.steps_per_pass)):
            for items in self._read(marks):
                yield collated_apart(self.collate, items) if items else self._empty

    def visit(self, look: Callable[[Any], Any], positions: Iterable[int]) -> Iterator[list[Any]]:
        """Refuse: a stream has no positions to go to."""
        raise UnsoundError("a stream cannot be read at chosen positions; give a map-style dataset")

    def _read(self, marks: list[Tensor]) -> list[list[Any]]:
        """One pass; the items of every batch, in the order of its marks."""
        wanted: dict[int, list[tuple[int, int]]] = {}
        for batch, places in enumerate(marks):
            for slot, place in enumerate(places.tolist()):
                wanted.setdefault(place, []).append((batch, slot))
        found: list[dict[int, Any]] = [{} for _ in marks]
        place = -1
        for place, item in enumerate(self.dataset):
            if place >= self.records:
                raise StepError(
                    f"the stream gives more than the {self.records} records that were declared. "
                    "Those beyond would never be drawn, so one record more would push another one "
                    "out. Declare a number that is not exceeded. Nothing was charged for this step."
                )
            if self._empty is None:
                self._empty = map_tensors(self.collate([item]), lambda tensor: tensor[:0])
            for batch, slot in wanted.get(place, ()):
                found[batch][slot] = item
        if place < 0:
            raise StepError("the stream gave no record at all: is it used up?")
        return [[items[slot] for slot in sorted(items)] for items in found]
