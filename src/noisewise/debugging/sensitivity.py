"""What one record can do to the update: alone, among others, and when it is broken.

`contribution` trains on one record at a time, with gradients far below and far above the
clipping norm, and measures the norm of what it adds. `separation` checks that a batch is the
*sum* of what its records contribute alone, times a constant: then one record changes a batch by
exactly its own contribution, whatever the others are. Both hold for hard, soft, automatic,
global and per-layer clipping alike, because contributions are measured, not assumed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from noisewise.debugging.bench import SIGMA, Bench
from noisewise.debugging.clipping_causes import clipping_mistake
from noisewise.debugging.findings import Finding, TestResult
from noisewise.debugging.knowledge import Canary
from noisewise.debugging.noise import whitened
from noisewise.debugging.noise_readings import SCALE, measure
from noisewise.debugging.statistics import LEVEL, Vector
from noisewise.debugging.trainer import Data, StateDict, TrainingFailedError

__all__ = ["additivity", "broken_records", "canaries", "choose_clip", "contribution"]

_ROUNDING = 2e-3
# Seven is no multiple of any size into which a batch may be cut.
_SIZES = (2, 4, 7, 16)
#: Differences between a batch and its records that rounding to few digits may leave, and that
#: nothing explains where the order of the records does not matter.
_COARSE, _FINE = 5e-3, 5e-4
#: After how many steps what is returned is looked at again.
_LATER = 7
#: How much further than four seeds two datasets are apart before a value counts as bare, and by
#: which share of it at least. With noise as large as what a record does: p < 1e-6.
_BARE, _DIGITS = 30.0, 1e-4


def choose_clip(bench: Bench) -> float:
    """Return the least clipping norm at which records contribute: some rules drop large ones."""
    data = bench.records.draw(3, seed=5)
    largest = max(bench.records.gradient_norms(bench.init, bench.records.draw(16, seed=5)))
    choices = [bench.clip] if bench.adam else [bench.clip, 1.7 * largest, 9.3 * largest]
    for clip in choices:
        rows = bench.contributions(data, clip)
        if all(np.linalg.norm(row) > 1e-3 * min(clip, bench.least_norm) for row in rows):
            bench.known.clip = clip
            return clip
    bench.known.clip = choices[0]
    bench.known.mute = True
    return choices[0]


def canaries(bench: Bench) -> None:
    """Measure contributions over graded gradients; the tests of noise and contribution read them.

    Where gradients are random, each record is measured with several seeds: the bound must hold
    whatever was drawn. One record is so large that its norm overflows in half precision, and one
    has a gradient so short that the squares of its elements vanish there.
    """
    seeds = range(4) if bench.known.random else range(1)
    numbers = bench.records.x.is_floating_point()
    # Larger weights could lie outside of a set to which they are projected.
    for factor in (1.0, 0.3, 3.0) if bench.reach == 1 else (1.0, 0.3):
        state = bench.init if factor == 1 else bench.scaled_init(factor)
        if factor > 1 and _jumps(bench, state):
            continue
        scales = (1.0, 0.0, 12.0, *((3e5,) if factor == 1.0 else ())) if numbers else (1.0,)
        for scale in scales:
            # A large record that the model gets right has no gradient: take one that it gets wrong.
            for attempt in range(6):
                number = int(31 * factor + min(scale, 13)) + 1000 * attempt
                x, y = bench.records.draw(1, seed=number, scale=scale)
                gradient = _gradient(bench, state, x, y)
                norm = float(np.linalg.norm(gradient))
                if math.isfinite(norm) and norm > max(1e-6, 0.1 * scale * bench.least_norm):
                    break
            if not (math.isfinite(norm) and norm > 1e-6):
                continue
            levels = (1.0,) if bench.adam else (0.011, 0.23, 2.9)
            if factor == 1 and not bench.adam:
                # A factor that is kept above a limit shows where gradients are far beyond C.
                levels = (*levels, 1e-5) if scale == 1 else (*levels, bench.usable_clip / norm)
            for level in levels:
                clip = bench.reachable(level * norm)
                for seed in seeds:
                    row = bench.single(x[0], y[0], clip, state, seed)
                    if np.isfinite(row).all():
                        bench.known.canaries.append(Canary(row, clip, gradient, norm, factor == 1))
    _short_canary(bench, seeds)
    _canaries_of_all_kinds(bench)


def _canaries_of_all_kinds(bench: Bench) -> None:
    """Measure a record of each class, and some of odd inputs and targets, each with its seed.

    A class, a kind of input or one draw in some may be treated in a way of its own.
    """
    records = bench.records
    x, y = records.draw(16, seed=61)
    flat = x.reshape(16, -1)
    if x.is_floating_point():
        # One number alone, and all of them alike.
        flat[1, 1:], flat[5] = 0.0, 1.0
    else:
        # The first token only (padding?), and the last one only.
        flat[1], flat[5] = 0, records.vocabulary - 1
    x = flat.reshape(x.shape)
    if not (records.hard_labels or records.probabilities or records.binary):
        y[2:16:6] *= 1e3
    if records.hard_labels:
        y = (torch.arange(16).reshape(-1, *[1] * (y.ndim - 1)) % max(2, records.outputs)).expand_as(
            y
        )
    if x.is_floating_point():
        x = torch.where(torch.arange(16).reshape(-1, *[1] * (x.ndim - 1)) % 4 == 3, x.abs(), x)
    y = y.to(records.y).clone()
    for index, (one, target) in enumerate(zip(x, y, strict=True)):
        gradient = _gradient(bench, bench.init, one[None], target[None])
        norm = float(np.linalg.norm(gradient))
        if not (math.isfinite(norm) and norm > 1e-6):
            continue
        clip = bench.reachable(0.23 * norm)
        row = bench.single(one, target, clip, None, index)
        if np.isfinite(row).all():
            bench.known.canaries.append(Canary(row, clip, gradient, norm, True))


def _short_canary(bench: Bench, seeds: range) -> None:
    """Measure a record that the model gets nearly right, at a clipping norm below its gradient."""
    found = None if bench.adam or bench.reach < 1 else _nearly_right(bench)
    if found is None:
        return
    state, x, y = found
    gradient = _gradient(bench, state, x, y)
    norm = float(np.linalg.norm(gradient))
    for seed in seeds:
        row = bench.single(x[0], y[0], 0.23 * norm, state, seed)
        if np.isfinite(row).all():
            bench.known.canaries.append(Canary(row, 0.23 * norm, gradient, norm, False))


def _nearly_right(bench: Bench) -> tuple[StateDict, Tensor, Tensor] | None:
    """Return weights and a record with a gradient of norm 1e-5 to 1e-3, if they can be found."""
    records = bench.records
    x, y = records.draw(1, seed=53)
    if records.hard_labels or records.binary:
        # Larger weights are surer of what they say.
        for factor in 1.12 ** np.arange(40):
            state = bench.scaled_init(float(factor))
            output = records.outputs_of(state, x)
            if records.hard_labels and output.shape[:-1] != y.shape:
                return None
            said = output.argmax(-1) if records.hard_labels else (output > 0).reshape(y.shape)
            if _is_short(bench, state, x, said.to(y)):
                return None if _jumps(bench, state) else (state, x, said.to(y))
        return None
    output = records.outputs_of(bench.init, x)
    if output.shape != y.shape:
        return None
    said = torch.softmax(output, -1) if records.probabilities else output
    for share in (1e-3, 1e-4, 1e-5, 1e-6):
        target = (said + share * (y - said)).to(y)
        if _is_short(bench, bench.init, x, target):
            return bench.init, x, target
    return None


def _is_short(bench: Bench, state: StateDict, x: Tensor, y: Tensor) -> bool:
    return 1e-5 < bench.records.gradient_norms(state, (x, y))[0] < 1e-3


def _jumps(bench: Bench, state: StateDict) -> bool:
    """Whether weights move at a learning rate of next to nothing: they are projected back."""
    if "lr" not in bench.box.accepted or bench.box.observe is not None:
        return False
    lr = bench.rate(bench.clip, 1e-9)
    try:
        moved = bench.update(bench.records.draw(1, seed=5), clip=bench.clip, lr=lr, init=state) * lr
    except TrainingFailedError:
        return False
    return float(np.linalg.norm(moved)) > 1e-3 * bench.size


def contribution(bench: Bench) -> TestResult:
    """`contribution`: no record contributes more than the clipping norm."""
    title = "one record contributes at most C"
    seen = bench.known.canaries
    findings = [*_buffers(bench), *_beside(bench)]
    if not seen:
        return TestResult(
            "contribution", title, "skipped", "no synthetic record has a usable gradient"
        )
    worst = max(seen, key=lambda canary: canary.ratio)
    ratio = worst.ratio
    allowed = 1 + (_ROUNDING if not bench.adam else 0.02)
    gain, error, covered = 1.0, 0.0, False
    if "noise_multiplier" in bench.box.accepted and not measure(bench).absent:
        measured = measure(bench)
        if not measured.uneven:
            gain, error = float(measured.gain[0]), measured.error
        else:
            # A tensor with a learning rate of its own has noise of its own: what counts is what a
            # record contributes over the noise, coordinate by coordinate.
            lengths = whitened(bench, measured)
            covered = bool(lengths) and all(
                length <= 1 + 2 * SCALE and not bare for length, bare in lengths
            )
    excess = covered or (gain > 1 and ratio <= gain * (1 + error))
    if ratio > allowed and not excess:
        bench.known.unbounded = True
        name, sentence = clipping_mistake(bench, seen)
        findings.insert(
            0,
            Finding(
                name,
                "contribution",
                "clipping",
                f"{sentence} One record moved the sum by {ratio:.3g} C.",
                {
                    "contribution_over_clip": ratio,
                    "gradient_norm": worst.norm,
                    "clip": worst.clip,
                },
            ),
        )
    if ratio < 1e-4 and not bench.known.mute:
        findings.append(
            Finding(
                "data-ignored",
                "contribution",
                "training",
                "records do not change the weights at all.",
            )
        )
    summary = f"largest contribution {ratio:.4g} C over {len(seen)} records and norms"
    status = "failed" if findings else "passed"
    return TestResult("contribution", title, status, summary, (), tuple(findings))


@dataclass
class _Worst:
    """The largest of several differences, and where it was seen."""

    difference: float = 0.0
    where: str = ""

    def see(self, difference: float, where: str) -> None:
        """Keep it if it is larger."""
        if difference > self.difference:
            self.difference, self.where = difference, where

    @property
    def words(self) -> str:
        """For people."""
        if not self.where:
            return "no difference"
        return f"relative difference {self.difference:.1e} ({self.where})"


def additivity(bench: Bench) -> TestResult:
    """`separation`: the update of a batch is the sum of the contributions of its records."""
    title = "a batch is the sum of its records"
    clips = [bench.usable_clip]
    if not bench.adam:
        clips.append(1.3 * bench.norm)
    worst = _Worst()
    divisors: dict[int, float] = {}
    pairs: list[tuple[float, int, Vector, Vector]] = []
    if bench.known.incomplete:
        return TestResult("separation", title, "skipped", "the sampler leaves records out at q = 1")
    for clip in clips:
        data = bench.records.draw(max(_SIZES), seed=5)
        rows = bench.contributions(data, clip)
        for size in _SIZES:
            total = rows[:size].sum(0)
            if np.linalg.norm(total) == 0:
                continue
            lr = bench.rate(float(np.linalg.norm(total)) / size)
            batch = (data[0][:size], data[1][:size])
            update = bench.update(batch, clip=clip, lr=lr)
            share = float(update @ total) / float(total @ total)
            pairs.append((clip, size, total, update))
            if size == 4:
                others = (data[0][4:8], data[1][4:8])
                second = bench.update(others, clip=clip, lr=lr)
                other_total = rows[4:8].sum(0)
                other = float(second @ other_total) / float(other_total @ other_total)
                worst.see(abs(other / share - 1), f"two batches of 4, C = {clip:.3g}")
            scale = max(float(np.linalg.norm(update)), float(np.linalg.norm(total)) / size)
            rest = float(np.linalg.norm(update - share * total)) / scale
            divisors.setdefault(size, share)
            worst.see(rest, f"B = {size}, C = {clip:.3g}")
        for label, company in _unusual(bench).items():
            if worst.difference <= _COARSE:
                rest = _rest_of(bench, company, clip, divisors)
                worst.see(rest, f"{label}, C = {clip:.3g}")
    if worst.difference <= _COARSE and divisors and not bench.adam:
        rest, size = _large_batch(bench, clips[0], divisors)
        worst.see(rest, f"B = {size}, C = {clips[0]:.3g}")
    divisors[1] = 1.0
    bench.known.divisors = divisors
    if len(divisors) == 1:
        return TestResult(
            "separation", title, "skipped", "records contribute nothing at any C tried"
        )
    allowed = 0.03 if bench.adam else _COARSE
    if (
        _FINE < worst.difference <= allowed
        and not bench.adam
        and _order_is_nothing(bench, clips[-1])
    ):
        allowed = _FINE
    seen = worst.words
    shares = ", ".join(f"1/{1 / divisors[s]:.3g} at B = {s}" for s in _SIZES if divisors.get(s))
    findings: tuple[Finding, ...] = ()
    if worst.difference > allowed and not bench.adam and _sum_in_a_ball(pairs):
        bench.known.obstacle = (
            "the sum of a batch is limited to a ball before its noise, which moves two sums no "
            "further apart than they are and costs no privacy, but hides what records contribute "
            "together. Leave that limit out for the check"
        )
        bench.notes.append(bench.known.obstacle)
        return TestResult("separation", title, "skipped", bench.known.obstacle)
    if worst.difference > allowed:
        bench.known.unbounded = True
        findings = (
            Finding(
                "records-interact",
                "separation",
                "clipping",
                f"the update of a batch is not the sum of what its records contribute alone "
                f"({seen}): gradients are clipped after averaging, or something (batch norm, a "
                f"batch statistic, a data-dependent threshold, sampling) mixes the records, or "
                f"some are left out (beyond the last whole micro-batch, as outliers, as copies). "
                f"A batch of two ordinary records tells: nobody is left out there.",
                {"difference": worst.difference},
            ),
        )
    else:
        bench.known.additive = True
        odd = {
            s: d
            for s, d in divisors.items()
            if s > 1 and not (abs(d * s - 1) < 0.02 or abs(d - 1) < 0.02)
        }
        if odd:
            bench.notes.append(f"a batch is divided by neither B nor 1 ({shares})")
    status = "failed" if findings else "passed"
    return TestResult("separation", title, status, f"{seen}; divisor {shares}", (), findings)


def _rest_of(bench: Bench, data: Data, clip: float, divisors: Mapping[int, float]) -> float:
    """Return how far an unusual batch is from the sum of its records, relative to it."""
    size = len(data[0])
    try:
        total = bench.contributions(data, clip).sum(0)
        length = float(np.linalg.norm(total))
        if not np.isfinite(length) or length == 0:
            return 0.0
        update = bench.update(data, clip=clip, lr=bench.rate(length / size))
    except TrainingFailedError:
        # Records of a special kind are our wish alone; a gradient of zero stops some code.
        return 0.0
    share = divisors.get(size, 1 / size)
    return float(np.linalg.norm(update / share - total)) / length


def _sum_in_a_ball(pairs: Sequence[tuple[float, int, Vector, Vector]]) -> bool:
    """Whether sums are shortened to one length where they are longer, and else left alone.

    The nearest point of a ball is no further from another one than the sum was. A sum that is made
    longer, or whose length follows the size of the batch, is something else.
    """
    for of_mean in (True, False):
        lengths: dict[float, list[tuple[float, float]]] = {}
        for clip, size, total, update in pairs:
            whole = update * size if of_mean else update
            before, after = float(np.linalg.norm(total)), float(np.linalg.norm(whole))
            if np.linalg.norm(whole * before - total * after) > 1e-3 * before * after:
                return False
            lengths.setdefault(clip, []).append((before, after))
        fits, shortened = True, 0
        for seen in lengths.values():
            radius = max(after for _, after in seen)
            cut = [after for before, after in seen if after < 0.98 * before]
            shortened += len(cut)
            fits &= all(abs(after / radius - 1) < 1e-3 for after in cut)
            fits &= all(abs(after / min(before, radius) - 1) < 1e-2 for before, after in seen)
        if fits and shortened >= 2:
            return True
    return False


def _large_batch(bench: Bench, clip: float, divisors: Mapping[int, float]) -> tuple[float, int]:
    """Compare a batch beyond all usual pieces with the sum of its records: copies of few.

    Code that cuts large batches into pieces, or takes a shortcut for them, is right at small ones.
    """
    distinct = 7
    # More than 256 records, as far as a model of this size allows in one run.
    copies = 37 if bench.dimension <= 100_000 else 19 if bench.dimension <= 1_000_000 else 5
    size = distinct * copies
    x, y = bench.records.draw(max(_SIZES), seed=5)
    rows = bench.contributions((x[:distinct], y[:distinct]), clip)
    total = copies * rows.sum(0)
    length = float(np.linalg.norm(total))
    if length == 0:
        return 0.0, size
    many = (
        x[:distinct].repeat(copies, *[1] * (x.ndim - 1)),
        y[:distinct].repeat(copies, *[1] * (y.ndim - 1)),
    )
    try:
        update = bench.update(many, clip=clip, lr=bench.rate(length / size))
    except TrainingFailedError:
        # A batch this large is our wish alone; memory may not allow it.
        return 0.0, size
    share = float(update @ total) / length**2
    rest = float(np.linalg.norm(update - share * total)) / max(
        float(np.linalg.norm(update)), length / size
    )
    # Divided by B or by nothing, as at the batches before; other divisors are noted elsewhere.
    usual = {s: d * s for s, d in divisors.items()}
    for weights, own in ((usual, share * size), (divisors, share)):
        known = list(weights.values())
        if max(known) - min(known) < 0.01 * abs(known[0]):
            rest = max(rest, abs(own / known[0] - 1))
            break
    return rest, size


def _order_is_nothing(bench: Bench, clip: float) -> bool:
    """Whether a batch in another order gives the same sum: then rounding explains nothing."""
    x, y = bench.records.draw(max(_SIZES), seed=5)
    lr = bench.rate(clip)
    here, there = (
        bench.update((x[order], y[order]), clip=clip, lr=lr)
        for order in (torch.arange(len(x)), torch.arange(len(x)).flip(0))
    )
    return float(np.linalg.norm(here - there)) <= 1e-5 * float(np.linalg.norm(here))


def _unusual(bench: Bench) -> dict[str, Data]:
    """Return batches that a filter would cut: records that come twice, and one far from others."""
    x, y = bench.records.draw(16, seed=5)
    found = {"records that come twice": (x[[0, 0, 1, 1]], y[[0, 0, 1, 1]])}
    if x.is_floating_point():
        close = torch.stack([x[0], 1.01 * x[0], x[1], 0.99 * x[1]])
        found["records close to others"] = (close, y[[0, 0, 1, 1]])
        far = x.clone()
        far[0] *= 12
        found["one record far from the others"] = (far, y)
        # Its gradient overflows in half precision, where steps are skipped or counted again.
        enormous = x[:4].clone()
        enormous[0] *= 3e5
        found["one record with an enormous gradient"] = (enormous, y[:4])
    return found


def broken_records(bench: Bench) -> TestResult:
    """`broken-records`: a record with non-finite values must neither spoil nor stop a step."""
    title = "a non-finite record is harmless"
    size, clip = 4, bench.usable_clip
    if bench.known.incomplete:
        return TestResult(
            "broken-records", title, "skipped", "the sampler leaves records out at q = 1"
        )
    x, y = bench.records.draw(size, seed=5)
    spoiled: list[tuple[str, Tensor, Tensor]] = []
    for label, value in (("NaN", math.nan), ("infinity", math.inf), ("1e30", 1e30)):
        if bench.records.x.is_floating_point():
            bad = x.clone()
            bad[0] = value
            spoiled.append((f"input {label}", bad, y))
        elif y.is_floating_point() and label == "NaN":
            target = y.clone()
            target[0] = value
            spoiled.append((f"target {label}", x, target))
    if not spoiled:
        return TestResult(
            "broken-records", title, "skipped", "inputs and targets are whole numbers"
        )
    rows = bench.contributions((x[1:], y[1:]), clip)
    share = bench.known.divisors.get(size, 1 / size)
    rest = share * rows.sum(0)
    lr = bench.rate(float(np.linalg.norm(rest)) or clip)
    goes_on = _second_step(bench, (x, y), clip)
    findings = []
    for label, inputs, targets in spoiled:
        try:
            update = bench.update((inputs, targets), clip=clip, lr=lr)
        except TrainingFailedError as error:
            findings.append(_broken("stops training", f"{label}: {error}"))
            break
        if not np.isfinite(update).all():
            findings.append(_broken("makes the weights non-finite", label))
            break
        if goes_on and _second_step(bench, (inputs, targets), clip) < 0.05 * goes_on:
            findings.append(_broken("ends training after its step", label))
            break
        if not bench.known.additive:
            continue
        gap = float(np.linalg.norm(update - rest))
        if (
            gap
            > (1 + _ROUNDING) * share * clip * max(1.0, bench.known.largest) + 0.02 * share * clip
        ):
            skipped = np.linalg.norm(update) < 1e-3 * np.linalg.norm(rest)
            findings.append(
                _broken(
                    "cancels the whole step"
                    if skipped
                    else f"moves the update by {gap / (share * clip):.3g} C",
                    label,
                )
            )
            break
    if not findings:
        findings += _noise_without_records(bench, spoiled[0], clip)
    status = "failed" if findings else "passed"
    summary = findings[0].sentence if findings else "the other records count as before"
    return TestResult("broken-records", title, status, summary, (), tuple(findings))


def _noise_without_records(
    bench: Bench, spoiled: tuple[str, Tensor, Tensor], clip: float
) -> list[Finding]:
    """A batch of nothing but broken records is a step with noise only, and with all of it."""
    measured = bench.known.noise
    if measured is None or measured.absent or bench.adam or bench.dimension < 60:
        return []
    label, x, y = spoiled
    every = torch.zeros(len(x), dtype=torch.long)
    usual = measured.readings["base"]
    lr = bench.rate(clip * SIGMA / len(x) * bench.dimension**0.5)
    try:
        update = bench.update((x[every], y[every]), clip=clip, lr=lr, sigma=SIGMA, seed=96)
    except TrainingFailedError as error:
        return [_broken("stops training where there is no other", f"{label}: {error}")]
    if not np.isfinite(update).all():
        return [_broken("makes the weights non-finite where there is no other", label)]
    places = int(measured.live.sum())
    ratio = float(np.sum(update**2)) / places / (usual.factor * clip * SIGMA / len(x)) ** 2
    p_value = float(stats.f.cdf(ratio, places, usual.count))
    if p_value >= LEVEL or ratio > 0.5 or measured.uneven:
        return []
    return [_broken("leaves a step without its noise where there is no other", label)]


def _second_step(bench: Bench, data: Data, clip: float) -> float:
    """Return how far the second step leads, over the first; 0 if that cannot be told."""
    if "steps" not in bench.box.accepted or bench.box.observe is not None:
        return 0.0
    settings = {"clip": clip, "lr": bench.rate(clip, 1e-3)}
    try:
        one, both = (bench.update(data, steps=steps, **settings) for steps in (1, 2))  # type: ignore[arg-type]
    except TrainingFailedError:
        return 0.0
    length = float(np.linalg.norm(one))
    return float(np.linalg.norm(both - one)) / length if length > 0 else 0.0


def _broken(effect: str, label: str) -> Finding:
    return Finding(
        "non-finite-record",
        "broken-records",
        "clipping",
        f"one record with a non-finite gradient {effect} ({label}): everybody can see that it was "
        "there. Give such a record weight zero and take the step.",
    )


def _buffers(bench: Bench) -> list[Finding]:
    """Buffers (running statistics) that follow the data leave the model without noise."""
    if not [name for name in bench.init if name not in set(bench.box.names)]:
        return []
    moved: list[str] = []
    for steps in _looks(bench):
        results = [
            bench.box.run(
                init=bench.init,
                data=bench.records.draw(4, seed=seed),
                clip=bench.clip,
                noise_multiplier=SIGMA,
                batch_size=4,
                seed=3,
                steps=steps,
                lr=bench.rate(bench.clip, 1e-3),
            ).buffers
            for seed in (41, 42)
        ]
        moved += [
            name
            for name, value in results[0].items()
            if name in results[1] and not torch.equal(value, results[1][name])
        ]
    if not moved:
        return []
    return [
        Finding(
            "buffer-leaks-data",
            "contribution",
            "model",
            f"the buffer {moved[0]} depends on the records and leaves training without noise "
            "(running statistics of batch norm?).",
            {"buffers": list(dict.fromkeys(moved))},
        )
    ]


def _looks(bench: Bench) -> tuple[int, ...]:
    """Return after how many steps to look at what is returned: some of it is made later."""
    return (1, _LATER) if "steps" in bench.box.accepted else (1,)


def _beside(bench: Bench) -> list[Finding]:
    """What is returned beside the model is released too, and a loss or a count needs noise.

    The learning rate is next to nothing, so that weights and all that follows from them stay what
    they were. What then differs between datasets, and by much less between seeds, is a function of
    the records with next to no noise. All records are in the batch, or the draw would look like
    noise; for the number of records a fifth is there, and what the draw changes is left out.
    """
    wanted = {"lr", "noise_multiplier"}
    if not wanted <= bench.box.accepted:
        return []

    # Some of these records are clipped and some are not, one is far from the others or broken.
    clip = bench.clip if bench.adam else bench.norm
    x, y = bench.records.draw(5, seed=41)
    kinds = [(x[:4], y[:4]), bench.records.draw(4, seed=42), (x, y)]
    if x.is_floating_point():
        kinds.append((torch.cat([12 * x[:1], x[1:4]]), y[:4]))
        kinds.append((torch.cat([torch.full_like(x[:1], math.nan), x[1:4]]), y[:4]))

    def returned(data: Data, seed: int, steps: int) -> Mapping[str, Tensor]:
        return bench.box.run(
            init=bench.init,
            data=data,
            clip=clip,
            noise_multiplier=SIGMA,
            batch_size=4,
            seed=seed,
            steps=steps,
            lr=bench.rate(bench.clip, 1e-9),
        ).beside

    def bare(here: list[Tensor], there: list[Tensor]) -> bool:
        """Whether two datasets differ by far more than any two seeds do."""
        shapes = {value.shape for value in (*here, *there)}
        if len(shapes) > 1 or not all(bool(value.isfinite().all()) for value in (*here, *there)):
            return False
        one, other = torch.stack(here), torch.stack(there)
        apart = (one.mean(0) - other.mean(0)).abs()
        spread = torch.maximum(one.amax(0) - one.amin(0), other.amax(0) - other.amin(0))
        least = _DIGITS * torch.maximum(one.abs().amax(0), other.abs().amax(0))
        return bool((apart > torch.maximum(_BARE * spread, least)).any())

    raw: list[str] = []
    seeds = (3, 4, 5, 6)
    with suppress(TrainingFailedError):
        returned(kinds[0], 3, _looks(bench)[-1])
    for steps in _looks(bench) if bench.box.returns_more else ():
        first: list[Mapping[str, Tensor]] = []
        for data in kinds:
            try:
                found = [returned(data, seed, steps) for seed in seeds]
            except TrainingFailedError:
                # A learning rate this small, or such a record, is our wish alone.
                continue
            if first:
                told = _tells_the_noise(seeds, first, found)
                if told:
                    return [told]
            first = first or found
            for name in set.intersection(*(set(values) for values in (*first, *found))):
                if bare([values[name] for values in first], [values[name] for values in found]):
                    raw.append(name)
        if raw:
            break
    if not raw:
        return []
    return [
        Finding(
            "released-beside-weights",
            "contribution",
            "training",
            f"{raw[0]} is returned beside the weights, depends on the records or on their number, "
            "and has next to no noise: it is released like the weights, and no accountant knows of "
            "it.",
            {"names": sorted(set(raw))},
        )
    ]


def _tells_the_noise(
    seeds: Sequence[int], first: list[Mapping[str, Tensor]], others: list[Mapping[str, Tensor]]
) -> Finding | None:
    """What follows the seed and no record may be a state of the generator: noise from it is known.

    Such a state is many whole numbers, of 32 bits or more or a long row of bytes; a key is two or
    more. The seed itself is as good.
    """
    for name in sorted(set.intersection(*(set(found) for found in (*first, *others)))):
        here, there = ([found[name] for found in runs] for runs in (first, others))
        if len({value.shape for value in (*here, *there)}) > 1 or here[0].numel() == 0:
            continue
        alike = all(torch.equal(one, other) for one, other in zip(here, there, strict=True))
        apart = not any(torch.equal(one, other) for one, other in itertools.combinations(here, 2))
        if not (alike and apart and all(bool((v == v.round()).all()) for v in here)):
            continue
        numbers = here[0]
        words = numbers.numel() > 1 and float(numbers.abs().max()) >= 2**24
        row = numbers.numel() >= 256 and len(set(numbers.tolist())) < numbers.numel()
        itself = all(
            value.numel() == 1 and int(value) == seed
            for value, seed in zip(here, seeds, strict=True)
        )
        if words or row or itself:
            return Finding(
                "noise-can-be-drawn-again",
                "contribution",
                "randomness",
                f"{name} is returned beside the weights, follows the seed and no record, and looks "
                "like a seed or the state of a generator: whoever has it draws the same noise "
                "again and subtracts it.",
                {"name": name},
            )
    return None


def _gradient(bench: Bench, state: StateDict, x: Tensor, y: Tensor) -> Vector:
    names = bench.box.names
    leaves = {n: v.detach().clone().requires_grad_(n in names) for n, v in state.items()}
    output = torch.func.functional_call(bench.records.model, leaves, (x,))
    loss = bench.records.loss(output, y).mean()
    used = [leaves[name] for name in names]
    parts = torch.autograd.grad(loss, used, allow_unused=True)
    flat = [torch.zeros_like(p) if g is None else g for g, p in zip(parts, used, strict=True)]
    return np.asarray(torch.cat([g.double().flatten() for g in flat]).numpy(), dtype=np.float64)
