"""The TOML form of a schema: one line a column, written for people and checked as a whole.

Version 1 of the format is described in docs/schemas.md. A value ``"?"`` waits for a person; it is
a problem like a misspelt key, and all problems of a file are reported together.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any

from noisewise.datasets.cells import SchemaError
from noisewise.datasets.columns import (
    Binary,
    Categorical,
    CodeRanges,
    Column,
    Drop,
    Numeric,
    Ordinal,
)
from noisewise.datasets.columns_by_rule import NO_WORDS, YES_WORDS, Date, Identifier, YesNo
from noisewise.datasets.file_format import FileFormat
from noisewise.datasets.toml import parse_toml

if TYPE_CHECKING:
    from noisewise.datasets.schema import Schema

__all__ = ["KINDS", "VERSION", "WAITING", "SchemaProblemsError", "from_text", "to_text"]

VERSION = 1
#: Stands where a person must write something.
WAITING = "?"

#: The kinds of columns of a file and the keys that each may have.
KINDS: dict[str, tuple[str, ...]] = {
    "number": ("range", "transform", "missing", "fill"),
    "category": ("values", "other", "missing", "ignore_case"),
    "ordered": ("values", "missing"),
    "yes/no": ("yes", "no", "missing"),
    "date": ("range", "format", "missing"),
    "codes": ("groups",),
    "identifier": ("reason",),
    "drop": ("reason",),
}
_TARGET_KINDS = ("number", "category", "yes/no")
_TOP = ("noisewise_schema", "source", "scale", "unit", "target", "file", "columns")
_WHAT = {
    "range": "the lowest and the highest possible value, known without looking at the rows",
    "values": "the possible values, from the form or code book",
    "groups": "the groups and their ranges of codes",
    "format": "how days are written, such as %d.%m.%Y",
    "source": "where ranges and categories come from",
    "yes": "the words for yes",
    "no": "the words for no",
    "name": "the name of the target column",
    "kind": "what the column holds",
}


class SchemaProblemsError(SchemaError):
    """Everything that is wrong with a schema file, at once."""

    def __init__(self, where: str, found: list[str]) -> None:
        self.found = tuple(found)
        count = f"{len(found)} problem{'s' if len(found) > 1 else ''}"
        super().__init__(f"{where} has {count}:\n" + "\n".join(f"  - {one}" for one in found))


class _WrongError(Exception):
    """One problem of one entry."""


def from_text(text: str, where: str = "the schema") -> dict[str, Any]:
    """Return the arguments of :class:`Schema`.

    Raises
    ------
    SchemaProblemsError
        With all that is wrong.
    """
    try:
        stored = parse_toml(text.removeprefix("\ufeff"))
    except ValueError as error:
        problem = f"it is not TOML: {error}"
        if "overwrite" in problem:
            problem += ": a column or key of this name stands above already"
        if where.lower().endswith((".csv", ".tsv", ".parquet")):
            problem = (
                "it is a table; a schema file is needed here: noisewise schema draft writes one"
            )
        raise SchemaProblemsError(where, [problem]) from None
    version = stored.get("noisewise_schema")
    if version != VERSION:
        raise SchemaProblemsError(
            where,
            [
                f"noisewise_schema must be {VERSION}, the version of the format that this release "
                f"reads, got {version!r}"
            ],
        )
    found: list[str] = []

    def tried(what: str, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except (_WrongError, SchemaError, ValueError, TypeError) as error:
            found.extend(f"{what}: {line}" for line in str(error).splitlines())
            return None

    found += [f"{key!r} is no part of a schema; parts: {_listed(_TOP)}" for key in stored
              if key not in _TOP]  # fmt: skip
    columns: dict[str, Column] = {}
    given = stored.get("columns", {})
    if not isinstance(given, dict) or not given:
        found.append("[columns] needs at least one line: name = { kind = ... }")
        given = {}
    for name, entry in given.items():
        columns[name] = tried(f"column {name!r}", partial(_column, entry, tuple(KINDS)))
    target = tried("[target]", lambda: _target(stored.get("target")))
    source = tried("source", lambda: _text(stored, "source", "declared by the user"))
    unit = tried("unit", lambda: _text(stored, "unit", None))
    file = tried("[file]", lambda: FileFormat(**_table(stored.get("file", {}))))
    scale = stored.get("scale", "symmetric")
    if target is not None and target.get("target") in columns:
        found.append(f"column {target['target']!r} is also the [target]; remove it from [columns]")
    if unit is not None and not isinstance(columns.get(unit) or Drop(), Drop):
        found.append(f'column {unit!r} names the unit, so its kind must be "identifier"')
    if not found and not any(column.norm_squared for column in columns.values()):
        found.append("[columns] has nothing to learn from: all are dropped or identifiers")
    if found:
        raise SchemaProblemsError(where, found)
    return {
        "columns": columns, "scale": scale, "source": source, "unit": unit, "file": file,
        **(target or {}),
    }  # fmt: skip


def _text(stored: Mapping[str, Any], key: str, default: str | None) -> str | None:
    value = stored.get(key, default)
    if value == WAITING:
        raise _WrongError(f"still to be filled in: {_WHAT[key]}")
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise _WrongError(f"must be text, got {value!r}")
    return value


def _table(entry: Any) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise _WrongError("must be a table of keys and values")
    return entry


def _target(entry: Any) -> dict[str, Any]:
    if entry is None:
        return {}
    entry = dict(_table(entry))
    name = entry.pop("name", None)
    lines = [] if isinstance(name, str) and name else [f"needs a name: {_WHAT['name']}"]
    column: Column | None = None
    try:
        column = _column(entry, _TARGET_KINDS)
    except (_WrongError, SchemaError) as error:
        lines += str(error).splitlines()
    if lines or column is None:
        raise _WrongError("\n".join(lines))
    if isinstance(column, Numeric):
        return {"target": name, "target_range": Numeric(column.low, column.high, column.transform)}
    if isinstance(column, YesNo):
        return {"target": name, "classes": (column.no[0], column.yes[0]), "target_rule": column}
    assert isinstance(column, Categorical)
    return {"target": name, "classes": column.values, "target_rule": column}


def _column(entry: Any, kinds: tuple[str, ...]) -> Column:
    entry = dict(_table(entry))
    kind = entry.pop("kind", WAITING)
    if kind not in kinds:
        told = "still to be filled in" if kind == WAITING else f"kind {kind!r} is not known"
        raise _WrongError(f"{told}: kind must be one of {_listed(kinds)}")
    lines = [f"{key!r} is no key of kind {kind!r}; keys: {_listed(KINDS[kind])}" for key in entry
             if key not in KINDS[kind]]  # fmt: skip
    lines += [f"{key} still to be filled in: {_WHAT.get(key, 'a public value')}"
              for key, value in entry.items() if value == WAITING]  # fmt: skip
    needed = {"number": "range", "category": "values", "ordered": "values", "date": "range",
              "codes": "groups"}.get(kind)  # fmt: skip
    if needed is not None and needed not in entry:
        lines.append(f"{needed} is needed: {_WHAT[needed]}")
    if lines:
        raise _WrongError("\n".join(lines))
    made: Column = _MAKERS[kind](**entry)
    return made


def _range(given: Any) -> tuple[Any, Any]:
    if not isinstance(given, list) or len(given) != 2:
        raise _WrongError(f"range must be [lowest, highest], got {given!r}")
    return given[0], given[1]


def _number(range: Any, missing: str | None = None, **more: Any) -> Numeric:
    low, high = _range(range)
    for end in (low, high):
        if isinstance(end, bool) or not isinstance(end, (int, float)):
            raise _WrongError(f"range must be two numbers such as [0, 120], got {end!r}")
    if missing is None:
        missing = "zero" if "fill" in more else "indicator"
    return Numeric(low, high, missing=missing, **more)


def _date(range: Any, missing: str = "indicator", **more: Any) -> Date:
    low, high = _range(range)
    if any(not isinstance(end, (str, date)) for end in (low, high)):
        raise _WrongError(f"range must be two days such as [2010-01-01, 2030-12-31], got {range!r}")
    return Date(low, high, missing=missing, **more)


def _category(
    values: Any, missing: bool = True, ignore_case: bool = True, **more: Any
) -> Categorical:
    return Categorical(_values(values), missing=missing, ignore_case=ignore_case, **more)


def _values(given: Any) -> Any:
    if not isinstance(given, list) or not given:
        raise _WrongError(f"values must be a list such as ['north', 'south'], got {given!r}")
    return given


def _words(given: Any) -> tuple[Any, ...]:
    return (given,) if isinstance(given, (str, int)) else tuple(_values(given))


def _yes_no(yes: Any = YES_WORDS, no: Any = NO_WORDS, missing: str = "indicator") -> YesNo:
    if (yes is YES_WORDS) != (no is NO_WORDS):
        raise _WrongError("give the words for yes and for no, or neither for the usual ones")
    yes, no = (given if isinstance(given, tuple) else _words(given) for given in (yes, no))
    return YesNo(yes, no, missing)


def _codes(groups: Any) -> CodeRanges:
    return CodeRanges(tuple((label, tuple(map(tuple, spans)))
                            for label, spans in _table(groups).items()))  # fmt: skip


_MAKERS: dict[str, Callable[..., Column]] = {
    "number": _number,
    "category": _category,
    "ordered": lambda values, missing="indicator": Ordinal(_values(values), missing=missing),
    "yes/no": _yes_no,
    "date": _date,
    "codes": _codes,
    "identifier": Identifier,
    "drop": Drop,
}


# Writing


def to_text(schema: Schema) -> str:
    """Return a finished schema as TOML; reading it again gives the same encoding."""
    if not schema.sound:
        raise SchemaError(f"a schema that is not sound has no file: {schema.reason}")
    lines = [f"noisewise_schema = {VERSION}", f"source = {_value(schema.source)}"]
    if schema.scale != "symmetric":
        lines.append(f"scale = {_value(schema.scale)}")
    if schema.unit is not None:
        lines.append(f"unit = {_value(schema.unit)}")
    if schema.target is not None:
        lines += ["", "[target]", f"name = {_value(schema.target)}"]
        lines += [f"{key} = {_value(value)}" for key, value in _target_entry(schema).items()]
    plain = schema.file.written()
    if plain:
        lines += ["", "[file]", *(f"{key} = {_value(value)}" for key, value in plain.items())]
    lines += ["", "[columns]"]
    lines += [f"{_value(name)} = {_value(_entry(column))}"
              for name, column in schema.columns.items()]  # fmt: skip
    return "\n".join(lines) + "\n"


def _target_entry(schema: Schema) -> dict[str, Any]:
    if schema.target_range is not None:
        entry = _entry(schema.target_range)
        entry.pop("missing", None)
        return entry
    if schema.target_rule is not None:
        return _entry(schema.target_rule)
    values = list(schema.classes or ())
    return {"kind": "category", "values": values, "ignore_case": False}


def _entry(column: Column) -> dict[str, Any]:
    entry: dict[str, Any]
    if isinstance(column, Numeric):
        entry = {"kind": "number", "range": [column.low, column.high]}
        if column.transform is not None:
            entry["transform"] = column.transform
        if column.fill is not None:
            return {**entry, "fill": column.fill}
        return entry if column.missing == "indicator" else {**entry, "missing": column.missing}
    if isinstance(column, Categorical):
        entry = {"kind": "category", "values": list(column.values)}
        given = {"other": column.other, "missing": column.missing,
                 "ignore_case": column.ignore_case}  # fmt: skip
        return entry | {key: value for key, value in given.items() if not value}
    if isinstance(column, Ordinal):
        entry = {"kind": "ordered", "values": list(column.values)}
        return entry if column.missing == "indicator" else {**entry, "missing": column.missing}
    if isinstance(column, Binary):
        low, high = column.values
        return {"kind": "yes/no", "yes": [high], "no": [low], "missing": "zero"}
    if isinstance(column, YesNo):
        entry = {"kind": "yes/no"}
        if (column.yes, column.no) != (YES_WORDS, NO_WORDS):
            entry |= {"yes": list(column.yes), "no": list(column.no)}
        return entry if column.missing == "indicator" else {**entry, "missing": column.missing}
    if isinstance(column, Date):
        entry = {"kind": "date", "range": [column.low, column.high]}
        if column.format is not None:
            formats = column.format
            entry["format"] = list(formats) if isinstance(formats, tuple) else formats
        return entry if column.missing == "indicator" else {**entry, "missing": column.missing}
    if isinstance(column, CodeRanges):
        groups = {label: [list(span) for span in spans] for label, spans in column.groups}
        return {"kind": "codes", "groups": groups}
    assert isinstance(column, Drop)
    kind = "identifier" if isinstance(column, Identifier) else "drop"
    return {"kind": kind, **({"reason": column.reason} if column.reason else {})}


def _value(value: Any) -> str:
    """Return a value as TOML on one line."""
    if isinstance(value, dict):
        inside = ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items())
        return f"{{ {inside} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)
    if isinstance(value, int):
        return repr(value)
    # A basic string of TOML is a string of JSON, but for the character DEL.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(key: str) -> str:
    return key if key.replace("_", "").isalnum() and key.isascii() else _value(key)


def _listed(words: tuple[str, ...]) -> str:
    return ", ".join(words)
