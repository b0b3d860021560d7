"""A withdrawal comes before a release or after it, never during, and at all servers alike."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import threading
import time

import numpy as np
import pytest

pytest.importorskip("aiohttp")

from federated.network.harness import Federation
from federated.network.one_process import OneProcess
from federated.network.raw import ask
from noisewise.federated.network import (
    ClientSettings,
    NetworkError,
    RemoteAggregator,
    reservations,
)
from noisewise.federated.network.client import Client
from noisewise.federated.network.contribution import withdraw
from noisewise.federated.network.errors import RefusedError
from noisewise.federated.network.manifest import set_digest, unframe
from noisewise.federated.network.measurement import Measurement
from noisewise.federated.network.outbox import Outbox
from noisewise.federated.network.releases import Releases
from noisewise.federated.network.settings import Limits
from noisewise.federated.network.store import is_member


@pytest.fixture
def both(tmp_path):
    made = OneProcess(tmp_path, epsilon=1e6, route="vectors")
    yield made
    made.close()


def refused(job, *arguments, **options):
    with pytest.raises(RefusedError) as caught:
        job(*arguments, **options)
    return caught.value.code


def test_a_withdrawal_while_a_release_is_made_is_refused_and_the_sum_is_whole(
    tmp_path, monkeypatch
):
    made = OneProcess(tmp_path, noiseless_test=True, route="vectors")
    original, codes = Releases._totals, []

    def during(self, members):
        codes.append(refused(made.withdraw, self.server, made.members[0]))
        return original(self, members)

    monkeypatch.setattr(Releases, "_totals", during)
    assert np.array_equal(made.sums(), made.made.truth())
    assert codes == ["reserved", "reserved"]
    assert refused(made.withdraw, "alpha", made.members[0]) == "released"
    made.close()


@pytest.mark.parametrize("route", ["vectors", "functions"])
def test_a_contribution_is_withdrawn_by_its_party_alone(tmp_path, route):
    made = OneProcess(
        tmp_path, noiseless_test=True, route=route, limits=Limits(reservation_seconds=100.0)
    )
    theirs, other = made.members[0], made.parties[made.members[1]]
    before = made.stores["alpha"].read(lambda c: made.intake("alpha").data(c, theirs))
    assert refused(made.withdraw, "alpha", theirs, party=other) == "unknown"
    made.reserve("alpha", "old")
    late = time.time() + 1000
    assert refused(made.withdraw, "alpha", theirs, now=late, party=other) == "unknown"
    assert made.stores["alpha"].read(lambda c: reservations.find(c, "old", "reservations"))
    made.withdraw("alpha", "ab" * 32, party=other)  # one that never came, so nobody's
    assert made.stores["alpha"].read(lambda c: made.intake("alpha").data(c, theirs)) == before
    assert np.array_equal(made.sums(), made.made.truth())
    made.close()


def test_the_share_of_a_complete_contribution_cannot_be_deleted(both):
    with pytest.raises(NetworkError, match="keeps its share"):
        both.stores["alpha"].submit(lambda c: c.execute("DELETE FROM shares")).result()
    with pytest.raises(NetworkError, match="FOREIGN KEY"):
        both.stores["alpha"].submit(
            lambda c: c.execute("INSERT INTO shares VALUES ('x', 'nobody', 0, x'')")
        ).result()


def test_shares_that_were_kept_without_their_owner_are_taken_over(tmp_path):
    """And a contribution whose share another party deleted is not complete."""
    made = OneProcess(tmp_path, noiseless_test=True, route="vectors")
    lost, party = made.members[0], made.parties[made.members[0]]
    made.close()
    for name in made.names:
        connection = sqlite3.connect(
            made.state_folder(name) / "contributions.sqlite", isolation_level=None
        )
        connection.executescript(
            "CREATE TABLE pieces (identifier TEXT NOT NULL, piece INTEGER NOT NULL, "
            "data BLOB NOT NULL, PRIMARY KEY (identifier, piece));"
            "INSERT INTO pieces SELECT identifier, piece, data FROM shares;"
            "DROP TABLE shares; PRAGMA user_version=2;"
        )
        connection.execute("DELETE FROM pieces WHERE identifier = ?", (lost,))
        connection.close()
    made.open()
    intake = made.intake("alpha")
    assert made.stores["alpha"].read(intake.complete) == sorted(made.members[1:])
    state = made.stores["alpha"].read(lambda c: intake.state(c, lost, party))
    assert state == {"known": True, "complete": False, "missing": [0]}
    stayed = [made.parties[member] for member in made.members[1:]]
    assert np.array_equal(made.sums(members=made.members[1:]), made.made.truth(stayed))
    made.close()


def test_a_withdrawal_before_the_reservation_costs_nobody_anything(both):
    both.reserve("alpha")
    both.withdraw("beta", both.members[0])
    assert refused(both.reserve, "beta") == "moved"
    assert refused(both.make, "beta") == "not-reserved"
    assert [len(both.ledgers[name].entries) for name in both.names] == [0, 0]


def test_what_was_reserved_is_what_is_released_whatever_arrives_later(tmp_path):
    made = OneProcess(tmp_path, noiseless_test=True, route="vectors")
    members = list(made.members)
    for name in made.names:
        made.withdraw(name, members[0])
        made.reserve(name, members=members[1:])
    made.contribute(made.parties[members[0]])
    parts = [
        np.frombuffer(unframe(made.make(name, members=members[1:]))[1], "<i8")
        for name in made.names
    ]
    stayed = [made.parties[member] for member in members[1:]]
    assert np.array_equal(np.sum(parts, axis=0), made.made.truth(stayed))
    made.close()


def test_a_reservation_is_given_up_by_its_analyst_by_a_restart_or_after_a_while(tmp_path):
    made = OneProcess(
        tmp_path, epsilon=1e6, route="vectors", limits=Limits(reservation_seconds=100.0)
    )
    first = made.members[0]

    def give_up(analyst):
        made.stores["alpha"].submit(lambda c: reservations.give_up(c, "first", analyst)).result()

    made.reserve("alpha")
    give_up("somebody else")
    assert refused(made.withdraw, "alpha", first) == "reserved"
    give_up("analyst")
    assert refused(made.make, "alpha") == "not-reserved"
    made.reserve("alpha")
    made.close()
    made.open()
    assert refused(made.make, "alpha") == "not-reserved"
    made.reserve("alpha")
    assert refused(made.withdraw, "alpha", first, now=time.time() + 99) == "reserved"
    made.withdraw("alpha", first, now=time.time() + 101)
    assert refused(made.make, "alpha") == "not-reserved"
    assert made.ledgers["alpha"].entries == ()
    made.close()


def test_a_release_that_one_server_cannot_pay_is_reserved_at_none(tmp_path):
    made = OneProcess(tmp_path, epsilon=1.5, route="vectors")
    made.ask("beta", "earlier")
    made.reserve("alpha")
    assert refused(made.reserve, "beta") == "budget"
    assert made.ledgers["alpha"].entries == ()
    made.close()


def test_two_releases_that_cannot_both_be_paid_are_not_each_paid_at_another_server(tmp_path):
    made = OneProcess(tmp_path, epsilon=1.5, route="vectors")
    made.reserve("alpha", "mine")
    made.reserve("beta", "yours")
    assert refused(made.reserve, "beta", "mine") == "budget"
    assert refused(made.reserve, "alpha", "yours") == "budget"
    assert [made.ledgers[name].entries for name in made.names] == [(), ()]
    made.reserve("alpha", "mine")  # what is reserved stays so
    made.make("alpha", "mine")
    made.close()


def test_one_analyst_cannot_hold_up_everything(both):
    for number in range(16):
        both.reserve("alpha", f"r{number}")
    assert refused(both.reserve, "alpha", "one more") == "too-many"


def test_membership_in_a_stored_set_is_found_by_bisection():
    rng = random.Random(0)
    names = sorted(rng.randbytes(32).hex() for _ in range(33))
    for size in (0, 1, 2, 5, 32):
        blob = b"".join(bytes.fromhex(name) for name in names[:size])
        assert [is_member(blob, name) for name in names] == [True] * size + [False] * (33 - size)


def attempt(job, *arguments, **options):
    """Return "done", or the code of a refusal."""
    try:
        job(*arguments, **options)
    except RefusedError as error:
        return error.code
    return "done"


def race(both, rng):
    """An analyst and a party at both servers at once; return what each was told by each server."""
    reserved, released, withdrawn = {}, {}, {}
    pauses = [rng.random() * 0.004 for _ in range(4)]

    def analyst():
        time.sleep(pauses[0])
        for server in both.names:
            reserved[server] = attempt(both.reserve, server)
        if set(reserved.values()) == {"done"}:
            time.sleep(pauses[1])
            for server in both.names:
                released[server] = attempt(both.make, server)

    def party():
        for server, pause in zip(both.names, pauses[2:], strict=True):
            time.sleep(pause)
            withdrawn[server] = attempt(both.withdraw, server, both.members[0])

    threads = [threading.Thread(target=job) for job in (analyst, party)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return reserved, released, withdrawn


def test_races_of_withdrawals_and_releases_leave_no_party_in_a_sum_it_was_taken_out_of(both):
    """Threads without any order. Whatever comes first at which server: a party that was told
    "withdrawn" anywhere is in no release, and a release is paid for at all servers or at none.
    """
    rng = random.Random(1)
    seen = set()
    for number in range(100):
        if number >= 8 and seen == {True, False}:
            break
        reserved, released, withdrawn = race(both, rng)
        assert set(reserved.values()) <= {"done", "moved"}
        assert set(released.values()) <= {"done"}
        assert set(withdrawn.values()) <= {"done", "reserved", "released"}
        if released:
            assert "done" not in withdrawn.values()
        for server in both.names:
            charge = both.ledgers[server].find("release first")
            assert (charge is not None) == bool(released)
        seen.add(bool(released))
        begin_anew(both)
    assert seen == {True, False}  # both orders were met


def begin_anew(both):
    """Start both servers with new folders, and contribute again."""
    both.close()
    for server in both.names:
        shutil.rmtree(both.state_folder(server))
    both.members, both.parties = [], {}
    both.open()
    for party in both.made.data:
        both.contribute(party)


# ------------------------------------------------------------------- between processes


@pytest.fixture
def federation(tmp_path):
    made = Federation.create(
        tmp_path, np.random.default_rng(0), route="vectors", noiseless_test=True, patience=3.0,
        seconds=3.0,
    )  # fmt: skip
    with made:
        made.contribute()
        yield made


def client(made, name):
    return ClientSettings.read(made.trial.config(name))


def test_a_party_that_withdraws_between_list_and_reservation_is_in_no_share(
    federation, monkeypatch
):
    """The moment that made servers disagree: the analyst has the list, one server has changed."""
    original, withdrawals = RemoteAggregator._members, []

    async def members(self, connections, name, complete, verdict):
        found = await original(self, connections, name, complete, verdict)
        if not withdrawals:
            withdrawals.append("west")
            await withdraw_at(federation, "west", "beta")
        return found

    monkeypatch.setattr(RemoteAggregator, "_members", members)
    taken = []
    aggregator = RemoteAggregator(client(federation, "analyst"), parties=2, told=taken.append)
    sums = aggregator.ask(federation.question(), (), None)
    assert sums.noisy.tolist() == federation.truth(("north", "south")).tolist()
    assert taken[0].contributions == 2
    # What is left of it at the other server goes as well.
    withdraw(client(federation, "west"))


async def withdraw_at(federation, party, server):
    settings = client(federation, party)
    receipt = Outbox.of(settings.state, settings.study, party).receipt()
    async with Client(settings) as connection:
        await connection.request(server, "DELETE", f"/v1/contributions/{receipt['contribution']}")


def test_a_party_is_told_that_a_release_is_being_prepared_and_may_try_again(federation):
    aggregator = RemoteAggregator(client(federation, "analyst"))
    measurement = Measurement.of(federation.study, federation.question())
    status, listed, _ = ask(federation, "alpha", "GET", "/v1/contributions")
    assert status == 200
    identifiers = [listed[i : i + 32].hex() for i in range(0, len(listed), 32)]
    body = json.dumps(
        {"question": json.loads(measurement.encoded), "set": set_digest(identifiers),
         "excluded": []}
    ).encode()  # fmt: skip
    assert ask(federation, "alpha", "PUT", "/v1/reservations/r1", body)[0] == 200
    with pytest.raises(NetworkError, match="being prepared with this contribution"):
        withdraw(client(federation, "west"))
    assert ask(federation, "alpha", "DELETE", "/v1/reservations/r1")[0] == 200
    withdraw(client(federation, "west"))
    with pytest.raises(NetworkError, match="Nothing was spent"):
        aggregator.ask(federation.question(), (), None)
