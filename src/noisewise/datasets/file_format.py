"""How a text file holds a table: separator, decimal sign, encoding, words for missing values."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from noisewise.datasets.cells import SchemaError

__all__ = ["MISSING_WORDS", "FileFormat"]

#: What people write where nothing is known; a public list, whatever a file holds.
MISSING_WORDS = (
    *("", "na", "n/a", "n.a.", "#n/a", "<na>", "k.a.", "nan", "null", "none", "nil"),
    *("-", "--", ".", "?", "missing"),
    *("#nv", "#null!", "#value!", "#ref!", "#div/0!", "#num!"),  # of spreadsheets
)


@dataclass(frozen=True)
class FileFormat:
    """The form of a CSV file.

    Parameters
    ----------
    separator : str
        Between two cells.
    decimal : {".", ","}
        Between whole numbers and fractions. Cells in quotes may hold the separator, so it may be
        the same; the same is true of `thousands`.
    thousands : str, optional
        Between groups of three digits.
    encoding : str
        A byte order mark at the beginning is no part of the first name, whatever it is. In a file
        of UTF-8, the default, bytes that are none are read as Windows-1252.
    missing : tuple of str
        Further words that mean nothing is known, such as ``-999``, beside the usual ones
        (`MISSING_WORDS`). A word that a column lists among its values is a value there.
    skip : int
        Lines above the names of the columns, such as a title that a program exports.
    """

    separator: str = ","
    decimal: str = "."
    thousands: str | None = None
    encoding: str = "utf-8"
    missing: tuple[str, ...] = ()
    skip: int = 0

    def __post_init__(self) -> None:
        for name in ("separator", "decimal"):
            given = getattr(self, name)
            if not isinstance(given, str) or len(given) != 1:
                raise SchemaError(f"{name} must be one character, got {given!r}")
        if self.decimal not in (".", ","):
            raise SchemaError(f'decimal must be "." or ",", got {self.decimal!r}')
        if self.thousands is not None and (
            not isinstance(self.thousands, str)
            or len(self.thousands) != 1
            or self.thousands == self.decimal
        ):
            raise SchemaError(f"thousands must be one character of its own, got {self.thousands!r}")
        try:
            "".encode(self.encoding)
        except (LookupError, TypeError):
            raise SchemaError(f"encoding {self.encoding!r} is not known") from None
        listed: Any = self.missing
        if isinstance(listed, str) or not all(isinstance(word, str) for word in listed):
            raise SchemaError(
                "missing must be a list of words for missing values, such as ['NA', '-9']"
            )
        if isinstance(self.skip, bool) or not isinstance(self.skip, int) or self.skip < 0:
            raise SchemaError(
                "skip must be the number of lines above the names of the columns, such as 1, "
                f"got {self.skip!r}"
            )
        words = (word.strip().casefold() for word in self.missing)
        object.__setattr__(self, "missing", tuple(w for w in words if w not in MISSING_WORDS))

    @property
    def nothing(self) -> frozenset[str]:
        """All words that mean nothing is known, without capitals."""
        return frozenset((*MISSING_WORDS, *self.missing))

    def written(self) -> dict[str, Any]:
        """Return what differs from the default."""
        plain = FileFormat()
        found = {item.name: getattr(self, item.name) for item in fields(self)}
        changed = {key: value for key, value in found.items() if value != getattr(plain, key)}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in changed.items()}
