"""Read a table from a file by the public rules of its schema, one cell at a time.

Everything is read as text first: what becomes a number, and what counts as missing, is decided by
the schema and by the cell, never by the other cells of the column, as pandas would.
"""

from __future__ import annotations

import codecs
import csv
import os
import re
import warnings
from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from noisewise.datasets.cells import SchemaError
from noisewise.datasets.columns import Binary, Categorical, Column, Drop, Numeric, Ordinal
from noisewise.datasets.columns_by_rule import YesNo
from noisewise.datasets.file_format import FileFormat
from noisewise.datasets.schema import Schema

__all__ = ["SIGNS", "column_names", "find_form", "read_cells", "read_table", "text_numbers"]

#: Bytes in which a line with the names of the columns is looked for.
_FIRST_LINE = 1 << 20
_CODES = (
    "AUD|BRL|CAD|CHF|CNY|CZK|DKK|EUR|GBP|HKD|HUF|IDR|ILS|INR|JPY|KRW|MXN|NOK|NZD|PLN|RON|SEK|SGD|"
    "THB|TRY|TWD|USD|ZAR"
)
_CURRENCY = rf"(?:[€$£¥₹]|(?:{_CODES}|kr\.?|Fr\.|zł)(?![a-zA-Z]))"
#: Currency and percent, before or after a number.
SIGNS = rf"^{_CURRENCY}\s*|(?<=[\d.,\s])\s*(?:{_CURRENCY}|%)$"


