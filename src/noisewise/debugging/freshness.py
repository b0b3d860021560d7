"""Whether noise is fresh each time, and added once however a batch is cut."""

from __future__ import annotations

import math

import numpy as np

from noisewise.debugging.bench import SIGMA, Bench
from noisewise.debugging.findings import Finding, TestResult
from noisewise.debugging.knowledge import Memory
from noisewise.debugging.noise_readings import SCALE, Measurement, measure, reading
from noisewise.debugging.recurrence import same_numbers
from noisewise.debugging.statistics import LEVEL, Vector, correlation, variance_ratio
from noisewise.debugging.trainer import TrainingFailedError

__all__ = ["between_tensors", "freshness", "invariance"]


def freshness(bench: Bench) -> TestResult:
    """`freshness`: noise must be independent between steps, tensors, coordinates and seeds."""
    title = "noise is fresh for each step, tensor and seed"
    measured = measure(bench)
    if measured.absent:
        return TestResult("freshness", title, "skipped", "there is no noise to look at (see noise)")
    findings: list[Finding] = []
    p_values: list[float] = []
    for finding, p_value in [
        *between_tensors(bench, measured.readings["base"].rows),
        *_between_seeds(bench, measured),
    ]:
        p_values.append(p_value)
        findings += [finding] if finding else []
    if not findings:
        for finding, p_value in same_numbers(bench, measured):
            p_values.append(p_value)
            findings += [finding] if finding else []
    summary = "tensors and seeds independent" if not findings else findings[0].sentence
    if "steps" in bench.box.accepted and not bench.known.incomplete and _steady(bench):
        finding, p_value, seen = _between_steps(bench, measured)
        p_values.append(p_value)
        findings += [finding] if finding else []
        summary = f"{summary}; {seen}"
    status = "failed" if findings else "passed"
    return TestResult("freshness", title, status, summary, tuple(p_values), tuple(findings[:3]))


def _steady(bench: Bench) -> bool:
    """Whether three steps can be added up; momentum under a changing rate is left to late-steps."""
    if bench.box.observe is not None or bench.correlated:
        return False
    return bench.momentum == 0.0 or bench.known.memory != Memory()


