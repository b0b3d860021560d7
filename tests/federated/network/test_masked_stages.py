"""The stages on the server's disk and the journal on the party's: each thing is said once."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

pytest.importorskip("aiohttp")

from noisewise.ecdf import Budget, plan
from noisewise.federated import Records, SharedNoise
from noisewise.federated.masking import AggregationError, MaskingClient
from noisewise.federated.network import (
    ConfigurationError,
    NetworkError,
    ServerSettings,
    Study,
)
from noisewise.federated.network.errors import RefusedError
from noisewise.federated.network.identity import Signer
from noisewise.federated.network.masks.handouts import Handouts
from noisewise.federated.network.masks.party import Journal
from noisewise.federated.network.masks.round import MaskedRound
from noisewise.federated.network.masks.service import MaskedService, _unmask
from noisewise.federated.network.masks.stages import (
    ADVERTISE,
    CONFIRM,
    MASK,
    REVEAL,
    SHARE,
    Stages,
    Waiting,
    listed_first,
    split_sealed,
    split_signed,
)
from noisewise.federated.network.store import Store
from noisewise.federated.network.trial import make_trial
from noisewise.privacy.randomness import Randomness

NAMES = ("ada", "bob", "cyd", "dan")
VECTORS = dict(zip(NAMES, ([0.1], [0.2, 0.3], [0.9], [0.5, 0.5]), strict=True))


class Round:
    """A server's stages and all parties, driven by hand."""

    def __init__(self, folder, *, threshold=3, names=NAMES, **options):
        self.trial = make_trial(
            folder, servers=["alpha"], parties=names, route="masks", minimum_parties=threshold,
            bins=4, curves=["ecdf"], noiseless_test=True, stage_seconds=60.0,
            **{"relation": "replace-one", **options},
        )  # fmt: skip
        self.round = MaskedRound(Study.read(folder / "study.toml"))
        self.stages = Stages(self.round)
        self.store = Store(folder / "state", {"study": self.round.study.fingerprint})
        self.handouts = Handouts(self.stages, self.store)
        self.clients = {name: self.client(name, number) for number, name in enumerate(names)}
        self.now = 1000.0

    def signer(self, name):
        return Signer.read(name, self.trial.folder / f"{name}.key")

    def do(self, job):
        return self.store.submit(job).result()

    def send(self, stage, name, data):
        self.do(lambda connection: self.stages.take(connection, stage, name, data, self.now))

    def client(self, name, seed):
        return MaskingClient(
            self.round.number_of(name), self.round.session, seed,
            sign=self.round.sign(self.signer(name)), roll=self.round.roll,
        )  # fmt: skip

    def follow(self, stage, name):
        waiting = self.do(lambda c: self.stages.follow(c, stage, name, self.now))
        return waiting or self.handouts.after(stage, self.round.number_of(name))

    def advertisement(self, name):
        return self.round.seal_advertisement(self.clients[name].advertise(), self.signer(name))

    def advertise(self, *names):
        for name in names:
            self.send(ADVERTISE, name, self.advertisement(name))

    def shares(self, name):
        listed = self.round.open_advertisements(self.follow(ADVERTISE, name))
        return b"".join(m.to_bytes() for m in self.clients[name].share(listed))

    def share(self, *names):
        for name in names:
            self.send(SHARE, name, self.shares(name))

    def vector(self, name):
        values = self.values(name)
        shared, inbox = listed_first(self.follow(SHARE, name))
        return self.clients[name].mask(split_sealed(inbox), values, shared).to_bytes()

    def mask(self, *names):
        for name in names:
            self.send(MASK, name, self.vector(name))

    def confirmation(self, name):
        numbers, signed = listed_first(self.follow(MASK, name))
        vouchers = {m.sender: m.signature for m in split_signed(signed)}
        return self.clients[name].confirm(numbers, vouchers).to_bytes()

    def confirm(self, *names):
        for name in names:
            self.send(CONFIRM, name, self.confirmation(name))

    def reveal(self, name):
        return self.clients[name].reveal(split_signed(self.follow(CONFIRM, name))).to_bytes()

    def unmask(self):
        return self.store.read(lambda c: _unmask(self.round, self.stages, c))

    def values(self, name):
        held = np.array(VECTORS.get(name, [len(name) / 10]))
        return self.round.vector(Records(held), Randomness.seeded(0))

    def truth(self, *names):
        return np.sum([self.values(name) for name in names], axis=0)


@pytest.fixture
def made(tmp_path):
    found = Round(tmp_path)
    yield found
    found.store.close()


@contextmanager
def refused(code):
    with pytest.raises(RefusedError) as caught:
        yield
    assert caught.value.code == code


