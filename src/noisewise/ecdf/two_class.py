"""Two distribution functions, one for each class, released together with one noise scale.

A record is in one class. So replacing it either moves it within its class (one curve changes
on an interval) or flips its label (each curve changes on a suffix), never both at worst; and
adding or removing it changes one curve only. The noise has to hide the worse of the two
cases, not their sum: for the tree of Barczewski (2025, Section 6.5.1) the l1 shift is
max(L, 2 ceil((L+1)/2)) instead of 2 (L+1), which is what two releases with half of epsilon
each would pay. The sizes of the classes are private, and are part of the release.

If the number of records n is public, the two totals must sum to it. Both curves are corrected
by least squares: with k = cov(curve, total) / var(total), equal for both curves, and
independent noise, each curve gets k times half of what is missing from n. This is
post-processing.

Proof: docs/proofs/curves.md#two-classes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from noisewise import checks
from noisewise.ecdf.budget import Budget
from noisewise.ecdf.counted import Counted
from noisewise.ecdf.counting import account_of, as_mechanism, counting, public_total
from noisewise.ecdf.estimate import SMOOTHINGS, smooth_counts
from noisewise.ecdf.grid import Grid
from noisewise.ecdf.labelled import as_labelled, as_parties, with_codes
from noisewise.ecdf.mechanisms import plan
from noisewise.ecdf.mechanisms.calibrating import for_units
from noisewise.ecdf.mechanisms.protocol import (
    Change,
    FloatArray,
    IntArray,
    Mechanism,
    Norm,
    Setting,
    Strategy,
)
from noisewise.ecdf.sources.tables import column_of, rows_at_hand, without_others
from noisewise.privacy import Randomness, Relation, Statement
from noisewise.privacy.randomness import resolve
from noisewise.release import (
    ONE_ROW,
    Aggregator,
    Block,
    Contribution,
    LedgerOrPath,
    PerUnit,
    Promise,
    one_vocabulary,
    parties_of,
    per_unit,
    release,
)

__all__ = ["TwoClassCounts", "TwoCurves", "count_two_classes", "two_curve_mechanism"]


@dataclass(frozen=True, eq=False)
class TwoCurves:
    """The same strategy for two curves side by side: a histogram of 2 x bins cells.

    Parameters
    ----------
    single : Strategy
        What is measured of each curve; its total is private.
    records_are_public : bool
        Whether the sum of both totals is known.
    pull : array
        How far each count follows a correction of its total: cov(count, total) / var(total).
    """

    single: Strategy
    records_are_public: bool
    pull: FloatArray

    @property
    def name(self) -> str:
        """The single strategy's name."""
        return self.single.name

    @property
    def description(self) -> str:
        """One line."""
        return f"two curves with one joint scale, each: {self.single.description}"

    @property
    def setting(self) -> Setting:
        """Both histograms, one after the other."""
        return Setting(2 * self.single.setting.bins, False)

    @property
    def blocks(self) -> tuple[int, ...]:
        """Each block holds the noise of both curves."""
        return tuple(2 * size for size in self.single.blocks)

    @property
    def shares(self) -> tuple[float, ...]:
        """As for one curve."""
        return self.single.shares

    def shift(self, change: Change, norm: Norm) -> tuple[Fraction, ...]:
        """As the single strategy answers for a joint change."""
        return self.single.shift(change, norm)

    def touched(self, change: Change) -> int:
        """As the single strategy answers: numbers of both curves if the change is joint."""
        return self.single.touched(change)

    def measure(self, counts: IntArray) -> IntArray:
        """Measure one curve, then the other."""
        return np.concatenate([self.single.measure(part) for part in np.split(counts, 2)])

    def spread(self, noise: NDArray[np.generic]) -> NDArray[np.generic]:
        """Sort the noise by curve."""
        ends = np.cumsum(self.blocks)[:-1]
        halves = [np.split(block, 2, axis=-1) for block in np.split(noise, ends, axis=-1)]
        curves = [
            self.single.spread(np.concatenate([half[curve] for half in halves], axis=-1))
            for curve in (0, 1)
        ]
        return np.concatenate(curves, axis=-1)

    def reconstruct(self, measurements: NDArray[np.generic], total: float) -> FloatArray:
        """Return the counts of one curve, then of the other."""
        curves = [self.single.reconstruct(part, 0.0) for part in np.split(measurements, 2, axis=-1)]
        if self.records_are_public:
            missing = total - curves[0][..., -1:] - curves[1][..., -1:]
            curves = [curve + self.pull * missing / 2 for curve in curves]
        return np.concatenate(curves, axis=-1)

    def variance(self, blocks: tuple[float, ...]) -> FloatArray:
        """Variance of each count, smaller by what the public total tells."""
        variance = self.single.variance(blocks)
        if self.records_are_public:
            covariance = self.single.total_covariance(blocks)
            variance = variance - self.pull * covariance / 2
        return np.tile(np.maximum(variance, 0.0), 2)

    def total_covariance(self, blocks: tuple[float, ...]) -> FloatArray:
        """Covariance with the last count, the total of the second curve."""
        covariance = self.single.total_covariance(blocks)
        if self.records_are_public:
            return np.concatenate([-covariance / 2, covariance / 2])
        return np.concatenate([np.zeros_like(covariance), covariance])


