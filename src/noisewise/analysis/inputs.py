"""Predictions as every analysis takes them: arrays or tensors, checked once.

Nothing here changes a number: logits stay logits, probabilities stay probabilities, and both
become float64 arrays on the CPU, because analyses run after training and need exactness more
than speed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

__all__ = [
    "FloatArray",
    "IntArray",
    "as_array",
    "as_labels",
    "as_log_probabilities",
    "as_logits",
]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

#: How far the probabilities of one record may sum from 1: float32 softmax stays far below.
SUM_TOLERANCE = 1e-3


def as_array(values: Any) -> NDArray[Any]:
    """Return a tensor, array or list as an array."""
    if hasattr(values, "detach"):
        # Half precision has no NumPy twin of every kind; float64 holds each of them exactly.
        values = values.detach()
        values = values.double() if values.is_floating_point() else values
        values = values.cpu()
    return np.asarray(values)


def as_labels(labels: Any, classes: int, records: int) -> IntArray:
    """Return class indices 0 ... classes - 1, one for each record."""
    array = as_array(labels)
    if array.shape != (records,):
        raise ValueError(
            f"labels must be one class index for each of the {records} records, "
            f"got shape {array.shape}"
        )
    if array.dtype.kind not in "iub" and not np.all(array == np.floor(array)):
        raise ValueError("labels must be class indices, got values that are not whole numbers")
    whole = array.astype(np.int64)
    if whole.size and (whole.min() < 0 or whole.max() >= classes):
        raise ValueError(
            f"labels must lie in 0 ... {classes - 1} for {classes} classes, "
            f"got {whole.min()} to {whole.max()}"
        )
    return whole


def as_logits(logits: Any, name: str = "logits") -> FloatArray:
    """Return records x classes of finite numbers."""
    array = as_array(logits).astype(np.float64)
    if array.ndim != 2 or array.shape[0] == 0 or array.shape[1] < 2:
        raise ValueError(
            f"{name} must be records x classes with at least one record and two classes, "
            f"got shape {array.shape}"
        )
    bad = int((~np.isfinite(array)).any(axis=1).sum())
    if bad:
        raise ValueError(f"{name} has NaN or infinite values in {bad} of {array.shape[0]} records")
    return array


def as_log_probabilities(scores: Any, *, logits: bool) -> FloatArray:
    """Return log probabilities, records x classes, from logits or probabilities.

    One-dimensional scores are those of the positive class of two. A probability of zero
    becomes minus infinity, so that a loss on it is infinite, as it is.
    """
    array = as_array(scores).astype(np.float64)
    if array.ndim == 1:
        other = np.zeros_like(array) if logits else 1.0 - array
        array = np.column_stack([other, array])
    array = as_logits(array, "scores")
    if logits:
        return np.asarray(log_softmax(array, axis=1))
    if np.any((array < 0) | (array > 1)) or np.any(np.abs(array.sum(1) - 1) > SUM_TOLERANCE):
        raise ValueError(
            "scores must be probabilities that sum to 1 in each record; pass logits=True if they "
            "are logits"
        )
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(array))