def test_a_round_with_drop_outs_gives_the_sum_of_those_who_arrived(made):
    made.advertise(*NAMES)
    made.share(*NAMES)
    made.mask("ada", "bob", "dan")
    assert isinstance(made.follow(MASK, "ada"), Waiting)
    made.now += 60
    made.confirm("ada", "bob", "dan")
    for name in ("ada", "bob", "dan"):
        made.send(REVEAL, name, made.reveal(name))
    words = made.unmask()
    assert words.astype(np.int64).tolist() == made.truth("ada", "bob", "dan").tolist()


def test_sealed_shares_are_read_once_however_often_they_are_asked_for(made, monkeypatch):
    """Version 0.1 read and parsed the shares of everybody for every party that asked."""
    read = []
    messages = Stages.messages

    def counted(self, connection, stage):
        read.append(stage)
        return messages(self, connection, stage)

    made.advertise(*NAMES)
    made.share(*NAMES)
    monkeypatch.setattr(Stages, "messages", counted)
    made.handouts = Handouts(made.stages, made.store)
    asked = [made.handouts.after(SHARE, made.round.number_of(n)) for n in NAMES for _ in range(3)]
    assert sorted(read) == [ADVERTISE, SHARE]
    whole = [split_sealed(listed_first(data)[1]) for data in asked]
    assert all(len(inbox) == len(NAMES) - 1 for inbox in whole)
    for name, inbox in zip(NAMES, whole[::3], strict=True):
        assert {message.receiver for message in inbox} == {made.round.number_of(name)}


def test_the_same_message_again_changes_nothing_and_another_one_is_refused(made):
    first = made.advertisement("ada")
    made.send(ADVERTISE, "ada", first)
    made.send(ADVERTISE, "ada", first)
    other = made.client("ada", 99)
    forged = made.round.seal_advertisement(other.advertise(), made.signer("ada"))
    with refused("other-message"):
        made.send(ADVERTISE, "ada", forged)
    made.advertise(*NAMES[1:])
    made.send(ADVERTISE, "ada", first)
    assert (
        made.round.open_advertisements(made.follow(ADVERTISE, "ada"))[0].to_bytes() == first[:100]
    )


def test_stages_are_passed_in_order_and_by_those_of_the_stage_before(made):
    with refused("too-early"):
        made.send(SHARE, "ada", b"")
    made.advertise("ada", "bob", "cyd")
    assert made.follow(ADVERTISE, "ada").missing == ("dan",)
    made.now += 60
    made.share("ada", "bob", "cyd")
    for stage, message in ((ADVERTISE, made.advertisement("dan")), (SHARE, b"")):
        with refused("left-out"):
            made.send(stage, "dan", message)
    with refused("left-out"):
        made.follow(ADVERTISE, "dan")


def test_a_closed_list_never_changes(made):
    made.advertise(*NAMES)
    made.share(*NAMES)
    late = made.vector("dan")
    made.mask("ada", "bob", "cyd")
    made.now += 60
    told = made.follow(MASK, "ada")
    with refused("left-out"):
        made.send(MASK, "dan", late)
    made.now += 1000
    assert made.follow(MASK, "bob") == told


def test_a_revelation_that_comes_too_late_is_not_needed(made):
    made.advertise(*NAMES)
    made.share(*NAMES)
    made.mask(*NAMES)
    made.confirm(*NAMES)  # the last one is not needed either, and may go on
    messages = {name: made.reveal(name) for name in NAMES}
    for name in NAMES[:3]:
        made.send(REVEAL, name, messages[name])
    made.send(REVEAL, "dan", messages["dan"])
    for stage in (CONFIRM, REVEAL):
        assert made.do(lambda c, s=stage: made.stages.members(c, s)) == [1, 2, 3]


def test_malformed_and_foreign_messages_are_refused(made):
    own = made.advertisement("ada")
    for wrong in (b"", own[:-1], own + own, own[:-1] + bytes([own[-1] ^ 1]), b"\0" * len(own)):
        with refused("bad-message"):
            made.send(ADVERTISE, "ada", wrong)
    with refused("bad-message"):
        made.send(ADVERTISE, "bob", own)
    made.send(ADVERTISE, "ada", own)
    made.advertise(*NAMES[1:])
    sealed = made.shares("ada")
    swapped = sealed[116:232] + sealed[:116] + sealed[232:]
    for wrong in (sealed[:-1], sealed[:-116], sealed + sealed[:116], b"", swapped):
        with refused("bad-message"):
            made.send(SHARE, "ada", wrong)
    with refused("bad-message"):
        made.send(SHARE, "bob", sealed)
    made.send(SHARE, "ada", sealed)
    made.share(*NAMES[1:])
    masked = made.vector("ada")
    for wrong in (masked[:-1], masked + b"\0" * 8, b""):
        with refused("bad-message"):
            made.send(MASK, "ada", wrong)
    with refused("bad-message"):
        made.send(MASK, "bob", masked)
    made.send(MASK, "ada", masked)
    made.mask(*NAMES[1:])
    signed = made.confirmation("ada")
    for wrong in (b"", signed[:-1], signed[:-1] + bytes([signed[-1] ^ 1]), signed[:4] + bytes(64)):
        with refused("bad-message"):
            made.send(CONFIRM, "ada", wrong)
    with refused("bad-message"):
        made.send(CONFIRM, "bob", signed)
    made.send(CONFIRM, "ada", signed)
    made.confirm(*NAMES[1:])
    shown = made.reveal("ada")
    for wrong in (shown[:-1], b"", shown[:12]):
        with refused("bad-message"):
            made.send(REVEAL, "ada", wrong)
    with refused("bad-message"):
        made.send(REVEAL, "bob", shown)


