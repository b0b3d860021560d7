"""A small file beside a ledger that remembers how far the ledger was.

A checkpoint remembers the ledger that belongs to it, so a ledger that is older than its checkpoint
is noticed. If both are replaced by older copies they fit together, and the charges in between
would be forgotten. This third file, which nobody has a reason to copy, tells. It is written after
each charge without waiting for the disk: it is a reminder, the ledger is the record.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from noisewise.errors import LedgerRolledBackError
from noisewise.privacy import Ledger, LedgerHead

__all__ = ["Witness"]

#: Of the file, so that a shorter text leaves nothing of a longer one.
_LENGTH = 128


class Witness:
    """What training saw last of a ledger.

    Parameters
    ----------
    ledger : Ledger

    Raises
    ------
    LedgerRolledBackError
        If the ledger is not a continuation of what was seen of it.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        place = Path(os.path.realpath(ledger.path))
        self._path = place.with_name(place.name + ".seen")
        self._file: int | None = None
        seen = self._read()
        if seen is None:
            return
        try:
            ledger.require(seen)
        except LedgerRolledBackError as error:
            raise LedgerRolledBackError(
                f"{error} This is known from {str(self._path)!r}; remove that file only if the "
                "ledger was begun anew, for records that no release was made of."
            ) from None

    def remember(self) -> None:
        """Write down where the ledger stands."""
        head = self._ledger.head()
        text = json.dumps([head.entries, head.digest]).ljust(_LENGTH)
        # A full disk must not stop a run whose charge is safe.
        with contextlib.suppress(OSError):
            if self._file is None:
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
            os.lseek(self._file, 0, os.SEEK_SET)
            os.write(self._file, text.encode())

    def close(self) -> None:
        """Release the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _read(self) -> LedgerHead | None:
        try:
            entries, digest = json.loads(self._path.read_text("utf-8"))
            return LedgerHead(int(entries), str(digest))
        except (OSError, ValueError, TypeError):
            return None  # there is none, or a crash cut it off
