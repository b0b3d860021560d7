"""The server of a masked round: it passes on what it cannot read and sums what is masked.

=======  ==================  =========  ======================================================
method   path                who        what
=======  ==================  =========  ======================================================
GET      /v1/health          anybody    name of the server, study and round; fingerprint
PUT      /v1/masked/STAGE    party      its message of a stage, 1 to 5
GET      /v1/masked/STAGE    party      what it needs after a stage, or for whom it has to wait
GET      /v1/masked/result   analyst    the noisy sums, once enough parties have revealed
GET      /v1/progress        analyst    which stage is open, who is missing, what is spent
=======  ==================  =========  ======================================================

The release is charged to the ledger before any party is told whose vectors arrived: only then
can the sum be unmasked. The charge names that list, so it is made once whatever happens; a database
with another list is not the one that was charged for.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import threading
import time

from aiohttp import web

from noisewise.federated.masking import AggregationError, MaskedVector, Revelation, unmask
from noisewise.federated.masking.session import SEALED_BYTES, SIGNATURE_BYTES
from noisewise.federated.network.access import Access
from noisewise.federated.network.errors import ConfigurationError, RefusedError
from noisewise.federated.network.manifest import frame
from noisewise.federated.network.masks.handouts import Handouts
from noisewise.federated.network.masks.round import RELEASE, STAGES, MaskedRound
from noisewise.federated.network.masks.stages import (
    ADVERTISE,
    CONFIRM,
    MASK,
    REVEAL,
    SHARE,
    Stages,
    Waiting,
)
from noisewise.federated.network.releases import charged, pay_for_kept
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
        session = self._round.session
        longest = max(4 + 8 * session.size + SIGNATURE_BYTES, SEALED_BYTES * session.parties)
        if longest > settings.limits.largest_request:
            raise ConfigurationError(
                f"a message of this study has {longest} bytes, more than largest_request = "
                f"{settings.limits.largest_request}: raise it under [limits]"
            )
        self._stages = Stages(self._round)
        self._lock = threading.Lock()
        self._charged = False
        self._state = ServerState(settings)
        self._store, self._ledger = self._state.store, self._state.ledger
        self._marks = self._state.marks
        self._handouts = Handouts(self._stages, self._store)
        try:
            self._check_ledger()
            self._marks.start()
        except BaseException:
            self.close()
            raise
        self._access = Access(settings, self._store, self._marks)

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
        """Refuse to go on if ledger and database do not know of the same list of survivors."""
        if self._ledger is None:
            return
        paid = charged(self._ledger)
        begun = self._store.read(
            lambda connection: connection.execute(
                "SELECT 1 FROM messages WHERE stage >= ? LIMIT 1", (CONFIRM,)
            ).fetchone()
        )
        if RELEASE in paid and paid[RELEASE] != self._survivors_digest():
            raise ConfigurationError(
                "the release was charged for a list of survivors that the database does not hold: "
                "it is older than the ledger, or another one. Restore it to its latest state, or "
                "start a new round."
            )
        if begun is not None and RELEASE not in paid:
            raise ConfigurationError(
                f"parties were told who survived, but {str(self._ledger.path)!r} does not know "
                "what it cost: the ledger was deleted, or is older than the database. Restore it "
                "to its latest state, or start a new round."
            )

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
        waiting = await self._access.do(
            request, lambda connection: self._stages.follow(connection, stage, sender, now)
        )
        if waiting is not None:
            head = {"closed": False, "present": waiting.present, "missing": waiting.missing}
            return web.Response(body=frame(json.dumps(head).encode(), b""))
        if stage == MASK:
            await asyncio.to_thread(self._charge)
        number = self._round.number_of(sender)
        found = await asyncio.to_thread(self._handouts.after, stage, number)
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
                f"{waiting.present} parties have done their part, "
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

    def _survivors_digest(self) -> str | None:
        """Return the SHA-256 of question, keys and survivors; None before they are known."""
        said = self._store.read(self._stages.survivors)
        if said is None:
            return None
        return hashlib.sha256(self._round.measurement.encoded + said).hexdigest()

    def _charge(self) -> None:
        with self._lock:
            if self._charged or self._ledger is None:
                return
            self._marks.check()
            digest = self._survivors_digest()
            if digest is None:
                raise RefusedError("the list of survivors is not known yet", 409, "too-early")
            asked, noise = self._round.measurement, self._round.surviving
            pay_for_kept(self._ledger, RELEASE, asked, noise, digest)
            self._marks.start()
            self._charged = True

    def _total(self) -> bytes:
        """Return the noisy sums, unmasked now or before; every time the same ones."""
        self._charge()
        with self._lock:
            self._marks.check()
            found = self._store.read(_find)
            if found is not None:
                return found
            try:
                words = self._store.read(lambda c: _unmask(self._round, self._stages, c))
            except AggregationError as error:
                raise RefusedError(
                    f"this round gives no result: {error}", 409, "aggregation"
                ) from error
            sums = as_signed(words)
            arrived = self._store.read(lambda c: self._stages.members(c, MASK)) or []
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
            request = self._round.measurement.encoded
            members = b"".join(number.to_bytes(4, "little") for number in arrived)

            def job(connection: Connection) -> None:
                connection.execute(
                    "INSERT OR IGNORE INTO releases VALUES (?, ?, ?, ?)",
                    (RELEASE, request, members, answer),
                )
                self._marks.set(connection)

            self._store.submit(job).result()
            self._marks.write()
            return answer


def _find(connection: Connection) -> bytes | None:
    row = connection.execute("SELECT answer FROM releases WHERE name = ?", (RELEASE,)).fetchone()
    return None if row is None else bytes(row[0])


def _unmask(round_: MaskedRound, stages: Stages, connection: Connection) -> Words:
    """Add up the vectors, which were checked when they came, and remove their masks."""
    advertised = {
        number: round_.open_advertisements(data)[0]
        for number, data in stages.messages(connection, ADVERTISE)
    }
    session = round_.session
    return unmask(
        round_.session,
        advertised,
        stages.members(connection, SHARE) or [],
        (MaskedVector.from_bytes(data, session) for _, data in stages.messages(connection, MASK)),
        {
            number: Revelation.from_bytes(data)
            for number, data in stages.messages(connection, REVEAL)
        },
    )


def _stage(request: web.Request) -> int:
    text: str = request.match_info["stage"]
    if text not in {"1", "2", "3", "4", "5"}:
        raise RefusedError("stages are numbered from 1 to 5", 404, "unknown")
    return int(text)
