"""Precision and recall, and detection error trade-off, from one private release.

Both are read from the noisy class counts of a private ROC curve. Shapes, order and the values at
the ends follow ``sklearn.metrics.precision_recall_curve`` and ``det_curve``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from noisewise.ecdf.mechanisms.protocol import FloatArray
from noisewise.ecdf.registry import curve
from noisewise.ecdf.roc import PrivateROC, private_roc
from noisewise.release import StatedNumber, StatedTuple, one_vocabulary

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from noisewise.ecdf.options import ScoreOptions

__all__ = [
    "DETCurve",
    "PrecisionRecallCurve",
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


class _PrecisionRecall(NamedTuple):
    precision: FloatArray
    recall: FloatArray
    thresholds: FloatArray


class PrecisionRecallCurve(StatedTuple, _PrecisionRecall):
    """As of ``sklearn.metrics.precision_recall_curve``, with ``statement()``."""


class _DET(NamedTuple):
    fpr: FloatArray
    fnr: FloatArray
    thresholds: FloatArray


class DETCurve(StatedTuple, _DET):
    """As of ``sklearn.metrics.det_curve``, with ``statement()``."""


@curve(
    answers="Precision over recall, as `sklearn.metrics` returns it.",
    proof="proofs/curves.md#two-classes",
)
@one_vocabulary
def dp_precision_recall_curve(
    y: Any, score: Any, *, epsilon: float, **options: Unpack[ScoreOptions]
) -> PrecisionRecallCurve:
    """Return ``(precision, recall, thresholds)``; arguments as in `private_roc`.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 2, 4000)
    >>> score = np.clip(rng.normal(0.3 + 0.4 * y, 0.1), 0, 1)
    >>> precision, recall, thresholds = dp_precision_recall_curve(y, score, epsilon=1.0, seed=1)
    >>> float(precision[-1]), float(recall[-1]), len(precision) - len(thresholds)
    (1.0, 0.0, 1)
    """
    roc = private_roc(y, score, epsilon=epsilon, **options)
    return PrecisionRecallCurve.stated(precision_recall(roc), roc.statement)


@curve(answers="The area below that.", proof="proofs/curves.md#two-classes")
@one_vocabulary
def dp_average_precision_score(
    y: Any, score: Any, *, epsilon: float, **options: Unpack[ScoreOptions]
) -> StatedNumber:
    """Return the average precision of a private curve; arguments as in `private_roc`."""
    roc = private_roc(y, score, epsilon=epsilon, **options)
    return StatedNumber.stated(average_precision(roc), roc.statement)


@curve(
    answers="False positives over false negatives, as `sklearn.metrics` returns them.",
    proof="proofs/curves.md#two-classes",
)
@one_vocabulary
def dp_det_curve(
    y: Any, score: Any, *, epsilon: float, **options: Unpack[ScoreOptions]
) -> DETCurve:
    """Return ``(fpr, fnr, thresholds)``; arguments as in `private_roc`."""
    roc = private_roc(y, score, epsilon=epsilon, **options)
    return DETCurve.stated(detection_error(roc), roc.statement)
