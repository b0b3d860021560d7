"""The JSON form of a statement: its fields, its published schema, its digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from noisewise.errors import StatementError

__all__ = ["SCHEMA_VERSION", "check_shape", "digest", "statement_schema"]

SCHEMA_VERSION = 1

#: The fields of the JSON form, all required, nothing else allowed.
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


def check_shape(fields: Any) -> None:
    """Refuse what is not the JSON form of a statement."""
    if not isinstance(fields, dict) or fields.get("format") != "noisewise-privacy-statement":
        raise StatementError("this is not a noisewise privacy statement")
    if fields.get("version") != SCHEMA_VERSION:
        raise StatementError(
            f"version must be {SCHEMA_VERSION}, got {fields.get('version')!r}; "
            "a newer noisewise may read it"
        )
    missing = [name for name in _FIELDS if name not in fields]
    unknown = [name for name in fields if name not in _FIELDS]
    if missing or unknown:
        raise StatementError(f"missing fields: {missing}; unknown fields: {unknown}")
    texts = ("unit", "mechanism", "sampler", "randomness", "relation", "accountant", "digest")
    wrong = [name for name in texts if not isinstance(fields[name], str)]
    wrong += [name for name in ("history", "assumptions") if not isinstance(fields[name], list)]
    wrong += [name for name in ("versions",) if not isinstance(fields[name], dict)]
    if wrong:
        raise StatementError(f"fields of the wrong type: {wrong}")
