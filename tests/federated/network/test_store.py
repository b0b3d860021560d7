"""What was confirmed is there after a crash; what was refused left no trace."""

from __future__ import annotations

import sqlite3
from concurrent.futures import wait

import pytest

pytest.importorskip("aiohttp")

from noisewise.federated.network.errors import ConfigurationError, NetworkError, RefusedError
from noisewise.federated.network.intake import use_nonce
from noisewise.federated.network.store import Store

IDENTITY = {"study": "s", "server": "alpha"}


def put(name):
    return lambda connection: connection.execute("INSERT INTO nonces VALUES (?, 9)", (name,))


def count(connection):
    return connection.execute("SELECT count(*) FROM nonces").fetchone()[0]


def test_a_job_that_raises_leaves_no_trace_and_does_not_disturb_its_neighbours(tmp_path):
    store = Store(tmp_path, IDENTITY)

    def bad(connection):
        put("bad")(connection)
        raise RefusedError("no", 409, "no")

    futures = [store.submit(put("a")), store.submit(bad), store.submit(put("b"))]
    wait(futures)
    assert isinstance(futures[1].exception(), RefusedError)
    assert store.submit(count).result() == 2
    store.close()


def test_a_commit_that_fails_fails_every_job_of_its_transaction(tmp_path):
    store = Store(tmp_path, IDENTITY)

    def end_it(connection):
        connection.execute("ROLLBACK")

    futures = [store.submit(lambda c: None), store.submit(put("a")), store.submit(end_it)]
    wait(futures)
    assert isinstance(futures[2].exception(), NetworkError)
    assert store.submit(count).result() in (0, 1)
    store.close()


def test_what_was_confirmed_is_read_back(tmp_path):
    store = Store(tmp_path, IDENTITY)
    wait([store.submit(put(str(i))) for i in range(3000)])
    assert store.read(count) == 3000
    store.close()
    again = Store(tmp_path, IDENTITY)
    assert again.submit(count).result() == 3000
    again.close()


def test_commits_wait_for_the_disk(tmp_path):
    store = Store(tmp_path, IDENTITY)
    modes = store.submit(
        lambda c: [c.execute(f"PRAGMA {name}").fetchone()[0] for name in ("synchronous",)]
    ).result()
    assert modes == [2]
    with sqlite3.connect(store.path) as other:
        assert other.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    store.close()


def test_two_processes_cannot_have_one_folder_nor_one_folder_two_studies(tmp_path):
    store = Store(tmp_path, IDENTITY)
    with pytest.raises(ConfigurationError, match="another server process"):
        Store(tmp_path, IDENTITY)
    store.close()
    with pytest.raises(ConfigurationError, match="belongs to another server"):
        Store(tmp_path, {"study": "s", "server": "beta"})
    Store(tmp_path, IDENTITY).close()


def test_a_nonce_passes_once_until_it_expires(tmp_path):
    store = Store(tmp_path, IDENTITY)
    nonce = "00" * 16  # those that begin so also clear away old ones
    store.submit(lambda c: use_nonce(c, nonce, 100, 200)).result()
    with pytest.raises(RefusedError, match="received before"):
        store.submit(lambda c: use_nonce(c, nonce, 200, 300)).result()
    store.submit(lambda c: use_nonce(c, nonce, 201, 300)).result()
    assert store.submit(count).result() == 1
    store.close()
