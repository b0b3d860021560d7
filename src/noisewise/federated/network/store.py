"""What a server must not forget: contributions, nonces, releases and marks, in one SQLite file.

Rounds with route "masks" keep the messages of their stages there, and which stages are closed.

SQLite in write-ahead mode with ``synchronous=FULL``: a commit returns when the data are on the
disk, and a process that is killed at any moment leaves the state of the last commit. One thread
writes. It takes all jobs that wait, runs them in one transaction, from which a job that raises is
taken out again, and answers them only after the commit (group commit): thousands of small
contributions share one ``fsync``, and nobody is told "stored" before it is true.
"""

from __future__ import annotations

import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from filelock import FileLock, Timeout

from noisewise.federated.network.errors import ConfigurationError, NetworkError
from noisewise.files import open_regular, private_file, private_folder, sync_folder

__all__ = ["Connection", "Store", "is_member", "members_of"]

Result = TypeVar("Result")
Connection: TypeAlias = sqlite3.Connection
Job: TypeAlias = Callable[[Connection], Any]
Batch: TypeAlias = list[tuple[Job, Future[Any]]]
Answer: TypeAlias = tuple[Future[Any], Any, Exception | None]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS contributions (
    identifier TEXT NOT NULL,
    party TEXT NOT NULL,
    manifest BLOB NOT NULL,
    records INTEGER,
    complete INTEGER NOT NULL DEFAULT 0,
    withdrawn INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (identifier, party)
);
CREATE INDEX IF NOT EXISTS contributions_by_party ON contributions (party);
CREATE UNIQUE INDEX IF NOT EXISTS one_each ON contributions (party) WHERE withdrawn = 0;
CREATE TABLE IF NOT EXISTS shares (
    identifier TEXT NOT NULL,
    party TEXT NOT NULL,
    piece INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (identifier, party, piece),
    FOREIGN KEY (identifier, party) REFERENCES contributions (identifier, party)
);
CREATE TRIGGER IF NOT EXISTS complete_is_whole BEFORE DELETE ON shares
WHEN EXISTS (
    SELECT 1 FROM contributions
    WHERE identifier = OLD.identifier AND party = OLD.party AND complete = 1
)
BEGIN
    SELECT RAISE(ABORT, 'a complete contribution keeps its share');
