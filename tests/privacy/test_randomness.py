"""The generator: known answers, laws, tails, and that no number is ever used twice.

Statistical tests use fixed seeds; each alarms falsely with probability at most 1e-6.
"""

from __future__ import annotations

import copy
import ctypes
import hashlib
import hmac
import math
import multiprocessing
import os
import pickle
import threading
from fractions import Fraction

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, strategies as st
from scipy import integrate, stats

from noisewise.privacy.randomness import (
    Randomness,
    RandomnessError,
    gaussian,
    integers,
    keystream,
    resolve,
)
from noisewise.privacy.randomness.keystream import Keystream, counter_mode

ALARM = 1e-6
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


def assert_count_plausible(count: int, trials: int, probability: float) -> None:
    """Both binomial tails of the count are larger than half the alarm rate."""
    law = stats.binom(trials, probability)
    assert law.cdf(count) > ALARM / 2, (count, trials * probability)
    assert law.sf(count - 1) > ALARM / 2, (count, trials * probability)


# -------------------------------------------------------------------- the cipher


def test_counter_mode_gives_the_vectors_of_nist_sp_800_38a_f55():
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    counter = int("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff", 16)
    plain = bytes.fromhex(
        "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
        "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
    )
    cipher = (
        "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5"
        "2b0930daa23de94ce87017ba2d84988ddfc9c58db67aada613c2dd08457941a6"
    )
    assert counter_mode(key, counter).update(plain).hex() == cipher


def test_aes_256_of_zero_under_the_zero_key_is_the_known_block():
    # NIST AESAVS, appendix B onwards: AES-256, key 0, plaintext 0.
    assert counter_mode(bytes(32), 0).update(bytes(16)).hex() == "dc95c078a2408989ad48a21492842087"


def blocks_of(root: bytes, epoch: int, count: int) -> bytes:
    """The slow obvious reference: single AES blocks of the counters 0, 1, 2, ..."""
    key = hmac.new(root, f"key/{epoch}".encode(), hashlib.sha256).digest()
    aes = Cipher(algorithms.AES256(key), modes.ECB()).encryptor()
    return b"".join(aes.update(index.to_bytes(16, "big")) for index in range(count))


