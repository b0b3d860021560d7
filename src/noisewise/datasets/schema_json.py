"""The JSON form of a schema: versioned, complete, and strict when it is read."""

from __future__ import annotations

import json
from dataclasses import fields
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
from noisewise.datasets.columns_by_rule import Date, Identifier, YesNo
from noisewise.datasets.file_format import FileFormat

if TYPE_CHECKING:
    from noisewise.datasets.schema import Schema

__all__ = ["VERSION", "from_text", "to_dict"]

VERSION = 1
_KINDS: dict[str, type[Column]] = {
    kind.kind: kind
    for kind in (
        Binary, Categorical, CodeRanges, Date, Drop, Identifier, Numeric, Ordinal, YesNo,
    )
}  # fmt: skip
_KEYS = ("columns", "target", "classes", "target_range", "scale", "source", "sound", "reason")
#: Keys of columns and of the whole that are left out where they say nothing.
_LATER = {"fill": None, "ignore_case": False}
_MORE = ("unit", "target_rule", "file")


def to_dict(schema: Schema) -> dict[str, Any]:
    """Return plain lists, numbers and text."""
    rule = schema.target_rule
    more = {
        "unit": schema.unit,
        "target_rule": None if rule is None else _column(rule),
        "file": schema.file.written() or None,
    }
    return {
        "noisewise_schema": VERSION,
        "target": schema.target,
        "classes": None if schema.classes is None else list(schema.classes),
        "target_range": None if schema.target_range is None else _column(schema.target_range),
        "scale": schema.scale,
        "source": schema.source,
        "sound": schema.sound,
        "reason": schema.reason,
        **{key: value for key, value in more.items() if value is not None},
        "columns": [{"name": name, **_column(col)} for name, col in schema.columns.items()],
    }


def from_text(text: str) -> dict[str, Any]:
    """Return the arguments of :class:`Schema`."""
    stored = _read_object(text)
    stored["columns"] = _read_columns(stored["columns"])
    if stored["classes"] is not None:
        stored["classes"] = tuple(_list(stored["classes"], "classes"))
    if stored["target_range"] is not None:
        target_range = _read_column(stored["target_range"], "target_range")
        if not isinstance(target_range, Numeric):
            raise SchemaError("target_range must be of kind numeric")
        stored["target_range"] = target_range
    if stored.get("target_rule") is not None:
        stored["target_rule"] = _read_column(stored["target_rule"], "target_rule")
    if "file" in stored:
        if not isinstance(stored["file"], dict):
            raise SchemaError("file must be an object")
        try:
            stored["file"] = FileFormat(**{k: _tuples(v) for k, v in stored["file"].items()})
        except TypeError as error:
            raise SchemaError(f"file: {error}") from error
    return stored


def _read_object(text: str) -> dict[str, Any]:
    """The keys of a schema, all of them and no others."""
    try:
        stored = json.loads(text)
    except json.JSONDecodeError as error:
        raise SchemaError(f"a schema must be JSON: {error}") from error
    if not isinstance(stored, dict) or "noisewise_schema" not in stored:
        raise SchemaError('a schema in JSON has the key "noisewise_schema" with its version')
    version = stored.pop("noisewise_schema")
    if version != VERSION:
        raise SchemaError(
            f"schema version {version!r} is not known to this release, which reads {VERSION}; "
            "update noisewise or write the schema again"
        )
    if set(stored) - set(_MORE) != set(_KEYS):
        wrong = ", ".join(sorted((set(stored) - set(_MORE)) ^ set(_KEYS)))
        raise SchemaError(f"a schema in JSON has the keys {', '.join(_KEYS)}; wrong: {wrong}")
    if not isinstance(stored["sound"], bool):
        raise SchemaError('"sound" must be true or false')
    return stored


def _read_columns(entries: Any) -> dict[str, Column]:
    columns: dict[str, Column] = {}
    for entry in _list(entries, "columns"):
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise SchemaError("each column in JSON is an object with a name")
        name = entry["name"]
        if name in columns:
            raise SchemaError(f"column {name!r} occurs twice")
        columns[name] = _read_column({k: v for k, v in entry.items() if k != "name"}, name)
    return columns


def _column(column: Column) -> dict[str, Any]:
    values = {item.name: getattr(column, item.name) for item in fields(column)}  # type: ignore[arg-type]
    for key, plain in _LATER.items():
        if key in values and values[key] == plain:
            del values[key]  # so that files read the same as before there was such a key
    return {"kind": column.kind, **{key: _lists(value) for key, value in values.items()}}


def _lists(value: Any) -> Any:
    return [_lists(item) for item in value] if isinstance(value, tuple) else value


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _read_column(entry: Any, name: str) -> Column:
    if not isinstance(entry, dict) or entry.get("kind") not in _KINDS:
        kinds = ", ".join(sorted(_KINDS))
        raise SchemaError(f"column {name!r} needs a kind, one of {kinds}")
    kind = _KINDS[entry["kind"]]
    known = {item.name for item in fields(kind)}  # type: ignore[arg-type]
    values = {key: _tuples(value) for key, value in entry.items() if key != "kind"}
    strange = set(values) - known
    if strange:
        raise SchemaError(f"column {name!r} of kind {kind.kind} has no {sorted(strange)[0]!r}")
    try:
        return kind(**values)
    except SchemaError:
        raise
    except (TypeError, ValueError) as error:
        raise SchemaError(f"column {name!r}: {error}") from error


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise SchemaError(f"{name} must be a list")
    return value
