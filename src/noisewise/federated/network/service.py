"""The aggregation server's HTTP interface: who may ask for what, and in which limits.

=======  ==========================  =========  =================================================
method   path                        who        what
=======  ==========================  =========  =================================================
GET      /v1/health                  anybody    name of the server, study and round; fingerprint
PUT      /v1/contributions/ID        party      manifest and first piece of a contribution
PUT      /v1/contributions/ID/PIECE  party      a further piece
GET      /v1/contributions/ID        party      whether it is complete, and what is missing
DELETE   /v1/contributions/ID        party      withdraw it, unless a release uses it
GET      /v1/contributions           analyst    identifiers of all complete contributions
GET      /v1/progress                analyst    how many are complete, who is not, what is spent
GET      /v1/checks                  analyst    which sets of contributions were challenged
PUT      /v1/checks/SET              analyst    fix a set to be checked; get this server's seed
PUT      /v1/checks/SET/challenge    analyst    tell all servers' seeds
GET      /v1/checks/SET/PLACE        analyst    proofs of the set's contributions from there on
PUT      /v1/reservations/NAME       analyst    fix the contributions of a release; costs nothing
DELETE   /v1/reservations/NAME       analyst    give its own reservation up
GET      /v1/releases/NAME           analyst    which contributions a release was about
PUT      /v1/releases/NAME           analyst    make what was reserved, or get the answer again
=======  ==========================  =========  =================================================

Everything but the first is signed (:mod:`noisewise.federated.network.access`).
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from noisewise.federated.network import reservations
from noisewise.federated.network.access import Access
from noisewise.federated.network.errors import RefusedError
from noisewise.federated.network.intake import Intake
from noisewise.federated.network.manifest import Manifest, unframe
from noisewise.federated.network.measurement import Measurement
from noisewise.federated.network.proving import Proving
from noisewise.federated.network.reading import read_json
from noisewise.federated.network.releases import Releases
from noisewise.federated.network.routes import route_of
from noisewise.federated.network.settings import ServerSettings
from noisewise.federated.network.state import ServerState
from noisewise.federated.network.store import Connection

__all__ = ["Service"]

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
        self._study = settings.study
        route = route_of(self._study)
        self._state = state = ServerState(settings)
        try:
            self._releases = Releases(
                self._study,
                settings.name,
                state.store,
                route,
                state.ledger,
                state.marks,
                reservation_seconds=settings.limits.reservation_seconds,
            )
        except BaseException:
            self.close()
            raise
        self._proving: Proving | None = None
        if self._study.checked:
            index = self._study.server_index(settings.name)
            self._proving = Proving(self._study, route, index, state.store, state.marks)
        self._intake = Intake(self._study, settings.name, route, settings.limits)
        self._access = Access(settings, state.store, state.marks)

    def close(self) -> None:
        """Finish what is being written and let go of the state."""
        self._state.close()

    def application(self) -> web.Application:
        """Return the web application."""
        party, analyst = self._study.party_keys, self._study.analyst_keys
        application = web.Application(client_max_size=self.settings.limits.largest_request)
        one = "/v1/contributions/{identifier}"
        application.add_routes(
            [
                web.get("/v1/health", self._access.health),
                web.put(one, self._access.signed(party, self._begin)),
                web.put(one + "/{piece}", self._access.signed(party, self._proceed)),
                web.get(one, self._access.signed(party, self._status)),
                web.delete(one, self._access.signed(party, self._withdraw)),
                web.get("/v1/contributions", self._access.signed(analyst, self._list)),
                web.get("/v1/progress", self._access.signed(analyst, self._progress)),
                web.put("/v1/reservations/{name}", self._access.signed(analyst, self._reserve)),
                web.delete("/v1/reservations/{name}", self._access.signed(analyst, self._give_up)),
                web.get("/v1/releases/{name}", self._access.signed(analyst, self._find)),
                web.put("/v1/releases/{name}", self._access.signed(analyst, self._release)),
            ]
        )
        if self._proving is not None:
            one_set = "/v1/checks/{identifier}"
            application.add_routes(
                [
                    web.get("/v1/checks", self._access.signed(analyst, self._checks)),
                    web.put(one_set, self._access.signed(analyst, self._open_check)),
                    web.put(one_set + "/challenge", self._access.signed(analyst, self._challenge)),
                    web.get(one_set + "/{place}", self._access.signed(analyst, self._proofs)),
                ]
            )
        return application

    # ------------------------------------------------------------------- handlers

    async def _begin(self, request: web.Request, sender: str, body: bytes) -> web.Response:
        try:
            head, first = unframe(body)
            manifest = Manifest.decode(head)
        except ValueError as error:
            raise RefusedError(str(error), 400, "wrong-manifest") from error
        share = self._intake.check(manifest, _identifier(request), sender)
        missing = await self._access.do(
            request, lambda connection: self._intake.begin(connection, manifest, share, first)
        )
        return web.json_response({"complete": not missing, "missing": missing})

    async def _proceed(self, request: web.Request, sender: str, body: bytes) -> web.Response:
        identifier, text = _identifier(request), request.match_info["piece"]
        if not text.isdecimal() or len(text) > 9:
            raise RefusedError("pieces are numbered", 422, "wrong-piece")
        missing = await self._access.do(
            request,
            lambda connection: self._intake.proceed(
                connection, identifier, sender, int(text), body
            ),
        )
        return web.json_response({"complete": not missing, "missing": missing})

    async def _status(self, request: web.Request, sender: str, body: bytes) -> web.Response:
        identifier = _identifier(request)
        state = await self._access.do(
            request, lambda connection: self._intake.state(connection, identifier, sender)
        )
        return web.json_response(state)

    async def _withdraw(self, request: web.Request, sender: str, body: bytes) -> web.Response:
        identifier, now = _identifier(request), time.time()

        def job(connection: Connection) -> None:
            if self._intake.withdraw(connection, identifier, sender, now):
                self._state.marks.set(connection)

        await self._access.do(request, job)
        await asyncio.to_thread(self._state.marks.write)
        return web.json_response({"withdrawn": identifier})

    async def _list(self, request: web.Request, sender: str, body: bytes) -> web.Response:
        identifiers = await self._access.do(request, self._intake.complete)
        return web.Response(body=b"".join(map(bytes.fromhex, identifiers)))

    async def _progress(self, request: web.Request, sender: str, body: bytes) -> web.Response:
        done, begun = await self._access.do(request, self._intake.progress)
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

    async def _checks(self, request: web.Request, sender: str, body: bytes) -> web.Response:
        assert self._proving is not None
        await self._access.do(request, lambda connection: None)
        return web.json_response(await asyncio.to_thread(self._proving.known))

    async def _open_check(self, request: web.Request, sender: str, body: bytes) -> web.Response:
        assert self._proving is not None
        name, excluded = _identifier(request), _field(body, "excluded")
        if not isinstance(excluded, list) or not all(isinstance(item, str) for item in excluded):
            raise RefusedError("not a list of contributions", 400, "bad-json")
        await self._access.do(request, lambda connection: None)
        seed = await asyncio.to_thread(self._proving.open, name, excluded)
        return web.json_response({"seed": seed})

    async def _challenge(self, request: web.Request, sender: str, body: bytes) -> web.Response:
        assert self._proving is not None
        name, seeds = _identifier(request), _field(body, "seeds")
        await self._access.do(request, lambda connection: None)
        await asyncio.to_thread(self._proving.challenge, name, seeds)
        return web.json_response({"challenged": name})

    async def _proofs(self, request: web.Request, sender: str, body: bytes) -> web.Response:
        assert self._proving is not None
        name, place = _identifier(request), request.match_info["place"]
        if not place.isdecimal() or len(place) > 9:
            raise RefusedError("places are numbered", 422, "bad-request")
        await self._access.do(request, lambda connection: None)
        return web.Response(body=await asyncio.to_thread(self._proving.page, name, int(place)))

    async def _find(self, request: web.Request, sender: str, body: bytes) -> web.Response:
        name = _release_name(request)
        await self._access.do(request, lambda connection: None)
        found = await asyncio.to_thread(self._releases.find, name)
        if found is None:
            raise RefusedError("no release of this name was made here", 404, "unknown")
        return web.Response(body=b"".join(map(bytes.fromhex, found.members)))

    async def _reserve(self, request: web.Request, sender: str, body: bytes) -> web.Response:
        name, asked = _release_name(request), _Asked.read(body)
        await self._access.do(request, lambda connection: None)

        def job() -> None:
            measurement = Measurement.decode(self._study, asked.question)
            self._releases.reserve(name, sender, measurement, asked.set, asked.excluded)

        await asyncio.to_thread(job)
        return web.json_response({"reserved": name})

    async def _give_up(self, request: web.Request, sender: str, body: bytes) -> web.Response:
        name = _release_name(request)
        await self._access.do(
            request, lambda connection: reservations.give_up(connection, name, sender)
        )
        return web.json_response({"given up": name})

    async def _release(self, request: web.Request, sender: str, body: bytes) -> web.Response:
        name, asked = _release_name(request), _Asked.read(body)
        await self._access.do(request, lambda connection: None)

        def make() -> bytes:
            # Planning the noise may take a second, and adding up shares longer.
            measurement = Measurement.decode(self._study, asked.question)
            return self._releases.release(name, measurement, asked.set)

        answer = await asyncio.to_thread(make)
        _log.info("release %s for %s", name, sender)
        return web.Response(body=answer)


@dataclass(frozen=True)
class _Asked:
    """A request for a reservation or a release."""

    question: Any
    set: str
    excluded: list[str]

    @classmethod
    def read(cls, body: bytes) -> _Asked:
        """Read a request's body; refused if it is none."""
        try:
            fields = read_json(body)
            asked = cls(fields["question"], fields["set"], fields["excluded"])
        except (ValueError, TypeError, KeyError) as error:
            raise RefusedError(f"not a request for a release: {error}", 400, "bad-json") from error
        listed = isinstance(asked.excluded, list) and all(
            isinstance(item, str) for item in asked.excluded
        )
        if not isinstance(asked.set, str) or not listed:
            raise RefusedError("not a request for a release", 400, "bad-json")
        return asked


def _field(body: bytes, name: str) -> Any:
    try:
        return read_json(body)[name]
    except (ValueError, TypeError, KeyError) as error:
        raise RefusedError(f"{name!r} is missing", 400, "bad-json") from error


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