def _as_windows(error: UnicodeError) -> tuple[str, int]:
    """Read bytes that are no UTF-8 as what they nearly always are, each by itself."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    strange = error.object[error.start : error.end]
    read = (bytes([byte]).decode("cp1252", "ignore") or chr(byte) for byte in strange)
    return "".join(read), error.end


codecs.register_error("noisewise-windows-1252", _as_windows)


def read_table(
    path: str | os.PathLike[str], schema: Schema, *, keep_unlabelled: bool = False
) -> pd.DataFrame:
    r"""Read a .csv or .parquet file as its schema declares it.

    Numbers are read with the schema's decimal sign, blanks around names and cells are removed,
    words for missing values become missing, and labels take the words of the public classes. A
    number that cannot be read is missing. Rows without a readable target are left out: that rule
    looks at one row at a time, so it costs no privacy.

    Parameters
    ----------
    path : path
    schema : Schema
    keep_unlabelled : bool
        Keep rows without a target, for prediction.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from noisewise.datasets import FileFormat, Numeric, Schema, read_table
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "people.csv"
    >>> _ = path.write_text("age ; paid\n40,5; Yes\nNA;no\n")
    >>> form = FileFormat(separator=";", decimal=",")
    >>> read_table(path, Schema({"age": Numeric(0, 100)}, file=form))["age"].tolist()
    [40.5, nan]
    """
    rules = dict(schema.columns)
    rule = schema.target_rule or schema.target_range or _of_classes(schema)
    if schema.target is not None and rule is not None:
        rules[schema.target] = rule
    frame = read_cells(path, schema.file, {name: _words(rule) for name, rule in rules.items()})
    for name in frame.columns:
        column = rules.get(name)
        if column is not None and not isinstance(column, Drop):
            frame[name] = _typed(frame[name], column, schema.file)
    if schema.target in frame.columns:
        frame[schema.target] = _labels(frame[schema.target], schema)
        if not keep_unlabelled:
            frame = frame[frame[schema.target].notna()].reset_index(drop=True)
            if schema.classes is not None:
                values = frame[schema.target].tolist()
                frame[schema.target] = np.array(values) if values else values
    return frame


def _words(column: Column) -> frozenset[str]:
    """Return the values that a column lists, as they are compared with words for missing values."""
    listed: tuple[Any, ...] = ()
    if isinstance(column, (Categorical, Ordinal, Binary)):
        listed = tuple(column.values)
    elif isinstance(column, YesNo):
        listed = (*column.yes, *column.no)
    return frozenset(str(value).strip().casefold() for value in listed)


def _of_classes(schema: Schema) -> Column | None:
    return None if schema.classes is None else Categorical(schema.classes)


def _labels(cells: pd.Series[Any], schema: Schema) -> pd.Series[Any]:
    if schema.classes is None:
        return cells
    found = schema._class_numbers(cells)
    names = np.array([*schema.classes, None], dtype=object)
    read: pd.Series[Any] = pd.Series(names[np.where(found >= 0, found, -1)], index=cells.index)
    return read


def _typed(cells: pd.Series[Any], column: Column, form: FileFormat) -> pd.Series[Any]:
    """Return cells in the type in which the declarations are written."""
    if pd.api.types.is_numeric_dtype(cells.dtype) or pd.api.types.is_bool_dtype(cells.dtype):
        return cells
    if isinstance(column, Numeric):
        return text_numbers(cells, form)
    if isinstance(column, (Categorical, Ordinal, Binary)):
        whole = {str(value): value for value in column.values if isinstance(value, int)}
        if whole:
            read = [whole.get(cell, cell) if isinstance(cell, str) else cell for cell in cells]
            typed: pd.Series[Any] = pd.Series(read, index=cells.index)
            return typed
    return cells


def text_numbers(cells: pd.Series[Any], form: FileFormat) -> pd.Series[Any]:
    """Return texts as floats, without currency and percent signs; what is no number is missing."""
    texts = cells.astype("string").str.replace(SIGNS, "", regex=True)
    if form.thousands is not None:
        # Groups of other than three digits are another notation: 1.5 is not 15.
        mark, point = re.escape(form.thousands), re.escape(form.decimal)
        grouped = texts.str.fullmatch(rf"[+-]?\d{{1,3}}({mark}\d{{3}})+({point}\d*)?")
        bare = texts.str.replace(form.thousands, "", regex=False)
        texts = texts.where(~texts.str.contains(mark), bare.where(grouped))
    if form.decimal != ".":
        texts = texts.str.replace(".", "no number", regex=False)
        texts = texts.str.replace(form.decimal, ".", regex=False)
    numbers: pd.Series[Any] = pd.to_numeric(texts, errors="coerce")
    found: pd.Series[Any] = numbers.astype("Float64").astype(np.float64)
    return found


def read_cells(
    path: str | os.PathLike[str],
    form: FileFormat | None = None,
    words: Mapping[str, frozenset[str]] | None = None,
) -> pd.DataFrame:
    """Read a file: cells of text without blanks around them, words for missing values as missing.

    `words` are values that columns list: there "none" or "-" is a value like any other. Without a
    form the separator is found in the line of names. Bytes that are no UTF-8 in a file
    that is said to be are read as Windows-1252: files of several programs are often mixed.
    """
    place = Path(path)
    if not place.is_file():
        raise SchemaError(f"no file at {str(place)!r}")
    kind = place.suffix.lower()
    if kind not in (".csv", ".tsv", ".txt", ".parquet"):
        raise SchemaError(
            f"{place.name!r}: only .csv, .tsv and .parquet files can be read. "
            "From a spreadsheet, save the sheet as CSV"
        )
    try:
        if kind == ".parquet":
            frame = pd.read_parquet(place)
        else:
            chosen = form or find_form(place)
            if _is_utf8(chosen) and find_form(place).encoding != "utf-8":
                raise UnicodeError
            frame = _texts(place, chosen)
    except UnicodeError:
        raise SchemaError(
            f"{place.name!r} is not {(form or find_form(place)).encoding} text: say how it is "
            'encoded in the schema, for example [file] encoding = "utf-16"'
        ) from None
    except pd.errors.EmptyDataError:
        raise SchemaError(f"cannot read {place.name!r}: it is empty") from None
    except (OSError, ValueError, pd.errors.ParserWarning) as error:
        # Texts of the parsers quote lines of the file.
        raise SchemaError(_unreadable(place, form, error)) from None
    if frame.shape[1] == 1 and kind != ".parquet" and _other_separator(place, form):
        raise SchemaError(_unreadable(place, form, None))
    frame.columns = pd.Index(_told_apart(map(str, frame.columns)))
    return _trimmed(frame, (form or FileFormat()).nothing, words or {})


def _other_separator(place: Path, form: FileFormat | None) -> str | None:
    """Return what seems to separate the names, if it is not what the schema says."""
    if form is None:
        return None
    seen = find_form(place, form.skip).separator
    line, _ = _line_of_names(place, form.skip)
    return seen if seen != form.separator and seen in line else None


def _unreadable(place: Path, form: FileFormat | None, error: BaseException | None) -> str:
    """Say what is wrong with a file, without any line of it."""
    other = _other_separator(place, form) if place.suffix.lower() != ".parquet" else None
    if form is not None and other is not None:
        return (
            f"cannot read {place.name!r} with {form.separator!r} between cells: its names seem to "
            f"be separated by {other!r}. Say so in the schema: [file] separator = {other!r}"
        )
    what = f"cannot read {place.name!r} as a table: it is something else, or its rows have "
    if isinstance(error, pd.errors.ParserWarning):
        what = f"rows of {place.name!r} have "
    return (
        f"{what}more cells than there are names. Cells that hold the separator must be in quotes. "
        "If the table begins with other lines, such as a title, say how many: [file] skip = 1 in "
        "the schema, or `noisewise schema draft --skip 1`. If the separator is another one: [file] "
        "separator = ';'"
    )


def _texts(place: Path, form: FileFormat) -> pd.DataFrame:
    """Return all cells below the line of names, as they are written.

    pandas drops, with a warning, what stands beyond the last name. Separators at the ends of lines
    are no matter; cells that are lost are an error.
    """
    utf8 = _is_utf8(form)

    def read(**names: Any) -> pd.DataFrame:
        cells: pd.DataFrame = pd.read_csv(
            place,
            sep=form.separator,
            dtype="string",
            keep_default_na=False,
            na_filter=False,
            encoding="utf-8-sig" if utf8 else form.encoding,
            encoding_errors="noisewise-windows-1252" if utf8 else "strict",
            skipinitialspace=True,
            index_col=False,
            skiprows=form.skip,
            **names,
        )
        return cells

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", pd.errors.ParserWarning)
        frame = read()
    if not said:
        return frame
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        wider = read(header=0, names=[*range(frame.shape[1]), "beyond"])
    if wider["beyond"].str.strip().ne("").any():
        raise pd.errors.ParserWarning
    return frame


def _trimmed(
    frame: pd.DataFrame, usual: frozenset[str], words: Mapping[str, frozenset[str]]
) -> pd.DataFrame:
    for name in frame.columns:
        cells = frame[name]
        nothing = usual - words.get(name, frozenset())
        if isinstance(cells.dtype, pd.StringDtype) or cells.dtype == object:
            texts = cells.map(lambda cell: cell.strip() if isinstance(cell, str) else cell)
            absent = [isinstance(cell, str) and cell.casefold() in nothing for cell in texts]
            frame[name] = texts.astype(object).mask(np.array(absent, dtype=bool), None)
    return frame


def _is_utf8(form: FileFormat) -> bool:
    return form.encoding.lower().replace("_", "-") in ("utf-8", "utf8")


def _told_apart(names: Iterable[str]) -> list[str]:
    """Return names without blanks around them; a repeated one gets a number: x, x.1, x.2."""
    found: dict[str, None] = {}
    for name in (name.strip() for name in names):
        number = next(n for n in count() if (f"{name}.{n}" if n else name) not in found)
        found[f"{name}.{number}" if number else name] = None
    return list(found)


def find_form(path: Path, skip: int = 0) -> FileFormat:
    """Return the encoding and separator that the line of names suggests; only that line is read."""
    line, encoding = _line_of_names(path, skip)
    try:
        separator = csv.Sniffer().sniff(line, delimiters=",;\t|").delimiter
    except csv.Error:
        separator = max(",;\t|", key=line.count)
    return FileFormat(separator=separator, encoding=encoding, skip=skip)


def column_names(path: Path, skip: int = 0) -> list[str]:
    """Return the names in the line of names of a text file, as they are written there."""
    line, _ = _line_of_names(path, skip)
    separator = find_form(path, skip).separator
    return [name.strip() for name in next(csv.reader([line], delimiter=separator), [])]


def _line_of_names(path: Path, skip: int) -> tuple[str, str]:
    """Return the first line after those that are skipped, and how the file is encoded."""
    with path.open("rb") as file:
        start = file.read(2)
        file.seek(0)
        if start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            text = file.read(_FIRST_LINE).decode("utf-16", errors="replace")
            return "".join(text.splitlines()[skip : skip + 1]), "utf-16"
        for _ in range(skip):
            file.readline()
        line = file.readline(_FIRST_LINE)
    return line.decode("utf-8-sig", errors="noisewise-windows-1252").rstrip("\r\n"), "utf-8"
