"""A durable record of what was spent, written before anything is released.

One append-only file of JSON lines. Each line carries the SHA-256 of its content
and of the line before it, so a change anywhere is seen. :meth:`Ledger.charge`
returns only after the line has reached the disk (``fsync``): a result computed
after it returns can never be missing from the ledger, whenever the process dies.
A last line that a crash tore while it was written belongs to a charge whose result
was never released; it is removed by whoever uses the ledger next. A line whose seal
is right is a charge, with or without the newline behind it; any other line that
cannot be read may have been one, and the ledger is refused until it is put right.

Any number of threads and processes may charge one ledger, each through the same
object or its own. To look at what was spent, to decide, and to write is one act
under a lock on the file; what others wrote is read at the beginning of each act.

**Rolling back.** A ledger that is replaced by an older copy of itself is whole, and
nothing inside it can tell. A small file beside it, ending in ``.seen``, remembers how far
it was: an older copy, a deleted ledger or a new one in its place is refused. Whoever keeps
state elsewhere that belongs to charges remembers :meth:`Ledger.head` with it and asks
:meth:`Ledger.require` later. An open ledger does that by itself for all that it has seen.

**Paying once.** A release that may be repeated, because a process died between charge
and release, is charged by :meth:`Ledger.charge_once` under a key, with a digest of what
is released: the same again is free, anything else under that key is refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from noisewise import checks
from noisewise.errors import BudgetExceededError, ChargeConflictError, RelationError
from noisewise.privacy.accounting import ACCOUNTANTS, epsilon_of, max_count
from noisewise.privacy.events import Event, History, as_history, with_count
from noisewise.privacy.ledger_book import FORMAT, VERSION, Book, Charge, LedgerHead, Mark
from noisewise.privacy.ledger_file import LedgerFile, create_file
from noisewise.privacy.relation import ADD_REMOVE, Relation
from noisewise.privacy.statement import Statement, round_up
from noisewise.privacy.statement_premises import WHOLE_UNITS, rows_of_units, rows_problem
from noisewise.privacy.statement_texts import text_problem

__all__ = ["Charge", "Ledger", "LedgerHead"]


class Ledger:
    """An append-only file of charges against one dataset.

    Open with :meth:`create` or :meth:`open` and use it as a context manager. Threads may
    share the object; processes may open the file at the same time. Copying or pickling it
    gives another object on the same file.

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

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = LedgerFile(path)

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

        All that is charged must be what it costs towards `unit` under `relation`. Releases of the
        library are refused otherwise: neither does a promise about rows say anything of a patient
        with any number of them, nor one about patients the same of a single row
        (docs/proofs/units.md#ledger).

        Raises
        ------
        LedgerError
            If the file exists, or existed: what was spent before must not be forgotten.
        """
        if not isinstance(unit, str) or (problem := text_problem(unit)):
            why = problem if isinstance(unit, str) else "is no text"
            raise ValueError(f"unit must say what one record stands for, and {unit!r} {why}")
        header = {
            "format": FORMAT,
            "version": VERSION,
            "epsilon": None if epsilon is None else checks.positive("epsilon", epsilon),
            "delta": checks.probability("delta", delta, zero=True, one=False),
            "relation": Relation.of(relation).name,
            "accountant": checks.choice("accountant", accountant, ACCOUNTANTS),
            "unit": unit,
        }
        create_file(Path(path), header)
        return cls(Path(path))

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Ledger:
        """Continue an existing ledger, repairing a last line that a crash cut off.

        Raises
        ------
        LedgerError
            If there is none, it was damaged, or it is an older copy of what was here.
        """
        return cls(Path(path))

    @property
    def relation(self) -> Relation:
        """Relation under which everything here is accounted."""
        return Relation(self._file.header["relation"])

    @property
    def accountant(self) -> str:
        """Accountant that decides whether a charge fits the budget."""
        return str(self._file.header["accountant"])

    @property
    def unit(self) -> str:
        """What one record stands for."""
        return str(self._file.header["unit"])

    @property
    def delta(self) -> float:
        """At which what was spent is told unless another delta is asked for."""
        return float(self._file.header["delta"])

    @property
    def budget(self) -> tuple[float, float] | None:
        """(epsilon, delta) that may be spent, or None if only recorded."""
        header = self._file.header
        if header["epsilon"] is None:
            return None
        return float(header["epsilon"]), float(header["delta"])

    @property
    def history(self) -> History:
        """All charges so far, like ones merged."""
        return self._file.read().history

    @property
    def entries(self) -> tuple[tuple[Event, str], ...]:
        """Every charge in order, with its note."""
        return tuple((charge.event, charge.note) for charge in self.charges)

    @property
    def charges(self) -> tuple[Charge, ...]:
        """Every charge in order, with note, key and digest."""
        return tuple(self._file.read().charges)

    def find(self, key: str) -> Charge | None:
        """Return the charge that was made under this key, if there is one."""
        return self._file.read().by_key.get(key)

    def head(self) -> LedgerHead:
        """Return where the ledger stands now, to be remembered beside what was charged for."""
        return self._file.read().head

    def require(self, head: LedgerHead) -> None:
        """Check that the ledger was at `head` once, and nothing up to there is missing or other.

        Raises
        ------
        LedgerRolledBackError
            If it is an older copy, another ledger, or an older copy that was continued.
        """
        self._file.read().require(head)

    def charge(
        self,
        event: Event | Iterable[Event],
        *,
        note: str = "",
        key: str | None = None,
        digest: str | None = None,
    ) -> None:
        """Record a release that is about to happen; durable when this returns.

        Parameters
        ----------
        event : Event, or several
            Several are charged in one act, all or none.
        note : str
            For people who read the ledger.
        key : str, optional
            Under which :meth:`find` finds it. Kept with the last of several events.
        digest : str, optional
            Of what is released. It is written down: give one of noisy values only, or of
            what is public, never of private ones.

        Raises
        ------
        BudgetExceededError
            If the release does not fit the budget. Nothing is recorded.
        ChargeConflictError
            If there is a charge with this key. Nothing is recorded.
        LedgerError
            If the ledger is closed, was damaged, or cannot be written.
        """
        charges = _charges(event, note, key, digest)
        with self._file.act() as act:
            if key is not None and act.book.owner(key) is not None:
                raise self._conflict(key)
            self._check_budget(act.book, charges)
            act.append(charges)

    def require_room(self, event: Event | Iterable[Event]) -> None:
        """Check that a release would fit the budget now; nothing is recorded or reserved.

        Raises
        ------
        BudgetExceededError
            If it does not.
        """
        charges = _charges(event, "", None, None)
        with self._file.act() as act:
            self._check_budget(act.book, charges)

    def charge_once(self, event: Event, *, key: str, digest: str, note: str = "") -> bool:
        """Charge, unless exactly this was charged before.

        Returns
        -------
        bool
            True if it was charged now, False if there is a charge with this key, digest and
            event: then what was released under it may be released again.

        Raises
        ------
        ChargeConflictError
            If there is a charge with this key, but another digest or event. Nothing is recorded;
            whoever wants to release needs another key, and pays.
        """
        charges = _charges(event, note, key, digest)
        with self._file.act() as act:
            found = act.book.by_key.get(key)
            if found is None and key not in act.book.marks:
                self._check_budget(act.book, charges)
                act.append(charges)
                return True
            if found is None or (found.digest, found.event) != (digest, event):
                raise self._conflict(key)
            act.settle()
            return False

    def exchange_mark(
        self,
        name: str,
        *,
        was: str | None,
        becomes: str,
        otherwise: Event | None = None,
        note: str = "",
        key: str | None = None,
    ) -> bool:
        """Replace a mark, if it is as expected; else charge for doing so, or leave it.

        A mark ties state that is kept elsewhere, such as the file of a stream, to this ledger: who
        finds the mark that belongs to the state takes it away in the same act, so that nobody who
        holds a copy or an older state finds it again.

        Parameters
        ----------
        name : str
        was : str or None
            What is expected; None for nothing that could be found.
        becomes : str
        otherwise : Event, optional
            Charged if the mark is another one; if None, nothing is written then.
        note : str
            Of that charge.
        key : str, optional
            Of that charge; if there is none, the mark's from now on, unless another one has it.

        Returns
        -------
        bool
            Whether the mark was as expected.

        Raises
        ------
        BudgetExceededError
            If what is to be charged does not fit the budget. Nothing is written.
        ChargeConflictError
            If the key is another one's, or something is to be charged under a key that was used.
            Nothing is written.
        """
        with self._file.act() as act:
            owner = None if key is None else act.book.owner(key)
            if was is not None and act.book.marks.get(name) == was:
                if key is not None and owner not in (None, name):
                    raise self._conflict(key)
                kept = [] if key is None or owner is not None else [Mark(key, name)]
                act.append([Mark(name, becomes), *kept])
                return True
            if otherwise is not None:
                if key is not None and owner is not None:
                    raise self._conflict(key)
                charges = _charges(otherwise, note, key, None)
                self._check_budget(act.book, charges)
                act.append([*charges, Mark(name, becomes)])
            return False

    def spent(self, *, delta: float | None = None) -> float:
        """Epsilon of all charges so far, at the budget's delta unless given."""
        return self._epsilon(self.history, delta)

    def statement(
        self,
        *,
        mechanism: str,
        delta: float | None = None,
        randomness: str = "not stated",
        assumptions: Iterable[str] = (),
    ) -> Statement:
        """Build the statement for everything that was charged.

        Its epsilon is that of one of the ledger's units, all of whose rows come or go: every charge
        is what its release costs towards that change, however many rows of a unit it counts
        (docs/proofs/units.md#ledger).
        """
        return Statement.derive(
            self.history,
            delta=self._file.header["delta"] if delta is None else delta,
            mechanism=mechanism,
            relation=self.relation,
            accountant=self.accountant,
            unit=self.unit,
            randomness=randomness,
            assumptions=(*assumptions, *self._said_of_units()),
        )

    def _said_of_units(self) -> Iterator[str]:
        if rows_of_units(self.history):
            yield WHOLE_UNITS
        if self.unit != "one record":
            # Charges do not tell whether identifiers were given.
            row = f"all that there is of {self.unit}"
            yield f"A release without identifiers took each row for {row}."

    def close(self) -> None:
        """Charge no more through this object; the record stays."""
        self._file.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (os.fspath(self._file.place), self.head())

    def _check_budget(self, book: Book, charges: Iterable[Charge]) -> None:
        if problem := rows_problem(self.unit, tuple(charge.event for charge in charges)):
            raise RelationError(f"{self.path.name!r} does not take this charge: {problem}")
        if self.budget is None:
            return
        epsilon, delta = self.budget
        events = [charge.event for charge in charges]
        if len(events) > 1:
            after = self._epsilon((*book.history, *events))
            if after > epsilon:
                raise BudgetExceededError(
                    f"with these {len(events)} releases {round_up(after)} would be spent, but "
                    f"{self.path.name!r} allows epsilon {epsilon:g} at delta {delta:g}; nothing "
                    "was charged"
                )
            return
        (event,) = events
        once, allowance = with_count(event, 1), book.allowance
        if allowance is None or allowance[0] != once:
            # One search answers for all further charges of this kind.
            allowed = max_count(
                once,
                epsilon=epsilon,
                delta=delta,
                spent=book.history,
                accountant=self.accountant,
                relation=self.relation,
            )
            allowance = book.allowance = (once, allowed)
        if event.count > allowance[1]:
            spent = round_up(self._epsilon(book.history))
            raise BudgetExceededError(
                f"{event.count} more of {once} would exceed the budget of epsilon {epsilon:g} at "
                f"delta {delta:g}: {spent} is spent and {allowance[1]} more of this kind fit."
            )

    def _epsilon(self, history: History, delta: float | None = None) -> float:
        return epsilon_of(
            history,
            delta=self._file.header["delta"] if delta is None else delta,
            relation=self.relation,
            accountant=self.accountant,
        )

    def _conflict(self, key: str) -> ChargeConflictError:
        return ChargeConflictError(
            f"{str(self.path)!r} has a charge under the key {key!r} for something else: releasing "
            "this under it would be paid for by nothing. Charge it under another key."
        )


def _charges(
    event: Event | Iterable[Event], note: str, key: str | None, digest: str | None
) -> list[Charge]:
    events = as_history(event)
    if not events:
        raise ValueError("event must be at least one event, got none")
    last = Charge(events[-1], str(note), key, digest)
    return [*(Charge(each, str(note)) for each in events[:-1]), last]


def _reopen(path: str, head: LedgerHead) -> Ledger:
    """Open a copied or pickled ledger, which must be where it was then, or further."""
    ledger = Ledger.open(path)
    ledger.require(head)
    return ledger
