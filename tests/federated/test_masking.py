"""Masked aggregation: the exact sum of whoever stayed, or a clear error, at every stage."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from noisewise.federated import Domain, EcdfQuestion, Records
from noisewise.federated.masked import STAGES, MaskedAggregator, run_round
from noisewise.federated.masking import (
    Advertisement,
    AggregationError,
    Confirmation,
    MaskedVector,
    MaskingClient,
    MaskingServer,
    Revelation,
    SealedShares,
    Session,
    make_roll,
)
from noisewise.federated.sharing.additive import as_signed
from noisewise.federated.sharing.shamir import PRIME
from noisewise.privacy.randomness import Randomness

NAME = bytes(range(16))
SIGNS, ROLL = make_roll(range(1, 8), Randomness.seeded(99))


def make_client(number, session, rng):
    return MaskingClient(number, session, rng, sign=SIGNS[number], roll=ROLL)


def confirmed(clients, arrived, *, by=None):
    """Signatures of all survivors, or of some of them."""
    return [clients[n].confirm(arrived) for n in by or arrived]


def vectors(parties, size=5, seed=0):
    rng = np.random.default_rng(seed)
    return {n: rng.integers(-1000, 1000, size) for n in range(1, parties + 1)}


def run(parties, threshold, absent=None, seed=1):
    data = vectors(parties)
    total, arrived = run_round(
        Session(NAME, parties, threshold, 5), data, Randomness.seeded(seed), absent
    )
    return as_signed(total), sum(data[n] for n in arrived), arrived


def test_nobody_drops_out():
    total, expected, arrived = run(5, 4)
    assert arrived == [1, 2, 3, 4, 5]
    assert total.tolist() == expected.tolist()


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("who", [(1,), (3,), (5,), (1, 5), (2, 4)])
def test_parties_may_drop_out_at_every_stage(stage, who):
    total, expected, arrived = run(5, 3, dict.fromkeys(who, stage))
    assert set(arrived) == {1, 2, 3, 4, 5} - (set() if stage in ("confirm", "reveal") else set(who))
    assert total.tolist() == expected.tolist()


@settings(max_examples=30, deadline=None)
@example(2, {1: "share", 2: "share"}, 0)
@given(
    st.integers(2, 6),
    st.dictionaries(st.integers(1, 6), st.sampled_from(STAGES), max_size=6),
    st.integers(0, 2**32),
)
def test_the_exact_sum_or_a_clear_error(parties, absent, seed):
    threshold = parties // 2 + 1
    absent = {n: stage for n, stage in absent.items() if n <= parties}
    stayed = parties - len(absent)
    if stayed >= threshold:
        total, expected, _ = run(parties, threshold, absent, seed)
        assert total.tolist() == expected.tolist()
    else:
        with pytest.raises(AggregationError, match="are needed"):
            run(parties, threshold, absent, seed)


def exchange(parties=4, threshold=3):
    """Clients and a server after the second stage."""
    session = Session(NAME, parties, threshold, 5)
    clients = {n: make_client(n, session, n) for n in range(1, parties + 1)}
    server = MaskingServer(session, ROLL)
    for client in clients.values():
        server.take_advertisement(client.advertise())
    public = server.advertisements()
    for n, client in clients.items():
        server.take_shares(n, client.share(public))
    return session, clients, server


def take_confirmations(clients, server):
    for message in confirmed(clients, server.arrived()):
        server.take_confirmation(message)
    return server.confirmations()


def test_a_party_reveals_one_kind_of_share_for_each_other_and_only_once():
    _, clients, server = exchange()
    data = vectors(4)
    for n in (1, 2, 3):
        server.take_vector(clients[n].mask(server.inbox(n), data[n]))
    signed = confirmed(clients, [1, 2, 3])
    revealed = clients[1].reveal(signed)
    assert set(revealed.seeds) & set(revealed.keys) == set()
    assert set(revealed.seeds) == {1, 2, 3}
    assert set(revealed.keys) == {4}
    for again in (lambda: clients[1].confirm([1, 2, 4]), lambda: clients[1].reveal(signed)):
        with pytest.raises(AggregationError, match="once"):
            again()


@pytest.mark.parametrize("arrived", [[1, 2], [2, 3, 4], [1, 2, 3, 9]])
def test_a_party_refuses_lists_that_a_correct_server_never_sends(arrived):
    _, clients, server = exchange()
    clients[1].mask(server.inbox(1), vectors(4)[1])
    with pytest.raises(AggregationError):
        clients[1].confirm(arrived)


def test_both_secrets_of_a_party_would_unmask_it_so_the_rule_matters():
    # What the rule prevents: with the seed *and* the mask key of party 1 its vector is open.
    session, clients, server = exchange()
    data = vectors(4)
    masked = {n: clients[n].mask(server.inbox(n), data[n]) for n in clients}
    from noisewise.federated.masking.session import agree, mask_of

    words = masked[1].words - mask_of(clients[1]._seed, 5)
    assert as_signed(words).tolist() != data[1].tolist()
    for other in (2, 3, 4):
        public = clients[1]._advertised[other].masking
        words = words - mask_of(agree(clients[1]._masking, public, session, "mask"), 5)
    assert as_signed(words).tolist() == data[1].tolist()


def test_sealed_shares_cannot_be_changed_redirected_or_replayed():
    _, clients, server = exchange()
    inbox = server.inbox(1)
    first = inbox[0]
    for place in (0, 12, len(first.sealed) - 1):
        broken = bytearray(first.sealed)
        broken[place] ^= 1
        client = clients[1]
        client._stage = 2
        with pytest.raises(AggregationError, match="changed on the way"):
            client.mask([SealedShares(2, 1, bytes(broken)), *inbox[1:]], vectors(4)[1])
    clients[1]._stage = 2
    with pytest.raises(AggregationError, match="not for this party"):
        clients[1].mask([server.inbox(2)[0], *inbox[1:]], vectors(4)[1])
    clients[1]._stage = 2
    with pytest.raises(AggregationError, match="second message"):
        clients[1].mask([first, first, *inbox[1:]], vectors(4)[1])
    # The same parties in another round: keys are bound to the round's name.
    other = Session(NAME[::-1], 4, 3, 5)
    again = {n: make_client(n, other, n) for n in clients}
    public = [client.advertise() for client in again.values()]
    for client in again.values():
        client.share(public)
    with pytest.raises(AggregationError, match="another round"):
        again[1].mask(inbox, vectors(4)[1])


def test_the_server_refuses_duplicates_strangers_and_messages_out_of_order():
    _, clients, server = exchange()
    data = vectors(4)
    with pytest.raises(AggregationError, match="stage"):
        server.take_advertisement(Advertisement(1, bytes(32), bytes(32), bytes(32)))
    sent = clients[1].mask(server.inbox(1), data[1])
    server.take_vector(sent)
    with pytest.raises(AggregationError, match="second message"):
        server.take_vector(sent)
    with pytest.raises(AggregationError, match="did not share"):
        server.take_vector(MaskedVector(9, sent.words))
    with pytest.raises(AggregationError, match="wrong length"):
        server.take_vector(MaskedVector(2, sent.words[:2]))
    with pytest.raises(AggregationError, match="needed"):
        server.arrived()


def test_copied_public_keys_are_refused():
    session = Session(NAME, 3, 2, 5)
    honest = make_client(1, session, 1)
    mine = honest.advertise()
    other = make_client(2, session, 2).advertise()
    copy = Advertisement(3, other.sealing, other.masking, other.commitment)
    with pytest.raises(AggregationError, match="copied"):
        honest.share([mine, other, copy])


@pytest.mark.parametrize("spare", [True, False])
@pytest.mark.parametrize("kind", ["seeds", "keys"])
def test_wrong_revealed_shares_are_noticed(spare, kind):
    # With a spare share the polynomial contradicts; without one the commitment or the key does.
    _, clients, server = exchange(parties=5, threshold=3)
    data = vectors(5)
    for n in (1, 2, 3, 4):
        server.take_vector(clients[n].mask(server.inbox(n), data[n]))
    signed = take_confirmations(clients, server)
    for n in (1, 2, 3) if spare else (1, 2):
        server.take_revelation(clients[n].reveal(signed))
    right = clients[4].reveal(signed)
    wrong = {"seeds": dict(right.seeds), "keys": dict(right.keys)}
    owner = 5 if kind == "keys" else 2
    # Chosen so that the secret rebuilt from holders 1, 2 and 4 changes by one in a middle limb,
    # which no check of its form can see.
    weight = 1 * 2 * pow((4 - 1) * (4 - 2), -1, PRIME)
    change = np.array([0, pow(weight, -1, PRIME), 0, 0, 0], np.uint64)
    wrong[kind][owner] = (wrong[kind][owner] + change) % np.uint64(PRIME)
    server.take_revelation(Revelation(4, **wrong))
    message = "contradicts the others" if spare else "do not give its"
    with pytest.raises(AggregationError, match=message):
        server.total()


def test_shares_that_give_no_secret_at_all_are_noticed():
    _, clients, server = exchange(parties=5, threshold=3)
    for n in (1, 2, 3):
        server.take_vector(clients[n].mask(server.inbox(n), vectors(5)[n]))
    signed = take_confirmations(clients, server)
    for n in (1, 2):
        server.take_revelation(clients[n].reveal(signed))
    right = clients[3].reveal(signed)
    seeds = {owner: share ^ np.uint64(1 << 57) for owner, share in right.seeds.items()}
    server.take_revelation(Revelation(3, seeds, right.keys))
    with pytest.raises(AggregationError, match="do not fit together"):
        server.total()


@pytest.mark.parametrize("cut", [0, 1, 11, 50])
def test_truncated_messages_are_refused(cut):
    with pytest.raises(AggregationError):
        Advertisement.from_bytes(bytes(99 - cut))
    with pytest.raises(AggregationError):
        MaskedVector.from_bytes(bytes(44)[: 44 - 1 - min(cut, 40)], Session(bytes(16), 2, 2, 5))
    with pytest.raises(AggregationError):
        SealedShares.from_bytes(bytes(115 - cut))
    with pytest.raises(AggregationError):
        Confirmation.from_bytes(bytes(67 - cut))
    with pytest.raises(AggregationError):
        Revelation.from_bytes(bytes(11 - min(cut, 11)))


def test_messages_have_the_lengths_that_the_communication_formula_uses():
    _, clients, server = exchange()
    assert {len(m.to_bytes()) for m in server.inbox(1)} == {116}
    vector = clients[1].mask(server.inbox(1), vectors(4)[1])
    assert len(vector.to_bytes()) == 4 + 8 * 5
    for n in (2, 3, 4):
        clients[n].mask(server.inbox(n), vectors(4)[n])
    signed = confirmed(clients, [1, 2, 3, 4])
    assert {len(m.to_bytes()) for m in signed} == {68}
    assert len(clients[1].reveal(signed).to_bytes()) == 12 + 44 * 4


def views(data, draws=80):
    """What the server sees of party 1 in many rounds: its masked vector's words."""
    seen = []
    for seed in range(draws):
        session = Session(NAME, 3, 2, 5)
        clients = {n: make_client(n, session, Randomness.seeded(7 * seed + n)) for n in (1, 2, 3)}
        server = MaskingServer(session, ROLL)
        for client in clients.values():
            server.take_advertisement(client.advertise())
        public = server.advertisements()
        for n, client in clients.items():
            server.take_shares(n, client.share(public))
        seen.append(clients[1].mask(server.inbox(1), data).words)
    return np.concatenate(seen)


