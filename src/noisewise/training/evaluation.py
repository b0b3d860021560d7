"""Loss and accuracy on batches, for people who watch training. None of it is private.

A metric on private records is a release without noise. :mod:`noisewise.ecdf` and the command
``noisewise evaluate`` measure privately.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Container, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from noisewise.errors import UnsoundError
from noisewise.gradients import Following
from noisewise.separation import Path, storage_key
from noisewise.training.records import Records, leaves, map_tensors, record_count
from noisewise.training.withheld import withheld, zeros_like

__all__ = [
    "Metric",
    "accuracy",
    "apart",
    "call_model",
    "evaluate",
    "mean_loss",
    "measure",
    "measure_apart",
    "split_batch",
]

Kept = TypeVar("Kept")

Metric = Callable[[Tensor, Tensor], float]

_TARGETS = ("labels", "label", "target", "targets", "y")


def split_batch(batch: Any) -> tuple[Any, Any]:
    """Return inputs and targets of a batch: its last part, or the part called label or target."""
    if isinstance(batch, Mapping):
        for name in _TARGETS:
            if name in batch:
                return {key: item for key, item in batch.items() if key != name}, batch[name]
        raise TypeError(
            f"none of {', '.join(_TARGETS)} is among the keys {list(batch)} of a batch; give "
            "split=lambda batch: (inputs, targets)"
        )
    if not isinstance(batch, (tuple, list)) or len(batch) < 2:
        raise TypeError("a batch is (inputs, targets); give split= for anything else")
    return (batch[0] if len(batch) == 2 else tuple(batch[:-1])), batch[-1]


def call_model(model: nn.Module, x: Any) -> Any:
    """Run a model on a tensor, a tuple (by position) or a mapping (by name)."""
    if isinstance(x, Mapping):
        return model(**x)
    return model(*x) if isinstance(x, tuple) else model(x)


def mean_loss(loss: Callable[[Any, Any], Tensor], output: Any, y: Any) -> Tensor:
    """Mean over records, whatever the reduction of the loss."""
    value = loss(output, y)
    if value.dim() == 0 and getattr(loss, "reduction", "mean") == "sum":
        return value / max(1, record_count(y))
    return value.mean()


def accuracy(output: Any, y: Any) -> float | None:
    """Share of right answers, or None if this is no classification."""
    if not (isinstance(output, Tensor) and isinstance(y, Tensor)) or not len(y):
        return None
    if not y.is_floating_point() and y.dim() == 1 and output.dim() == 2 and output.shape[1] > 1:
        return float((output.argmax(1) == y).float().mean())
    signs = output.reshape(len(output), -1)
    if signs.shape[1] == 1 and y.numel() == len(y) and bool(((y == 0) | (y == 1)).all()):
        return float(((signs[:, 0] > 0) == (y.reshape(-1) > 0)).float().mean())
    return None


def measure(
    model: nn.Module,
    loss: Callable[[Any, Any], Tensor],
    x: Any,
    y: Any,
    metrics: Mapping[str, Metric],
) -> dict[str, float]:
    """Loss, accuracy and further metrics of one batch, in evaluation mode."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            output, value = withheld(
                lambda: _output_and_loss(model, loss, x, y),
                lambda: _output_and_loss(model, loss, zeros_like(x), zeros_like(y)),
                "the model or its loss",
            )
            found = {"loss": float(value)}
            right = accuracy(output, y)
            if right is not None:
                found["accuracy"] = right
            found.update({name: float(metric(output, y)) for name, metric in metrics.items()})
    finally:
        model.train(training)
    return found


def apart(thing: Kept) -> Kept:
    """Return a copy, so that what it keeps of records goes with it; itself if it has none."""
    try:
        return copy.deepcopy(thing)
    except Exception:
        return thing  # what it keeps then is noticed, and not undone


def measure_apart(
    model: nn.Module,
    loss: Callable[[Any, Any], Tensor],
    x: Any,
    y: Any,
    metrics: Mapping[str, Metric],
) -> dict[str, float]:
    """As `measure`, of private records, of which nothing may be left in the model or elsewhere.

    The model is released; what it keeps while it is measured has no noise. So a copy of it is
    measured, on copies of the records, and tensors that are alive afterwards are an error.
    """
    path = Path(learning=True)
    found = _followed(path, model, loss, x, y, metrics)
    # Views of weights lie in memory that stays; that they change is noticed by the next step.
    own = set(map(storage_key, model.parameters()))
    if _kept(path, own):
        gc.collect()
        if _kept(path, own):
            raise UnsoundError(
                "the model, the loss or a metric keeps tensors that it computed of records while "
                "it was measured, where a copy of the model shares them: in a global list, a "
                "cache or a closure. They would be released without noise. Keep nothing, or give "
                "metrics=False and no validation="
            )
    return found


def _kept(path: Path, own: Container[int | None]) -> bool:
    return any(key not in own for key, _ in path.alive())


def _followed(
    path: Path,
    model: nn.Module,
    loss: Callable[[Any, Any], Tensor],
    x: Any,
    y: Any,
    metrics: Mapping[str, Metric],
) -> dict[str, float]:
    x, y = (map_tensors(value, torch.clone) for value in (x, y))
    for leaf in (*leaves(x), *leaves(y)):
        path.name(leaf)
    with Following(path):
        return measure(apart(model), apart(loss), x, y, metrics)


def _output_and_loss(
    model: nn.Module, loss: Callable[[Any, Any], Tensor], x: Any, y: Any
) -> tuple[Any, Tensor]:
    output = call_model(model, x)
    return output, mean_loss(loss, output, y)


def evaluate(
    model: nn.Module,
    loss: Callable[[Any, Any], Tensor],
    records: Records,
    *,
    metrics: Mapping[str, Metric] | None = None,
    split: Callable[[Any], tuple[Any, Any]] = split_batch,
    batch_size: int = 1024,
    device: torch.device | None = None,
    private: bool = False,
) -> dict[str, float]:
    """Metrics over all records, each batch weighted by its size.

    `private` if nothing of the records may be left anywhere (`measure_apart`).
    """
    totals: dict[str, float] = {}
    count = 0
    chunks = torch.split(torch.arange(len(records)), batch_size)
    for batch in records.batches(chunks):
        x, y = split(_to(batch, device))
        size = record_count(x)
        way = measure_apart if private else measure
        for name, value in way(model, loss, x, y, metrics or {}).items():
            totals[name] = totals.get(name, 0.0) + size * value
        count += size
    return {name: value / count for name, value in totals.items()} if count else {}


def _to(batch: Any, device: torch.device | None) -> Any:
    if device is None or all(leaf.device == device for leaf in leaves(batch)):
        return batch
    return map_tensors(batch, lambda tensor: tensor.to(device, non_blocking=True))
