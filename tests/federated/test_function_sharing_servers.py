"""Servers of function sharing: each key once, only in pairs, and nothing leaves without noise."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from noisewise.federated import Domain, EcdfQuestion, FunctionSharing, Records, SharedNoise
from noisewise.federated.fss import KeyFormatError, generate_comparison, generate_point
from noisewise.federated.fss.fine import ComparisonStore, FineDomain
from noisewise.federated.fss.server import KeyStore, combine_shares, noisy_share, paired
from noisewise.federated.sharing import additive
from noisewise.privacy.randomness import Randomness

DOMAIN = Domain(0.0, 1.0, 10)


def stores(name="round"):
    return KeyStore(DOMAIN, 0, name), KeyStore(DOMAIN, 1, name)


def pair(cells, name="round", seed=1):
    return generate_point(cells, DOMAIN.levels, stores(name)[0].tag, seed)


def total(first, second):
    names = paired(first.roster(), second.roster())
    return additive.combine([s.histogram_share(names) for s in (first, second)]).tolist()


def histogram(cells):
    return np.bincount(cells, minlength=10).tolist()


def test_keys_that_both_servers_hold_are_counted():
    first, second = stores()
    for cells, seed in (([1, 1, 9], 1), ([0], 2)):
        for store, keys in zip((first, second), pair(cells, seed=seed), strict=True):
            store.accept(keys.to_bytes())
    assert total(first, second) == histogram([1, 1, 9, 0])
    assert len(first) == 4


def test_a_key_without_its_twin_is_left_out_by_both():
    first, second = stores()
    both, alone = pair([3, 4]), pair([5], seed=2)
    first.accept(both[0].to_bytes())
    second.accept(both[1].to_bytes())
    first.accept(alone[0].to_bytes())
    assert total(first, second) == histogram([3, 4])


def test_a_key_with_anothers_public_part_is_left_out_by_both():
    first, second = stores()
    one, other = pair([3]), pair([7], seed=2)
    forged = other[1].table.copy()
    forged["identifier"] = one[0].table["identifier"]
    first.accept(one[0].to_bytes())
    second.accept(forged.tobytes())
    assert total(first, second) == histogram([])


def test_repetitions_are_refused_under_any_name():
    first, _ = stores()
    keys = pair([2, 3])[0]
    first.accept(keys.to_bytes())
    with pytest.raises(KeyFormatError, match="used before"):
        first.accept(keys.to_bytes())
    renamed = keys.table.copy()
    renamed["identifier"][:,] = np.frombuffer(bytes(range(32)), "V16")
    with pytest.raises(KeyFormatError, match="copy of an earlier key"):
        first.accept(renamed.tobytes())
    with pytest.raises(KeyFormatError, match="twice in one message"):
        stores()[0].accept(keys.to_bytes() + keys.to_bytes())
    assert len(first) == 2


def test_a_message_is_accepted_whole_or_not_at_all():
    first, second = stores()
    keys = pair([2, 3, 4])
    broken = bytearray(keys[0].to_bytes())
    broken[-len(broken) // 3] ^= 0xFF  # the last key's first byte
    with pytest.raises(KeyFormatError, match="key 2"):
        first.accept(broken)
    assert len(first) == 0
    first.accept(keys[0].to_bytes())
    second.accept(keys[1].to_bytes())
    assert total(first, second) == histogram([2, 3, 4])


def test_keys_of_another_round_or_other_cells_are_refused():
    first, _ = stores()
    with pytest.raises(KeyFormatError, match="another round or other cells"):
        first.accept(pair([2], name="yesterday")[0].to_bytes())
    other = KeyStore(Domain(0.0, 2.0, 10), 0, "round")
    with pytest.raises(KeyFormatError, match="another round or other cells"):
        other.accept(pair([2])[0].to_bytes())
    with pytest.raises(KeyFormatError, match="server"):
        first.accept(pair([2])[1].to_bytes())


def test_unknown_or_repeated_names_are_refused():
    first, _ = stores()
    names = first.accept(pair([2])[0].to_bytes())
    with pytest.raises(KeyFormatError, match="not here"):
        first.histogram_share([b"x" * 16])
    with pytest.raises(KeyFormatError, match="twice"):
        first.histogram_share([*names, *names])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), max_size=6), st.randoms())
def test_order_of_arrival_and_division_into_messages_do_not_matter(messages, random):
    first, second = stores()
    pairs = [pair(cells, seed=i) for i, cells in enumerate(messages)]
    for server, store in enumerate((first, second)):
        order = list(pairs)
        random.shuffle(order)
        for keys in order:
            store.accept(keys[server].to_bytes())
    assert total(first, second) == histogram(np.array([c for m in messages for c in m], int))


def test_a_restarted_server_that_reads_its_keys_again_gives_the_same_share():
    first, _ = stores()
    names = first.accept(pair([1, 2, 2])[0].to_bytes())
    again, _ = stores()
    again.accept(pair([1, 2, 2])[0].to_bytes())
    assert (first.histogram_share(names) == again.histogram_share(names)).all()


def test_comparison_keys_are_stored_alike():
    fine = FineDomain(0.0, 1.0, 32)
    servers = ComparisonStore(fine, 0, "r"), ComparisonStore(fine, 1, "r")
    values = np.array([0.1, 0.2, 0.2, 0.9])
    keys = generate_comparison(fine.place(values), 32, servers[0].tag, 1)
    for store, part in zip(servers, keys, strict=True):
        store.accept(part.to_bytes())
    names = paired(servers[0].roster(), servers[1].roster())
    shares = [s.counts_share(names, [0.1, 0.2, 0.5, 1.0]) for s in servers]
    assert additive.combine(shares).tolist() == [1, 2, 0, 1]
    with pytest.raises(KeyFormatError):
        servers[0].accept(pair([1])[0].to_bytes())


@given(st.lists(st.floats(-1, 2), min_size=2), st.integers(1, 48))
def test_fine_cells_are_monotone(values, levels):
    domain = FineDomain(0.0, 1.0, levels)
    ordered = np.sort(np.array(values))
    cells = domain.place(ordered).astype(object)
    assert (np.diff(cells) >= 0).all()
    assert cells.max() < 2**levels


# ------------------------------------------------------------------- noise on the way out

# Independent noise on many bins, so that a few releases show its variance.
WIDE = EcdfQuestion(Domain(0.0, 1.0, 2000), 1.0, mechanism="histogram", relation="add-remove")
VARIANCE = WIDE.planned.noise[0].variance


def close(size):
    """Six deviations of a sample variance; the kurtosis of Laplace noise is below 6.5."""
    return 6 * np.sqrt(5.5 / size)


def test_what_leaves_a_server_has_its_own_full_noise():
    share = Randomness.seeded(0).uint64(2000)
    sent = [
        noisy_share(WIDE, share, SharedNoise(2, 1), Randomness.seeded(seed)) for seed in range(4)
    ]
    drawn = np.array([additive.as_signed(words - share) for words in sent])
    assert drawn.var() == pytest.approx(VARIANCE, rel=close(drawn.size))


@pytest.mark.parametrize(("servers", "honest"), [(2, 1), (2, 2), (3, 1), (5, 2), (5, 5)])
def test_the_servers_add_the_noise_that_the_threat_model_says(servers, honest):
    sharing = FunctionSharing(servers=servers, honest=honest)
    records = [Records.of(np.array([0.5])), Records.of(np.array([0.2, 0.3]))]
    truth = sum(WIDE.statistic(party) for party in records)
    noise = np.array(
        [sharing.ask(WIDE, records, Randomness.seeded(s)).noisy - truth for s in range(4)]
    )
    assert noise.var() == pytest.approx(VARIANCE * servers / honest, rel=close(noise.size))
    assert abs(noise.mean()) < 6 * np.sqrt(VARIANCE * servers / honest / noise.size)


def test_missing_shares_give_no_result():
    question = EcdfQuestion(DOMAIN, 1.0)
    share = noisy_share(question, np.zeros(10, np.uint64), SharedNoise(2, 1), Randomness.secure())
    sharing = FunctionSharing()
    with pytest.raises(ValueError, match="without all of them"):
        combine_shares(
            question, [share], sharing.noise, sharing.threat, records=1, randomness="secure"
        )
    with pytest.raises(ValueError, match="cells"):
        noisy_share(question, np.zeros(9, np.uint64), SharedNoise(2, 1), Randomness.secure())


def test_any_servers_but_all_of_them_hold_uniform_words():
    # 64 z-scores of bits at 6.5 deviations for each of three servers: false alarm 2e-8.
    vectors = [np.full(4000, 7, np.int64)] * 3
    totals = FunctionSharing(servers=3)._share_vectors(vectors, Randomness.seeded(1))
    for share in (*totals, totals[0] + totals[2]):
        bits = np.unpackbits(share.view(np.uint8).reshape(-1, 8), axis=1)
        assert np.abs(bits.mean(0) - 0.5).max() < 6.5 * 0.5 / np.sqrt(4000)
    assert additive.combine(totals).tolist() == [21] * 4000


def test_the_threat_model_says_what_is_not_promised():
    for servers in (2, 3):
        said = FunctionSharing(servers=servers).threat
        assert "semi-honest" in said.adversary
        assert any("malicious" in sentence for sentence in said.not_promised)
        assert f"each of {servers} contributors adds a full share" in said.noise


@pytest.mark.parametrize("options", [{"servers": 1}, {"honest": 3}, {"keys": "tree"}])
def test_impossible_settings_are_refused(options):
    with pytest.raises(ValueError):
        FunctionSharing(**options)
    with pytest.raises(ValueError, match="two servers"):
        FunctionSharing(servers=3, keys="comparison")