def test_masked_vectors_of_neighbouring_inputs_look_alike_and_uniform():
    # z-scores of bit means, 64 bits x 2 inputs and differences: 192 tests at 6 deviations,
    # false alarm 4e-7.
    zero, one = views(np.zeros(5, np.int64)), views(np.array([0, 1, 0, 0, 0]))
    for words in (zero, one):
        bits = np.unpackbits(words.view(np.uint8).reshape(-1, 8), axis=1).mean(0)
        assert np.abs(bits - 0.5).max() < 6 * 0.5 / np.sqrt(words.size)
    gap = (zero >> np.uint64(60)).astype(float).mean() - (one >> np.uint64(60)).astype(float).mean()
    assert abs(gap) < 6 * 4.61 * np.sqrt(2 / zero.size)


def test_a_threshold_that_lets_two_lists_be_confirmed_is_refused_with_the_reason():
    for parties in range(2, 9):
        for colluding in range(parties + 1):
            for threshold in range(parties + 2):
                # Honest parties sign one list, helpers any: can two have `threshold` signatures?
                honest = parties - colluding
                two = 2 * max(0, threshold - colluding) <= honest
                if two or threshold > parties:
                    with pytest.raises(ValueError, match="threshold of"):
                        Session(NAME, parties, threshold, 5, colluding)
                else:
                    Session(NAME, parties, threshold, 5, colluding)
    with pytest.raises(ValueError, match="two different lists of survivors"):
        Session(NAME, 5, 3, 5, colluding=2)


