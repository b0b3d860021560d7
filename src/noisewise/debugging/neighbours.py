"""`neighbours`: two datasets and one seed, with the noise on: what differs is what leaks.

All other tests look at records without noise, or at noise that drowns them. Code may treat the
two cases apart, and noise may follow the data. With the same seed the same records are drawn and
the same noise is added, whatever a record holds, so two runs differ by what their records
contribute and by nothing else:

* at noise multipliers from small to large, datasets of all kinds lead to updates that differ by
  exactly what their records contribute without noise (`_superposition`);
* if one record of many is replaced, a step moves by at most twice the bound, and not at all
  while the record has not been drawn (`_replaced`).
"""

from __future__ import annotations

import numpy as np
import torch
from scipy import stats

from noisewise.debugging.bench import SIGMA, SMALL_SIGMA, Bench
from noisewise.debugging.findings import Finding, TestResult
from noisewise.debugging.knowledge import Memory
from noisewise.debugging.noise_readings import measure
from noisewise.debugging.statistics import LEVEL, Vector
from noisewise.debugging.trainer import Data, StateDict, TrainingFailedError
from noisewise.debugging.walk import Walk

__all__ = ["neighbours"]

_TITLE = "with the same seed, a record moves no more than its bound"
_SIZE = 4
#: A record of so many is replaced; about one in six is drawn.
_TOTAL = 24
#: If a record is in a batch with probability 1/6, it is in all of so many with 2e-10 at most.
_DRAWS = 12


def neighbours(bench: Bench) -> TestResult:
    """`neighbours`: the same seed on two datasets, at several noise multipliers and steps."""
    why = _why_not(bench)
    if why:
        return TestResult("neighbours", _TITLE, "skipped", why)
    seen: list[str] = []
    findings = _superposition(bench, seen) if bench.known.additive else []
    p_values: list[float] = []
    if not findings:
        findings, p_values = _replaced(bench, seen)
    if not findings:
        findings = _on_the_way(bench)
    status = "failed" if findings else "passed"
    return TestResult(
        "neighbours", _TITLE, status, "; ".join(seen), tuple(p_values), tuple(findings)
    )


def _why_not(bench: Bench) -> str:
    known = bench.known
    if not known.deterministic:
        return "the same seed gives different noise, so two runs never differ by a record alone"
    if known.mute:
        return "records contribute nothing at any C tried"
    if known.unbounded or known.incomplete:
        return "records contribute more than they may, or not at all (see other tests)"
    if measure(bench).absent:
        return "there is no noise to look at (see noise)"
    return ""


def _kinds(bench: Bench) -> dict[str, Data]:
    """Return datasets that code which looks at its data would treat in other ways."""
    records = bench.records
    x, y = records.draw(_SIZE, seed=15)
    found = {"other records": (x, y)}
    if records.hard_labels:
        found["records of one class"] = (x, y[:1].expand_as(y).clone())
    found["one record four times"] = (x[:1].expand_as(x).clone(), y[:1].expand_as(y).clone())
    if x.is_floating_point():
        found["large records"] = records.draw(_SIZE, seed=35, scale=12.0)
        found["records of zeros"] = records.draw(_SIZE, seed=36, scale=0.0)
        found["records without negative numbers"] = (x.abs(), y)
    return found


