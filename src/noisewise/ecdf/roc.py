"""Private ROC curves and the area under them (Barczewski 2025, Section 6.5.1).

One joint release of both class distributions (:mod:`noisewise.ecdf.two_class`); the ROC curve,
its area, the DET curve, precision and recall and quantiles of the scores are all read from
it at no further cost. Arguments and returns follow ``sklearn.metrics``.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from noisewise import checks
from noisewise.ecdf.auc import area_under, fieller_interval
from noisewise.ecdf.mechanisms.protocol import FloatArray
from noisewise.ecdf.registry import curve
from noisewise.ecdf.roc_band import RateBand, rate_band
from noisewise.ecdf.two_class import TwoClassCounts, count_two_classes
from noisewise.privacy import Statement
from noisewise.release import StatedNumber, StatedTuple, one_vocabulary

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from typing_extensions import Unpack

    from noisewise.ecdf.options import ScoreOptions

__all__ = ["PrivateROC", "ROCCurve", "dp_roc_auc_score", "dp_roc_curve", "private_roc"]


@dataclass(frozen=True, eq=False)
class PrivateROC:
    """A private ROC curve. Made by :func:`private_roc`.

    Parameters
    ----------
    release : TwoClassCounts
        The noisy counts that everything here is computed from.
    """

    release: TwoClassCounts

    # --------------------------------------------------------------------- curves

    @cached_property
    def thresholds(self) -> FloatArray:
        """Decreasing; the first one is infinite, where nothing is called positive."""
        return np.concatenate([[np.inf], self.release.thresholds])

    @cached_property
    def fpr(self) -> FloatArray:
        """Share of negatives with a score of at least each threshold."""
        return self._rate(0)

    @cached_property
    def tpr(self) -> FloatArray:
        """Share of positives with a score of at least each threshold."""
        return self._rate(1)

    def _rate(self, row: int) -> FloatArray:
        counts = self.release.counts[row]
        total = float(counts[-1])
        if total < 1:
            which = ("negative", "positive")[row]
            warnings.warn(
                f"the private number of {which} records is {total:.3g}: the rate among them "
                "is not defined and given as NaN",
                RuntimeWarning,
                stacklevel=3,
            )
            return np.full(counts.size + 1, np.nan)
        rate = np.concatenate([[0.0], counts / total])
        if self.release.smoothing != "none":
            rate = np.clip(rate, 0.0, 1.0)
        rate[-1] = 1.0
        return rate

    @cached_property
    def auc(self) -> float:
        """Area under the curve (ties within a bin count half); NaN if a class seems empty."""
        return area_under(self.fpr, self.tpr)

    def auc_interval(
        self,
        level: float = 0.95,
        *,
        method: Literal["simulation", "band"] = "simulation",
        target: Literal["sample", "population"] = "sample",
        draws: int = 1000,
        seed: int = 0,
    ) -> tuple[float, float]:
        """Return limits between which the true area lies with probability `level`.

        Parameters
        ----------
        level : float
            In (0, 1).
        method : {"simulation", "band"}
            Narrow and approximate, or wide with guaranteed coverage: see
            :mod:`noisewise.ecdf.auc`.
        target : {"sample", "population"}
            The area of these records (with scores rounded to the grid), or that of the
            distribution that they were drawn from independently ("simulation" only).
        draws : int
            Number of simulated noise curves.
        seed : int
            Of the simulation, which never touches the data.
        """
        level = checks.fraction("level", level)
        checks.choice("method", method, ("simulation", "band"))
        checks.choice("target", target, ("sample", "population"))
        draws = checks.integer("draws", draws, minimum=1)
        if method == "simulation":
            population = target == "population"
            return fieller_interval(
                self.release, level, population=population, draws=draws, seed=seed
            )
        if target == "population":
            raise ValueError("method='band' knows the area of the sample only")
        low, high = self.confidence_band(level, draws=draws).auc
        return max(low, 0.0), min(high, 1.0)

    def confidence_band(self, level: float = 0.95, *, draws: int = 500) -> RateBand:
        """Return limits that hold for both rates at all thresholds at once."""
        level = checks.fraction("level", level)
        draws = checks.integer("draws", draws, minimum=1)
        return rate_band(self.release, level, draws)

    def score_quantile(self, q: ArrayLike) -> FloatArray:
        """Return quantiles of the scores of all records, to the width of a bin."""
        wanted = np.asarray(q, np.float64)
        if np.isnan(wanted).any() or np.any((wanted < 0) | (wanted > 1)):
            raise ValueError(f"q must lie in [0, 1], got {q!r}")
        if self.release.smoothing == "none":
            raise ValueError("a curve that is not monotone has no quantiles: ask for smoothing")
        both = self.release.counts.sum(0)
        above = both / max(float(both[-1]), 1.0)
        edges = np.append(self.release.thresholds[::-1], self.release.upper)
        # Records below edge i, in increasing order of the edges; the first is 0, the last 1.
        below = np.append(np.clip(1 - above[::-1], 0.0, 1.0), 1.0)
        below[0] = 0.0
        place = np.clip(np.searchsorted(below, wanted, side="left"), 1, edges.size - 1)
        height = below[place] - below[place - 1]
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(height > 0, (wanted - below[place - 1]) / height, 0.0)
        width = edges[place] - edges[place - 1]
        return np.asarray(edges[place - 1] + np.clip(share, 0, 1) * width)

    # --------------------------------------------------------------------- output

    def compact(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return fpr, tpr, thresholds without the points where neither rate moves."""
        moves = (np.diff(self.fpr, prepend=-1) != 0) | (np.diff(self.tpr, prepend=-1) != 0)
        moves[-1] = True
        return self.fpr[moves], self.tpr[moves], self.thresholds[moves]

    def to_frame(self) -> pd.DataFrame:
        """Return thresholds, both rates and the deviations of the counts behind them."""
        import pandas as pd

        deviation = np.sqrt(self.release.variance)
        frame: pd.DataFrame = pd.DataFrame(
            {
                "threshold": self.thresholds,
                "fpr": self.fpr,
                "tpr": self.tpr,
                "fpr_standard_error": np.append(0, deviation[0] / max(self.release.negatives, 1)),
                "tpr_standard_error": np.append(0, deviation[1] / max(self.release.positives, 1)),
            }
        )
        return frame

    def plot(self, ax: Axes | None = None, *, level: float | None = 0.95, **line: Any) -> Axes:
        """Draw the curve and the region in which it lies with probability `level`."""
        if ax is None:
            import matplotlib.pyplot as plt

            ax = plt.subplots()[1]
        label = f"private ROC, AUC {self.auc:.3f}"
        fpr, tpr, _ = self.compact()
        (drawn,) = ax.plot(fpr, tpr, **{"label": label, **line})
        if level is not None:
            band = self.confidence_band(level)
            x = np.linspace(0.0, 1.0, 1001)
            # Steps: between two thresholds the curve is monotone and nothing more is known.
            upper = values_of_steps(x, band.fpr_low, band.tpr_high, side="right")
            lower = values_of_steps(x, band.fpr_high, band.tpr_low, side="left")
            shade: dict[str, Any] = {"alpha": 0.2, "color": drawn.get_color(), "linewidth": 0}
            ax.fill_between(x, lower, upper, label=f"{level:.0%} region", **shade)
        ax.plot([0, 1], [0, 1], color="0.7", linewidth=0.8, linestyle="--")
        ax.set(xlabel="false positive rate", ylabel="true positive rate")
        ax.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), aspect="equal")
        ax.legend(loc="lower right")
        return ax

    def statement(self) -> Statement:
        """Return what was promised."""
        return self.release.statement()

    def __repr__(self) -> str:
        release = self.release
        return (
            f"PrivateROC(auc={self.auc:.4f}, {release.grid.bins} thresholds, {release.budget}, "
            f"{release.relation}, {release.mechanism.name})"
        )


