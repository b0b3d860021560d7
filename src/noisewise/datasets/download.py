"""Fetch a public file over HTTP: bounded in time and size, resumed after a fault.

The bytes stay in memory until they are verified, so a transfer that fails or is killed
leaves nothing on disk. Passing faults (time-outs, broken connections, 429 and 5xx
answers, short bodies) are tried again, from where the last attempt ended if the server
can; lasting ones (404, a refused redirect, too large) end at once.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import IO, Any

from noisewise import checks
from noisewise._version import __version__
from noisewise.errors import DatasetError

__all__ = ["Transfer", "fetch"]

_PASSING_STATUS = {408, 425, 429, 500, 502, 503, 504}
_CHUNK = 64 * 1024


@dataclass(frozen=True)
class Transfer:
    """Limits of a download.

    Parameters
    ----------
    timeout : float
        Seconds without a byte after which an attempt is given up.
    deadline : float
        Seconds for one file, all attempts together.
    attempts : int
        How often a passing fault is tried again, the first attempt included.
    backoff : float
        Seconds before the second attempt; doubled before each further one.
    limit : int
        Largest body in bytes.
    """

    timeout: float = 30.0
    deadline: float = 1800.0
    attempts: int = 4
    backoff: float = 1.0
    limit: int = 256 * 1024 * 1024

    def __post_init__(self) -> None:
        checks.positive("timeout", self.timeout)
        checks.positive("deadline", self.deadline)
        checks.integer("attempts", self.attempts, minimum=1)
        checks.positive("backoff", self.backoff, zero=True)
        checks.integer("limit", self.limit, minimum=1)


class _PassingFaultError(Exception):
    """A fault that another attempt may not meet."""


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follow redirects, but never from https to a protocol that anyone can alter."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        allowed = ("https:",) if req.full_url.startswith("https:") else ("https:", "http:")
        if not newurl.lower().startswith(allowed):
            raise DatasetError(f"{req.full_url} redirects to {newurl}, which is not safe to follow")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Body:
    """What has arrived so far, over all attempts."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.validator: str | None = None

    def restart(self) -> None:
        self.content.clear()
        self.validator = None


def fetch(url: str, transfer: Transfer | None = None) -> bytes:
    """Return the body at `url`; a `DatasetError` names the address and the fault."""
    transfer = transfer or Transfer()
    if not url.lower().startswith(("https://", "http://")):
        raise DatasetError(f"{url!r} is not an http or https address")
    opener = urllib.request.build_opener(_SafeRedirects)
    ends = time.monotonic() + transfer.deadline
    body = _Body()
    fault = "no attempt was made"
    for attempt in range(transfer.attempts):
        if attempt:
            pause = min(transfer.backoff * 2 ** (attempt - 1), ends - time.monotonic())
            time.sleep(max(0.0, pause))
        if time.monotonic() >= ends:
            break
        try:
            return _attempt(opener, url, body, transfer, ends)
        except _PassingFaultError as error:
            fault = str(error)
    raise DatasetError(f"could not download {url} after {attempt + 1} attempt(s): {fault}")


def _attempt(
    opener: urllib.request.OpenerDirector,
    url: str,
    body: _Body,
    transfer: Transfer,
    ends: float,
) -> bytes:
    # Without identity a server may compress, and then lengths and ranges mean another body.
    headers = {"User-Agent": f"noisewise/{__version__}", "Accept-Encoding": "identity"}
    if body.content and body.validator:
        headers |= {"Range": f"bytes={len(body.content)}-", "If-Range": body.validator}
    else:
        body.restart()
    request = urllib.request.Request(url, headers=headers)
    patience = max(0.001, min(transfer.timeout, ends - time.monotonic()))
    try:
        with opener.open(request, timeout=patience) as answer:
            expected = _begin(answer, body, url)
            _check_size(expected, transfer, url)
            while chunk := answer.read1(_CHUNK):
                body.content += chunk
                _check_size(len(body.content), transfer, url)
                if time.monotonic() >= ends:
                    raise _PassingFaultError(f"not complete within {transfer.deadline:g} s")
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:
            body.restart()
            raise _PassingFaultError("the server could not resume (HTTP 416)") from error
        if error.code in _PASSING_STATUS:
            raise _PassingFaultError(f"HTTP {error.code} {error.reason}") from error
        raise DatasetError(f"could not download {url}: HTTP {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        if isinstance(error.reason, (ssl.SSLCertVerificationError, socket.gaierror)):
            raise DatasetError(f"could not download {url}: {error.reason}") from error
        raise _PassingFaultError(str(error.reason)) from error
    except (TimeoutError, ConnectionError, http.client.HTTPException, ssl.SSLError) as error:
        raise _PassingFaultError(f"{type(error).__name__}: {error}") from error
    if expected is not None and len(body.content) != expected:
        raise _PassingFaultError(f"{len(body.content)} of {expected} bytes arrived")
    return bytes(body.content)


def _begin(answer: Any, body: _Body, url: str) -> int | None:
    """Decide whether the answer continues the body; return the length of the whole."""
    length = answer.headers.get("Content-Length")
    if answer.status == 206:
        start = f"bytes {len(body.content)}-"
        if not (answer.headers.get("Content-Range") or "").startswith(start):
            body.restart()
            raise _PassingFaultError("the server resumed at another place")
        return None if length is None else len(body.content) + int(length)
    if answer.status != 200:
        raise DatasetError(f"could not download {url}: HTTP {answer.status}")
    body.restart()
    etag = answer.headers.get("ETag")
    # A weak tag does not promise equal bytes, so it cannot join two halves.
    body.validator = etag if etag and not etag.startswith("W/") else None
    return None if length is None else int(length)


def _check_size(size: int | None, transfer: Transfer, url: str) -> None:
    if size is not None and size > transfer.limit:
        raise DatasetError(f"{url} has more than {transfer.limit} bytes; it was not downloaded")
