"""Database and ledger of a server belong together, and neither may become younger.

A file that is replaced by an older copy of itself is whole, and nothing inside it can tell. So a
server sets a *mark* whenever something happens that must not be undone: it starts, a party
withdraws, a release is made. A mark is a number and 32 random bytes; the database keeps all of
them, each with the ledger's head of that moment. Outside of the database the latest mark stands

* in a file beside it, the witness;
* in the hands of every party and analyst: each answer carries it, sealed with a key that only the
  server has, and each request brings the latest one back.

The database must know every mark that it is shown, and the ledger must contain the head of the
latest one. From this follows what is noticed:

=============================================  =================================================
what was restored or deleted                   noticed
=============================================  =================================================
the ledger                                     at the start, and before each release
the database                                   at the start (witness; ledger, if a release was
                                               made since); a running server before each release
the witness                                    deleted: at the start; an older one does no harm
both, from different moments                   as the one that is older
both or all three, from the same moment        by the first party or analyst that comes with a
                                               later mark; **not at all** if nobody does
the whole folder deleted                       by every party and analyst that was here before
=============================================  =================================================

A server that was shown a mark from its own future stops for good: what it forgot, it cannot know.
"""

from __future__ import annotations

import hmac
import json
import secrets
import sqlite3
import threading

from noisewise.errors import LedgerError
from noisewise.federated.network.errors import ConfigurationError, RefusedError
from noisewise.federated.network.store import Connection, Store
from noisewise.files import replace_file
from noisewise.privacy import Ledger, LedgerHead

__all__ = ["Marks"]

_KEY, _STOPPED = "mark key", "rolled back"
_FORGOTTEN = (
    "this server's state is older than what others have seen of it: it was restored from a backup. "
    "What it has released since is forgotten, so it answers nothing any more; start a new round"
)


