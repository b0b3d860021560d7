"""What a user may give as `data=`, and the columns of it that a curve asks for."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from noisewise.ecdf.counted import Counted
from noisewise.ecdf.grid import Grid
from noisewise.ecdf.group_sums import SUM_UNIT
from noisewise.ecdf.mechanisms.protocol import FloatArray, IntArray
from noisewise.ecdf.sources.answers import Answer, Piece, Whose
from noisewise.ecdf.sources.labels import POSITIVE, LabelRule
from noisewise.ecdf.sources.placement import Placement
from noisewise.errors import NoisewiseError
from noisewise.privacy import MISSING_IDENTIFIERS, unit_codes
from noisewise.release import PerUnit, as_units

__all__ = [
    "Column",
    "Source",
    "column_of",
    "open_source",
    "rows_at_hand",
    "rows_in_memory",
    "without_others",
]

FORMS = (
    "a pandas, Polars or PyArrow table, a PyArrow dataset, a DuckDB relation, a PySpark data "
    "frame, an Ibis table, or the path of a parquet or CSV file or of a folder of parquet files"
)


#: Words that engines read as truth values, for example DuckDB those of a CSV file.
_TRUTH = {"true": True, "t": True, "yes": True, "y": True, "1": True,
          "false": False, "f": False, "no": False, "n": False, "0": False}  # fmt: skip


class Source(Protocol):
    """Answers one grouped count: how many records of each label are in each bin of a column."""

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        ...

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted about how the rows were made."""
        ...

    @property
    def in_memory(self) -> bool:
        """Whether all rows are in this process's memory anyhow."""
        ...

    def is_numeric(self, column: str) -> bool:
        """Whether a column holds numbers or truth values."""
        ...

    def is_text(self, column: str) -> bool:
        """Whether a column holds text."""
        ...

    def is_boolean(self, column: str) -> bool:
        """Whether a column holds truth values."""
        ...

    def count(self, value: str, label: LabelRule | None, placement: Placement) -> Answer:
        """Count records by bin and label."""
        ...

    def sums(
        self, value: str, label: LabelRule, placement: Placement, names: Sequence[str]
    ) -> Answer:
        """Count records and add up what they contribute, by group and label."""
        ...

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
        """Count by bin (and label), or sum by group, with rows of a unit bounded together."""
        ...

    def read(self, value: str, label: LabelRule | None, unit: str | None = None) -> Iterable[Piece]:
        """Read values, codes of labels and identifiers of units into memory."""
        ...


class NoNumbersError(NoisewiseError, TypeError):
    """A column of a table that holds no numbers: found in the table, so no mistake in a program."""


def open_source(data: Any) -> Source:
    """Return what answers grouped counts about a table.

    Parameters
    ----------
    data : object
        A pandas, Polars or PyArrow table, a PyArrow dataset, a DuckDB relation, a PySpark data
        frame, an Ibis table (of any database), or the path of a file or folder. Tables of engines
        are never read into memory: one query is sent for each release.
    """
    from noisewise.ecdf.sources.batches import Batches
    from noisewise.ecdf.sources.places import read_place
    from noisewise.ecdf.sources.pushed import PushedDown

    if isinstance(data, (Batches, PushedDown)):
        return data
    if isinstance(data, (str, Path)):
        return open_source(read_place(data))
    dataset = sys.modules.get("pyarrow.dataset")
    if dataset is not None and isinstance(data, dataset.Dataset):
        return Batches.of_dataset(data)
    if hasattr(data, "read_next_batch"):
        raise TypeError(
            "data is a stream, which can be read only once: give the table or dataset that it "
            "comes from"
        )
    try:
        import narwhals
    except ImportError as error:
        raise ImportError(
            "tables are read through Narwhals: pip install 'noisewise[warehouse]', or give arrays"
        ) from error
    try:
        frame: Any = narwhals.from_native(data)
    except TypeError:
        frame = None
    if isinstance(frame, narwhals.LazyFrame):
        return PushedDown(frame)
    if isinstance(frame, narwhals.DataFrame):
        return Batches.of_frame(frame)
    raise TypeError(f"data must be {FORMS}; got {type(data).__name__}")


