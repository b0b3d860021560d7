"""Precision and recall, and detection error trade-off, from one private release.

Both are read from the noisy class counts of a private ROC curve. Shapes, order and the values at
the ends follow ``sklearn.metrics.precision_recall_curve`` and ``det_curve``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from noisewise.ecdf.mechanisms.protocol import FloatArray
from noisewise.ecdf.roc import PrivateROC, private_roc

__all__ = [
    "average_precision",
    "detection_error",
    "dp_average_precision_score",
    "dp_det_curve",
    "dp_precision_recall_curve",
    "precision_recall",
]


def precision_recall(roc: PrivateROC) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return precision, recall and increasing thresholds; the last point is (1, 0).

    Where the private number of records above a threshold is below one, nothing can be said of
    their precision, and it is 1 by convention.
    """
    negatives, positives = roc.release.counts
    called = negatives + positives
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.where(called >= 1, np.clip(positives / called, 0.0, 1.0), 1.0)
    recall = roc.tpr[1:]
    return (
        np.append(precision[::-1], 1.0),
        np.append(recall[::-1], 0.0),
        roc.release.thresholds[::-1],
    )


def average_precision(roc: PrivateROC) -> float:
    """Return the mean precision over the recall, as a step function."""
    precision, recall, _ = precision_recall(roc)
    return float(-np.sum(np.diff(recall) * precision[:-1]))


def detection_error(roc: PrivateROC) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return fpr, fnr and increasing thresholds, from the last threshold that finds all
    positives to the first that calls no negative positive.
    """  # noqa: D205
    fpr, fnr = roc.fpr[1:], 1.0 - roc.tpr[1:]
    thresholds = roc.release.thresholds
    complete = np.flatnonzero(fnr <= 0)
    clean = np.flatnonzero(fpr <= 0)
    first = int(clean[-1]) if clean.size else 0
    last = int(complete[0]) if complete.size else fnr.size - 1
    part = slice(min(first, last), last + 1)
    return fpr[part][::-1], fnr[part][::-1], thresholds[part][::-1]


def dp_precision_recall_curve(
    y: Any, score: Any, *, epsilon: float, **options: Any
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return ``(precision, recall, thresholds)``; arguments as in `private_roc`.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 2, 4000)
    >>> score = np.clip(rng.normal(0.3 + 0.4 * y, 0.1), 0, 1)
    >>> precision, recall, thresholds = dp_precision_recall_curve(y, score, epsilon=1.0, rng=1)
    >>> float(precision[-1]), float(recall[-1]), len(precision) - len(thresholds)
    (1.0, 0.0, 1)
    """
    return precision_recall(private_roc(y, score, epsilon=epsilon, **options))


def dp_average_precision_score(y: Any, score: Any, *, epsilon: float, **options: Any) -> float:
    """Return the average precision of a private curve; arguments as in `private_roc`."""
    return average_precision(private_roc(y, score, epsilon=epsilon, **options))


def dp_det_curve(
    y: Any, score: Any, *, epsilon: float, **options: Any
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return ``(fpr, fnr, thresholds)``; arguments as in `private_roc`."""
    return detection_error(private_roc(y, score, epsilon=epsilon, **options))