class Marks:
    """The marks of one server in one round.

    Parameters
    ----------
    store : Store
    ledger : Ledger or None
        None for a noiseless test.
    name : str
        What the seals are bound to: study and server.

    Raises
    ------
    ConfigurationError
        If database, ledger and witness do not belong together.
    """

    def __init__(self, store: Store, ledger: Ledger | None, name: str) -> None:
        self._store = store
        self._ledger = ledger
        self._name = name
        self._witness = store.folder / "witness.json"
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._known, head, facts = store.submit(_read).result()
        self._key = bytes.fromhex(facts[_KEY])
        self._stopped = _STOPPED in facts
        if self._stopped:
            raise ConfigurationError(_FORGOTTEN)
        self._check_ledger(head)
        self._check_witness()
        self._written = 0
        self.write()

    # -------------------------------------------------------------------- setting

    def set(self, connection: Connection) -> None:
        """Set a mark, as part of a job; call :meth:`write` before anybody is told of its effect."""
        head = LedgerHead(0, "") if self._ledger is None else self._ledger.head()
        (last,) = connection.execute("SELECT COALESCE(MAX(number), 0) FROM marks").fetchone()
        connection.execute(
            "INSERT INTO marks VALUES (?, ?, ?, ?)",
            (last + 1, secrets.token_hex(32), head.entries, head.digest),
        )

    def start(self) -> None:
        """Set the mark of a start."""
        self._store.submit(self.set).result()
        self.write()

    def write(self) -> None:
        """Take over the marks that were set, and write the latest to the witness."""
        with self._lock:
            self._refresh()
            if len(self._known) != self._written:
                latest = {"number": len(self._known), "mark": self._known[-1]}
                replace_file(self._witness, json.dumps(latest).encode())
                self._written = len(self._known)

    # ------------------------------------------------------------------- checking

    def check(self) -> None:
        """Refuse to release anything from a state that is not the latest."""
        self._check_not_stopped()
        known = self._known
        try:
            there = self._store.read(lambda c: _marks(c, len(known) - 1))
            head = self._store.read(_head)
        except sqlite3.Error:
            there, head = [], None
        if not self._store.is_itself or there[:1] != known[-1:]:
            raise RefusedError(
                "the database was replaced while the server was running; its administrator must "
                "stop it",
                500,
                "rolled-back",
            )
        if self._ledger is not None and head is not None:
            try:
                self._ledger.require(head)
            except LedgerError as error:
                raise RefusedError(str(error), 500, "rolled-back") from error

    def compare(self, shown: str) -> None:
        """Take a mark that somebody has seen here before.

        Raises
        ------
        RefusedError
            If it is none of this server's, or one that it has forgotten: then its state was
            replaced by an older one, and it answers nobody any more.
        """
        self._check_not_stopped()
        try:
            text, digest, seal = shown.split(".")
            number = int(text) if len(text) < 10 else -1
        except ValueError:
            number, digest, seal = -1, "", ""
        if not hmac.compare_digest(seal.encode(), self._seal(number, digest).encode()):
            raise RefusedError(
                "this server does not know the mark that you have from it: its state was deleted "
                "or replaced since. What it has released before is forgotten here; ask its "
                "administrator, and start a new round",
                409,
                "other-state",
            )
        if number > len(self._known):
            self._refresh()
        if not 1 <= number <= len(self._known) or self._known[number - 1] != digest:
            self._stopped = True
            self._store.submit(_note_stopped).result()
            self._check_not_stopped()

    @property
    def latest(self) -> str:
        """The latest mark, sealed, for whoever talks to this server."""
        known = self._known
        number, digest = len(known), known[-1] if known else ""
        return f"{number}.{digest}.{self._seal(number, digest)}"

    def _refresh(self) -> None:
        """Read the marks that were set since."""
        with self._reading:
            known = self._known
            self._known = known + self._store.read(lambda c: _marks(c, len(known)))

    def _seal(self, number: int, digest: str) -> str:
        said = f"noisewise-mark-1\n{self._name}\n{number}\n{digest}"
        return hmac.new(self._key, said.encode(), "sha256").hexdigest()

    def _check_not_stopped(self) -> None:
        if self._stopped:
            raise RefusedError(_FORGOTTEN, 503, "rolled-back")

    def _check_ledger(self, head: LedgerHead | None) -> None:
        if self._ledger is None:
            return
        if head is not None:
            try:
                self._ledger.require(head)
            except LedgerError as error:
                raise ConfigurationError(
                    f"the ledger is older than the database, or another one: {error} Restore it "
                    "to its latest state, or start a new round."
                ) from error
        elif self._store.is_new and self._ledger.head().entries:
            raise ConfigurationError(
                f"{str(self._ledger.path)!r} knows of releases, but there is no database of them: "
                "it was deleted. Restore it to its latest state, or start a new round."
            )

    def _check_witness(self) -> None:
        if not self._witness.exists():
            if self._known:
                raise ConfigurationError(
                    f"{str(self._witness)!r} is missing, so nobody can tell whether the database "
                    "is the latest. Restore it, or start a new round."
                )
            return
        try:
            said = json.loads(self._witness.read_text("utf-8"))
            number, digest = int(said["number"]), str(said["mark"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigurationError(f"{str(self._witness)!r} cannot be read: {error}") from error
        if not 1 <= number <= len(self._known) or self._known[number - 1] != digest:
            raise ConfigurationError(
                f"the database is older than {str(self._witness)!r}, or another one: it was "
                "deleted or restored from a backup, and has forgotten withdrawals or releases. "
                "Restore it to its latest state, or start a new round."
            )


def _read(connection: Connection) -> tuple[list[str], LedgerHead | None, dict[str, str]]:
    connection.execute("INSERT OR IGNORE INTO facts VALUES (?, ?)", (_KEY, secrets.token_hex(32)))
    facts = dict(connection.execute("SELECT name, value FROM facts").fetchall())
    return _marks(connection), _head(connection), facts


def _marks(connection: Connection, after: int = 0) -> list[str]:
    rows = connection.execute("SELECT digest FROM marks WHERE number > ? ORDER BY number", (after,))
    return [row[0] for row in rows]


def _head(connection: Connection) -> LedgerHead | None:
    row = connection.execute(
        "SELECT entries, head FROM marks ORDER BY number DESC LIMIT 1"
    ).fetchone()
    return None if row is None else LedgerHead(*row)


def _note_stopped(connection: Connection) -> None:
    connection.execute("INSERT OR IGNORE INTO facts VALUES (?, 'yes')", (_STOPPED,))