def _superposition(bench: Bench, seen: list[str]) -> list[Finding]:
    """Updates with the same noise differ by what their records contribute without it."""
    clip = bench.usable_clip
    base = bench.records.draw(_SIZE, seed=5)
    share = bench.known.divisors.get(_SIZE, 1.0 / _SIZE)
    expected = bench.contributions(base, clip).sum(0)
    worst, where = 0.0, ""
    for sigma in (SIGMA,) if bench.adam else (SMALL_SIGMA, SIGMA, 10 * SIGMA):
        deviation = clip * sigma * share * bench.dimension**0.5
        lr = bench.rate(deviation)
        settings = {"clip": clip, "sigma": sigma, "lr": lr, "seed": 8300}
        usual = bench.update(base, **settings)  # type: ignore[arg-type]
        for label, data in _kinds(bench).items():
            try:
                other = bench.update(data, **settings)  # type: ignore[arg-type]
            except TrainingFailedError:
                # Records of a special kind are our wish alone.
                continue
            apart = bench.contributions(data, clip).sum(0) - expected
            rest = float(np.linalg.norm((other - usual) / share - apart)) / clip
            # What float32 weights tell of a step that noise makes long.
            rest -= 1e-5 * deviation / share / clip + (0.1 if bench.adam else 0.0)
            if rest > worst:
                worst, where = rest, f"{label}, sigma = {sigma:.3g}"
    seen.append(f"noise and data add up to {worst:.1g} C")
    if worst <= 0.05 * max(1.0, bench.known.largest):
        return []
    bench.known.unbounded = True
    return [
        Finding(
            "noise-follows-data",
            "neighbours",
            "noise",
            f"with the same seed and noise, two datasets lead {worst:.2g} C further apart than "
            f"their records do without noise ({where}): the noise depends on the data, or records "
            "are bounded in another way where noise is on. A run on the same data at sigma = 0 "
            "and one at a tiny sigma tell which: if they differ, it is the bound.",
            {"apart_over_clip": worst},
        )
    ]


def _replacements(bench: Bench) -> list[Data]:
    records = bench.records
    scales = (1.0, 12.0, 0.0) if records.x.is_floating_point() else (1.0,)
    return [records.draw(1, seed=910 + k, scale=scales[k % len(scales)]) for k in range(_DRAWS)]


def _replaced(bench: Bench, seen: list[str]) -> tuple[list[Finding], list[float]]:
    """Replace one record of many: it moves a step by 2 C at most, and by nothing if absent."""
    clip, batch_size = bench.usable_clip, _SIZE
    share = bench.known.divisors.get(batch_size, 1.0 / batch_size)
    unit = clip * share * max(1.0, bench.known.largest)
    lr = bench.rate(clip * SIGMA * share * bench.dimension**0.5, 1e-2)
    x, y = bench.records.draw(_TOTAL, seed=8)
    plain = "steps" in bench.box.accepted and (bench.known.steady or bench.known.random)
    steps = bench.effort.neighbour_steps if plain and not bench.correlated else 1
    memory = Memory(bench.momentum, bench.momentum) if bench.momentum else bench.known.memory
    moved_first, widest = 0, 0.0
    for index, (one, target) in enumerate(_replacements(bench)):
        place = (7 * index) % _TOTAL
        swapped = (x.clone(), y.clone())
        swapped[0][place], swapped[1][place] = one[0], target[0]
        # Less noise in every other pair: what a step may be off by is a share of its length.
        sigma = SMALL_SIGMA if index % 2 and not bench.adam else SIGMA
        pair = [
            Walk(bench, data, clip, sigma, batch_size, lr, 8400 + index, memory)
            for data in ((x, y), swapped)
        ]
        before = 0.0
        # A few of the pairs are followed, all are looked at once.
        for step in range(1, (steps if index < bench.effort.neighbour_walks else 1) + 1):
            here, there = (walk.fresh(step) for walk in pair)
            apart, length = float(np.linalg.norm(here - there)), float(np.linalg.norm(here))
            moved_first += step == 1 and apart > 1e-3 * unit
            # A schedule may change the length of a step, and C may follow a noisy statistic
            # once the record has been seen in it.
            first = float(np.linalg.norm(pair[0].fresh(1)))
            longer = max(1.0, length / max(first, 1e-300)) * (1.0 if step == 1 else 1.2)
            allowed = 2.05 * unit * longer + (0.15 * length if before else 1e-4 * length)
            if bench.adam:
                allowed += 0.05 * length
            before = max(before, apart)
            widest = max(widest, apart / unit)
            if apart > allowed:
                return [_too_far(bench, apart / unit, step, _kind(one))], []
    rate = batch_size / _TOTAL
    p_value = float(stats.binom.sf(moved_first - 1, _DRAWS, rate)) if moved_first else 1.0
    seen.append(
        f"one of {_TOTAL} records replaced moves a step by {widest:.3g} C at most, and the first "
        f"in {moved_first} of {_DRAWS} runs"
    )
    if p_value >= LEVEL or moved_first < _DRAWS:
        return [], [p_value]
    return [
        Finding(
            "absent-record-counts",
            "neighbours",
            "sampling",
            f"in each of {_DRAWS} runs the first step changed when one of {_TOTAL} records was "
            f"replaced, although a batch of {batch_size} can hold it in every sixth run only: "
            "something is computed from the whole dataset (statistics, weights, a seed), or all "
            "records are used. With a batch of all records the second cause changes nothing.",
            {"runs": moved_first},
            p_value,
        )
    ], [p_value]


