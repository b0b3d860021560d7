"""Public schemas: the only way by which a table becomes numbers in a private run.

Standardising a column with its own mean, taking its own minimum and maximum, or listing
the categories that happen to occur, uses every record before the first noise is added;
no epsilon of the training covers it. A :class:`Schema` holds ranges and categories that
were known *before* anybody looked at the rows. Each record is encoded by itself, and
the norm of every encoded row has a bound that follows from the schema alone.
"""

from __future__ import annotations

import difflib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from noisewise import checks
from noisewise.datasets import schema_json, schema_toml
from noisewise.datasets.cells import SchemaError, Value, categories, codes, numbers
from noisewise.datasets.columns import Categorical, Column, Drop, Numeric
from noisewise.datasets.columns_by_rule import YesNo
from noisewise.datasets.file_format import FileFormat
from noisewise.datasets.labels import class_names, labels_of
from noisewise.datasets.schema_report import ColumnReport, SchemaReport
from noisewise.errors import UnsoundError

__all__ = ["Schema"]


@dataclass(frozen=True, eq=True)
class Schema:
    """Public ranges and categories of a table, and the encoding they define.

    Parameters
    ----------
    columns : mapping of str to column
        One of `Numeric`, `Categorical`, `Binary`, `YesNo`, `Ordinal`, `Date`, `CodeRanges`,
        `Identifier` or `Drop` for each column but the target. Their order is the order of the
        encoded numbers.
    target : str, optional
        Name of the label column.
    classes : sequence, optional
        The public classes of the label, in the order of their numbers.
    target_range : Numeric, optional
        The public range of the label of a regression; instead of `classes`.
    scale : {"symmetric", "unit"}
        Whether numbers are scaled to [-1, 1] or to [0, 1].
    source : str
        Where the ranges and categories come from; goes into privacy statements.
    sound, reason : bool, str
        False, with the reason, if the schema was taken from the private data itself.
    unit : str, optional
        The column that says whose row it is, such as a patient's number.
    target_rule : YesNo or Categorical, optional
        How labels are read as one of the two or more `classes`.
    file : FileFormat
        How text files hold such a table.

    Examples
    --------
    >>> from noisewise.datasets import Categorical, Numeric, Schema
    >>> schema = Schema(
    ...     {"age": Numeric(18, 100), "job": Categorical(["clerk", "farmer"])},
    ...     target="paid", classes=["no", "yes"], source="the bank's form of 2019",
    ... )
    >>> schema.feature_names
    ('age', 'job=clerk', 'job=farmer', 'job=<other>')
    >>> round(schema.norm_bound, 4)
    1.4142
    """

    columns: Mapping[str, Column]
    target: str | None = None
    classes: tuple[Value, ...] | None = None
    target_range: Numeric | None = None
    scale: str = "symmetric"
    source: str = "declared by the user"
    sound: bool = True
    reason: str = ""
    unit: str | None = None
    target_rule: YesNo | Categorical | None = None
    file: FileFormat = field(default_factory=FileFormat)
    _names: tuple[str, ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        columns = dict(self.columns)
        _check_columns(columns)
        checks.choice("scale", self.scale, ("symmetric", "unit"))
        self._check_target(columns)
        self._check_unit(columns)
        if not isinstance(self.file, FileFormat):
            raise SchemaError(f"file must be a FileFormat, got {self.file!r}")
        if not self.sound and not self.reason:
            raise SchemaError("a schema that is not sound needs a reason")
        names = [name for key, column in columns.items() for name in column.features(key)]
        if len(set(names)) != len(names):
            raise SchemaError("two encoded features have the same name; rename a column")
        object.__setattr__(self, "columns", MappingProxyType(columns))
        object.__setattr__(self, "_names", tuple(names))
        if self.classes is not None:
            object.__setattr__(self, "classes", categories(self.classes))

    def _check_target(self, columns: Mapping[str, Column]) -> None:
        if (self.classes is not None or self.target_range is not None) and self.target is None:
            raise SchemaError("classes or target_range need the name of the target column")
        if self.classes is not None and self.target_range is not None:
            raise SchemaError("a target has either classes or a range, not both")
        if self.target in columns:
            raise SchemaError(
                f"the target {self.target!r} is also among the columns; a model would learn to "
                "copy it, so remove it there"
            )
        if not isinstance(self.target_range, (Numeric, type(None))):
            raise SchemaError(f"target_range must be Numeric(low, high), got {self.target_range!r}")
        if self.target_range is not None and self.target_range.missing != "zero":
            raise SchemaError("a target cannot have an indicator of missingness")
        if self.target_rule is not None and (
            not isinstance(self.target_rule, (YesNo, Categorical))
            or len(self.classes or ()) != len(class_names(self.target_rule))
        ):
            raise SchemaError("target_rule must be YesNo() or Categorical([...]) of the classes")

    def _check_unit(self, columns: Mapping[str, Column]) -> None:
        if self.unit is None:
            return
        if not isinstance(self.unit, str):
            raise SchemaError(f"unit must be the name of a column, got {self.unit!r}")
        if self.unit == self.target or not isinstance(columns.get(self.unit, Drop()), Drop):
            raise SchemaError(
                f"column {self.unit!r} names the unit, so it cannot be learnt from; declare it "
                "Identifier()"
            )

    def __hash__(self) -> int:
        return hash(self.to_json())

    def __reduce__(self) -> tuple[Any, ...]:
        return Schema.from_json, (self.to_json(),)

    # What follows from the declarations alone

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the encoded numbers, in order."""
        return self._names

    @property
    def width(self) -> int:
        """How many numbers a row becomes."""
        return len(self._names)

    @property
    def norm_bound(self) -> float:
        """Largest Euclidean norm of an encoded row, whatever the row holds.

        Each used column contributes a block of norm at most 1 and some row attains it in
        all of them, so this is the root of their number, rounded up.
        """
        square = self._norm_squared
        bound = math.sqrt(square)
        while Fraction(bound) ** 2 < square:
            bound = math.nextafter(bound, math.inf)
        return bound

    @property
    def _norm_squared(self) -> int:
        return sum(column.norm_squared for column in self.columns.values())

    @property
    def _unit_factor(self) -> np.float32:
        """Largest float32 by which the bound becomes at most 1, rounding included."""
        factor: np.float32 = np.float32(1.0 / self.norm_bound)
        while Fraction(float(factor)) ** 2 * self._norm_squared > 1:
            factor = np.nextafter(factor, np.float32(0))
        return factor

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What a privacy statement must say about the encoding."""
        if not self.sound:
            return (f"NOT SOUND: {self.reason}",)
        sentences = [
            "The columns, their ranges, categories and transforms, and the rules for missing "
            "and unknown values, are public and were not taken from the data.",
            f"They come from: {self.source}.",
            "Each record is encoded by itself; values outside a range are moved to its end.",
        ]
        if self.classes is not None:
            sentences.append("The list of classes of the target is public.")
        elif self.target_range is not None:
            sentences.append("The range of the target is public; targets outside are clamped.")
        return tuple(sentences)

    def require_sound(self) -> None:
        """Raise `UnsoundError` if no guarantee can hold for data encoded by this schema."""
        if not self.sound:
            raise UnsoundError(
                f"no epsilon can be given for data encoded by this schema: {self.reason} Write "
                "the ranges and categories down from public knowledge, Schema({'age': "
                "Numeric(18, 100), ...}), or release them with a private mechanism first."
            )

    # Tables

    def encode(
        self, frame: pd.DataFrame, *, unit_norm: bool = False, extra: str = "error"
    ) -> tuple[npt.NDArray[np.float32], tuple[str, ...]]:
        """Turn each row into numbers.

        Parameters
        ----------
        frame : pandas.DataFrame
            With all columns of the schema, in any order; the target may be absent.
        unit_norm : bool
            Divide by the norm bound, so that every row has norm at most 1.
        extra : {"error", "ignore"}
            What to do with columns that the schema does not know.

        Returns
        -------
        array of float32, shape (rows, width), and the names of its columns
        """
        self._check_columns(frame, extra)
        matrix = np.empty((len(frame), self.width), dtype=np.float32)
        start = 0
        for name, column in self.columns.items():
            stop = start + len(column.features(name))
            if stop > start:
                matrix[:, start:stop] = column.encode(name, frame[name], self._symmetric)
            start = stop
        if unit_norm:
            matrix *= self._unit_factor
        return matrix, self._names

    def encode_target(self, frame: pd.DataFrame) -> npt.NDArray[Any]:
        """Return class numbers (int64), or the scaled target of a regression (float32)."""
        if self.target is None or (self.classes is None and self.target_range is None):
            raise SchemaError("this schema declares no classes and no range of a target")
        self._present(frame, [self.target])
        cells = frame[self.target]
        if self.classes is not None:
            found = self._class_numbers(cells)
            if (found < 0).any():
                raise SchemaError(
                    f"labels in {self.target!r} are not among the public classes "
                    f"{list(self.classes)}; declare the class or remove these rows by a rule that "
                    "looks at one row at a time"
                )
            return found
        assert self.target_range is not None
        if np.isnan(numbers(self.target, cells)).any():
            raise SchemaError(f"the target {self.target!r} has missing values; remove these rows")
        encoded = self.target_range.encode(self.target, cells, self._symmetric)
        return encoded[:, 0].astype(np.float32)

    def units(self, frame: pd.DataFrame) -> pd.Series | None:
        """Return who each row belongs to; None if every row is a unit."""
        self._present(frame, [] if self.unit is None else [self.unit])
        return None if self.unit is None else frame[self.unit]

    def _class_numbers(self, cells: pd.Series[Any]) -> npt.NDArray[np.int64]:
        assert self.target is not None
        assert self.classes is not None
        if self.target_rule is not None:
            return self.target_rule.codes(self.target, cells)
        return codes(self.target, cells, self.classes)

    def labels(self, y: Any) -> npt.NDArray[Any]:
        """Return labels in the words of the public classes; what is none stays as it is."""
        if self.target_rule is None:
            return np.asarray(y)
        return labels_of(self.target_rule, self.target or "the target", y)

    def decode_target(self, encoded: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return class numbers to classes, or scaled numbers to the units of the target."""
        if self.classes is not None:
            names: npt.NDArray[Any] = np.array(self.classes, dtype=object)[np.asarray(encoded)]
            return names
        if self.target_range is None:
            raise SchemaError("this schema declares no classes and no range of a target")
        return self.target_range.decode(encoded, self._symmetric)

    def check(self, frame: pd.DataFrame) -> SchemaReport:
        """Count the cells that the schema clamps or does not know (NOT private).

        For whoever holds the data, to find a wrong unit or a misspelt category. Do not
        publish it and do not tune the ranges by it: both would leak.
        """
        self._check_columns(frame, "ignore")
        rows = tuple(
            ColumnReport(name, column.kind, **vars(column.count(name, frame[name])))
            for name, column in self.columns.items()
            if not isinstance(column, Drop)
        )
        return SchemaReport(len(frame), rows)

    def drop(self, *names: str, reason: str = "") -> Schema:
        """Return the same schema with some columns unused."""
        self._known(names)
        return replace(self, columns={**self.columns, **dict.fromkeys(names, Drop(reason))})

    def to_json(self) -> str:
        """Return the schema as JSON text, with a version."""
        return json.dumps(schema_json.to_dict(self), indent=2, ensure_ascii=False)

    def to_toml(self) -> str:
        """Return the schema as TOML, one line a column, to be read and changed by people."""
        return schema_toml.to_text(self)

    @classmethod
    def from_toml(cls, text: str, where: str = "the schema") -> Schema:
        """Read a schema that a person finished; all problems are told at once."""
        return cls(**schema_toml.from_text(text, where))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Schema:
        """Read a schema from its file, ``.toml`` or ``.json``."""
        place = Path(path)
        try:
            text = place.read_text("utf-8-sig")
        except FileNotFoundError:
            raise SchemaError(
                f"no schema at {str(place)!r}; `noisewise schema draft TABLE.csv` begins one"
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            raise SchemaError(f"{str(place)!r} cannot be read as text: {error}") from None
        if place.suffix.lower() == ".json":
            return cls.from_json(text)
        return cls.from_toml(text, place.name)

    @classmethod
    def from_json(cls, text: str) -> Schema:
        """Read what :meth:`to_json` wrote; unknown versions, kinds and keys are errors."""
        return cls(**schema_json.from_text(text))

    @classmethod
    def from_data(
        cls,
        frame: pd.DataFrame,
        target: str | None = None,
        *,
        study: bool = False,
        method: str = "min-max",
        max_categories: int = 100,
    ) -> Schema:
        """Take ranges and categories from the rows: for studies only, never an epsilon.

        Parameters
        ----------
        frame : pandas.DataFrame
        target : str, optional
        study : bool
            Must be True; the result is marked as not sound.
        method : {"min-max", "mean-std"}
            Ranges are the column's ends, or its mean plus and minus three deviations.
        max_categories : int
            Text columns with more distinct values are dropped.
        """
        from noisewise.datasets import study as from_rows

        if study is not True:
            raise UnsoundError(
                "Schema.from_data reads every record to find ranges and categories, and this "
                "reading is covered by no noise: one person's salary can be the maximum, and "
                "the list of categories says who is there. Declare a public schema, or pass "
                "study=True to use it without any epsilon."
            )
        return cls(**from_rows.declarations(frame, target, method, max_categories))

    # Checks

    @property
    def _symmetric(self) -> bool:
        return self.scale == "symmetric"

    def _check_columns(self, frame: pd.DataFrame, extra: str) -> None:
        checks.choice("extra", extra, ("error", "ignore"))
        if not isinstance(frame, pd.DataFrame):
            raise SchemaError(f"expected a pandas DataFrame, got {type(frame).__name__}")
        used = [name for name, column in self.columns.items() if not isinstance(column, Drop)]
        self._present(frame, used)
        twice = frame.columns[frame.columns.duplicated()]
        if len(twice):
            raise SchemaError(f"the table has two columns named {twice[0]!r}; rename one")
        known = {*self.columns, self.target, self.unit}
        surplus = [name for name in frame.columns if name not in known]
        if surplus and extra == "error":
            listed = ", ".join(map(repr, surplus[:10])) + (", ..." if len(surplus) > 10 else "")
            raise SchemaError(
                f"the table has {len(surplus)} column(s) that the schema does not know: {listed}. "
                "Declare them, mark them Drop() in the schema, or pass extra='ignore'"
            )

    def _present(self, frame: pd.DataFrame, names: Sequence[str]) -> None:
        absent = [name for name in names if name not in frame.columns]
        if absent:
            have = [str(name) for name in frame.columns]
            near = difflib.get_close_matches(absent[0], have, n=1)
            hint = f"; did you mean {near[0]!r} for {absent[0]!r}?" if near else ""
            raise SchemaError(
                f"the table lacks {len(absent)} column(s) of the schema: "
                f"{', '.join(map(repr, absent[:10]))}{', ...' if len(absent) > 10 else ''}{hint}"
            )

    def _known(self, names: Sequence[str]) -> None:
        strange = [name for name in names if name not in self.columns]
        if strange:
            raise SchemaError(f"the schema has no column {strange[0]!r}")


def _check_columns(columns: Mapping[str, Column]) -> None:
    for name, column in columns.items():
        if not isinstance(name, str):
            raise SchemaError(f"column names must be text, got {name!r}")
        if not isinstance(column, Column) or type(column) is Column:
            raise SchemaError(
                f"column {name!r} must be Numeric(low, high), Categorical([...]), Binary(), "
                f"Ordinal([...]), CodeRanges(...) or Drop(), got {column!r}"
            )
    if not any(column.norm_squared for column in columns.values()):
        raise SchemaError("a schema needs at least one column that is not dropped")
