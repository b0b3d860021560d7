"""Datasets as the loader sees them: how many records, and a batch for a list of positions.

In-memory tensors (alone, in a tuple, in a dict, or in a TensorDataset) are gathered by one
``index_select`` each. Any map-style dataset goes through a torch ``DataLoader`` with its workers
and its collate function, which is given one record at a time: what it makes of a record cannot
depend on who else was drawn. Empty batches have the shapes and types of full ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from noisewise.errors import UnsoundError

__all__ = [
    "MapRecords",
    "Records",
    "TensorRecords",
    "collated_apart",
    "first_record",
    "leaves",
    "map_tensors",
    "record_count",
    "records_of",
]


@dataclass(frozen=True)
class TensorRecords:
    """Tensors that share their first axis, in the container in which the user gave them."""

    tensors: Any  # Tensor | tuple[Tensor, ...] | dict[str, Tensor]
    pin_memory: bool = False

    def __post_init__(self) -> None:
        sizes = {len(tensor) for tensor in leaves(self.tensors)}
        if len(sizes) != 1:
            raise ValueError(
                f"all tensors of a dataset have one row per record, got {sorted(sizes)} rows"
            )

    def __len__(self) -> int:
        return len(next(leaves(self.tensors)))

    @property
    def held(self) -> tuple[Tensor, ...]:
        """The tensors themselves."""
        return tuple(leaves(self.tensors))

    def batches(self, batches: Iterable[Tensor]) -> Iterator[Any]:
        """Gather the rows of every batch."""
        pin = self.pin_memory and torch.cuda.is_available()
        for indices in batches:
            yield map_tensors(self.tensors, partial(_rows, indices=indices, pin=pin))


class MapRecords:
    """A map-style dataset, read by a torch `DataLoader`.

    Parameters
    ----------
    dataset : map-style dataset
        With ``__len__`` and ``__getitem__``; item i may depend on record i alone.
    collate : callable
        From a list of items to a batch; called with one item at a time.
    workers : int
        Processes that read ahead.
    """

    def __init__(
        self,
        dataset: Any,
        collate: Callable[[list[Any]], Any] | None = None,
        *,
        workers: int = 0,
        pin_memory: bool = False,
        **options: Any,
    ) -> None:
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
            raise UnsoundError(
                f"{type(dataset).__name__} gives its records in an order of its own, so they "
                "cannot be drawn independently and Poisson accounting would be false. Give a "
                "map-style dataset (with __len__ and __getitem__) or tensors; if every pass gives "
                "each record once, noisewise.training.Streamed(dataset, records=...) draws them. "
                "Shards that are resampled or split on the way (WebDataset) cannot be used."
            )
        self.dataset = dataset
        self.collate = collate or default_collate
        self.workers = workers
        self.pin_memory = pin_memory and torch.cuda.is_available()
        self.options = options

    def __len__(self) -> int:
        return len(self.dataset)

    def batches(self, batches: Iterable[Tensor]) -> Iterator[Any]:
        """Read and collate the items of every batch, ahead of time if there are workers."""
        empty = map_tensors(self.collate([self.dataset[0]]), lambda tensor: tensor[:0])
        yield from DataLoader(
            self.dataset,
            batch_sampler=_Listed(batches),
            collate_fn=_CollateApart(self.collate, empty),
            num_workers=self.workers,
            pin_memory=self.pin_memory,
            generator=_seeds_of_workers(),
            **self.options,
        )

    def visit(self, look: Callable[[Any], Any], positions: Iterable[int]) -> Iterator[list[Any]]:
        """Return what a function says of each record, collated alone; in the workers' processes."""
        yield from DataLoader(
            self.dataset,
            sampler=positions,
            batch_size=256,
            collate_fn=_LookAtEach(self.collate, look),
            num_workers=self.workers,
            generator=_seeds_of_workers(),
            **self.options,
        )


Records = TensorRecords | MapRecords


def records_of(
    data: Any,
    *,
    collate: Callable[[list[Any]], Any] | None = None,
    workers: int = 0,
    pin_memory: bool = False,
) -> Records:
    """Return whatever a user calls data as records that can be drawn by position."""
    if isinstance(data, (TensorRecords, MapRecords)):
        return data
    if isinstance(data, IterableDataset):
        return MapRecords(data)  # refuses it, with the reason
    if isinstance(data, DataLoader):
        return _of_loader(data, collate)
    if isinstance(data, TensorDataset) and collate is None:
        data = tuple(data.tensors)
    held = _tensors(data) if collate is None else None
    if held is not None:
        return TensorRecords(held, pin_memory)
    if not hasattr(data, "__len__"):
        raise TypeError(
            "data must be tensors, a tuple or dict of tensors, a map-style dataset or a "
            f"DataLoader over one, got {type(data).__name__}"
        )
    return MapRecords(data, collate, workers=workers, pin_memory=pin_memory)


def record_count(batch: Any) -> int:
    """Return how many records a batch has: the rows of its first tensor."""
    for leaf in leaves(batch):
        return len(leaf)
    raise TypeError(f"a batch holds at least one tensor, got {type(batch).__name__}")


def first_record(value: Any) -> Any:
    """Return one record of zeros with the shapes and types of a batch that may be empty."""
    return map_tensors(value, lambda tensor: tensor.new_zeros((1, *tensor.shape[1:])))


