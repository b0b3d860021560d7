"""Counts of records as queries of the kernel, and what every curve says of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from noisewise.ecdf.budget import Budget
from noisewise.ecdf.counted import Counted
from noisewise.ecdf.grid import Grid
from noisewise.ecdf.mechanisms.protocol import (
    Change,
    FloatArray,
    IntArray,
    Mechanism,
    sensitivities,
)
from noisewise.privacy import Randomness, Relation
from noisewise.release import (
    ONE_ROW,
    Contribution,
    LedgerOrPath,
    MemoryAccount,
    Noise,
    Opened,
    PerUnit,
    Query,
    Summed,
    ThisProcess,
    open_account,
    release,
)

__all__ = [
    "account_of",
    "as_mechanism",
    "change_of",
    "count_of",
    "counting",
    "noisy_counts",
    "public_total",
    "stated_delta",
]

PUBLIC_GRID = "bounds and thresholds were chosen without looking at the data"


def counting(
    mechanism: Mechanism,
    relation: Relation,
    count: Callable[[Any], IntArray],
    what: str,
    *,
    joint: bool = False,
    assumptions: tuple[str, ...] = (PUBLIC_GRID,),
    contribution: Contribution = ONE_ROW,
) -> Query:
    """Return the measurements of a mechanism's strategy as a query.

    Parameters
    ----------
    mechanism : Mechanism
        Of whose strategy; its noise is compared with what the relation says by the kernel.
    relation : Relation
        Which datasets are neighbours.
    count : callable
        From some records to their histogram.
    what : str
        In words.
    joint : bool
        Whether a record may change from one of two curves to the other.
    assumptions : tuple of str
    contribution : Contribution
        What `count` lets one unit add.
    """
    strategy = mechanism.strategy
    change = change_of(relation, contribution, joint=joint)
    bound = sensitivities(strategy, change, mechanism.kind, contribution)

    def measure(records: Any) -> IntArray:
        return strategy.measure(count(records))

    return Query.of(
        measure,
        bound,
        what,
        unit=contribution.unit,
        assumptions=(*assumptions, *contribution.sentences),
        unit_rows=contribution.unit_rows,
    )


def change_of(
    relation: Relation, contribution: Contribution = ONE_ROW, *, joint: bool = False
) -> Change:
    """Return what one row of a unit may do to prefix counts.

    A unit that is replaced may have more rows than before, or fewer, unless only one counts: its
    rows then move or come or go, which "joint" is the worse of.
    """
    if not relation.count_is_public:
        return "suffix"
    return "joint" if joint or not contribution.keeps_total(True) else "interval"


def count_of(grid: Grid, bounded: PerUnit | None) -> Callable[[Any], IntArray]:
    """Return how records are counted; with units, their last column says whose rows they are."""
    if bounded is None:
        return grid.count
    held = bounded

    def count(part: Any) -> IntArray:
        if isinstance(part, Counted):  # where the rows are, on this very grid
            return part.on(grid.bins)
        rows = np.asarray(part, np.float64).reshape(-1, 2)
        return held.count(rows[:, 1].astype(np.int64), grid.place(rows[:, 0]), grid.bins)

    return count


def public_total(
    parties: ThisProcess | Summed, relation: Relation, bounded: PerUnit | None
) -> int | None:
    """Return what counts sum to if that is public: the number of records, or of units.

    None if it is private, because records come and go or units may have several rows.
    """
    if not relation.count_is_public:
        return None
    if bounded is None:
        return parties.count()
    held = [parties.records] if isinstance(parties, ThisProcess) else parties.records
    if not bounded.contribution.keeps_total(True):
        return None if any(len(part) for part in held) else 0
    return sum(
        len(part) if isinstance(part, Counted) else int(np.unique(part[:, -1]).size)
        for part in held
    )


def as_mechanism(noise: Noise) -> Mechanism:
    """Return the mechanism that was added to counts, with all noise of all parties."""
    assert isinstance(noise, Mechanism)
    return noise


def stated_delta(budget: Budget) -> float:
    """At which delta a curve is stated: a budget in rho promises an epsilon for every delta."""
    return 1e-6 if budget.rho is not None else budget.delta


def account_of(
    ledger: LedgerOrPath,
    relation: Relation,
    budget: Budget,
    contribution: Contribution = ONE_ROW,
) -> AbstractContextManager[Opened]:
    """Return the account of a curve with this budget."""
    return open_account(
        ledger,
        relation=relation,
        delta=stated_delta(budget),
        unit=contribution.unit,
        accountant="rdp" if budget.concentrates else "pld",
    )


def noisy_counts(mechanism: Mechanism, counts: Any, rng: Randomness | int | None) -> FloatArray:
    """Release the prefix counts of a histogram; for experiments, as nobody is charged.

    Examples
    --------
    >>> from noisewise.ecdf import Budget, plan
    >>> noisy_counts(plan(4, "add-remove", Budget(1.0)), np.array([5, 0, 2, 1]), 1).shape
    (4,)
    """
    counts = np.asarray(counts)
    bins = mechanism.setting.bins
    if counts.shape != (bins,) or not np.issubdtype(counts.dtype, np.integer):
        raise ValueError(
            f"counts must be {bins} integers, got shape {counts.shape} of {counts.dtype}"
        )
    query = Query.of(
        lambda held: mechanism.strategy.measure(held.astype(np.int64)),
        mechanism.sensitivity,
        "prefix counts",
    )
    found = release(query, mechanism, ThisProcess(counts), MemoryAccount(), delta=None, rng=rng)
    return mechanism.read(found.value, float(counts.sum()))
