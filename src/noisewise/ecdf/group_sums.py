"""Noisy sums over groups of records: each record is in one group and adds bounded numbers to it.

Groups are half-open intervals of the score, (cut before, cut], the first one closed below, so
a score on a cut is counted once. (Closed groups, as printed in Algorithm 10 of Barczewski
2025, count it twice and double the sensitivity.)

Contributions are rounded to integers of size 1/SUM_UNIT, record by record, and their sums get
discrete Laplace noise: nothing real-valued is released. A *family* is a set of columns to
which one record adds at most `bound` in total, in absolute values. It gets the share s of
epsilon and noise of scale ``f bound / (s epsilon)``, with f = 1 if records are added or
removed and f = 2 if they are replaced: the old record leaves a group, the new one enters one.

That no record adds more than its bound is not left to those who compute contributions: where
they are summed, a record that would add more adds nothing (:func:`bounded`).

Proof: docs/proofs/curves.md#groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noisewise.ecdf.counting import counting
from noisewise.ecdf.grid import Grid
from noisewise.ecdf.laplace_reach import sizes_within, sum_within
from noisewise.ecdf.mechanisms.calibrating import for_units
from noisewise.ecdf.mechanisms.protocol import (
    Change,
    FloatArray,
    IntArray,
    Mechanism,
    Norm,
    Setting,
)
from noisewise.privacy import Randomness, Relation, Statement, unit_codes
from noisewise.privacy.randomness import exact_scale
from noisewise.release import (
    ONE_ROW,
    Account,
    Block,
    Contribution,
    MemoryAccount,
    PerUnit,
    Promise,
    ThisProcess,
    release,
)

__all__ = [
    "PUBLIC_CUTS",
    "ROUNDED",
    "SUM_UNIT",
    "Family",
    "GroupSums",
    "Held",
    "SummedFamily",
    "SumsByGroup",
    "bounded",
    "checked_cuts",
    "group_mechanism",
    "group_of",
    "plan_scales",
    "release_sums",
    "separate",
    "to_units",
]

PUBLIC_CUTS = "cut points are public or come from the private curve"
#: Grid points in one: contributions are multiples of 1/SUM_UNIT.
SUM_UNIT = 1 << 20
#: What rounding to the grid moves the contribution of one record by, at most.
ROUNDED = 0.5 / SUM_UNIT
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
    assumptions : tuple of str
        What is taken for granted about how the records were made.
    """

    names: tuple[str, ...]
    values: IntArray
    bound: int
    share: float
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class SummedFamily(Family):
    """A family of a table: `values` are groups x columns, summed where the records are.

    There each record was bounded before it was added.
    """


@dataclass(frozen=True, eq=False)
class Held:
    """Whose rows are whose, for sums whose values are in steps of their own.

    Parameters
    ----------
    bounded : PerUnit
    codes : int array, optional
        One for each row; None if a table sums its rows itself, within the same bounds.
    """

    bounded: PerUnit
    codes: IntArray | None

    @classmethod
    def of(cls, bounded: PerUnit | None, units: Any, rows: int | None) -> Held | None:
        """Return None if every row is a unit; `rows` is None for those of a table."""
        if bounded is None:
            return None
        return cls(bounded, None if rows is None else unit_codes(units, rows))

    @property
    def contribution(self) -> Contribution:
        """What a unit may add, in rows: values have a grid already."""
        return replace(self.bounded.contribution, grain=1)

    def sums(self, group: NDArray[np.intp], groups: int, values: IntArray) -> IntArray:
        """Sums by group, with no unit adding too much."""
        assert self.codes is not None
        if self.bounded.rule == "weights":
            return self.bounded.sums(self.codes, group.astype(np.int64), groups, values)
        total = np.zeros((groups, values.shape[1]), np.int64)
        np.add.at(total, group[self.kept], values[self.kept])
        return total

    @cached_property
    def kept(self) -> IntArray:
        """Which rows were chosen: drawn when they are first measured, for all columns alike."""
        assert self.codes is not None
        return self.bounded.chosen(self.codes)

    def public_total(self, relation: Relation, counted: int) -> int | None:
        """Return the number of units, which a table has counted, if it is public and all alike."""
        if not self.bounded.contribution.keeps_total(relation.count_is_public):
            return None
        return counted if self.codes is None else int(np.unique(self.codes).size)


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
        return f"sums over {self.groups} group{'s' if self.groups > 1 else ''}"

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
        """Nothing to do: the sums are what is measured."""
        return counts

    def spread(self, noise: NDArray[np.generic]) -> NDArray[np.generic]:
        """Each sum has its own noise."""
        return noise

    def reconstruct(self, measurements: NDArray[np.generic], total: float) -> FloatArray:
        """Return the sums as numbers."""
        return measurements.astype(np.float64) / SUM_UNIT

    def variance(self, blocks: tuple[float, ...]) -> FloatArray:
        """Variance of each sum."""
        return np.repeat(np.asarray(blocks), self.blocks) / SUM_UNIT**2

    def total_covariance(self, blocks: tuple[float, ...]) -> FloatArray:
        """Sums are independent."""
        return np.zeros(sum(self.blocks))


