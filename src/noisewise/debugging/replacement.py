"""`separation` and `sampling` where gradients are random themselves: by replacing a record.

With the same seed the same numbers are drawn, whatever a record holds. So two runs that differ
in one record differ by what that record does, random or not: by at most twice the bound if
records are kept apart, and not at all if it was not in the batch. Where a seed does not repeat
a run, averages over runs are compared instead, with their error.
"""

from __future__ import annotations

import numpy as np

from noisewise.debugging.bench import Bench
from noisewise.debugging.findings import Finding, TestResult
from noisewise.debugging.noise_readings import measure
from noisewise.debugging.sampling_laws import Case, sizes_and_chances
from noisewise.debugging.statistics import Vector
from noisewise.debugging.trainer import Data

__all__ = ["batches_by_replacement", "separation_by_replacement"]

_SIZE = 16


def _swapped(data: Data, index: int, other: Data) -> Data:
    x, y = data[0].clone(), data[1].clone()
    x[index], y[index] = other[0][0], other[1][0]
    return x, y


def separation_by_replacement(bench: Bench) -> TestResult:
    """`separation`: a large record in the place of one of sixteen moves it by at most 2 C."""
    title = "one record moves a batch by at most its bound (gradients are random)"
    clip = bench.usable_clip
    data = bench.records.draw(_SIZE, seed=5)
    scale = 12.0 if bench.records.x.is_floating_point() else 1.0
    large = bench.records.draw(1, seed=77, scale=scale)
    # What a record may weigh is read off the noise, so that sums and means are both right.
    unit = clip / _SIZE
    if "noise_multiplier" in bench.box.accepted and not measure(bench).absent:
        unit *= measure(bench).readings["large batch"].factor
    lr = bench.rate(clip)
    runs = range(400, 408 if bench.known.deterministic else 448)
    rows: dict[bool, Vector] = {}
    for changed in (False, True):
        used = _swapped(data, 3, large) if changed else data
        rows[changed] = bench.updates(used, runs, clip=clip, lr=lr)
    if bench.known.deterministic:
        moved = float(np.max(np.linalg.norm(rows[True] - rows[False], axis=1)))
        slack = 0.02 * unit
    else:
        moved = float(np.linalg.norm(rows[True].mean(0) - rows[False].mean(0)))
        spread = sum(float(np.sum(row.var(0, ddof=1))) / len(row) for row in rows.values())
        slack = 6 * spread**0.5
    allowed = 2 * unit * max(1.0, bench.known.largest) + slack
    how = "same seed" if bench.known.deterministic else f"averages of {len(runs)} runs"
    summary = f"one of {_SIZE} records replaced moves the sum by {moved / unit:.3g} C ({how})"
    if moved <= allowed:
        return TestResult("separation", title, "passed", summary)
    bench.known.unbounded = True
    finding = Finding(
        "records-interact",
        "separation",
        "clipping",
        f"{summary}, at most 2 C are possible if each record is clipped by itself: gradients are "
        "clipped after averaging, or something (batch norm, a batch statistic, a data-dependent "
        "threshold) mixes the records. With batches of one record the first cause goes away, the "
        "second stays.",
        {"moved_over_clip": moved / unit},
    )
    return TestResult("separation", title, "failed", summary, (), (finding,))


def batches_by_replacement(bench: Bench, title: str) -> TestResult:
    """`sampling`: a record was in the batch if replacing it changes the update of the same seed."""
    if not bench.known.deterministic:
        why = (
            "gradients are random and a seed does not repeat a run, so nobody can tell who was in "
            "a batch: let `seed` seed dropout, augmentation and the sampler"
        )
        return TestResult("sampling", title, "skipped", why)
    total, batch_size, clip = 12, 3, bench.usable_clip
    data = bench.records.draw(total, seed=8)
    lr = bench.rate(clip)
    counts = []
    for seed in range(500, 500 + max(20, bench.effort.sampling_runs // 2)):
        before = bench.update(data, clip=clip, lr=lr, batch_size=batch_size, seed=seed)
        present = []
        for index in range(total):
            other = bench.records.draw(1, seed=900 + index)
            changed = _swapped(data, index, other)
            after = bench.update(changed, clip=clip, lr=lr, batch_size=batch_size, seed=seed)
            present.append(float(np.linalg.norm(after - before)) > 1e-4 * clip / batch_size)
        counts.append(present)
    case = Case()
    table = np.asarray(counts, dtype=np.float64)
    sizes_and_chances(case, bench.sampling, table, batch_size / total)
    status = "failed" if case.findings else "passed"
    summary = "; ".join(case.seen) + " (by replacing records one by one)"
    return TestResult(
        "sampling", title, status, summary, tuple(case.p_values), tuple(case.findings)
    )
