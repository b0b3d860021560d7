"""Running counts: exact shifts, accuracy over a million items, restarts, misuse."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from noisewise.ecdf.budget import Budget
from noisewise.ecdf.mechanisms.laminar import run_cost
from noisewise.ecdf.stream_noise import KaryNoise, PathNoise, choose_kary
from noisewise.ecdf.stream_state import StreamState
from noisewise.ecdf.stream_toeplitz import ToeplitzSegment
from noisewise.ecdf.streaming import StreamingCounter
from noisewise.errors import (
    BudgetExceededError,
    LedgerError,
    LedgerRolledBackError,
    RelationError,
    UnsoundError,
)
from noisewise.privacy import Ledger, Pure, Sensitivity, verify
from noisewise.privacy.randomness import Randomness
from noisewise.release.slots import NoiseSlots


def node_counts(noise: KaryNoise, items: np.ndarray) -> list[np.ndarray]:
    levels = []
    for level in range(noise.height + noise.root):
        width = noise.fanout**level
        padded = np.zeros(-(-items.size // width) * width, np.int64)
        padded[: items.size] = items
        levels.append(padded.reshape(-1, width).sum(1))
    return levels


@given(st.integers(2, 7), st.integers(1, 3), st.booleans(), st.data())
def test_the_counts_of_the_nodes_give_the_running_counts_so_shifts_hide_an_item(
    fanout: int, height: int, root: bool, data: st.DataObject
) -> None:
    # g(node counts) = running counts exactly; hence moving item t by one is the same as
    # moving the noise of one node on each level by one: epsilon = levels / scale.
    length = data.draw(st.integers(1, fanout**height))
    noise = KaryNoise(length, fanout, height, root, Fraction(height + root))
    items = np.random.default_rng(length).integers(0, 5, length)
    levels = node_counts(noise, items)
    assert tuple(level.size for level in levels) == noise.sizes()
    assert np.array_equal(noise.combine(levels), np.cumsum(items))
    assert noise.epsilon(1) == 1


@pytest.mark.parametrize("length", [1, 2, 5, 27, 100])
def test_closed_form_variance_bounds_the_variance_of_the_linear_map(length: int) -> None:
    noise = KaryNoise.of(length, 1.0)
    sizes = noise.sizes()
    terms = np.zeros(length)
    for level, size in enumerate(sizes):
        for node in range(size):
            unit = [np.zeros(s, np.int64) for s in sizes]
            unit[level][node] = 1
            terms += noise.combine(unit) ** 2
    single = noise.variance() / np.maximum(terms, 1)
    one = KaryNoise(1, 2, 1, False, noise.scale).variance()[0]
    # Siblings beyond the end hold no items and no noise, so the formula may be above.
    assert np.all(terms * one <= noise.variance() + 1e-9)
    assert single.min() >= one * (1 - 1e-9)


@pytest.mark.parametrize("height", [0, 1, 3, 6])
def test_path_noise_has_the_scale_of_the_dearest_suffix(height: int) -> None:
    length = 2**height
    noise = PathNoise.of(length, 1.0)
    dearest = max(run_cost(t, length - 1, 2, height) for t in range(length))
    assert noise.epsilon(1) <= 1
    assert float(noise.scale) == pytest.approx(dearest, rel=1e-6)
    assert dearest == -(-(height + 1) // 2)  # ceil((L+1)/2)


def test_bound_multiplies_the_noise() -> None:
    assert float(KaryNoise.of(100, 1.0, bound=7).scale) == pytest.approx(
        7 * float(KaryNoise.of(100, 1.0).scale), rel=1e-6
    )


@pytest.mark.parametrize("length", [1, 7, 64])
def test_triangular_measurements_are_of_past_items_and_single_steps_agree_with_batches(
    length: int,
) -> None:
    items = np.random.default_rng(1).integers(0, 2, length)
    budget = Budget(1.0, 1e-6)
    whole, steps = ToeplitzSegment(length, budget), ToeplitzSegment(length, budget)
    noise = whole.mechanism.draw(Randomness.seeded(3))

    def add(segment: ToeplitzSegment, start: int, end: int) -> np.ndarray:
        part = items[start:end]
        return segment.read(part, start, segment.measure(part, start) + noise[start:end])

    together = add(whole, 0, length)
    one_by_one = np.concatenate([add(steps, t, t + 1) for t in range(length)])
    assert np.allclose(together, one_by_one, atol=1e-6)
    assert whole.mechanism.delta(1.0) <= 1e-6
    assert whole.mechanism.change == "suffix"


@pytest.mark.parametrize(("mechanism", "delta"), [("kary", 0.0), ("thesis", 0.0), ("sqrt", 1e-6)])
def test_released_counts_have_the_stated_variance(mechanism: str, delta: float) -> None:
    # 600 streams; the standardised mean square of the last count has deviation below
    # sqrt(5 / 600) = 0.092; 0.55 is almost six of them.
    squares = []
    rng = Randomness.seeded(9)
    for _ in range(600):
        counter = StreamingCounter(
            epsilon=1.0, delta=delta, horizon=50, mechanism=mechanism, rng=rng
        )
        counter.extend(np.ones(37, np.int64))
        squares.append((counter.value - 37) ** 2 / counter.variance)
    assert abs(np.mean(squares) - 1) < 0.55


def test_a_million_items_of_an_endless_stream() -> None:
    items = (np.random.default_rng(0).random(10**6) < 0.3).astype(np.int64)
    counter = StreamingCounter(epsilon=1.0, rng=1)
    released = np.concatenate([counter.extend(part) for part in np.split(items, 50)])
    error = released - np.cumsum(items)
    assert counter.position == 10**6
    assert np.abs(error).max() < 1000  # deviations of about 50; a thousandth of the sum
    assert np.sqrt(np.mean(error**2)) < 4 * np.sqrt(counter.variance)
    # Far better than fresh noise on each count, which needs a scale of 10^6.
    assert counter.variance < 10_000
    assert np.all(released == np.rint(released))  # integers: nothing rounded


def test_trees_with_subtraction_beat_the_thesis() -> None:
    for length in (2**10, 2**15, 2**20):
        ours = KaryNoise.of(length, 1.0).variance().mean()
        assert ours < PathNoise.of(length, 1.0).variance().mean() / 3
    assert choose_kary(2**10)[1] <= 4


def test_statements_hold_for_the_whole_stream() -> None:
    for options in ({}, {"delta": 1e-6}, {"mechanism": "thesis"}, {"bound": 5}):
        counter = StreamingCounter(epsilon=0.5, rng=1, **options)
        before = counter.statement()
        counter.extend(np.ones(3000, np.int64))
        after = counter.statement()
        assert verify(after).ok
        assert before.epsilon <= after.epsilon + 1e-9 <= 0.5 + 2e-9
        assert "one item" in after.unit


# ------------------------------------------------------------------------ restarts


def test_a_resumed_counter_goes_on_where_it_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "visits.json"
    with StreamingCounter(epsilon=1.0, path=path, rng=1) as counter:
        counter.extend(np.ones(500, np.int64))
        value, variance = counter.value, counter.variance
    resumed = StreamingCounter.resume(path, rng=2)
    assert (resumed.position, resumed.value) == (500, value)
    resumed.extend(np.ones(500, np.int64))
    assert resumed.variance > variance  # new noise on top of the old release
    assert abs(resumed.value - 1000) < 10 * np.sqrt(resumed.variance)
    resumed.close()


def sealed(state: dict[str, Any]) -> bytes:
    body = json.dumps(state).encode()
    return f"{hashlib.sha256(body).hexdigest()} ".encode() + body.ljust(2048 - 66) + b"\n"


def state_of(path: Path) -> dict[str, Any]:
    kept = StreamState(path, create=False)
    try:
        return kept.load()
    finally:
        kept.close()


def test_the_file_holds_nothing_that_was_not_released(tmp_path: Path) -> None:
    path = tmp_path / "visits.json"
    with StreamingCounter(epsilon=0.01, path=path) as counter:
        released = counter.extend(np.ones(100, np.int64))
    state = state_of(path)
    assert state["value"] == released[-1] != 100
    assert set(state) == {
        "format", "version", "epsilon", "delta", "horizon", "mechanism", "bound", "position",
        "segments", "value", "variance", "event", "name", "ledger", "paid", "saves",
    }  # fmt: skip


def test_noise_after_a_restart_is_new_even_with_the_same_items(tmp_path: Path) -> None:
    path = tmp_path / "visits.json"
    items = np.zeros(200, np.int64)
    with StreamingCounter(epsilon=1.0, path=path) as counter:
        counter.extend(items)
    saved = path.read_bytes()
    noises = []
    for _ in range(2):
        path.write_bytes(saved)
        (tmp_path / "visits.json.seen").unlink()
        with StreamingCounter.resume(path) as again:
            noises.append(again.extend(items) - again._base)
    assert not np.array_equal(*noises)


CRASH = """
import os, sys, numpy as np
from noisewise.ecdf.streaming import StreamingCounter
counter = StreamingCounter(epsilon=1.0, path=sys.argv[1], rng=1)
for _ in range(5):
    released = counter.extend(np.ones(10, np.int64))
    print(counter.position, released[-1], flush=True)