END;
CREATE TABLE IF NOT EXISTS nonces (nonce TEXT PRIMARY KEY, expires INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS nonces_by_age ON nonces (expires);
CREATE TABLE IF NOT EXISTS releases (
    name TEXT PRIMARY KEY,
    request BLOB NOT NULL,
    members BLOB NOT NULL,
    answer BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS reservations (
    name TEXT PRIMARY KEY,
    analyst TEXT NOT NULL,
    request BLOB NOT NULL,
    members BLOB NOT NULL,
    at REAL NOT NULL,
    making INTEGER NOT NULL DEFAULT 0,
    answer BLOB
);
CREATE TABLE IF NOT EXISTS marks (
    number INTEGER PRIMARY KEY,
    digest TEXT NOT NULL,
    entries INTEGER NOT NULL,
    head TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS checks (
    name TEXT PRIMARY KEY,
    members BLOB NOT NULL,
    own BLOB NOT NULL,
    seeds BLOB
);
CREATE TABLE IF NOT EXISTS challenged (
    identifier TEXT PRIMARY KEY,
    name TEXT NOT NULL REFERENCES checks (name)
);
CREATE TABLE IF NOT EXISTS messages (
    stage INTEGER NOT NULL,
    party INTEGER NOT NULL,
    data BLOB NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (stage, party)
);
CREATE TABLE IF NOT EXISTS closings (
    stage INTEGER PRIMARY KEY,
    members TEXT NOT NULL,
    at REAL NOT NULL
);
"""
#: Shares were kept without their owner.
_TAKE_OVER = """
INSERT OR IGNORE INTO shares
    SELECT pieces.identifier, contributions.party, pieces.piece, pieces.data
    FROM pieces JOIN contributions USING (identifier)
    WHERE contributions.withdrawn = 0;
UPDATE contributions SET complete = 0 WHERE NOT EXISTS (
    SELECT 1 FROM shares
    WHERE shares.identifier = contributions.identifier AND shares.party = contributions.party
);
DROP TABLE pieces;
"""
_MOST_JOBS = 2000
#: Of the tables and of what they mean; 0 is that of version 0.1 of the library.
_VERSION = 3
#: From here on the parties of a masked round confirm the list of survivors.
_CONFIRMED = 2


class Store:
    """The durable state of one server in one round.

    Parameters
    ----------
    folder : Path
        Made if it does not exist; only its owner may read it and what is in it, also if it existed
        with a wider mode.
    identity : dict
        Facts that must never change (study, server): another study's folder is refused.
    """

    def __init__(self, folder: Path, identity: dict[str, str]) -> None:
        self.folder = private_folder(folder)
        lock = folder / "server.lock"
        if lock.exists():
            private_file(lock)
        self._lock = FileLock(str(lock), timeout=0, mode=0o600, thread_local=False)
        try:
            self._lock.acquire()
        except Timeout as error:
            raise ConfigurationError(
                f"another server process uses {str(folder)!r}; two of them would count "
                "contributions twice"
            ) from error
        private_file(lock)
        self.path = folder / "contributions.sqlite"
        self.is_new = not self.path.exists()
        self._jobs: queue.SimpleQueue[tuple[Job, Future[Any]] | None]
        self._jobs = queue.SimpleQueue()
        opened: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._work, args=(identity, opened), name="store", daemon=True
        )
        self._thread.start()
        try:
            opened.result()
        except BaseException:
            self._lock.release()
            raise
        self._file = _file_number(self.path)

    @property
    def is_itself(self) -> bool:
        """Whether the file at its place is the one that is being written to."""
        return _file_number(self.path) == self._file

    def submit(self, job: Callable[[Connection], Result]) -> Future[Result]:
        """Run `job` in the next transaction; its result arrives after the commit.

        A job that raises has no effect, and its exception is the result.
        """
        future: Future[Result] = Future()
        self._jobs.put((job, future))
        return future

    def read(self, job: Callable[[Connection], Result]) -> Result:
        """Run a long, reading job beside the writer, on the last commit."""
        connection = sqlite3.connect(f"file:{self.path}?mode=ro", uri=True)
        try:
            connection.execute("BEGIN")
            return job(connection)
        finally:
            connection.close()

    def close(self) -> None:
        """Finish the jobs that wait, and let another process have the folder."""
        self._jobs.put(None)
        self._thread.join()
        self._lock.release()

    def _work(self, identity: dict[str, str], opened: Future[None]) -> None:
        try:
            connection = _open(self.path, identity)
        except BaseException as error:
            opened.set_exception(error)
            return
        opened.set_result(None)
        while True:
            batch, last = self._take()
            if batch:
                _commit_together(connection, batch)
            if last:
                connection.close()
                return

    def _take(self) -> tuple[Batch, bool]:
        batch: Batch = []
        job = self._jobs.get()
        while job is not None:
            batch.append(job)
            if len(batch) == _MOST_JOBS:
                return batch, False
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return batch, False
        return batch, True


def _open(path: Path, identity: dict[str, str]) -> Connection:
    # SQLite gives its other files the mode of this one.
    try:
        os.close(open_regular(path, os.O_RDWR | os.O_CREAT))
    except OSError as error:
        raise ConfigurationError(
            f"no state can be kept at {str(path)!r}: {error.strerror}"
        ) from error
    for each in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))):
        if each.exists():
            private_file(each)
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")
        connection.executescript(_SCHEMA)
        _check_version(connection, path)
        _check_identity(connection, path, identity)
    except sqlite3.DatabaseError as error:
        connection.close()
        raise ConfigurationError(
            f"{str(path)!r} cannot be read: {error}. A server whose state is damaged cannot go on; "
            "start a new round"
        ) from error
    except BaseException:
        connection.close()
        raise
    sync_folder(path.parent)
    return connection


def _check_version(connection: Connection, path: Path) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    known = connection.execute("SELECT COUNT(*) FROM facts").fetchone()[0] > 0
    begun = connection.execute("SELECT COUNT(*) FROM messages").fetchone()[0] > 0
    if version > _VERSION:
        raise ConfigurationError(f"{str(path)!r} was written by a newer version of noisewise")
    if known and version < _CONFIRMED and begun:
        raise ConfigurationError(
            f"{str(path)!r} holds a masked round of version 0.1, whose parties did not confirm the "
            "list of survivors. It cannot be continued: start a new round, in a new folder"
        )
    older = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'pieces'").fetchone()
    if older is not None:
        connection.executescript(f"BEGIN IMMEDIATE; {_TAKE_OVER} COMMIT;")
    connection.execute(f"PRAGMA user_version={_VERSION}")


def _check_identity(connection: Connection, path: Path, identity: dict[str, str]) -> None:
    with_facts = dict(connection.execute("SELECT name, value FROM facts").fetchall())
    for name, value in identity.items():
        if with_facts.get(name, value) != value:
            raise ConfigurationError(
                f"{str(path)!r} belongs to another {name} ({with_facts[name]}). Use a new folder "
                "for a new round; a study file must not change once a round has begun."
            )
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany("INSERT OR IGNORE INTO facts VALUES (?, ?)", identity.items())
    connection.execute("COMMIT")


def _file_number(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _commit_together(connection: Connection, batch: Batch) -> None:
    """Run all jobs in one transaction, commit, then answer.

    Refusals are rare, so the jobs first run without savepoints, which would double the number
    of statements. If one of them raises, everything is undone and they run again, each in a
    savepoint of its own; jobs depend on nothing but the database, so that changes no result.
    """
    try:
        connection.execute("BEGIN IMMEDIATE")
        try:
            answers: list[Answer] = [(future, job(connection), None) for job, future in batch]
        except sqlite3.Error:
            raise
        except Exception:
            connection.execute("ROLLBACK")
            connection.execute("BEGIN IMMEDIATE")
            answers = [_run_apart(connection, job, future) for job, future in batch]
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        failure = NetworkError(f"the server's state could not be written: {error}")
        for _, future in batch:
            future.set_exception(failure)
        return
    for future, value, error_of_job in answers:
        if error_of_job is None:
            future.set_result(value)
        else:
            future.set_exception(error_of_job)


def _run_apart(connection: Connection, job: Job, future: Future[Any]) -> Answer:
    connection.execute("SAVEPOINT job")
    try:
        return future, job(connection), None
    except sqlite3.Error:
        raise
    except Exception as error:
        connection.execute("ROLLBACK TO job")
        return future, None, error
    finally:
        if connection.in_transaction:
            connection.execute("RELEASE job")


def members_of(blob: bytes) -> Iterator[str]:
    """Return the identifiers in the stored form of a set."""
    return (blob[i : i + 32].hex() for i in range(0, len(blob), 32))


def is_member(blob: bytes, identifier: str) -> bool:
    """Whether an identifier is in the stored form of a set, which is sorted."""
    wanted, low, high = bytes.fromhex(identifier), 0, len(blob) // 32
    while low < high:
        middle = (low + high) // 2
        if blob[32 * middle : 32 * middle + 32] < wanted:
            low = middle + 1
        else:
            high = middle
    return blob[32 * low : 32 * low + 32] == wanted