def _of_loader(loader: DataLoader[Any], collate: Callable[[list[Any]], Any] | None) -> Records:
    if isinstance(loader.dataset, IterableDataset):
        return MapRecords(loader.dataset)  # refuses it, with the reason
    sampler = getattr(loader, "sampler", None)
    if type(sampler) not in (SequentialSampler, RandomSampler) or loader.batch_size is None:
        raise UnsoundError(
            f"the loader draws its batches with {type(sampler).__name__}, for which no analysis is "
            "known here. Hand over loader.dataset: noisewise draws Poisson batches from it."
        )
    own = loader.collate_fn
    if collate is None and own is default_collate and isinstance(loader.dataset, TensorDataset):
        return TensorRecords(tuple(loader.dataset.tensors), loader.pin_memory)
    return MapRecords(
        loader.dataset,
        collate or own,
        workers=loader.num_workers,
        pin_memory=loader.pin_memory,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
    )


def _seeds_of_workers() -> torch.Generator:
    """Seeds for workers that leave torch's own generator where it is, so that runs can resume."""
    state = torch.get_rng_state()
    seed = int(torch.randint(2**62, ()))
    torch.set_rng_state(state)
    return torch.Generator().manual_seed(seed)


def _tensors(data: Any) -> Any:
    """Return tensors in their container, or None if there is something else inside."""
    if isinstance(data, Tensor):
        return data
    if isinstance(data, np.ndarray):
        return torch.from_numpy(data)
    if isinstance(data, Mapping):
        values = {key: _tensors(value) for key, value in data.items()}
        return None if not values or any(v is None for v in values.values()) else values
    if isinstance(data, (tuple, list)) and data:
        if not all(isinstance(part, (Tensor, np.ndarray, Mapping, tuple)) for part in data):
            return None
        if isinstance(data, list) and len(data) > 8:
            return None  # a list of items is a dataset, not a tuple of columns
        parts = [_tensors(part) for part in data]
        return None if any(part is None for part in parts) else tuple(parts)
    return None


def _rows(tensor: Tensor, indices: Tensor, pin: bool) -> Tensor:
    rows = tensor.index_select(0, indices.to(tensor.device, non_blocking=True))
    return rows.pin_memory() if pin and rows.device.type == "cpu" else rows


def map_tensors(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """Apply a change to every tensor of nested tuples, lists and dicts; empty other lists."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: map_tensors(item, change) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(item, change) for item in value))
    if isinstance(value, (tuple, list)):
        if value and not any(isinstance(v, (Tensor, Mapping, tuple, list)) for v in value):
            return type(value)()
        return type(value)(map_tensors(item, change) for item in value)
    return value


def leaves(value: Any) -> Iterator[Tensor]:
    """Every tensor of nested containers."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        for item in value:
            yield from leaves(item)


class _Listed:
    """Positions as lists, which is what a DataLoader takes from a batch sampler."""

    def __init__(self, batches: Iterable[Tensor]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        return (indices.tolist() for indices in self._batches)


class _LookAtEach:
    """Looks at every item by itself, as a batch of one."""

    def __init__(self, collate: Callable[[list[Any]], Any], look: Callable[[Any], Any]) -> None:
        self._collate = collate
        self._look = look

    def __call__(self, items: list[Any]) -> list[Any]:
        return [self._look(self._collate([item])) for item in items]


class _CollateApart:
    """The user's collate function, given one record at a time; never asked to collate nothing."""

    def __init__(self, collate: Callable[[list[Any]], Any], empty: Any) -> None:
        self._collate = collate
        self._empty = empty

    def __call__(self, items: list[Any]) -> Any:
        return collated_apart(self._collate, items) if items else self._empty


def collated_apart(collate: Callable[[list[Any]], Any], items: list[Any]) -> Any:
    """Return a batch in which no row knows of another: each item is collated by itself."""
    return _joined([collate([item]) for item in items])


def _joined(parts: Sequence[Any]) -> Any:
    """Batches of one record each as one batch."""
    first = parts[0]
    if any(type(part) is not type(first) for part in parts):
        raise UnsoundError(_UNLIKE)
    if isinstance(first, Tensor):
        if any(not part.dim() or len(part) != 1 for part in parts):
            raise UnsoundError(
                "the collate function was given one record and returned other than one row: it "
                "packs, repeats or drops records, so rows are not records and none is bounded. "
                "Return one row for each item."
            )
        if any((p.shape, p.dtype) != (first.shape, first.dtype) for p in parts):
            raise UnsoundError(_UNLIKE)
        return torch.cat(list(parts))
    if isinstance(first, Mapping):
        if any(list(part) != list(first) for part in parts):
            raise UnsoundError(_UNLIKE)
        return {key: _joined([part[key] for part in parts]) for key in first}
    if isinstance(first, (tuple, list)):
        if not any(isinstance(v, (Tensor, Mapping, tuple, list)) for v in first):
            return type(first)(value for part in parts for value in part)  # words, one a record
        if any(len(part) != len(first) for part in parts):
            raise UnsoundError(_UNLIKE)
        columns = [_joined(column) for column in zip(*parts, strict=True)]
        return type(first)(*columns) if hasattr(first, "_fields") else type(first)(columns)
    if any(part != first for part in parts):
        raise UnsoundError(_UNLIKE)
    return first


_UNLIKE = (
    "records that were collated one by one have different shapes, types or columns, and no public "
    "size is known to which they could be brought: filling them up to the longest of the batch "
    "would tell each record of the others. Bring all records to one shape in the dataset or in the "
    "collate function, for example to a fixed length."
)
