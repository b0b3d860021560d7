"""Rows of units, bounded together where they are: the query of an engine.

Of a unit with c rows in a table each counts min(1, k / c), in whole steps, exactly as
:class:`noisewise.release.PerUnit` counts arrays: the query groups rows by unit and cell, and
windows over each unit give c and how many of its rows are in cells up to each. What a unit adds to
a cell is the difference of two rounded numbers of steps, so that all it adds is min(c, k) rows'
worth, whatever the other units are. No chance is needed, and identifiers do not leave the engine.

All numbers are whole and below 2^53, and a quotient of such numbers, rounded to a double, has the
right whole part: one that is no whole number is at least 1/divisor away from the next one above,
and rounding moves it by less. The answer carries the remainders and the least
and largest steps of any unit, so that an engine that computes otherwise is refused; so is one that
calls different names the same, under which two people would be one unit.

Proof: docs/proofs/curves.md#units-in-engines.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from noisewise.ecdf.group_sums import SUM_UNIT
from noisewise.ecdf.sources.answers import Answer, Whose
from noisewise.ecdf.sources.labels import MISSING, NEGATIVE, OTHER, POSITIVE, SIGNED, LabelRule
from noisewise.ecdf.sources.placement import Placement
from noisewise.privacy import MISSING_TEXT, SPACES
from noisewise.release import WEIGHT_GRAIN

if TYPE_CHECKING:
    from noisewise.ecdf.sources.pushed import PushedDown

__all__ = ["answered", "by_unit"]

#: Codes of labels whose presence is reported.
_CODES = (NEGATIVE, POSITIVE, SIGNED, OTHER, MISSING)
_WHOLE = 2.0**53
#: Endings that databases may call the same: by case, accent, width, space or what is not seen.
_ALIKE = (("a", "A"), ("e", "\u00e9"), ("a", "\uff41"), ("a", "a "), ("a", "a\u200b"), ("1", "01"))


def _stripped(source: PushedDown, text: Any) -> Any:
    """Text without the spaces around it, all that Python knows, as arrays are read."""
    if not source.frame.implementation.is_ibis():
        return text.str.strip_chars(SPACES)
    # Databases strip those of ASCII and cannot be told which; the one that office programs write is
    # made one of them. For all others SQLite's parser has no room.
    return text.str.replace_all("\u00a0", " ", literal=True).str.strip_chars()


def by_unit(
    source: PushedDown,
    value: str,
    label: LabelRule | None,
    placement: Placement,
    whose: Whose,
    names: Sequence[str],
    *,
    by_label: bool,
) -> Any:
    """Return the query: one row for each cell, with the steps that all units add to it."""
    nw, number = source.nw, source.number
    column = nw.col(whose.column)
    kind = source.types[whose.column]
    unknown, blurred = column.is_null(), None
    if source.is_text(whose.column):
        text = column if kind == nw.String else column.cast(nw.String)
        named = _stripped(source, text)

        # By its bytes, if the engine forgets a column's collation in an expression. If it does not,
        # the same expression with different endings shows it.
        def ending(end: str) -> Any:
            return nw.concat_str(text, nw.lit(end))

        column = ending("")
        blurred = functools.reduce(
            operator.or_, (ending(one) == ending(other) for one, other in _ALIKE)
        )
        unknown = unknown | (named == nw.lit("")) | named.is_in(sorted(MISSING_TEXT))
    elif kind == nw.Binary:
        unknown = unknown | column.is_in([b"", *(text.encode() for text in sorted(MISSING_TEXT))])
    rows = source.rows(
        value,
        label,
        placement,
        names,
        noisewise_unit=column,
        noisewise_unknown=nw.when(unknown).then(number(1)).otherwise(number(0)),
        noisewise_blurred=number(0)
        if blurred is None
        else nw.when(blurred).then(number(1)).otherwise(number(0)),
    )
    place = nw.col("noisewise_place")
    cell = number(placement.bins - 1) - place if placement.closed == "below" else place
    if by_label:
        positive = nw.col("noisewise_label") == nw.lit(POSITIVE)
        cell = cell + nw.when(positive).then(number(placement.bins)).otherwise(number(0))
    cell = nw.when(place < number(0)).then(number(-1)).otherwise(cell)
    rows = rows.with_columns(noisewise_cell=cell)
    if label is not None:
        codes = nw.col("noisewise_label")
        rows = rows.with_columns(
            **{
                f"noisewise_code_{code}": nw.when(codes == nw.lit(code))
                .then(number(1))
                .otherwise(number(0))
                for code in _CODES
            }
        )
    flags = ["noisewise_unknown", "noisewise_blurred"]
    flags += [] if label is None else [f"noisewise_code_{code}" for code in _CODES]
    least, largest = nw.col("noisewise_least"), nw.col("noisewise_largest")
    found = rows.group_by("noisewise_unit", "noisewise_cell").agg(
        noisewise_rows=nw.len().cast(nw.Float64),
        noisewise_least=nw.col("noisewise_value").min(),
        noisewise_largest=nw.col("noisewise_value").max(),
        **{flag: nw.col(flag).max() for flag in flags},
        **{
            f"noisewise_sum_{name}": nw.col(f"noisewise_sum_{name}").sum().cast(nw.Float64)
            for name in names
        },
    )
    mine, size = nw.col("noisewise_rows"), nw.col("noisewise_size")
    found = found.with_columns(
        noisewise_size=mine.sum().over("noisewise_unit"),
        noisewise_running=mine.cum_sum().over("noisewise_unit", order_by="noisewise_cell"),
    )
    most, running = number(whose.bounded.limit), nw.col("noisewise_running")
    found = found.with_columns(
        noisewise_most=nw.when(size > most).then(most).otherwise(size),
        noisewise_last=nw.when(running == size).then(number(1)).otherwise(number(0)),
    )
    shared = _parts(source, found, names) if names else _steps(source, found)
    # Every remainder is one: at least 0 and below its divisor.
    checks = {f"noisewise_low_{at}": nw.col(f"noisewise_left_{at}").min() for at in shared.divided}
    checks |= {
        f"noisewise_high_{at}": (nw.col(f"noisewise_left_{at}") - size).max()
        for at in shared.divided
    }
    checks |= {"noisewise_largest_size": size.max(), **shared.checks}
    return shared.frame.group_by("noisewise_cell").agg(
        noisewise_least=least.min(),
        noisewise_largest=largest.max(),
        noisewise_units=nw.col("noisewise_last").sum(),
        **{flag: nw.col(flag).max() for flag in flags},
        **checks,
        **{total: nw.col(total).sum() for total in shared.totals},
    )


class _Shared(NamedTuple):
    """What of each unit counts: a frame, its columns that are summed, and what shows it right."""

    frame: Any
    totals: list[str]
    divided: list[str]
    checks: dict[str, Any]


def _steps(source: PushedDown, found: Any) -> _Shared:
    """Give each unit the steps of its rows up to a cell less those before it, both rounded.

    With rows * most = a * size + b they are a whole rows and the steps nearest to b / size of one.
    """
    nw, number = source.nw, source.number
    size, most = nw.col("noisewise_size"), nw.col("noisewise_most")
    rows = {
        "upto": nw.col("noisewise_running"),
        "before": nw.col("noisewise_running") - nw.col("noisewise_rows"),
    }
    divided = _divided(source, found, {name: part * most for name, part in rows.items()})

    def steps(name: str) -> Any:
        left = nw.col(f"noisewise_left_{name}")
        part = ((left * number(2 * WEIGHT_GRAIN) + size) / (size * number(2))).floor()
        return nw.col(f"noisewise_quotient_{name}") * number(WEIGHT_GRAIN) + part

    found = divided.with_columns(noisewise_upto=steps("upto"), noisewise_before=steps("before"))
    upto = nw.col("noisewise_upto")
    found = found.with_columns(noisewise_steps=upto - nw.col("noisewise_before"))
    checks = {
        "noisewise_fewest": nw.col("noisewise_steps").min(),
        "noisewise_over": (upto - most * number(WEIGHT_GRAIN)).max(),
    }
    return _Shared(found, ["noisewise_steps"], list(rows), checks)


def _parts(source: PushedDown, found: Any, names: Sequence[str]) -> _Shared:
    """Give each unit the part of its sums that counts, rounded towards zero."""
    nw, number = source.nw, source.number
    size, most = nw.col("noisewise_size"), nw.col("noisewise_most")
    sums = {"weight": nw.col("noisewise_rows") * number(SUM_UNIT)}
    sums |= {name: nw.col(f"noisewise_sum_{name}") for name in names}
    sizes = {
        name: nw.when(total < number(0)).then(number(0) - total).otherwise(total)
        for name, total in sums.items()
    }
    found = _divided(source, found, sizes)

    def part(name: str) -> Any:
        left = nw.col(f"noisewise_left_{name}")
        kept = nw.col(f"noisewise_quotient_{name}") * most + (left * most / size).floor()
        return nw.when(sums[name] < number(0)).then(number(0) - kept).otherwise(kept)

    found = found.with_columns(**{f"noisewise_sum_{name}": part(name) for name in sums})
    return _Shared(found, [f"noisewise_sum_{name}" for name in sums], list(sums), {})


def _divided(source: PushedDown, found: Any, shares: dict[str, Any]) -> Any:
    """Divide numbers by the rows of their unit: whole part and remainder of each."""
    nw, size = source.nw, source.nw.col("noisewise_size")
    found = found.with_columns(
        **{f"noisewise_quotient_{name}": (of / size).floor() for name, of in shares.items()}
    )
    return found.with_columns(
        **{
            f"noisewise_left_{name}": of - nw.col(f"noisewise_quotient_{name}") * size
            for name, of in shares.items()
        }
    )


def answered(rows: dict[str, list[Any]], placement: Placement, names: Sequence[str]) -> Answer:
    """Read the answer of :func:`by_unit`, and refuse one that cannot be right."""
    from noisewise.ecdf.sources.pushed import check_bins

    def column(name: str) -> Any:
        return np.asarray(rows[f"noisewise_{name}"], np.float64)

    cells = column("cell").astype(np.int64)
    if (column("blurred") > 0).any():
        raise ValueError(
            "the database calls different identifiers of units the same (a collation without "
            "regard to case, accents or spaces), so two of them would be bounded as one, and "
            "either could move more than its bound: select the column in a form that is compared "
            "byte by byte, for example encode(name) as name"
        )
    absent, unknown = bool((cells < 0).any()), bool((column("unknown") > 0).any())
    seen = {
        code
        for code in _CODES
        if f"noisewise_code_{code}" in rows and bool((column(f"code_{code}") > 0).any())
    }
    units = int(column("units").sum())
    if absent or unknown or not cells.size:
        empty = {name: np.zeros(placement.bins, np.int64) for name in ("weight", *names)}
        empty |= {"count": np.zeros((2, placement.bins), np.int64)}
        return Answer(empty, absent, seen, None, units, unknown)
    place = cells % placement.bins
    if placement.closed == "below":
        place = placement.bins - 1 - place
    least, largest = column("least"), column("largest")
    check_bins(placement, place, least, largest)
    largest_size = float(column("largest_size").max())
    if largest_size >= 2.0**32:
        raise ValueError(
            "a unit has more rows than an engine can be asked to weigh (2^32): is the right column "
            "named as unit?"
        )
    divided = ("weight", *names) if names else ("upto", "before")
    right = all(
        bool((column(f"low_{at}") >= 0).all() and (column(f"high_{at}") < 0).all())
        for at in divided
    )
    if not names:
        right = right and bool((column("fewest") >= 0).all() and (column("over") <= 0).all())
    totals = {name: column(f"sum_{name}") for name in (("weight", *names) if names else ())}
    totals |= {} if names else {"count": column("steps")}
    right = right and all(bool((np.abs(part) < _WHOLE).all()) for part in totals.values())
    if not right:
        raise ValueError(
            "this engine does not divide whole numbers exactly, so a unit might count more than it "
            "may. Read the columns into arrays and give those instead."
        )
    ends = float(least.min()), float(largest.max())
    tables = {}
    for name, part in totals.items():
        table = np.zeros(2 * placement.bins, np.int64)
        np.add.at(table, place if names else cells, part.astype(np.int64))
        tables[name] = table[: placement.bins] if names else table.reshape(2, -1)
    return Answer(tables, absent, seen, ends, units)
