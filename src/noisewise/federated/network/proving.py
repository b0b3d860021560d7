"""What a server publishes about contributions that are checked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from noisewise.federated.network import checks
from noisewise.federated.network.errors import RefusedError
from noisewise.federated.network.intake import Intake
from noisewise.federated.network.manifest import frame
from noisewise.federated.network.marks import Marks
from noisewise.federated.network.routes import Route
from noisewise.federated.network.store import Connection, Store
from noisewise.federated.network.study import Study

__all__ = ["Proving"]

#: Cells that are evaluated for one answer: a second or two.
_WORK = 1 << 27
#: Contributions in one answer.
_ROWS = 4000


@dataclass(frozen=True)
class Proving:
    """The checks of one server in one round.

    Parameters
    ----------
    study : Study
    route : Route
    server : int
        Which server this is.
    store : Store
    marks : Marks
    """

    study: Study
    route: Route
    server: int
    store: Store
    marks: Marks

    def known(self) -> dict[str, list[str]]:
        """Return the seeds of every set that was challenged."""
        found = self.store.submit(checks.challenged).result()
        return {name: [seed.hex() for seed in seeds] for name, seeds in found.items()}

    def open(self, name: str, excluded: list[str]) -> str:
        """Fix a set; return this server's random bytes for it."""
        return self.store.submit(lambda c: checks.open_check(c, name, excluded)).result().hex()

    def challenge(self, name: str, texts: Any) -> None:
        """Fix the challenge of a set, durably, before anything is published about it."""
        self.marks.check()
        seeds = _seeds(texts, len(self.study.servers))

        def job(connection: Connection) -> None:
            if checks.challenge(connection, name, seeds, self.server):
                self.marks.set(connection)

        self.store.submit(job).result()
        self.marks.write()

    def page(self, name: str, start: int) -> bytes:
        """Return proofs of some contributions of a set, from number `start` on.

        The head names each with its party and the number of words published about it (none if it
        was withdrawn), and where the next page begins.
        """
        self.marks.check()

        def job(connection: Connection) -> bytes:
            check = checks.find(connection, name)
            if check is None:
                raise RefusedError("these were not challenged here", 404, "unknown")
            rows: list[list[Any]] = []
            shares: list[bytes] = []
            records: list[int | None] = []
            work, place = 0, start
            while place < len(check.members) and work < _WORK and len(rows) < _ROWS:
                identifier = check.members[place]
                row = connection.execute(
                    "SELECT party, records FROM contributions "
                    "WHERE identifier = ? AND complete = 1",
                    (identifier,),
                ).fetchone()
                place += 1
                if row is None:
                    rows.append([identifier, "", None])
                    continue
                share = Intake.data(connection, identifier)
                if share:
                    shares.append(share)
                    records.append(row[1])
                words = self.route.words(self.server, share) if share else 0
                rows.append([identifier, row[0], words])
                work += self.route.work(self.server, share)
            published = []
            if shares:
                published = self.route.proofs(self.server, shares, records, check.seeds, name)
            head = {"rows": rows, "next": place if place < len(check.members) else None}
            data = b"".join(proofs.astype("<u8").tobytes() for proofs in published)
            return frame(json.dumps(head).encode(), data)

        return self.store.read(job)


def _seeds(texts: Any, servers: int) -> list[bytes]:
    try:
        seeds = [bytes.fromhex(text) for text in texts]
    except (TypeError, ValueError) as error:
        raise RefusedError("not a challenge", 400, "bad-json") from error
    if len(seeds) != servers or any(len(seed) != checks.SEED_BYTES for seed in seeds):
        raise RefusedError("a challenge has one string from each server", 422, "bad-request")
    return seeds