def test_collusion_that_leaves_nobody_is_refused():
    with pytest.raises(ValueError, match="no honest party"):
        MaskedAggregator(threshold=3, colluding=3).noise_for(5)


def test_every_order_of_arrival_gives_the_same_sum():
    data = vectors(3)
    expected = sum(data.values()).tolist()
    for order in itertools.permutations((1, 2, 3)):
        session = Session(NAME, 3, 2, 5)
        clients = {n: make_client(n, session, n) for n in order}
        server = MaskingServer(session, ROLL)
        for n in order:
            server.take_advertisement(clients[n].advertise())
        public = server.advertisements()
        for n in reversed(order):
            server.take_shares(n, clients[n].share(public))
        for n in order:
            server.take_vector(clients[n].mask(server.inbox(n), data[n]))
        signed = take_confirmations(clients, server)
        for n in reversed(order):
            server.take_revelation(clients[n].reveal(signed))
        assert as_signed(server.total()).tolist() == expected


# ------------------------------------------------------------------- the parties' noise

WIDE = EcdfQuestion(Domain(0.0, 1.0, 2000), 1.0, mechanism="histogram", relation="add-remove")


@pytest.mark.parametrize(
    ("threshold", "colluding", "absent", "copies"),
    [
        (3, 0, {}, 4 / 3),
        (3, 1, {}, 4 / 2),
        (4, 3, {}, 4 / 1),
        (3, 1, {2: "mask"}, 3 / 2),
        (3, 1, {2: "reveal"}, 4 / 2),
    ],
)
def test_the_parties_add_what_survives_the_worst_collusion(threshold, colluding, absent, copies):
    aggregator = MaskedAggregator(threshold, colluding, absent=absent)
    parties = [Records.of(np.array([0.1 * n])) for n in range(4)]
    present = [p for n, p in enumerate(parties, 1) if absent.get(n) != "mask"]
    truth = sum(WIDE.statistic(party) for party in present)
    sums = [aggregator.ask(WIDE, parties, Randomness.seeded(s)) for s in range(3)]
    noise = np.array([found.noisy - truth for found in sums])
    variance = WIDE.planned.noise[0].variance
    # Six deviations of a sample variance; the kurtosis of these shares' sum is below 12.
    close = 6 * np.sqrt(11 / noise.size)
    assert noise.var() == pytest.approx(variance * copies, rel=close)
    # What is stated: the guarantee of the honest, the variance of all that arrived.
    assert sums[0].mechanism.epsilon == WIDE.planned.epsilon
    assert sums[0].mechanism.noise[0].variance == pytest.approx(variance * copies)
    honest = sums[0].mechanism.noise[0].honest
    assert honest == threshold - colluding
    assert f"more than {colluding} parties" in sums[0].threat.must_not_collude


def test_the_number_of_records_travels_under_the_masks():
    question = EcdfQuestion(Domain(0.0, 1.0, 8), 1.0, relation="replace-one")
    parties = [Records.of(np.linspace(0, 1, n)) for n in (3, 5, 9)]
    assert MaskedAggregator().ask(question, parties, Randomness.seeded(1)).records == 17
    dropped = MaskedAggregator(threshold=2, absent={2: "share"})
    assert dropped.ask(question, parties, Randomness.seeded(1)).records == 12
    private = EcdfQuestion(Domain(0.0, 1.0, 8), 1.0, relation="add-remove")
    assert MaskedAggregator().ask(private, parties, Randomness.seeded(1)).records is None


def test_the_threat_model_needs_the_number_of_parties():
    with pytest.raises(ValueError, match="number of parties"):
        _ = MaskedAggregator().threat
    said = MaskedAggregator(parties=6, threshold=5, colluding=1).threat
    assert "up to 1 parties may stop" in said.drop_outs
    assert "epsilon counts on 4 honest shares" in said.noise
