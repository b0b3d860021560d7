"""What one unit may add to a sum: all rows of a patient together, bounded in one place.

A unit is everybody's rows that carry one identifier. At most k rows of it count (a public number):

* "weights": of a unit with c rows each counts min(1, k/c). In whole steps of 1/WEIGHT_GRAIN, so
  that the sums stay integers: a unit adds exactly WEIGHT_GRAIN min(c, k) steps, over as many places
  as it likes.
* "rows": min(c, k) of its rows, chosen at random, count in full.

Both add at most k rows' worth, so one unit moves a sum by at most k times what one row does, in any
norm; and both have the same mean, so that the weights, which choose nothing at random, never have
the larger error. What needs whole rows (a test whose law is that of single records, a protocol that
sends one row at a time) takes "rows".

Proof: docs/proofs/curves.md#units.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from noisewise import checks
from noisewise.privacy import WHOLE_UNITS, Event, Ledger, Randomness, identifiers_of, unit_codes

__all__ = [
    "EACH_PARTY",
    "ONE_ROW",
    "Contribution",
    "PerUnit",
    "Units",
    "as_rows",
    "as_units",
    "bound_of",
    "chosen_among_all",
    "name_of_unit",
    "per_unit",
    "rows_at_most",
]

IntArray = NDArray[np.int64]

#: Steps in one row where rows have weights.
WEIGHT_GRAIN = 1 << 16
#: What is protected, if the user has no better word for it.
UNIT_NAME = "one unit (all rows with one identifier)"
RULES = ("auto", "weights", "rows")
EACH_PARTY = (
    "with several parties, units is a list with the identifiers of each party's rows, one entry "
    "for each party"
)


@dataclass(frozen=True, eq=False)
class Units:
    """Identifiers of units, where more is to be said than the identifiers.

    Parameters
    ----------
    identifiers : sequence
        One for each row, of any type that can be a key of a dictionary. They are private: nothing
        ever shows them.
    name : str
        What one identifier stands for, for the statement; the ledger's word if there is one.
    rule : {"auto", "weights", "rows"}
        How a unit with more rows than may count is bounded. "auto": by weights, whose error is
        never the larger one, except where whole rows are needed.
    parties : int, optional
        Of several parties: how many may hold rows of one unit. Each bounds what it holds, so the
        bound is that many times as large. Default: all of them; 1 promises that nobody is known
        to two.
    common : bool
        Whether a unit has the same identifier at every party, and parties may compare them. The
        rows that count are then chosen among those of all parties, and the bound is that of one.

    Examples
    --------
    >>> Units(["Ada", "Emmy", "Ada"], name="one patient")
    Units(name='one patient', rule='auto')
    """

    identifiers: Any
    name: str = UNIT_NAME
    rule: Literal["auto", "weights", "rows"] = "auto"
    parties: int | None = None
    common: bool = False

    def __post_init__(self) -> None:
        checks.choice("rule", self.rule, RULES)
        if self.parties is not None:
            parties = checks.integer("parties", self.parties, minimum=1)
            object.__setattr__(self, "parties", parties)
        if self.common and (self.parties is not None or self.rule == "weights"):
            raise ValueError(
                "common=True bounds a unit once for all parties, by choosing whole rows: leave out "
                "parties= and rule='weights'"
            )
        if not isinstance(self.name, str) or not self.name.strip():
            raise ValueError("name must say what one identifier stands for: 'one patient'")
        if self.name.strip().casefold() == Contribution.unit:
            # What hides a unit does not hide one of its rows: docs/proofs/units.md#ledger.
            raise ValueError(
                "name='one record' is one row, and what is protected here are all rows with one "
                "identifier: say what that stands for, e.g. 'one patient'"
            )

    def __repr__(self) -> str:
        said = f"Units(name={self.name!r}, rule={self.rule!r}"
        said += "" if self.parties is None else f", parties={self.parties}"
        return said + (", common=True)" if self.common else ")")


@dataclass(frozen=True)
class Contribution:
    """How much one unit may add to counts; by default one row, in one place.

    Parameters
    ----------
    rows : int
        How many rows' worth, at most.
    grain : int
        Steps in which one row is counted.
    scattered : bool
        Whether a unit may add to any number of places, and not only to `rows` of them.
    unit : str
        What is protected.
    sentences : tuple of str
        For the statement.
    """

    rows: int = 1
    grain: int = 1
    scattered: bool = False
    unit: str = "one record"
    sentences: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        """How many steps of a count, at most."""
        return self.rows * self.grain

    @property
    def of_units(self) -> bool:
        """Whether identifiers were given."""
        return bool(self.sentences)

    @property
    def unit_rows(self) -> int | None:
        """The bound for the statement; None if every row is a unit of its own."""
        return self.rows if self.of_units else None

    def told(self, event: Event) -> Event:
        """Return what a whole unit costs, told by its rows: for a ledger, and for a statement."""
        return event.per_row(self.rows) if self.of_units else event

    def keeps_total(self, public: bool) -> bool:
        """Whether the total is public if the number of units is: each adds the same."""
        return public and self.rows == 1

    def places(self, of_one_row: int, all_places: int) -> int:
        """How many numbers one unit may change, if one row changes `of_one_row`."""
        return all_places if self.scattered else min(all_places, of_one_row * self.rows)


ONE_ROW = Contribution()


@dataclass(frozen=True, eq=False)
class PerUnit:
    """How rows become what their unit may add. Made by :func:`per_unit`.

    Parameters
    ----------
    limit : int
        Rows of a unit that count where they are held.
    contribution : Contribution
        What follows from it for the sums.
    rule : {"weights", "rows"}
    rng : Randomness
        Where the choice of rows comes from.
    """

    limit: int
    contribution: Contribution
    rule: Literal["weights", "rows"]
    rng: Randomness = field(repr=False)

    def count(self, codes: IntArray, place: IntArray, places: int) -> IntArray:
        """Count rows by place, in steps, with no unit adding more than its bound.

        The steps of a unit up to each place are rounded, so they depend on how many of its rows
        are where, and not on their order, and its total is exact.
        """
        if self.rule == "rows":
            kept = self.chosen(codes)
            return np.bincount(place[kept], minlength=places).astype(np.int64)
        # One entry for each unit and place that has rows, units one after the other.
        pairs, rows = np.unique(codes * places + place, return_counts=True)
        unit, where = pairs // places, pairs % places
        size, first = _sizes(unit, rows)
        running = np.cumsum(rows) - first
        counted = np.minimum(size, self.limit) * WEIGHT_GRAIN
        upto = _part(running, counted, size, nearest=True)
        before = np.where(running == rows, 0, np.concatenate([[0], upto[:-1]]))
        total = np.zeros(places, np.int64)
        np.add.at(total, where, upto - before)
        return total

    def sums(self, codes: IntArray, group: NDArray[Any], groups: int, values: IntArray) -> IntArray:
        """Sum contributions (rows x columns) by group, weighted so that no unit adds too much."""
        total = np.zeros((groups, values.shape[1]), np.int64)
        pairs, place, rows = np.unique(
            codes * groups + group, return_inverse=True, return_counts=True
        )
        mine = np.zeros((pairs.size, values.shape[1]), np.int64)
        np.add.at(mine, place.ravel(), values)
        size, _ = _sizes(pairs // groups, rows)
        counted = np.minimum(size, self.limit)
        # Towards zero, so that no absolute value grows.
        part = np.sign(mine) * _part(np.abs(mine), counted[:, None], size[:, None])
        np.add.at(total, pairs % groups, part)
        return total

    def steps(self, codes: IntArray, values: NDArray[np.float64]) -> IntArray:
        """Return how many steps each row counts, with no unit adding more than its bound."""
        counted = np.zeros(codes.size, np.int64)
        if self.rule == "rows":
            counted[self.chosen(codes)] = 1
            return counted
        order = np.lexsort((values, codes))
        rows = np.ones(codes.size, np.int64)
        size, first = _sizes(codes[order], rows)
        running = np.arange(1, codes.size + 1) - first
        most = np.minimum(size, self.limit) * WEIGHT_GRAIN
        upto = _part(running, most, size, nearest=True)
        counted[order] = upto - np.where(
            running == 1, 0, np.concatenate([[0], upto[:-1]])[: codes.size]
        )
        return counted

    def chosen(self, codes: IntArray) -> IntArray:
        """Return which rows count: of each unit at most `limit`, every choice equally likely."""
        order = np.lexsort((self.rng.uint64(codes.size), codes))
        sorted_codes = codes[order]
        start = np.concatenate([[True], sorted_codes[1:] != sorted_codes[:-1]])[: codes.size]
        rank = np.arange(codes.size) - np.maximum.accumulate(
            np.where(start, np.arange(codes.size), 0)
        )
        return np.sort(order[rank < self.limit])


def per_unit(
    units: Any,
    max_per_unit: int,
    rng: Randomness,
    *,
    whole: bool = False,
    several: bool = False,
) -> PerUnit | None:
    """Return how units are bounded, or None if every row is a unit of its own.

    Parameters
    ----------
    units : None, sequence or Units
        As a user gave them.
    max_per_unit : int
        Rows of a unit that count, at most.
    rng : Randomness
        Of the release; a choice of rows gets a stream of its own.
    whole : bool
        Whether only whole rows will do.
    several : bool
        Whether the identifiers are those of several parties, one list for each.
    """
    limit = rows_at_most(units, max_per_unit)
    if units is None:
        return None
    given = as_units(units)
    if not several and (given.common or (given.parties or 1) > 1):
        raise ValueError(
            "parties= and common= speak of rows that several parties hold; here is one table, "
            "whose rows are bounded together: leave them out"
        )
    weighted = given.rule != "rows" and not (whole or (several and given.common))
    if whole and given.rule == "weights":
        raise ValueError("rule='weights' cannot be had here, where whole rows are needed: 'rows'")
    contribution = bound_of(given, limit, parties_of_units(given) if several else None, weighted)
    (own,) = rng.spawn(1)
    return PerUnit(limit, contribution, "weights" if weighted else "rows", own)


def rows_at_most(units: Any, max_per_unit: int) -> int:
    """Return the bound on the rows of a unit, which makes no sense without units."""
    limit = checks.integer("max_per_unit", max_per_unit, minimum=1, maximum=1 << 20)
    if units is None and limit != 1:
        raise ValueError(
            f"max_per_unit={limit} bounds the rows of a unit, but no units= were given: give "
            "one identifier for each row, or leave it out, and every row is a unit"
        )
    return limit


def parties_of_units(units: Units) -> int:
    """Return how many parties gave identifiers."""
    each = units.identifiers
    if isinstance(each, (str, bytes)) or not hasattr(each, "__len__"):
        raise ValueError(EACH_PARTY)
    return max(1, len(each))


def bound_of(units: Units, limit: int, held_by: int | None, weighted: bool = False) -> Contribution:
    """Return what one unit may add if at most `limit` rows of it count where they are held.

    Parameters
    ----------
    units : Units
        Its name, and who may hold rows of one.
    limit : int
    held_by : int or None
        How many parties there are; None if one process holds all rows.
    weighted : bool
        Whether rows beyond the limit count less, instead of not being chosen.
    """
    how = (
        f"each row of a unit with c rows counts min(1, {limit} / c)"
        if weighted
        else f"of a unit with more, {limit} {'is' if limit == 1 else 'are'} chosen at random"
    )
    said = [
        f"at most {limit} {'row' if limit == 1 else 'rows'} of a unit count: {how}",
        WHOLE_UNITS,
    ]
    parties = 1
    if held_by is not None and units.common:
        said.append(
            "a unit has the same identifier at every party, and the rows that count were chosen "
            "among those of all parties"
        )
    elif held_by is not None:
        parties = held_by if units.parties is None else min(held_by, units.parties)
        said.append(
            "no unit has rows at more than one party"
            if parties == 1
            else f"at most {parties} parties hold rows of one unit; each bounds what it holds, so "
            f"one unit counts up to {limit * parties} rows"
        )
    grain = WEIGHT_GRAIN if weighted else 1
    return Contribution(limit * parties, grain, weighted, units.name, tuple(said))


def as_units(units: Any) -> Units:
    """Return identifiers with all that is said of them."""
    return units if isinstance(units, Units) else Units(units)


def chosen_among_all(units: Units, bounded: PerUnit) -> tuple[list[IntArray], list[IntArray]]:
    """Choose rows of units that several parties hold under one identifier.

    Returns, for each party, which of its rows count and whose they are.
    """
    sizes = [len(each) for each in units.identifiers]
    codes = unit_codes([name for each in units.identifiers for name in identifiers_of(each)])
    kept = bounded.chosen(codes)
    ends = np.cumsum(sizes)
    parts = np.split(kept, np.searchsorted(kept, ends[:-1]))
    rows = [part - (end - size) for part, end, size in zip(parts, ends, sizes, strict=True)]
    return rows, [codes[part] for part in parts]


def name_of_unit(ledger: Any, column: str | None = None) -> str:
    """Return what all rows with one identifier are called: the ledger's word, if it has one.

    Parameters
    ----------
    ledger : None, Ledger or path
        A ledger that speaks of single records has none; it will refuse what is released of units.
    column : str, optional
        That holds the identifiers.
    """
    if ledger is not None and not isinstance(ledger, Ledger) and not os.path.exists(ledger):
        ledger = None
    if ledger is not None:
        with contextlib.ExitStack() as held:
            book = ledger
            if not isinstance(book, Ledger):
                book = held.enter_context(Ledger.open(book))
            if book.unit != ONE_ROW.unit:
                return str(book.unit)
    return UNIT_NAME if column is None else f"one {column} (all rows with one identifier)"


def as_rows(units: Any) -> Units:
    """Return units of which rows are chosen, whatever the rule was to be."""
    return replace(as_units(units), rule="rows")


def _part(value: IntArray, times: IntArray, divisor: IntArray, nearest: bool = False) -> IntArray:
    """Return value times / divisor, rounded down or to the nearest, exactly."""
    half = divisor if nearest else np.zeros_like(divisor)
    if not value.size:
        return value
    if 2 * int(value.max()) * int(times.max()) + int(divisor.max()) < 1 << 62:
        return np.asarray((2 * value * times + half) // (2 * divisor), np.int64)
    wide = (2 * value.astype(object) * times + half) // (2 * divisor.astype(object))
    return np.asarray(wide, np.int64)


def _sizes(unit: IntArray, rows: IntArray) -> tuple[IntArray, IntArray]:
    """Return, for entries sorted by unit, all rows of the unit and those of units before it."""
    if not unit.size:
        return rows, rows
    _, place = np.unique(unit, return_inverse=True)
    sizes = np.bincount(place.ravel(), weights=rows).astype(np.int64)
    ends = np.cumsum(sizes)
    return sizes[place.ravel()], (ends - sizes)[place.ravel()]
