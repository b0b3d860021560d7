"""Evaluate a classifier's predictions privately: everything from one budget, one statement.

Two releases. The joint class curves (:mod:`noisewise.ecdf.two_class`) give ROC, AUC, precision
and recall, quantiles of the scores and the cut points of the calibration groups. Sums over
these groups give calibration, its error and the Hosmer-Lemeshow test; they need scores that
are probabilities. Each number is read from the release that knows it best, and none costs more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from noisewise import checks
from noisewise.ecdf.budget import Budget
from noisewise.ecdf.calibration import PrivateCalibration, calibration_event, measure_calibration
from noisewise.ecdf.counting import account_of
from noisewise.ecdf.group_sums import Held, separate
from noisewise.ecdf.hosmer_lemeshow_null import Groups, NullResult, p_values, statistic_of
from noisewise.ecdf.labelled import as_labelled
from noisewise.ecdf.mechanisms.protocol import FloatArray
from noisewise.ecdf.registry import curve
from noisewise.ecdf.roc import PrivateROC, private_roc
from noisewise.ecdf.roc_band import limits_at
from noisewise.ecdf.sources.tables import Column, column_of, rows_at_hand
from noisewise.ecdf.two_class import mirrored_grid, two_curve_mechanism
from noisewise.privacy import Randomness, Relation, Statement
from noisewise.privacy.randomness import resolve
from noisewise.release import (
    ONE_ROW,
    LedgerOrPath,
    PerUnit,
    compose,
    one_vocabulary,
    per_unit,
    together,
)

__all__ = ["Evaluation", "private_evaluation"]

# Part of epsilon for the curves when calibration is measured too.
CURVE_SHARE = 0.6


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A private evaluation. Made by :func:`private_evaluation`.

    Parameters
    ----------
    roc : PrivateROC
    calibration : PrivateCalibration or None
        None if the scores are not probabilities.
    budget : Budget
    """

    roc: PrivateROC
    calibration: PrivateCalibration | None
    budget: Budget

    def quantiles(self, q: Any = (0.1, 0.25, 0.5, 0.75, 0.9)) -> FloatArray:
        """Return quantiles of the scores; as many as wanted."""
        return self.roc.score_quantile(q)

    @cached_property
    def _groups(self) -> Groups:
        found = self.calibration
        if found is None:
            raise ValueError(
                "these scores are no probabilities (bounds are not (0, 1)), so that nothing is "
                "known about their calibration"
            )
        counts = np.maximum(found.counts, 0.0)
        return Groups(
            expected_1=np.maximum(counts * found.prob_pred, 1.0),
            expected_0=np.maximum(counts * (1 - found.prob_pred), 1.0),
            residual_1=found.residuals,
            residual_0=-found.residuals,
            variance=counts * found.prob_pred * (1 - found.prob_pred),
            residual_scale=found.sums.scales["residual"],
            expected_scale=0.0,
        )

    @property
    def hosmer_lemeshow(self) -> float:
        """The Hosmer-Lemeshow statistic over the calibration groups."""
        return statistic_of(self._groups)

    def hosmer_lemeshow_test(self, *, draws: int = 10_000, seed: int = 0) -> NullResult:
        """Return p-values, with sampling and noise simulated (for held-out records)."""
        return p_values(self._groups, fitted=False, draws=draws, seed=seed)

    @property
    def base_rate(self) -> float:
        """Share of positives: the accuracy of who always says no is one minus this."""
        positives = max(self.roc.release.positives, 0.0)
        return positives / max(positives + max(self.roc.release.negatives, 0.0), 1.0)

    def _place(self, threshold: float) -> int:
        return int(np.argmin(np.abs(self.roc.thresholds - threshold)))

    def at_interval(self, threshold: float, level: float = 0.95) -> dict[str, tuple[float, float]]:
        """Return limits of what :meth:`at` tells, which hold together with probability `level`."""
        place = self._place(threshold)
        limits = limits_at(self.roc.release, max(place - 1, 0), level)
        told = self.at(threshold)
        return {
            name: (min(low, told[name]), max(high, told[name]))
            for name, (low, high) in limits.items()
        }

    def at(self, threshold: float) -> dict[str, float]:
        """Return recall, false alarms and precision of saying yes from a score on."""
        positives = max(self.roc.release.positives, 1.0)
        negatives = max(self.roc.release.negatives, 0.0)
        place = self._place(threshold)
        recall, alarm = float(self.roc.tpr[place]), float(self.roc.fpr[place])
        found = recall * positives + alarm * negatives
        precision = recall * positives / found if found > 0 else 0.0
        return {"recall": recall, "false_positive_rate": alarm, "precision": precision}

    def summary(self, level: float = 0.95, threshold: float = 0.5) -> dict[str, Any]:
        """Return the main numbers, with intervals, as plain values."""
        wanted = (0.05, 0.25, 0.5, 0.75, 0.95)
        quantiles = self.quantiles(wanted).tolist()
        found: dict[str, Any] = {
            "auc": self.roc.auc,
            "auc_interval": list(self.roc.auc_interval(level)),
            "positives": self.roc.release.positives,
            "negatives": self.roc.release.negatives,
            "base_rate": self.base_rate,
            "threshold": threshold,
            **self.at(threshold),
            **{
                f"{name}_interval": list(ends)
                for name, ends in self.at_interval(threshold, level).items()
            },
            "score_quantiles": dict(zip(map(str, wanted), quantiles, strict=True)),
        }
        if self.calibration is not None:
            test = self.hosmer_lemeshow_test()
            found["ece"] = self.calibration.ece
            found["ece_interval"] = list(self.calibration.ece_interval(level))
            found["hosmer_lemeshow"] = {
                "statistic": self.hosmer_lemeshow,
                "p_value": test.plain,
                "noise_aware_p_value": test.noise_aware,
            }
        return found

    def statement(self) -> Statement:
        """Return one statement for everything here."""
        parts = [self.roc.statement()]
        if self.calibration is not None:
            parts.append(self.calibration.statement())
        return compose(parts, self.budget.delta)


