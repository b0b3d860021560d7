"""The file of a ledger: held, read up to its end and written in one act, by one at a time."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noisewise.errors import LedgerError
from noisewise.files import locked, private_file, process_guard, replace_file
from noisewise.privacy.ledger_book import Book, Charge, Mark, seal
from noisewise.privacy.ledger_witness import Seen, Witness

__all__ = ["Act", "LedgerFile", "create_file"]


def create_file(path: Path, header: dict[str, Any]) -> None:
    """Begin a file with this header, unless there is one."""
    if not path.parent.is_dir():
        raise LedgerError(f"no folder at {str(path.parent)!r} for the ledger {path.name!r}")
    path = Path(os.path.realpath(path))  # else a link would be replaced, and not what it names
    if not path.exists():
        Witness(path).require_none()
    with _legible(path), locked(path, create=True) as descriptor:
        if os.fstat(descriptor).st_size:
            raise LedgerError(
                f"{str(path)!r} exists. Go on with it (--ledger, or Ledger.open), so that what was "
                "spent stays counted; start a new ledger only for data that none describes yet."
            )
        Witness(path).require_none()
        # The header must be whole or absent, so it is written aside and renamed. Whoever waits
        # for the empty file notices that the name leads elsewhere, and looks again.
        replace_file(path, seal(header, previous="")[0])


@dataclass(frozen=True)
class Act:
    """The right to decide from a book that is up to date, and to continue it.

    Parameters
    ----------
    book : Book
    file : LedgerFile
    descriptor : int
    """

    book: Book
    file: LedgerFile
    descriptor: int

    def append(self, charges: Sequence[Charge | Mark]) -> None:
        """Write lines; they are on the disk when this returns, or not charged if it raises."""
        lines, checksum = [], self.book.head.digest
        for sequence, charge in enumerate(charges, start=len(self.book.checksums)):
            line, checksum = seal(charge.to_dict(sequence), checksum)
            lines.append(line)
        data = b"".join(lines)
        before, witness = self.book.head, self.file.witness
        witness.remember(Seen(before, coming=self.book.size + len(data)))
        try:
            os.lseek(self.descriptor, self.book.size, os.SEEK_SET)
            written = os.write(self.descriptor, data)
            if written != len(data):
                raise OSError(f"only {written} of {len(data)} bytes were written")
            os.fsync(self.descriptor)
        except OSError as error:
            # Not durable, so not charged, so the caller must not release: undo what arrived.
            self._undo()
            raise LedgerError(
                f"the charge could not be written to {str(self.file.path)!r} ({error}); "
                "do not release the result, free some space and try again"
            ) from error
        self.book.extend(data)
        witness.remember(Seen(self.book.head))

    def settle(self) -> None:
        """Make sure that what was read is on the disk: its writer may have died before that."""
        os.fsync(self.descriptor)

    def _undo(self) -> None:
        try:
            os.ftruncate(self.descriptor, self.book.size)
            os.fsync(self.descriptor)
        except OSError:
            self.file.close()  # who opens it again sees what is there
        else:
            self.file.witness.remember(Seen(self.book.head))


class LedgerFile:
    """An existing ledger file and what is known of it.

    Parameters
    ----------
    path : Path
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # A later change of the working folder must lead to no other file.
        self.place = Path(os.path.abspath(path))
        self.witness = Witness(self.place)
        self._process = os.getpid()
        self._mutex = threading.RLock()
        self._closed = self._acting = False
        self._inode = -1
        self._book = Book(path)
        self.read()

    @property
    def header(self) -> dict[str, Any]:
        """The first line, which never changes."""
        return self._book.header

    def read(self) -> Book:
        """Return what the file says now; if closed, what it said last."""
        if not self._closed:
            with self.act():
                pass
        return self._book

    @contextlib.contextmanager
    def act(self) -> Iterator[Act]:
        """Hold the file, with everything in it read."""
        with self._own_mutex():
            if self._closed:
                raise LedgerError("this ledger is closed; open it again with Ledger.open")
            if self._acting:
                raise LedgerError(
                    "this ledger is in the middle of a charge that was interrupted, e.g. by a "
                    "signal, to make this one; charge after it"
                )
            self._acting = True
            try:
                with _legible(self.path), locked(self.place) as descriptor:
                    self._catch_up(descriptor)
                    yield Act(self._book, self, descriptor)
            finally:
                self._acting = False

    def close(self) -> None:
        """Act no more."""
        self._closed = True

    def _own_mutex(self) -> contextlib.AbstractContextManager[Any]:
        with process_guard:
            if self._process != os.getpid():
                # A forked child: the mutex may be held, and the book half written, by a thread
                # that does not exist here. Only the book's hashes are relied upon.
                self._process, self._mutex = os.getpid(), threading.RLock()
                self._inode, self._acting = -1, False
            return self._mutex

    def _catch_up(self, descriptor: int) -> None:
        """Read what was written since; notice if what was known is not there any more."""
        found, book = os.fstat(descriptor), self._book
        start = book.size - len(book.last)
        if found.st_ino == self._inode and book.last == _read(descriptor, start, book.size):
            book.extend(_read(descriptor, book.size, found.st_size))
            self._mend(book, descriptor, found.st_size)
        else:
            book = Book(self.path)
            book.extend(_read(descriptor, 0, found.st_size))
            private_file(self.place)  # now that it is known to be a ledger
            if self._book.checksums:
                book.require(self._book.head)
            self._mend(book, descriptor, found.st_size)
            self.witness.check(book)
            self._book, self._inode = book, found.st_ino

    def _mend(self, book: Book, descriptor: int, size: int) -> None:
        """Repair what a crash leaves: a line that was never whole, or one without its newline.

        A line may be removed only if it is known that its writer died while writing it, before
        anything was released. That a line cannot be read does not say so.
        """
        if book.size == size:
            return
        if book.size > size:
            os.lseek(descriptor, size, os.SEEK_SET)
            os.write(descriptor, b"\n")
        elif self.witness.explains(book, size):
            os.ftruncate(descriptor, book.size)
        else:
            raise book.damaged()
        os.fsync(descriptor)


def _read(descriptor: int, start: int, end: int) -> bytes:
    os.lseek(descriptor, start, os.SEEK_SET)
    parts = []
    while start < end and (part := os.read(descriptor, min(end - start, 1 << 24))):
        parts.append(part)
        start += len(part)
    return b"".join(parts)


@contextlib.contextmanager
def _legible(path: Path) -> Iterator[None]:
    """Say what the system refuses in terms of the ledger."""
    try:
        yield
    except FileNotFoundError as error:
        raise LedgerError(
            f"no ledger at {str(path)!r}. If there was one, put it back; start one for data that "
            "none describes yet with noisewise ledger create, or Ledger.create."
        ) from error
    except TimeoutError as error:
        raise LedgerError(
            f"another process has held {str(path)!r} for minutes. Look for one that hangs and stop "
            "it; nothing was charged."
        ) from error
    except OSError as error:
        raise LedgerError(f"{str(path)!r} cannot be used as a ledger: {error.strerror}") from error
