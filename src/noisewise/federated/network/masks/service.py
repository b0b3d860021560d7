"""The server of a masked round: it passes on what it cannot read and sums what is masked.

=======  ==================  =========  ======================================================
method   path                who        what
=======  ==================  =========  ======================================================
GET      /v1/health          anybody    name of the server, study and round; fingerprint
PUT      /v1/masked/STAGE    party      its message of a stage, 1 to 4
GET      /v1/masked/STAGE    party      what it needs after a stage, or for whom it has to wait
GET      /v1/masked/result   analyst    the noisy sums, once enough parties have revealed
GET      /v1/progress        analyst    which stage is open, who is missing, what is spent
=======  ==================  =========  ======================================================

The release is charged to the ledger before any party is told whose vectors arrived: only then
can the sum be unmasked. It has one name, so it is charged once whatever happens.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import threading
import time

from aiohttp import web

from noisewise.federated.masking import (
    AggregationError,
    MaskedVector,
    MaskingServer,
    Revelation,
)
from noisewise.federated.network.access import Access
from noisewise.federated.network.errors import ConfigurationError, RefusedError
from noisewise.federated.network.manifest import frame
from noisewise.federated.network.masks.round import RELEASE, STAGES, MaskedRound
from noisewise.federated.network.masks.stages import (
    ADVERTISE,
    MASK,
    REVEAL,
    SHARE,
    Stages,
    Waiting,
    split_sealed,
)
from noisewise.federated.network.releases import charge_once, check_paid
from noisewise.federated.network.settings import ServerSettings
from noisewise.federated.network.state import ServerState
from noisewise.federated.network.store import Connection
from noisewise.federated.sharing.additive import Words, as_signed

__all__ = ["MaskedService"]

_log = logging.getLogger("noisewise.federated")


class MaskedService:
    """One aggregation server of a study with route "masks".

    Parameters
    ----------
    settings : ServerSettings
    """

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self._round = MaskedRound(settings.study)
        longest = 4 + 8 * self._round.session.size
        if longest > settings.limits.largest_request:
            raise ConfigurationError(
                f"a masked vector of this study has {longest} bytes, more than largest_request = "
                f"{settings.limits.largest_request}: raise it under [limits]"
            )
        self._stages = Stages(self._round)
        self._lock = threading.Lock()
        self._state = ServerState(settings)
        self._store, self._ledger = self._state.store, self._state.ledger
        try:
            self._check_ledger()
        except BaseException:
            self.close()
            raise
        self._access = Access(settings, self._store)

    def close(self) -> None:
        """Finish what is being written and let go of the state."""
        self._state.close()

    def application(self) -> web.Application:
        """Return the web application."""
        study = self._round.study
        party, analyst = study.party_keys, study.analyst_keys
        application = web.Application(client_max_size=self.settings.limits.largest_request)
        signed = self._access.signed
        application.add_routes(
            [
                web.get("/v1/health", self._access.health),
                web.get("/v1/masked/result", signed(analyst, self._result)),
                web.put("/v1/masked/{stage}", signed(party, self._take)),
                web.get("/v1/masked/{stage}", signed(party, self._follow)),
                web.get("/v1/progress", signed(analyst, self._progress)),
            ]
        )
        return application

    def _check_ledger(self) -> None:
        """Refuse to go on with a ledger that does not know of a sum that could be unmasked."""

        def job(connection: Connection) -> set[str]:
            revealed = connection.execute(
                "SELECT 1 FROM messages WHERE stage = ? LIMIT 1", (REVEAL,)
            ).fetchone()
            return set() if revealed is None else {RELEASE}

        if self._ledger is not None:
            check_paid(self._ledger, self._store.submit(job).result())

    # ------------------------------------------------------------------- handlers

    async def _take(self, request: web.Request, sender: str, body: bytes) -> web.Response:
        stage = _stage(request)
        now = time.time()
        await self._access.do(
            request, lambda connection: self._stages.take(connection, stage, sender, body, now)
        )
        return web.json_response({"stored": True})

    async def _follow(self, request: web.Request, sender: str, body: bytes) -> web.Response:
        stage = _stage(request)
        if stage == REVEAL:
            raise RefusedError("nothing follows the last stage for a party", 404, "unknown")
        now = time.time()
        found = await self._access.do(
            request, lambda connection: self._stages.follow(connection, stage, sender, now)
        )
        if isinstance(found, Waiting):
            head = {"closed": False, "present": found.present, "missing": found.missing}
            return web.Response(body=frame(json.dumps(head).encode(), b""))
        if stage == MASK:
            await asyncio.to_thread(self._charge)
        return web.Response(body=frame(json.dumps({"closed": True}).encode(), found))

    async def _result(self, request: web.Request, sender: str, body: bytes) -> web.Response:
        now = time.time()

        def job(connection: Connection) -> Waiting | None:
            stage = self._stages.open_stage(connection, now)
            return None if stage is None else self._stages.waiting(connection, stage)

        waiting = await self._access.do(request, job)
        if waiting is not None:
            raise RefusedError(
                f"the round is in the stage '{STAGES[waiting.stage - 1]}': "
                f"{len(waiting.present)} parties have done their part, "
                f"{self._round.session.threshold} are needed; missing: "
                f"{', '.join(waiting.missing[:10]) or 'nobody'}. Wait for them, or start a new "
                "round.",
                409,
                "not-ready",
            )
        answer = await asyncio.to_thread(self._total)
        _log.info("release %s for %s", RELEASE, sender)
        return web.Response(body=answer)

    async def _progress(self, request: web.Request, sender: str, body: bytes) -> web.Response:
        now = time.time()

        def job(connection: Connection) -> tuple[int | None, Waiting, int]:
            stage = self._stages.open_stage(connection, now)
            vectors = connection.execute(
                "SELECT COUNT(*) FROM messages WHERE stage = ?", (MASK,)
            ).fetchone()[0]
            return stage, self._stages.waiting(connection, stage or REVEAL), vectors

        stage, waiting, vectors = await self._access.do(request, job)
        ledger = self._ledger
        spent = None if ledger is None else await asyncio.to_thread(ledger.spent)
        return web.json_response(
            {
                "stage": "done" if stage is None else STAGES[stage - 1],
                "complete": vectors,
                "parties": self._round.session.parties,
                "absent": [] if stage is None else list(waiting.missing[:50]),
                "epsilon_spent": spent,
                "epsilon_allowed": None if spent is None else self._round.study.epsilon,
            }
        )

    # -------------------------------------------------------------------- release

    def _charge(self) -> None:
        with self._lock:
            if self._ledger is not None:
                digest = self._round.measurement.digest
                charge_once(self._ledger, RELEASE, digest, self._round.event)

    def _total(self) -> bytes:
        """Return the noisy sums, unmasked now or before; every time the same ones."""
        self._charge()
        with self._lock:
            found = self._store.read(_find)
            if found is not None:
                return found
            messages = self._store.read(self._stages.everything)
            try:
                words = _unmask(self._round, messages)
            except AggregationError as error:
                raise RefusedError(
                    f"this round gives no result: {error}", 409, "aggregation"
                ) from error
            sums = as_signed(words)
            arrived = sorted(messages[MASK])
            public = self._round.study.relation.count_is_public
            head = {
                "server": self.settings.name,
                "name": RELEASE,
                "request": self._round.measurement.digest,
                "map": self._round.measurement.fingerprint,
                "arrived": [self._round.name_of(number) for number in arrived],
                "records": int(sums[-1]) if public else None,
            }
            answer = frame(
                json.dumps(head, sort_keys=True).encode(), sums[:-1].astype("<i8").tobytes()
            )
            members = b"".join(hashlib.sha256(messages[MASK][n]).digest() for n in arrived)
            request = self._round.measurement.encoded
            self._store.submit(
                lambda connection: (
                    connection.execute(
                        "INSERT OR IGNORE INTO releases VALUES (?, ?, ?, ?)",
                        (RELEASE, request, members, answer),
                    ).rowcount
                )
            ).result()
            return answer


def _find(connection: Connection) -> bytes | None:
    row = connection.execute("SELECT answer FROM releases WHERE name = ?", (RELEASE,)).fetchone()
    return None if row is None else bytes(row[0])


def _unmask(round_: MaskedRound, messages: dict[int, dict[int, bytes]]) -> Words:
    """Replay all messages through the protocol's own server, which checks them again."""
    server = MaskingServer(round_.session)
    for data in messages[ADVERTISE].values():
        for message in round_.open_advertisements(data):
            server.take_advertisement(message)
    server.advertisements()
    for sender, data in messages[SHARE].items():
        server.take_shares(sender, split_sealed(data))
    for sender in messages[SHARE]:
        server.inbox(sender)
    for data in messages[MASK].values():
        server.take_vector(MaskedVector.from_bytes(data, round_.session.size))
    server.arrived()
    for data in messages[REVEAL].values():
        server.take_revelation(Revelation.from_bytes(data))
    return server.total()


def _stage(request: web.Request) -> int:
    text: str = request.match_info["stage"]
    if text not in {"1", "2", "3", "4"}:
        raise RefusedError("stages are numbered from 1 to 4", 404, "unknown")
    return int(text)