@dataclass(frozen=True, eq=False)
class GroupSums:
    """Noisy sums by group, one array for each column, and the noise scales they have."""

    cuts: FloatArray
    columns: dict[str, FloatArray]
    scales: dict[str, float]
    promise: Promise

    def __post_init__(self) -> None:
        object.__setattr__(self, "cuts", checked_cuts(self.cuts))

    @property
    def groups(self) -> int:
        """Number of groups."""
        return int(self.cuts.size) + 1

    @classmethod
    def read(
        cls,
        noisy: IntArray,
        cuts: FloatArray,
        names: Sequence[tuple[str, ...]],
        planned: Mechanism,
        added: Mechanism,
        promise: Promise,
    ) -> GroupSums:
        """Read released numbers; scales are those of a Laplace law of equal variance."""
        groups = int(cuts.size) + 1
        columns: dict[str, FloatArray] = {}
        scales: dict[str, float] = {}
        start = 0
        for family, block, all_noise in zip(names, planned.noise, added.noise, strict=True):
            part = noisy[start : start + block.size].reshape(groups, len(family))
            start += block.size
            grown = (all_noise.variance / block.variance) ** 0.5
            for index, name in enumerate(family):
                columns[name] = part[:, index] / SUM_UNIT
                scales[name] = float(block.scale) * grown / SUM_UNIT
        return cls(cuts, columns, scales, promise)

    def noise_of_sum(self, name: str, terms: int, level: float) -> float:
        """Within which the noise of a sum of so many numbers of a column lies, at `level`."""
        return self.scales[name] * sum_within(terms, level) + terms / SUM_UNIT

    def noise_of_sizes(self, name: str, terms: int, level: float) -> float:
        """The same for the sum of their sizes."""
        return self.scales[name] * sizes_within(terms, level) + terms / SUM_UNIT

    def statement(self) -> Statement:
        """Return the privacy statement of these sums alone."""
        return self.promise.state()


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
    return np.rint(np.clip(numbers, -_HUGE, _HUGE) * SUM_UNIT).astype(np.int64)


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


def group_mechanism(
    groups: int,
    columns: Sequence[int],
    bounds: Sequence[int],
    shares: Sequence[float],
    epsilon: float,
    relation: Relation,
) -> Mechanism:
    """Return the noise of sums over groups, for families of so many columns each."""
    scales, _ = plan_scales(bounds, shares, epsilon, relation)
    moves = tuple(relation.sum_factor * bound for bound in bounds)
    strategy = SumsByGroup(groups, tuple(columns), moves)
    blocks = tuple(
        Block("laplace", scale, size) for scale, size in zip(scales, strategy.blocks, strict=True)
    )
    return Mechanism(strategy, blocks, "interval" if relation.count_is_public else "suffix")


def release_sums(
    group: NDArray[np.intp] | None,
    families: Sequence[Family],
    cuts: FloatArray,
    *,
    epsilon: float,
    relation: Relation,
    rng: Randomness,
    account: Account | None = None,
    what: str = "sums",
    held: Held | None = None,
) -> GroupSums:
    """Sum every column over every group and add noise. Spends `epsilon` once.

    `group` says where each record belongs; families of a table are summed already. With `held`,
    rows of a unit are bounded together.
    """
    most = ONE_ROW if held is None else held.contribution
    cuts = checked_cuts(cuts)
    groups = int(cuts.size) + 1
    planned = group_mechanism(
        groups,
        [len(family.names) for family in families],
        [family.bound for family in families],
        [family.share for family in families],
        epsilon,
        relation,
    )
    planned = for_units(planned, most)

    def sums(records: Sequence[Family]) -> IntArray:
        parts = []
        for family in records:
            if isinstance(family, SummedFamily):
                parts.append(family.values.ravel())
                continue
            assert group is not None
            values = bounded(family.values, family.bound)
            if held is not None:
                parts.append(held.sums(group, groups, values).ravel())
                continue
            part = np.zeros((groups, len(family.names)), np.int64)
            np.add.at(part, group, values)
            parts.append(part.ravel())
        return np.concatenate(parts)

    made = dict.fromkeys(said for family in families for said in family.assumptions)
    assumptions = (PUBLIC_CUTS, *made)
    query = counting(planned, relation, sums, what, assumptions=assumptions, contribution=most)
    paid = MemoryAccount() if account is None else account
    found = release(query, planned, ThisProcess(families), paid, rng=rng)
    names = [family.names for family in families]
    return GroupSums.read(found.value, cuts, names, planned, planned, found.promise)
