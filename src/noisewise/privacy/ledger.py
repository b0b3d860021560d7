"""A durable record of what was spent, written before anything is released.

One append-only file of JSON lines. Each line carries the SHA-256 of its content
and of the line before it, so a change anywhere is seen. :meth:`Ledger.charge`
returns only after the line has reached the disk (``fsync``): a result computed
after it returns can never be missing from the ledger, whenever the process dies.
A last line that was cut off by a crash belongs to a charge whose result was
never released; it is removed when the ledger is opened again.

Only one process may hold a ledger (advisory file lock; a forked child does not
inherit the right to charge).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from filelock import FileLock, Timeout

from noisewise.errors import BudgetExceededError, LedgerError
from noisewise.privacy import _validate
from noisewise.privacy._durable import replace_file
from noisewise.privacy.accounting import ACCOUNTANTS, epsilon_of, max_count
from noisewise.privacy.events import (
    Event,
    History,
    as_history,
    event_from_dict,
    event_to_dict,
    simplify,
    with_count,
)
from noisewise.privacy.relation import ADD_REMOVE, Relation
from noisewise.privacy.statement import Statement, round_up

__all__ = ["Ledger"]

_FORMAT = "noisewise-privacy-ledger"
_VERSION = 1


class Ledger:
    """An append-only file of charges against one dataset.

    Open with :meth:`create` or :meth:`open` and use it as a context manager.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from noisewise.privacy import Laplace
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "hospital.ledger"
    >>> with Ledger.create(path, epsilon=1.0, delta=1e-6) as ledger:
    ...     ledger.charge(Laplace(2.0), note="mean age")
    ...     ledger.spent() <= 0.5
    True
    """

    def __init__(self, path: Path, lock: FileLock, lines: list[dict[str, Any]], last: str) -> None:
        self.path = path
        self._lock = lock
        self._process = os.getpid()
        self._last = last
        self._header = lines[0]
        self._entries = [_entry(line) for line in lines[1:]]
        self._history = simplify(event for event, _ in self._entries)
        self._sequence = len(lines)
        self._allowance: tuple[Event, int] | None = None
        self._file = path.open("ab", buffering=0)

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        epsilon: float | None = None,
        delta: float = 0.0,
        relation: Relation | str = ADD_REMOVE,
        accountant: str = "pld",
        unit: str = "one record",
    ) -> Ledger:
        """Start a ledger, optionally with a budget that charges may not exceed.

        Raises
        ------
        LedgerError
            If the file exists: what was spent before must not be forgotten.
        """
        header = {
            "format": _FORMAT,
            "version": _VERSION,
            "epsilon": None if epsilon is None else _validate.positive("epsilon", epsilon),
            "delta": _validate.probability("delta", delta, zero=True, one=False),
            "relation": Relation.of(relation).name,
            "accountant": _validate.choice("accountant", accountant, ACCOUNTANTS),
            "unit": unit,
        }
        target = Path(path)
        lock = _acquire(target)
        try:
            if target.exists() and target.read_bytes():
                raise LedgerError(
                    f"{str(target)!r} exists. Continue it with Ledger.open, so that what was spent "
                    "stays counted; start a new ledger only for data that none describes yet."
                )
            line, checksum = _seal(header, previous="")
            # The header must be whole or absent, so it is written aside and renamed.
            replace_file(target, line)
            return cls(target, lock, [header], checksum)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Ledger:
        """Continue an existing ledger, repairing a last line that a crash cut off.

        Raises
        ------
        LedgerError
            If there is none, another process holds it, or it was damaged.
        """
        target = Path(path)
        if not target.exists():
            raise LedgerError(f"no ledger at {str(target)!r}; start one with Ledger.create")
        lock = _acquire(target)
        try:
            lines, checksum, size = _read(target)
            if size < target.stat().st_size:
                with target.open("r+b") as file:
                    file.truncate(size)
                    os.fsync(file.fileno())
            return cls(target, lock, lines, checksum)
        except BaseException:
            lock.release()
            raise

    @property
    def relation(self) -> Relation:
        """Relation under which everything here is accounted."""
        return Relation(self._header["relation"])

    @property
    def accountant(self) -> str:
        """Accountant that decides whether a charge fits the budget."""
        return str(self._header["accountant"])

    @property
    def unit(self) -> str:
        """What one record stands for."""
        return str(self._header["unit"])

    @property
    def budget(self) -> tuple[float, float] | None:
        """(epsilon, delta) that may be spent, or None if only recorded."""
        if self._header["epsilon"] is None:
            return None
        return float(self._header["epsilon"]), float(self._header["delta"])

    @property
    def history(self) -> History:
        """All charges so far, like ones merged."""
        return self._history

    @property
    def entries(self) -> tuple[tuple[Event, str], ...]:
        """Every charge in order, with its note."""
        return tuple(self._entries)

    def charge(self, event: Event, *, note: str = "") -> None:
        """Record a release that is about to happen; durable when this returns.

        Raises
        ------
        BudgetExceededError
            If the release does not fit the budget. Nothing is recorded.
        LedgerError
            If the ledger is closed or belongs to another process.
        """
        self._check_mine()
        (event,) = as_history(event)
        self._check_budget(event)
        line, checksum = _seal(
            {"sequence": self._sequence, "event": event_to_dict(event), "note": str(note)},
            previous=self._last,
        )
        before = os.fstat(self._file.fileno()).st_size
        try:
            written = self._file.write(line)
            if written != len(line):
                raise OSError(f"only {written} of {len(line)} bytes were written")
            os.fsync(self._file.fileno())
        except OSError as error:
            # Not durable, so not charged, so the caller must not release: undo what arrived.
            self._undo(before)
            raise LedgerError(
                f"the charge could not be written to {str(self.path)!r} ({error}); "
                "do not release the result, free some space and try again"
            ) from error
        self._last = checksum
        self._sequence += 1
        self._entries.append((event, str(note)))
        self._history = simplify((*self._history, event))
        if self._allowance is not None:
            once, remaining = self._allowance
            self._allowance = (once, remaining - event.count)

    def spent(self, *, delta: float | None = None) -> float:
        """Epsilon of all charges so far, at the budget's delta unless given."""
        return epsilon_of(
            self._history,
            delta=self._header["delta"] if delta is None else delta,
            relation=self.relation,
            accountant=self.accountant,
        )

    def statement(
        self,
        *,
        mechanism: str,
        delta: float | None = None,
        randomness: str = "not stated",
        assumptions: Iterable[str] = (),
    ) -> Statement:
        """Build the statement for everything that was charged."""
        return Statement.derive(
            self._history,
            delta=self._header["delta"] if delta is None else delta,
            mechanism=mechanism,
            relation=self.relation,
            accountant=self.accountant,
            unit=self.unit,
            randomness=randomness,
            assumptions=assumptions,
        )

    def close(self) -> None:
        """Release the file and its lock; the record stays."""
        self._file.close()
        if self._process == os.getpid():
            self._lock.release()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _undo(self, size: int) -> None:
        try:
            os.ftruncate(self._file.fileno(), size)
            os.fsync(self._file.fileno())
        except OSError:
            self._file.close()  # the torn line will be repaired by the next open

    def _check_mine(self) -> None:
        if self._file.closed:
            raise LedgerError("this ledger is closed; open it again with Ledger.open")
        if self._process != os.getpid():
            raise LedgerError(
                "this ledger belongs to the parent process; a forked worker cannot charge it. "
                "Charge in the parent before the work is handed out."
            )

    def _check_budget(self, event: Event) -> None:
        if self.budget is None:
            return
        epsilon, delta = self.budget
        once = with_count(event, 1)
        if self._allowance is None or self._allowance[0] != once:
            # One search answers for all further charges of this kind.
            allowed = max_count(
                once,
                epsilon=epsilon,
                delta=delta,
                spent=self._history,
                accountant=self.accountant,
                relation=self.relation,
            )
            self._allowance = (once, allowed)
        if event.count > self._allowance[1]:
            raise BudgetExceededError(
                f"{event.count} more of {once} would exceed the budget of epsilon {epsilon:g} at "
                f"delta {delta:g}: {round_up(self.spent())} is spent and "
                f"{self._allowance[1]} more of this kind fit."
            )


