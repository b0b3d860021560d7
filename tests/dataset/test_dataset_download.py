"""Transfers over HTTP, against a server on this machine."""

from __future__ import annotations

import threading
import time

import pytest
from local_web import Handler, Web, send

from noisewise.datasets import Transfer
from noisewise.datasets.download import fetch
from noisewise.errors import DatasetError

QUICK = Transfer(timeout=0.3, deadline=5, attempts=3, backoff=0.01)
BODY = bytes(range(256)) * 2000


def test_a_good_file_arrives_whole(web: Web) -> None:
    assert fetch(web.serve("/a", BODY), QUICK) == BODY
    assert fetch(web.serve("/empty", b""), QUICK) == b""


def test_a_redirect_is_followed(web: Web) -> None:
    target = web.serve("/target", BODY)
    assert fetch(web.status("/moved", 302, Location=target), QUICK) == BODY
    assert fetch(web.status("/relative", 301, Location="/target"), QUICK) == BODY


def test_a_redirect_loop_or_one_to_a_file_is_refused(web: Web) -> None:
    with pytest.raises(DatasetError, match="302"):
        fetch(web.status("/loop", 302, Location="/loop"), QUICK)
    with pytest.raises(DatasetError, match="not allowed"):
        fetch(web.status("/file", 302, Location="file:///etc/passwd"), QUICK)


def test_a_redirect_from_https_to_http_is_refused() -> None:
    from urllib.request import Request

    from noisewise.datasets.download import _SafeRedirects

    with pytest.raises(DatasetError, match="not safe"):
        _SafeRedirects().redirect_request(
            Request("https://example.org/a"),
            None,  # type: ignore[arg-type]
            302,
            "",
            None,  # type: ignore[arg-type]
            "http://example.org/a",
        )


def test_a_missing_file_fails_at_once(web: Web) -> None:
    with pytest.raises(DatasetError, match="HTTP 404"):
        fetch(web.status("/gone", 404), QUICK)
    assert len(web.requests) == 1


@pytest.mark.parametrize("code", [429, 500, 503])
def test_a_passing_fault_is_tried_again(web: Web, code: int) -> None:
    def answer(handler: Handler) -> None:
        ready = len(web.requests) == 3
        send(handler, 200 if ready else code, BODY if ready else b"")

    web.routes["/busy"] = answer
    assert fetch(web.url("/busy"), QUICK) == BODY
    assert len(web.requests) == 3


def test_a_lasting_fault_names_the_address_and_the_attempts(web: Web) -> None:
    with pytest.raises(DatasetError, match=r"/down after 3 attempt.*503"):
        fetch(web.status("/down", 503), QUICK)


def _truncating(web: Web, cut: int, *, resumes: bool, tag: str | None) -> str:
    """Sends `cut` bytes of the body, then closes; the second time the rest or all of it."""

    def answer(handler: Handler) -> None:
        start = 0
        wanted = handler.headers.get("Range")
        if wanted and resumes:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            handler.send_response(206)
            handler.send_header("Content-Range", f"bytes {start}-{len(BODY) - 1}/{len(BODY)}")
        else:
            handler.send_response(200)
        if tag:
            handler.send_header("ETag", tag)
        handler.send_header("Content-Length", str(len(BODY) - start))
        handler.end_headers()
        stop = cut if len(web.requests) == 1 else len(BODY)
        handler.wfile.write(BODY[start:stop])
        handler.close_connection = True

    web.routes["/short"] = answer
    return web.url("/short")


def test_a_truncated_body_is_resumed_where_it_ended(web: Web) -> None:
    assert fetch(_truncating(web, 1000, resumes=True, tag='"one"'), QUICK) == BODY
    assert web.requests[1][1]["Range"] == "bytes=1000-"
    assert web.requests[1][1]["If-Range"] == '"one"'


def test_a_server_that_cannot_resume_sends_all_again(web: Web) -> None:
    assert fetch(_truncating(web, 1000, resumes=False, tag='"one"'), QUICK) == BODY


@pytest.mark.parametrize("tag", [None, 'W/"weak"'])
def test_two_halves_are_joined_only_if_the_server_vouches_for_them(
    web: Web, tag: str | None
) -> None:
    assert fetch(_truncating(web, 1000, resumes=True, tag=tag), QUICK) == BODY
    assert "Range" not in web.requests[1][1]


def test_a_body_that_is_always_short_fails(web: Web) -> None:
    def answer(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "100")
        handler.end_headers()
        handler.wfile.write(b"x" * 40)
        handler.close_connection = True

    web.routes["/short"] = answer
    with pytest.raises(DatasetError, match="40 of 100 bytes"):
        fetch(web.url("/short"), QUICK)


def test_a_server_that_hangs_is_given_up(web: Web) -> None:
    started = time.monotonic()
    with pytest.raises(DatasetError, match=r"(?i)timed? ?out"):
        fetch(web.hang("/hang", b"abc"), QUICK)
    # Far below the 30 s for which the server would hold the line.
    assert time.monotonic() - started < 15


def test_a_server_that_drips_meets_the_deadline(web: Web) -> None:
    slow = Transfer(timeout=5, deadline=0.5, attempts=3, backoff=0.01)
    with pytest.raises(DatasetError, match=r"not complete within 0\.5 s"):
        fetch(web.drip("/drip"), slow)


def test_a_body_over_the_limit_is_refused_whether_announced_or_not(web: Web) -> None:
    small = Transfer(limit=1000, attempts=1)
    with pytest.raises(DatasetError, match="more than 1000 bytes"):
        fetch(web.serve("/large", b"x" * 1001), small)

    def endless(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Connection", "close")
        handler.end_headers()
        handler.wfile.write(b"x" * 100_000)
        handler.close_connection = True

    web.routes["/endless"] = endless
    with pytest.raises(DatasetError, match="more than 1000 bytes"):
        fetch(web.url("/endless"), small)


def test_nobody_listening_is_an_error_with_the_address() -> None:
    with pytest.raises(DatasetError, match=r"127\.0\.0\.1:9/x"):
        fetch("http://127.0.0.1:9/x", QUICK)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://example.org/a", "adult.csv"])
def test_only_web_addresses_are_fetched(url: str) -> None:
    with pytest.raises(DatasetError, match="not an http"):
        fetch(url, QUICK)


@pytest.mark.parametrize(
    "wrong", [{"timeout": 0}, {"attempts": 0}, {"deadline": -1}, {"limit": 0}, {"backoff": -1}]
)
def test_limits_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Transfer(**wrong)  # type: ignore[arg-type]


def test_several_transfers_at_once_do_not_mix(web: Web) -> None:
    bodies = [bytes([i]) * 50_000 for i in range(4)]
    urls = [web.serve(f"/{i}", body) for i, body in enumerate(bodies)]
    got: dict[int, bytes] = {}
    threads = [
        threading.Thread(target=lambda i=i: got.__setitem__(i, fetch(urls[i], QUICK)))
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [got[i] for i in range(4)] == bodies