@settings(max_examples=40, deadline=None)
@given(
    threshold=st.integers(3, 4),
    present=st.sets(st.sampled_from(NAMES), min_size=1),
    waited=st.sampled_from([0.0, 59.9, 60.0, 1e6, -5.0]),
)
def test_a_stage_closes_with_all_or_with_enough_after_a_while(
    tmp_path_factory, threshold, present, waited
):
    made = Round(tmp_path_factory.mktemp("stages"), threshold=threshold)
    try:
        made.advertise(*sorted(present))
        made.now += waited
        found = made.follow(ADVERTISE, min(present))
    finally:
        made.store.close()
    due = len(present) == 4 or (len(present) >= threshold and waited >= 60)
    assert isinstance(found, bytes) == due


def test_wrong_shares_end_the_round_without_a_result(made):
    made.advertise(*NAMES)
    made.share(*NAMES)
    made.mask(*NAMES)
    made.confirm(*NAMES)
    for name in NAMES[:3]:
        data = bytearray(made.reveal(name))
        if name == "bob":
            data[20] ^= 1  # a share of somebody's seed
        made.send(REVEAL, name, bytes(data))
    with pytest.raises(AggregationError):
        made.unmask()


MANY = tuple(f"{'p' * (1 + number % 7)}-{number}" for number in range(1, 41))


def test_a_round_with_few_neighbours_gives_the_sum_of_those_who_arrived(tmp_path):
    made = Round(tmp_path, names=MANY, threshold=38, colluding=1, neighbours="few")
    few = made.round.session.few
    assert few.neighbours < 39
    try:
        made.advertise(*MANY)
        made.share(*MANY[1:])  # the first stops here, the last after it
        made.now += 60
        rest = MANY[1:-1]
        made.mask(*rest)
        made.now += 60
        made.confirm(*rest)
        for name in rest:
            assert made.do(lambda c: made.stages.members(c, REVEAL)) is None
            made.send(REVEAL, name, made.reveal(name))
        assert made.do(lambda c: made.stages.members(c, REVEAL)) is not None
        assert made.unmask().astype(np.int64).tolist() == made.truth(*rest).tolist()
    finally:
        made.store.close()


def test_with_few_neighbours_foreign_receivers_and_unsigned_vectors_are_refused(tmp_path):
    made = Round(tmp_path, names=MANY, threshold=38, colluding=1, neighbours="few")
    try:
        made.advertise(*MANY)
        sealed = made.shares(MANY[0])
        for wrong in (sealed[116:], sealed + sealed[:116]):
            with refused("bad-message"):
                made.send(SHARE, MANY[0], wrong)
        made.send(SHARE, MANY[0], sealed)
        made.share(*MANY[1:])
        vector = made.vector(MANY[0])
        for wrong in (vector[:-64], vector[:-64] + bytes(64)):
            with refused("bad-message"):
                made.send(MASK, MANY[0], wrong)
    finally:
        made.store.close()


# ------------------------------------------------------------------------------- parties


def test_keys_that_the_server_put_in_anothers_place_are_noticed(made):
    made.advertise(*NAMES)
    listed = made.follow(ADVERTISE, "ada")
    assert len(made.round.open_advertisements(listed)) == 4
    width = 164
    own = made.client("bob", 7).advertise().to_bytes()
    swapped = listed[:width] + own + listed[width + 100 :]
    with pytest.raises(AggregationError, match="'bob' do not carry its signature"):
        made.round.open_advertisements(swapped)
    # Nor may a signature be taken from another party, another study, or another purpose.
    by_cyd = own + made.signer("cyd").vouch("masking keys", made.round.study.fingerprint, own)
    elsewhere = own + made.signer("bob").vouch("masking keys", "0" * 64, own)
    otherwise = own + made.signer("bob").vouch("anything", made.round.study.fingerprint, own)
    for forged in (by_cyd, elsewhere, otherwise):
        with pytest.raises(AggregationError, match="signature"):
            made.round.open_advertisements(forged)


