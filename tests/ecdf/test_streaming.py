"""Running counts: exact shifts, accuracy over a million items, restarts, misuse."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noisewise.ecdf.budget import Budget
from noisewise.ecdf.mechanisms.laminar import run_cost
from noisewise.ecdf.stream_noise import KaryNoise, PathNoise, choose_kary
from noisewise.ecdf.stream_toeplitz import ToeplitzSegment
from noisewise.ecdf.streaming import StreamingCounter
from noisewise.errors import LedgerError
from noisewise.privacy import verify
from noisewise.privacy.randomness import Randomness


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
    whole = ToeplitzSegment(length, budget, Randomness.seeded(3))
    steps = ToeplitzSegment(length, budget, Randomness.seeded(3))
    together = whole.add(items)
    one_by_one = np.concatenate([steps.add(items[t : t + 1]) for t in range(length)])
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


def test_the_file_holds_nothing_that_was_not_released(tmp_path: Path) -> None:
    path = tmp_path / "visits.json"
    with StreamingCounter(epsilon=0.01, path=path) as counter:
        released = counter.extend(np.ones(100, np.int64))
    state = json.loads(path.read_text())
    assert state["value"] == released[-1] != 100
    assert set(state) == {
        "format", "version", "epsilon", "delta", "horizon", "mechanism", "bound", "position",
        "segments", "value", "variance", "event",
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
    with pytest.raises(LedgerError, match="another process"):
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
