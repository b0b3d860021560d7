"""Reading files that others made: ordinary ones of a decent size, or none."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from noisewise.errors import StatementError

__all__ = ["read_foreign", "read_foreign_text"]

#: No statement, signature or list of signers is longer.
LARGEST = 1 << 22


def read_foreign(path: str | os.PathLike[str]) -> bytes:
    """Return what is in a file.

    Raises
    ------
    StatementError
        If it cannot be read, or is a folder, a pipe, a device (which might never end) or too long.
    """
    shown = ascii(os.fspath(path))
    try:
        # Without waiting: a pipe that nobody writes to would be waited for when it is opened.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        with os.fdopen(os.open(Path(path), flags), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise StatementError(f"{shown} is not a file; save what it gives to one")
            data = file.read(LARGEST + 1)
    except FileNotFoundError as error:
        raise StatementError(f"no file at {shown}") from error
    except OSError as error:
        raise StatementError(f"cannot read {shown}: {error.strerror}") from error
    except ValueError as error:  # a name that no file can have
        raise StatementError(f"no file can be at {shown[:60]}: {error}") from error
    if len(data) > LARGEST:
        raise StatementError(f"{shown} is longer than {LARGEST} bytes; this is something else")
    return data


def read_foreign_text(path: str | os.PathLike[str]) -> str:
    """Return what is in a file of UTF-8."""
    return decode(read_foreign(path), ascii(os.fspath(path)))


def decode(data: bytes, shown: str) -> str:
    """Return UTF-8 as text."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise StatementError(f"{shown} is not text (UTF-8)") from error
