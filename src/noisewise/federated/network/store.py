"""What a server must not forget: contributions, nonces and releases, in one SQLite file.

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

__all__ = ["Connection", "Store", "members_of"]

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
CREATE TABLE IF NOT EXISTS pieces (
    identifier TEXT NOT NULL,
    piece INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (identifier, piece)
);
CREATE TABLE IF NOT EXISTS nonces (nonce TEXT PRIMARY KEY, expires INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS nonces_by_age ON nonces (expires);
CREATE TABLE IF NOT EXISTS releases (
    name TEXT PRIMARY KEY,
    request BLOB NOT NULL,
    members BLOB NOT NULL,
    answer BLOB NOT NULL
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
_MOST_JOBS = 2000


class Store:
    """The durable state of one server in one round.

    Parameters
    ----------
    folder : Path
        Made if it does not exist; only its owner may read it.
    identity : dict
        Facts that must never change (study, server): another study's folder is refused.
    """

    def __init__(self, folder: Path, identity: dict[str, str]) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder = folder
        self._lock = FileLock(str(folder / "server.lock"), timeout=0, thread_local=False)
        try:
            self._lock.acquire()
        except Timeout as error:
            raise ConfigurationError(
                f"another server process uses {str(folder)!r}; two of them would count "
                "contributions twice"
            ) from error
        self.path = folder / "contributions.sqlite"
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
    new = not path.exists()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.executescript(_SCHEMA)
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
    if new and os.name == "posix":
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return connection


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
