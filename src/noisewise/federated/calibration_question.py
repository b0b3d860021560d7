"""Noisy sums over groups of predictions, across parties: the second half of Hosmer-Lemeshow.

The sums are those of :mod:`noisewise.ecdf.group_sums`, with the same grid units, bounds and
noise scales. A party that computes them from its own records uses the predictions themselves.
Servers that hold shares of a histogram know the cell of a record and not its prediction; they
use the upper end of the cell, so the result is that of predictions rounded up to the grid
(a public rule for one record at a time; an error of at most 1/bins in each prediction).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np

from noisewise import checks
from noisewise.ecdf import (
    HOSMER_LEMESHOW,
    PUBLIC_CUTS,
    SUM_UNIT,
    GroupSums,
    Mechanism,
    bounded,
    checked_cuts,
    group_mechanism,
    group_of,
    to_units,
)
from noisewise.ecdf.mechanisms import FloatArray, IntArray, for_units
from noisewise.federated.domain import Records
from noisewise.federated.measuring import check_plausible
from noisewise.federated.questions import Question, _require_closed
from noisewise.federated.results import Sums

__all__ = ["GroupSumsQuestion"]

#: Columns, bound of one record's absolute sum in grid units, and share of epsilon, by method.
FAMILIES: dict[str, tuple[tuple[tuple[str, ...], int, float], ...]] = {
    "residual": ((("residual",), SUM_UNIT, 1.0),),
    "thesis": (
        (("observed_1", "observed_0"), SUM_UNIT, 0.5),
        (("expected_1", "expected_0"), SUM_UNIT, 0.5),
    ),
}


@dataclass(frozen=True)
class GroupSumsQuestion(Question):
    """Ask for noisy sums of labels and predictions over groups of predictions.

    Parameters
    ----------
    domain : Domain
        Labelled and closed above, in [0, 1].
    epsilon, delta, relation
        The budget (delta is not used: the noise is Laplace) and the relation.
    cuts : tuple of float
        Between the groups; public, or from a private curve.
    method : {"residual", "thesis"}
        See :func:`noisewise.ecdf.dp_hosmer_lemeshow`.
    """

    kind: ClassVar[str] = "group-sums"
    public: ClassVar[str] = PUBLIC_CUTS
    cuts: tuple[float, ...] = ()
    method: Literal["residual", "thesis"] = "residual"

    @property
    def what(self) -> str:
        """What is asked, in words."""
        return HOSMER_LEMESHOW

    def _check(self) -> None:
        _require_closed(self.domain, "above")
        if not self.domain.labelled or (self.domain.lower, self.domain.upper) != (0.0, 1.0):
            raise ValueError("predictions need a labelled domain from 0 to 1")
        if self.delta != 0:
            raise ValueError("sums over groups get Laplace noise: delta must be 0")
        checks.choice("method", self.method, FAMILIES)
        checked_cuts(self.cuts)

    @property
    def reach(self) -> int:
        """What one record adds to a sum, at most."""
        return SUM_UNIT

    @property
    def points(self) -> FloatArray:
        """The cuts as an array."""
        return np.asarray(self.cuts, np.float64)

    @cached_property
    def planned(self) -> Mechanism:
        """The sums with the noise scales of one machine."""
        families = FAMILIES[self.method]
        planned = group_mechanism(
            len(self.cuts) + 1,
            [len(names) for names, _, _ in families],
            [bound for _, bound, _ in families],
            [share for _, _, share in families],
            self.epsilon,
            self.relation,
        )
        return for_units(planned, self.protects.contribution)

    def _statistic(self, records: Records) -> IntArray:
        if records.positive is None:
            raise ValueError("this question is about labelled records: give pairs (labels, values)")
        if np.any((records.values < 0) | (records.values > 1)):
            raise ValueError("predictions must be probabilities in [0, 1]")
        ones = np.ones(len(records), np.int64)
        return self._sums(records.positive.astype(np.float64), records.values, ones)

    def measure(self, histogram: IntArray) -> IntArray:
        """Sums from a histogram over the cells, modulo 2^64, of rounded predictions."""
        upper = self.domain.grid.thresholds
        labels = np.repeat([0.0, 1.0], upper.size)
        return self._sums(labels, np.tile(upper, 2), np.asarray(histogram, np.int64))

    def _sums(self, labels: FloatArray, predictions: FloatArray, times: IntArray) -> IntArray:
        group = group_of(predictions, self.points)
        if self.method == "residual":
            columns = [[to_units(labels - predictions)]]
        else:
            observed, expected = to_units(labels), to_units(predictions)
            columns = [[observed, SUM_UNIT - observed], [expected, SUM_UNIT - expected]]
        parts = []
        for family in columns:
            sums = np.zeros((len(self.cuts) + 1, len(family)), np.int64)
            np.add.at(sums, group, bounded(np.column_stack(family), SUM_UNIT) * times[:, None])
            parts.append(sums.ravel())
        return np.concatenate(parts)

    def answer(self, sums: Sums) -> GroupSums:
        """Return the sums by group."""
        check_plausible(sums.noisy, sums.mechanism, self.reach, sums.records)
        names = [family for family, _, _ in FAMILIES[self.method]]
        return GroupSums.read(
            sums.noisy, self.points, names, self.planned, sums.mechanism, self._promise(sums)
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**super().to_dict(), "cuts": list(self.cuts)}
