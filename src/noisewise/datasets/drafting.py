"""Begin a schema: the names of the columns and a guess of their kinds, and nothing else.

The guess is made by looking at the rows, on the machine of whoever may see them. What it writes
down of them are kinds: no range, no category and no count is taken from the data, because those
would become public with the schema, and no epsilon covers them.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from noisewise.datasets.cells import SchemaError, folded
from noisewise.datasets.columns_by_rule import NO_WORDS, YES_WORDS
from noisewise.datasets.file_format import FileFormat
from noisewise.datasets.reading import SIGNS, column_names, find_form, read_cells, text_numbers
from noisewise.datasets.schema_toml import VERSION, _value

__all__ = ["draft_schema", "guess_kinds"]

#: Share of cells that must be readable as a kind; of numbers among which there are words.
_MOST = 0.95
_MANY = 0.6
#: More different values than this nobody lists by hand.
_LISTABLE = 500
#: Rows that are looked at.
_LOOK = 5000
#: Decimal sign and mark between thousands; of those that fit equally well the first is taken.
_NUMBERS = ((".", None), (",", None), (",", "."), (".", ","), (".", "'"), (",", " "), (".", " "))
_DAYS = (
    *("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y"),
    *("%d %b %Y", "%d-%b-%Y", "%d %B %Y", "%b %d, %Y"),
)
_DATES = ("ISO8601", *(day + time for time in ("", " %H:%M", " %H:%M:%S") for day in _DAYS))
_NAMED = re.compile(
    r"(^|[\s_.-])(id|ids|nr|nbr|uuid|guid|ssn|mrn|nhs|iban|e-?mail|phone|telephone|address|"
    r"surname|lastname|firstname|passport)($|[\s_.-])|[a-z]ID$",
)

_HEADER = """\
# What may be known of this table without looking at its rows. Replace every ?
# from public knowledge: a form, a code book, a law, a textbook. Do NOT look it
# up in the rows: one person's value could be the largest, and no epsilon covers
# that. Kinds are guesses; change them. Then:
#   noisewise schema check {schema} {table}
# All keys: noisewise schema kinds. A finished one: noisewise schema show adult.
"""
_HINTS = {
    "number": "possible range with its unit, e.g. [0, 120] (years)",
    "category": 'possible values, e.g. ["north", "south"]; codes too',
    "date": "first and last possible day, e.g. [2010-01-01, 2030-12-31]",
    "yes/no": "yes, y, true, 1 / no, n, false, 0; others: yes = [], no = []",
    "identifier": "never learnt from",
    "drop": "free text or too many values",
}


def draft_schema(
    path: str,
    *,
    target: str | None = None,
    unit: str | None = None,
    name: str = "schema.toml",
    skip: int | None = None,
) -> str:
    """Return the text of a schema in which a person fills in ranges and categories.

    Parameters
    ----------
    path : str
        A .csv or .parquet file.
    target : str, optional
        Column that is to be predicted.
    unit : str, optional
        Column that says whose row it is.
    name : str
        Of the schema's file, for its comments.
    skip : int, optional
        Lines above the names of the columns, such as a title. By default they are found by the
        name of the target or unit.
    """
    text = Path(path).suffix.lower() != ".parquet" and Path(path).is_file()
    if text and skip is None:
        skip = _lines_above(Path(path), {name for name in (target, unit) if name is not None})
    frame = read_cells(path, find_form(Path(path), skip) if text and skip else None)
    for option, column in (("target", target), ("unit", unit)):
        if column is not None and column not in frame.columns:
            raise SchemaError(
                f"{option} {column!r} is not a column of {Path(path).name!r}; its columns: "
                + ", ".join(map(repr, frame.columns))
                + ". If the names stand in a later line, say how many lines to skip: --skip 1"
            )
    form = _form(path, frame, skip or 0)
    kinds = guess_kinds(frame, form)
    written = column_names(Path(path), skip or 0) if text else []
    named = zip(frame.columns, written, strict=False)
    renamed = {name: inside for name, inside in named if inside and name != inside}
    lines = [
        _HEADER.format(schema=name, table=Path(path).name),
        f"noisewise_schema = {VERSION}",
        'source = "?"  # e.g. "admission form of 2019 and its code book"',
    ]
    if unit is not None:
        lines.append(f"unit = {_value(unit)}  # whose row it is")
        kinds[unit] = ("identifier", "")
    elif any(kind == "identifier" for kind, _ in kinds.values()):
        lines.append('# unit = "..."  # if a person has several rows: the column that names them')
    if target is not None:
        lines += ["", "[target]", f"name = {_value(target)}", *_target(*kinds.pop(target))]
    else:
        lines += ["", "# [target]", '# name = "..."  # the column to be predicted']
    if form.written():
        lines += ["", "[file]"]
        lines += [f"{key} = {_value(value)}" for key, value in form.written().items()]
    lines += ["", "[columns]"]
    for column, (kind, extra) in kinds.items():
        keys = {"number": ', range = "?"', "category": ', values = "?"', "date": ', range = "?"'}
        entry = f"{{ kind = {_value(kind)}{keys.get(kind, '')}{extra} }}"
        if column in renamed:
            lines.append(f"# another column that the file calls {_value(renamed[column])}:")
        lines += [f"# {_HINTS[kind]}", f"{_value(column)} = {entry}"]
    return "\n".join(_once(lines)) + "\n"


def _lines_above(path: Path, names: set[str]) -> int:
    """Return how many lines stand above the first one that has all `names`, of the first twenty."""
    for skip in range(20 if names else 0):
        if names <= set(column_names(path, skip)):
            return skip
    return 0


def _once(lines: list[str]) -> list[str]:
    """Keep the first of equal comments."""
    seen: set[str] = set()
    kept = []
    for line in lines:
        if not (line.startswith("# ") and line in seen):
            kept.append(line)
        seen.add(line)
    return kept


def _target(kind: str, extra: str) -> list[str]:
    if kind == "number":
        return ['kind = "number"', 'range = "?"  # possible values; others are clamped']
    if kind == "yes/no":
        return ['kind = "yes/no"  # the usual words; others: yes = ["..."], no = ["..."]']
    return ['kind = "category"', 'values = "?"  # all classes, e.g. ["home", "ward", "icu"]']


def guess_kinds(frame: pd.DataFrame, form: FileFormat) -> dict[str, tuple[str, str]]:
    """Return the kind of each column, and what a date needs beside it."""
    return {name: _guess(name, frame[name], form) for name in map(str, frame.columns)}


def _guess(name: str, cells: pd.Series[Any], form: FileFormat) -> tuple[str, str]:
    known = cells[cells.notna()]
    seen = known.head(_LOOK)
    if _NAMED.search(name) or _NAMED.search(name.lower()):
        return "identifier", ""
    if pd.api.types.is_datetime64_any_dtype(cells.dtype):
        return "date", ""
    if seen.empty:
        return "drop", ', reason = "empty"'
    words = set(map(folded, (*YES_WORDS, *NO_WORDS)))
    is_word = seen.map(folded).isin(words)
    strange = seen[~is_word].astype("string")
    # A count is not yes or no because it is mostly 0 or 1; a note among the answers is no matter.
    if is_word.mean() >= _MOST and not text_numbers(strange, form).notna().any():
        return "yes/no", ""
    distinct = known.nunique()
    if pd.api.types.is_numeric_dtype(cells.dtype):
        return ("identifier", "") if _counts_up(known, distinct) else ("number", "")
    texts = seen.astype("string")
    if texts.str.fullmatch(r"0\d+").mean() >= 1 - _MOST and texts.str.fullmatch(r"\d+").all():
        # A number that begins with 0 is a code: of a person if most differ, else of a place.
        return ("identifier" if distinct > len(known) / 2 else "category"), ""
    readable = text_numbers(texts, form).notna()
    if readable.mean() >= _MOST:
        whole = text_numbers(known.astype("string"), form)
        return ("identifier", "") if _counts_up(whole, distinct) else ("number", "")
    if readable.mean() >= _MANY and texts[readable].nunique() > 20:
        return "number", ""  # with notes among them, which `schema check` counts
    styles = _date_styles(texts)
    if styles:
        written = _value(styles[0] if len(styles) == 1 else styles)
        return "date", "" if styles == ["ISO8601"] else f", format = {written}"
    if (
        len(known) >= 20
        and distinct >= _MOST * len(known)
        and texts.str.split().str.len().mean() < 2
    ):
        return "identifier", ""
    if texts.str.split().str.len().mean() > 4:
        return "drop", ', reason = "free text"'
    if distinct > min(_LISTABLE, max(50, 0.2 * len(known))):
        return "drop", ', reason = "too many values"'
    return "category", ""


def _date_styles(texts: pd.Series[Any]) -> list[str]:
    """Return how days are written, in one or more ways; nothing if most cells are no days.

    A further way counts if it reads a fiftieth of the cells. Of two that a cell could mean, such
    as 3/4/2025, only the commoner one is proposed.
    """
    styles: list[str] = []
    left = texts
    while len(left) >= max(1, len(texts) / 50):
        open_styles = [s for s in _DATES if not any(_ambiguous(s, one) for one in styles)]
        fits = {s: pd.to_datetime(left, format=s, errors="coerce").notna() for s in open_styles}
        style = max(open_styles, key=lambda s: int(fits[s].sum()))
        if fits[style].sum() < max(1, len(texts) / 50):
            break
        styles.append(style)
        left = left[~fits[style]]
    return styles if len(left) <= (1 - _MOST) * len(texts) else []


def _ambiguous(one: str, other: str) -> bool:
    return one == other or {one[:8], other[:8]} == {"%d/%m/%Y", "%m/%d/%Y"}


def _counts_up(values: pd.Series[Any], distinct: int) -> bool:
    """Whether whole numbers differ, but for copied rows, and are dense enough to number rows."""
    known = values.dropna().astype(float)
    if len(known) < 20 or distinct < _MOST * len(known) or (known % 1 != 0).any():
        return False
    return bool(known.max() - known.min() < 2 * len(known))


def _form(path: str, frame: pd.DataFrame, skip: int) -> FileFormat:
    """Return how the file is written: by its first line, and the way that most numbers fit."""
    place = Path(path)
    if place.suffix.lower() == ".parquet":
        return FileFormat()
    form = find_form(place, skip)
    texts = frame.head(_LOOK).astype("string").stack()
    texts = texts[texts.str.contains(r"\d")].str.replace(SIGNS, "", regex=True)
    best, most = form, -1
    for decimal, thousands in _NUMBERS:
        point, mark = re.escape(decimal), re.escape(thousands or "")
        groups = rf"|\d{{1,3}}({mark}\d{{3}})+" if thousands else ""
        fits = int(texts.str.fullmatch(rf"[+-]?(\d+{groups})({point}\d+)?").sum())
        if fits > most:
            best, most = replace(form, decimal=decimal, thousands=thousands), fits
    return best
