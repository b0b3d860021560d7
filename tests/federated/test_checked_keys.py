"""Keys that prove that they count one record: honest ones pass, liars do not, nothing is shown."""

import numpy as np
import pytest

from noisewise import federated
from noisewise.federated import Domain, Records
from noisewise.federated.fss import (
    Challenge,
    CheckedKeys,
    KeyFormatError,
    accepted,
    generate_checked,
    generate_point,
    kernels,
)
from noisewise.federated.fss.checked import SOUNDNESS_BITS
from noisewise.federated.fss.server import CheckedStore, paired, proven
from noisewise.federated.fss.wire import round_tag
from noisewise.federated.measuring import measure_in_field
from noisewise.federated.questions import EcdfQuestion, HistogramQuestion, RocQuestion
from noisewise.federated.sharing.field import PRIME, from_field, multiply, negative, reduced, total

TAG = round_tag("a round of this test")
IMPLEMENTATIONS = [
    pytest.param(False, id="numpy"),
    pytest.param(
        True,
        id="aes-instructions",
        marks=pytest.mark.skipif(not kernels.available(), reason="needs numba and AES-NI"),
    ),
]


def challenge(levels, cells=None, seed=b"s" * 32):
    return Challenge(seed, cells or 1 << levels, levels)


def verdict(pair, drawn, **options):
    return accepted(*(keys.proofs(drawn, **options) for keys in pair)).tolist()


def counted(pair, **options):
    first, second = (keys.sum_over_domain(**options) for keys in pair)
    return from_field(reduced(first + second))


def changed(pair, name, change):
    """Return both keys with a public part changed, as an owner can who makes them."""
    tables = [keys.table.copy() for keys in pair]
    for table in tables:
        table[name] = change(np.array(table[name]))
    return tuple(
        CheckedKeys.from_bytes(table.tobytes(), keys.levels, keys.server, TAG)
        for table, keys in zip(tables, pair, strict=True)
    )


# ------------------------------------------------------------------------- honest keys


@pytest.mark.parametrize("compiled", IMPLEMENTATIONS)
@pytest.mark.parametrize("levels", [1, 2, 3, 5, 9, 10])
def test_honest_keys_pass_and_count_one_in_their_cell(levels, compiled):
    cells = np.arange(1 << levels)[: 64 if compiled else 16]
    pair = generate_checked(cells, levels, TAG, 1, compiled=compiled)
    assert all(verdict(pair, challenge(levels), compiled=compiled))
    expected = np.bincount(cells, minlength=1 << levels)
    assert counted(pair, compiled=compiled).tolist() == expected.tolist()
    for index in range(3 if levels > 1 else 2):
        alone = tuple(keys[index : index + 1] for keys in pair)
        assert counted(alone, compiled=compiled).tolist() == np.eye(1 << levels)[index].tolist()


@pytest.mark.skipif(not kernels.available(), reason="needs numba and AES-NI")
def test_both_implementations_publish_the_same_words():
    pair = generate_checked(np.arange(300) % 1024, 10, TAG, 1)
    for keys in pair:
        slow, fast = (keys.proofs(challenge(10, 1000), compiled=c) for c in (False, True))
        assert np.array_equal(slow, fast)
        sums = [keys.sum_over_domain(compiled=c) for c in (False, True)]
        assert np.array_equal(*sums)


def test_cells_that_are_not_counted_are_not_checked_and_a_record_there_is_none():
    pair = generate_checked([2, 6], 3, TAG, 1)
    assert verdict(pair, challenge(3, cells=6)) == [True, False]


# ------------------------------------------------------------------------- liars


def field_cheat(pair, values):
    """Add `values` to the block of the secret cell by the last correction."""
    step = np.asarray(values, np.uint64)
    return changed(pair, "last", lambda last: reduced(last + step))


