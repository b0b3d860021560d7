"""The first steps of a sampled training, every one: batches, weights and noise.

Who was in the batch, what a record weighed, and whether noise repeats. Late steps are read in
:mod:`noisewise.debugging.late`.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from noisewise.debugging.bench import Bench
from noisewise.debugging.findings import Finding
from noisewise.debugging.knowledge import Memory
from noisewise.debugging.many_records import late_batches
from noisewise.debugging.sampling_laws import Case, related, sizes_and_chances, whole_counts
from noisewise.debugging.statistics import LEVEL, Vector, binomial, correlation, loud_places
from noisewise.debugging.walk import Walk, loud_walk, silent_walk

__all__ = ["error_of", "promised_at", "repeats", "trace"]

_TOTAL, _BATCH = 14, 3


def promised_at(bench: Bench, step: int) -> float:
    """Return the noise multiplier of a step over that of the first, as declared."""
    if bench.schedule is None:
        return 1.0
    return float(bench.schedule(step - 1)) / float(bench.schedule(0))


def error_of(count: int) -> float:
    """Return how far a regression of independent noise may be off, and a little for the rest."""
    return 6 / math.sqrt(count) + 0.05


def repeats(step: int, later: int, value: float, p_value: float) -> Finding:
    """Say that the noise of one step comes again at a later one."""
    return Finding(
        "noise-repeats-every-step",
        "late-steps",
        "randomness",
        f"the noise of step {later} repeats that of step {step} (correlation {value:.2f}): the "
        "generator is seeded again, or noise is drawn from a pool. The distances between steps "
        "that are alike tell: all are for a seed, every k-th for a pool of k.",
        {"correlation": value},
        p_value,
    )


def trace(bench: Bench, case: Case, memory: Memory) -> None:
    """Follow the first steps of a training whose batches are a part of the dataset."""
    data = bench.records.draw(_TOTAL, seed=8)
    noisy = [
        loud_walk(bench, data, _BATCH, seed, memory=memory)
        for seed in range(7000, 7000 + max(1, min(4, -(-1200 // bench.dimension))))
    ]
    # While a learning rate warms up, momentum carries over other shares than later.
    steps = [
        step
        for step in range(1, bench.effort.trace_steps + 1)
        if step == 1 or memory == Memory() or _carries_over(noisy, memory, step)
    ]
    quiet = _memberships(bench, case, steps, memory)
    if not bench.known.deterministic:
        return
    rows = {step: np.concatenate([walk.fresh(step) for walk in noisy]) for step in steps}
    sizes = {step: float(np.sqrt(np.mean(row**2))) for step, row in rows.items()}
    if not sizes[1]:
        return
    for step in steps:
        # What a record weighs tells the learning rate and the divisor of that step.
        weight = quiet.get(step, 1.0) / quiet.get(1, 1.0)
        ratio = sizes[step] / sizes[1] / weight / promised_at(bench, step)
        count = max(1, loud_places(rows[step]))
        p_value = float(stats.f.cdf(ratio**2, count, count))
        if not quiet:
            # Without the weights a public schedule of the learning rate is no offence.
            continue
        case.p_values.append(p_value)
        if p_value < LEVEL and ratio < 0.7 and not case.findings:
            epoch = math.ceil(_TOTAL / _BATCH)
            last = " (the last batch of an epoch)" if step % epoch == 0 else ""
            case.findings.append(
                Finding(
                    "noise-differs-between-steps",
                    "late-steps",
                    "noise",
                    f"step {step}{last} has {ratio:.2f} times the noise of step 1 for what a "
                    "record weighs: every step must get the same noise, also the last of an "
                    "epoch or of a warm-up.",
                    {"step": step, "ratio": ratio},
                    p_value,
                )
            )
    if quiet and not case.findings:
        late_batches(bench, case, memory, data, _BATCH)
    if not case.findings:
        guessed = memory not in (Memory(), Memory(bench.momentum, bench.momentum))
        _repeated_noise(case, rows, guessed=guessed or not bench.known.steady)


def _carries_over(walks: list[Walk], memory: Memory, step: int) -> bool:
    here = np.concatenate([walk.moved(step) for walk in walks])
    before = np.concatenate([walk.moved(step - 1) for walk in walks])
    seen = float(here @ before) / max(float(before @ before), 1e-300)
    expected = memory.echo if step == 2 else memory.correlation(step)
    return abs(seen - expected) < error_of(here.size)


def _memberships(bench: Bench, case: Case, steps: list[int], memory: Memory) -> dict[int, float]:
    """Solve for the batches of every step; return what a record weighs at each."""
    if not bench.known.additive or bench.known.random or bench.dimension < 60:
        return {}
    data = bench.records.draw(_TOTAL, seed=8)
    contributions = bench.contributions(data, bench.usable_clip)
    lengths = np.linalg.norm(contributions, axis=1, keepdims=True)
    if np.linalg.svd(contributions / lengths, compute_uv=False)[-1] < 1e-3:
        return {}
    late = [bench.effort.late_sample] if bench.effort.late_sample else []
    runs = range(7100, 7100 + bench.effort.trace_seeds)
    basis = np.vstack([contributions, bench.weights / bench.size * float(np.median(lengths))])
    solved: dict[int, Vector] = {}
    walks = [silent_walk(bench, data, _BATCH, seed, memory=memory) for seed in runs]
    for step in [*steps, *late]:
        updates = np.stack([walk.fresh(step) for walk in walks])
        solved[step] = np.linalg.lstsq(basis.T, updates.T, rcond=None)[0].T[:, :-1]
    counts = {step: whole_counts(found)[0] for step, found in solved.items()}
    if min(float(found.min()) for found in counts.values()) < 0:
        # No batch holds a record less than never: these steps are not sums of the first one's.
        return {}
    _judge_batches(bench, case, counts, steps)
    return {step: whole_counts(found)[1] for step, found in solved.items()}


def _judge_batches(bench: Bench, case: Case, counts: dict[int, Vector], steps: list[int]) -> None:
    rate = _BATCH / _TOTAL
    inner = Case()
    sizes_and_chances(inner, bench.sampling, np.concatenate(list(counts.values())), rate)
    case.p_values += inner.p_values
    case.seen.append(f"over {len(counts)} steps: {', '.join(inner.seen)}")
    for finding in inner.findings:
        case.findings.append(
            Finding(
                finding.name,
                "late-steps",
                "sampling",
                f"over steps 1 to {max(counts)}: {finding.sentence}",
                finding.evidence,
                finding.p_value,
            )
        )
    if bench.sampling != "poisson" or case.findings:
        return
    rate = min(rate, float(np.mean(np.concatenate(list(counts.values())))))
    for lag in range(1, len(steps)):
        pairs = [(counts[step], counts[step + lag]) for step in steps if step + lag in steps]
        if not pairs:
            continue
        both = sum(int(((a > 0.5) & (b > 0.5)).sum()) for a, b in pairs)
        trials = sum(a.size for a, _ in pairs)
        p_value = binomial(both, trials, rate**2)
        case.p_values.append(p_value)
        if p_value < LEVEL:
            many = both > trials * rate**2
            case.findings.append(
                Finding(
                    "batches-repeat" if many else "batches-disjoint",
                    "late-steps",
                    "sampling",
                    f"{both} records were in two batches {lag} steps apart, "
                    f"{trials * rate**2:.0f} expected: "
                    + (
                        "the sampler starts again with the same numbers."
                        if many
                        else "an epoch uses every record once (shuffling)."
                    ),
                    {"lag": lag, "both": both},
                    p_value,
                )
            )
            return
    related(case, {step: table for step, table in counts.items() if step in steps}, "late-steps")


def _repeated_noise(case: Case, rows: dict[int, Vector], *, guessed: bool) -> None:
    """Compare the noise of all pairs of steps; `guessed` says that momentum was not declared."""
    sizes = {step: float(np.mean(row**2)) for step, row in rows.items()}
    usual = float(np.median(list(sizes.values())))
    # A step without noise shows what records contribute, which is alike at all steps.
    steps = [step for step in sorted(rows) if sizes[step] > 0.1 * usual]
    for i, step in enumerate(steps):
        for later in steps[i + 1 :]:
            value, p_value = correlation(rows[step], rows[later])
            case.p_values.append(p_value)
            # What a guessed momentum leaves of a step in the next one is not a repetition.
            rest = 2 * error_of(rows[step].size) if guessed and later == step + 1 else 0.0
            if p_value < LEVEL and abs(value) > 0.2 + rest:
                case.findings.append(repeats(step, later, value, p_value))
                return
    if guessed:
        return
    # A little of each step in a later one shows only where all of them are put together.
    for lag in range(1, 5):
        pairs = [(rows[step], rows[step + lag]) for step in steps if step + lag in steps]
        if not pairs:
            continue
        here, there = (np.concatenate([pair[k] for pair in pairs]) for k in (0, 1))
        value, p_value = correlation(here, there)
        case.p_values.append(p_value)
        if p_value < LEVEL and abs(value) > 0.08:
            case.findings.append(repeats(1, 1 + lag, value, p_value))
            return
