"""Point and comparison keys: right on every domain, uniform alone, and checked when read."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from noisewise.errors import MissingExtraError
from noisewise.federated.fss import (
    KeyFormatError,
    PointKeys,
    generate_comparison,
    generate_point,
    kernels,
    key_bytes,
)
from noisewise.federated.fss.hashing import CIPHER_KEYS, hash_seeds
from noisewise.federated.fss.wire import read_table, round_tag
from noisewise.privacy.randomness import Randomness

TAG = round_tag("a round of this test")
IMPLEMENTATIONS = [
    pytest.param(False, id="numpy"),
    pytest.param(
        True,
        id="aes-instructions",
        marks=pytest.mark.skipif(not kernels.available(), reason="needs numba and AES-NI"),
    ),
]


def both(keys, **options):
    return sum(key.sum_over_domain(**options) for key in keys)


# ------------------------------------------------------------------------- correctness


@pytest.mark.parametrize("compiled", IMPLEMENTATIONS)
@pytest.mark.parametrize("levels", [1, 2, 3, 4, 5])
def test_a_point_is_one_in_its_cell_and_zero_elsewhere_for_every_small_domain(levels, compiled):
    cells = np.arange(1 << levels)
    first, second = generate_point(cells, levels, TAG, 1, compiled=compiled)
    for cell in cells:
        pair = (first[cell : cell + 1], second[cell : cell + 1])
        assert both(pair, compiled=compiled).tolist() == (cells == cell).tolist()


@pytest.mark.parametrize("compiled", IMPLEMENTATIONS)
@pytest.mark.parametrize("levels", [1, 2, 3, 4, 5])
def test_a_comparison_counts_from_its_record_on_for_every_small_domain(levels, compiled):
    cells = np.arange(1 << levels)
    first, second = generate_comparison(cells, levels, TAG, 1, compiled=compiled)
    for cell in cells:
        part = slice(cell, cell + 1)
        total = sum(key[part].sum_at(cells, compiled=compiled) for key in (first, second))
        assert total.tolist() == (cell <= cells).tolist()


@pytest.mark.parametrize("compiled", IMPLEMENTATIONS)
@pytest.mark.parametrize("levels", [9, 10, 12, 15])
def test_sums_over_random_records_are_their_histogram(levels, compiled):
    cells = np.random.default_rng(levels).integers(0, 1 << levels, 40)
    pair = generate_point(cells, levels, TAG, 2, compiled=compiled)
    assert (
        both(pair, compiled=compiled).tolist() == np.bincount(cells, minlength=1 << levels).tolist()
    )
    # A cumulative sum of shares is a share of the cumulative counts.
    curve = sum(np.cumsum(key.sum_over_domain(compiled=compiled)) for key in pair)
    assert curve.tolist() == np.cumsum(np.bincount(cells, minlength=1 << levels)).tolist()


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([15, 32, 62]).flatmap(
        lambda levels: st.tuples(
            st.just(levels),
            st.lists(st.integers(0, 2**levels - 1), min_size=1, max_size=20),
            st.lists(st.integers(0, 2**levels - 1), max_size=10),
        )
    )
)
def test_random_records_of_large_domains(case):
    levels, cells, others = case
    cells = np.array(cells, np.uint64)
    # Records themselves, their neighbours, the ends and anything else.
    near = {c + d for c in cells.tolist() for d in (-1, 0, 1)} | {0, 2**levels - 1, *others}
    points = np.array(sorted(p for p in near if 0 <= p < 2**levels), np.uint64)
    pair = generate_point(cells, levels, TAG)
    found = sum(key.evaluate(points) for key in pair)
    assert (found == (cells[:, None] == points[None, :])).all()
    pair = generate_comparison(cells, levels, TAG)
    counted = sum(key.sum_at(points) for key in pair)
    assert counted.tolist() == [int((cells <= p).sum()) for p in points]


@pytest.mark.skipif(not kernels.available(), reason="needs numba and AES-NI")
@settings(max_examples=25, deadline=None)
@given(st.integers(1, 13), st.integers(1, 70), st.integers(0, 2**32))
def test_both_implementations_give_the_same_bits(levels, size, seed):
    cells = np.random.default_rng(seed).integers(0, 1 << levels, size)
    points = np.random.default_rng(seed + 1).integers(0, 1 << levels, 5)
    slow, fast = (generate_point(cells, levels, TAG, seed, compiled=c) for c in (False, True))
    for a, b in zip(slow, fast, strict=True):
        assert a.to_bytes() == b.to_bytes()
        assert (a.sum_over_domain(compiled=False) == a.sum_over_domain(compiled=True)).all()
    slow, fast = (generate_comparison(cells, levels, TAG, seed, compiled=c) for c in (False, True))
    for a, b in zip(slow, fast, strict=True):
        assert a.to_bytes() == b.to_bytes()
        assert (a.sum_at(points, compiled=False) == a.sum_at(points, compiled=True)).all()


def test_the_compiled_form_says_what_it_needs(monkeypatch):
    monkeypatch.setattr(kernels, "available", lambda: False)
    with pytest.raises(MissingExtraError, match="fast"):
        generate_point([0], 1, TAG, compiled=True)
    assert generate_point([0], 1, TAG)[0].sum_over_domain().size == 2


def test_the_hash_is_aes_with_a_feed_forward():
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    seed = np.array([[0x0123456789ABCDEF, 0xFEDCBA9876543210]], np.uint64)
    mixed = np.array([seed[0, 0] ^ seed[0, 1], seed[0, 0]], np.uint64).tobytes()
    for which, name in enumerate(("left", "right", "value")):
        key = hashlib.sha256(f"noisewise/function-sharing/1/{name}".encode()).digest()[:16]
        assert CIPHER_KEYS[which] == key
        cipher = Cipher(algorithms.AES128(key), modes.ECB()).encryptor()
        expected = bytes(a ^ b for a, b in zip(cipher.update(mixed), mixed, strict=True))
        assert hash_seeds(which, seed).tobytes() == expected


# ---------------------------------------------------------------------- bytes and checks


@given(st.integers(1, 62), st.integers(1, 3), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_keys_survive_the_wire(levels, size, seed):
    cells = np.random.default_rng(seed).integers(0, 1 << min(levels, 62), size)
    for make in (generate_point, generate_comparison):
        for keys in make(cells, levels, TAG, seed):
            data = keys.to_bytes()
            assert len(data) == size * key_bytes(keys.kind, levels)
            again = type(keys).from_bytes(data, levels, keys.server, TAG)
            assert again.to_bytes() == data
            assert again.identifiers == keys.identifiers


def test_evaluating_does_not_change_the_keys():
    for size in (1, 2):
        for keys in generate_point(np.arange(size), 5, TAG, 3):
            before = keys.to_bytes()
            keys.sum_over_domain()
            keys.evaluate([0, 1])
            assert keys.to_bytes() == before
        for keys in generate_comparison(np.arange(size), 5, TAG, 3):
            before = keys.to_bytes()
            keys.sum_at([0, 1])
            assert keys.to_bytes() == before


def test_key_lengths_follow_the_formula():
    for levels in (1, 9, 15, 16, 32, 62):
        d = levels - 1
        assert key_bytes("point", levels) == 30 + 16 + 16 * d + -(-d // 8) + 16
        assert key_bytes("comparison", levels) == 30 + 16 + 24 * levels + -(-levels // 8) + 8


@pytest.fixture
def data():
    return generate_point([5, 9], 7, TAG, 1)[0].to_bytes()


def test_truncated_and_empty_messages_are_refused(data):
    for cut in (b"", data[:-1], data[:30], data + b"\0"):
        with pytest.raises(KeyFormatError, match="truncated"):
            PointKeys.from_bytes(cut, 7, 0, TAG)


def test_keys_for_another_server_round_size_or_kind_are_refused(data):
    with pytest.raises(KeyFormatError, match="server"):
        PointKeys.from_bytes(data, 7, 1, TAG)
    with pytest.raises(KeyFormatError, match="another round"):
        PointKeys.from_bytes(data, 7, 0, round_tag("another"))
    with pytest.raises(KeyFormatError):
        PointKeys.from_bytes(data, 8, 0, TAG)
    with pytest.raises(KeyFormatError):
        read_table(data, "comparison", 7, 0, TAG)


@pytest.mark.parametrize("place", [0, 1, 2, 3, 4, 5])
def test_every_byte_of_the_header_is_checked(data, place):
    broken = bytearray(data)
    broken[key_bytes("point", 7) + place] ^= 0x81
    with pytest.raises(KeyFormatError, match="key 1"):
        PointKeys.from_bytes(broken, 7, 0, TAG)


def test_spellings_that_are_not_canonical_are_refused(data):
    broken = bytearray(data)
    broken[30] |= 1  # the control bit of the root
    with pytest.raises(KeyFormatError, match="control bit"):
        PointKeys.from_bytes(broken, 7, 0, TAG)
    broken = bytearray(data)
    broken[30 + 16 + 16 * 6] |= 0x80  # six levels use six bits
    with pytest.raises(KeyFormatError, match="unused bits"):
        PointKeys.from_bytes(broken, 7, 0, TAG)
    broken = bytearray(data)
    broken[14:30] = bytes(16)
    with pytest.raises(KeyFormatError, match="identifier"):
        PointKeys.from_bytes(broken, 7, 0, TAG)


def test_cells_outside_the_domain_are_refused():
    for cells in ([-1], [8]):
        with pytest.raises(ValueError, match="cells"):
            generate_point(cells, 3, TAG)
    with pytest.raises(TypeError, match="integers"):
        generate_point([0.5], 3, TAG)


def test_two_keys_of_a_pair_share_a_digest_and_nobody_else_does():
    first, second = generate_point([1, 1, 6], 3, TAG, 1)
    assert first.public_digests == second.public_digests
    assert len(set(first.public_digests)) == 3
    broken = first.table.copy()
    broken["last"][0, 0] += 1
    assert PointKeys(broken, 3, 0).public_digests[0] != second.public_digests[0]


# ---------------------------------------------------------------- what an adversary can do


def test_a_malicious_owner_can_add_any_number_to_a_cell_so_no_unit_is_promised():
    first, second = generate_point([5], 4, TAG, 1)
    value = first.evaluate([5]) + second.evaluate([5])
    assert value.tolist() == [[1]]
    # The last correction is the owner's to choose: any weight, positive or negative.
    tables = [first.table.copy(), second.table.copy()]
    for table in tables:
        table["last"][0, 1] += np.uint64(999)
    pair = [PointKeys(table, 4, server) for server, table in enumerate(tables)]
    for key in pair:  # and no check of the format can see it
        PointKeys.from_bytes(key.to_bytes(), 4, key.server, TAG)
    total = both(pair).view(np.int64)
    assert total[5] in (1000, -998)
    assert np.count_nonzero(total) == 1


def test_a_changed_seed_correction_spoils_cells_under_one_node_only():
    # Paths on which both servers agree cancel whatever the corrections are, because both apply
    # the same ones: only cells below the point where the two servers' states differ can change.
    levels = 8
    first, second = generate_point([200], levels, TAG, 1)
    for level in range(levels - 1):
        tables = [first.table.copy(), second.table.copy()]
        for table in tables:
            table["seeds"][0, level, 1] ^= np.uint64(1 << 40)
        total = both([PointKeys(table, levels, s) for s, table in enumerate(tables)])
        touched = np.flatnonzero(total != (np.arange(256) == 200))
        block = 1 << (levels - level)
        assert touched.size > 0
        assert (touched // block == 200 // block).all()


# ------------------------------------------------------------------------------ privacy


def words_of(keys):
    """The words of keys that must look uniform, without the constant bits, as rows."""
    _, seeds, left, right, last = keys.corrections()
    seeds[..., 0] |= left
    parts = [seeds.reshape(len(keys), -1), last.reshape(len(keys), -1)]
    if keys.kind == "comparison":
        parts.append(keys.table["values"])
    return np.concatenate(parts, axis=1), right


def battery(words, right):
    """z-scores that are standard normal if all bits are independent fair coins."""
    rows = words.shape[0]
    bits = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=1, bitorder="little")
    bits = np.concatenate([bits, right], axis=1).astype(np.float64) - 0.5
    single = bits.sum(0) * 2 / np.sqrt(rows)
    neighbours = (bits[:, 1:] * bits[:, :-1]).sum(0) * 4 / np.sqrt(rows)
    distant = (bits[:, 64:] * bits[:, :-64]).sum(0) * 4 / np.sqrt(rows)
    weight = bits.sum(1)
    spread = ((weight**2).sum() / (bits.shape[1] / 4) - rows) / np.sqrt(2 * rows)
    return np.concatenate([single, neighbours, distant, [spread]])


@pytest.mark.parametrize("make", [generate_point, generate_comparison])
@pytest.mark.parametrize("server", [0, 1])
@pytest.mark.parametrize("cell", [0, 37, 63])
def test_a_single_servers_keys_look_like_coin_tosses(make, server, cell):
    # About 4,000 z-scores at 7 deviations: false alarm below 1e-8 (and the seed is fixed).
    keys = make(np.full(3000, cell), 6, TAG, 11 * cell + server)[server]
    assert np.abs(battery(*words_of(keys))).max() < 7


@pytest.mark.parametrize("make", [generate_point, generate_comparison])
@pytest.mark.parametrize("server", [0, 1])
def test_a_single_servers_view_does_not_tell_neighbouring_records_apart(make, server):
    # Two-sample z-scores of every bit, and a classifier with its own test half.
    # Bits: about 1,200 scores at 7 deviations; classifier: 5.5 deviations; false alarm < 1e-6.
    sides = [make(np.full(4000, cell), 6, TAG, 1000 + cell)[server] for cell in (20, 21)]
    views = []
    for keys in sides:
        words, right = words_of(keys)
        root = keys.table["root"].copy()
        words = np.concatenate([root, words], axis=1)
        bits = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=1)
        views.append(np.concatenate([bits, right], axis=1).astype(np.float64))
    gap = (views[0].mean(0) - views[1].mean(0)) / np.sqrt(0.5 / 4000)
    assert np.abs(gap).max() < 7
    train = [view[:2000] for view in views]
    direction = train[0].mean(0) - train[1].mean(0)
    middle = (train[0].mean(0) + train[1].mean(0)) @ direction / 2
    right_guesses = ((views[0][2000:] @ direction) > middle).sum() + (
        (views[1][2000:] @ direction) <= middle
    ).sum()
    assert abs(right_guesses - 2000) < 5.5 * np.sqrt(1000)


def test_shares_of_the_histogram_look_uniform_whatever_the_records():
    for cells in (np.zeros(50, int), np.arange(50)):
        share = generate_point(cells, 12, TAG, 5)[0].sum_over_domain()
        bits = np.unpackbits(share.view(np.uint8).reshape(-1, 8), axis=1)
        # 64 z-scores at 6.5 deviations, twice: false alarm 1e-8.
        assert np.abs(bits.mean(0) - 0.5).max() < 6.5 * 0.5 / np.sqrt(share.size)


def test_the_battery_notices_a_leak():
    keys = generate_point(np.full(3000, 9), 6, TAG, 1)[0]
    words, right = words_of(keys)
    leaky = words.copy()
    leaky[:, 2] = np.where(Randomness.seeded(1).coins(3000), leaky[:, 2], 9)
    assert np.abs(battery(leaky, right)).max() > 7