HUGE = PRIME - 12345
CHEATS = {
    "two in one cell": [1, 0, 0, 0],
    "minus one": [PRIME - 2, 0, 0, 0],
    "nothing in its cell": [PRIME - 1, 0, 0, 0],
    "plus one beside it": [0, 1, 0, 0],
    "minus one beside it": [0, PRIME - 1, 0, 0],
    "moved without its code": [PRIME - 1, 1, 0, 0],
    "a huge number": [HUGE, 0, 0, 0],
    "half of the field": [(PRIME + 1) // 2, (PRIME + 1) // 2, 0, 0],
    "another code": [0, 0, 1, 0],
}


@pytest.mark.parametrize("cheat", CHEATS)
@pytest.mark.parametrize("compiled", IMPLEMENTATIONS)
def test_a_key_that_counts_anything_but_one_record_is_found(cheat, compiled):
    pair = generate_checked([2] * 40, 3, TAG, 7, compiled=compiled)
    false = field_cheat(pair, CHEATS[cheat])
    if not cheat.endswith("code"):
        assert counted(false).tolist() != [0, 0, 40, 0, 0, 0, 0, 0]
    assert not any(verdict(false, challenge(3), compiled=compiled))
    assert all(verdict(pair, challenge(3), compiled=compiled))


def everything(v, w, a, opened, offset, drawn):
    """Z^2 + A Z + U of whatever an owner shares, in whole numbers."""
    r, q, t = ([int(x) for x in part] for part in (drawn.r, drawn.q, [drawn.t]))
    z = (a + sum(x * y for x, y in zip(r, v, strict=True))) % PRIME
    y = sum(x * b + c * d for x, b, c, d in zip(q, v, r, w, strict=True)) + t[0]
    return (z * z + opened * z + offset - y) % PRIME


def test_what_is_checked_is_this_polynomial():
    cells, levels = [3, 0, 5], 3
    pair = generate_checked(cells, levels, TAG, 3)
    drawn = challenge(levels)
    first, second = (keys.proofs(drawn) for keys in pair)
    z, opened, u = reduced(first + second).T
    assert reduced(multiply(z, z) + reduced(multiply(opened, z) + u)).tolist() == [0, 0, 0]
    rng = np.random.default_rng(0)
    for cell in cells:  # an honest owner's numbers, for any a and k
        a, k = (int(x) for x in rng.integers(0, PRIME, 2))
        v = np.eye(8, dtype=int)[cell].tolist()
        w = [k * x for x in v]
        assert everything(v, w, a, k - 2 * a, a * a - a * k, drawn) == 0


@pytest.mark.parametrize(
    "v",
    [
        [0] * 8,
        [2, 0, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0, 0],
        [1, -1, 1, 0, 0, 0, 0, 0],
        [-1, 0, 0, 0, 0, 0, 0, 2],
        [3, -2, 0, 0, 0, 0, 0, 0],
        [2**60, -(2**60), 1, 0, 0, 0, 0, 0],
    ],
)
def test_no_choice_of_the_other_numbers_saves_a_false_vector(v):
    # An owner may share any w, a, A and offset. It would have to know r; without it each of these
    # passes with probability 2^-60, so that one pass in 600 trials is no accident.
    rng = np.random.default_rng(1)
    for trial in range(600):
        w = [int(x) for x in rng.integers(0, PRIME, 8)]
        a, k, offset = (int(x) for x in rng.integers(0, PRIME, 3))
        honest = trial % 2 == 0
        opened = k - 2 * a if honest else offset
        drawn = challenge(3, seed=trial.to_bytes(32, "little"))
        told = a * a - a * k if honest else offset
        assert everything(v, [k * x for x in v] if honest else w, a, opened, told, drawn) != 0


def test_whoever_knows_the_challenge_can_lie_so_it_is_drawn_after_the_keys_are_fixed():
    drawn, v = challenge(3), [5, 0, 0, 0, 0, 0, 0, 0]
    offset = -everything(v, [0] * 8, 1, 2, 0, drawn)
    assert everything(v, [0] * 8, 1, 2, offset, drawn) == 0
    assert everything(v, [0] * 8, 1, 2, offset, challenge(3, seed=b"t" * 32)) != 0


def test_in_a_small_field_false_vectors_pass_as_often_as_the_bound_says():
    # The same polynomial modulo 101, where accidents can be counted: at most 2/101 of all
    # challenges. 20,000 challenges; mean 396 at the bound, 500 is 5.2 deviations above.
    prime, rng = 101, np.random.default_rng(2)
    for v in ([2, 0, 0], [1, 1, 0], [1, 99, 2]):
        r = rng.integers(0, prime, (20_000, 3))
        t = rng.integers(0, prime, 20_000)
        w, a, k = rng.integers(0, prime, 3), *rng.integers(0, prime, 2)
        z = (a + r @ v) % prime
        y = ((r * r - t[:, None]) @ v + r @ w + t) % prime
        passed = int(((z * z + (k - 2 * a) * z + a * a - a * k - y) % prime == 0).sum())
        assert passed <= 500
    assert PRIME > 2 ** (SOUNDNESS_BITS + 1) - 2


def test_spoiled_corrections_and_foreign_halves_are_found():
    pair = generate_checked([2] * 20, 6, TAG, 7)
    other = generate_checked([2] * 20, 6, TAG, 8)
    spoiled = changed(pair, "seeds", lambda seeds: seeds ^ np.uint64(2))
    assert not any(verdict(spoiled, challenge(6)))
    assert not any(verdict((pair[0], other[1]), challenge(6)))


def test_words_outside_the_field_and_keys_of_other_kinds_are_not_read():
    pair = generate_checked([2], 3, TAG, 7)
    for name in ("last", "proof"):
        for word in (PRIME, 2**64 - 1):
            with pytest.raises(KeyFormatError, match="not in the field"):
                changed(pair, name, lambda old, word=word: np.full_like(old, word))
    plain = generate_point([2], 3, TAG, 7)[0].to_bytes()
    with pytest.raises(KeyFormatError):
        CheckedKeys.from_bytes(plain, 3, 0, TAG)
    with pytest.raises(ValueError, match="not in the field"):
        accepted(np.full((1, 3), PRIME, np.uint64), np.zeros((1, 3), np.uint64))


# ------------------------------------------------------------------------- nothing is shown


def test_what_is_published_is_the_same_for_every_cell():
    # For each cell, Z and A over many keys are uniform: their lowest three bits by a chi-square of
    # 7 degrees of freedom, of which 60 is exceeded with probability 1.5e-10. And U is no further
    # information: it is what the equation says.
    for cell in (0, 5):
        pair = generate_checked([cell] * 4000, 3, TAG, 11 + cell)
        first, second = (keys.proofs(challenge(3)) for keys in pair)
        z, opened, u = reduced(first + second).T
        assert np.array_equal(u, negative(multiply(z, reduced(z + opened))))
        for seen in (z, opened, first[:, 0], first[:, 1], first[:, 2]):
            counts = np.bincount((seen & np.uint64(7)).astype(int), minlength=8)
            assert ((counts - 500) ** 2 / 500).sum() < 60


def test_the_secret_factor_that_hides_the_cell_is_uniform():
    # Whoever knew k could solve A = k - 2a for a, and Z = a + r_cell for the cell. From the true
    # cell k can be told; it must be uniform, and another one for every key. Chi-square as above.
    cell, drawn = 5, challenge(3)
    pair = generate_checked([cell] * 4000, 3, TAG, 17)
    z, opened, _ = reduced(sum(keys.proofs(drawn) for keys in pair)).T
    a = reduced(z + negative(drawn.r[cell]))
    secret = reduced(opened + reduced(2 * a))
    assert np.unique(secret).size == 4000
    for shift in (0, 29, 58):
        counts = np.bincount(((secret >> np.uint64(shift)) & np.uint64(7)).astype(int), minlength=8)
        assert ((counts - 500) ** 2 / 500).sum() < 60


def test_for_each_cell_there_is_one_secret_that_explains_what_is_published():
    # So Z, A and U do not tell cells apart: a = Z - r_cell and k = A + 2a fit, whatever the cell.
    drawn = challenge(3)
    pair = generate_checked([5], 3, TAG, 3)
    z, opened, u = (int(x) for x in reduced(sum(keys.proofs(drawn) for keys in pair))[0])
    for cell in range(8):
        a = z - int(drawn.r[cell])
        k = opened + 2 * a
        r = int(drawn.r[cell])
        assert (a * a - a * k - (r * r + k * r) - u) % PRIME == 0


def test_two_challenges_would_show_the_cell_and_are_refused():
    domain = Domain(0, 1, 8)
    stores = [CheckedStore(domain, server, "round") for server in (0, 1)]
    pair = generate_checked([5], domain.levels, stores[0].tag, 3)
    (name,) = stores[0].accept(pair[0].to_bytes())
    stores[1].accept(pair[1].to_bytes())
    seen = []
    for seed in (b"a" * 32, b"b" * 32):  # what the rule prevents
        drawn = challenge(3, seed=seed)
        seen.append(reduced(sum(keys.proofs(drawn) for keys in pair))[0, 0])
    a, b = challenge(3, seed=b"a" * 32).r, challenge(3, seed=b"b" * 32).r
    shown = reduced(seen[0] + negative(seen[1]))
    assert np.flatnonzero(reduced(a + negative(b)) == shown).tolist() == [5]
    stores[0].proofs([name], b"a" * 32)
    stores[0].proofs([name], b"a" * 32)
    with pytest.raises(KeyFormatError, match="once"):
        stores[0].proofs([name], b"b" * 32)


# ------------------------------------------------------------------------- stores and curves


def test_a_liar_is_left_out_and_the_honest_are_counted():
    domain = Domain(0, 1, 8)
    stores = [CheckedStore(domain, server, "round") for server in (0, 1)]
    honest = generate_checked([1, 6, 6], 3, stores[0].tag, 1)
    liar = [keys.table.copy() for keys in generate_checked([4], 3, stores[0].tag, 2)]
    for table in liar:
        table["last"][0, 0] = (int(table["last"][0, 0]) + 1000) % PRIME
    for store, keys, false in zip(stores, honest, liar, strict=True):
        store.accept(keys.to_bytes())
        store.accept(false.tobytes())
        with pytest.raises(KeyFormatError, match="replay"):
            store.accept(keys.to_bytes())
    names = paired(stores[0].roster(), stores[1].roster())
    assert len(names) == 4
    good = proven(*(store.proofs(names, b"q" * 32) for store in stores))
    assert sorted(good) == sorted(honest[0].identifiers)
    sums = reduced(sum(store.histogram_share(good) for store in stores))
    assert from_field(sums).tolist() == [0, 1, 0, 0, 0, 0, 2, 0]


def test_proofs_are_needed_from_both_servers():
    assert proven({b"x": np.zeros(3, np.uint64)}, {}) == []


@pytest.mark.parametrize(
    "question",
    [
        EcdfQuestion(Domain(0, 1, 16), 1.0),
        EcdfQuestion(Domain(0, 1, 16), 1.0, 1e-6, relation="replace-one"),
        HistogramQuestion(Domain(0, 1, 16, closed="below"), 1.0, noise="independent"),
        RocQuestion(Domain(0, 1, 16, labelled=True, closed="below"), 1.0, 1e-6),
    ],
    ids=["tree", "gaussian", "histogram", "roc"],
)
def test_measurements_of_shares_in_the_field_add_up_to_those_of_the_counts(question):
    rng = np.random.default_rng(5)
    counts = rng.integers(0, 50, question.domain.cells)
    first = rng.integers(0, PRIME, counts.size, dtype=np.uint64)
    second = reduced(counts.astype(np.uint64) + negative(first))
    parts = [measure_in_field(question.measure, s, question.reach) for s in (first, second)]
    found = from_field(total(np.stack(parts).astype(np.uint64)))
    assert found.tolist() == question.measure(counts).tolist()


def test_checked_curves_equal_unchecked_ones_and_have_a_statement():
    rng = np.random.default_rng(3)
    hospitals = [(rng.random(30) < 0.4, rng.random(30)) for _ in range(3)]
    quiet = [federated.without_noise(federated.FunctionSharing(checked=c)) for c in (False, True)]
    plain, checked = (federated.roc(hospitals, a, epsilon=1.0, bins=16) for a in quiet)
    assert plain.auc == checked.auc
    noisy = federated.roc(
        hospitals, federated.FunctionSharing(checked=True), epsilon=1.0, bins=16, seed=1
    )
    said = " ".join(noisy.statement().assumptions)
    assert noisy.statement().epsilon <= 1.0
    assert "below 2^-60" in said
    for wrong in ({"servers": 3}, {"keys": "comparison"}):
        with pytest.raises(ValueError, match="checked=True goes with"):
            federated.FunctionSharing(checked=True, **wrong)


def test_noise_in_the_field_is_the_noise_that_was_planned():
    # Sums of 200 releases of nothing: mean within 5 deviations of 0 (false alarm 6e-7 a cell).
    domain = Domain(0, 1, 4, closed="below")
    question = HistogramQuestion(domain, 1.0, noise="independent")
    aggregator = federated.FunctionSharing(checked=True)
    from noisewise.privacy.randomness import Randomness

    drawn = np.array(
        [
            aggregator.ask(question, [Records(np.array([0.1]))], Randomness.seeded(seed)).noisy
            for seed in range(200)
        ]
    )
    expected = question.statistic(Records(np.array([0.1])))
    deviation = np.sqrt(2 * question.planned.noise[0].variance / 200)
    assert (np.abs(drawn.mean(0) - expected) < 5 * deviation).all()
    assert (np.abs(drawn) < 1000).all()
