"""Seeded noise serves one result: no two releases of one seed share a part of their numbers.

A ledger recognises noise that comes again by its place in the seeded stream. That protects only if
noise of another place is other noise: a release that began a little later in the stream, or after
a generator was spawned, drew the same numbers under another name, and the difference of the two
results was exact.
"""

import copy
import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from noisewise.ecdf import StreamingCounter, dp_ecdf, dp_histogram
from noisewise.errors import ChargeConflictError, LedgerError, UnsoundError
from noisewise.privacy import Ledger, Pure, Randomness, Sensitivity, gaussian
from noisewise.privacy.randomness import RandomnessError
from noisewise.release import IntegerNoise, MemoryAccount, Query, ThisProcess, release

ACTS = ("bytes", "spawn", "release", "release of a child", "copy", "pickle", "state")


def numbers(place, rng):
    """What a release of that generator draws, and what parts of it draw, in blocks of 16 bytes."""
    drawn = rng.bytes(640) + b"".join(child.bytes(160) for child in rng.spawn(3))
    return place, [drawn[i : i + 16] for i in range(0, len(drawn), 16)]


def lived(acts):
    """Every release in the life of a generator of one seed."""
    rng = Randomness.seeded(11)
    for act in acts:
        if act == "bytes":
            rng.bytes(48)
        elif act == "spawn":
            rng.spawn(1)
        elif act == "release":
            yield numbers(rng.place, rng.for_release())
        elif act == "release of a child":
            (child,) = rng.spawn(1)
            yield numbers(child.place, child.for_release())
        elif act == "copy":
            rng = copy.deepcopy(rng)
        elif act == "pickle":
            rng = pickle.loads(pickle.dumps(rng))
        else:
            rng = Randomness.from_state(rng.state())
    yield numbers(rng.place, rng.for_release())


@given(st.lists(st.sampled_from(ACTS), max_size=6), st.lists(st.sampled_from(ACTS), max_size=6))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_two_releases_have_all_their_numbers_in_common_or_none(one, other):
    for place, drawn in lived(one):
        for again, known in lived(other):
            shared = set(drawn) & set(known)
            assert drawn == known if place == again else not shared


def test_a_release_that_has_begun_gives_its_numbers_to_no_other():
    rng = Randomness.seeded(3).for_release()
    assert rng.for_release() is rng
    rng.bytes(1)
    with pytest.raises(RandomnessError, match="has begun"):
        rng.place  # noqa: B018
    secure = Randomness.secure()
    assert secure.for_release() is secure


def before(act):
    rng = Randomness.seeded(5)
    if act == "spawn":
        rng.spawn(1)
    elif act == "draw":
        rng.bytes(16 * 6)
    elif act == "release":
        gaussian(np.zeros(4), sensitivity=1.0, epsilon=1.0, delta=1e-6, seed=rng)
    return rng


@pytest.mark.parametrize("act", ["spawn", "draw", "release"])
def test_no_ledger_takes_two_results_whose_difference_is_exact(tmp_path, act):
    def noisy(value, rng):
        exact = np.full(64, value)
        found = gaussian(
            exact, sensitivity=1.0, epsilon=1.0, delta=1e-6, ledger=tmp_path / "l", seed=rng
        )
        return np.asarray(found.value)

    first = noisy(0.0, before("nothing"))
    if act == "spawn":  # it took nothing of the stream, which comes again
        with pytest.raises(LedgerError, match="same seeded noise"):
            noisy(5.0, before(act))
    else:
        second = noisy(5.0, before(act))
        assert np.abs(np.abs(second[:, None] - first[None, :]) - 5.0).min() > 1e-9


def test_neighbouring_histograms_of_one_seed_are_refused_or_have_other_noise(tmp_path):
    x = np.random.default_rng(0).random(500)
    options = {"bins": 8, "range": (0, 1), "epsilon": 1.0, "ledger": tmp_path / "l"}
    whole = np.asarray(dp_histogram(x, seed=before("nothing"), **options)[0])
    with pytest.raises(LedgerError, match="same seeded noise"):
        dp_histogram(x[1:], seed=before("spawn"), **options)
    without = np.asarray(dp_histogram(x[1:], seed=before("draw"), **options)[0])
    assert np.abs(whole - without).sum() > 1


def test_looks_and_curve_of_one_release_leave_nothing_to_another(tmp_path):
    # An adaptive curve looks several times, under one charge and so under one place.
    x = np.random.default_rng(0).random(300)
    options = {"bounds": (0, 1), "bins": 2**10, "epsilon": 1.0, "ledger": tmp_path / "l"}
    rng = Randomness.seeded(7)
    dp_ecdf(x, mechanism="adaptive", seed=rng, **options)
    other = Randomness.seeded(7)
    with pytest.raises(LedgerError, match="same seeded noise"):
        dp_ecdf(x[1:], seed=other, **options)
    # The same object goes on with other numbers, and so does one that was refused.
    assert rng.place == other.place
    dp_ecdf(x[1:], seed=rng, **options)


