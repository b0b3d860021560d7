"""Noise that comes back: in other places of a step, in later steps, or after many of them.

Gaussian numbers never come twice. So a number that is there again, at whatever place and with
whatever sign, was not drawn afresh: noise that is mirrored, moved on, shuffled, rounded to few
digits or taken from a pool. That needs runs in which nothing but noise can be seen.

A generator that starts again after many steps makes two stretches of a training alike, even if
they overlap in part only; so displacements of stretches are compared, which costs one run each.
"""

from __future__ import annotations

import numpy as np
import torch

from noisewise.debugging.bench import LOUD, SIGMA, Bench
from noisewise.debugging.findings import Finding
from noisewise.debugging.knowledge import Memory
from noisewise.debugging.noise_readings import Measurement
from noisewise.debugging.statistics import LEVEL, Vector, coincidences, correlation
from noisewise.debugging.walk import Walk

__all__ = ["same_numbers", "stretches"]

# More numbers find nothing further and lie closer together than float32 can tell.
_MOST = 2_000
_LEAST = 150
#: Share of numbers that may lie this close by chance, at a hundredth of the usual distance.
_CHANCE = 0.03


def same_numbers(bench: Bench, measured: Measurement) -> list[tuple[Finding | None, float]]:
    """Look for numbers that come twice within a step, and in the next two steps."""
    dtypes = {bench.init[name].dtype for name in bench.box.names}
    if bench.known.random or bench.known.same_noise or dtypes != {torch.float32}:
        return []
    results = []
    rows = measured.readings["base"].rows
    share, p_value = coincidences(_numbers(rows.ravel()))
    finding = None
    if p_value < LEVEL and share > 0.25:
        finding = Finding(
            "noise-numbers-recur",
            "freshness",
            "randomness",
            f"{share:.0%} of the numbers of the noise come again in the same step, up to their "
            "sign: noise is mirrored or copied, or it is rounded to few digits, so that "
            "differences cancel it. The ratio of two such numbers tells: 1 or -1 for copies, "
            "small fractions for rounding.",
            {"share": share},
            p_value,
        )
    results.append((finding, p_value))
    steps = "steps" in bench.box.accepted and not bench.correlated
    if finding is None and steps and bench.known.deterministic:
        results.append(_in_later_steps(bench))
    return results


def _numbers(values: Vector) -> Vector:
    size = np.abs(values[:_MOST])
    # Coordinates without noise are the business of noise.
    return size[size > 1e-3 * float(np.sqrt(np.mean(size**2)) or 1.0)]


def _in_later_steps(bench: Bench) -> tuple[Finding | None, float]:
    """Compare the noise of steps 1, 2 and 3, so loud that records are below its fourth digit."""
    clip, sigma = bench.usable_clip / LOUD**2, SIGMA * LOUD**2
    lr = bench.rate(clip * sigma / 4 * bench.dimension**0.5, 0.03)
    data = bench.records.draw(4, seed=5)
    declared = Memory(bench.momentum, bench.momentum)
    memory = declared if bench.momentum else bench.known.memory
    walk = Walk(bench, data, clip, sigma, 4, lr, seed=8800, memory=memory)
    still = Walk(bench, data, clip, 0.0, 4, lr, seed=8800, memory=memory)
    count = min(bench.dimension, _MOST // 2)
    if bench.adam or count < _LEAST:
        # Adam's later steps are linear to two digits only.
        return None, 1.0
    rows = [(walk.fresh(step) - still.fresh(step))[:count] for step in (1, 2, 3)]
    worst: tuple[Finding | None, float] = (None, 1.0)
    for step, row in ((2, rows[1]), (3, rows[2])):
        share, p_value = coincidences(_numbers(np.concatenate([rows[0], row])))
        finding = None
        if p_value < LEVEL and share > 0.25:
            finding = Finding(
                "noise-repeats-every-step",
                "freshness",
                "randomness",
                f"{share:.0%} of the numbers of the noise of steps 1 and {step} are there twice, "
                "at other places or with other signs: one noise is moved on, shuffled or "
                "mirrored instead of drawn anew.",
                {"share": share},
                p_value,
            )
        if finding or p_value < worst[1]:
            worst = (finding, p_value)
        if finding:
            return worst
    # A table or a pool gives back a few numbers of many steps, to all their digits.
    share, p_value = coincidences(
        _numbers(np.concatenate([row[: _MOST // 3] for row in rows])), 0.01
    )
    if p_value >= LEVEL or share <= 2 * _CHANCE:
        return worst[0], min(p_value, worst[1])
    return _from_a_pool(share, p_value), p_value


def _from_a_pool(share: float, p_value: float) -> Finding:
    return Finding(
        "noise-numbers-recur",
        "freshness",
        "randomness",
        f"{share:.0%} of the numbers of the noise of the first three steps come again among them, "
        "to all their digits: noise is cut out of a table, or drawn from a pool of numbers, so "
        "that steps share it. A longer table has fewer of them; fresh noise has none.",
        {"share": share},
        p_value,
    )


def stretches(
    walks: list[Walk], memory: Memory, last: int, whole: bool = True
) -> list[tuple[Finding | None, float]]:
    """Compare the noise of stretches of a training, each the sum over an eighth of it.

    Unless all late steps could be read (`whole`), weights may be averaged in a way of their own,
    which hands a part of each stretch on to the next one.
    """
    bench = walks[0].bench
    # Stretches of Adam and of Nesterov's momentum are not told apart by two runs each.
    if abs(memory.echo - memory.kept) > 0.03 or bench.adam or bench.box.observe is not None:
        return []
    length = max(2, last // 8)
    ends = range(0, 8 * length + 1, length)
    kept = memory.kept

    def until(walk: Walk, step: int) -> Vector:
        # What momentum carries on is subtracted; over a stretch all but its ends cancels.
        here = walk.place(step)
        return here - kept * walk.place(step - 1) if kept else here

    rows = [
        np.concatenate([until(walk, end) - until(walk, end - length) for walk in walks])
        for end in ends[1:]
    ]
    results: list[tuple[Finding | None, float]] = []
    for i, earlier in enumerate(rows):
        for j in range(i + 1, len(rows)):
            value, p_value = correlation(earlier, rows[j])
            finding = None
            # An error in a momentum that was not declared relates neighbours a little.
            least = 0.25 if whole or j > i + 1 else 0.6
            if p_value < LEVEL and abs(value) > least:
                finding = Finding(
                    "noise-repeats-every-step",
                    "late-steps",
                    "randomness",
                    f"the noise of steps {i * length + 1} to {(i + 1) * length} comes back in "
                    f"steps {j * length + 1} to {(j + 1) * length} (correlation {value:.2f}): the "
                    "generator starts again, at the end of an epoch or where a run is resumed.",
                    {"correlation": value},
                    p_value,
                )
                return [*results, (finding, p_value)]
            results.append((finding, p_value))
    return results