@dataclass(frozen=True, eq=False)
class Column:
    """One column of numbers in a table, and that of its labels if a curve needs them.

    Parameters
    ----------
    source : Source
    value : str
    label : LabelRule, optional
    whose : Whose, optional
        Whose rows they are, if rows of a unit are bounded together.
    known : dict
        Sums that were asked for before.
    """

    source: Source
    value: str
    label: LabelRule | None = None
    whose: Whose | None = None
    known: dict[Any, tuple[dict[str, IntArray], int]] = field(default_factory=dict)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted about how the rows were made."""
        return self.source.assumptions

    def counted(self, grid: Grid, *, negated: bool = False) -> Counted:
        """Count all records together."""
        answer = self._count(grid, negated)
        return Counted(answer.counts.sum(axis=0), self.assumptions, answer.units)

    def counted_by_label(self, grid: Grid, *, negated: bool = False) -> Counted:
        """Count negatives, then positives."""
        answer = self._count(grid, negated, by_label=True)
        return Counted(answer.counts.ravel(), self.assumptions, answer.units)

    def counted_probabilities(self, grid: Grid) -> Counted:
        """Count all records together; their values must be probabilities."""
        answer = self._count(grid, negated=False)
        self._check_probabilities(answer)
        return Counted(answer.counts.sum(axis=0), self.assumptions, answer.units)

    def sums(
        self, cuts: FloatArray, names: Sequence[str], *, clip: bool = False
    ) -> dict[str, IntArray]:
        """Return the weight of the records of each group, in grid units, and other sums.

        Without units also their number ("count") and that of positives.

        Parameters
        ----------
        cuts : array
            Between the groups, inside (0, 1).
        names : sequence of str
            Of "expected", "residual", "place", in grid units of 1/SUM_UNIT.
        clip : bool
            Move values outside [0, 1] to the nearest end, instead of refusing them.
        """
        key = (cuts.tobytes(), tuple(names), clip)
        if key not in self.known:
            self.known[key] = self._sums(cuts, names, clip)
        return self.known[key][0]

    def number(self, cuts: FloatArray, names: Sequence[str]) -> int:
        """Return the number of records or units, from sums that will be asked for anyhow."""
        self.sums(cuts, names)
        return self.known[(cuts.tobytes(), tuple(names), False)][1]

    def _sums(
        self, cuts: FloatArray, names: Sequence[str], clip: bool
    ) -> tuple[dict[str, IntArray], int]:
        assert self.label is not None
        placement = Placement("searched", np.concatenate([[0.0], cuts, [1.0]]), "above")
        if self.whose is None:
            answer = self.source.sums(self.value, self.label, placement, names)
        else:
            answer = self.source.of_units(self.value, self.label, placement, self.whose, names)
        self._check(answer)
        if not clip:
            self._check_probabilities(answer)
        if self.whose is not None:
            assert answer.units is not None
            return answer.tables, answer.units
        found = {name: table.sum(axis=0) for name, table in answer.tables.items()}
        more = {"positives": answer.counts[1], "weight": SUM_UNIT * found["count"]}
        return {**found, **more}, int(found["count"].sum())

    def arrays(
        self, unit: str | None = None
    ) -> tuple[FloatArray, NDArray[np.bool_] | None, IntArray | None]:
        """Read the columns into memory: values, which of them are positive, and whose they are."""
        parts = list(self.source.read(self.value, self.label, unit))
        codes = [part.codes for part in parts if part.codes is not None]
        seen = {int(code) for part in codes for code in np.unique(part)}
        self._check(Answer({}, any(part.missing for part in parts), seen, None))
        values = np.concatenate([np.zeros(0), *(part.values for part in parts)])
        positive = None
        if self.label is not None:
            positive = np.concatenate([np.zeros(0, np.int64), *codes]) == POSITIVE
        if unit is None:
            return values, positive, None
        identifiers = [name for part in parts for name in part.identifiers.to_pylist()]
        return values, positive, unit_codes(identifiers, values.size)

    def _count(self, grid: Grid, negated: bool, by_label: bool = False) -> Answer:
        placement = Placement.of(grid, negated=negated)
        if self.whose is None:
            answer = self.source.count(self.value, self.label, placement)
        else:
            answer = self.source.of_units(
                self.value, self.label, placement, self.whose, by_label=by_label
            )
        self._check(answer)
        return answer

    def _check(self, answer: Answer) -> None:
        if answer.unknown:
            raise ValueError(MISSING_IDENTIFIERS)
        if answer.absent:
            raise ValueError(
                f"column {self.value!r} holds NaN or missing values, which have no place in an "
                "order. Drop or impute them first, by a rule that looks at one record at a time."
            )
        if self.label is not None:
            self.label.check(answer.labels)

    def _check_probabilities(self, answer: Answer) -> None:
        if answer.ends is not None and (answer.ends[0] < 0 or answer.ends[1] > 1):
            raise ValueError(
                f"column {self.value!r} must hold probabilities in [0, 1]; turn scores into "
                "probabilities by a public rule first, for example 1 / (1 + exp(-score))"
            )


def column_of(
    data: Any,
    value: Any,
    label: Any = None,
    pos_label: Any = None,
    units: Any = None,
    bounded: PerUnit | None = None,
) -> Column:
    """Return the columns that a curve asks for, refused by name and type before any is read.

    Parameters
    ----------
    data : object
        See :func:`open_source`.
    value : str
        Column of the numbers.
    label : str, optional
        Column of the labels.
    pos_label : object, optional
        Which label is positive.
    units : str or Units, optional
        Column that says whose row it is.
    bounded : PerUnit, optional
        How rows of a unit are bounded, if the table is to be asked for bounded counts.
    """
    source = open_source(data)
    unit = None if units is None else as_units(units).identifiers
    for name in (value, label, unit):
        if name is None and name is not value:
            continue
        if not isinstance(name, str):
            raise TypeError(
                f"with data=, columns are given by name, got {type(name).__name__}: for example "
                'dp_roc_curve("y", "p", data=table, epsilon=1.0)'
            )
        if name not in source.columns:
            known = ", ".join(map(repr, source.columns[:20]))
            raise ValueError(f"{name!r} is not a column of the table, which has {known}")
    if not source.is_numeric(value):
        raise NoNumbersError(f"column {value!r} must hold numbers")
    whose = None if unit is None or bounded is None else Whose(unit, bounded)
    rule = None if label is None else _rule(source, label, pos_label)
    return Column(source, value, rule, whose)


def rows_in_memory(data: Any, value: Any, units: Any) -> tuple[Any, Any, Any]:
    """Return values, whose rows they are, and no table, if it is in memory; else what was given.

    What looks at all records at once can then look at them, as at those of an array.
    """
    source = open_source(data)
    if not source.in_memory:
        return value, units, source
    given = None if units is None else as_units(units)
    column = column_of(source, value, units=given)
    values, _, codes = column.arrays(None if given is None else given.identifiers)
    return values, given if given is None else replace(given, identifiers=codes), None


def rows_at_hand(
    data: Any, value: Any, label: Any, pos_label: Any, units: Any, bounded: PerUnit | None
) -> tuple[Any, Any, Any, Any, Any, PerUnit | None]:
    """Read the columns of a table if whole rows of units are to be chosen, which is done here.

    Returns values, labels, the positive label, whose rows they are, what is left to be asked: no
    table, then; and the bound, which speaks of the table. Every choice comes from the randomness
    of the release, as with arrays.
    """
    if data is None or bounded is None or bounded.rule != "rows":
        return value, label, pos_label, units, data, bounded
    given = as_units(units)
    column = column_of(data, value, label, pos_label, given)
    values, positive, codes = column.arrays(given.identifiers)
    most = bounded.contribution
    said = replace(most, sentences=(*most.sentences, *column.assumptions))
    whose = replace(given, identifiers=codes)
    return values, positive, None, whose, None, replace(bounded, contribution=said)


def without_others(aggregator: Any) -> None:
    """Refuse a table together with what needs every record at hand."""
    if aggregator is not None:
        raise ValueError(
            "data= is one table of one party, and an aggregator adds up the records of several: "
            "give it their arrays, or let each party run 'noisewise contribute' on its own table"
        )


def _rule(source: Source, label: str, pos_label: Any) -> LabelRule:
    numeric, boolean = source.is_numeric(label), source.is_boolean(label)
    if pos_label is None:
        if not numeric:
            raise ValueError(
                f"column {label!r} does not hold numbers: say which label is positive, for "
                "example pos_label='yes'"
            )
        return LabelRule(label)
    if isinstance(pos_label, np.generic):
        pos_label = pos_label.item()
    if isinstance(pos_label, bool) and numeric and not boolean:
        pos_label = int(pos_label)
    if boolean and isinstance(pos_label, str):
        pos_label = _TRUTH.get(pos_label.lower(), pos_label)
    is_truth = isinstance(pos_label, bool) or pos_label in (0, 1)
    fits = (
        is_truth
        if boolean
        else isinstance(pos_label, Real)
        if numeric
        else source.is_text(label) and isinstance(pos_label, str)
    )
    if not fits:
        kind = "truth values" if boolean else "numbers" if numeric else "no numbers"
        raise ValueError(
            f"pos_label={pos_label!r} is a {type(pos_label).__name__}, but column {label!r} holds "
            f"{kind}: no record would be positive"
        )
    return LabelRule(label, bool(pos_label) if boolean else pos_label)
