"""Private training of what Hugging Face's Accelerate prepared. Needs the extra ``huggingface``.

``accelerator.prepare`` wraps models, optimizers and loaders. A private run needs what is inside:
the model whose operations it follows, the optimizer whose gradients it noises, the dataset from
which it draws. Accelerate keeps what it is good at: devices, processes, mixed precision, trackers.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler

from noisewise.errors import UnsoundError, UnsupportedModelError
from noisewise.training import (
    LossFunction,
    MapRecords,
    Plan,
    PrivateRun,
    RunOptions,
    make_private as make_plain_private,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["make_private", "records_of_loader", "with_own_forward"]

_DISTRIBUTED = ("NO", "MULTI_CPU", "MULTI_GPU")


def make_private(
    accelerator: Any,
    model: nn.Module,
    optimizer: Any,
    loss: LossFunction,
    data: Any,
    plan: Plan,
    *,
    resume: str | os.PathLike[str] | None = None,
    **options: Unpack[RunOptions],
) -> PrivateRun:
    """Make a loop private whose parts an `Accelerator` prepared, or will not prepare.

    Parameters
    ----------
    accelerator : accelerate.Accelerator
        Says where batches go and which processes there are.
    model, optimizer : prepared or not
    loss : callable
    data : prepared DataLoader, or what :func:`noisewise.make_private` takes
        Of a loader its dataset, collate function and workers are used; ``run.loader`` draws.
    plan : Plan
    resume : path, optional
        Checkpoint to continue.
    **options
        As of :func:`noisewise.make_private`.

    Notes
    -----
    With mixed precision, take steps under ``accelerator.autocast()``: the model has its own forward
    again, which Accelerate had replaced. ``optimizer.step()``, ``scheduler.step()`` and
    ``accelerator.backward(loss)`` work as ever. Checkpoints are ``run.save`` and ``run.resume``,
    since ``accelerator.save_state`` knows nothing of the ledger.
    """
    _check(accelerator)
    inner = accelerator.unwrap_model(model)
    if "_original_forward" in vars(inner):
        vars(inner).pop("forward", None)
    plain = getattr(optimizer, "optimizer", optimizer)
    options.setdefault("device", accelerator.device)
    return make_plain_private(
        inner, plain, loss, records_of_loader(data), plan, resume=resume, **options
    )


@contextlib.contextmanager
def with_own_forward(model: nn.Module) -> Iterator[None]:
    """Give a model the forward that Accelerate replaced (by one that casts), and take it back."""
    replaced = vars(model).pop("forward", None) if "_original_forward" in vars(model) else None
    try:
        yield
    finally:
        if replaced is not None:
            model.forward = replaced


def _check(accelerator: Any) -> None:
    kind = getattr(accelerator.distributed_type, "name", str(accelerator.distributed_type))
    if kind not in _DISTRIBUTED:
        raise UnsupportedModelError(
            f"Accelerate was set up for {kind}, which takes gradients out of the library's hands. "
            "Use plain processes (torchrun, accelerate launch --multi_gpu); docs/distributed.md "
            "has sharded weights."
        )
    if getattr(accelerator, "scaler", None) is not None:
        raise UnsupportedModelError(
            "mixed_precision='fp16' scales the loss and skips steps whose gradients overflow, and "
            "which do depends on the records. Use mixed_precision='bf16' or full precision."
        )
    if accelerator.gradient_accumulation_steps != 1:
        raise UnsoundError(
            "gradient_accumulation_steps adds up batches before a step, but one step is one "
            "Poisson batch. Leave it out: run.step(x, y) processes a batch in pieces of "
            "make_private(chunk=...) records."
        )


def records_of_loader(data: Any) -> Any:
    """Return the dataset of a prepared loader, with its collate function; other data as it is."""
    if not isinstance(data, DataLoader):
        return data
    if isinstance(data.dataset, IterableDataset):
        return data  # refused with the reason by whoever takes records
    sampler: Any = data.batch_sampler
    seen: list[Any] = []
    while sampler is not None and not isinstance(sampler, (RandomSampler, SequentialSampler)):
        seen.append(sampler)
        inner = getattr(sampler, "batch_sampler", None) or getattr(sampler, "sampler", None)
        if inner is None:
            break
        sampler = inner
    if not isinstance(sampler, (RandomSampler, SequentialSampler)):
        raise UnsoundError(
            f"the loader draws its batches with {type(sampler).__name__}, for which no analysis is "
            "known here. Hand over loader.dataset: noisewise draws Poisson batches from it."
        )
    if type(data) is DataLoader:
        return data
    return MapRecords(
        data.dataset,
        data.collate_fn,
        workers=data.num_workers,
        pin_memory=data.pin_memory and torch.cuda.is_available(),
    )
