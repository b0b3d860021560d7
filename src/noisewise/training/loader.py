"""The loader of a private run: one batch per step, drawn as the accountant assumes.

Iterating gives every batch from the present step to the end of the plan. The loader remembers
the batch that it handed out last, tensor by tensor, so that a run can tell whether it steps on that
batch, on one that the caller drew, or on a changed one, which it refuses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from noisewise.gradients import keeps_rows, same_bits
from noisewise.training.errors import StepError
from noisewise.training.records import Records, leaves
from noisewise.training.sampling import Sampler

__all__ = ["ALL_ROWS", "PrivateLoader"]

#: All rows of a batch: the first one, and the number that is missing at the end.
ALL_ROWS = (0, 0)


class PrivateLoader:
    """Batches of a run, one per step.

    Parameters
    ----------
    records : TensorRecords or MapRecords
    sampler : Sampler
    steps : int
        Where the plan ends.
    steps_per_epoch : int
        For :meth:`epoch`.
    device : torch.device, optional
        Where batches are moved, without waiting.
    codes : Tensor, optional
        The unit of every record, as a number.
    """

    def __init__(
        self,
        records: Records,
        sampler: Sampler,
        steps: int,
        steps_per_epoch: int = 1,
        device: torch.device | None = None,
        codes: Tensor | None = None,
    ) -> None:
        self.records = records
        self.sampler = sampler
        self.steps = steps
        self.steps_per_epoch = steps_per_epoch
        self.device = device
        self.position = 0
        self._fresh: list[tuple[Tensor, Tensor]] | None = None
        self._codes = codes
        self._coming: deque[Tensor] = deque()
        self._units: Tensor | None = None
        self._seeks = 0
        self.unused = 0

    def __len__(self) -> int:
        """Return the number of batches that are left."""
        return max(0, self.steps - self.position)

    def __iter__(self) -> Iterator[Any]:
        """Hand out all batches that are left."""
        return self._until(self.steps)

    def epoch(self) -> Iterator[Any]:
        """Hand out the batches of one epoch (1/q steps), for loops that count epochs."""
        return self._until(min(self.steps, self.position + self.steps_per_epoch))

    def take(self, count: int) -> Iterator[Any]:
        """Hand out at most `count` batches."""
        return islice(self._until(min(self.steps, self.position + count)), count)

    def seek(self, step: int) -> None:
        """Continue with the batch of that step."""
        self.position = step
        self._fresh = None
        self._seeks += 1

    def recognise(self, values: Any, like: tuple[int, int] | None = None) -> tuple[int, int] | None:
        """Which rows of the batch that was handed out last these tensors are, unchanged.

        None if no batch is under way. Other types, shapes within a row and parts of rows are the
        same batch; fewer rows are a choice of the caller's.

        Parameters
        ----------
        like : tuple of int, optional
            The rows that other tensors of the same step were.

        Raises
        ------
        StepError
            If a batch is under way and these are other tensors.
        """
        if self._fresh is None:
            return None
        rows = {self._rows(tensor) for tensor in leaves(values)}
        if like is not None:
            rows.add(like)
        if None in rows or len(rows) != 1:
            raise StepError(
                "this is not the batch that run.loader handed out, but a changed one, and it "
                "cannot be told whether each of its records comes from one record (mixup, "
                "resampling, statistics of the batch do not). Nothing was charged. Put changes "
                "of single records into make_private(augmentation=...), where they are proven, "
                "or into the dataset or the loss. To step on a batch that you drew yourself, "
                "take none from run.loader, or drop it first with run.discard()."
            )
        return rows.pop()

    def _rows(self, tensor: Tensor) -> tuple[int, int] | None:
        """Which rows of the batch a tensor holds, None if it is something else."""
        for known, copy in self._fresh or ():
            found = _rows_of(tensor, known)
            if found is not None and same_bits(known.detach(), copy):
                return found
        return None

    def units(self, rows: tuple[int, int]) -> Tensor | None:
        """The units of these rows of the batch that was handed out last."""
        if self._units is None:
            return None
        first, missing = rows
        return self._units[first : len(self._units) - missing]

    def drop(self) -> None:
        """The batch that was handed out last will not be stepped on."""
        if self._fresh is not None:
            self.unused += 1
            self._fresh = None

    def claim(self) -> None:
        """The batch that was handed out last was stepped on."""
        self._fresh = None

    def _until(self, stop: int) -> Iterator[Any]:
        while self.position < stop:
            seeks = self._seeks
            self._coming = deque()
            for batch in self.records.batches(self._indices(self.position, stop)):
                if self._fresh is not None:
                    self.unused += 1
                self.position += 1
                self._units = self._coming.popleft() if self._coming else None
                moved = self._moved(batch)
                # Copies, since memory can be written without torch taking notice.
                self._fresh = [(tensor, tensor.detach().clone()) for tensor in leaves(moved)]
                yield moved
                if seeks != self._seeks:  # another step is next: begin anew there
                    break

    def _indices(self, start: int, stop: int) -> Iterator[Tensor]:
        coming = self._coming
        for step in range(start, stop):
            indices = self.sampler.indices(step)
            if self._codes is not None:
                # Workers may read ahead; batches come in the order of their indices.
                coming.append(self._codes[indices])
            yield indices

    def _moved(self, value: Any) -> Any:
        if self.device is None:
            return value
        if isinstance(value, Tensor):
            return value.to(self.device, non_blocking=True)
        if isinstance(value, dict):
            return {key: self._moved(item) for key, item in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(self._moved(item) for item in value))
        if isinstance(value, (tuple, list)):
            return type(value)(self._moved(item) for item in value)
        return value


def _rows_of(tensor: Tensor, known: Tensor) -> tuple[int, int] | None:
    """Which rows of a known tensor these are, in another type or shape perhaps, or None."""
    if tensor is known:
        return ALL_ROWS
    if tensor.dim() == 0:
        return None
    if tensor.dtype == known.dtype and known.numel() and _share_memory(tensor, known):
        start = (tensor.storage_offset() - known.storage_offset()) // max(known.stride(0), 1)
        end = start + tensor.shape[0]
        if start >= 0 and end <= known.shape[0] and keeps_rows(tensor, known[start:end]):
            return start, known.shape[0] - end
    if tensor.shape[0] != known.shape[0] or tensor.numel() != known.numel():
        return None
    cast = known.detach().to(tensor.device, tensor.dtype).reshape(tensor.shape)
    return ALL_ROWS if same_bits(cast, tensor.detach()) else None


def _share_memory(first: Tensor, second: Tensor) -> bool:
    same = first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    return same and first.device == second.device
