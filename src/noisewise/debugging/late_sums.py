"""Batches of late steps: sums of what their records contribute there, with the noise of the first.

At late steps most tests follow a single record. Here a batch of records of several kinds is
followed beside each of them alone, by the same seed and settings: whatever optimizer and
schedule make of a gradient, they make it of both. And the noise of a batch that was drawn from
a larger dataset is compared with its own first step.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from noisewise.debugging.bench import Bench
from noisewise.debugging.findings import Finding
from noisewise.debugging.first_steps import promised_at
from noisewise.debugging.knowledge import Memory
from noisewise.debugging.sampling_laws import Case
from noisewise.debugging.statistics import LEVEL, Vector, loud_places
from noisewise.debugging.trainer import Data, TrainingFailedError
from noisewise.debugging.walk import loud_walk, silent_walk

__all__ = ["late_sums"]

_SIZE = 4
_TOTAL, _DRAWN = 14, 3
#: How far a step leads, over the length of the weights.
_MOVE = 2e-5
_REST, _GROWN = 0.1, 0.3
#: A learning rate that has fallen to less than this leaves steps of a few units of float32.
_SHORT = 0.05


def late_sums(bench: Bench, case: Case, memory: Memory, steps: list[int]) -> None:
    """Compare batches with single records, and noise of drawn batches, at some late steps."""
    known = bench.known
    if not steps or bench.adam or known.random or bench.correlated or known.decided_by_data:
        return
    chosen = sorted({steps[0], steps[len(steps) // 2], steps[-1]})
    scales = _records_at(bench, case, chosen)
    single = known.deterministic and memory == Memory() and not bench.momentum
    if scales and not case.findings and single and bench.dimension >= 60:
        _noise_at(bench, case, [*scales])
    if scales and not case.findings and single:
        _with_fewer(bench, case, [*scales])


def _kinds(bench: Bench) -> Data:
    """Return four records: two ordinary ones, a long one and one whose inputs are all alike."""
    x, y = bench.records.draw(_SIZE, seed=71)
    if x.is_floating_point():
        x[2] *= 12
        x[3] = 1.0
    return x, y


def _records_at(bench: Bench, case: Case, steps: list[int]) -> dict[int, float]:
    """Judge batches and single records at each step; return what records count there."""
    share = bench.known.divisors.get(_SIZE)
    means = share is not None and abs(share * _SIZE - 1) < 0.02
    if share is None or not bench.known.additive or (bench.weight_decay and not means):
        return {}
    seen = _Followed(bench, share, _MOVE)
    scales: dict[int, float] = {}
    for step in steps:
        scale, grown, rest = seen.at(step)
        if scale == 0.0:
            continue
        scales[step] = scale
        if grown > 1 + _GROWN or rest > _REST:
            # Weights have moved, for each record in a way of its own: much less in shorter steps.
            _, again, remains = _Followed(bench, share, _MOVE / 4).at(step)
            if min(grown, again) > 1 + _GROWN and not bench.weight_decay:
                case.findings.append(_unbounded(step, again))
            elif remains > max(_REST, 0.7 * rest) and not bench.known.weighted:
                case.findings.append(_interacts(step, remains))
            return {}
    if scales:
        case.seen.append(f"batches are sums at steps {', '.join(map(str, scales))}")
    return scales


class _Followed:
    """Four records alone and together, and an ordinary one, by runs without noise."""

    def __init__(self, bench: Bench, share: float, move: float) -> None:
        x, y = _kinds(bench)
        self.share = share
        self.alone = [
            silent_walk(bench, (x[i : i + 1], y[i : i + 1]), 1, 0, move) for i in range(_SIZE)
        ]
        self.batch = silent_walk(bench, (x, y), _SIZE, 0, move)
        self.usual = silent_walk(bench, bench.records.draw(1, seed=5), 1, 0, move)

    def at(self, step: int) -> tuple[float, float, float]:
        """Return what an ordinary record counts at a step, the others over it, and the rest.

        Both are over what they were at the first step. The rest is what a batch has beside a
        multiple of the sum: C may follow what was released, alike for all.
        """
        unit, lengths = _length(self.usual.moved(1)), [_length(w.moved(1)) for w in self.alone]
        rows = np.stack([walk.moved(step) for walk in self.alone])
        total, together = self.share * rows.sum(0), self.batch.moved(step)
        size = max(_length(total), _length(together))
        if min(*lengths, unit) == 0 or size == 0:
            return 0.0, 0.0, 0.0
        scale = _length(self.usual.moved(step)) / unit
        if scale < _SHORT:
            return 0.0, 0.0, 0.0
        grown = max(_length(row) / first for row, first in zip(rows, lengths, strict=True)) / scale
        factor = float(together @ total) / max(float(total @ total), 1e-300)
        return scale, grown, _length(together - factor * total) / size


def _length(vector: Vector) -> float:
    return float(np.linalg.norm(vector))


def _unbounded(step: int, ratio: float) -> Finding:
    return Finding(
        "clipping-stops",
        "late-steps",
        "clipping",
        f"at step {step} some records count {ratio:.2f} times as much as at step 1, in units of "
        "an ordinary one: records of a kind (long ones, some classes) are not bounded any more. "
        "Train on one such record for that many steps.",
        {"step": step, "ratio": ratio},
    )


def _interacts(step: int, rest: float) -> Finding:
    return Finding(
        "records-interact",
        "late-steps",
        "clipping",
        f"at step {step} a batch of {_SIZE} is not the sum of what its records contribute there "
        f"alone (relative difference {rest:.2g}), and at step 1 it was: from some step on, "
        "gradients are clipped after averaging, or records are mixed.",
        {"step": step, "difference": rest},
    )


def _noise_at(bench: Bench, case: Case, steps: list[int]) -> None:
    """The noise of drawn batches falls no lower than what a record of them weighs."""
    data = bench.records.draw(_TOTAL, seed=8)
    rows = bench.contributions(data, bench.usable_clip)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if np.linalg.svd(rows / lengths, compute_uv=False)[-1] < 0.02:
        return
    silent = [silent_walk(bench, data, _DRAWN, seed, _MOVE) for seed in (7700, 7701)]
    loud = [
        loud_walk(bench, data, _DRAWN, seed)
        for seed in range(7600, 7600 + max(2, min(6, -(-1_500 // bench.dimension))))
    ]

    def weight(step: int) -> float:
        """What one record of a batch weighs: epochs, of which schedules may be, are those here."""
        moved = np.stack([walk.moved(step) for walk in silent])
        solved = np.linalg.lstsq(rows.T, moved.T, rcond=None)[0]
        return float(np.median(solved[solved > 0.5 * float(np.max(solved))]))

    def noise(step: int) -> Vector:
        return np.concatenate([walk.moved(step) for walk in loud])

    first, unit = noise(1), weight(1)
    base, count = float(np.mean(first**2)), max(1, loud_places(first))
    if base == 0.0 or not unit > 0:
        return
    for step in steps:
        now, expected = noise(step), weight(step) / unit * promised_at(bench, step)
        if not expected > _SHORT:
            continue
        ratio = float(np.mean(now**2)) / base / expected**2
        p_value = float(stats.f.cdf(ratio, max(1, loud_places(now)), count))
        case.p_values.append(p_value)
        if p_value < LEVEL and ratio < 0.6:
            case.findings.append(
                Finding(
                    "noise-decays",
                    "late-steps",
                    "noise",
                    f"at step {step} the noise of a batch drawn from {_TOTAL} records is "
                    f"{ratio**0.5:.2f} times what it was at step 1 for what a record weighs.",
                    {"step": step, "ratio": ratio**0.5},
                    p_value,
                )
            )
            return


def _with_fewer(bench: Bench, case: Case, steps: list[int]) -> None:
    """Half as many records as a batch may hold move late steps as far as twice as many do.

    All are drawn in either case, so that epochs are one step long.
    """
    seeds = range(7800, 7800 + max(2, min(6, -(-1_500 // bench.dimension))))
    walks = {
        total: [loud_walk(bench, bench.records.draw(total, seed=5), _SIZE, seed) for seed in seeds]
        for total in (_SIZE // 2, _SIZE)
    }
    try:
        first, here, there = (
            {
                total: np.concatenate([walk.moved(step) for walk in same])
                for total, same in walks.items()
            }
            for step in (1, steps[len(steps) // 2], steps[-1])
        )
    except TrainingFailedError:
        # A batch that cannot be filled is our wish alone.
        return
    for step, rows in ((steps[len(steps) // 2], here), (steps[-1], there)):
        sizes = {
            total: float(np.mean(rows[total] ** 2)) / max(float(np.mean(first[total] ** 2)), 1e-300)
            for total in rows
        }
        few, many = sizes[_SIZE // 2], sizes[_SIZE]
        if min(few, many) < 1e-6:
            continue
        count = loud_places(rows[_SIZE])
        # Each of the two is a ratio of two estimates.
        spread = 2 / max(1.0, count) ** 0.5
        p_value = 2 * float(stats.norm.sf(abs(math.log(few / many)) / (math.sqrt(2) * spread)))
        case.p_values.append(p_value)
        if p_value < LEVEL and not 0.75 < few / many < 1.33:
            case.findings.append(
                Finding(
                    "step-size-depends-on-data",
                    "late-steps",
                    "training",
                    f"with the same batch size, step {step} is {(few / many) ** 0.5:.2f} times as "
                    f"long with {_SIZE // 2} records as with {_SIZE}, and the first is not: the "
                    "learning rate, or the noise, follows how many records were drawn so far. "
                    "Count steps instead.",
                    {"step": step, "ratio": (few / many) ** 0.5},
                    p_value,
                )
            )
            return
