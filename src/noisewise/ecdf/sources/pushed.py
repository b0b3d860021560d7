"""Grouped counts and sums that an engine computes: one query each, through Narwhals.

The query clamps, places and counts; nothing but one row for each bin that holds records comes
back. Privacy does not depend on the engine's arithmetic: whatever it computes, a record is in one
group, and what it adds is held within its bound by the query itself. That the numbers are *right*
is checked with the least and largest value of each group.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from noisewise.ecdf.group_sums import SUM_UNIT
from noisewise.ecdf.mechanisms.protocol import FloatArray, IntArray
from noisewise.ecdf.sources.answers import Answer, Piece, Whose
from noisewise.ecdf.sources.engine_units import answered, by_unit
from noisewise.ecdf.sources.labels import MISSING, NEGATIVE, OTHER, POSITIVE, SIGNED, LabelRule
from noisewise.ecdf.sources.placement import Placement

__all__ = ["PushedDown", "check_bins", "quietly"]

T = TypeVar("T")
#: Databases, of single files, whose parsers give up on the query that weighs sums of units.
SMALL_PARSERS = ("sqlite",)
#: Databases behind Ibis to which 0.1 is a double.
DOUBLE_LITERALS = ("duckdb", "sqlite", "polars", "pyspark")

ROW_BY_ROW = (
    "a record is one row of the table or query that was counted; whatever made that row looked at "
    "one record alone (no averages or ranks over others, no limit, no join that repeats it)"
)


class PushedDown:
    """A table of an engine that runs queries: DuckDB, Spark, Polars' lazy frames, a database.

    Parameters
    ----------
    frame : narwhals.LazyFrame
    """

    in_memory = False

    def __init__(self, frame: Any) -> None:
        import narwhals

        self.frame = frame
        self.nw: Any = narwhals
        self.types: dict[str, Any] = quietly(
            "describe the table", lambda: dict(frame.collect_schema())
        )

    @property
    def assumptions(self) -> tuple[str, ...]:
        """A query or view may mix records, which nobody sees from its result."""
        return (ROW_BY_ROW,)

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.types)

    def is_numeric(self, column: str) -> bool:
        """Whether a column holds numbers or truth values."""
        kind = self.types[column]
        return bool(kind.is_numeric() or kind == self.nw.Boolean)

    def is_text(self, column: str) -> bool:
        """Whether a column holds text."""
        return self.types[column] in (self.nw.String, self.nw.Categorical, self.nw.Enum)

    def is_boolean(self, column: str) -> bool:
        """Whether a column holds truth values."""
        return bool(self.types[column] == self.nw.Boolean)

    def count(self, value: str, label: LabelRule | None, placement: Placement) -> Answer:
        """Count records by bin and label."""
        query = quietly(
            "take the query",
            lambda: self._grouped(value, label, placement).agg(**self._extremes()),
        )
        return self._answer(query, placement)

    def sums(
        self, value: str, label: LabelRule, placement: Placement, names: Sequence[str]
    ) -> Answer:
        """Count records and add up what they contribute, by group and label."""
        totals = {
            f"noisewise_sum_{name}": self.nw.col(f"noisewise_sum_{name}").sum().cast(self.nw.Int64)
            for name in names
        }
        query = quietly(
            "take the query",
            lambda: self._grouped(value, label, placement, names).agg(**self._extremes(), **totals),
        )
        return self._answer(query, placement, names)

    def of_units(
        self,
        value: str,
        label: LabelRule | None,
        placement: Placement,
        whose: Whose,
        names: Sequence[str] = (),
        *,
        by_label: bool = False,
    ) -> Answer:
        """Count, or sum, with all rows of a unit bounded together, in the engine.

        One entry for each unit and cell; windows over a unit give its rows and those up to each
        cell, and whole numbers below 2^53 the steps that :class:`PerUnit` gives them.
        """
        if self.types[whose.column].is_float():
            raise ValueError(
                f"column {whose.column!r} holds floating-point numbers, among which identifiers "
                "can be lost: cast it to a whole number or to text in the query"
            )
        if names and self._backend_name in SMALL_PARSERS:
            from noisewise.ecdf.sources.batches import bounded_here  # which needs this module

            rows_here = self.read(value, label, whose.column)
            return bounded_here(rows_here, placement, whose, names, by_label=by_label)
        query = quietly(
            "take the query",
            lambda: by_unit(self, value, label, placement, whose, names, by_label=by_label),
        )
        rows = quietly("answer one grouped count", lambda: self._collected(query))
        return answered(rows, placement, names)

    def read(self, value: str, label: LabelRule | None, unit: str | None = None) -> list[Piece]:
        """Read values, codes of labels and identifiers into memory."""
        nw = self.nw
        code = nw.lit(NEGATIVE) if label is None else self._code(label)
        wanted = {"value": self._doubles(value), "label": code}
        if unit is not None:
            wanted["unit"] = nw.col(unit)
        query = self.frame.select(**wanted)

        def collected() -> Piece:
            found = query.collect(backend="pyarrow").to_native()
            values = np.asarray(found["value"].to_numpy(), np.float64)
            codes = None if label is None else np.asarray(found["label"].to_numpy(), np.int64)
            whose = None if unit is None else found["unit"]
            return Piece(values, codes, bool(np.isnan(values).any()), whose)

        return [quietly("read the columns", collected)]

    # ----------------------------------------------------------------- the query

    def _extremes(self) -> dict[str, Any]:
        value = self.nw.col("noisewise_value")
        return {
            "noisewise_count": self.nw.len(),
            "noisewise_least": value.min(),
            "noisewise_largest": value.max(),
        }

    def _grouped(
        self, value: str, label: LabelRule | None, placement: Placement, names: Sequence[str] = ()
    ) -> Any:
        """Return rows grouped by their bin and the code of their label."""
        rows = self.rows(value, label, placement, names)
        return rows.group_by("noisewise_place", "noisewise_label")

    def rows(
        self,
        value: str,
        label: LabelRule | None,
        placement: Placement,
        names: Sequence[str] = (),
        **others: Any,
    ) -> Any:
        """Return rows with their bin (-1: no number), code of their label, and what they add."""
        nw, number = self.nw, self.number
        code = nw.lit(NEGATIVE) if label is None else self._code(label)
        frame = self.frame.select(
            noisewise_value=self._doubles(value), noisewise_label=code, **others
        )
        column = nw.col("noisewise_value")
        absent = column.is_null()
        if self.types[value].is_float():
            absent = absent | self._is_nan(column)
        frame = frame.with_columns(noisewise_absent=absent)
        frame = frame.with_columns(
            noisewise_inside=nw.when(column < number(placement.lower))
            .then(number(placement.lower))
            .otherwise(
                nw.when(column > number(placement.upper))
                .then(number(placement.upper))
                .otherwise(column)
            )
        )
        frame = self._placed(frame, placement)
        for name in names:
            frame = self._contributing(frame, name, placement)
        return frame.with_columns(
            noisewise_place=nw.when(nw.col("noisewise_absent"))
            .then(number(-1.0))
            .otherwise(nw.col("noisewise_place"))
        )

    def _doubles(self, value: str) -> Any:
        """Return a column as doubles; truth values by way of whole numbers (PostgreSQL)."""
        column = self.nw.col(value)
        if self.types[value] == self.nw.Boolean:
            column = column.cast(self.nw.Int32)
        return column.cast(self.nw.Float64)

    def _placed(self, frame: Any, placement: Placement) -> Any:
        """Add the bin, by the same operations as :meth:`Placement.place`."""
        nw, number = self.nw, self.number
        inside, place = nw.col("noisewise_inside"), nw.col("noisewise_place")
        below, last = placement.closed == "below", float(placement.bins - 1)
        if placement.kind == "searched":
            bins = [float(place) for place in range(placement.bins)]
            return frame.with_columns(noisewise_place=self._searched(placement, bins))
        offset = inside - number(placement.lower)
        if placement.kind == "divided":
            position = offset / self._divisor(placement.range) * number(placement.bins)
        else:
            position = offset * number(placement.bins / placement.range)
        rounded = position.ceil() - number(1) if not below else position.floor()
        if placement.kind == "stepped":
            rounded = position.floor()
        frame = frame.with_columns(noisewise_place=rounded)
        frame = frame.with_columns(
            noisewise_place=nw.when(place < number(0))
            .then(number(0))
            .otherwise(nw.when(place > number(last)).then(number(last)).otherwise(place))
        )
        if placement.kind != "stepped":
            return frame

        def edge(at: Any) -> Any:
            share = at / self._divisor(placement.bins)
            return number(placement.lower) + number(placement.range) * share

        low = inside < edge(place) if below else inside <= edge(place)
        frame = frame.with_columns(
            noisewise_place=nw.when(low & (place > number(0)))
            .then(place - number(1))
            .otherwise(place)
        )
        end = edge(place + number(1))
        high = inside >= end if below else inside > end
        return frame.with_columns(
            noisewise_place=nw.when(high & (place < number(last)))
            .then(place + number(1))
            .otherwise(place)
        )

    def _searched(self, placement: Placement, values: Sequence[float]) -> Any:
        """Return the value of a record's bin, by halving."""
        nw, inside = self.nw, self.nw.col("noisewise_inside")

        def between(first: int, last: int) -> Any:
            if first == last:
                return self.number(values[first])
            middle = (first + last) // 2
            end = self.number(float(placement.edges[middle + 1]))
            left = inside < end if placement.closed == "below" else inside <= end
            return nw.when(left).then(between(first, middle)).otherwise(between(middle + 1, last))

        return between(0, placement.bins - 1)

    def _contributing(self, frame: Any, name: str, placement: Placement) -> Any:
        """Add what a record contributes to a sum, rounded to grid units and bounded."""
        nw, number = self.nw, self.number
        inside, scaled = nw.col("noisewise_inside"), nw.col("noisewise_scaled")
        if name == "expected":
            part = inside
        elif name == "residual":
            positive = nw.col("noisewise_label") == nw.lit(POSITIVE)
            part = nw.when(positive).then(number(1)).otherwise(number(0)) - inside
        elif name == "place":
            half = np.diff(placement.edges) / 2
            start = self._searched(placement, placement.edges[:-1].tolist())
            frame = frame.with_columns(noisewise_start=start)
            frame = frame.with_columns(noisewise_half=self._searched(placement, half.tolist()))
            part = (inside - nw.col("noisewise_start")) / nw.col("noisewise_half") - number(1)
        else:
            raise KeyError(name)
        # Round half to even, as NumPy does: engines' own rounding differs in ties.
        frame = frame.with_columns(noisewise_scaled=part * number(SUM_UNIT))
        frame = frame.with_columns(noisewise_whole=scaled.floor())
        whole = nw.col("noisewise_whole")
        rest, odd = scaled - whole, whole - number(2) * (whole * number(0.5)).floor()
        up = (rest > number(0.5)) | ((rest == number(0.5)) & (odd == number(1)))
        frame = frame.with_columns(
            noisewise_rounded=nw.when(up).then(whole + number(1)).otherwise(whole)
        )
        rounded, limit = nw.col("noisewise_rounded"), number(SUM_UNIT)
        bounded = (
            nw.when(rounded > limit)
            .then(limit)
            .otherwise(
                nw.when(rounded < number(-SUM_UNIT)).then(number(-SUM_UNIT)).otherwise(rounded)
            )
        )
        known = nw.when(nw.col("noisewise_absent")).then(number(0)).otherwise(bounded)
        return frame.with_columns(**{f"noisewise_sum_{name}": known.cast(nw.Int64)})

    def _code(self, label: LabelRule) -> Any:
        nw = self.nw
        column, kind = nw.col(label.column), self.types[label.column]
        absent = column.is_null()
        if kind.is_float():
            absent = absent | self._is_nan(column)

        def coded(*cases: tuple[Any, int], otherwise: int) -> Any:
            found = nw.lit(otherwise)
            for condition, code in reversed(cases):
                found = nw.when(condition).then(nw.lit(code)).otherwise(found)
            return found

        if kind == nw.Boolean:
            is_positive = ~column if label.positive is False else column
            return coded((absent, MISSING), (is_positive, POSITIVE), otherwise=NEGATIVE)
        if kind.is_numeric():
            column = column.cast(nw.Float64)
        if label.positive is not None:
            wanted = label.positive
            if kind == nw.Float32:  # as NumPy compares a column of float32 with a number
                wanted = float(np.float32(wanted))
            value = nw.lit(wanted) if isinstance(wanted, str) else self.number(wanted)
            return coded((absent, MISSING), (column == value, POSITIVE), otherwise=NEGATIVE)
        return coded(
            (absent, MISSING),
            (column == self.number(1), POSITIVE),
            (column == self.number(0), NEGATIVE),
            (column == self.number(-1), SIGNED),
            otherwise=OTHER,
        )

    def number(self, value: float) -> Any:
        """Return a double; a bare literal such as 0.1 is a decimal to some engines.

        To PostgreSQL it is one even where Ibis was told that it is a double, and what is computed
        from such numbers alone is decimal, too. What is read from text is a double to everybody.
        """
        if self._backend is None or self._backend_name in DOUBLE_LITERALS:
            return self.nw.lit(float(value), self.nw.Float64)
        return self.nw.lit(repr(float(value))).cast(self.nw.Float64)

    def _divisor(self, value: float) -> Any:
        """Return what to divide by. Polars multiplies by the inverse of a constant instead."""
        if self.frame.implementation.is_polars() or self._backend_name == "polars":
            return self.nw.col("noisewise_inside") * self.number(0) + self.number(value)
        return self.number(value)

    @functools.cached_property
    def _backend(self) -> Any:
        """The backend of Ibis, if the table is one of Ibis."""
        is_ibis = self.frame.implementation.is_ibis()
        return self.frame.to_native().get_backend() if is_ibis else None

    @property
    def _backend_name(self) -> str:
        return "" if self._backend is None else str(self._backend.name)

    @functools.cached_property
    def _is_nan(self) -> Callable[[Any], Any]:
        """Return how this engine tells NaN; databases that have none also have no such test."""
        if self._backend is not None:
            import ibis.expr.operations as operations

            if not self._backend.has_operation(operations.IsNan):
                return lambda column: column != column
        return lambda column: column.is_nan()

    # ---------------------------------------------------------------- the answer

    def _collected(self, query: Any) -> dict[str, list[Any]]:
        streams = {"engine": "streaming"} if self.frame.implementation.is_polars() else {}
        found = query.collect(backend="pyarrow", **streams).to_native()
        return {name: found[name].to_pylist() for name in found.column_names}

    def _answer(self, query: Any, placement: Placement, names: Sequence[str] = ()) -> Answer:
        rows = quietly("answer one grouped count", lambda: self._collected(query))
        absent = [place is None or place < 0 for place in rows["noisewise_place"]]
        seen = {int(code) for code in rows["noisewise_label"]}
        keep = [index for index, missing in enumerate(absent) if not missing]

        def column(name: str, kind: Any) -> Any:
            return np.asarray([rows[f"noisewise_{name}"][index] for index in keep], kind)

        places: IntArray = column("place", np.float64).astype(np.int64)
        least: FloatArray = column("least", np.float64)
        largest: FloatArray = column("largest", np.float64)
        check_bins(placement, places, least, largest)
        positive = column("label", np.int64) == POSITIVE
        counted = {"count": column("count", np.int64)}
        counted |= {name: column(f"sum_{name}", np.int64) for name in names}
        tables = {}
        for name, numbers in counted.items():
            table = np.zeros((2, placement.bins), np.int64)
            np.add.at(table, (positive.astype(np.int64), places), numbers)
            tables[name] = placement.in_order(table)
        ends = (float(least.min()), float(largest.max())) if keep else None
        return Answer(tables, any(absent), seen, ends)


def check_bins(
    placement: Placement, places: IntArray, least: FloatArray, largest: FloatArray
) -> None:
    """Refuse an engine that put values into bins where they do not belong."""
    inside = bool(np.all((places >= 0) & (places < placement.bins)))
    if not (inside and placement.holds(places, least, largest)):
        raise ValueError(
            "this engine does not compute with doubles as IEEE 754 says: it put values into bins "
            "whose limits they are outside of. Read the columns into arrays and give those instead."
        )


def quietly(what: str, act: Callable[[], T]) -> T:
    """Let no message of an engine through: they quote values of the column."""
    try:
        return act()
    except Exception as error:
        kind = f"{type(error).__module__}.{type(error).__name__}"
    # Raised outside of the handler, so that the engine's message is not even its context.
    raise ValueError(
        f"the engine could not {what} ({kind}). Its message is not shown, since such messages can "
        "quote private values. Run the query in the engine itself to see it."
    )
