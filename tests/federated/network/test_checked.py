"""Parties that lie, over real sockets: found, left out, named; and nobody is asked twice."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("aiohttp")

import noisewise.federated.network.outbox as outbox_module
from federated.network.harness import Federation
from federated.network.one_process import OneProcess
from noisewise import federated
from noisewise.federated import LocalAggregator, Records, without_noise
from noisewise.federated.fss import CheckedKeys
from noisewise.federated.network import (
    ClientSettings,
    ConfigurationError,
    NetworkError,
    RefusedError,
    RemoteAggregator,
    contribute,
)
from noisewise.federated.network.client import Client
from noisewise.federated.network.manifest import set_digest, unframe
from noisewise.federated.network.proving import Proving
from noisewise.federated.network.reading import read_json
from noisewise.federated.network.routes import FunctionRoute, VectorRoute, route_of
from noisewise.federated.sharing.field import PRIME
from noisewise.privacy.randomness import resolve


def give(made, *names):
    for name in names or made.trial.parties:
        contribute(ClientSettings.read(made.trial.config(name)), made.data[name])


def analyst(made, **options):
    return RemoteAggregator(ClientSettings.read(made.trial.config("analyst")), **options)


def federation(folder, **options):
    settings = {"curves": ["roc"], "bins": 16, "checked": True, "patience": 60.0, "seconds": 15.0}
    options = {**settings, **options}
    return Federation.create(folder, np.random.default_rng(3), records=20, **options)


def add(table, number):
    table["last"][0, 0] = (int(table["last"][0, 0]) + number) % PRIME


LIES = {
    "a thousand records in one key": lambda table, server: add(table, 999),
    "a negative count": lambda table, server: add(table, PRIME - 3),
    "other seeds": lambda table, server: table["root"].__setitem__((0, 1), 12345),
    "no proof": lambda table, server: table["proof"].__setitem__(0, 7),
}


def lying(monkeypatch, lie):
    """Let whoever contributes next spoil the first of its keys, for both servers alike."""

    class Liar(FunctionRoute):
        def make(self, records):
            shares = []
            for server, data in enumerate(super().make(records)):
                domain = self.domains[0]
                length = len(data) // len(records)
                keys = CheckedKeys.from_bytes(
                    data[:length], domain.levels, server, self._tag(domain)
                )
                lie(keys.table, server)
                shares.append(keys.table.tobytes() + data[length:])
            return shares

    monkeypatch.setattr(outbox_module, "route_of", lambda study: Liar(study))


def test_honest_parties_get_the_curves_of_one_machine_to_the_bit(tmp_path):
    made = federation(tmp_path, noiseless_test=True)
    parties, quiet = list(made.data.values()), without_noise(LocalAggregator())
    options = {"epsilon": 1.0, "bins": 16, "relation": "replace-one"}
    with made:
        give(made)
        curve = federated.roc(None, analyst(made), **options)
        assert curve.auc == federated.roc(parties, quiet, **options).auc
        again = federated.roc(None, analyst(made, name="again"), **options)
        assert again.auc == curve.auc


@pytest.mark.parametrize("lie", LIES)
def test_a_party_that_lies_is_left_out_and_named(tmp_path, monkeypatch, lie):
    made = federation(tmp_path, noiseless_test=lie != "a negative count", epsilon=2.0)
    options = {"epsilon": 1.0, "bins": 16, "relation": "replace-one"}
    with made:
        give(made, "north", "west")
        with monkeypatch.context() as patch:
            lying(patch, LIES[lie])
            give(made, "south")
        taken = []
        curve = federated.roc(None, analyst(made, told=taken.append), **options)
    (told,) = taken
    assert told.excluded == ("south",)
    assert told.contributions == 2
    honest = [made.data["north"], made.data["west"]]
    assert told.records == sum(map(len, honest))
    if lie == "a negative count":
        said = curve.statement().assumptions
        assert "left out, because they do not count their records as agreed: south" in said
        assert any("2^-60" in sentence for sentence in said)
    else:
        alone = federated.roc(honest, without_noise(LocalAggregator()), **options)
        assert curve.auc == alone.auc


def test_unchecked_the_same_lie_spoils_the_curve(tmp_path, monkeypatch):
    made = federation(tmp_path, noiseless_test=True)
    study = (tmp_path / "study.toml").read_text()
    (tmp_path / "study.toml").write_text(study.replace("checked = true", "checked = false"))

    class Liar(FunctionRoute):
        def make(self, records):
            shares = []
            for data in super().make(records):
                words = bytearray(data)
                last = int.from_bytes(words[-16:-8], "little") + 999
                words[-16:-8] = (last % 2**64).to_bytes(8, "little")
                shares.append(bytes(words))
            return shares

    with made:
        with monkeypatch.context() as patch:
            patch.setattr(outbox_module, "route_of", lambda study: Liar(study))
            give(made, "south")
        give(made, "north", "west")
        question = made.question()
        sums = analyst(made).ask(question, (), resolve(None)).noisy
    truth = sum(question.statistic(records) for records in made.data.values())
    assert np.abs(sums - truth).max() == 999


def test_keys_that_are_no_pair_are_not_even_taken(tmp_path, monkeypatch):
    made = federation(tmp_path)
    with made:
        lying(monkeypatch, lambda table, server: add(table, 5 * server))
        with pytest.raises(RefusedError, match="no pair"):
            give(made, "south")


def test_who_comes_later_is_checked_with_new_numbers_and_nobody_twice(tmp_path, monkeypatch):
    made = federation(tmp_path, noiseless_test=True)
    options = {"epsilon": 1.0, "bins": 16, "relation": "replace-one"}
    with made:
        give(made, "north", "west")
        federated.roc(None, analyst(made, parties=2), **options)
        lying(monkeypatch, LIES["a thousand records in one key"])
        give(made, "south")
        taken = []
        federated.roc(None, analyst(made, name="second", told=taken.append), **options)
    assert taken[0].excluded == ("south",)


# --------------------------------------------------------------- one challenge for each


def proving(both, server):
    state = both.states[server]
    index = both.study.server_index(server)
    return Proving(both.study, both.route, index, state.store, state.marks)


def opened(both, members=None):
    name = set_digest(both.members if members is None else members)
    excluded = [] if members is None else sorted(set(both.members) - set(members))
    return name, [proving(both, server).open(name, excluded) for server in both.names]


def test_a_second_challenge_is_refused_whoever_asks_and_after_a_restart(tmp_path):
    both = OneProcess(tmp_path, checked=True)
    name, seeds = opened(both)
    server = proving(both, "alpha")
    with pytest.raises(RefusedError, match="were not challenged"):
        server.page(name, 0)
    smaller, other = opened(both, both.members[:2])  # opened before, so that it could be given
    server.challenge(name, seeds)
    first = server.page(name, 0)
    both.close()
    both.open()
    server = proving(both, "alpha")
    assert server.page(name, 0) == first
    server.challenge(name, seeds)
    wrong = [seeds[0], hashlib.sha256(b"another").hexdigest()]
    with pytest.raises(RefusedError, match="second challenge"):
        server.challenge(name, wrong)
    with pytest.raises(RefusedError, match="second challenge"):
        server.challenge(smaller, other)
    with pytest.raises(RefusedError, match="not what this server drew"):
        server.challenge(smaller, [other[1], other[0]])
    with pytest.raises(RefusedError, match="changed since"):
        server.open(set_digest(both.members[:1]), sorted(both.members[1:]))
    assert server.page(name, 0) == first
    both.close()


def test_a_withdrawn_contribution_leaves_the_others_checkable(tmp_path):
    both = OneProcess(tmp_path, checked=True)
    name, seeds = opened(both)
    for server in both.names:
        proving(both, server).challenge(name, seeds)
    gone = both.members[0]
    both.withdraw("alpha", gone)
    rows = read_json(unframe(proving(both, "alpha").page(name, 0))[0])["rows"]
    assert [row for row in rows if row[0] == gone] == [[gone, "", None]]
    assert sum(row[2] is not None for row in rows) == 2
    both.close()


def test_seeds_that_are_none_are_refused(tmp_path):
    both = OneProcess(tmp_path, checked=True)
    name, seeds = opened(both)
    for wrong in (None, [], seeds[:1], ["zz", "zz"], [seeds[0], seeds[1] + "00"], [1, 2]):
        with pytest.raises(RefusedError):
            proving(both, "alpha").challenge(name, wrong)
    with pytest.raises(RefusedError, match="no such check"):
        proving(both, "alpha").challenge("0" * 64, seeds)
    both.close()


def test_an_analyst_goes_on_where_another_was_interrupted(tmp_path):
    made = federation(tmp_path, noiseless_test=True)
    options = {"epsilon": 1.0, "bins": 16, "relation": "replace-one"}

    async def half(spoil):
        async with Client(analyst(made).settings) as client:
            listed = await client.request("alpha", "GET", "/v1/contributions")
            members = [listed[i : i + 32].hex() for i in range(0, len(listed), 32)]
            name = set_digest(members)
            body = json.dumps({"excluded": []}).encode()
            seeds = [
                await client.ask(
                    s, "PUT", f"/v1/checks/{name}", body, read=lambda answer: answer["seed"]
                )
                for s in ("alpha", "beta")
            ]
            path = f"/v1/checks/{name}/challenge"
            await client.request("alpha", "PUT", path, json.dumps({"seeds": seeds}).encode())
            if spoil:
                other = ["00" * 32, seeds[1]]
                await client.request("beta", "PUT", path, json.dumps({"seeds": other}).encode())

    with made:
        give(made)
        asyncio.run(half(spoil=False))
        curve = federated.roc(None, analyst(made), **options)
        quiet = without_noise(LocalAggregator())
        assert curve.auc == federated.roc(list(made.data.values()), quiet, **options).auc
    spoiled = federation(tmp_path / "spoiled", noiseless_test=True)
    made = spoiled
    with spoiled:
        give(spoiled)
        asyncio.run(half(spoil=True))
        with pytest.raises(NetworkError, match="different numbers"):
            federated.roc(None, analyst(spoiled), **options)


def test_masked_sums_and_tables_of_any_size_cannot_be_checked(tmp_path):
    with pytest.raises(ConfigurationError, match="masked sums have no such proof"):
        federation(tmp_path / "masks", route="masks", servers=["alpha"], minimum_parties=3)
    with pytest.raises(ConfigurationError, match="needs most_records"):
        federation(tmp_path / "vectors", route="vectors")
    with pytest.raises(ConfigurationError, match="too many for sums"):
        federation(tmp_path / "large", route="vectors", most_records=1 << 58)


# ------------------------------------------------------------------------------- tables


def tables(folder, **options):
    return federation(folder, route="vectors", most_records=40, **options)


def raised(elements):
    """One record becomes a thousand; its digits are none any more."""
    elements[0] = (int(elements[0]) + 999) % PRIME


def no_proof(elements):
    elements[-1] = (int(elements[-1]) + 1) % PRIME


def lying_table(monkeypatch, lie):
    class Liar(VectorRoute):
        def make(self, records):
            *seeds, masked = super().make(records)
            words = np.frombuffer(masked, "<u8").astype(np.uint64)
            lie(words)  # a share is the secret less what is known: changes add up
            return [*seeds, words.astype("<u8").tobytes()]

    monkeypatch.setattr(outbox_module, "route_of", lambda study: Liar(study))


@pytest.mark.parametrize("servers", [["alpha", "beta"], ["alpha", "beta", "gamma"]], ids=len)
@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_checked_tables_give_the_curves_of_one_machine_to_the_bit(tmp_path, relation, servers):
    made = tables(tmp_path, noiseless_test=True, relation=relation, servers=servers)
    parties, quiet = list(made.data.values()), without_noise(LocalAggregator())
    options = {"epsilon": 1.0, "bins": 16, "relation": relation}
    with made:
        give(made)
        curve = federated.roc(None, analyst(made), **options)
    assert curve.auc == federated.roc(parties, quiet, **options).auc


@pytest.mark.parametrize("lie", [raised, no_proof])
def test_a_party_whose_table_lies_is_left_out_and_named(tmp_path, monkeypatch, lie):
    made = tables(tmp_path, epsilon=2.0)
    options = {"epsilon": 1.0, "bins": 16, "relation": "replace-one"}
    with made:
        give(made, "north", "west")
        with monkeypatch.context() as patch:
            lying_table(patch, lie)
            give(made, "south")
        taken = []
        curve = federated.roc(None, analyst(made, told=taken.append), **options)
    assert taken[0].excluded == ("south",)
    assert taken[0].records == len(made.data["north"]) + len(made.data["west"])
    said = curve.statement().assumptions
    assert "left out, because they do not count their records as agreed: south" in said
    assert any("2^-53" in sentence and "at most 40 records" in sentence for sentence in said)


def test_a_party_that_says_another_public_number_of_records_is_left_out(tmp_path, monkeypatch):
    made = tables(tmp_path, noiseless_test=True)
    with made:
        give(made, "north", "west")
        with monkeypatch.context() as patch:
            patch.setattr(outbox_module.Outbox, "_count", lambda self, records: len(records) + 1)
            give(made, "south")
        taken = []
        options = {"epsilon": 1.0, "bins": 16, "relation": "replace-one"}
        federated.roc(None, analyst(made, told=taken.append), **options)
    assert taken[0].excluded == ("south",)


def test_numbers_outside_the_field_are_not_even_taken(tmp_path, monkeypatch):
    made = tables(tmp_path)

    def outside(elements):
        elements[0] = PRIME

    with made:
        lying_table(monkeypatch, outside)
        with pytest.raises(RefusedError, match="not in the field"):
            give(made, "south")


def test_a_party_with_more_records_than_its_table_may_count_is_told_so(tmp_path):
    made = federation(tmp_path, route="vectors", most_records=1)
    with pytest.raises(ValueError, match="at most 1 records of a party"):
        give(made, max(made.data, key=lambda party: len(made.data[party])))


# ------------------------------------------------------------------------------- lengths


def test_shares_of_a_checked_study_are_32_bytes_a_record_longer(tmp_path):
    plain = federation(tmp_path / "plain")
    with_proof = plain.study
    records = Records(np.array([0.2, 0.4]), np.array([True, False]))
    lengths = [
        len(route_of(replace(with_proof, checked=c)).make(records)[0]) for c in (False, True)
    ]
    assert lengths[1] - lengths[0] == 32 * len(records)


def test_a_party_that_sends_more_records_than_allowed_is_refused(tmp_path, monkeypatch):
    made = federation(tmp_path, most_records=1)
    with made:
        name = max(made.data, key=lambda party: len(made.data[party]))
        assert len(made.data[name]) > 1
        with pytest.raises(ValueError, match="at most 1 records of a party"):
            give(made, name)
        # One that does not ask itself is told by the server.
        monkeypatch.setattr("noisewise.federated.network.contribution.check_records", lambda *a: 0)
        with pytest.raises(RefusedError, match="at most 1 records"):
            give(made, name)
    with pytest.raises(ConfigurationError, match="most_records"):
        federation(tmp_path / "vectors", route="vectors", most_records=1, checked=False)