def two_curve_mechanism(
    bins: int,
    relation: Relation | str,
    budget: Budget,
    *,
    mechanism: str = "auto",
    objective: Literal["mean", "max"] = "mean",
    contribution: Contribution = ONE_ROW,
) -> Mechanism:
    """Return the mechanism of least closed-form variance for two curves with one budget.

    Examples
    --------
    >>> two_curve_mechanism(64, "replace-one", Budget(1.0)).epsilon <= 1.0
    True
    """
    relation = Relation.of(relation)
    # Adding or removing a record changes one curve only, on a suffix.
    change: Change = "joint" if relation.count_is_public else "suffix"
    single = plan(bins, relation, budget, mechanism=mechanism, objective=objective, change=change)
    # A unit with several rows may have other numbers of them in both classes.
    public = contribution.keeps_total(relation.count_is_public)
    return for_units(join(single, change, public), contribution)


def join(single: Mechanism, change: Change, records_are_public: bool) -> Mechanism:
    """Give two curves the noise that `single` gives to one, which must allow for `change`."""
    covariance = single.total_covariance
    pull = np.zeros_like(covariance)
    pull[-1] = 1.0
    if covariance[-1] > 0:  # else noise is so rare that its variance underflows
        pull = covariance / covariance[-1]
    strategy = TwoCurves(single.strategy, records_are_public, pull)
    noise = tuple(Block(block.kind, block.scale, 2 * block.size) for block in single.noise)
    return Mechanism(strategy, noise, change, single.reason, single.concentrated)


@dataclass(frozen=True, eq=False)
class TwoClassCounts:
    """Noisy numbers of negatives and positives with a score of at least each threshold.

    Made by :func:`count_two_classes`. Thresholds decrease, as in scikit-learn; the last one is
    the lower bound of the scores, where everything is counted.

    Parameters
    ----------
    grid : Grid
        Thresholds of the *negated* scores, so that a bin is closed below in the score.
    noisy : array
        Two rows as released: negatives, positives.
    counts : array
        The same, each row made monotone.
    mechanism : Mechanism
        Of both curves together.
    budget : Budget
    relation : Relation
    smoothing : str
    records : int or None
        Their number, if it is public.
    promise : Promise
        What the statement is derived from.
    """

    grid: Grid
    noisy: FloatArray
    counts: FloatArray
    mechanism: Mechanism
    budget: Budget
    relation: Relation
    smoothing: str
    records: int | None
    promise: Promise

    @property
    def thresholds(self) -> FloatArray:
        """Decreasing thresholds of the score."""
        return -self.grid.thresholds

    @property
    def upper(self) -> float:
        """Upper bound of the scores."""
        return -self.grid.lower

    @property
    def negatives(self) -> float:
        """Noisy number of negatives."""
        return float(self.counts[0, -1])

    @property
    def positives(self) -> float:
        """Noisy number of positives."""
        return float(self.counts[1, -1])

    @cached_property
    def variance(self) -> FloatArray:
        """Variance of the released counts, two rows."""
        return self.mechanism.variance.reshape(2, -1)

    def statement(self) -> Statement:
        """Return the privacy statement of this one release."""
        return self.promise.state()


