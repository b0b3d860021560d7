"""Who may ask a server for what: every request is signed, arrives in time, and counts once.

A request is refused before its body is read if it is too long, its sender is unknown, or its
signature (:mod:`noisewise.federated.network.identity`) is wrong; after that if its body is not the
one that was signed, or if its nonce was here before. Whatever goes wrong is answered in words.

Strangers hold nothing: until the signature is checked a request occupies no place. A sender has a
few requests under way at a time and no more, a body is waited for without a place among those that
are worked on, and all bodies that are arriving have a limit together, of which a slow one uses
only what it has sent.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

from aiohttp import web

from noisewise.federated.network.errors import NetworkError, RefusedError
from noisewise.federated.network.headers import MARK_HEADER, NONCE_HEADER
from noisewise.federated.network.identity import Credential, OldRequestError
from noisewise.federated.network.intake import use_nonce
from noisewise.federated.network.marks import Marks
from noisewise.federated.network.settings import ServerSettings
from noisewise.federated.network.store import Connection, Store

__all__ = ["Access", "Handler"]

Result = TypeVar("Result")
Handler: TypeAlias = Callable[[web.Request, str, bytes], Awaitable[web.Response]]

_log = logging.getLogger("noisewise.federated")


class Access:
    """The door of one server.

    Parameters
    ----------
    settings : ServerSettings
    store : Store
        Where nonces are remembered.
    marks : Marks
    """

    def __init__(self, settings: ServerSettings, store: Store, marks: Marks) -> None:
        self.settings = settings
        self._study = settings.study
        self._store = store
        self._marks = marks
        self._places = asyncio.Semaphore(settings.limits.requests)
        self._under_way: Counter[str] = Counter()
        self._arriving = 0

    async def health(self, request: web.Request) -> web.Response:
        """Answer anybody: name of the server, study and round; fingerprint."""
        return web.json_response(
            {
                "server": self.settings.name,
                "study": self._study.name,
                "round": self._study.round,
                "fingerprint": self._study.fingerprint,
            }
        )

    def signed(
        self, keys: dict[str, Any], handler: Handler
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        """Wrap a handler: authenticate, read the body, answer errors in words."""

        async def handle(request: web.Request) -> web.Response:
            nonce = ""
            try:
                credential = self._credential(request, keys)
                nonce = credential.nonce
                shown = request.headers.get(MARK_HEADER)
                if shown is not None:
                    self._marks.compare(shown)
                with self._turn(credential.name):
                    body = await self._body(request, credential)
                    async with self._places:
                        response = await self._once(request, credential, body, handler)
                response.headers[MARK_HEADER] = self._marks.latest
            except RefusedError as error:
                response = _refusal(error)
            except NetworkError as error:
                response = _refusal(RefusedError(str(error), 500, "server"))
            except Exception:
                _log.exception("%s %s", request.method, request.path)
                said = "the server failed; its administrator finds the reason in its log"
                response = _refusal(RefusedError(said, 500, "server"))
            if nonce:
                response.headers[NONCE_HEADER] = nonce
            return response

        return handle

    def _credential(self, request: web.Request, keys: dict[str, Any]) -> Credential:
        if (request.content_length or 0) > self.settings.limits.largest_request:
            raise RefusedError(
                f"requests may have {self.settings.limits.largest_request} bytes", 413, "too-large"
            )
        try:
            credential = Credential.parse(request.headers.get("Authorization", ""))
        except OldRequestError as error:
            raise RefusedError(
                "this request is signed as version 0.1 of noisewise did it; this server checks "
                "signatures before it reads a body, and needs a newer sender: update noisewise",
                401,
                "old-version",
            ) from error
        except ValueError as error:
            raise RefusedError("this request is not signed", 401, "unsigned") from error
        if credential.name not in keys:
            raise RefusedError(f"{credential.name!r} may not ask for this", 403, "unknown-sender")
        off = abs(time.time() - credential.time)
        if off > self.settings.limits.clock_seconds:
            raise RefusedError(
                f"the sender's clock is {off:.0f} seconds off; set it right and try again",
                401,
                "clock",
            )
        genuine = credential.verify(
            keys[credential.name],
            server=self.settings.name,
            study=self._study.fingerprint,
            method=request.method,
            path=request.raw_path,
        )
        if not genuine:
            raise RefusedError(
                "the signature is wrong: another key, another study file than this server's "
                f"(fingerprint {self._study.fingerprint[:12]}), or a request that was changed",
                401,
                "signature",
            )
        return credential

    @contextmanager
    def _turn(self, sender: str) -> Iterator[None]:
        """Count a request of a sender while it is under way."""
        most = self.settings.limits.requests_of_sender
        if self._under_way[sender] >= most:
            raise RefusedError(f"{sender!r} has {most} requests under way; wait", 429, "busy")
        self._under_way[sender] += 1
        try:
            yield
        finally:
            self._under_way[sender] -= 1
            if not self._under_way[sender]:
                del self._under_way[sender]

    async def _body(self, request: web.Request, credential: Credential) -> bytes:
        """Return the body that was signed, within the limits of time and size."""
        body = bytearray()
        try:
            await asyncio.wait_for(self._receive(request, body), self.settings.limits.seconds)
        except asyncio.TimeoutError as error:
            raise RefusedError("the request did not arrive in time", 408, "slow") from error
        except (OSError, web.RequestPayloadError) as error:
            raise RefusedError("the request was cut on its way", 400, "slow") from error
        finally:
            self._arriving -= len(body)
        found = bytes(body)
        if hashlib.sha256(found).hexdigest() != credential.digest:
            raise RefusedError("the body is not the one that was signed", 401, "signature")
        return found

    async def _receive(self, request: web.Request, body: bytearray) -> None:
        limits = self.settings.limits
        async for chunk in request.content.iter_any():
            if len(body) + len(chunk) > limits.largest_request:
                raise RefusedError("the request is too long", 413, "too-large")
            if self._arriving + len(chunk) > limits.arriving:
                raise RefusedError("too much is arriving at once; try again", 503, "busy")
            body += chunk
            self._arriving += len(chunk)

    async def _once(
        self, request: web.Request, credential: Credential, body: bytes, handler: Handler
    ) -> web.Response:
        now = int(time.time())
        expires = credential.time + 2 * int(self.settings.limits.clock_seconds) + 1
        request["nonce"] = (credential.nonce, now, expires)
        return await handler(request, credential.name, body)

    async def do(self, request: web.Request, job: Callable[[Connection], Result]) -> Result:
        """Run a job together with the note that this request was here, in one transaction."""
        nonce, now, expires = request["nonce"]

        def noted(connection: Connection) -> Result:
            use_nonce(connection, nonce, now, expires)
            return job(connection)

        return await asyncio.wrap_future(self._store.submit(noted))


def _refusal(error: RefusedError) -> web.Response:
    return web.json_response({"error": str(error), "code": error.code}, status=error.status)
