"""Who may ask a server for what: every request is signed, arrives in time, and counts once.

A request is refused before its body is read if it is too long or its sender is unknown; after
that if its signature (:mod:`noisewise.federated.network.identity`) is wrong, or if its nonce was
here before. Whatever goes wrong is answered in words.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

from aiohttp import web

from noisewise.federated.network.errors import NetworkError, RefusedError
from noisewise.federated.network.identity import Credential
from noisewise.federated.network.intake import use_nonce
from noisewise.federated.network.settings import ServerSettings
from noisewise.federated.network.store import Connection, Store

__all__ = ["NONCE_HEADER", "Access", "Handler"]

Result = TypeVar("Result")
Handler: TypeAlias = Callable[[web.Request, str, bytes], Awaitable[web.Response]]

NONCE_HEADER = "Noisewise-Nonce"
_log = logging.getLogger("noisewise.federated")


class Access:
    """The door of one server.

    Parameters
    ----------
    settings : ServerSettings
    store : Store
        Where nonces are remembered.
    """

    def __init__(self, settings: ServerSettings, store: Store) -> None:
        self.settings = settings
        self._study = settings.study
        self._store = store
        self._places = asyncio.Semaphore(settings.limits.requests)

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
                async with self._places:
                    body = await self._body(request)
                    self._authenticate(request, credential, keys[credential.name], body)
                    response = await self._once(request, credential, body, handler)
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
        return credential

    async def _body(self, request: web.Request) -> bytes:
        try:
            return await asyncio.wait_for(request.read(), self.settings.limits.seconds)
        except asyncio.TimeoutError as error:
            raise RefusedError("the request did not arrive in time", 408, "slow") from error
        except web.HTTPRequestEntityTooLarge as error:
            raise RefusedError("the request is too long", 413, "too-large") from error

    def _authenticate(
        self, request: web.Request, credential: Credential, key: Any, body: bytes
    ) -> None:
        genuine = credential.verify(
            key,
            server=self.settings.name,
            study=self._study.fingerprint,
            method=request.method,
            path=request.raw_path,
            body=body,
        )
        if not genuine:
            raise RefusedError(
                "the signature is wrong: another key, another study file than this server's "
                f"(fingerprint {self._study.fingerprint[:12]}), or a request that was changed",
                401,
                "signature",
            )

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
