"""The JSON form of a statement: its fields, its published schema, its digest."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any

from noisewise.errors import StatementError
from noisewise.privacy.statement_texts import text_problem

__all__ = ["SCHEMA_VERSION", "check_shape", "digest", "parse", "shorten", "statement_schema"]

#: 2: the assumptions begin with the premises of every statement. Of version 1, which had none, it
#: cannot be told whether its assumptions were emptied.
SCHEMA_VERSION = 2

#: What derives the numbers; `versions` names all of it.
SOFTWARE = ("noisewise", "dp-accounting", "python")

#: The one field that not every statement has: one for rows of units, and no other.
_OPTIONAL = "unit_rows"

#: The other fields of the JSON form, all required, nothing else allowed.
_FIELDS = (
    "accountant",
    "assumptions",
    "delta",
    "digest",
    "epsilon",
    "format",
    "history",
    "mechanism",
    "noise_multiplier",
    "randomness",
    "relation",
    "sample_rate",
    "sampler",
    "steps",
    "unit",
    "version",
    "versions",
)


def digest(content: Mapping[str, Any]) -> str:
    """SHA-256 of a canonical form; it detects changes, it does not authenticate."""
    text = json.dumps(
        content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return hashlib.sha256(text.encode()).hexdigest()


def statement_schema() -> dict[str, Any]:
    """Return the published JSON Schema of statements."""
    text = resources.files("noisewise.privacy").joinpath("statement.schema.json").read_text("utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def parse(text: str) -> Any:
    """Read JSON strictly: one meaning for every reader, or none.

    Raises
    ------
    StatementError
        Also if a name occurs twice in one object, of which readers take one or the other, and
        if a number is none that a float can hold.
    """
    try:
        return json.loads(
            text, object_pairs_hook=_unique, parse_constant=_no_number, parse_float=_finite
        )
    except RecursionError as error:
        raise StatementError("not a statement: its JSON is nested too deeply") from error
    except ValueError as error:  # JSONDecodeError, or an integer of thousands of digits
        raise StatementError(f"not JSON: {error}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise StatementError(f"the field {shorten(name)} occurs twice; which one is meant?")
        fields[name] = value
    return fields


def _no_number(name: str) -> Any:
    raise StatementError(f"{name} is not a number")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise StatementError(f"{shorten(text)} is more than a float can hold")
    return number


def shorten(value: Any) -> str:
    """Show a value of a foreign file in a message, and not much of it."""
    try:
        shown = repr(value[:100] if isinstance(value, str) else value)
    except RecursionError:
        return "something nested deeply"
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def check_shape(fields: Any) -> None:
    """Refuse what is not the JSON form of a statement: other fields, other types, empty texts."""
    if not isinstance(fields, dict) or fields.get("format") != "noisewise-privacy-statement":
        raise StatementError("this is not a noisewise privacy statement")
    if type(fields.get("version")) is not int or fields["version"] != SCHEMA_VERSION:
        raise StatementError(
            f"version must be {SCHEMA_VERSION}, got {shorten(fields.get('version'))}. A newer one "
            "may be read by a newer noisewise; one of version 1 does not say what every statement "
            "assumes, so ask its author to derive it again."
        )
    missing = [name for name in _FIELDS if name not in fields]
    unknown = [shorten(name) for name in fields if name not in (*_FIELDS, _OPTIONAL)][:5]
    if missing or unknown:
        raise StatementError(f"missing fields: {missing}; unknown fields: {unknown}")
    texts = ("unit", "mechanism", "sampler", "randomness", "relation", "accountant", "digest")
    wrong = [name for name in texts if not isinstance(fields[name], str)]
    wrong += [name for name in ("history", "assumptions") if not isinstance(fields[name], list)]
    wrong += [name for name in ("versions",) if not isinstance(fields[name], dict)]
    if not wrong:
        wrong += [name for name in ("assumptions",) if not _all_texts(fields[name])]
        wrong += [name for name in ("versions",) if not _all_texts(fields[name].values())]
        wrong += [
            name for name in ("history",) if not all(isinstance(e, dict) for e in fields[name])
        ]
    if wrong:
        raise StatementError(f"fields of the wrong type: {wrong}")
    for name in (*texts, "versions", "assumptions"):
        _check_said(name, fields[name])
    if left_out := [name for name in SOFTWARE if name not in fields["versions"]]:
        raise StatementError(
            f"versions does not say which {', '.join(left_out)} derived the numbers; ask the "
            "author of the statement to derive it again."
        )


def _all_texts(values: Iterable[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _check_said(name: str, value: Any) -> None:
    """Refuse a field that is empty, also in the eyes of a reader."""
    texts = [value] if isinstance(value, str) else [*value]
    texts += value.values() if isinstance(value, dict) else ()
    problems = [problem for text in texts if (problem := text_problem(text)) is not None]
    if not texts or problems:
        problem = problems[0] if problems else "is empty"
        raise StatementError(
            f"{name} {problem}. A guarantee without it means nothing; ask the author of the "
            "statement to derive it again."
        )