@curve(answers="All of the above for one model, in one release.", proof="proofs/curves.md#shift")
@one_vocabulary
def private_evaluation(
    y: Any,
    score: Any,
    *,
    epsilon: float,
    delta: float = 0.0,
    bounds: tuple[float, float] = (0.0, 1.0),
    bins: int = 2**10,
    groups: int = 10,
    pos_label: Any = None,
    relation: Relation | str = "add-remove",
    units: Any = None,
    max_per_unit: int = 1,
    ledger: LedgerOrPath = None,
    seed: Randomness | int | None = None,
    data: Any = None,
) -> Evaluation:
    """Release ROC, AUC, calibration and score quantiles within one budget.

    Parameters
    ----------
    y, score : array
        Labels and scores; if `bounds` is (0, 1) scores are taken as probabilities. With `data`,
        names of columns.
    epsilon, delta : float
        The budget of everything.
    bounds : pair of float
        Public range of the scores. Other than (0, 1): no calibration.
    bins, groups : int
        Thresholds of the curves, groups of the calibration.
    pos_label, relation, units, max_per_unit, ledger, seed, data
        See :func:`noisewise.ecdf.private_roc`.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> p = rng.random(5000)
    >>> found = private_evaluation(rng.random(5000) < p, p, epsilon=1.0, seed=1)
    >>> found.statement().epsilon <= 1.0
    True
    """
    relation, budget, source = Relation.of(relation), Budget(epsilon, delta), resolve(seed)
    groups = checks.integer("groups", groups, minimum=1, maximum=1 << 12)
    bounded = per_unit(units, max_per_unit, source)
    at_hand = rows_at_hand(data, score, y, pos_label, units, bounded)
    score, y, pos_label, units, data, bounded = at_hand
    labels, scores, predictions = _held(y, score, pos_label, data, bounds, bins, units, bounded)
    most = ONE_ROW if bounded is None else bounded.contribution
    held = Held.of(bounded, units, None if isinstance(predictions, Column) else len(labels))
    calibrated = tuple(bounds) == (0.0, 1.0) if bounds is not None else False
    share = CURVE_SHARE if calibrated else 1.0
    with account_of(ledger, relation, budget, most) as account:
        if calibrated:
            part = Budget(budget.epsilon * share, delta)
            curves = two_curve_mechanism(bins, relation, part, contribution=most)
            rest = most.told(calibration_event(budget.epsilon * (1 - share), relation))
            account = together(account, (curves.event, rest), source)
        roc = private_roc(
            labels,
            scores,
            epsilon=budget.epsilon * share,
            delta=delta,
            bounds=bounds,
            bins=bins,
            relation=relation,
            units=units,
            max_per_unit=max_per_unit,
            ledger=account,
            seed=source,
        )
        if not calibrated:
            return Evaluation(roc, None, budget)
        sums = measure_calibration(
            labels,
            predictions,
            separate(roc.score_quantile(np.arange(1, groups) / groups)),
            budget.epsilon * (1 - share),
            relation,
            source,
            account,
            held,
            clip=True,
        )
    return Evaluation(roc, PrivateCalibration(sums, None, budget, roc.release.records), budget)


def _held(
    y: Any,
    score: Any,
    pos_label: Any,
    data: Any,
    bounds: Any,
    bins: int,
    units: Any,
    bounded: PerUnit | None,
) -> tuple[Any, Any, FloatArray | Column]:
    """Return labels, what the curves count, and what is summed; a table is asked and checked."""
    if data is None:
        rows = as_labelled(y, score, pos_label)
        return rows[:, 0], rows[:, 1], np.clip(rows[:, 1], 0.0, 1.0)
    column = column_of(data, score, y, pos_label, units, bounded)
    counted = column.counted_by_label(mirrored_grid(bounds, bins), negated=True)
    return np.zeros(0), counted, column