def invariance(bench: Bench) -> TestResult:
    """`invariance`: options that only say how to compute must change neither signal nor noise."""
    title = "same result for every micro-batch size, number of workers, ..."
    if not bench.options:
        return TestResult(
            "invariance",
            title,
            "skipped",
            "no options given; e.g. options={'micro_batch_size': (1, 4), 'world_size': (1, 2)} "
            "(a fixed micro-batch size is judged by noise and separation at several batch sizes)",
        )
    clip, batch_size = bench.usable_clip, 16
    data = bench.records.draw(batch_size, seed=5)
    lr = bench.rate(clip)
    findings: list[Finding] = []
    p_values: list[float] = []
    seen = []
    for name, choices in bench.options.items():
        signals = []
        for choice in choices:
            option = {name: choice}
            signals.append(bench.update(data, clip=clip, lr=lr, options=option))
            rows = bench.noise(
                clip=clip,
                sigma=SIGMA,
                batch_size=batch_size,
                seeds=max(2, bench.seeds() // 3),
                options=option,
            )
            live = measure(bench).live
            seen_here = reading(f"{name}={choice}", clip, SIGMA, batch_size, rows, live)
            reference = measure(bench).readings["large batch"].factor
            usual = 1.0 if abs(reference - 1) < 3 * SCALE else reference
            p_value = variance_ratio(
                float(np.sum(rows**2)), (usual * clip * SIGMA / batch_size) ** 2, seen_here.count
            )
            p_values.append(p_value)
            seen.append(f"{seen_here.label}: noise {seen_here.factor:.2f}x")
            if p_value < LEVEL and abs(seen_here.factor / usual - 1) > 2 * SCALE:
                findings.append(
                    Finding(
                        f"noise-depends-on-{name.replace('_', '-')}",
                        "invariance",
                        "noise",
                        f"with {name} = {choice} the noise is {seen_here.factor:.2f} times the "
                        f"nominal one: it must be added once per step for the whole batch.",
                        {name: choice, "factor": seen_here.factor},
                        p_value,
                    )
                )
        spread = max(float(np.linalg.norm(s - signals[0])) for s in signals)
        if spread > 1e-2 * float(np.linalg.norm(signals[0])):
            findings.append(
                Finding(
                    f"update-depends-on-{name.replace('_', '-')}",
                    "invariance",
                    "clipping",
                    f"without noise, the update changes by {spread / clip:.2g} C when {name} "
                    f"changes: how a batch is cut into pieces must not matter.",
                )
            )
    status = "failed" if findings else "passed"
    return TestResult(
        "invariance", title, status, "; ".join(seen), tuple(p_values), tuple(findings)
    )


def between_tensors(bench: Bench, rows: Vector) -> list[tuple[Finding | None, float]]:
    """Compare the noise of tensors, and of neighbouring coordinates, one row per run or step."""
    parts = list(bench.box.slices.items())
    pairs = [(a, b) for i, a in enumerate(parts) for b in parts[i + 1 :]]
    pairs.sort(
        key=lambda pair: pair[0][1].stop - pair[0][1].start != pair[1][1].stop - pair[1][1].start
    )
    results: list[tuple[Finding | None, float]] = []
    for (first, here), (second, there) in pairs[:150]:
        size = min(here.stop - here.start, there.stop - there.start)
        left = rows[:, here.start : here.start + size].ravel()
        right = rows[:, there.start : there.start + size].ravel()
        value, p_value = correlation(left, right)
        finding = None
        if p_value < LEVEL and abs(value) > 0.1:
            finding = Finding(
                "noise-repeats-across-tensors",
                "freshness",
                "randomness",
                f"the noise of {second} repeats that of {first} (correlation {value:.2f}): the "
                f"generator is seeded again for each tensor, so differences cancel the noise.",
                {"correlation": value},
                p_value,
            )
        results.append((finding, p_value))
    free = np.ones(rows.shape[1], dtype=bool)
    for name, part in parts:
        free[part] = not _centred(bench, name, part, rows)
    left, right = rows[:, :-1], rows[:, 1:]
    both = free[:-1] & free[1:]
    value, p_value = correlation(left[:, both].ravel(), right[:, both].ravel())
    finding = None
    if p_value < LEVEL and abs(value) > 0.1:
        finding = Finding(
            "noise-correlated",
            "freshness",
            "randomness",
            f"neighbouring coordinates carry the same noise (correlation {value:.2f}).",
            {"correlation": value},
            p_value,
        )
    return [*results, (finding, p_value)]


def _centred(bench: Bench, name: str, part: slice, rows: Vector) -> bool:
    """Whether sums over the inputs of a tensor vanish, in noise and in contributions alike.

    That is a noisy gradient whose mean is subtracted afterwards: neighbours are related by it, and
    what records contribute is projected by the same. Noise alone is no post-processing.
    """
    shape = tuple(bench.init[name].shape)
    seen = [canary.row[part] for canary in bench.known.canaries]
    if len(shape) < 2 or not seen:
        return False

    def vanish(values: Vector, axes: tuple[int, ...]) -> bool:
        whole = values.reshape(-1, *shape)
        sums = whole.sum(axis=axes)
        return float(np.linalg.norm(sums)) <= 1e-3 * float(np.linalg.norm(whole))

    choices = {(len(shape),), tuple(range(2, len(shape) + 1))}
    return any(vanish(rows[:, part], axes) and vanish(np.stack(seen), axes) for axes in choices)


def _between_seeds(bench: Bench, measured: Measurement) -> list[tuple[Finding | None, float]]:
    # Every setting has seeds of its own, so seeds that differ by thousands are among them.
    plain = [r.rows for r in measured.readings.values() if r.label != "batch < dataset"]
    # Tensors may have noise of their own: without it, the loudest alone would be compared.
    gain = np.where(measured.gain > 0, measured.gain, 1.0)
    rows = np.concatenate([row / gain for row in (*plain, *_wrapped(bench))])
    if len(rows) < 2 or bench.known.same_noise:
        return []
    # All pairs: a generator with few states gives some runs the noise of others.
    pairs = [(i, j) for i in range(len(rows)) for j in range(i)]
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    alike = np.abs(np.tril((rows / lengths) @ (rows / lengths).T, -1))
    first, second = np.unravel_index(int(np.argmax(alike)), alike.shape)
    value, p_value = correlation(rows[first], rows[second])
    p_value = min(1.0, len(pairs) * p_value)
    finding = None
    if p_value < LEVEL and abs(value) > 0.1:
        finding = Finding(
            "noise-same-for-every-seed",
            "freshness",
            "randomness",
            f"two runs with different seeds share their noise (correlation {value:.2f}): the "
            "noise is a constant that anybody can subtract.",
            {"correlation": value},
            p_value,
        )
    return [(finding, p_value)]


def _wrapped(bench: Bench) -> list[Vector]:
    """Return noise of seeds that are zero if a seed has 8 to 24 bits, or three digits.

    The last is the one before it where a seed is kept in single precision.
    """
    rows = []
    for seed in (256, 1024, 10_000, 65_536, 2**20, 2**24, 2**24 + 1):
        try:
            rows.append(
                bench.noise(
                    clip=bench.usable_clip, sigma=SIGMA, batch_size=4, seeds=1, first_seed=seed
                )
            )
        except TrainingFailedError:
            # Seeds this large are our wish alone.
            break
    return rows


def _as_fresh_as(one: Vector, rows: Vector, steps: int) -> bool:
    """Whether the steps after the first added noise that is as large, and nothing of the first's.

    Then it is the records that count less in later steps, as where a weight of each follows what
    was released before.
    """
    size = float(np.sum(one**2))
    again = float(np.sum(one * rows)) / size
    rest = float(np.sum((rows - again * one) ** 2)) / size
    return abs(again - 1) < 0.15 and abs(rest / (steps - 1) - 1) < 0.2


def _shared_by_runs(rows: Vector, measured: Measurement) -> Finding | None:
    """Compare what several steps added in runs of neighbouring seeds, pair by pair."""
    rows = rows / np.where(measured.gain > 0, measured.gain, 1.0)
    pairs = [(i, j) for i in range(len(rows)) for j in range(i)]
    found = [correlation(rows[i], rows[j]) for i, j in pairs]
    value, p_value = max(found, key=lambda pair: abs(pair[0]), default=(0.0, 1.0))
    p_value = min(1.0, len(pairs) * p_value)
    if p_value >= LEVEL or abs(value) < 0.25:
        return None
    return Finding(
        "noise-same-for-every-seed",
        "freshness",
        "randomness",
        f"runs with neighbouring seeds share noise over several steps (correlation {value:.2f}), "
        "although their first steps do not: the generator of a step seems to be seeded by the "
        "run's seed plus the step, so that two runs can be subtracted from each other.",
        {"correlation": value},
        p_value,
    )


def _between_steps(bench: Bench, measured: Measurement) -> tuple[Finding | None, float, str]:
    """Compare the variance after three steps with what independent noise would give.

    How strongly each step counts (momentum, averaging) is known from runs without noise
    (`replay.response`): noise of variance v per step gives v times the sum of the squares.
    The weights move little, so that the gradient stays what it was.
    """
    steps, clip, batch_size = 3, bench.usable_clip, 4
    response = bench.adam_response(steps) if bench.adam else bench.known.response
    seeds = max(2, bench.seeds() // 2)
    rows = bench.noise(
        clip=clip,
        sigma=SIGMA,
        batch_size=batch_size,
        seeds=seeds,
        first_seed=5000,
        steps=steps,
        move=2e-3,
    )
    one = measured.readings["base"].factor * clip * SIGMA / batch_size
    expected = one**2 * float(np.sum(response**2))
    squares, count = float(np.sum(rows**2)), len(rows) * int(measured.live.sum())
    ratio = squares / count / one**2 if one > 0 else math.inf
    shared = _shared_by_runs(rows, measured)
    if shared is not None:
        return shared, shared.p_value or 0.0, shared.sentence
    p_value = variance_ratio(squares, expected, count)
    seen = (
        f"variance after {steps} steps {ratio:.2f}x one step (expected {np.sum(response**2):.2f}x)"
    )
    # The single-step deviation is itself estimated; 15 % is more than its error.
    if p_value >= LEVEL or abs(ratio / float(np.sum(response**2)) - 1) < 0.15:
        return None, p_value, seen
    if ratio > float(np.sum(response**2)) and float(np.max(response)) < 1.02:
        settings = {"clip": clip, "sigma": SIGMA, "batch_size": batch_size, "seeds": seeds}
        alone = bench.noise(**settings, first_seed=5000, move=2e-3)  # type: ignore[arg-type]
        if _as_fresh_as(alone, rows, steps):
            return None, 1.0, f"{seen}; each step has noise of its own, and records count less"
    if abs(ratio / steps - 1) < 0.2 and float(np.sum(response**2)) > 1.3 * steps:
        name, why = (
            "gradients-reused-without-noise",
            ("earlier gradients are used again without their noise (zero_grad forgotten?)"),
        )
    elif abs(ratio / float(np.sum(response)) ** 2 - 1) < 0.15:
        name, why = "noise-repeats-every-step", "every step adds the same noise again"
    elif ratio < 1.3 * float(np.max(response)) ** 2 and ratio < float(np.sum(response**2)):
        name, why = "noise-lost-after-first-step", "only one of the steps adds noise"
    else:
        name, why = (
            "noise-and-signal-disagree-over-steps",
            (
                "gradients of earlier steps are used again without their noise, or noise is "
                "correlated between steps; runs at sigma = 0 and at tiny C tell which"
            ),
        )
    sentence = f"{why}: {seen}."
    return (
        Finding(name, "freshness", "randomness", sentence, {"ratio": ratio}, p_value),
        p_value,
        seen,
    )
