"""Batches of a large dataset, and of late steps: what only shows where there are many.

A sampler may change its ways after some steps or repeat itself after many, and code may take
another way for a dataset above some size (statistics of it, a shuffled loader, a cache). Over a
stretch of steps the contributions add up to how often each record was drawn, at the price of one
run; and a dataset of many copies of a few records shows its batches as well as a small one.
"""

from __future__ import annotations

import itertools

import numpy as np
from scipy import stats

from noisewise.debugging.bench import SIGMA, Bench
from noisewise.debugging.findings import Finding
from noisewise.debugging.knowledge import Memory
from noisewise.debugging.noise_readings import measure
from noisewise.debugging.sampling_laws import Case
from noisewise.debugging.statistics import LEVEL, Vector, binomial
from noisewise.debugging.trainer import Data, TrainingFailedError
from noisewise.debugging.walk import silent_walk

__all__ = ["expected_share", "large_dataset", "late_batches"]

_DISTINCT, _COPIES, _DRAWN, _RUNS = 13, 24, 26, 12
_STRETCH, _FIRST, _COUNT = 24, 12, 4


def _independent(rows: Vector) -> bool:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return bool(np.linalg.svd(rows / lengths, compute_uv=False)[-1] > 0.02)


def large_dataset(case: Case, bench: Bench, unit: float) -> None:
    """Read batches of 26 from 312 records, 24 copies of each of 13; `unit` is one record's share.

    `unit` times the batch size is what the divisor is held to, so sums and means are both right.
    """
    if bench.dimension > 1_000_000 or bench.sampling != "poisson":
        return
    total = _DISTINCT * _COPIES
    x, y = bench.records.draw(_DISTINCT, seed=28)
    rows = bench.contributions((x, y), bench.usable_clip)
    if not _independent(rows):
        return
    data: Data = (x.repeat(_COPIES, *[1] * (x.ndim - 1)), y.repeat(_COPIES, *[1] * (y.ndim - 1)))
    norm = float(np.median(np.linalg.norm(rows, axis=1)))
    keyword = {"clip": bench.usable_clip, "batch_size": _DRAWN}
    seeds = range(1700, 1700 + _RUNS)
    try:
        updates = bench.updates(data, seeds, lr=bench.rate(norm / _DRAWN**0.5), **keyword)
    except TrainingFailedError:
        # A dataset this large is our wish alone.
        return
    counts = np.linalg.lstsq(rows.T, updates.T, rcond=None)[0].T / unit
    rests = np.linalg.norm(updates - unit * counts @ rows, axis=1)
    rest = float(np.max(rests / np.maximum(np.linalg.norm(updates, axis=1), 1e-300)))
    why = ""
    whole = float(np.max(np.abs(counts - np.round(counts))))
    if rest > 0.03:
        why = f"batches are not sums of what its records contribute alone (rest {rest:.2g})"
    elif whole > 0.2:
        why = f"a record weighs {float(np.median(counts[counts > 0.5])):.3g} times what it should"
    if why:
        case.findings.append(
            Finding(
                "large-dataset-differs",
                "sampling",
                "sampling",
                f"with {total} records instead of a few {why}: something looks at the whole "
                "dataset, or takes another way where it is large.",
                {"rest": rest},
            )
        )
        return
    sizes = np.round(counts).sum(1)
    rate = _DRAWN / total
    expected = float(sizes.mean())
    p_rate = binomial(int(sizes.sum()), _RUNS * total, rate)
    case.p_values.append(p_rate)
    spread = float(np.sum((sizes - expected) ** 2)) / (expected * (1 - rate))
    p_fixed = float(stats.chi2.cdf(spread, len(sizes) - 1))
    case.p_values.append(p_fixed)
    case.seen.append(f"of {total} records {expected:.1f} drawn (expected {_DRAWN})")
    if p_rate < LEVEL and expected > _DRAWN:
        case.findings.append(
            Finding(
                "sampling-rate-wrong",
                "sampling",
                "sampling",
                f"of {total} records {expected:.1f} are drawn on average instead of {_DRAWN}: the "
                "accountant uses another rate than the sampler.",
                {"drawn": expected},
                p_rate,
            )
        )
    elif p_fixed < LEVEL:
        case.findings.append(
            Finding(
                "batch-size-fixed",
                "sampling",
                "sampling",
                f"of {total} records every batch has about {expected:.1f} (± {sizes.std():.1f}); "
                f"Poisson sampling would give ± {(expected * (1 - rate)) ** 0.5:.1f}.",
                {"spread": float(sizes.std())},
                p_fixed,
            )
        )
    if case.findings or "noise_multiplier" not in bench.box.accepted:
        return
    _noise_there(case, bench, data, rows)


