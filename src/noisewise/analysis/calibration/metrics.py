"""How far confidence is from accuracy: NLL, ECE, MCE, classwise ECE and Brier score.

The measures of section 6 of Bu, Wang, Dai and Long (2021), after Naeini et al. (2015). A
record's confidence is the probability of its predicted class. Records are grouped into bins of
confidence ``(edge before, edge]``, the first one closed below, of equal width or of nearly
equal mass; ECE is the mean over records, MCE the maximum over non-empty bins, of |accuracy -
confidence|. Both depend on the bins, so every result carries its own. Not private: for private
records see :mod:`noisewise.analysis.calibration.private`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np

from noisewise import checks
from noisewise.analysis.inputs import (
    BoolArray,
    FloatArray,
    IntArray,
    as_labels,
    as_log_probabilities,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from typing_extensions import Unpack

__all__ = [
    "Bins",
    "Calibration",
    "MeasureOptions",
    "Strategy",
    "brier_score",
    "classwise_calibration_error",
    "expected_calibration_error",
    "group",
    "maximum_calibration_error",
    "measure",
    "negative_log_likelihood",
]

Strategy = Literal["width", "mass"]


@dataclass(frozen=True, eq=False)
class Bins:
    """Records grouped by a predicted probability.

    Parameters
    ----------
    edges : array
        Limits of the bins, from 0 to 1.
    counts : array
        Records in each bin.
    predicted, observed : array
        Mean predicted probability, and share of records for which it came true; NaN in an
        empty bin.
    """

    edges: FloatArray
    counts: IntArray
    predicted: FloatArray
    observed: FloatArray

    @property
    def filled(self) -> BoolArray:
        """Which bins hold a record."""
        return np.asarray(self.counts > 0)

    @property
    def gaps(self) -> FloatArray:
        """Observed minus predicted in each bin; NaN in an empty one."""
        return np.asarray(self.observed - self.predicted)

    @property
    def expected_error(self) -> float:
        """Mean over records of the absolute gap of their bin."""
        keep = self.filled
        return float(self.counts[keep] @ np.abs(self.gaps[keep]) / self.counts.sum())

    @property
    def maximum_error(self) -> float:
        """Largest absolute gap of a bin that holds a record, however few."""
        return float(np.abs(self.gaps[self.filled]).max())


def group(
    predicted: FloatArray, outcome: FloatArray, *, bins: int = 15, strategy: Strategy = "width"
) -> Bins:
    """Group predicted probabilities and their outcomes (0 or 1) into bins.

    Parameters
    ----------
    predicted, outcome : array
        One number for each record.
    bins : int
        Their number. With ``strategy="mass"`` equal predictions stay together, so there may
        be fewer.
    strategy : {"width", "mass"}
        Equal widths between 0 and 1, or nearly equal numbers of records.
    """
    bins = checks.integer("bins", bins, minimum=1, maximum=1 << 20)
    checks.choice("strategy", strategy, ("width", "mass"))
    if strategy == "width":
        cuts = np.arange(1, bins) / bins
    else:
        shares = np.arange(1, bins) / bins
        cuts = np.unique(np.quantile(predicted, shares, method="inverted_cdf"))
        cuts = cuts[cuts < predicted.max()]
    index = np.searchsorted(cuts, predicted, side="left")
    counts = np.bincount(index, minlength=cuts.size + 1)
    with np.errstate(invalid="ignore"):
        means = [np.bincount(index, v, counts.size) / counts for v in (predicted, outcome)]
    return Bins(np.concatenate([[0.0], cuts, [1.0]]), counts, means[0], means[1])


@dataclass(frozen=True, eq=False)
class Calibration:
    """Calibration of a classifier on some records. Made by :func:`measure`.

    Parameters
    ----------
    bins : Bins
        Records grouped by confidence.
    strategy : {"width", "mass"}
        How the bins were chosen.
    nll, brier, classwise_ece : float
        Mean negative log-likelihood, Brier score (sum over classes), mean over classes of the
        ECE of each class's own probability, with the same kind of bins.
    accuracy, confidence : float
        Means over records.
    """

    bins: Bins
    strategy: Strategy
    nll: float
    brier: float
    classwise_ece: float
    accuracy: float
    confidence: float

    @property
    def ece(self) -> float:
        """Expected calibration error over these bins."""
        return self.bins.expected_error

    @property
    def mce(self) -> float:
        """Maximum calibration error over these bins."""
        return self.bins.maximum_error

    @property
    def overconfidence(self) -> float:
        """Mean confidence minus accuracy: positive if the model trusts itself too much."""
        return self.confidence - self.accuracy

    @cached_property
    def records(self) -> int:
        """Number of records."""
        return int(self.bins.counts.sum())

    def summary(self) -> dict[str, float]:
        """Return the numbers by name."""
        return {
            "accuracy": self.accuracy,
            "confidence": self.confidence,
            "nll": self.nll,
            "brier": self.brier,
            "ece": self.ece,
            "mce": self.mce,
            "classwise_ece": self.classwise_ece,
        }

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each bin."""
        import pandas as pd

        frame: pd.DataFrame = pd.DataFrame(
            {
                "low": self.bins.edges[:-1],
                "high": self.bins.edges[1:],
                "count": self.bins.counts,
                "confidence": self.bins.predicted,
                "accuracy": self.bins.observed,
            }
        )
        return frame

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the reliability diagram."""
        from noisewise.analysis.calibration.diagrams import reliability_diagram

        return reliability_diagram(self, ax)

    def plot_confidence(self, ax: Axes | None = None) -> Axes:
        """Draw the confidence histogram."""
        from noisewise.analysis.calibration.diagrams import confidence_histogram

        return confidence_histogram(self, ax)

    def __str__(self) -> str:
        numbers = ", ".join(f"{name} {value:.4f}" for name, value in self.summary().items())
        kind = f"{self.bins.counts.size} bins of equal {self.strategy}"
        return f"{numbers} ({self.records} records, {kind})"


class MeasureOptions(TypedDict, total=False):
    """What may be asked of :func:`measure`, for functions that hand it on."""

    logits: bool
    bins: int
    strategy: Strategy


def measure(
    scores: Any, labels: Any, *, logits: bool = False, bins: int = 15, strategy: Strategy = "width"
) -> Calibration:
    """Measure the calibration of a classifier.

    Parameters
    ----------
    scores : array or tensor
        Probabilities, records x classes, or those of the positive class of two.
    labels : array or tensor
        Class indices.
    logits : bool
        Whether `scores` are logits; then the losses stay exact where probabilities underflow.
    bins, strategy
        See :func:`group`.

    Examples
    --------
    Ten records predicted with confidence 0.8, of which seven are right:

    >>> import numpy as np
    >>> found = measure(np.full(10, 0.8), [1] * 7 + [0] * 3)
    >>> round(found.ece, 6), round(found.mce, 6), round(found.accuracy, 6)
    (0.1, 0.1, 0.7)
    """
    logs, truth = _checked(scores, labels, logits)
    probabilities = np.exp(logs)
    confidence = probabilities.max(1)
    correct = (probabilities.argmax(1) == truth).astype(np.float64)
    return Calibration(
        bins=group(confidence, correct, bins=bins, strategy=strategy),
        strategy=strategy,
        nll=_nll(logs, truth),
        brier=_brier(probabilities, truth),
        classwise_ece=_classwise(probabilities, truth, bins, strategy),
        accuracy=float(correct.mean()),
        confidence=float(confidence.mean()),
    )


def negative_log_likelihood(scores: Any, labels: Any, *, logits: bool = False) -> float:
    """Return the mean of -log(probability of the true class); infinite if one of them is 0."""
    return _nll(*_checked(scores, labels, logits))


def brier_score(scores: Any, labels: Any, *, logits: bool = False) -> float:
    """Return the mean over records of sum_k (p_k - y_k)^2, between 0 and 2.

    For two classes this is twice `sklearn.metrics.brier_score_loss` of the positive class.
    """
    logs, truth = _checked(scores, labels, logits)
    return _brier(np.exp(logs), truth)


def expected_calibration_error(
    scores: Any, labels: Any, **options: Unpack[MeasureOptions]
) -> float:
    """Return the ECE; options as of :func:`measure`."""
    return measure(scores, labels, **options).ece


def maximum_calibration_error(scores: Any, labels: Any, **options: Unpack[MeasureOptions]) -> float:
    """Return the MCE over non-empty bins; options as of :func:`measure`.

    A bin with one record counts as much as one with thousands, so this number is unstable:
    read it beside the counts.
    """
    return measure(scores, labels, **options).mce


def classwise_calibration_error(
    scores: Any, labels: Any, **options: Unpack[MeasureOptions]
) -> float:
    """Return the mean over classes of the ECE of each class's probability."""
    return measure(scores, labels, **options).classwise_ece


def _checked(scores: Any, labels: Any, logits: bool) -> tuple[FloatArray, IntArray]:
    logs = as_log_probabilities(scores, logits=logits)
    return logs, as_labels(labels, logs.shape[1], logs.shape[0])


def _nll(logs: FloatArray, labels: IntArray) -> float:
    return float(-np.take_along_axis(logs, labels[:, None], axis=1).mean())


def _brier(probabilities: FloatArray, labels: IntArray) -> float:
    distance = probabilities.copy()
    distance[np.arange(labels.size), labels] -= 1.0
    return float((distance**2).sum(1).mean())


def _classwise(probabilities: FloatArray, labels: IntArray, bins: int, strategy: Strategy) -> float:
    errors = [
        group(column, (labels == k).astype(np.float64), bins=bins, strategy=strategy)
        for k, column in enumerate(probabilities.T)
    ]
    return float(np.mean([found.expected_error for found in errors]))
