"""`decisions`: whether the way depends on the records other than through their sum.

Where noise drowns what records contribute, two trainings with the same seed add the same noise
and must end at the same weights, whatever their data: only the noise was ever added. If they
do not, something was decided by the data: training stopped early, the learning rate fell on a
plateau of the training loss, an older checkpoint was chosen, a step was left out.

Decisions by the loss are provoked: the way is known from a first run, so records are chosen
whose loss falls along it at nearly every step, and others whose loss never falls below what it
was at the start.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from scipy import stats

from noisewise.debugging.bench import Bench
from noisewise.debugging.findings import Finding, TestResult
from noisewise.debugging.statistics import LEVEL, Vector, loud_places
from noisewise.debugging.trainer import Data, TrainingFailedError
from noisewise.debugging.walk import Walk, loud_walk

__all__ = ["control_flow"]

_TITLE = "the way depends on the noise, not on the data"
_MOVE = 0.05
_SIZE = 4


def control_flow(bench: Bench) -> TestResult:
    """`decisions`: provoke early stopping, plateau schedules, choices and skipped steps."""
    if "steps" not in bench.box.accepted:
        return TestResult("decisions", _TITLE, "skipped", "train takes no `steps`")
    measured = bench.known.noise
    if measured is not None and measured.absent:
        return TestResult("decisions", _TITLE, "skipped", "there is no noise to follow (see noise)")
    if bench.known.same_noise:
        return TestResult("decisions", _TITLE, "skipped", "the noise ignores the seed (see P)")
    if bench.known.unbounded:
        why = "records contribute more than they may, so they are not drowned by noise"
        return TestResult("decisions", _TITLE, "skipped", why)
    steps = bench.effort.path_steps
    plain = _walk(bench, bench.records.draw(_SIZE, seed=5))
    end = plain.place(steps)
    length = float(np.linalg.norm(end))
    if length == 0.0:
        return TestResult("decisions", _TITLE, "skipped", "weights do not move at loud noise")
    findings: list[Finding] = []
    seen, widest = [], 0.0
    allowed = _allowed(bench, plain, steps, length)
    for label, data in _datasets(bench, plain, steps).items():
        walk = _walk(bench, data)
        try:
            apart = _apart(bench, walk.place(steps), end)
        except TrainingFailedError as error:
            seen.append(f"{label}: {error}")
            continue
        widest = max(widest, apart)
        if apart > allowed and _decided(bench, plain, walk, steps, apart):
            findings.append(_named(bench, plain, walk, steps, label, apart))
            bench.known.decided_by_data = findings[0].name != "path-depends-on-data"
            break
    if not findings:
        finding = _at_large_weights(bench, steps, allowed) or _with_patience(bench)
        findings += [finding] if finding else []
    seen.append(f"ends {widest:.1%} apart on different data (allowed {allowed:.1%})")
    p_values: list[float] = []
    if not findings:
        finding, p_values = _skipped_steps(bench, steps)
        findings += [finding] if finding else []
    status = "failed" if findings else "passed"
    return TestResult(
        "decisions", _TITLE, status, "; ".join(seen), tuple(p_values), tuple(findings)
    )


def _at_large_weights(bench: Bench, steps: int, allowed: float) -> Finding | None:
    """Compare records that are right with some that are wrong where outputs are large.

    A model of bounded units has neither small losses nor short gradients at its first weights.
    """
    if not bench.records.hard_labels or bench.reach < 1 or bench.box.observe is not None:
        return None
    x, y = bench.records.draw(10 * _SIZE, seed=40)
    for factor in (3.0, 10.0):
        state = bench.scaled_init(factor)
        order = torch.argsort(bench.records.losses(state, (x, y)))
        walks = []
        for chosen in (order[:_SIZE], order[-_SIZE:]):
            walk = _walk(bench, (x[chosen], y[chosen]))
            walk.init, walk.lr = state, factor * walk.lr
            walks.append(walk)
        try:
            right, wrong = (walk.place(steps) for walk in walks)
        except TrainingFailedError:
            continue
        apart = _apart(bench, right, wrong) if np.any(wrong) else 0.0
        if apart > allowed and _decided(bench, walks[1], walks[0], steps, apart):
            label = f"records with next to no loss, at {factor:g} times the weights,"
            return _named(bench, walks[1], walks[0], steps, label, apart)
    return None


def _with_patience(bench: Bench) -> Finding | None:
    """Follow a few datasets for long: code may wait for many steps before it decides."""
    steps = bench.effort.long_path
    if not steps or bench.box.observe is not None or not bench.known.deterministic:
        return None
    plain = _walk(bench, bench.records.draw(_SIZE, seed=5))
    # So short that weights stay where a model that is right stays right.
    plain.lr *= 0.2
    try:
        end = plain.place(steps)
    except TrainingFailedError:
        return None
    length = float(np.linalg.norm(end))
    if length == 0.0:
        return None
    allowed = _allowed(bench, plain, steps, length)
    fitted = _fitted(bench)
    kinds = {"records that the model gets right": fitted} if fitted is not None else {}
    x, y = bench.records.draw(10 * _SIZE, seed=38)
    halfway = bench.moved_init(plain.place(steps // 2), _to_weights(bench, plain))
    gone = bench.moved_init(end, _to_weights(bench, plain))
    first, middle, last = (
        bench.records.losses(state, (x, y)) for state in (bench.init, halfway, gone)
    )
    falls = torch.argsort(torch.maximum(middle - first, last - middle))[:_SIZE]
    rises = torch.argsort(torch.minimum(middle, last) - first, descending=True)[:_SIZE]
    kinds["records whose loss falls"] = (x[falls], y[falls])
    kinds["records whose loss never falls"] = (x[rises], y[rises])
    for label, data in kinds.items():
        walk = _walk(bench, data)
        walk.lr = plain.lr
        try:
            apart = _apart(bench, walk.place(steps), end)
        except TrainingFailedError:
            continue
        if apart > allowed and _decided(bench, plain, walk, steps, apart):
            return _named(bench, plain, walk, steps, label, apart)
    return None


def _decided(bench: Bench, plain: Walk, walk: Walk, steps: int, apart: float) -> bool:
    """Whether the ways stay apart when records are drowned ten times deeper.

    What is done to a noisy gradient may make more of a small difference, and less of a smaller
    one. A decision is taken all the same.
    """
    if not _curved(bench):
        return True
    try:
        here, there = (
            replace(way, clip=way.clip / 10, sigma=10 * way.sigma, _places={}).place(steps)
            for way in (walk, plain)
        )
    except TrainingFailedError:
        return True
    return not np.any(there) or _apart(bench, here, there) > 0.5 * apart


def _curved(bench: Bench) -> bool:
    """Whether a step is no sum: signs and lengths of noisy gradients, and Adam."""
    return bench.adam or bool(bench.known.obstacle)


def _allowed(bench: Bench, walk: Walk, steps: int, length: float) -> float:
    """Return how far the ends may be apart, over the length of the way.

    A record contributes at most C a step, on either side, and more where its noise is larger too.
    The rest is rounding; signs and lengths of noisy gradients, and Adam, make more of it.
    """
    bound = walk.clip * max(1.0, bench.known.largest)
    return (0.12 if _curved(bench) else 0.04) + 3 * steps * bound / length


def _walk(bench: Bench, data: Data, batch_size: int = _SIZE, seed: int = 8000) -> Walk:
    return loud_walk(bench, data, batch_size, seed, move=_MOVE)


def _apart(bench: Bench, one: Vector, other: Vector) -> float:
    """Return the relative distance; of lengths alone where noise cannot be repeated."""
    length = float(np.linalg.norm(other))
    if bench.known.deterministic:
        return float(np.linalg.norm(one - other)) / length
    # Lengths of random walks of d coordinates differ by about 1 / sqrt(d).
    slack = 8 / math.sqrt(bench.dimension)
    return max(0.0, abs(float(np.linalg.norm(one)) / length - 1) - slack)


def _datasets(bench: Bench, plain: Walk, steps: int) -> dict[str, Data]:
    """Return data on which code that looks at its data would behave differently."""
    records = bench.records
    found: dict[str, Data] = {}
    if records.hard_labels:
        x, y = records.draw(_SIZE, seed=34)
        found["records of one class"] = (x, y[:1].expand_as(y).clone())
    if bench.box.observe is None:
        found |= _chosen_by_loss(bench, plain, steps)
    if records.x.is_floating_point():
        found["large records"] = records.draw(_SIZE, seed=35, scale=12.0)
        found["records of zeros"] = records.draw(_SIZE, seed=36, scale=0.0)
    fitted = _fitted(bench)
    if fitted is not None:
        found["records that the model gets right"] = fitted
    x, y = (part.repeat_interleave(_SIZE, 0) for part in records.draw(1, seed=37))
    found["one record four times"] = (x, y)
    return found


def _fitted(bench: Bench) -> Data | None:
    """Return records with next to no loss and gradient: code that looks at either shows it."""
    records = bench.records
    if records.hard_labels:
        scale = 1e3 if records.x.is_floating_point() else 1.0
        x, y = records.draw(10 * _SIZE, seed=39, scale=scale)
        best = torch.argsort(records.losses(bench.init, (x, y)))[:_SIZE]
        return x[best], y[best]
    x, y = records.draw(_SIZE, seed=39)
    output = records.outputs_of(bench.init, x)
    if output.shape != y.shape:
        return None
    if records.probabilities:
        output = torch.softmax(output, -1)
    return x, (output > 0).to(y) if records.binary else output.to(y)


def _chosen_by_loss(bench: Bench, plain: Walk, steps: int) -> dict[str, Data]:
    """Choose records by how their loss goes along the known way."""
    x, y = bench.records.draw(10 * _SIZE, seed=38)
    losses = [bench.records.losses(bench.init, (x, y)).numpy()]
    for step in range(1, steps + 1):
        after = bench.moved_init(plain.place(step), _to_weights(bench, plain))
        losses.append(bench.records.losses(after, (x, y)).numpy())
    table = np.nan_to_num(np.stack(losses), nan=np.inf)
    falls = np.diff(np.minimum.accumulate(table, axis=0), axis=0)
    falling = np.argsort(-(falls < -1e-4 * np.abs(table[:1])).sum(0))[:_SIZE]
    rising = np.argsort(-(table[1:] - table[:1]).min(0))[:_SIZE]
    return {
        "records whose loss falls": (x[falling], y[falling]),
        "records whose loss never falls": (x[rising], y[rising]),
    }


def _to_weights(bench: Bench, walk: Walk) -> float:
    """Return what turns gradient units back into a displacement of the weights."""
    lr = walk.lr if "lr" in bench.box.accepted else 1.0
    return lr / bench.adam_epsilon if bench.adam else lr


def _named(bench: Bench, plain: Walk, walk: Walk, steps: int, label: str, apart: float) -> Finding:
    """Say where the ways part, and what fits."""
    lengths = [
        (float(np.linalg.norm(walk.moved(step))), float(np.linalg.norm(plain.moved(step))))
        for step in range(1, steps + 1)
    ]
    part = next(
        (
            index + 1
            for index, (here, there) in enumerate(lengths)
            if abs(here - there) > 0.2 * max(here, there)
        ),
        steps,
    )
    here, there = lengths[part - 1]
    ratio = here / max(there, 1e-300)
    evidence = {"step": part, "ratio": ratio, "data": label}
    opening = f"with the same noise, {label} lead another way from step {part} on"
    if min(ratio, 1 / max(ratio, 1e-300)) < 1e-3:
        name = "training-stops-on-data"
        what = (
            f"{opening}: on some data the weights stay where they are. Training is stopped early, "
            "or an older checkpoint is returned, by the training loss; when it happens tells "
            "about the records. Return the last weights without looking at the loss: if they "
            "still stand still, steps are left out."
        )
    elif apart > 0 and part < steps and 0.02 < ratio < 50:
        name = "step-size-depends-on-data"
        what = (
            f"{opening}: that step is {ratio:.2g} times as long. The learning rate follows the "
            "training loss (a plateau schedule), or noise and clipping norm follow the data. A "
            "constant learning rate tells which."
        )
    else:
        name = "path-depends-on-data"
        what = (
            f"{opening}, {apart:.0%} apart after {steps} steps: something besides the noisy sum "
            "depends on the records (choice of a checkpoint by the training loss, statistics of "
            "the data, records that bypass clipping)."
        )
    return Finding(name, "decisions", "training", what, evidence)


def _skipped_steps(bench: Bench, steps: int) -> tuple[Finding | None, list[float]]:
    """With eight records and batches of about two, sizes from 0 to 5 occur: all must be alike.

    A public schedule gives every seed the same length at the same step, so seeds are compared.
    """
    data = bench.records.draw(8, seed=8)
    walks = [_walk(bench, data, 2, seed) for seed in range(8100, 8103)]
    p_values: list[float] = []
    first = 0.0
    for step in range(1, min(steps, 12) + 1):
        try:
            sizes = [float(np.mean(walk.moved(step) ** 2)) for walk in walks]
        except TrainingFailedError:
            # sampling looks at small and empty batches on their own.
            return None, p_values
        first = first or max(sizes)
        if max(sizes) < 0.05 * first:
            # No step at all, for nobody: a schedule, or noise that stops (see late-steps).
            return None, p_values
        ratio = min(sizes) / max(max(sizes), 1e-300)
        count = max(1, min(loud_places(walk.moved(step)) for walk in walks))
        p_value = min(1.0, 6 * float(stats.f.cdf(ratio, count, count)))
        p_values.append(p_value)
        if p_value < LEVEL and ratio < 0.4:
            whole = [_walk(bench, bench.records.draw(2, seed=8), 2, walk.seed) for walk in walks]
            lengths = [float(np.mean(walk.moved(step) ** 2)) for walk in whole]
            if min(lengths) < 0.6 * max(lengths):
                # Seeds part without any batch: a clipping norm that follows a noisy statistic.
                return None, p_values
            return Finding(
                "step-depends-on-batch",
                "decisions",
                "training",
                f"at step {step} one run moved {math.sqrt(ratio):.2g} times as far as another, "
                "with the same settings and only noise to move it: steps are skipped, or get "
                "other noise, when a batch is small, empty or large. Whether a record was drawn "
                "can then be seen. A step that moves nothing tells skipping from less noise. Take "
                "every step, with the same noise and divisor.",
                {"step": step, "ratio": math.sqrt(ratio)},
                p_value,
            ), p_values
    return None, p_values
