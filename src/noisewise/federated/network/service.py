"""The aggregation server's HTTP interface: who may ask for what, and in which limits.

=======  ==========================  =========  =================================================
method   path                        who        what
=======  ==========================  =========  =================================================
GET      /v1/health                  anybody    name of the server, study and round; fingerprint
PUT      /v1/contributions/ID        party      manifest and first piece of a contribution
PUT      /v1/contributions/ID/PIECE  party      a further piece
GET      /v1/contributions/ID        party      whether it is complete, and what is missing
DELETE   /v1/contributions/ID        party      withdraw it, unless a release has used it
GET      /v1/contributions           analyst    identifiers of all complete contributions
GET      /v1/progress                analyst    how many are complete, who is not, what is spent
GET      /v1/releases/NAME           analyst    which contributions a release was about
PUT      /v1/releases/NAME           analyst    make a release, or get the same answer again
=======  ==========================  =========  =================================================

Everything but the first is signed (:mod:`noisewise.federated.network.identity`). A request is
refused before its body is read if it is too long or its sender is unknown.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

from aiohttp import web

from noisewise.federated.network.errors import NetworkError, RefusedError
from noisewise.federated.network.identity import Credential
from noisewise.federated.network.intake import Intake, use_nonce
from noisewise.federated.network.manifest import Manifest, unframe
from noisewise.federated.network.measurement import Measurement
from noisewise.federated.network.releases import Releases, open_ledger
from noisewise.federated.network.routes import route_of
from noisewise.federated.network.settings import ServerSettings
from noisewise.federated.network.store import Connection, Store
from noisewise.privacy.ledger import Ledger

__all__ = ["NONCE_HEADER", "Service"]

Result = TypeVar("Result")
Handler: TypeAlias = Callable[[web.Request, str, bytes], Awaitable[web.Response]]

NONCE_HEADER = "Noisewise-Nonce"
_IDENTIFIER = re.compile(r"[0-9a-f]{64}")
_RELEASE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_log = logging.getLogger("noisewise.federated")


class Service:
    """One aggregation server: its state and its handlers.

    Parameters
    ----------
    settings : ServerSettings
    """

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        study = settings.study
        self._study = study
        route = route_of(study)
        self._store = Store(settings.state, {"study": study.fingerprint, "server": settings.name})
        self._ledger: Ledger | None = None
        try:
            self._ledger = open_ledger(settings.state, study)
            self._releases = Releases(study, settings.name, self._store, route, self._ledger)
        except BaseException:
            self.close()
            raise
        self._intake = Intake(study, settings.name, route, settings.limits)
        self._places = asyncio.Semaphore(settings.limits.requests)

    def close(self) -> None:
        """Finish what is being written and let go of the state."""
        self._store.close()
        if self._ledger is not None:
            self._ledger.close()

    def application(self) -> web.Application:
        """Return the web application."""
        party, analyst = self._study.party_keys, self._study.analyst_keys
        application = web.Application(client_max_size=self.settings.limits.largest_request)
        one = "/v1/contributions/{identifier}"
        application.add_routes(
            [
                web.get("/v1/health", self._health),
                web.put(one, self._signed(party, self._begin)),
                web.put(one + "/{piece}", self._signed(party, self._proceed)),
                web.get(one, self._signed(party, self._state)),
                web.delete(one, self._signed(party, self._withdraw)),
                web.get("/v1/contributions", self._signed(analyst, self._list)),
                web.get("/v1/progress", self._signed(analyst, self._progress)),
                web.get("/v1/releases/{name}", self._signed(analyst, self._find)),
                web.put("/v1/releases/{name}", self._signed(analyst, self._release)),
            ]
        )
        return application

    # --------------------------------------------------------------------- access

    def _signed(
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

    async def _do(self, request: web.Request, job: Callable[[Connection], Result]) -> Result:
        """Run a job together with the note that this request was here, in one transaction."""
        nonce, now, expires = request["nonce"]

        def noted(connection: Connection) -> Result:
            use_nonce(connection, nonce, now, expires)
            return job(connection)

        return await asyncio.wrap_future(self._store.submit(noted))

    # ------------------------------------------------------------------- handlers

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                "server": self.settings.name,
                "study": self._study.name,
                "round": self._study.round,
                "fingerprint": self._study.fingerprint,
            }
        )

    async def _begin(self, request: web.Request, sender: str, body: bytes) -> web.Response:
        try:
            head, first = unframe(body)
            manifest = Manifest.decode(head)
        except ValueError as error:
            raise RefusedError(str(error), 422, "wrong-manifest") from error
        share = self._intake.check(manifest, _identifier(request), sender)
        missing = await self._do(
            request, lambda connection: self._intake.begin(connection, manifest, share, first)
        )
        return web.json_response({"complete": not missing, "missing": missing})

    async def _proceed(self, request: web.Request, sender: str, body: bytes) -> web.Response:
        identifier, text = _identifier(request), request.match_info["piece"]
        if not text.isdecimal() or len(text) > 9:
            raise RefusedError("pieces are numbered", 422, "wrong-piece")
        missing = await self._do(
            request,
            lambda connection: self._intake.proceed(
                connection, identifier, sender, int(text), body
            ),
        )
        return web.json_response({"complete": not missing, "missing": missing})

    async def _state(self, request: web.Request, sender: str, body: bytes) -> web.Response:
        identifier = _identifier(request)
        state = await self._do(
            request, lambda connection: self._intake.state(connection, identifier, sender)
        )
        return web.json_response(state)

    async def _withdraw(self, request: web.Request, sender: str, body: bytes) -> web.Response:
        identifier = _identifier(request)
        await self._do(
            request, lambda connection: self._intake.withdraw(connection, identifier, sender)
        )
        return web.json_response({"withdrawn": identifier})

    async def _list(self, request: web.Request, sender: str, body: bytes) -> web.Response:
        identifiers = await self._do(request, self._intake.complete)
        return web.Response(body=b"".join(map(bytes.fromhex, identifiers)))

    async def _progress(self, request: web.Request, sender: str, body: bytes) -> web.Response:
        done, begun = await self._do(request, self._intake.progress)
        absent = [member.name for member in self._study.parties if member.name not in done]
        spent = await asyncio.to_thread(self._releases.spent)
        return web.json_response(
            {
                "complete": len(done),
                "parties": len(self._study.parties),
                "begun": sorted(begun)[:50],
                "absent": absent[:50],
                "epsilon_spent": spent,
                "epsilon_allowed": None if spent is None else self._study.epsilon,
            }
        )

    async def _find(self, request: web.Request, sender: str, body: bytes) -> web.Response:
        name = _release_name(request)
        await self._do(request, lambda connection: None)
        found = await asyncio.to_thread(self._releases.find, name)
        if found is None:
            raise RefusedError("no release of this name was made here", 404, "unknown")
        return web.Response(body=b"".join(map(bytes.fromhex, found[1])))

    async def _release(self, request: web.Request, sender: str, body: bytes) -> web.Response:
        name = _release_name(request)
        await self._do(request, lambda connection: None)
        try:
            fields = json.loads(body)
            wanted, excluded = fields["set"], fields["excluded"]
            if not isinstance(wanted, str) or not isinstance(excluded, list):
                raise TypeError("wrong types")
            question = fields["question"]
        except (ValueError, TypeError, KeyError) as error:
            raise RefusedError("not a request for a release", 422, "bad-request") from error

        def make() -> bytes:
            # Planning the noise may take a second, and adding up shares longer.
            measurement = Measurement.decode(self._study, question)
            return self._releases.release(name, measurement, wanted, excluded)

        answer = await asyncio.to_thread(make)
        _log.info("release %s for %s", name, sender)
        return web.Response(body=answer)


def _identifier(request: web.Request) -> str:
    text: str = request.match_info["identifier"]
    if not _IDENTIFIER.fullmatch(text):
        raise RefusedError("a contribution is named by 64 hexadecimal digits", 422, "bad-request")
    return text


def _release_name(request: web.Request) -> str:
    text: str = request.match_info["name"]
    if not _RELEASE.fullmatch(text):
        raise RefusedError("release names: letters, digits, '.', '_', '-'", 422, "bad-request")
    return text


def _refusal(error: RefusedError) -> web.Response:
    return web.json_response({"error": str(error), "code": error.code}, status=error.status)