@one_vocabulary
def count_two_classes(
    y: Any,
    score: Any,
    *,
    epsilon: float,
    delta: float = 0.0,
    bounds: tuple[float, float] = (0.0, 1.0),
    bins: int = 2**10,
    pos_label: Any = None,
    relation: Relation | str = "add-remove",
    units: Any = None,
    max_per_unit: int = 1,
    mechanism: str = "auto",
    smooth: str | None = "auto",
    aggregator: Aggregator | None = None,
    ledger: LedgerOrPath = None,
    seed: Randomness | int | None = None,
    objective: Literal["mean", "max"] = "mean",
    data: Any = None,
) -> TwoClassCounts:
    """Release both class distributions of the scores. All arguments as in `private_roc`."""
    relation, source = Relation.of(relation), resolve(seed)
    budget = Budget(epsilon, delta)
    bounded = per_unit(units, max_per_unit, source, several=aggregator is not None)
    most = ONE_ROW if bounded is None else bounded.contribution
    grid = mirrored_grid(bounds, bins)
    if smooth is not None:
        checks.choice("smooth", smooth, SMOOTHINGS)
    joint = two_curve_mechanism(
        grid.bins,
        relation,
        budget,
        mechanism=mechanism,
        objective=objective,
        contribution=most,
    )
    if smooth == "l1" and joint.name != "thesis":
        raise ValueError("smooth='l1' belongs to mechanism='thesis'; use smooth='l2' or 'auto'")
    if data is not None:
        without_others(aggregator)
    at_hand = rows_at_hand(data, score, y, pos_label, units, bounded)
    score, y, pos_label, units, data, bounded = at_hand
    held = _held(y, score, pos_label, aggregator, data, grid, units, bounded)
    if bounded is not None:
        held = with_codes(held, units, bounded, parties=aggregator is not None)
    parties = parties_of(aggregator, held)
    records = public_total(parties, relation, bounded)
    if records == 0:
        raise ValueError(
            "y and score are empty: no curve is defined. If the number of records is private, "
            "use relation='add-remove'."
        )

    def count(part: Any) -> IntArray:
        if isinstance(part, Counted):
            return part.on(2 * grid.bins)
        rows = np.asarray(part, np.float64).reshape(-1, 2 if bounded is None else 3)
        if bounded is not None:
            place = grid.place(-rows[:, 1]) + grid.bins * (rows[:, 0] > 0)
            return bounded.count(rows[:, 2].astype(np.int64), place, 2 * grid.bins)
        positive = rows[:, 0] > 0
        return np.concatenate([grid.count(-rows[which, 1]) for which in (~positive, positive)])

    what = f"ROC curve with private class sizes on {grid.bins} thresholds"
    query = counting(joint, relation, count, what, joint=True, contribution=most)
    with account_of(ledger, relation, budget, most) as account:
        found = release(query, joint, parties, account, delta=budget.delta, rng=source)
    added = as_mechanism(found.noise)
    measured = np.asarray(found.value, np.int64)
    noisy = joint.read(measured, float(records or 0)).reshape(2, -1)
    return TwoClassCounts(
        grid=grid,
        noisy=noisy,
        counts=smooth_both(noisy, added, smooth, records),
        mechanism=added,
        budget=budget,
        relation=relation,
        smoothing="none" if smooth is None else smooth,
        records=records,
        promise=found.promise,
    )


def _held(
    y: Any,
    score: Any,
    pos_label: Any,
    aggregator: Aggregator | None,
    data: Any,
    grid: Grid,
    units: Any,
    bounded: PerUnit | None,
) -> Any:
    """Return the records in the form in which they are counted."""
    if isinstance(score, Counted):
        return score
    if data is not None:
        column = column_of(data, score, y, pos_label, units, bounded)
        return column.counted_by_label(grid, negated=True)
    return (as_labelled if aggregator is None else as_parties)(y, score, pos_label)


def mirrored_grid(bounds: Any, bins: int) -> Grid:
    """Return a grid for negated scores: thresholds of the score decrease from `bounds[1]`."""
    grid = Grid.of(bounds, bins)
    edges = -grid.edges[::-1]
    return Grid(float(edges[0]), edges[1:])


def smooth_both(
    noisy: FloatArray, joint: Mechanism, smooth: str | None, records: int | None
) -> FloatArray:
    """Make each row monotone, between 0 and its own (noisy) total."""
    if smooth is None:
        return noisy
    strategy = joint.strategy
    assert isinstance(strategy, TwoCurves)
    halves = tuple(replace(block, size=block.size // 2) for block in joint.noise)
    single = replace(joint, strategy=strategy.single, noise=halves)
    limited = noisy.copy()
    if records is not None:
        limited[:, -1] = np.clip(limited[:, -1], 0.0, records)
    return np.stack([smooth_counts(row, single, smooth) for row in limited])
