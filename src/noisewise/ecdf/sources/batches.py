"""Data frames in memory and Arrow datasets: columns pass by in pieces and are counted here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from noisewise.ecdf.group_sums import SUM_UNIT, to_units
from noisewise.ecdf.mechanisms.protocol import FloatArray, IntArray
from noisewise.ecdf.sources.answers import Answer, Piece, Whose
from noisewise.ecdf.sources.labels import MISSING, NEGATIVE, POSITIVE, LabelRule
from noisewise.ecdf.sources.placement import Placement
from noisewise.ecdf.sources.pushed import quietly
from noisewise.privacy import unit_codes

__all__ = ["Batches", "bounded_here"]

#: Rows that are looked at together.
ROWS = 1 << 18


class Batches:
    """Columns that are read piece by piece.

    Parameters
    ----------
    schema : pyarrow.Schema
        Of the columns that can be used.
    batches : callable
        From names of columns to an iterator over record batches; may be called again.
    in_memory : bool
        Whether the table is in this process's memory anyhow.
    """

    def __init__(
        self,
        schema: pa.Schema,
        batches: Callable[[list[str]], Iterator[pa.RecordBatch]],
        in_memory: bool = False,
    ) -> None:
        self.schema = schema
        self.batches = batches
        self.in_memory = in_memory

    @classmethod
    def of_frame(cls, frame: Any) -> Batches:
        """Take a data frame in memory, a narwhals.DataFrame."""

        def slices(names: list[str]) -> Iterator[pa.RecordBatch]:
            part = frame.select(names)
            for start in range(0, len(part), ROWS):
                yield from part[start : start + ROWS].to_arrow().to_batches()

        # No rows are needed to know the types, except where pandas holds Python objects.
        return cls(quietly("describe the table", lambda: _schema_of(frame)), slices, True)

    @classmethod
    def of_dataset(cls, dataset: Any) -> Batches:
        """Take a pyarrow dataset."""
        return cls(dataset.schema, lambda names: dataset.to_batches(columns=names, batch_size=ROWS))

    @property
    def assumptions(self) -> tuple[str, ...]:
        """None: rows of a data frame are what its owner says, as those of an array."""
        return ()

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.schema.names)

    def is_numeric(self, column: str) -> bool:
        """Whether a column holds numbers or truth values."""
        kind = self.schema.field(column).type
        tests = (kinds.is_floating, kinds.is_integer, kinds.is_decimal, kinds.is_boolean)
        return any(test(kind) for test in tests)

    def is_text(self, column: str) -> bool:
        """Whether a column holds text."""
        kind = self.schema.field(column).type
        if kinds.is_dictionary(kind):
            kind = kind.value_type
        return bool(kinds.is_string(kind) or kinds.is_large_string(kind) or _is_view(kind))

    def is_boolean(self, column: str) -> bool:
        """Whether a column holds truth values."""
        return bool(kinds.is_boolean(self.schema.field(column).type))

    def count(self, value: str, label: LabelRule | None, placement: Placement) -> Answer:
        """Count records by bin and label."""
        return self.sums(value, label, placement, ())

    def sums(
        self, value: str, label: LabelRule | None, placement: Placement, names: Sequence[str]
    ) -> Answer:
        """Count records and add up what they contribute, by group and label."""
        return quietly("read the columns", lambda: self._sums(value, label, placement, names))

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
        """Count, or sum, with all rows of a unit bounded together.

        By the code that bounds arrays: a unit's rows may be anywhere in the table, so its number,
        the place and the sums of every row are kept.
        """
        rows = self.read(value, label, whose.column)
        return bounded_here(rows, placement, whose, names, by_label=by_label)

    def read(self, value: str, label: LabelRule | None, unit: str | None = None) -> list[Piece]:
        """Read values, codes of labels and identifiers into memory."""
        return quietly("read the columns", lambda: list(self._pieces(value, label, unit)))

    def _pieces(
        self, value: str, label: LabelRule | None, unit: str | None = None
    ) -> Iterator[Piece]:
        labels = [] if label is None else [label.column]
        for batch in self.batches(list(dict.fromkeys([value, *labels, *([unit] if unit else [])]))):
            values, missing = _numbers(batch.column(value))
            codes = None if label is None else _codes(batch.column(label.column), label)
            yield Piece(values, codes, missing, None if unit is None else batch.column(unit))

    def _sums(
        self, value: str, label: LabelRule | None, placement: Placement, names: Sequence[str]
    ) -> Answer:
        size = 2 * placement.bins
        tables = {name: np.zeros(size, np.int64) for name in ("count", *names)}
        absent, seen, ends = False, set[int](), (np.inf, -np.inf)
        for values, codes, missing, _ in self._pieces(value, label):
            absent = absent or missing
            if codes is None:
                codes = np.full(values.size, NEGATIVE, np.int64)
            else:
                seen |= set(np.unique(codes).tolist())
            if absent or not values.size:
                continue
            ends = (min(ends[0], float(values.min())), max(ends[1], float(values.max())))
            inside = np.clip(values, placement.lower, placement.upper)
            place = _bins(inside, placement)
            positive = codes == POSITIVE
            cells = place + placement.bins * positive
            tables["count"] += np.bincount(cells, minlength=size)
            for name in names:
                added = to_units(_contribution(name, inside, positive, place, placement))
                np.add.at(tables[name], cells, added)
        ordered = {name: placement.in_order(table.reshape(2, -1)) for name, table in tables.items()}
        return Answer(ordered, absent, seen, ends if np.isfinite(ends[0]) else None)


def bounded_here(
    rows: list[Piece],
    placement: Placement,
    whose: Whose,
    names: Sequence[str],
    *,
    by_label: bool,
) -> Answer:
    """Count or sum rows that were read, with those of a unit bounded together."""
    identifiers = _joined([piece.identifiers for piece in rows])
    codes = unit_codes(identifiers)
    values = np.concatenate([np.zeros(0), *(piece.values for piece in rows)])
    labels = [piece.codes for piece in rows if piece.codes is not None]
    seen = {int(code) for part in labels for code in np.unique(part)}
    if any(piece.missing for piece in rows):
        return Answer({}, True, seen, None, 0)
    inside = np.clip(values, placement.lower, placement.upper)
    place = _bins(inside, placement)
    positive = np.zeros(values.size, np.bool_)
    if labels:
        positive = np.concatenate(labels) == POSITIVE
    if names:
        columns = [np.full(values.size, SUM_UNIT, np.int64)]
        columns += [
            to_units(_contribution(name, inside, positive, place, placement)) for name in names
        ]
        summed = whose.bounded.sums(codes, place, placement.bins, np.column_stack(columns))
        tables = dict(zip(("weight", *names), summed.T, strict=True))
    else:
        ordered = placement.bins - 1 - place if placement.closed == "below" else place
        cells = ordered + placement.bins * (positive & by_label)
        tables = {"count": whose.bounded.count(codes, cells, 2 * placement.bins).reshape(2, -1)}
    ends = (float(values.min()), float(values.max())) if values.size else None
    return Answer(tables, False, seen, ends, int(np.unique(codes).size))


def _bins(inside: FloatArray, placement: Placement) -> IntArray:
    """Return the bin of each value by search: the definition that engines must agree with."""
    side: Any = "right" if placement.closed == "below" else "left"
    return np.searchsorted(placement.edges[1:-1], inside, side=side).astype(np.int64)


def _contribution(
    name: str, inside: FloatArray, positive: Any, place: IntArray, placement: Placement
) -> FloatArray:
    if name == "expected":
        return inside
    if name == "residual":
        return np.asarray(positive.astype(np.float64) - inside)
    half = np.diff(placement.edges) / 2
    found = (inside - placement.edges[place]) / half[place] - 1
    return np.asarray(np.clip(found, -1.0, 1.0))


def _numbers(column: pa.Array) -> tuple[FloatArray, bool]:
    """Return a column as doubles, and whether a number is missing."""
    if not kinds.is_float64(column.type):
        if kinds.is_boolean(column.type):
            column = column.cast(pa.int8())
        column = column.cast(pa.float64(), safe=False)
    values = np.asarray(column.to_numpy(zero_copy_only=False), np.float64)
    return values, bool(np.isnan(values).any())


def _codes(column: pa.Array, label: LabelRule) -> IntArray:
    if kinds.is_dictionary(column.type):
        column = column.dictionary_decode()
    if kinds.is_decimal(column.type):
        column = column.cast(pa.float64())
    missing = np.asarray(pc.is_null(column, nan_is_null=True).to_numpy(zero_copy_only=False))
    found = np.full(len(column), MISSING, np.int64)
    found[~missing] = label.codes(
        column.filter(pc.invert(pc.is_null(column, nan_is_null=True))).to_numpy(
            zero_copy_only=False
        )
    )
    return found


def _joined(columns: list[pa.Array]) -> Any:
    """Return whole numbers as an array, other identifiers as a list."""
    if columns and all(kinds.is_integer(part.type) and not part.null_count for part in columns):
        return np.concatenate([np.asarray(part) for part in columns])
    return [name for part in columns for name in part.to_pylist()]


def _schema_of(frame: Any) -> pa.Schema:
    empty = frame.head(0).to_arrow().schema
    if not any(kinds.is_null(field.type) for field in empty):
        return empty
    # A pandas column of Python objects has a type only where it has rows.
    return frame.head(1).to_arrow().schema


def _is_view(kind: pa.DataType) -> bool:
    return bool(getattr(kinds, "is_string_view", lambda _: False)(kind))