def _on_the_way(bench: Bench) -> list[Finding]:
    """Gradients of later steps are taken where the noise of earlier ones has led to.

    With the same seed, what differs between two datasets after a few steps so loud that gradients
    turn is something else than without any noise; unless the noise never reaches the weights that
    gradients are taken at, and is added to what is returned only.
    """
    if "steps" not in bench.box.accepted or bench.box.observe is not None:
        return []
    if bench.correlated or bench.known.random:
        return []
    clip, steps = bench.usable_clip, 6
    lr = bench.rate(clip * SIGMA / _SIZE * bench.dimension**0.5)
    datasets = [bench.records.draw(_SIZE, seed=seed) for seed in (5, 15)]
    settings = {"clip": clip, "seed": 8600}

    def apart(sigma: float, start: StateDict | None, count: int, rate: float) -> Vector:
        here, there = (
            bench.update(data, sigma=sigma, init=start, steps=count, lr=rate, **settings)  # type: ignore[arg-type]
            for data in datasets
        )
        return here - there

    try:
        silent, loud = (apart(sigma, None, steps, lr) for sigma in (0.0, SIGMA))
        size = float(np.linalg.norm(silent))
        if size == 0 or not np.isfinite(loud).all() or np.linalg.norm(loud - silent) > 0.02 * size:
            return []
        # Do gradients turn on the way?
        unit = bench.adam_epsilon if bench.adam else 1.0
        way = bench.update(datasets[0], sigma=SIGMA, steps=steps, lr=lr, **settings)  # type: ignore[arg-type]
        there = bench.moved_init(way, (lr if "lr" in bench.box.accepted else 1.0) / unit)
        short = bench.rate(clip, 1e-2)
        first, last = (apart(0.0, start, 1, short) for start in (None, there))
    except TrainingFailedError:
        return []
    if float(np.linalg.norm(last - first)) < 0.2 * float(np.linalg.norm(first)):
        return []
    return [
        Finding(
            "noise-not-on-the-way",
            "neighbours",
            "noise",
            f"after {steps} steps with noise, two datasets are apart by exactly what they are "
            "without any, although gradients are others where the noise leads to: training goes on "
            "with weights that have no noise, and what is returned gets it at last. A record then "
            "counts through the gradients of the others too, which no bound covers.",
            {"steps": steps},
        )
    ]


def _kind(one: torch.Tensor) -> str:
    if not one.is_floating_point():
        return "an ordinary record"
    largest = float(one.abs().max())
    return "zeros" if largest == 0 else "a large record" if largest > 8 else "an ordinary record"


def _too_far(bench: Bench, ratio: float, step: int, kind: str) -> Finding:
    bench.known.unbounded = True
    return Finding(
        "neighbour-moves-too-far",
        "neighbours",
        "clipping",
        f"with the same seed, {kind} in the place of one of {_TOTAL} moves step {step} by "
        f"{ratio:.3g} C, and at most 2 C are possible: where a batch is a part of the data, "
        "records are bounded in another way, or noise, divisor or learning rate follow the data. "
        "Runs at sigma = 0 tell: if they differ by as much, it is the bound.",
        {"moved_over_clip": ratio, "step": step},
    )