os._exit(9)
"""


def test_what_was_printed_before_a_crash_is_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "visits.json"
    source = Path(__file__).parents[2] / "src"
    run = subprocess.run(
        [sys.executable, "-c", CRASH, str(path)], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(source)},
    )  # fmt: skip
    assert run.returncode == 9, run.stderr
    position, value = run.stdout.split()[-2:]
    resumed = StreamingCounter.resume(path)
    assert resumed.position == int(position) == 50
    assert resumed.value == float(value)
    resumed.close()


def test_the_state_is_written_before_a_value_is_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = StreamingCounter(epsilon=1.0, path=tmp_path / "visits.json", rng=1)

    def full(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        counter.update(1)
    assert counter.value == 0.0  # what is not on disk is not shown in any other way either
    monkeypatch.undo()
    with pytest.raises(LedgerError):
        counter.update(1)
    resumed = StreamingCounter.resume(tmp_path / "visits.json")
    assert resumed.position == 0
    resumed.close()


def test_misuse_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "visits.json"
    counter = StreamingCounter(epsilon=1.0, path=path, rng=1)
    with pytest.raises(LedgerError, match="in use"):
        StreamingCounter.resume(path)
    counter.close()
    with pytest.raises(LedgerError, match="closed"):
        counter.update(1)
    with pytest.raises(LedgerError, match="exists"):
        StreamingCounter(epsilon=1.0, path=path)
    with pytest.raises(LedgerError, match="copied"):
        copy.deepcopy(counter)
    with pytest.raises(LedgerError, match="copied"):
        pickle.dumps(counter)
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(LedgerError, match="not the state"):
        StreamingCounter.resume(tmp_path / "bad.json")
    with pytest.raises(LedgerError, match="cannot resume"):
        StreamingCounter.resume(tmp_path / "missing.json")


def test_wrong_items_are_refused_before_anything_is_spent() -> None:
    counter = StreamingCounter(epsilon=1.0, horizon=5, rng=1)
    for wrong in ([2], [-1], [0, 1, 7]):
        with pytest.raises(ValueError, match="lie in"):
            counter.extend(wrong)
    with pytest.raises(TypeError, match="whole"):
        counter.extend(np.array([0.5]))
    with pytest.raises(ValueError, match="horizon"):
        counter.extend([1] * 6)
    assert counter.position == 0
    assert counter.extend([]).size == 0
    assert isinstance(counter.update(True), float)
    with pytest.raises(ValueError, match="epsilon"):
        StreamingCounter(epsilon=0.0)
    with pytest.raises(ValueError, match="delta"):
        StreamingCounter(epsilon=1.0, mechanism="sqrt")
    with pytest.raises(ValueError, match="bound"):
        StreamingCounter(epsilon=1.0, delta=1e-6, mechanism="sqrt", bound=2)
    with pytest.raises(ValueError, match="horizon"):
        StreamingCounter(epsilon=1.0, horizon=0)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=50), st.integers(1, 50))
@settings(max_examples=25)
def test_batches_and_single_items_give_the_same_releases(items: list[int], size: int) -> None:
    whole = StreamingCounter(epsilon=1.0, bound=3, rng=5).extend(items)
    counter = StreamingCounter(epsilon=1.0, bound=3, rng=5)
    parts = [counter.extend(items[start : start + size]) for start in range(0, len(items), size)]
    assert np.array_equal(whole, np.concatenate(parts))


# ------------------------------------------------------------- threads, processes, interrupts


def in_threads(count: int, action: Callable[[int], object]) -> None:
    """Let threads begin at once, and take turns often; raise what any of them raised."""
    errors: list[BaseException] = []
    barrier = threading.Barrier(count)

    def run(number: int) -> None:
        barrier.wait()
        try:
            action(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(before)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    if errors:
        raise errors[0]


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("mechanism", ["kary", "thesis", "sqrt"])
def test_threads_that_share_a_counter_release_what_one_thread_would(
    mechanism: str, saved: bool, tmp_path: Path
) -> None:
    # Equal items: whoever comes first, place t is released as t plus the noise of place t.
    each = 30 if saved else 200
    options: dict[str, Any] = {"epsilon": 1e-3, "mechanism": mechanism, "rng": 3}
    options["delta"] = 1e-6 if mechanism == "sqrt" else 0.0
    alone = StreamingCounter(**options).extend([1] * 8 * each)
    path = tmp_path / "visits.json" if saved else None
    counter = StreamingCounter(**options, path=path)
    released: list[float] = []

    def count(_: int) -> None:
        for _ in range(each // 2):
            released.append(counter.update(1))
            released.extend(counter.extend([1]))

    in_threads(8, count)
    assert counter.position == 8 * each
    assert np.allclose(sorted(released), sorted(alone), rtol=1e-9, atol=1e-6)
    assert len(set(released)) == len(set(alone))
    counter.close()


def test_a_slot_of_noise_that_is_used_twice_raises() -> None:
    one = Sensitivity(1.0, "l1", "replace-one")
    slots, rng = (
        NoiseSlots(lambda rng: np.arange(5), one, Pure(1.0), "numbers"),
        Randomness.secure(),
    )
    assert slots.taken(0, 2, rng).tolist() == [0, 1]
    for start, end in ((0, 2), (1, 3), (0, 5), (3, 4), (2, 1), (2, 6)):
        with pytest.raises(UnsoundError, match="used once"):
            slots.taken(start, end, rng)
    assert slots.taken(2, 5, rng).tolist() == [2, 3, 4]
    with pytest.raises(UnsoundError):
        slots.taken(4, 5, rng)


@pytest.mark.parametrize("mechanism", ["kary", "thesis", "sqrt"])
def test_even_without_the_lock_no_value_leaves_without_its_noise(
    mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The lock is what makes threads wait; that noise is used once does not depend on it.
    delta = 1e-6 if mechanism == "sqrt" else 0.0
    counter = StreamingCounter(epsilon=1e-9, delta=delta, mechanism=mechanism, rng=3)
    monkeypatch.setattr(counter, "_mutex", contextlib.nullcontext())
    released: list[float] = []

    def count(_: int) -> None:
        with contextlib.suppress(UnsoundError, LedgerError, AttributeError, TypeError):
            for _ in range(100):
                released.append(counter.update(0))

    in_threads(8, count)
    assert released
    assert all(value != 0 for value in released)  # noise of 10^9 and more is not 0 by chance


def test_every_thread_of_several_counters_on_one_file_but_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "visits.json"
    StreamingCounter(epsilon=1.0, path=path, rng=1).close()
    (tmp_path / "other").symlink_to(path)
    outcomes: list[object] = []

    def use(number: int) -> None:
        try:
            outcomes.append(StreamingCounter.resume(path if number % 2 else tmp_path / "other"))
        except LedgerError as error:
            outcomes.append(error)

    in_threads(6, use)
    (counter,) = (one for one in outcomes if isinstance(one, StreamingCounter))
    assert counter.update(1) == counter.value
    counter.close()


def test_a_forked_copy_neither_counts_nor_frees_the_file(tmp_path: Path) -> None:
    path = tmp_path / "visits.json"
    counter = StreamingCounter(epsilon=1.0, path=path, rng=1)
    counter.update(1)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            counter.update(1)
        except LedgerError:
            counter.close()
            del counter
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with pytest.raises(LedgerError, match="in use"):
        StreamingCounter.resume(path)
    counter.update(1)
    counter.close()


@pytest.mark.parametrize("saved", [False, True])
def test_after_an_interrupt_in_the_middle_nothing_more_is_released(
    saved: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The item may have been counted; counting it again would measure it twice.
    path = tmp_path / "visits.json"
    counter = StreamingCounter(epsilon=1.0, path=path if saved else None, rng=1)
    first = counter.update(1)

    def interrupt(self: object, position: int) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr("noisewise.ecdf.stream_tree.TreeSegment.variance_at", interrupt)
    with pytest.raises(KeyboardInterrupt):
        counter.update(1)
    monkeypatch.undo()
    assert (counter.position, counter.value) == (1, first)
    with pytest.raises(LedgerError, match="closed"):
        counter.update(1)
    if saved:
        with StreamingCounter.resume(path) as resumed:
            assert (resumed.position, resumed.value) == (1, first)


@pytest.mark.parametrize(
    "wrong",
    [
        {"position": -1}, {"position": 1.5}, {"position": "2"}, {"position": None},
        {"value": float("nan")}, {"value": [1]}, {"variance": -1.0}, {"segments": -1},
        {"horizon": 1, "position": 2}, {"epsilon": 0}, {"mechanism": "none"},
        {"epsilon": 10**400}, {"event": {"kind": "other"}}, {"event": 3},
    ],
)  # fmt: skip
@pytest.mark.parametrize("old", [False, True])
def test_a_state_that_no_counter_wrote_is_refused(
    wrong: dict[str, Any], old: bool, tmp_path: Path
) -> None:
    path = tmp_path / "visits.json"
    with StreamingCounter(epsilon=1.0, path=path, rng=1) as counter:
        counter.extend([1, 0])
    state = state_of(path) | wrong
    if old:
        (tmp_path / "visits.json.seen").unlink()
        path.write_text(json.dumps({**state, "version": 1}))
    else:
        path.write_bytes(sealed({**state, "saves": 9}))
    with pytest.raises(LedgerError, match="cannot resume"):
        StreamingCounter.resume(path)


def test_a_state_belongs_to_its_owner_alone_even_if_it_existed_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "visits.json"
    StreamingCounter(epsilon=1.0, path=path, rng=1).close()
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    with StreamingCounter.resume(path) as counter:
        assert path.stat().st_mode & 0o777 == 0o600
        path.chmod(0o644)
        counter.update(1)
        assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", ["name,age\nAda,36\n", "{}\n"])
def test_a_file_that_is_no_stream_keeps_its_mode(content: str, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(content)
    path.chmod(0o664)
    with pytest.raises(LedgerError):
        StreamingCounter.resume(path)
    assert path.stat().st_mode & 0o777 == 0o664
    assert path.read_text() == content


# ---------------------------------------------------------- one stream, one counter, one epsilon


def _deleted(path: Path, older: bytes) -> None:
    path.unlink()


def _exchanged(path: Path, older: bytes) -> None:
    path.with_name("copy").write_bytes(older)
    path.with_name("copy").rename(path)


def _copied_over(path: Path, older: bytes) -> None:
    path.write_bytes(older)


def _emptied(path: Path, older: bytes) -> None:
    path.write_bytes(b"")


CHANGES = (_deleted, _exchanged, _copied_over, _emptied)


@pytest.mark.parametrize("change", CHANGES)
def test_a_counter_notices_that_its_file_is_not_what_it_wrote(
    change: Callable[[Path, bytes], None], tmp_path: Path
) -> None:
    path = tmp_path / "visits.json"
    counter = StreamingCounter(epsilon=1.0, path=path)
    counter.extend([1] * 10)
    older = path.read_bytes()
    shown = counter.extend([1] * 10)[-1]
    change(path, older)
    with pytest.raises(LedgerError, match="while this counter used it"):
        counter.update(1)
    assert (counter.position, counter.value) == (20, shown)
    with pytest.raises(LedgerError, match="closed"):
        counter.update(1)


@pytest.mark.parametrize("change", CHANGES)
def test_an_older_state_is_not_continued(
    change: Callable[[Path, bytes], None], tmp_path: Path
) -> None:
    path = tmp_path / "visits.json"
    with StreamingCounter(epsilon=1.0, path=path) as counter:
        counter.extend([1] * 10)
        older = path.read_bytes()
        counter.extend([1] * 10)
    newest = path.read_bytes()
    change(path, older)
    for _ in range(2):
        with pytest.raises(LedgerError):
            StreamingCounter.resume(path)
    if not path.exists():
        with pytest.raises(LedgerRolledBackError, match=r"gone.*visits\.json\.seen"):
            StreamingCounter(epsilon=1.0, path=path)
    path.write_bytes(newest)
    with StreamingCounter.resume(path) as counter:
        assert counter.position == 20


def test_there_is_no_lock_to_be_removed(tmp_path: Path) -> None:
    path = tmp_path / "visits.json"
    with StreamingCounter(epsilon=1.0, path=path) as counter:
        counter.update(1)
        for each in tmp_path.iterdir():
            if each != path:
                each.unlink()
        with pytest.raises(LedgerError, match="in use"):
            StreamingCounter.resume(path)


def test_a_save_that_is_cut_off_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "visits.json"
    with StreamingCounter(epsilon=1.0, path=path) as counter:
        released = [counter.update(1) for _ in range(5)]
        before = path.read_bytes()
        counter.update(1)
    after = path.read_bytes()
    assert len(after) == len(before) == 2 * 2048
    changed = [i for i in range(len(after)) if after[i] != before[i]]
    assert changed[-1] - changed[0] < 2048
    for cut in (changed[0] + 1, changed[0] + 100, changed[-1]):
        path.write_bytes(after[:cut] + before[cut:])
        (tmp_path / "visits.json.seen").unlink()
        with StreamingCounter.resume(path) as counter:
            assert (counter.position, counter.value) == (5, released[-1])


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_refused_and_left_as_it_is(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / "visits.json"
    make(path)
    before = path.stat()
    with pytest.raises(LedgerError, match="not a regular file"):
        StreamingCounter(epsilon=1.0, path=path)
    with pytest.raises(LedgerError, match="not a regular file"):
        StreamingCounter.resume(path)
    assert path.stat() == before


def test_a_state_of_version_0_1_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "visits.json"
    state = {
        "format": "noisewise-streaming-counter", "version": 1, "epsilon": 1.0, "delta": 0.0,
        "horizon": None, "mechanism": "kary", "bound": 1, "position": 7, "segments": 1,
        "value": 6.5, "variance": 3.0, "event": {"kind": "pure", "epsilon": 1.0, "count": 1},
    }  # fmt: skip
    path.write_text(json.dumps(state))
    with StreamingCounter.resume(path) as counter:
        assert (counter.position, counter.value) == (7, 6.5)
        counter.update(1)
        with pytest.raises(LedgerError, match="in use"):
            StreamingCounter.resume(path)
    with StreamingCounter.resume(path) as counter:
        assert counter.position == 8


# --------------------------------------------------------------------------------- ledgers


@pytest.mark.parametrize(
    "options", [{}, {"mechanism": "thesis"}, {"delta": 1e-6}, {"delta": 1e-6, "horizon": 4000}]
)
def test_a_stream_that_is_closed_and_resumed_is_paid_once(
    options: dict[str, Any], tmp_path: Path
) -> None:
    path, book = tmp_path / "visits.json", tmp_path / "visits.ledger"
    with StreamingCounter(epsilon=1.0, path=path, ledger=book, **options) as counter:
        counter.extend([1] * 1500)
        once = counter.statement()
    assert once.epsilon == pytest.approx(1.0, rel=1e-4)
    for _ in range(3):
        with StreamingCounter.resume(path, ledger=book) as counter:
            counter.extend([1] * 700)
            assert counter.statement().epsilon == once.epsilon
    assert verify(once).ok
    with Ledger.open(book) as ledger:
        assert len(ledger.charges) == 1
        assert ledger.spent() == pytest.approx(once.epsilon)


def test_whoever_measures_again_from_a_copy_or_an_older_state_pays(tmp_path: Path) -> None:
    path, book = tmp_path / "visits.json", tmp_path / "visits.ledger"
    unit = "one item of the stream, at its time step"
    Ledger.create(book, epsilon=4.0, relation="replace-one", unit=unit).close()
    with StreamingCounter(epsilon=1.0, path=path, ledger=book) as counter:
        counter.extend([1] * 10)
    saved = path.read_bytes()
    with StreamingCounter.resume(path, ledger=book) as counter:
        counter.extend([1] * 10)
        assert counter.statement().epsilon == pytest.approx(1.0)
    # The same items once more, by a copy elsewhere, and by the older state put back with all
    # that could remember it removed.
    (tmp_path / "elsewhere.json").write_bytes(saved)
    with StreamingCounter.resume(tmp_path / "elsewhere.json", ledger=book) as counter:
        counter.extend([1] * 10)
        assert counter.statement().epsilon == pytest.approx(2.0)
    (tmp_path / "visits.json.seen").unlink()
    path.write_bytes(saved)
    with StreamingCounter.resume(path, ledger=book) as counter:
        counter.extend([1] * 10)
        assert counter.statement().epsilon == pytest.approx(3.0)
    # One that was killed: whether its last items were released nobody knows.
    killed = StreamingCounter.resume(path, ledger=book)
    killed.update(1)
    killed._shut()
    with StreamingCounter.resume(path, ledger=book) as counter:
        counter.update(1)
        assert counter.statement().epsilon == pytest.approx(4.0)
    (tmp_path / "elsewhere.json.seen").unlink()
    (tmp_path / "elsewhere.json").write_bytes(saved)
    again = StreamingCounter.resume(tmp_path / "elsewhere.json", ledger=book)
    with pytest.raises(BudgetExceededError):
        again.update(1)
    assert again.position == 10


def test_a_ledger_of_another_promise_or_none_is_refused(tmp_path: Path) -> None:
    path, book = tmp_path / "visits.json", tmp_path / "visits.ledger"
    Ledger.create(tmp_path / "rows.ledger").close()
    with pytest.raises(RelationError, match="one promise cannot mix them"):
        StreamingCounter(epsilon=1.0, path=path, ledger=tmp_path / "rows.ledger")
    path.unlink()
    with StreamingCounter(epsilon=1.0, path=path, ledger=book) as counter:
        counter.update(1)
    with pytest.raises(LedgerError, match="give ledger="):
        StreamingCounter.resume(path)
    book.unlink()
    with pytest.raises(LedgerRolledBackError):
        StreamingCounter.resume(path, ledger=book)


def test_without_a_ledger_the_statement_says_what_it_rests_on(tmp_path: Path) -> None:
    with StreamingCounter(epsilon=1.0, path=tmp_path / "visits.json") as counter:
        assert any("older copy" in said for said in counter.statement().assumptions)
    assert not any("older copy" in s for s in StreamingCounter(epsilon=1.0).statement().assumptions)


def test_a_unit_is_not_ignored_by_a_counter_that_protects_items():
    """Its statement would be about one item, and who names units expects another one."""
    counter = StreamingCounter(epsilon=1.0, horizon=8, seed=1)
    with pytest.raises(ValueError, match="max_per_unit"):
        counter.update(1, unit="Ada")
    assert counter.position == 0
