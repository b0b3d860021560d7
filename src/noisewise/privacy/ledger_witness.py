"""A small file beside a ledger that remembers how far the ledger was.

A ledger that was deleted, cut off or replaced by an older copy of itself is whole, and nothing in
it can tell. This second file, which nobody has a reason to copy, tells. It is written under the
ledger's lock, twice for each charge, without waiting for the disk: it is a reminder, the ledger is
the record. Before the line is written it says that one is coming, so that a line which a crash
tore can be told from one that was whole once; when the line is on the disk it says so.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from noisewise.errors import LedgerError, LedgerRolledBackError
from noisewise.files import open_regular
from noisewise.privacy.ledger_book import Book, LedgerHead

__all__ = ["Seen", "Witness"]

#: Of the file, so that a shorter text leaves nothing of a longer one.
_LENGTH = 128


@dataclass(frozen=True)
class Seen:
    """What a witness knows.

    Parameters
    ----------
    head : LedgerHead
        Where the ledger was.
    coming : int
        How long the ledger's file becomes by the lines that were being written from there on;
        0 if none were.
    """

    head: LedgerHead
    coming: int = 0


class Witness:
    """The file that remembers a ledger.

    Parameters
    ----------
    ledger : Path
    """

    def __init__(self, ledger: Path) -> None:
        place = Path(os.path.realpath(ledger))
        self.path = place.with_name(place.name + ".seen")

    def read(self) -> Seen | None:
        """Return what is known; None if there is no file, or a crash left nothing in it."""
        try:
            descriptor = open_regular(self.path, os.O_RDONLY, follow=False)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LedgerError(
                f"{str(self.path)!r}, which remembers the ledger, cannot be read: {error.strerror}"
            ) from error
        try:
            found = json.loads(os.read(descriptor, 4 * _LENGTH))
            return Seen(LedgerHead(int(found[0]), str(found[1])), int(found[2]) if found[2:] else 0)
        except (OSError, ValueError, TypeError, LookupError, RecursionError):
            return None
        finally:
            os.close(descriptor)

    def remember(self, seen: Seen) -> None:
        """Write down where the ledger stands."""
        head = seen.head
        text = json.dumps([head.entries, head.digest, *([seen.coming] if seen.coming else [])])
        # A full disk must not stop a release whose charge is safe.
        with contextlib.suppress(OSError):
            descriptor = open_regular(self.path, os.O_WRONLY | os.O_CREAT, follow=False)
            try:
                os.write(descriptor, text.ljust(_LENGTH).encode())
            finally:
                os.close(descriptor)

    def require_none(self) -> None:
        """Raise if a ledger was here that is not any more."""
        if self.read() is not None:
            raise LedgerRolledBackError(
                f"there was a ledger at {str(self.path.with_suffix(''))!r}, and it is gone: what "
                f"was spent would be forgotten. Put it back. {self._known}"
            )

    def explains(self, book: Book, size: int) -> bool:
        """Whether what follows the book, in a file of this size, was torn by a crash."""
        seen = self.read()
        return seen is not None and size <= seen.coming and book.contains(seen.head)

    def check(self, book: Book) -> None:
        """Raise unless a book continues what was seen; then remember the book."""
        seen, head = self.read(), book.head
        if seen is not None:
            try:
                book.require(seen.head)
            except LedgerRolledBackError as error:
                raise LedgerRolledBackError(f"{error} {self._known}") from None
        if seen != Seen(head):
            self.remember(Seen(head))

    @property
    def _known(self) -> str:
        return (
            f"This is known from {str(self.path)!r}; remove that file only if the ledger was begun "
            "anew, for records that no release was made of."
        )