def test_a_party_hears_each_list_once_and_keeps_its_root(tmp_path):
    (tmp_path / "party").mkdir()
    journal = Journal(tmp_path / "party" / "masking.json")
    root = journal.open("records")
    assert journal.open("records") == root
    assert (tmp_path / "party" / "masking.json").stat().st_mode & 0o077 == 0
    assert journal.heard(MASK) is None
    journal.note(MASK, b"\1\0\0\0")
    journal.note(MASK, b"\1\0\0\0")
    with pytest.raises(NetworkError, match="something else about this stage"):
        journal.note(MASK, b"\2\0\0\0")
    assert Journal(journal.path).heard(MASK) == b"\1\0\0\0"
    with pytest.raises(NetworkError, match="with other records"):
        journal.open("other records")
    journal.forget()
    assert journal.open("other records") != root


def test_replayed_from_its_root_a_party_says_the_same_to_the_bit(made, tmp_path):
    noisy = MaskedRound(replace(made.round.study, noiseless_test=False, name="trial"))
    root = b"\7" * 32
    records = Records(np.array([0.1, 0.7]))
    first, second = (
        (
            made.client("ada", Randomness.seeded(b"masking/" + root)).advertise(),
            noisy.vector(records, Randomness.seeded(b"noise/" + root)).tolist(),
        )
        for _ in range(2)
    )
    assert first == second
    other = noisy.vector(records, Randomness.seeded(b"noise/" + b"\6" * 32)).tolist()
    assert other != first[1]


@pytest.mark.parametrize(("threshold", "colluding"), [(4, 0), (3, 0), (3, 1), (4, 3)])
def test_a_partys_noise_is_its_part_of_what_must_survive(tmp_path, threshold, colluding):
    make_trial(
        tmp_path, servers=["alpha"], parties=NAMES, route="masks", minimum_parties=threshold,
        colluding=colluding, bins=64, curves=["ecdf"], relation="replace-one",
    )  # fmt: skip
    found = MaskedRound(Study.read(tmp_path / "study.toml"))
    records = Records(np.array([0.1, 0.7]))
    planned = plan(64, "replace-one", Budget(1.0))
    honest = threshold - colluding
    share = SharedNoise(4, honest).apply(planned).draw_share(Randomness.seeded(3))
    truth = found.question.statistic(records)
    assert (found.vector(records, Randomness.seeded(3)) == [*(truth + share), 2]).all()
    assert found.surviving.event.epsilon == planned.epsilon <= 1.0
    assert np.allclose(found.mechanism(4).variance, planned.variance * 4 / honest)


def test_a_server_that_could_not_take_a_vector_does_not_start(tmp_path):
    trial = make_trial(
        tmp_path, servers=["alpha"], parties=NAMES, route="masks", minimum_parties=3, bins=1 << 14
    )
    path = trial.config("alpha")
    path.write_text(path.read_text().replace("largest_request = 2097152", "largest_request = 4096"))
    with pytest.raises(ConfigurationError, match="raise it under"):
        MaskedService(ServerSettings.read(path))


def test_a_study_that_does_not_say_how_many_may_collude_is_refused(tmp_path):
    make_trial(tmp_path, servers=["alpha"], parties=NAMES, route="masks", minimum_parties=3)
    path = tmp_path / "study.toml"
    lines = [line for line in path.read_text().splitlines() if "colluding" not in line]
    path.write_text("\n".join(lines))
    with pytest.raises(ConfigurationError, match="needs colluding_parties"):
        Study.read(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"servers": ["alpha", "beta"]}, "has one server"),
        ({"curves": ["roc", "ecdf"]}, "one curve once"),
        ({"curves": ["hosmer-lemeshow"]}, "one curve once"),
        ({"delta": 1e-6}, "needs delta = 0"),
        ({"minimum_parties": 2}, "two different lists of survivors"),
        ({"minimum_parties": 5}, "so many are not there"),
        ({"colluding": 2}, "two different lists of survivors"),
        ({"colluding": 3}, "no honest party"),
        ({"stage_seconds": 0.0}, "above 0"),
        ({"parties": ["ada"], "minimum_parties": 1}, "at least two parties"),
        ({"route": "vectors", "servers": ["alpha"]}, "at least two servers"),
    ],
)
def test_studies_that_masks_cannot_serve_are_refused(tmp_path, change, words):
    options = {"servers": ["alpha"], "parties": NAMES, "route": "masks", "minimum_parties": 3}
    with pytest.raises(ConfigurationError, match=words):
        make_trial(tmp_path, **{**options, **change})
