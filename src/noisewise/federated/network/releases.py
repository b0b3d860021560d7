"""What leaves a server: its share of a sum with its noise in it, stored before it is sent.

The order is what makes it safe. For a release that was not made before:

1. the cost is charged to the ledger, which is durable when that returns;
2. the share of the sums is computed and this server's *full* noise is added to it;
3. the noisy share is stored, durably;
4. it is sent.

Killed after 1, the server makes the release when asked again, under the charge that exists;
after 3, it sends what it stored. So one name stands for one charge and one noise, whatever
happens, and asking again costs nothing. Noise is in every share before it leaves; the
analyst, who adds the shares up, never meets a sum without noise.

Each server charges its own ledger, from its own noise alone. Its ledger is a true bound whatever
the analyst asks of the others: given the others' shares and noise, everything that the
analyst sees is computed from this server's noisy shares.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noisewise.ecdf.mechanisms.protocol import IntArray
from noisewise.errors import BudgetExceededError, NoisewiseError
from noisewise.federated.network.errors import ConfigurationError, RefusedError
from noisewise.federated.network.intake import Intake
from noisewise.federated.network.manifest import frame, set_digest
from noisewise.federated.network.measurement import Measurement
from noisewise.federated.network.routes import Route
from noisewise.federated.network.store import Connection, Store, members_of
from noisewise.federated.network.study import Study
from noisewise.privacy.events import Event
from noisewise.privacy.ledger import Ledger
from noisewise.privacy.randomness import Randomness, resolve

__all__ = ["Releases", "charge_once", "check_paid", "open_ledger"]


def open_ledger(folder: Path, study: Study) -> Ledger | None:
    """Return the round's ledger, a new one if there is none; none at all for a noiseless test."""
    if study.noiseless_test:
        return None
    path = folder / "budget.ledger"
    if path.exists() and path.stat().st_size:
        return Ledger.open(path)
    return Ledger.create(path, epsilon=study.epsilon, delta=study.delta, relation=study.relation)


def check_paid(ledger: Ledger, made: set[str]) -> None:
    """Refuse to go on with a ledger that does not know of a release that was made."""
    paid = {note.split(" ")[1] for _, note in ledger.entries}
    forgotten = sorted(made - paid)
    if forgotten:
        raise ConfigurationError(
            f"release {forgotten[0]!r} was made, but {str(ledger.path)!r} does not know what it "
            "cost: the ledger was deleted or is older than the database. Restore it."
        )


def charge_once(ledger: Ledger, name: str, digest: str, event: Event) -> None:
    """Charge once for a name. A charge whose release was never stored is used up first.

    The ledger notes the name, and what exactly was asked under it.
    """
    note = f"release {name} {digest}"
    notes = [said for _, said in ledger.entries]
    if note in notes:
        return
    if any(said.split(" ")[1] == name for said in notes):
        raise RefusedError(
            "a release of this name answered another question; choose another name",
            409,
            "other-question",
        )
    try:
        ledger.charge(event, note=note)
    except BudgetExceededError as error:
        raise RefusedError(str(error), 403, "budget") from error
    except NoisewiseError as error:
        raise RefusedError(str(error), 500, "ledger") from error


@dataclass(frozen=True)
class _Wanted:
    name: str
    measurement: Measurement
    members: tuple[str, ...]

    @property
    def request(self) -> bytes:
        return self.measurement.encoded