def test_threads_that_share_a_generator_get_noise_of_their_own(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    rng, one = Randomness.seeded(1), Sensitivity(1.0, "l1")
    noise = IntegerNoise("laplace", Fraction(10**9), one, Pure(1e-9), "noise")

    def one_of_many(_):
        query = Query.of(lambda _: np.zeros(3, np.int64), one, "")
        return tuple(release(query, noise, ThisProcess(), MemoryAccount(), rng=rng).value)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(one_of_many, range(64)))
    again = Randomness.seeded(1)
    assert sorted(found) == sorted(
        tuple(noise.applied(np.zeros(3, np.int64), again.for_release())) for _ in range(64)
    )
    assert len(set(found)) == 64


# ------------------------------------------------------------------------------- streams


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, pickle.dumps])
def test_noise_that_waits_to_be_used_cannot_be_copied(how):
    with StreamingCounter(epsilon=1.0) as counter:
        counter.update(1)
        for held in (counter, counter._segment.slots):
            with pytest.raises((LedgerError, UnsoundError), match="cannot be copied"):
                how(held)


def test_two_streams_of_one_seed_cannot_share_a_ledger(tmp_path):
    items, other = [1] * 50, [1] * 20 + [0] + [1] * 29
    book = tmp_path / "l"
    with StreamingCounter(epsilon=1.0, seed=1, ledger=book) as counter:
        counter.extend(items)
    with StreamingCounter(epsilon=1.0, seed=1, ledger=book) as counter:
        with pytest.raises(LedgerError, match="same seeded noise"):
            counter.extend(other)
        assert (counter.position, counter.value) == (0, 0.0)
    with Ledger.open(book) as ledger:
        assert len(ledger.charges) == 1
    with StreamingCounter(epsilon=1.0, seed=2, ledger=book) as counter:
        assert counter.extend(other).size == 50


def test_a_seeded_stream_goes_on_for_nothing_where_it_was_closed_with_new_noise(tmp_path):
    path, book = tmp_path / "s", tmp_path / "l"
    noises = []
    with StreamingCounter(epsilon=1.0, horizon=None, path=path, ledger=book, seed=1) as counter:
        noises.append(counter.extend([0] * 1100))
    for _ in range(3):
        with StreamingCounter.resume(path, ledger=book, seed=1) as counter:
            noises.append(counter.extend([0] * 40))
    with Ledger.open(book) as ledger:
        assert len(ledger.charges) == 1
    steps = [np.diff(noise[:40]).tolist() for noise in noises]
    assert len({tuple(step) for step in steps}) == len(steps)


@pytest.mark.parametrize("how", ["copied", "killed", "put back"])
def test_a_seeded_stream_that_would_measure_items_again_needs_other_noise(tmp_path, how):
    path, book = tmp_path / "s", tmp_path / "l"
    counter = StreamingCounter(epsilon=1.0, path=path, ledger=book, seed=1)
    saved = path.read_bytes()
    counter.extend([1] * 10)
    counter.close() if how != "killed" else counter._shut()
    if how != "killed":
        (tmp_path / "s.seen").unlink()
        path = path if how == "put back" else tmp_path / "elsewhere"
        path.write_bytes(saved)
    again = StreamingCounter.resume(path, ledger=book, seed=1)
    with pytest.raises(LedgerError, match="same seeded noise"):
        again.extend([0] * 10)
    with StreamingCounter.resume(path, ledger=book) as again:
        again.extend([0] * 10)
        assert again.statement().epsilon == pytest.approx(2.0)


def test_noise_of_another_seed_is_kept_by_the_first_stream_that_goes_on_with_it(tmp_path):
    book = tmp_path / "l"
    for name in "ab":
        with StreamingCounter(epsilon=1.0, path=tmp_path / name, ledger=book) as counter:
            counter.extend([0] * 10)
    for _ in range(2):
        with StreamingCounter.resume(tmp_path / "a", ledger=book, seed=9) as counter:
            counter.extend([0] * 10)
            assert counter.statement().epsilon == pytest.approx(1.0)
    for refused in (
        lambda: StreamingCounter.resume(tmp_path / "b", ledger=book, seed=9),
        lambda: StreamingCounter(epsilon=1.0, ledger=book, seed=9),
    ):
        with refused() as counter, pytest.raises(LedgerError, match="same seeded noise"):
            counter.extend([0] * 10)
    with Ledger.open(book) as ledger:
        assert len(ledger.charges) == 2
        kept = f"noise of {Randomness.seeded(9).place}"
        with pytest.raises(ChargeConflictError):
            ledger.charge(Pure(1.0), key=kept)
        with pytest.raises(ChargeConflictError):
            ledger.charge_once(Pure(1.0), key=kept, digest="0")
