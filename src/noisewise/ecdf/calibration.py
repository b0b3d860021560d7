"""Private calibration: how often events of predicted probability p happen.

Per group of predictions three sums are released (:mod:`noisewise.ecdf.group_sums`): the number
of records, the residual sum(y - p), and where in the group the predictions lie. The residual
is measured itself, not as a difference of two noisy sums, so it carries one noise instead of
two. The expected calibration error is sum_g |residual_g| / n.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from noisewise import checks
from noisewise.ecdf.budget import Budget
from noisewise.ecdf.counting import account_of
from noisewise.ecdf.curve import PrivateECDF
from noisewise.ecdf.estimate import curve_mechanism, dp_ecdf
from noisewise.ecdf.group_sums import (
    ROUNDED,
    SUM_UNIT,
    Family,
    GroupSums,
    Held,
    SummedFamily,
    checked_cuts,
    group_mechanism,
    group_of,
    release_sums,
    separate,
    to_units,
)
from noisewise.ecdf.mechanisms.protocol import FloatArray
from noisewise.ecdf.predictions import as_predictions, curve_records, public_count
from noisewise.ecdf.registry import curve
from noisewise.ecdf.sources.tables import Column, rows_at_hand
from noisewise.privacy import Event, Randomness, Relation, Statement
from noisewise.privacy.randomness import resolve
from noisewise.release import (
    ONE_ROW,
    Account,
    LedgerOrPath,
    StatedNumber,
    StatedTuple,
    compose,
    one_vocabulary,
    per_unit,
    together,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from typing_extensions import Unpack

    from noisewise.ecdf.options import CalibrationOptions

__all__ = [
    "CalibrationCurve",
    "PrivateCalibration",
    "dp_calibration_curve",
    "dp_expected_calibration_error",
    "private_calibration",
    "quantile_cuts",
]

# Parts of the budget of the group sums: number of records, residual, place in the group.
COUNT_SHARE, RESIDUAL_SHARE, PLACE_SHARE = 0.3, 0.6, 0.1
# Part of the whole budget for the cut points of quantile groups.
CUT_SHARE = 0.25
# What is summed of the records of a table, beside their number.
CALIBRATION = ("residual", "place")


def quantile_cuts(curve: PrivateECDF, groups: int) -> FloatArray:
    """Return cut points between groups of nearly equal size, from a private curve.

    Thresholds may coincide where many predictions are equal; then there are fewer groups.
    """
    return separate(curve.quantile(np.arange(1, groups) / groups))


@dataclass(frozen=True, eq=False)
class PrivateCalibration:
    """Private reliability of predicted probabilities. Made by :func:`private_calibration`.

    Parameters
    ----------
    sums : GroupSums
        Columns "count", "residual" and "place".
    curve : PrivateECDF or None
        Where the cut points came from, if not from the user.
    budget : Budget
    records : int or None
        Their number, if it is public.
    """

    sums: GroupSums
    curve: PrivateECDF | None
    budget: Budget
    records: int | None

    @cached_property
    def edges(self) -> FloatArray:
        """Limits of the groups, from 0 to 1."""
        return np.concatenate([[0.0], self.sums.cuts, [1.0]])

    @cached_property
    def counts(self) -> FloatArray:
        """Noisy numbers of records in the groups, made to sum to n if that is public."""
        counts = self.sums.columns["count"]
        if self.records is not None:
            counts = counts + (self.records - counts.sum()) / counts.size
        return np.asarray(counts)

    @property
    def residuals(self) -> FloatArray:
        """Noisy sums of y - p."""
        return self.sums.columns["residual"]

    @property
    def total(self) -> float:
        """Number of records, public or noisy, at least 1."""
        return max(float(self.counts.sum()), 1.0)

    @cached_property
    def usable(self) -> NDArray[np.bool_]:
        """Which groups have more records than three deviations of the noise."""
        deviation = math.sqrt(2) * self.sums.scales["count"]
        return np.asarray(self.counts >= max(1.0, 3 * deviation), np.bool_)

    @cached_property
    def prob_pred(self) -> FloatArray:
        """Mean prediction in each group."""
        middle = (self.edges[1:] + self.edges[:-1]) / 2
        half = np.diff(self.edges) / 2
        place = self.sums.columns["place"] / np.maximum(self.counts, 1.0)
        return np.asarray(middle + half * np.clip(place, -1.0, 1.0))

    @cached_property
    def prob_true(self) -> FloatArray:
        """Share of positives in each group."""
        share = self.prob_pred + self.residuals / np.maximum(self.counts, 1.0)
        return np.clip(share, 0.0, 1.0)

    @property
    def ece(self) -> float:
        """Expected calibration error over these groups; noise makes it too large on average.

        At most 1, as the true one is: with few records noise alone would exceed it.
        """
        return min(1.0, float(np.abs(self.residuals).sum() / self.total))

    def ece_interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return limits for the records' own ECE over these groups.

        The error of the sum of absolute residuals is at most the sum of the absolute noises,
        whose law is known. With a private number of records its own noise is allowed for too,
        each with half of the error probability.
        """
        level = checks.fraction("level", level)
        part = level if self.records is not None else (1 + level) / 2
        most = least = self.total
        if self.records is None:
            margin = self.sums.noise_of_sum("count", self.sums.groups, part)
            most, least = self.total + margin, max(self.total - margin, 1.0)
        slack = self.sums.noise_of_sizes("residual", self.sums.groups, part) + ROUNDED * most
        found = float(np.abs(self.residuals).sum())
        low, high = (found - slack) / most, (found + slack) / least
        return min(1.0, max(0.0, low)), min(1.0, high)

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each group."""
        import pandas as pd

        frame: pd.DataFrame = pd.DataFrame(
            {
                "low": self.edges[:-1],
                "high": self.edges[1:],
                "count": self.counts,
                "prob_pred": self.prob_pred,
                "prob_true": self.prob_true,
                "residual": self.residuals,
                "standard_error": self.standard_errors(),
                "usable": self.usable,
            }
        )
        return frame

    def standard_errors(self) -> FloatArray:
        """Return the deviation of `prob_true` by the noise of the residual."""
        deviation = math.sqrt(2) * self.sums.scales["residual"]
        return np.asarray(deviation / np.maximum(self.counts, 1.0))

    def plot(self, ax: Axes | None = None, **line: Any) -> Axes:
        """Draw the reliability diagram with bars of two standard errors of the noise."""
        if ax is None:
            import matplotlib.pyplot as plt

            ax = plt.subplots()[1]
        keep = self.usable
        style = {"marker": "o", "capsize": 3, "label": f"private, ECE {self.ece:.3f}", **line}
        bars = 2 * self.standard_errors()[keep]
        ax.errorbar(self.prob_pred[keep], self.prob_true[keep], yerr=bars, **style)
        ax.plot([0, 1], [0, 1], color="0.7", linewidth=0.8, linestyle="--")
        ax.set(xlabel="mean predicted probability", ylabel="share of positives")
        ax.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), aspect="equal")
        ax.legend(loc="upper left")
        return ax

    def statement(self) -> Statement:
        """Return what was promised."""
        if self.curve is None:
            return self.sums.statement()
        return compose([self.curve.statement(), self.sums.statement()], self.budget.delta)


@curve(
    answers="Whether predicted probabilities are the observed shares, group by group.",
    proof="proofs/curves.md#groups",
)
@one_vocabulary
def private_calibration(
    y: Any,
    p: Any,
    *,
    epsilon: float,
    delta: float = 0.0,
    n_bins: int = 10,
    strategy: Literal["uniform", "quantile"] = "uniform",
    cuts: Any = None,
    bins: int = 2**10,
    pos_label: Any = None,
    relation: Relation | str = "add-remove",
    units: Any = None,
    max_per_unit: int = 1,
    ledger: LedgerOrPath = None,
    seed: Randomness | int | None = None,
    data: Any = None,
) -> PrivateCalibration:
    """Release the calibration of predicted probabilities with differential privacy.

    Parameters
    ----------
    y, p : array
        Labels and predicted probabilities of the positive class. With `data`, names of columns.
    epsilon, delta : float
        The whole budget. `delta` is used by the cut points of quantile groups only.
    n_bins : int
        Number of groups.
    strategy : {"uniform", "quantile"}
        Groups of equal width (public, costs nothing), or of nearly equal size: their cut points
        take a quarter of the budget.
    cuts : array, optional
        Public cut points inside (0, 1) instead of a strategy.
    bins : int
        Grid of the curve from which quantile cuts are read.
    pos_label, relation, units, max_per_unit, ledger, seed, data
        See :func:`noisewise.ecdf.private_roc`.
    """
    relation, budget, source = Relation.of(relation), Budget(epsilon, delta), resolve(seed)
    bounded = per_unit(units, max_per_unit, source)
    most = ONE_ROW if bounded is None else bounded.contribution
    n_bins = checks.integer("n_bins", n_bins, minimum=1, maximum=1 << 16)
    checks.choice("strategy", strategy, ("uniform", "quantile"))
    at_hand = rows_at_hand(data, p, y, pos_label, units, bounded)
    p, y, pos_label, units, data, bounded = at_hand
    labels, predictions = as_predictions(y, p, pos_label, data, units, bounded)
    held = Held.of(bounded, units, None if isinstance(predictions, Column) else labels.size)
    points = None if cuts is None else checked_cuts(cuts)
    if points is None and strategy == "uniform":
        points = np.arange(1, n_bins) / n_bins
    scores: Any = curve_records(predictions, bins) if points is None else predictions
    if isinstance(predictions, Column) and points is not None:
        records = public_count(predictions.number(points, CALIBRATION), relation, held)
    else:
        records = public_count(len(scores), relation, held)
    curve = None
    rest = budget.epsilon
    with account_of(ledger, relation, budget, most) as account:
        if points is None:
            rest = budget.epsilon * (1 - CUT_SHARE)
            cut_budget = Budget(budget.epsilon * CUT_SHARE, delta)
            first = curve_mechanism(bins, relation, cut_budget, most).event
            second = most.told(calibration_event(rest, relation))
            account = together(account, (first, second), source)
            curve = dp_ecdf(
                scores,
                bounds=(0.0, 1.0),
                epsilon=cut_budget.epsilon,
                delta=delta,
                bins=bins,
                relation=relation,
                units=units,
                max_per_unit=max_per_unit,
                ledger=account,
                seed=source,
            )
            points = quantile_cuts(curve, n_bins)
        sums = measure_calibration(
            labels, predictions, points, rest, relation, source, account, held
        )
    return PrivateCalibration(sums, curve, budget, records)


def measure_calibration(
    labels: FloatArray,
    predictions: FloatArray | Column,
    cuts: FloatArray,
    epsilon: float,
    relation: Relation,
    rng: Randomness,
    account: Account | None = None,
    held: Held | None = None,
    *,
    clip: bool = False,
) -> GroupSums:
    """Release count, residual and place of the predictions in each group.

    With the predictions of a table, `clip` moves those outside [0, 1] to the nearest end.
    """
    options: dict[str, Any] = {
        "epsilon": epsilon,
        "relation": relation,
        "rng": rng,
        "account": account,
        "what": "calibration",
    }
    if isinstance(predictions, Column):
        summed, made = predictions.sums(cuts, CALIBRATION, clip=clip), predictions.assumptions
        return release_sums(
            None,
            [
                SummedFamily(("count",), summed["weight"][:, None], SUM_UNIT, COUNT_SHARE, made),
                SummedFamily(
                    ("residual",), summed["residual"][:, None], SUM_UNIT, RESIDUAL_SHARE, made
                ),
                SummedFamily(("place",), summed["place"][:, None], SUM_UNIT, PLACE_SHARE, made),
            ],
            cuts,
            **options,
            held=held,
        )
    group = group_of(predictions, cuts)
    edges = np.concatenate([[0.0], cuts, [1.0]])
    half = np.diff(edges) / 2
    place = np.clip((predictions - edges[group]) / half[group] - 1, -1.0, 1.0)
    ones = np.full((labels.size, 1), SUM_UNIT, np.int64)
    families = [
        Family(("count",), ones, SUM_UNIT, COUNT_SHARE),
        Family(("residual",), to_units(labels - predictions)[:, None], SUM_UNIT, RESIDUAL_SHARE),
        Family(("place",), to_units(place)[:, None], SUM_UNIT, PLACE_SHARE),
    ]
    return release_sums(group, families, cuts, **options, held=held)


def calibration_event(epsilon: float, relation: Relation) -> Event:
    """Return what :func:`measure_calibration` costs, whatever the groups are."""
    shares = (COUNT_SHARE, RESIDUAL_SHARE, PLACE_SHARE)
    return group_mechanism(
        1, (1, 1, 1), (SUM_UNIT, SUM_UNIT, SUM_UNIT), shares, epsilon, relation
    ).event


class _Curve(NamedTuple):
    prob_true: FloatArray
    prob_pred: FloatArray


class CalibrationCurve(StatedTuple, _Curve):
    """As of ``sklearn.calibration.calibration_curve``, with ``statement()``."""


@curve(answers="The same, as `sklearn.calibration` returns it.", proof="proofs/curves.md#groups")
@one_vocabulary
def dp_calibration_curve(
    y: Any, p: Any, *, epsilon: float, n_bins: int = 5, **options: Unpack[CalibrationOptions]
) -> CalibrationCurve:
    """Return ``(prob_true, prob_pred)`` as ``sklearn.calibration.calibration_curve`` does.

    Groups whose noisy number of records is lost in the noise are left out. Arguments as in
    :func:`private_calibration`.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> p = rng.random(20_000)
    >>> y = rng.random(20_000) < p
    >>> prob_true, prob_pred = dp_calibration_curve(y, p, epsilon=1.0, seed=1)
    >>> bool(np.abs(prob_true - prob_pred).max() < 0.05)
    True
    """
    found = private_calibration(y, p, epsilon=epsilon, n_bins=n_bins, **options)
    keep = found.usable
    return CalibrationCurve.stated((found.prob_true[keep], found.prob_pred[keep]), found.statement)


@curve(answers="How far the two are apart on average.", proof="proofs/curves.md#groups")
@one_vocabulary
def dp_expected_calibration_error(
    y: Any, p: Any, *, epsilon: float, n_bins: int = 10, **options: Unpack[CalibrationOptions]
) -> StatedNumber:
    """Return the expected calibration error; see :func:`private_calibration` for its interval."""
    found = private_calibration(y, p, epsilon=epsilon, n_bins=n_bins, **options)
    return StatedNumber.stated(found.ece, found.statement)