class Releases:
    """The releases of one server in one round.

    Parameters
    ----------
    study : Study
    server : str
    store : Store
    route : Route
    ledger : Ledger or None
        None for a noiseless test only.
    rng : Randomness, optional
        Where noise comes from; by default a secure generator.
    """

    def __init__(
        self,
        study: Study,
        server: str,
        store: Store,
        route: Route,
        ledger: Ledger | None,
        rng: Randomness | None = None,
    ) -> None:
        if (ledger is None) != study.noiseless_test:
            raise ValueError("a study with noise has a ledger, a noiseless test has none")
        self.study = study
        self.server = server
        self._store = store
        self._route = route
        self._ledger = ledger
        self._rng = resolve(rng)
        self._check_ledger()
        self._lock = threading.Lock()
        self._sums: tuple[str, list[IntArray]] | None = None

    def _check_ledger(self) -> None:
        def job(connection: Connection) -> set[str]:
            return {row[0] for row in connection.execute("SELECT name FROM releases")}

        if self._ledger is not None:
            check_paid(self._ledger, self._store.submit(job).result())

    def find(self, name: str) -> tuple[bytes, tuple[str, ...], bytes] | None:
        """Return request, members and answer of a release that was made."""

        def job(connection: Connection) -> tuple[bytes, tuple[str, ...], bytes] | None:
            row = connection.execute(
                "SELECT request, members, answer FROM releases WHERE name = ?", (name,)
            ).fetchone()
            return None if row is None else (row[0], tuple(members_of(row[1])), row[2])

        return self._store.submit(job).result()

    def spent(self) -> float | None:
        """Return the epsilon that was charged so far."""
        return None if self._ledger is None else self._ledger.spent()

    def release(
        self, name: str, measurement: Measurement, wanted: str, excluded: Sequence[str]
    ) -> bytes:
        """Return the noisy share, made now or before.

        Parameters
        ----------
        name : str
            Of the release: a name has one answer.
        measurement : Measurement
            What is asked.
        wanted : str
            Digest of the set of contributions that is meant.
        excluded : sequence of str
            Those among this server's complete contributions that are not in it.
        """
        with self._lock:
            found = self.find(name)
            if found is not None:
                return self._again(measurement, wanted, found)
            members = self._members(wanted, set(excluded))
            asked = _Wanted(name, measurement, members)
            self._charge(asked)
            answer = self._make(asked)
            self._store.submit(lambda connection: _keep(connection, asked, answer)).result()
            return answer

    def _again(
        self, measurement: Measurement, wanted: str, found: tuple[bytes, tuple[str, ...], bytes]
    ) -> bytes:
        request, members, answer = found
        if request != measurement.encoded:
            raise RefusedError(
                "a release of this name answered another question; choose another name",
                409,
                "other-question",
            )
        if set_digest(members) != wanted:
            raise RefusedError(
                "a release of this name was about other contributions; choose another name",
                409,
                "other-set",
            )
        return answer

    def _members(self, wanted: str, excluded: set[str]) -> tuple[str, ...]:
        def job(connection: Connection) -> list[str]:
            rows = connection.execute("SELECT identifier FROM contributions WHERE complete = 1")
            return [row[0] for row in rows]

        members = tuple(sorted(set(self._store.submit(job).result()) - excluded))
        if set_digest(members) != wanted:
            raise RefusedError(
                "the contributions changed since the list was read; read it again", 409, "moved"
            )
        if len(members) < self.study.minimum_parties:
            raise RefusedError(
                f"{len(members)} parties are complete; this study answers from "
                f"{self.study.minimum_parties} on",
                409,
                "too-few",
            )
        return members

    def _charge(self, asked: _Wanted) -> None:
        if self._ledger is not None:
            charge_once(self._ledger, asked.name, asked.measurement.digest, asked.measurement.event)

    def _make(self, asked: _Wanted) -> bytes:
        domains = [domain.digest for domain in self._route.domains]
        place = domains.index(asked.measurement.question.domain.digest)
        share = asked.measurement.measure(self._totals(asked.members)[place])
        if not self.study.noiseless_test:
            # Wraps around modulo 2^64, like the shares themselves.
            share = share + asked.measurement.draw_share(self._rng)
        head: dict[str, Any] = {
            "server": self.server,
            "name": asked.name,
            "request": asked.measurement.digest,
            "set": set_digest(asked.members),
            "contributions": len(asked.members),
            "records": self._records(asked.members),
            "map": asked.measurement.fingerprint,
            "noise": "none: a test" if self._ledger is None else self._rng.description,
        }
        return frame(json.dumps(head, sort_keys=True).encode(), share.astype("<i8").tobytes())

    def _totals(self, members: tuple[str, ...]) -> list[IntArray]:
        digest = set_digest(members)
        if self._sums is None or self._sums[0] != digest:

            def job(connection: Connection) -> list[IntArray]:
                shares = (Intake.data(connection, identifier) for identifier in members)
                return self._route.add(self.study.server_index(self.server), shares)

            self._sums = (digest, self._store.read(job))
        return self._sums[1]

    def _records(self, members: tuple[str, ...]) -> int | None:
        if not self.study.relation.count_is_public:
            return None
        wanted = set(members)

        def job(connection: Connection) -> int:
            rows = connection.execute(
                "SELECT identifier, records FROM contributions WHERE complete = 1"
            )
            return sum(records for identifier, records in rows if identifier in wanted)

        return self._store.submit(job).result()


def _keep(connection: Connection, asked: _Wanted, answer: bytes) -> None:
    members = b"".join(bytes.fromhex(identifier) for identifier in asked.members)
    connection.execute(
        "INSERT INTO releases VALUES (?, ?, ?, ?)", (asked.name, asked.request, members, answer)
    )
