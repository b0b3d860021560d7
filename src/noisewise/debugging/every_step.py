"""Every step of the first hundred, and every tensor of the late ones.

A step that is treated in another way now and then, or for a while, lies between those that
`late` looks at. Displacements over short stretches hold every step, at the price of one run a
stretch: a step without noise, or one whose records are not bounded, makes a stretch unlike the
first step, and then each of its steps is looked at by itself.

A late step that is as loud as the first may still have left out a tensor, or have noise of
another law.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from scipy import stats

from noisewise.debugging.bench import Bench
from noisewise.debugging.findings import Finding
from noisewise.debugging.first_steps import promised_at
from noisewise.debugging.freshness import between_tensors
from noisewise.debugging.knowledge import Memory
from noisewise.debugging.noise_structure import late_structure
from noisewise.debugging.statistics import LEVEL, Vector, correlation, kurtosis, normal_shape
from noisewise.debugging.walk import Walk

__all__ = ["parts_of_late_steps", "suspicious_steps"]

#: A stretch is looked at closely if it is this unlikely; what accuses is a single step.
_SUSPICIOUS = 1e-4
_MOST_SUSPECTS = 3


def suspicious_steps(
    bench: Bench, noisy: list[Walk], silent: list[Walk], still: Walk | None, memory: Memory
) -> list[int]:
    """Return the steps of stretches whose noise is low for what records contribute in them."""
    last = bench.effort.every_step if bench.dimension <= 50_000 else bench.effort.every_step // 2
    direct = bench.adam or bench.box.observe is not None
    if not last or direct or abs(memory.echo - memory.kept) > 0.03:
        return []
    kept = memory.kept
    places = len(noisy) * bench.dimension
    # A step that is missing among so many still shows.
    width = max(1, min(16, int(math.sqrt(places / 100))))
    reliable = not (bench.known.random or bench.known.unbounded)

    def until(walk: Walk, step: int) -> Vector:
        here = walk.place(step)
        return here - kept * walk.place(step - 1) if kept else here

    def over(walks: list[Walk], start: int, end: int) -> float:
        """Root of the summed squares of what was added from `start` on."""
        squares = 0.0
        for walk in walks:
            rest = until(still, end) - until(still, start) if still is not None else 0.0
            squares += float(np.sum((until(walk, end) - until(walk, start) - rest) ** 2))
        return math.sqrt(squares)

    unit_noise, unit = over(noisy, 0, 1), over(silent, 0, 1) if reliable else 1.0
    if unit_noise == 0.0 or unit == 0.0:
        return []
    suspects: list[int] = []
    for start in range(1, last, width):
        end = start + width
        promised = math.sqrt(
            sum(promised_at(bench, step) ** 2 for step in range(start + 1, end + 1)) / width
        )
        noise = over(noisy, start, end) ** 2 / width / unit_noise**2
        # Contributions of several steps are no longer than their sum, and a learning rate that
        # changes makes noise look larger, never smaller.
        signal = over(silent, start, end) / width / unit if reliable else 1.0
        expected = (signal * promised) ** 2
        if expected < 1e-6:
            continue
        ratio = noise / expected
        if ratio < 1 - 0.25 / width and stats.f.cdf(ratio, places, places) < _SUSPICIOUS:
            suspects += range(start + 1, end + 1)
        if len(suspects) >= _MOST_SUSPECTS * width:
            break
    return suspects


def parts_of_late_steps(
    bench: Bench, noisy: list[Walk], silent: list[Walk], steps: list[int]
) -> tuple[list[Finding], list[float]]:
    """Compare tensors of late steps with those of the first, and the law of late noise."""
    if bench.adam or bench.known.memory != Memory() or bench.momentum:
        return [], []
    p_values: list[float] = []
    first = np.stack([walk.fresh(1) for walk in noisy])
    pooled = []
    for step in steps:
        now = np.stack([walk.fresh(step) for walk in noisy])
        whole = float(np.mean(now**2)) / max(float(np.mean(first**2)), 1e-300)
        if whole < 1e-6:
            continue
        for name, part in bench.box.slices.items():
            pooled += _standardised(now[:, part])
            base, here = float(np.mean(first[:, part] ** 2)), float(np.mean(now[:, part] ** 2))
            places = now[:, part].size
            if base == 0.0 or places < 4:
                continue
            ratio = here / base / whole
            records = _records(silent, part, step)
            if records is not None and records < 1e-3:
                # Not trained any more, by a schedule of its own.
                continue
            if records is not None:
                ratio /= max(records, 1e-12) ** 2 / whole if records < whole**0.5 else 1.0
            p_value = float(stats.f.cdf(ratio, places, places))
            p_values.append(p_value)
            if p_value < LEVEL and ratio < 0.5:
                return [
                    Finding(
                        "noise-decays",
                        "late-steps",
                        "noise",
                        f"at step {step} the noise of {name} is {math.sqrt(ratio):.2g} times what "
                        "it was at step 1 for what records contribute there, while other tensors "
                        "keep theirs: every step must get noise on every tensor.",
                        {"step": step, "tensor": name, "ratio": ratio},
                        p_value,
                    )
                ], p_values
    if not pooled or bench.known.noise is None or bench.known.noise.uneven:
        return [], p_values
    for finding, p_value in _structure(bench, noisy, steps):
        p_values.append(p_value)
        if finding is not None:
            return [finding], p_values
    values = np.concatenate(pooled)
    shape, tails = normal_shape(values)
    excess, peaked = kurtosis(values)
    p_value = min(shape, tails, peaked if abs(excess) > 0.3 else 1.0)
    p_values.append(p_value)
    if p_value >= LEVEL:
        return [], p_values
    return [
        Finding(
            "noise-not-gaussian",
            "late-steps",
            "noise",
            f"the noise of late steps (up to {max(steps)}) is not Gaussian, that of the first is "
            f"(excess kurtosis {excess:.2f}): another source of noise took over.",
            {"kolmogorov_smirnov_p": shape, "tail_p": tails},
            p_value,
        )
    ], p_values


def _structure(
    bench: Bench, noisy: list[Walk], steps: list[int]
) -> list[tuple[Finding | None, float]]:
    """Compare tensors, places, seeds and steps of late noise with each other."""
    measured = bench.known.noise
    if measured is None:
        return []
    table = {(walk.seed, step): walk.fresh(step) for step in steps for walk in noisy}
    # A tensor that is not trained at a step has no noise to compare.
    table = {
        place: row / max(float(np.sqrt(np.mean(row[measured.live] ** 2))), 1e-300)
        for place, row in table.items()
        if all(
            np.any(row[part]) or name in measured.silent for name, part in bench.box.slices.items()
        )
    }
    if len(table) < 2:
        return []
    rows = np.stack([*table.values()])
    results = [*between_tensors(bench, rows), *late_structure(bench, measured, rows)]
    finding = next((found for found, p in results if found is not None and p < LEVEL), None)
    p_values = [p for _, p in results]
    if finding is not None:
        where = f"at late steps (up to {max(steps)}), {finding.sentence}"
        finding = replace(finding, test="late-steps", sentence=where)
        return [(finding, min(p_values))]
    # What one seed draws at a step must be no other seed's noise, of that step or another.
    first = {(walk.seed, step): walk.fresh(step) for step in (1, 2) for walk in noisy}
    table |= {place: row for place, row in first.items() if np.any(row)}
    pairs = [(a, b) for a in table for b in table if a < b and a[0] != b[0]]
    found = [(*correlation(table[a], table[b]), a, b) for a, b in pairs]
    best = max(found, key=lambda result: abs(result[0]))
    p_value = min(1.0, len(pairs) * best[1])
    if p_value < LEVEL and abs(best[0]) > 0.2:
        finding = Finding(
            "noise-same-for-every-seed",
            "late-steps",
            "randomness",
            f"step {best[2][1]} of one seed has the noise of step {best[3][1]} of another "
            f"(correlation {best[0]:.2f}): two runs can be subtracted from each other.",
            {"correlation": best[0]},
            p_value,
        )
    return [(None, p) for p in p_values] + [(finding, p_value)]


def _standardised(rows: Vector) -> list[Vector]:
    """Return what moves, in deviations of its own: its size is not the matter here, its law is.

    A learning rate or a sigma may change, and a tensor may begin to be trained.
    """
    values = rows[rows != 0]
    return [values / math.sqrt(float(np.mean(values**2)))] if values.size >= 50 else []


def _records(silent: list[Walk], part: slice, step: int) -> float | None:
    """How much records move a tensor at a step, over what they did at the first."""
    if not silent:
        return None
    first = math.sqrt(sum(float(np.sum(walk.fresh(1)[part] ** 2)) for walk in silent))
    here = math.sqrt(sum(float(np.sum(walk.fresh(step)[part] ** 2)) for walk in silent))
    return here / first if first > 0 else None