def values_of_steps(
    x: FloatArray, at: FloatArray, value: FloatArray, side: Literal["left", "right"]
) -> FloatArray:
    """Value of a monotone curve: of the next known point, or (side left) of the last one."""
    if side == "right":
        return value[np.minimum(np.searchsorted(at, x, side="right"), at.size - 1)]
    return value[np.maximum(np.searchsorted(at, x, side="right") - 1, 0)]


@curve(
    answers="How well scores tell two classes apart: curve, area, bands, operating points.",
    proof="proofs/curves.md#two-classes",
)
@one_vocabulary
def private_roc(
    y: Any, score: Any, *, epsilon: float, **options: Unpack[ScoreOptions]
) -> PrivateROC:
    """Release a ROC curve with differential privacy; everything else follows from it.

    Parameters
    ----------
    y : array
        Labels: 0 and 1, -1 and 1, booleans, or anything with `pos_label`. With `data`, the
        name of a column.
    score : array
        Scores; a higher one means "more likely positive". With `data`, the name of a column.
    epsilon : float
        The budget, with `delta`.
    **options
        `delta`; `bounds`, the public range of the scores, by default (0, 1), outside of which
        they are moved to the nearest bound; `bins`, number of thresholds; `pos_label`;
        `relation` ("add-remove", or "replace-one": the number of records is public but the class
        sizes are not); `units` and `max_per_unit` (one unit may have rows in both classes);
        `mechanism` ("auto", "kary", "thesis", "sqrt", "histogram"); `smooth`;
        `objective`; `seed`; `ledger`; `aggregator` (then `y` and `score` are lists with one array
        for each party); `data`, a table of any engine. As in :func:`noisewise.ecdf.dp_ecdf`.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 2, 4000)
    >>> score = 1 / (1 + np.exp(-rng.normal(2.0 * y - 1)))
    >>> roc = private_roc(y, score, epsilon=1.0, seed=1)
    >>> low, high = roc.auc_interval(0.95)
    >>> bool(low < roc.auc < high and high - low < 0.1)
    True
    """
    return PrivateROC(count_two_classes(y, score, epsilon=epsilon, **options))