def _acquire(path: Path) -> FileLock:
    if not path.parent.is_dir():
        raise LedgerError(f"no folder at {str(path.parent)!r} for the ledger {path.name!r}")
    lock = FileLock(str(path) + ".lock", timeout=0, thread_local=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise LedgerError(
            f"another process is charging {str(path)!r}. One ledger has one writer: wait until it "
            "is closed, or stop that process."
        ) from error
    return lock


def _seal(content: dict[str, Any], previous: str) -> tuple[bytes, str]:
    body = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    checksum = hashlib.sha256(f"{previous}\n{body}".encode()).hexdigest()
    return f"{checksum} {body}\n".encode(), checksum


def _read(path: Path) -> tuple[list[dict[str, Any]], str, int]:
    """Return the intact lines, the last checksum, and the size in bytes that they fill."""
    data = path.read_bytes()
    lines: list[dict[str, Any]] = []
    checksum, position = "", 0
    while position < len(data):
        end = data.find(b"\n", position)
        raw = data[position:] if end < 0 else data[position:end]
        content = _unseal(raw, checksum) if end >= 0 else None
        if content is None:
            # A crash tears the last line: no newline, or pages of it never written (zeros).
            if end < 0 or (end + 1 == len(data) and b"\0" in raw):
                break
            raise LedgerError(
                f"line {len(lines) + 1} of {str(path)!r} is damaged or was changed. What was spent "
                "is unknown from there on; restore the file from a backup."
            )
        lines.append(content)
        checksum, position = raw[:64].decode(), end + 1
    _check_header(path, lines)
    return lines, checksum, position


def _unseal(raw: bytes, previous: str) -> dict[str, Any] | None:
    try:
        checksum, body = raw.decode().split(" ", 1)
        content = json.loads(body)
    except (UnicodeDecodeError, ValueError):
        return None
    expected = hashlib.sha256(f"{previous}\n{body}".encode()).hexdigest()
    return content if checksum == expected and isinstance(content, dict) else None


def _check_header(path: Path, lines: list[dict[str, Any]]) -> None:
    if not lines or lines[0].get("format") != _FORMAT:
        raise LedgerError(f"{str(path)!r} is not a noisewise ledger")
    if lines[0].get("version") != _VERSION:
        raise LedgerError(f"{str(path)!r} was written by another version: {lines[0]['version']!r}")


def _entry(line: dict[str, Any]) -> tuple[Event, str]:
    return event_from_dict(line["event"]), str(line["note"])
