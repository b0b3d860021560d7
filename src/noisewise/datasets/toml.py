"""TOML, by the parser that this Python has."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

__all__ = ["parse_toml"]


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text; what is none raises a ValueError."""
    # tomllib is part of Python from 3.11 on; tomli is the same parser for 3.10.
    parser = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    parsed: dict[str, Any] = parser.loads(text)
    return parsed