class _Curve(NamedTuple):
    fpr: FloatArray
    tpr: FloatArray
    thresholds: FloatArray


class ROCCurve(StatedTuple, _Curve):
    """``(fpr, tpr, thresholds)`` as of ``sklearn.metrics.roc_curve``, with ``statement()``."""


@curve(
    answers="The curve as `sklearn.metrics.roc_curve` returns it.",
    proof="proofs/curves.md#two-classes",
)
@one_vocabulary
def dp_roc_curve(
    y: Any,
    score: Any,
    *,
    epsilon: float,
    drop_intermediate: bool = True,
    **options: Unpack[ScoreOptions],
) -> ROCCurve:
    """Return ``(fpr, tpr, thresholds)`` as ``sklearn.metrics.roc_curve`` does, privately.

    Parameters
    ----------
    y, score, epsilon, **options
        See :func:`private_roc`.
    drop_intermediate : bool
        Leave out thresholds at which neither rate moves.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 2, 4000)
    >>> found = dp_roc_curve(y, np.clip(rng.normal(0.3 + 0.4 * y, 0.1), 0, 1), epsilon=1.0)
    >>> fpr, tpr, thresholds = found
    >>> found.statement().epsilon <= 1.0
    True
    """
    roc = private_roc(y, score, epsilon=epsilon, **options)
    values = roc.compact() if drop_intermediate else (roc.fpr, roc.tpr, roc.thresholds)
    return ROCCurve.stated(values, roc.statement)


@curve(answers="The area below it.", proof="proofs/curves.md#two-classes")
@one_vocabulary
def dp_roc_auc_score(
    y: Any, score: Any, *, epsilon: float, **options: Unpack[ScoreOptions]
) -> StatedNumber:
    """Return the area under a private ROC curve; see :func:`private_roc` for its interval."""
    roc = private_roc(y, score, epsilon=epsilon, **options)
    return StatedNumber.stated(roc.auc, roc.statement)
