"""Noisy sums over groups of predictions, across parties: the second half of Hosmer-Lemeshow.

The sums are those of :mod:`noisewise.ecdf.group_sums`, with the same grid units, bounds and
noise scales. A party that computes them from its own records uses the predictions themselves.
Servers that hold shares of a histogram know the cell of a record and not its prediction; they
use the upper end of the cell, so the result is that of predictions rounded up to the grid
(a public rule for one record at a time; an error of at most 1/bins in each prediction).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from noisewise.ecdf.group_sums import (
    UNIT,
    GroupSums,
    bounded,
    checked_cuts,
    group_of,
    plan_scales,
    to_units,
)
from noisewise.ecdf.mechanisms.protocol import (
    Block,
    Change,
    FloatArray,
    IntArray,
    Mechanism,
    Norm,
    Setting,
)
from noisewise.federated.domain import Records
from noisewise.federated.measuring import check_plausible
from noisewise.federated.questions import _Asked, _require_closed
from noisewise.federated.results import Sums
from noisewise.privacy import _validate

__all__ = ["GroupSumsQuestion", "SumsByGroup"]

#: Columns, bound of one record's absolute sum in grid units, and share of epsilon, by method.
FAMILIES: dict[str, tuple[tuple[tuple[str, ...], int, float], ...]] = {
    "residual": ((("residual",), UNIT, 1.0),),
    "thesis": (
        (("observed_1", "observed_0"), UNIT, 0.5),
        (("expected_1", "expected_0"), UNIT, 0.5),
    ),
}


@dataclass(frozen=True)
class SumsByGroup:
    """A strategy for :class:`Mechanism`: one block of sums for each family of columns.

    Only what a release needs; sums by group have no prefix counts to reconstruct.
    """

    groups: int
    columns: tuple[int, ...]
    moves: tuple[int, ...]

    @property
    def name(self) -> str:
        """A short name."""
        return "group sums"

    @property
    def description(self) -> str:
        """One line."""
        return f"sums over {self.groups} groups"

    @property
    def setting(self) -> Setting:
        """One cell for each sum."""
        return Setting(sum(self.blocks), False)

    @property
    def blocks(self) -> tuple[int, ...]:
        """Sizes of the blocks of noise."""
        return tuple(self.groups * columns for columns in self.columns)

    @property
    def shares(self) -> tuple[float, ...]:
        """Not used: the scales are planned by the families' own shares."""
        return tuple(1 / len(self.columns) for _ in self.columns)

    def shift(self, change: Change, norm: Norm) -> tuple[Fraction, ...]:
        """How far one record moves each block, in l1."""
        if norm != "l1":
            raise ValueError("sums by group get Laplace noise")
        return tuple(Fraction(move) for move in self.moves)

    def touched(self, change: Change) -> int:
        """All numbers of noise, at most."""
        return sum(self.blocks)

    def measure(self, counts: IntArray) -> IntArray:
        """Nothing to do: the sums are measured by the question."""
        return counts

    def spread(self, noise: NDArray[np.generic]) -> NDArray[np.generic]:
        """Each sum has its own noise."""
        return noise

    def reconstruct(self, measurements: NDArray[np.generic], total: float) -> FloatArray:
        """Return the sums as numbers."""
        return measurements.astype(np.float64) / UNIT

    def variance(self, blocks: tuple[float, ...]) -> FloatArray:
        """Variance of each sum."""
        return np.repeat(np.asarray(blocks), self.blocks) / UNIT**2

    def total_covariance(self, blocks: tuple[float, ...]) -> FloatArray:
        """Sums are independent."""
        return np.zeros(sum(self.blocks))


@dataclass(frozen=True)
class GroupSumsQuestion(_Asked):
    """Ask for noisy sums of labels and predictions over groups of predictions.

    Parameters
    ----------
    domain : Domain
        Labelled and closed above, in [0, 1].
    epsilon, delta, neighbors
        The budget (delta is not used: the noise is Laplace) and the relation.
    cuts : tuple of float
        Between the groups; public, or from a private curve.
    method : {"residual", "thesis"}
        See :func:`noisewise.ecdf.dp_hosmer_lemeshow`.
    """

    kind: ClassVar[str] = "group-sums"
    cuts: tuple[float, ...] = ()
    method: Literal["residual", "thesis"] = "residual"

    def _check(self) -> None:
        _require_closed(self.domain, "above")
        if not self.domain.labelled or (self.domain.lower, self.domain.upper) != (0.0, 1.0):
            raise ValueError("predictions need a labelled domain from 0 to 1")
        if self.delta != 0:
            raise ValueError("sums over groups get Laplace noise: delta must be 0")
        _validate.choice("method", self.method, FAMILIES)
        checked_cuts(self.cuts)

    @property
    def points(self) -> FloatArray:
        """The cuts as an array."""
        return np.asarray(self.cuts, np.float64)

    @cached_property
    def planned(self) -> Mechanism:
        """The sums with the noise scales of one machine."""
        families = FAMILIES[self.method]
        bounds = [bound for _, bound, _ in families]
        shares = [share for _, _, share in families]
        scales, _ = plan_scales(bounds, shares, self.epsilon, self.relation)
        strategy = SumsByGroup(
            len(self.cuts) + 1,
            tuple(len(names) for names, _, _ in families),
            tuple(self.relation.sum_factor * bound for bound in bounds),
        )
        blocks = tuple(
            Block("laplace", scale, size)
            for scale, size in zip(scales, strategy.blocks, strict=True)
        )
        return Mechanism(strategy, blocks, "suffix")

    def statistic(self, records: Records) -> IntArray:
        """Sums of a party's own records."""
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
            columns = [[observed, UNIT - observed], [expected, UNIT - expected]]
        parts = []
        for family in columns:
            sums = np.zeros((len(self.cuts) + 1, len(family)), np.int64)
            np.add.at(sums, group, bounded(np.column_stack(family), UNIT) * times[:, None])
            parts.append(sums.ravel())
        return np.concatenate(parts)

    def answer(self, sums: Sums) -> GroupSums:
        """Return the sums by group; scales are those of a Laplace law of equal variance."""
        check_plausible(sums.noisy, sums.mechanism, UNIT, sums.records)
        groups = len(self.cuts) + 1
        columns: dict[str, FloatArray] = {}
        scales: dict[str, float] = {}
        start = 0
        for (names, _, _), planned, added in zip(
            FAMILIES[self.method], self.planned.noise, sums.mechanism.noise, strict=True
        ):
            block = sums.noisy[start : start + planned.size].reshape(groups, len(names))
            start += planned.size
            grown = (added.variance / planned.variance) ** 0.5
            for index, name in enumerate(names):
                columns[name] = block[:, index] / UNIT
                scales[name] = float(planned.scale) * grown / UNIT
        return GroupSums(
            self.points, columns, scales, sums.mechanism.epsilon, self.relation, sums.randomness
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {**super().to_dict(), "cuts": list(self.cuts)}