@given(st.lists(st.integers(0, 200), max_size=12))
def test_the_stream_is_aes_of_the_counter_whatever_the_sizes_asked(sizes):
    root = hashlib.sha256(b"noisewise/randomness/1/int/7").digest()
    rng, expected = Randomness.seeded(7), blocks_of(root, 0, 200)
    block = 0
    for size in sizes:
        assert rng.bytes(size) == expected[16 * block : 16 * block + size]
        block += -(-size // 16)


def test_the_stream_crosses_internal_chunks_without_a_seam():
    root = hashlib.sha256(b"noisewise/randomness/1/int/7").digest()
    assert Randomness.seeded(7).bytes(600_000) == blocks_of(root, 0, 37_500)


def test_a_key_is_replaced_before_its_counter_repeats(monkeypatch):
    monkeypatch.setattr(keystream, "BLOCKS_PER_KEY", 8)
    root = hashlib.sha256(b"noisewise/randomness/1/int/7").digest()
    rng = Randomness.seeded(7)
    drawn = rng.bytes(16 * 5) + rng.bytes(16 * 30)
    expected = b"".join(blocks_of(root, epoch, 8) for epoch in range(5))
    assert drawn == expected[: 16 * 35]
    assert len({drawn[i : i + 16] for i in range(0, len(drawn), 16)}) == 35


def test_a_secure_key_is_replaced_too(monkeypatch):
    monkeypatch.setattr(keystream, "BLOCKS_PER_KEY", 8)
    rng = Randomness.secure()
    drawn = rng.bytes(16 * 100)
    assert len({drawn[i : i + 16] for i in range(0, len(drawn), 16)}) == 100


def test_a_failing_draw_wastes_numbers_and_never_repeats_them():
    rng = Randomness.seeded(1)
    rng.bytes(16)
    with pytest.raises(ValueError):
        rng._stream.fill(np.empty(8, np.uint8), 16)
    assert rng.bytes(16) == Randomness.seeded(1).bytes(64)[32:48]


def test_seeded_numbers_are_those_of_the_first_release():
    rng = Randomness.seeded(7)
    assert rng.bytes(16).hex() == GOLDEN["bytes"]
    assert rng.below(1000, 8).tolist() == GOLDEN["below"]
    assert rng.poisson_indices(100, 0.1).tolist() == GOLDEN["poisson"]
    assert rng.uniform(3, dtype=torch.float64).tolist() == GOLDEN["uniform"]
    assert Randomness.seeded(b"seed").bytes(8).hex() == GOLDEN["bytes seed"]
    assert rng.spawn(2)[1].bytes(8).hex() == GOLDEN["child"]
    assert rng.normal(4).tolist() == GOLDEN["normal"]
    # The last bits of the logarithm and the sine of float64 may differ between processors.
    assert rng.normal_numpy(3).tolist() == pytest.approx(GOLDEN["normal64"], rel=1e-12)


# -------------------------------------------------------------------- identity


def test_none_is_secure_and_a_number_is_a_seed():
    assert resolve(None).is_secure
    assert resolve(None).bytes(32) != resolve(None).bytes(32)
    assert not resolve(3).is_secure
    assert resolve(np.int64(3)).bytes(8) == Randomness.seeded(3).bytes(8)
    assert resolve(b"3").bytes(8) != Randomness.seeded(3).bytes(8)
    rng = Randomness.seeded(3)
    assert resolve(rng) is rng


@pytest.mark.parametrize("bad", [True, 1.5, "7", np.random.default_rng(1), torch.Generator()])
def test_other_generators_are_refused_with_the_reason(bad):
    with pytest.raises(TypeError, match="rng must be None"):
        resolve(bad)


def test_the_description_says_what_is_secret():
    assert Randomness.secure().description == "AES-256-CTR keyed from the operating system"
    assert "seed 7" in Randomness.seeded(7).description
    assert "NOT secret" in Randomness.seeded(7).spawn(1)[0].description
    assert "secret" not in repr(Randomness.secure())


def test_different_seeds_give_unrelated_streams():
    streams = {Randomness.seeded(seed).bytes(16) for seed in range(-50, 50)}
    assert len(streams) == 100


def test_children_differ_from_each_other_from_the_parent_and_from_later_children():
    parent = Randomness.seeded(5)
    children = parent.spawn(20) + parent.spawn(20)
    grandchildren = [child.spawn(1)[0] for child in children]
    drawn = [rng.bytes(1600) for rng in [parent, *children, *grandchildren]]
    blocks = [part[i : i + 16] for part in drawn for i in range(0, 1600, 16)]
    assert len(set(blocks)) == len(blocks)
    again = Randomness.seeded(5).spawn(40)
    assert [rng.bytes(1600) for rng in again] == drawn[1:41]
    assert all(child.is_secure for child in Randomness.secure().spawn(3))


def test_children_are_uncorrelated():
    first, second = (child.normal(400_000).double() for child in Randomness.seeded(6).spawn(2))
    # The correlation of independent normals has deviation n^-1/2; 5 deviations: 6e-7.
    assert abs(float((first * second).mean())) < 5 / math.sqrt(400_000)


def test_no_global_generator_is_touched():
    numpy_before, torch_before = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    for rng in (Randomness.secure(), Randomness.seeded(1)):
        rng.normal(10), rng.uniform(10), rng.below(7, 10), rng.poisson_mask(10, 0.5)
    assert np.array_equal(numpy_before, np.random.get_state()[1])  # noqa: NPY002
    assert torch.equal(torch_before, torch.get_rng_state())


# -------------------------------------------------------------------- saving and copying


@given(st.integers(0, 100), st.integers(1, 100))
def test_a_resumed_generator_continues_bit_for_bit(before, after):
    rng = Randomness.seeded(11)
    rng.normal(before)
    rng.spawn(2)
    resumed = Randomness.from_state(rng.state())
    assert torch.equal(resumed.normal(after), rng.normal(after))
    assert resumed.spawn(1)[0].bytes(8) == rng.spawn(1)[0].bytes(8)
    assert resumed.description == rng.description


def test_resuming_works_at_the_end_of_a_key(monkeypatch):
    monkeypatch.setattr(keystream, "BLOCKS_PER_KEY", 4)
    for blocks in range(10):
        rng = Randomness.seeded(3)
        rng.bytes(16 * blocks)
        assert Randomness.from_state(rng.state()).bytes(160) == rng.bytes(160)


def test_a_secure_generator_is_never_written_down():
    rng = Randomness.secure()
    with pytest.raises(RandomnessError, match="reveal the noise"):
        rng.state()
    with pytest.raises(RandomnessError, match="cannot be pickled"):
        pickle.dumps(rng)
    for duplicate in (copy.copy(rng), copy.deepcopy(rng)):
        assert duplicate.is_secure
        assert duplicate.bytes(32) != rng.bytes(32)


def test_a_seeded_generator_can_be_pickled_and_copied():
    rng = Randomness.seeded(3)
    rng.bytes(100)
    twins = [pickle.loads(pickle.dumps(rng)), copy.deepcopy(rng), copy.copy(rng)]
    assert {twin.bytes(16) for twin in twins} == {rng.bytes(16)}


def test_a_foreign_state_is_refused():
    with pytest.raises(ValueError, match="not a state"):
        Randomness.from_state({"cipher": "Philox"})


# -------------------------------------------------------------------- processes and threads


def in_fork(work):
    """Run `work` in a forked child and return the bytes that it returns."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, work())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as pipe:
        return pipe.read()


@needs_fork
@pytest.mark.parametrize("make", [Randomness.secure, lambda: Randomness.seeded(9)])
def test_forks_share_no_number_with_parent_or_siblings(make):
    rng = make()
    rng.normal(10)

    def nested():
        return rng.bytes(320) + in_fork(lambda: rng.bytes(320)) + in_fork(lambda: rng.bytes(320))

    drawn = [in_fork(nested), in_fork(nested), rng.bytes(320), in_fork(nested), rng.bytes(320)]
    whole = b"".join(drawn)
    assert len(whole) == 3 * 960 + 2 * 320
    assert len({whole[i : i + 16] for i in range(0, len(whole), 16)}) == len(whole) // 16


@needs_fork
def test_the_parent_of_a_fork_goes_on_as_if_nothing_had_happened():
    rng, alone = Randomness.seeded(9), Randomness.seeded(9)
    rng.bytes(16)
    in_fork(lambda: rng.bytes(16))
    assert rng.bytes(64) == alone.bytes(80)[16:]


@needs_fork
def test_seeded_forks_depend_on_their_order_alone():
    def program():
        """A fresh process, so that its forks are counted from one."""
        rng = Randomness.seeded(9)
        return in_fork(lambda: rng.bytes(16)) + in_fork(lambda: rng.bytes(16))

    # Both run as forks of this process; the generator is made inside, so its own
    # children are told apart by the index of the fork under that process.
    first, second = in_fork(program), in_fork(program)
    assert len(first) == 32
    assert first[:16] != first[16:]
    assert first == second


@needs_fork
def test_a_fork_is_not_stopped_by_a_lock_that_another_thread_held():
    rng = Randomness.secure()
    held, release = threading.Event(), threading.Event()

    def hold():
        with rng._stream.lock:
            held.set()
            release.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(30)
    try:
        assert len(in_fork(lambda: rng.bytes(16))) == 16
    finally:
        release.set()
        thread.join()


@needs_fork
def test_a_fork_that_python_does_not_see_is_noticed():
    secure, seeded = Randomness.secure(), Randomness.seeded(4)
    secure.bytes(16), seeded.bytes(16)
    reader, writer = os.pipe()
    child = ctypes.CDLL(None).fork()
    if child == 0:
        try:
            os.write(writer, secure.bytes(64))
            seeded.bytes(16)
        except RandomnessError:
            os.write(writer, b"refused")
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    assert answer[64:] == b"refused"
    assert answer[:64] != secure.bytes(64)


def _worker(rng: Randomness, queue: multiprocessing.Queue[bytes]) -> None:
    queue.put(rng.bytes(64))


@needs_fork
@pytest.mark.parametrize("make", [Randomness.secure, lambda: Randomness.seeded(9)])
def test_forked_workers_draw_different_numbers(make):
    context = multiprocessing.get_context("fork")
    rng, queue = make(), context.Queue()
    workers = [context.Process(target=_worker, args=(rng, queue)) for _ in range(4)]
    for worker in workers:
        worker.start()
    drawn = [queue.get(timeout=60) for _ in workers] + [rng.bytes(64)]
    for worker in workers:
        worker.join()
    assert len(set(drawn)) == 5


def test_threads_share_a_generator_without_sharing_a_number():
    rng = Randomness.seeded(2)
    drawn: list[bytes] = []

    def work():
        for _ in range(300):
            drawn.append(rng.bytes(16))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = Randomness.seeded(2).bytes(16 * 1800)
    assert sorted(drawn) == sorted(expected[i : i + 16] for i in range(0, 16 * 1800, 16))


def test_normals_drawn_in_threads_are_whole_blocks_of_the_stream():
    rng, reference = Randomness.seeded(2), Randomness.seeded(2)
    drawn: list[float] = []
    threads = [
        threading.Thread(target=lambda: drawn.extend(rng.normal(1000)[:3].tolist()))
        for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = [number for _ in range(12) for number in reference.normal(1000)[:3].tolist()]
    assert sorted(drawn) == sorted(expected)


# -------------------------------------------------------------------- a few numbers at a time


def few(rng, times, count=7):
    return np.concatenate([rng.normal_numpy(count, 2.0) for _ in range(times)])


def test_few_normals_of_a_secure_generator_are_each_used_once():
    drawn = few(Randomness.secure(), 6000)
    assert np.unique(drawn).size == drawn.size  # 42,000 of 2^52 coincide with probability 2e-7


@pytest.mark.parametrize("count", [1, 42, 1023])
def test_few_normals_follow_the_law(count):
    drawn = few(Randomness.secure(), 50_000 // count, count) / 2.0
    assert stats.kstest(drawn, "norm").pvalue > ALARM


@needs_fork
def test_forks_share_no_normal_that_the_parent_had_drawn_ahead():
    rng = Randomness.secure()
    few(rng, 1)
    children = [np.frombuffer(in_fork(lambda: few(rng, 10).tobytes())) for _ in range(2)]
    drawn = np.concatenate([few(rng, 10), *children])
    assert np.unique(drawn).size == drawn.size


def test_threads_share_no_normal_that_was_drawn_ahead():
    rng, drawn = Randomness.secure(), []
    threads = [threading.Thread(target=lambda: drawn.append(few(rng, 400))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    together = np.concatenate(drawn)
    assert np.unique(together).size == together.size


def test_noise_is_drawn_here_whatever_device_is_the_default():
    like = torch.zeros(5)
    with torch.device("meta"):
        drawn = Randomness.seeded(1).normal_for([like], [2.0])
    assert torch.equal(drawn[0], Randomness.seeded(1).normal_for([like], [2.0])[0])


def test_a_seeded_generator_draws_nothing_ahead():
    rng, reference = Randomness.seeded(3), Randomness.seeded(3)
    few(rng, 2)
    for _ in range(2):
        reference.bytes(3 * 8 * 4)  # three words of each of four pairs
    assert rng.bytes(16) == reference.bytes(16)


# -------------------------------------------------------------------- integers and batches


@pytest.mark.parametrize("bound", [1, 2, 3, 7, 10, 100])
def test_integers_below_a_small_bound_are_uniform(bound):
    counts = np.bincount(Randomness.seeded(bound).below(bound, 200_000).astype(int))
    assert counts.size == bound
    assert bound == 1 or stats.chisquare(counts).pvalue > ALARM


def test_integers_below_many_bounds_are_uniform():
    bounds = np.repeat(np.array([1, 2, 5, 11], np.uint64), 100_000).reshape(4, -1)
    for bound, row in zip((1, 2, 5, 11), Randomness.seeded(1).below(bounds), strict=True):
        counts = np.bincount(row.astype(int), minlength=bound)
        assert counts.size == bound
        assert bound == 1 or stats.chisquare(counts).pvalue > ALARM


def test_rejection_is_exact_at_the_largest_bounds():
    # With bound 3 * 2^62 a plain remainder would give the lower third twice as often.
    bound = 3 * 2**62
    for numbers in (
        Randomness.seeded(1).below(bound, 90_000),
        Randomness.seeded(2).below(np.full(90_000, bound, np.uint64)),
    ):
        assert int(numbers.max()) < bound
        assert stats.chisquare(np.bincount((numbers >> np.uint64(62)).astype(int))).pvalue > ALARM


def test_the_refused_words_are_exactly_the_incomplete_cycle():
    bound = 2**64 - 5  # 2^64 mod bound is 5, so the words 0 to 4 are refused
    feed = iter([np.array([0, 4, 5, 2**64 - 1], np.uint64), np.array([7, 8], np.uint64)])
    assert integers.below_one(lambda _: next(feed), bound, 4).tolist() == [7, 8, 5, 4]
    feed = iter([np.array([0, 4, 5, 2**64 - 1], np.uint64), np.array([7, 8], np.uint64)])
    bounds = np.full(4, bound, np.uint64)
    assert integers.below_each(lambda _: next(feed), bounds).tolist() == [7, 8, 5, 4]


@pytest.mark.parametrize("bad", [0, -1, 2**64 + 1, 1.5])
def test_a_bound_without_integers_below_is_refused(bad):
    with pytest.raises(ValueError, match="bound"):
        Randomness.seeded(1).below(bad, 3)


def test_arrays_of_bounds_are_checked():
    with pytest.raises(ValueError, match="bound"):
        Randomness.seeded(1).below(np.array([1, 0]))
    with pytest.raises(TypeError, match="integers"):
        Randomness.seeded(1).below(np.array([1.0]))


@pytest.mark.parametrize("rate", [0.5, 0.01, 1e-4, 1 / 3, Fraction(1, 7), 2.0**-17, 0.999])
def test_a_poisson_mask_has_its_rate(rate):
    count = 2_000_000
    drawn = int(Randomness.seeded(3).poisson_mask(count, rate).sum())
    assert_count_plausible(drawn, count, float(rate))


@given(st.fractions(0, 1).filter(lambda rate: 0 < rate < 1), st.data())
def test_a_record_is_drawn_exactly_when_its_uniform_number_is_below_the_rate(rate, data):
    # Words at and next to the digits of the rate, where a rounded comparison goes wrong.
    digits = [int(rate * 2**16), int(rate * 2**80) % 2**64, int(rate * 2**144) % 2**64]
    near = [data.draw(st.integers(-1, 1)) for _ in digits]
    chosen = [
        (digit + step) % base
        for digit, step, base in zip(digits, near, (2**16, 2**64, 2**64), strict=True)
    ]
    feed = iter([*chosen, 0, 0, 0, 0])
    result = integers.bernoulli(lambda _: np.array([next(feed)], np.uint64), 1, rate)
    number = Fraction(chosen[0] * 2**128 + chosen[1] * 2**64 + chosen[2], 2**144)
    assert bool(result[0]) == (number < rate)


def test_records_of_a_poisson_batch_are_independent():
    mask = Randomness.seeded(4).poisson_mask(4_000_000, 0.25).numpy()
    pairs = np.bincount(mask[:-1:2] * 2 + mask[1::2], minlength=4)
    expected = np.array([9, 3, 3, 1]) / 16 * pairs.sum()
    assert stats.chisquare(pairs, expected).pvalue > ALARM


def test_poisson_ends_and_indices():
    rng = Randomness.seeded(5)
    assert not rng.poisson_mask(1000, 0).any()
    assert rng.poisson_mask(1000, 1.0).all()
    assert rng.poisson_mask(0, 0.5).shape == (0,)
    indices = Randomness.seeded(6).poisson_indices(10_000, 0.1)
    mask = Randomness.seeded(6).poisson_mask(10_000, 0.1)
    assert torch.equal(indices, mask.nonzero().flatten())
    assert indices.dtype == torch.int64
    assert mask.dtype == torch.bool


@pytest.mark.parametrize("bad", [-0.1, 1.1, math.nan, Fraction(3, 2)])
def test_a_rate_outside_the_unit_interval_is_refused(bad):
    with pytest.raises(ValueError, match="rate"):
        Randomness.seeded(1).poisson_mask(10, bad)


def test_coins_are_fair():
    assert_count_plausible(int(Randomness.seeded(8).coins(1_000_003).sum()), 1_000_003, 0.5)


# -------------------------------------------------------------------- uniform numbers


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [(torch.float16, 10), (torch.bfloat16, 7), (torch.float32, 23), (torch.float64, 52)],
)
def test_uniform_numbers_are_midpoints_and_uniform(dtype, bits):
    numbers = Randomness.seeded(bits).uniform((1000, 500), dtype=dtype)
    assert numbers.dtype == dtype
    wide = numbers.double().flatten().numpy()
    assert wide.min() > 0
    assert wide.max() < 1
    cells = wide * 2.0**bits - 0.5
    assert np.array_equal(cells, np.floor(cells))
    groups = np.bincount((wide * 128).astype(int), minlength=128)
    assert stats.chisquare(groups).pvalue > ALARM


def test_uniform_numpy_passes_kolmogorov_smirnov():
    numbers = Randomness.seeded(1).uniform_numpy(1_000_000)
    assert stats.kstest(numbers, "uniform").pvalue > ALARM
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 5 / 1000


@pytest.mark.parametrize("bad", [torch.int32, torch.complex64, torch.bool])
def test_other_types_are_refused(bad):
    with pytest.raises(TypeError, match="dtype"):
        Randomness.seeded(1).uniform(3, dtype=bad)
    with pytest.raises(TypeError, match="dtype"):
        Randomness.seeded(1).normal(3, dtype=bad)


# -------------------------------------------------------------------- normal numbers

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("hardened", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_normal_numbers_follow_the_normal_law(dtype, hardened):
    numbers = Randomness.seeded(21).normal(1_000_001, dtype=dtype, hardened=hardened)
    assert numbers.dtype == dtype
    wide = numbers.double().numpy()
    # Edges between the numbers of every type, so that rounding moves nothing across.
    edges = np.linspace(-3.5, 3.5, 29) + 2.0**-12
    if dtype == torch.bfloat16:
        edges = np.linspace(-3.5, 3.5, 15) + 2.0**-7
    counts = np.bincount(np.searchsorted(edges, wide), minlength=edges.size + 1)
    probability = np.diff(stats.norm.cdf(np.concatenate([[-np.inf], edges, [np.inf]])))
    assert stats.chisquare(counts, probability * wide.size).pvalue > ALARM
    if dtype in (torch.float32, torch.float64):
        assert stats.kstest(wide, "norm").pvalue > ALARM


def test_moments_of_normal_numbers():
    numbers = Randomness.seeded(22).normal(4_000_000, std=3.0, dtype=torch.float64) / 3
    count = numbers.numel()
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96), (6, 15, 10170)):
        assert abs(float((numbers**power).mean()) - mean) < 5 * math.sqrt(variance / count)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_two_numbers_of_a_pair_are_independent(dtype):
    pairs = 60_000
    numbers = Randomness.seeded(23).normal(2 * pairs, dtype=dtype).double()
    first, second = numbers[:pairs], numbers[pairs:]
    for left, right in ((first, second), (first.abs(), second.abs()), (first**2, second)):
        correlation = np.corrcoef(left.numpy(), right.numpy())[0, 1]
        assert abs(correlation) < 5 / math.sqrt(pairs)
    # Angle and radius: each has its law, and the 16 octants meet the 4 quarters evenly.
    angle = np.floor((np.arctan2(second.numpy(), first.numpy()) / math.pi + 1) * 8).clip(0, 15)
    quarter = np.floor(4 * -np.expm1(-(first**2 + second**2).numpy() / 2)).clip(0, 3)
    counts = np.bincount((angle * 4 + quarter).astype(int), minlength=64)
    assert stats.chisquare(counts).pvalue > ALARM


def test_neighbours_in_memory_are_uncorrelated():
    numbers = Randomness.seeded(24).normal(1_000_000).double().numpy()
    for lag in (1, 2, 3, 4, 8, 16, gaussian.BLOCK_PAIRS, 2 * gaussian.BLOCK_PAIRS):
        assert abs(np.mean(numbers[:-lag] * numbers[lag:])) < 5 / math.sqrt(numbers.size - lag)


def test_the_tail_beyond_five_deviations_has_the_right_weight():
    rng, total = Randomness.seeded(25), 0
    limits = (3.0, 4.0, 5.0, 5.5)
    beyond = dict.fromkeys(limits, 0)
    buffer = torch.empty(2_000_000)
    for _ in range(40):
        rng.normal_(buffer)
        assert bool(torch.isfinite(buffer).all())
        assert bool((buffer != 0).all())
        total += buffer.numel()
        size = buffer.abs()
        size = size[size > limits[0]]
        for limit in limits:
            beyond[limit] += int((size > limit).sum())
    for limit in limits:
        assert_count_plausible(beyond[limit], total, 2 * stats.norm.sf(limit))


def reference_pair(maker, words, more):
    """Box-Muller in double precision from the same integers, as written in the module."""
    bits = maker.bits
    low = int(words[0]) % 2 ** (bits - 1)
    trailing = (low & -low).bit_length() - 1 if low else bits - 1 + more
    fraction = (int(words[1]) % 2 ** (bits - 1) - 2 ** (bits - 1) + 0.5) / 2.0**bits
    radius = math.sqrt(2 * (trailing * math.log(2) - math.log1p(fraction)))
    angle = ((int(words[2]) >> 1) + 0.5) * math.pi / 2 / 2.0 ** (bits - 1)
    longer = math.cos(angle) * radius * (-1 if words[2] & 1 else 1)
    shorter = math.sin(angle) * radius
    return (shorter, longer) if words[1] < 0 else (longer, shorter)


int32 = st.one_of(
    st.integers(-(2**31), 2**31 - 1),
    st.sampled_from([0, 1, -1, 2, -(2**31), 2**31 - 1, -(2**31) + 1, 2**30]),
)
int64 = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.sampled_from([0, 1, -1, -(2**63), 2**63 - 1])
)


@given(st.tuples(int32, int32, int32), st.integers(0, 90))
def test_single_precision_pairs_are_accurate_for_all_integers(words, more):
    maker = gaussian.PairMaker(double=False, pairs=1)
    out = np.empty((2, 1), np.float32)
    maker(np.array(words, np.int32).reshape(3, 1), out[0], out[1], lambda: more)
    expected = reference_pair(maker, words, more)
    assert np.allclose(out[:, 0], expected, rtol=8 * 2.0**-24, atol=0)
    assert (out != 0).all()


@given(st.tuples(int64, int64, int64), st.integers(0, 60))
def test_double_precision_pairs_are_accurate_for_all_integers(words, more):
    maker = gaussian.PairMaker(double=True, pairs=1)
    out = np.empty((2, 1), np.float64)
    maker(np.array(words, np.int64).reshape(3, 1), out[0], out[1], lambda: more)
    assert np.allclose(out[:, 0], reference_pair(maker, words, more), rtol=1e-14, atol=0)
    assert (out != 0).all()


def test_the_transformation_reaches_beyond_eight_deviations():
    maker = gaussian.PairMaker(double=False, pairs=2)
    words = np.array([[0, -(2**31)], [5, 5], [0, 0]], np.int32)
    out = np.empty((2, 2), np.float32)
    maker(words, out[0], out[1], lambda: 40)
    assert (np.abs(out[0]) > 8).all()
    assert np.isfinite(out).all()
    assert (np.abs(out) < gaussian.LARGEST).all()


@pytest.mark.parametrize("double", [False, True])
def test_far_in_the_tail_the_radius_is_still_exponential(double):
    # All integers of K are zero: these points lie beyond 6.5 deviations (9.3 for double)
    # and would occur once in 2^31 (2^63) pairs. There, E - 31 ln 2 is exponential again.
    pairs = 20_000
    maker = gaussian.PairMaker(double, pairs)
    rng = Randomness.seeded(26)
    words = rng.uint64(3 * pairs).astype(maker.integer).reshape(3, pairs)
    words[0] = 0
    out = np.empty((2, pairs), maker.real)
    maker(words, out[0], out[1], rng._normals._zeros)
    energy = (out.astype(np.float64) ** 2).sum(axis=0) / 2 - (maker.bits - 1) * math.log(2)
    assert stats.kstest(energy, "expon").pvalue > ALARM


def test_the_continued_zeros_are_geometric(monkeypatch):
    source = Randomness.seeded(27)
    zeros = np.array([source._normals._zeros() for _ in range(20_000)])
    counts = np.bincount(zeros.clip(max=8), minlength=9)
    probability = np.append(0.5 ** np.arange(1, 9), 0.5**8)
    assert stats.chisquare(counts, probability * zeros.size).pvalue > ALARM
    words = iter([0, 0, 8])

    def fill(buffer, size):
        buffer[:8] = np.array([next(words)], np.uint64).view(np.uint8)

    monkeypatch.setattr(source._stream, "fill", fill)
    assert source._normals._zeros() == 128 + 3


@pytest.mark.parametrize("count", [0, 1, 2, 3, 65535, 65536, 65537, 65539, 200_001])
def test_all_sizes_are_filled(count):
    numbers = Randomness.seeded(28).normal(count)
    assert numbers.shape == (count,)
    assert bool((numbers != 0).all())
    assert bool((numbers.abs() < 7).all())


def test_equal_numbers_are_as_rare_as_rounding_to_float32_makes_them():
    # A hidden grid of radii or angles, or a repeated block, would make pairs of equal
    # numbers more frequent than the spacing of float32 does.
    count = 1_000_000
    _, copies = Randomness.seeded(29).normal(count).unique(return_counts=True)
    pairs = int((copies * (copies - 1) // 2).sum())
    x = np.linspace(1e-6, 8, 4_000_001)
    spacing = np.spacing(x.astype(np.float32)).astype(np.float64)
    chance = 2 * integrate.trapezoid(stats.norm.pdf(x) ** 2 * spacing, x)
    law = stats.poisson(count * (count - 1) / 2 * chance)
    assert law.cdf(pairs) > ALARM / 2, (pairs, law.mean())
    assert law.sf(pairs - 1) > ALARM / 2, (pairs, law.mean())


def test_out_in_place_strides_and_views():
    base = torch.zeros(6, 8)
    Randomness.seeded(1).normal_(base[:, ::2])
    assert bool((base[:, 1::2] == 0).all())
    assert bool((base[:, ::2] != 0).all())
    out = torch.zeros(2, 3, dtype=torch.float16)
    assert Randomness.seeded(1).normal((2, 3), out=out) is out
    assert torch.equal(out, Randomness.seeded(1).normal((2, 3)).half())
    with pytest.raises(ValueError, match="shape"):
        Randomness.seeded(1).normal((3, 2), out=out)
    weight = torch.nn.Parameter(torch.zeros(4))
    Randomness.seeded(1).normal_(weight)
    assert weight.is_leaf
    assert torch.equal(weight.data, Randomness.seeded(1).normal(4))
    assert Randomness.seeded(1).normal(()).shape == ()


def test_the_number_of_threads_changes_no_number():
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = Randomness.seeded(1).normal(300_000)
        torch.set_num_threads(2)
        assert torch.equal(Randomness.seeded(1).normal(300_000), one)
    finally:
        torch.set_num_threads(threads)


def test_noise_for_several_tensors_is_like_each_of_them():
    tensors = [torch.empty(3, 4), torch.empty(0), torch.empty(5, dtype=torch.bfloat16)]
    noise = Randomness.seeded(1).normal_for(tensors, [2.0, 1.0, 0.5])
    flat = Randomness.seeded(1).normal(17)
    assert torch.equal(noise[0], flat[:12].view(3, 4) * 2)
    assert noise[1].shape == (0,)
    assert torch.equal(noise[2], (flat[12:] * 0.5).bfloat16())
    with pytest.raises(ValueError, match="one for each"):
        Randomness.seeded(1).normal_for(tensors, [1.0])


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan, 1e5, 1e-6])
def test_a_deviation_without_noise_or_without_room_is_refused(bad):
    with pytest.raises(ValueError, match="std"):
        Randomness.seeded(1).normal(3, std=bad, dtype=torch.float16)


def test_a_stream_cannot_be_filled_beyond_its_buffer():
    with pytest.raises(ValueError):
        Keystream(bytes(32)).fill(np.empty(16, np.uint8), 64)


GOLDEN = {
    "bytes": "a5bec50bdccb145e1dd09490799ed3ab",
    "below": [533, 657, 398, 544, 844, 658, 589, 209],
    "poisson": [23, 30, 58, 64, 67, 80, 83, 86],
    "uniform": [0.2969269535323914, 0.16678346282963885, 0.6853256147789165],
    "bytes seed": "18fc93c99ccab853",
    "child": "30af71429051fdb2",
    "normal": [1.6857073307037354, 0.6426488161087036, -0.6833242774009705, -1.252616047859192],
    "normal64": [-1.4323980889315004, 0.49863049172063584, 0.5535345474612094],
}
