"""Noisy sums over groups of records: each record is in one group and adds bounded numbers to it.

Groups are half-open intervals of the score, (cut before, cut], the first one closed below, so
a score on a cut is counted once. (Closed groups, as printed in Algorithm 10 of Barczewski
2025, count it twice and double the sensitivity.)

Contributions are rounded to integers of size 1/UNIT, record by record, and their sums get
discrete Laplace noise: nothing real-valued is released. A *family* is a set of columns to
which one record adds at most `bound` in total, in absolute values. It gets the share s of
epsilon and noise of scale ``f bound / (s epsilon)``, with f = 1 if records are added or
removed and f = 2 if they are replaced: the old record leaves a group, the new one enters one.

That no record adds more than its bound is not left to those who compute contributions: where
they are summed, a record that would add more adds nothing (:func:`bounded`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noisewise.ecdf import noising
from noisewise.ecdf.grid import Grid
from noisewise.ecdf.mechanisms.protocol import FloatArray, IntArray
from noisewise.privacy.discrete import discrete_laplace, exact_scale
from noisewise.privacy.events import Pure
from noisewise.privacy.randomness import Randomness
from noisewise.privacy.relation import Relation
from noisewise.privacy.statement import Statement

__all__ = [
    "UNIT",
    "Family",
    "GroupSums",
    "bounded",
    "checked_cuts",
    "group_of",
    "plan_scales",
    "release_sums",
    "separate",
    "to_units",
]

#: Grid points in one: contributions are multiples of 1/UNIT.
UNIT = 1 << 20
_HUGE = 2.0**40
_APART = 2.0**-40


@dataclass(frozen=True, eq=False)
class Family:
    """Columns that share a bound.

    Parameters
    ----------
    names : tuple of str
        One for each column.
    values : int array
        Records x columns, in grid units.
    bound : int
        Largest sum of absolute values of a record, in grid units; public.
    share : float
        Part of epsilon.
    """

    names: tuple[str, ...]
    values: IntArray
    bound: int
    share: float


@dataclass(frozen=True, eq=False)
class GroupSums:
    """Noisy sums by group, one array for each column, and the noise scales they have."""

    cuts: FloatArray
    columns: dict[str, FloatArray]
    scales: dict[str, float]
    epsilon: float
    relation: Relation
    randomness: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "cuts", checked_cuts(self.cuts))

    @property
    def groups(self) -> int:
        """Number of groups."""
        return int(self.cuts.size) + 1

    def statement(self, what: str, assumptions: Sequence[str] = ()) -> Statement:
        """Return the privacy statement of these sums alone."""
        return Statement.derive(
            Pure(self.epsilon),
            delta=0.0,
            mechanism=f"{what}: sums over {self.groups} groups, discrete Laplace noise",
            relation=self.relation,
            randomness=self.randomness,
            assumptions=assumptions,
        )


def checked_cuts(cuts: Any) -> FloatArray:
    """Return public cut points as an increasing array inside (0, 1)."""
    points = np.array(cuts, dtype=np.float64).ravel()
    if not np.isfinite(points).all() or np.any((points <= 0) | (points >= 1)):
        raise ValueError(f"cuts must increase strictly inside (0, 1), got {cuts!r}")
    try:
        return Grid(0.0, np.append(points, 1.0)).thresholds[:-1]
    except ValueError as error:
        raise ValueError(
            f"cuts must increase strictly inside (0, 1), got {cuts!r}: {error}"
        ) from error


def separate(points: FloatArray) -> FloatArray:
    """Return cut points that were computed, e.g. from a private curve, as ones that can be used.

    Those that coincide with another one, or nearly so, are left out: there are fewer groups.
    """
    kept = [0.0]
    for point in np.unique(points).tolist():
        if kept[-1] + _APART <= point <= 1.0 - _APART:
            kept.append(point)
    return np.asarray(kept[1:], np.float64)


def to_units(values: NDArray[np.generic]) -> IntArray:
    """Round numbers to grid units; what is no number becomes 0, what is huge stays huge."""
    numbers = np.nan_to_num(np.asarray(values, np.float64), posinf=_HUGE, neginf=-_HUGE)
    return np.rint(np.clip(numbers, -_HUGE, _HUGE) * UNIT).astype(np.int64)


def bounded(values: IntArray, bound: int) -> IntArray:
    """Return contributions (records x columns) in which none exceeds the bound, in l1."""
    inside = np.all((values >= -bound) & (values <= bound), axis=1)
    size = np.abs(np.clip(values, -bound, bound)).sum(axis=1)
    return np.where((inside & (size <= bound))[:, None], values, 0)


def group_of(score: FloatArray, cuts: FloatArray) -> NDArray[np.intp]:
    """Return the group of each score: the number of cuts strictly below it."""
    return np.searchsorted(cuts, score, side="left")


def plan_scales(
    bounds: Sequence[int], shares: Sequence[float], epsilon: float, relation: Relation
) -> tuple[list[Fraction], float]:
    """Return the noise scale of each family in grid units, and the exact total epsilon."""
    scales = []
    spent = Fraction(0)
    for bound, share in zip(bounds, shares, strict=True):
        change = relation.sum_factor * bound
        # 1e-12 more than wanted, because shares such as 0.1, 0.2, 0.7 sum to one only up to
        # rounding; then a nearby larger number with few bits, for fast exact sampling.
        wanted = (
            Fraction(change) / (Fraction(share) * Fraction(epsilon)) * (1 + Fraction(1, 10**12))
        )
        scale = exact_scale(math.nextafter(float(wanted), math.inf))
        scales.append(scale)
        spent += Fraction(change) / scale
    if spent > Fraction(epsilon):
        raise ValueError(f"shares {list(shares)} must not sum to more than 1")
    total = float(spent)
    return scales, total if Fraction(total) >= spent else math.nextafter(total, math.inf)


def release_sums(
    group: NDArray[np.intp],
    families: Sequence[Family],
    cuts: FloatArray,
    *,
    epsilon: float,
    relation: Relation,
    rng: Randomness,
) -> GroupSums:
    """Sum every column over every group and add noise. Spends `epsilon` once."""
    cuts = checked_cuts(cuts)
    groups = int(cuts.size) + 1
    bounds = [family.bound for family in families]
    shares = [family.share for family in families]
    scales, spent = plan_scales(bounds, shares, epsilon, relation)
    columns: dict[str, FloatArray] = {}
    by_name: dict[str, float] = {}
    for family, scale in zip(families, scales, strict=True):
        sums = np.zeros((groups, len(family.names)), np.int64)
        np.add.at(sums, group, bounded(family.values, family.bound))
        noisy = noising.add(sums, discrete_laplace(sums.shape, scale, rng))
        for index, name in enumerate(family.names):
            columns[name] = noisy[:, index] / UNIT
            by_name[name] = float(scale) / UNIT
    return GroupSums(cuts, columns, by_name, spent, relation, rng.description)
