"""Reading configuration files: every key is checked, and an error names file and key."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from noisewise.errors import MissingExtraError
from noisewise.federated.network.errors import ConfigurationError

__all__ = ["Section", "read_toml"]

_MISSING: Any = object()


def read_toml(path: Path) -> Section:
    """Return the contents of a TOML file."""
    # tomllib is part of Python from 3.11 on; tomli is the same parser for 3.10.
    name = "tomllib" if sys.version_info >= (3, 11) else "tomli"
    try:
        parser = importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError("pip install 'noisewise[federated]'") from error
    try:
        return Section(parser.loads(path.read_text("utf-8")), str(path))
    except OSError as error:
        raise ConfigurationError(f"no configuration file at {str(path)!r}") from error
    except ValueError as error:
        raise ConfigurationError(f"{str(path)!r} is not valid TOML: {error}") from error


class Section:
    """A table of a configuration file that notices wrong types and unknown keys.

    Parameters
    ----------
    values : mapping
        As parsed.
    where : str
        File and table, for messages.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.where = where
        self._values = dict(values)
        self._read: set[str] = set()

    def has(self, key: str) -> bool:
        """Whether a key is there."""
        return key in self._values

    def text(self, key: str, default: str = _MISSING) -> str:
        """Return a text."""
        value = self._get(key, default)
        if not isinstance(value, str) or not value:
            raise self._wrong(key, value, "a text in quotes")
        return value

    def number(self, key: str, default: float = _MISSING) -> float:
        """Return a number."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._wrong(key, value, "a number")
        return float(value)

    def whole(self, key: str, default: int = _MISSING, *, minimum: int = 0) -> int:
        """Return a whole number."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self._wrong(key, value, f"a whole number >= {minimum}")
        return value

    def flag(self, key: str, default: bool = _MISSING) -> bool:
        """Return true or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def choice(self, key: str, allowed: Iterable[str], default: str = _MISSING) -> str:
        """Return one of the allowed words."""
        value = self.text(key, default)
        words = tuple(allowed)
        if value not in words:
            raise self._wrong(key, value, "one of " + ", ".join(words))
        return value

    def texts(self, key: str, default: list[str] = _MISSING) -> list[str]:
        """Return a list of texts."""
        value = self._get(key, default)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(key, value, "a list of texts")
        return list(value)

    def section(self, key: str, *, optional: bool = False) -> Section:
        """Return a table."""
        value = self._get(key, {} if optional else _MISSING)
        if not isinstance(value, dict):
            raise self._wrong(key, value, f"a table [{key}]")
        return Section(value, f"{self.where} [{key}]")

    def sections(self, key: str, *, optional: bool = False) -> list[Section]:
        """Return an array of tables."""
        value = self._get(key, [] if optional else _MISSING)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self._wrong(key, value, f"tables [[{key}]]")
        return [
            Section(item, f"{self.where} [[{key}]] number {index + 1}")
            for index, item in enumerate(value)
        ]

    def names(self) -> list[str]:
        """Return all keys, which then count as known."""
        self._read.update(self._values)
        return list(self._values)

    def done(self) -> None:
        """Raise if a key was never asked for: most often it is misspelt."""
        unknown = sorted(set(self._values) - self._read)
        if unknown:
            raise ConfigurationError(f"{self.where}: unknown keys {unknown}; are they misspelt?")

    def _get(self, key: str, default: Any) -> Any:
        self._read.add(key)
        if key in self._values:
            return self._values[key]
        if default is _MISSING:
            near = difflib.get_close_matches(key, set(self._values) - self._read, 1, 0.7)
            hint = f"; is {near[0]!r} a misspelling of it?" if near else ""
            raise ConfigurationError(f"{self.where}: {key!r} is missing{hint}")
        return default

    def _wrong(self, key: str, value: Any, wanted: str) -> ConfigurationError:
        return ConfigurationError(f"{self.where}: {key} must be {wanted}, got {value!r}")
