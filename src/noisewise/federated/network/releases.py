"""What leaves a server: its share of a sum with its noise in it, stored before it is sent.

The order is what makes it safe. For a release that was not made before:

1. its contributions are reserved (:mod:`~noisewise.federated.network.reservations`);
2. the share of the sums is computed and this server's *full* noise is added to it;
3. the noisy share is stored, durably, where nobody sees it yet;
4. its cost is charged to the ledger, durably, together with the SHA-256 of the noisy share;
5. it becomes a release, with a mark (:mod:`~noisewise.federated.network.marks`), and is sent.

Killed before 4, the server has spent nothing and forgets what it made. Killed after 4, it finds the
noisy share that the ledger names and goes on with that very one. If it does not find it, its
database is not the one that the ledger was charged from, and it neither starts nor draws other
noise. So one charge stands for one noise, whatever happens and whatever is restored, and asking
again gives the same bits. Noise is in every share before it leaves; the analyst, who adds the
shares up, never meets a sum without noise.

Each server charges its own ledger, from its own noise alone. Its ledger is a true bound whatever
the analyst asks of the others: given the others' shares and noise, everything that the
analyst sees is computed from this server's noisy shares.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from noisewise.ecdf.mechanisms import IntArray
from noisewise.errors import BudgetExceededError, ChargeConflictError, NoisewiseError
from noisewise.federated.network import reservations
from noisewise.federated.network.errors import ConfigurationError, RefusedError
from noisewise.federated.network.intake import Intake
from noisewise.federated.network.manifest import frame, set_digest
from noisewise.federated.network.marks import Marks
from noisewise.federated.network.measurement import Measurement
from noisewise.federated.network.reservations import Reservation
from noisewise.federated.network.routes import Route
from noisewise.federated.network.settings import Limits
from noisewise.federated.network.store import Connection, Store
from noisewise.federated.network.study import Study
from noisewise.federated.noise import SharedMechanism
from noisewise.federated.sharing.field import PRIME
from noisewise.privacy import Ledger, Randomness, epsilon_of
from noisewise.privacy.randomness import resolve
from noisewise.release import NamedAccount, ThisProcess, release, with_share

__all__ = ["Releases", "charged", "key_of", "pay_for_kept"]

_KEY = "release "


def key_of(name: str) -> str:
    """Return the key under which a release is charged."""
    return _KEY + name


def charged(ledger: Ledger) -> dict[str, str | None]:
    """Return the releases that were charged by name, each with the digest of what was released.

    Version 0.1 charged without keys; those releases have no digest.
    """
    found: dict[str, str | None] = {}
    for charge in ledger.charges:
        if charge.key is not None and charge.key.startswith(_KEY):
            found[charge.key[len(_KEY) :]] = charge.digest
        elif charge.key is None and charge.note.startswith(_KEY):
            found[charge.note.split(" ")[1]] = None
    return found


def pay_for_kept(
    ledger: Ledger, name: str, asked: Measurement, mechanism: SharedMechanism, digest: str
) -> None:
    """Charge for a release that is kept already, unless it was charged for these very bits before.

    Parameters
    ----------
    ledger : Ledger
    name : str
        Of the release.
    asked : Measurement
    mechanism : SharedMechanism
        The noise that is in it.
    digest : str
        SHA-256 of what is released.

    Raises
    ------
    RefusedError
        If the budget does not allow it, or something else was charged under this name.
    """
    account = _account(ledger, name, asked.digest, lambda kept: kept, kept=digest)
    with _refusals():
        release(asked.question.query_of_cells, mechanism, ThisProcess(), account, delta=None)


def _account(
    ledger: Ledger, name: str, question: str, keep: Callable[[Any], str], kept: Any = None
) -> NamedAccount:
    return NamedAccount(ledger, key_of(name), f"{_KEY}{name} {question}", keep, kept)


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Say what a ledger refuses to whoever asked over the network."""
    try:
        yield
    except RefusedError:
        raise
    except BudgetExceededError as error:
        raise RefusedError(str(error), 403, "budget") from error
    except ChargeConflictError as error:
        raise RefusedError(
            "a release of this name was paid for, and this is another one; choose another name",
            409,
            "other-answer",
        ) from error
    except NoisewiseError as error:
        raise RefusedError(str(error), 500, "ledger") from error


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
    marks : Marks
    rng : Randomness, optional
        Where noise comes from; by default a secure generator.
    reservation_seconds : float
        How long a reservation holds its part of the budget while nothing is made of it.

    Raises
    ------
    ConfigurationError
        If database and ledger do not know of the same releases.
    """

    def __init__(
        self,
        study: Study,
        server: str,
        store: Store,
        route: Route,
        ledger: Ledger | None,
        marks: Marks,
        rng: Randomness | None = None,
        *,
        reservation_seconds: float = Limits.reservation_seconds,
    ) -> None:
        if (ledger is None) != study.noiseless_test:
            raise ValueError("a study with noise has a ledger, a noiseless test has none")
        self.study = study
        self.server = server
        self._store = store
        self._route = route
        self._ledger = ledger
        self._marks = marks
        self._rng = resolve(rng)
        self._lock, self._reserving = threading.Lock(), threading.Lock()
        self._reservation_seconds = reservation_seconds
        self._sums: tuple[str, list[IntArray]] | None = None
        self._go_on()
        marks.start()

    def _go_on(self) -> None:
        """Finish what was paid for, forget what was not, and refuse what does not fit."""
        paid = {} if self._ledger is None else charged(self._ledger)
        made, prepared = self._store.read(_digests)
        for name, digest in paid.items():
            if digest is not None and digest not in (made.get(name), prepared.get(name)):
                raise ConfigurationError(
                    f"release {name!r} was charged, but the database does not hold what was "
                    "released: it is older than the ledger, or another one. Restore it to its "
                    "latest state, or start a new round."
                )
        for name, digest in made.items():
            if self._ledger is not None and paid.get(name, "") not in (digest, None):
                raise ConfigurationError(
                    f"release {name!r} was made, but {str(self._ledger.path)!r} does not know what "
                    "it cost: the ledger was deleted, or is older than the database. Restore it to "
                    "its latest state, or start a new round."
                )

        def job(connection: Connection) -> None:
            for name, digest in prepared.items():
                if digest is not None and paid.get(name) == digest:
                    reservations.finish(connection, name)
                else:
                    reservations.forget(connection, name)

        self._store.submit(job).result()

    def find(self, name: str) -> Reservation | None:
        """Return a release that was made."""
        return self._store.submit(lambda connection: reservations.find(connection, name)).result()

    def spent(self) -> float | None:
        """Return the epsilon that was charged so far."""
        return None if self._ledger is None else self._ledger.spent()

    def reserve(
        self,
        name: str,
        analyst: str,
        measurement: Measurement,
        wanted: str,
        excluded: Sequence[str],
    ) -> None:
        """Fix the contributions of a release; nothing is spent.

        Parameters
        ----------
        name : str
            Of the release: a name has one answer.
        analyst : str
            Who may give the reservation up again.
        measurement : Measurement
            What is asked.
        wanted : str
            Digest of the set of contributions that is meant.
        excluded : sequence of str
            Those among this server's complete contributions that are not in it.
        """
        self._marks.check()
        minimum, now = self.study.minimum_parties, time.time()
        with self._reserving:
            if self.find(name) is None:
                self._check_budget(name, measurement, now)
            self._store.submit(
                lambda connection: reservations.reserve(
                    connection, name, analyst, measurement.encoded, wanted, excluded, minimum, now
                )
            ).result()

    def _check_budget(self, name: str, measurement: Measurement, now: float) -> None:
        """Refuse what cannot be paid with all else that is reserved, before anybody pays."""
        if self._ledger is None:
            return
        if name in charged(self._ledger):
            raise RefusedError(
                "a release of this name was paid for and its answer is lost; choose another name",
                409,
                "other-answer",
            )
        before = now - self._reservation_seconds
        held = [
            Measurement.decode(self.study, json.loads(request)).event
            for request in self._store.submit(
                lambda connection: reservations.others(connection, name, before)
            ).result()
        ]
        after = epsilon_of(
            (*self._ledger.history, *held, measurement.event),
            delta=self.study.delta,
            relation=self.study.relation,
            accountant=self._ledger.accountant,
        )
        if after > self.study.epsilon:
            also = f" with the {len(held)} others that are reserved" if held else ""
            raise RefusedError(
                f"this release would exceed the budget of epsilon {self.study.epsilon:g} at delta "
                f"{self.study.delta:g}: {after:.4g} would be spent{also}. Nothing was spent",
                403,
                "budget",
            )

    def release(self, name: str, measurement: Measurement, wanted: str) -> bytes:
        """Return the noisy share, made now from what was reserved, or made before.

        Parameters
        ----------
        name : str
        measurement : Measurement
        wanted : str
            As they were reserved.
        """
        with self._lock:
            self._marks.check()
            found = self.find(name)
            if found is None:
                found = self._make_and_pay(name, measurement, wanted)
            found.check(measurement.encoded, wanted)
            if found.answer is None:
                raise RefusedError("this release has no answer", 500, "server")
            return found.answer

    def _make_and_pay(self, name: str, measurement: Measurement, wanted: str) -> Reservation:
        def begin(connection: Connection) -> Reservation:
            found = reservations.begin(connection, name)
            found.check(measurement.encoded, wanted)
            return found

        asked = self._store.submit(begin).result()
        try:
            answer = asked.answer
            if answer is None:
                answer = self._make(asked, measurement)
            elif self._ledger is not None:
                digest = hashlib.sha256(answer).hexdigest()
                pay_for_kept(self._ledger, name, measurement, measurement.mechanism, digest)
        except BaseException:
            self._let_go(name)
            raise

        def finish(connection: Connection) -> None:
            reservations.finish(connection, name)
            self._marks.set(connection)

        self._store.submit(finish).result()
        self._marks.write()
        return Reservation(name, asked.request, asked.members, answer)

    def _let_go(self, name: str) -> None:
        """End what failed, unless it was paid for: then it waits to be asked for again."""
        if self._ledger is None or self._ledger.find(key_of(name)) is None:
            self._store.submit(lambda c: reservations.forget(c, name)).result()

    def _make(self, asked: Reservation, measurement: Measurement) -> bytes:
        """Make the noisy share, keep it, and pay for it."""
        domains = [domain.digest for domain in self._route.domains]
        place = domains.index(measurement.question.domain.digest)
        histogram = self._totals(asked.members)[place]
        kept: list[bytes] = []

        def keep(share: IntArray) -> str:
            kept.append(self._framed(asked, measurement, share))
            self._store.submit(lambda c: reservations.keep(c, asked.name, kept[0])).result()
            return hashlib.sha256(kept[0]).hexdigest()

        query, modulus = measurement.question.query_of_cells, None  # modulo 2^64
        if self.study.checked:
            query, modulus = measurement.question.query_in_field, PRIME
            if measurement.question.reach * self._most(asked.members) >= PRIME // 4:
                raise RefusedError(
                    "too many records for this question's sums in the field of checked "
                    "contributions; ask with fewer bins, or with mechanism='kary'",
                    422,
                    "too-large",
                )
        if self._ledger is None:
            keep(query.measure(histogram))
        else:
            account = _account(self._ledger, asked.name, measurement.digest, keep)
            noise = measurement.mechanism
            with _refusals():
                # Wraps around, like the shares themselves.
                with_share(query, noise, histogram, self._rng, account, modulus=modulus)
        return kept[0]

    def _framed(self, asked: Reservation, measurement: Measurement, share: IntArray) -> bytes:
        head: dict[str, Any] = {
            "server": self.server,
            "name": asked.name,
            "request": measurement.digest,
            "set": set_digest(asked.members),
            "contributions": len(asked.members),
            "records": self._records(asked.members),
            "map": measurement.fingerprint,
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

    def _most(self, members: tuple[str, ...]) -> int:
        """Return a bound on the number of records that checked contributions count."""
        if self.study.route == "vectors":
            return len(members) * (self.study.most_records or 0)
        return self._count(members)

    def _records(self, members: tuple[str, ...]) -> int | None:
        return self._count(members) if self.study.relation.count_is_public else None

    def _count(self, members: tuple[str, ...]) -> int:
        wanted = set(members)

        def job(connection: Connection) -> int:
            rows = connection.execute(
                "SELECT identifier, records FROM contributions WHERE complete = 1"
            )
            return sum(records for identifier, records in rows if identifier in wanted)

        return self._store.submit(job).result()


def _digests(connection: Connection) -> tuple[dict[str, str], dict[str, str | None]]:
    """Return, by name, the SHA-256 of what was released, and of what is prepared."""
    made = {
        name: hashlib.sha256(answer).hexdigest()
        for name, answer in connection.execute("SELECT name, answer FROM releases")
    }
    prepared = {
        name: None if answer is None else hashlib.sha256(answer).hexdigest()
        for name, answer in connection.execute("SELECT name, answer FROM reservations")
    }
    return made, prepared
