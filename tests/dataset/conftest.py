"""A web server on this machine, a cache of its own, and no data folder but the test's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import platformdirs
import pytest
from local_web import Handler, Web


@pytest.fixture
def web() -> Iterator[Web]:
    state = Web()
    handler = type("BoundHandler", (Handler,), {"web": state})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    state.base = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield state
    state.closing.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache, in a folder of the test."""
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda *a, **k: str(tmp_path / "cache"))
    return tmp_path / "cache" / "datasets"


@pytest.fixture
def nowhere(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No folder of the machine that runs the tests can be found; returns the cache."""
    monkeypatch.delenv("NOISEWISE_DATA", raising=False)
    return cache