def _noise_there(case: Case, bench: Bench, data: Data, rows: Vector) -> None:
    """The noise of a large dataset is that of a small one."""
    usual = measure(bench).readings["base"]
    live = int(measure(bench).live.sum())
    if usual.factor == 0 or live < 10 * _DISTINCT or measure(bench).uneven:
        return
    per_unit = usual.factor * usual.clip * SIGMA / usual.batch_size
    share = bench.known.divisors.get(usual.batch_size, 1 / usual.batch_size)
    expected = per_unit * ((expected_share(bench) or share) / share)
    basis, _ = np.linalg.qr(rows.T)
    runs = max(2, min(12, -(-3_000 // bench.dimension)))
    updates = bench.updates(
        data,
        range(1800, 1800 + runs),
        clip=bench.usable_clip,
        sigma=SIGMA,
        batch_size=_DRAWN,
        lr=bench.rate(expected * bench.dimension**0.5),
    )
    rest = updates - (updates @ basis) @ basis.T
    count = len(updates) * (live - _DISTINCT)
    ratio = float(np.sum(rest**2)) / count / expected**2
    # Both were measured.
    p_value = float(stats.f.cdf(ratio, count, usual.count))
    case.p_values.append(p_value)
    if p_value < LEVEL and ratio < 0.85:
        case.findings.append(
            Finding(
                "noise-depends-on-dataset-size",
                "sampling",
                "noise",
                f"with {len(data[0])} records the noise is {ratio**0.5:.2f} times that of a few "
                "records, for what one contributes.",
                {"ratio": ratio**0.5},
                p_value,
            )
        )


def expected_share(bench: Bench) -> float | None:
    """Return what one record of a batch of `_DRAWN` weighs, where that follows from others."""
    divisors = bench.known.divisors
    known = divisors.get(16)
    if known is None:
        return None
    if abs(known * 16 - 1) < 0.02:
        return 1.0 / _DRAWN
    return 1.0 if abs(known - 1) < 0.02 else None


def late_batches(bench: Bench, case: Case, memory: Memory, data: Data, batch_size: int) -> None:
    """Count how often each record was drawn over stretches of late steps."""
    plain = bench.known.additive and not bench.known.random and memory == Memory()
    if not plain or bench.sampling != "poisson" or bench.dimension < 60:
        return
    if bench.adam or bench.box.observe is not None or not bench.effort.every_step:
        return
    total = len(data[0])
    rows = bench.contributions(data, bench.usable_clip)
    if not _independent(rows):
        return
    lengths = np.linalg.norm(rows, axis=1)
    basis = np.vstack([rows, bench.weights / bench.size * float(np.median(lengths))])
    ends = [_FIRST + k * _STRETCH for k in range(_COUNT + 1)]
    walks = [silent_walk(bench, data, batch_size, seed, move=2e-5) for seed in range(7100, 7104)]
    tables = []
    for start, end in itertools.pairwise(ends):
        moved = np.stack([walk.place(end) - walk.place(start) for walk in walks])
        found = np.linalg.lstsq(basis.T, moved.T, rcond=None)[0].T
        rest = np.linalg.norm(moved - found @ basis, axis=1) / np.linalg.norm(moved, axis=1)
        if not np.isfinite(rest).all() or float(np.max(rest)) > 0.05:
            # Gradients have changed on the way, or these steps are no sums of the first one's.
            return
        tables.append(found[:, :-1])
    rate = batch_size / total
    # What a record weighs may follow a schedule: counts are compared with their own mean.
    counts = np.stack([table / float(table.mean()) * _STRETCH * rate for table in tables])
    p_even = _evenness(case, counts, rate)
    if p_even < LEVEL:
        return
    flat = counts.reshape(_COUNT, -1) - counts.mean()
    for i in range(_COUNT):
        for j in range(i):
            value = float(np.corrcoef(flat[i], flat[j])[0, 1])
            p_value = float(
                stats.norm.sf(np.arctanh(min(value, 0.9999)) * (flat[i].size - 3) ** 0.5)
            )
            case.p_values.append(p_value)
            if p_value < LEVEL:
                case.findings.append(
                    Finding(
                        "batches-repeat",
                        "late-steps",
                        "sampling",
                        f"records that were drawn often in steps {ends[j] + 1} to {ends[j + 1]} "
                        f"were drawn often in steps {ends[i] + 1} to {ends[i + 1]} again "
                        f"(correlation {value:.2f}): the sampler repeats itself, or records have "
                        "different chances. Other seeds, with other records at the top, tell the "
                        "first from the second.",
                        {"correlation": value},
                        p_value,
                    )
                )
                return


def _evenness(case: Case, counts: Vector, rate: float) -> float:
    """Numbers of draws vary as coins do: not less (turns, whole datasets), nor more (copies)."""
    mean = float(counts.mean())
    spread = float(np.sum((counts - mean) ** 2)) / (mean * (1 - rate))
    places = counts.size - 1
    low, high = float(stats.chi2.cdf(spread, places)), float(stats.chi2.sf(spread, places))
    p_value = min(1.0, 2 * min(low, high))
    case.p_values.append(p_value)
    if p_value < LEVEL:
        few = low < high
        case.findings.append(
            Finding(
                "batches-disjoint" if few else "batches-repeat",
                "late-steps",
                "sampling",
                f"over steps {_FIRST + 1} to {_FIRST + _COUNT * _STRETCH} the numbers of draws of "
                f"records vary {spread / places:.2g} times as much as those of independent coins: "
                + (
                    "records take turns, or all of them are used."
                    if few
                    else "batches come again, or records have different chances. Other seeds tell."
                ),
                {"ratio": spread / places},
                p_value,
            )
        )
    return p_value
