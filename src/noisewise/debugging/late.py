"""`late-steps`: whether later steps have the noise, bound and batches of the first.

Noise that stops after ten steps, clipping that is switched off after a warm-up, a sigma that
decays and a sampler that repeats itself at the end of an epoch all look right at the first
step. Here single steps of long runs are read (`walk`):

* at steps up to hundreds, how loud the noise is and how much records count, each over what it
  was at the first step. A learning-rate schedule changes both alike; only their ratio matters,
  and it may fall no lower than the schedule of sigma that was declared;
* over stretches of a long run, whether their noise comes back (`recurrence`);
* at every one of the first steps of a sampled training, who was in the batch, what a record
  weighed, and whether noise repeats.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from noisewise.debugging.bench import SIGMA, Bench
from noisewise.debugging.every_step import parts_of_late_steps, suspicious_steps
from noisewise.debugging.findings import Finding, TestResult
from noisewise.debugging.first_steps import error_of, promised_at, repeats, trace
from noisewise.debugging.knowledge import Memory
from noisewise.debugging.late_sums import late_sums
from noisewise.debugging.recurrence import stretches
from noisewise.debugging.sampling_laws import Case
from noisewise.debugging.statistics import LEVEL, Vector, correlation, loud_places
from noisewise.debugging.trainer import Data
from noisewise.debugging.walk import Walk, loud_walk, silent_walk

__all__ = ["late_steps"]

_TITLE = "late steps are like the first"
# Smaller losses of noise are left to the error of the measurement.
_SCALE = 0.15


@dataclass(frozen=True)
class Look:
    """One step: noise and contributions over those of step 1, and how sure the noise is."""

    step: int
    noise: float
    signal: float
    promised: float
    p_value: float
    #: How much less noise is left to the error of what is known about momentum.
    slack: float = 0.0
    #: The multiplier where noise and contributions come from the same runs; read on suspicion.
    together: float = 0.0

    @property
    def multiplier(self) -> float:
        """The effective noise multiplier over the one that was promised for this step."""
        return self.noise / max(self.signal * self.promised, 1e-12)

    @property
    def accused(self) -> bool:
        """Whether there is too little noise, in each way of looking at it."""
        least = 1 - _SCALE - self.slack
        low = self.p_value < LEVEL and self.multiplier <= least
        # Two records also turn towards each other or away, which moves this one a little.
        return low and self.together <= least - 0.1


def late_steps(bench: Bench) -> TestResult:
    """`late-steps`: noise, bound, batches and divisor at late steps."""
    why = _why_not(bench)
    if why:
        return TestResult("late-steps", _TITLE, "skipped", why)
    case = Case()
    if bench.known.deterministic:
        looks, memory, noisy = _looks(bench, case)
    else:
        looks, memory, noisy = _grown(bench, case), Memory(), []
    if looks:
        last = looks[-1]
        case.seen.append(
            f"noise over contributions at steps {', '.join(str(k.step) for k in looks)}: "
            + ", ".join(f"{k.multiplier:.2f}" for k in looks)
            + f" of what step 1 had (noise {last.noise:.2f}, contributions {last.signal:.2f})"
        )
        if not case.findings:
            _multiplier_findings(case, looks)
    elif not case.findings:
        return TestResult("late-steps", _TITLE, "skipped", _mixed(bench))
    if noisy and not case.findings and not bench.known.unbounded:
        # Half of a stretch at least comes back with its twin, which so many numbers show.
        enough = noisy[: max(1, -(-450 // bench.dimension))]
        whole = len(looks) >= len(bench.effort.late_steps)
        for finding, p_value in stretches(enough, memory, bench.effort.late_steps[-1], whole):
            case.p_values.append(p_value)
            case.findings += [finding] if finding else []
    if not case.findings:
        trace(bench, case, memory)
    if not case.findings and looks and not bench.known.unbounded:
        late_sums(bench, case, memory, [look.step for look in looks])
    if any(f.evidence.get("correlation", 0.0) < 0 for f in case.findings):
        step = _pulled_back(bench, memory)
        if step:
            why = (
                f"at step {step} the weights are pulled back towards older ones (lookahead?), "
                "records and noise alike: that is post-processing, and steps cannot be told apart"
            )
            return TestResult("late-steps", _TITLE, "skipped", why)
    if noisy and len(looks) == 1 and not case.findings:
        # A step that is hardly late, and all others could not be read.
        return TestResult("late-steps", _TITLE, "skipped", _mixed(bench))
    status = "failed" if case.findings else "passed"
    summary = "; ".join(case.seen) or case.findings[0].sentence
    return TestResult(
        "late-steps", _TITLE, status, summary, tuple(case.p_values), tuple(case.findings)
    )


def _why_not(bench: Bench) -> str:
    """Say why late steps cannot be looked at, or nothing."""
    if "steps" not in bench.box.accepted:
        return "train takes no `steps`"
    if bench.correlated:
        return "noise is declared to be correlated between steps, so single steps tell nothing"
    if bench.known.mute:
        return "records contribute nothing at any C tried"
    if bench.known.decided_by_data:
        return "what a step does depends on the data (see decisions)"
    if bench.known.noise is not None and bench.known.noise.absent:
        return "there is no noise to look at (see noise)"
    return ""


def _mixed(bench: Bench) -> str:
    """Say why single steps could not be read."""
    if not bench.known.deterministic:
        return (
            "the same seed gives different noise, and steps count differently (momentum, Adam): "
            "let the noise follow the seed while the check runs"
        )
    return (
        "a run of t steps is not the beginning of one of t + 1, or what is returned mixes the "
        "steps: a learning rate planned from `steps` (cosine, linear decay: plan it for a fixed "
        "number of steps and stop earlier), momentum under a changing learning rate, or an average "
        "of weights that no constant decay explains"
    )


def _grown(bench: Bench, case: Case) -> list[Look]:
    """Read noise that no seed repeats from how fast the spread of the weights grows.

    Variances of independent steps add up, so what was added between two late steps is known, on
    average over them. Contributions repeat, and their mean over these steps is at most the root
    of their mean square: a schedule of the learning rate makes noise look larger, never smaller.
    """
    if bench.adam or bench.momentum or bench.known.memory != Memory() or bench.known.random:
        return []
    one, other = (bench.records.draw(1, seed=seed) for seed in (5, 15))
    walks = [loud_walk(bench, one, 1, 6000 + k) for k in range(max(4, -(-6000 // bench.dimension)))]
    silent = [silent_walk(bench, data, 1, 0) for data in (one, other)]

    def spread(step: int) -> tuple[float, int]:
        rows = np.concatenate([walk.place(step) for walk in walks])
        return float(np.mean(rows**2)), max(1, loud_places(rows))

    def count(start: int, end: int) -> float:
        return math.sqrt(
            sum(float(np.sum((walk.place(end) - walk.place(start)) ** 2)) for walk in silent)
        )

    base, unit = spread(1)[0], 1.0 if bench.known.unbounded else count(0, 1)
    if base == 0.0 or unit == 0.0:
        return []
    looks: list[Look] = []
    start, before = 1, base
    for step in bench.effort.late_steps:
        if step < 2 * start:
            # Too few steps beside those before: their share of the spread is lost in its error.
            continue
        now, places = spread(step)
        steps = step - start
        added = (now - before) / steps / base
        error = math.sqrt(2 / places) * (math.hypot(now, before) / steps / base + abs(added))
        signal = 1.0 if bench.known.unbounded else count(start, step) / steps / unit
        promised = math.sqrt(
            sum(promised_at(bench, s) ** 2 for s in range(start + 1, step + 1)) / steps
        )
        p_value = float(stats.norm.cdf((added - (signal * promised) ** 2) / error))
        case.p_values.append(p_value)
        # What cannot be told from nothing is nothing.
        noise = math.sqrt(added) if added > 4 * error else 0.0
        looks.append(Look(step, noise, signal, promised, p_value))
        start, before = step, now
    return looks


def _pulled_back(bench: Bench, memory: Memory) -> int:
    """Return a step at which records count much less than at the steps before and after it."""
    walk = silent_walk(bench, bench.records.draw(1, seed=5), 1, 0, memory=memory)
    first = walk.fresh(1)
    size = float(first @ first)
    if size == 0.0:
        return 0
    weights = [float(walk.fresh(step) @ first) / size for step in range(1, 34)]
    for step in range(2, 33):
        before, here, after = weights[step - 2 : step + 1]
        if here < 0.75 * min(before, after):
            return step
    return 0


def _looks(bench: Bench, case: Case) -> tuple[list[Look], Memory, list[Walk]]:
    one, other = (bench.records.draw(1, seed=seed) for seed in (5, 15))
    seeds = range(6000, 6000 + max(2, min(20, -(-900 // bench.dimension))))
    noisy = [loud_walk(bench, one, 1, seed) for seed in seeds]
    silent = [silent_walk(bench, data, 1, 0) for data in (one, other)]
    # What moves without any contribution is weight decay, with all that momentum makes of it.
    still = silent_walk(bench, one, 1, 0)
    still.clip *= 1e-9
    decays = bench.weight_decay > 0 and bench.box.observe is None
    memory = Memory()

    measured = bench.known.noise
    # Tensors may have noise of their own: without it, the loudest alone would be counted.
    gain = np.ones(bench.dimension) if measured is None else measured.gain
    gain = np.where(gain > 0, gain, 1.0)

    def loudness(step: int) -> Vector:
        return np.concatenate([walk.fresh(step) / gain for walk in noisy])

    def weight(step: int) -> float:
        # Random gradients say nothing here, nor do some that are too long already.
        if bench.known.random or bench.known.unbounded:
            return 1.0
        # Each is C times the learning rate, wherever its gradient turns to meanwhile.
        rest = still.fresh(step) if decays else 0.0
        return math.sqrt(sum(float(np.sum((walk.fresh(step) - rest) ** 2)) for walk in silent))

    first, unit = loudness(1), weight(1)
    base = float(np.mean(first**2))
    if base == 0.0 or unit == 0.0:
        return [], memory, noisy

    def look_at(step: int) -> Look:
        now = loudness(step)
        noise = math.sqrt(float(np.mean(now**2)) / base)
        signal = weight(step) / unit
        promised = promised_at(bench, step)
        expected = max((signal * promised) ** 2, 1e-300)
        # Both variances are estimated: their ratio follows Fisher's law.
        p_value = float(
            stats.f.cdf(noise**2 / expected, max(1, loud_places(now)), loud_places(first))
        )
        # An error of a hundredth in a momentum that was not declared adds up over the steps.
        declared = memory == Memory(bench.momentum, bench.momentum)
        slack = 0.0 if declared else min(0.4, 0.01 / (1 - memory.kept))
        look = Look(step, noise, signal, promised, p_value, slack)
        if look.accused and noise > 0.02:
            look = replace(look, together=_together(bench, one, other, memory, look))
        return look

    looks = []
    for step in _steps(bench, noisy[0], silent[0]):
        if _averaged(
            noisy, silent, step, reliable=not (bench.known.random or bench.known.unbounded)
        ):
            # Noise is averaged away and records are not: nothing is known about this step.
            return [], memory, noisy
        found = _memory(bench, case, noisy, step)
        if found is None:
            continue
        memory = found
        for walk in (*noisy, *silent, still):
            walk.memory = memory
        look = look_at(step)
        case.p_values.append(look.p_value)
        looks.append(look)
        if look.noise == 0.0 and look.signal < 1e-6:
            # A learning rate that is zero by schedule; decisions tells it from early stopping.
            looks.pop()
            break
    seen = [look.step for look in looks]
    if seen and not any(look.accused for look in looks) and not case.findings:
        for step in suspicious_steps(bench, noisy, silent, still if decays else None, memory):
            look = look_at(step)
            case.p_values.append(look.p_value)
            if look.accused:
                looks = sorted([*looks, look], key=lambda look: look.step)
                break
        else:
            reliable = not (bench.known.random or bench.known.unbounded)
            parts, p_values = parts_of_late_steps(bench, noisy, silent if reliable else [], seen)
            case.findings += parts
            case.p_values += p_values
    return looks, memory, noisy


def _steps(bench: Bench, noisy: Walk, silent: Walk) -> Iterator[int]:
    """Yield the steps to look at: a far one too, if a run or two say that it is unlike the first.

    Memory is known when the far step is asked for, since the steps before it have been looked at.
    """
    yield from bench.effort.late_steps
    far = bench.effort.far_step
    if not far:
        return

    last = bench.effort.late_steps[-1]

    def grown(walk: Walk, power: float) -> float:
        """Return what a step on the way to the far one adds, over what the first did."""
        first = max(float(np.linalg.norm(walk.fresh(1))), 1e-300)
        if bench.adam or bench.box.observe is not None or walk.memory != Memory():
            return float(np.linalg.norm(walk.fresh(far))) / first
        # All steps in between at the price of one run: independent noise grows like the root.
        between = float(np.linalg.norm(walk.place(far) - walk.place(last)))
        return float(between / (far - last) ** power / first)

    reliable = not (bench.known.random or bench.known.unbounded)
    noise, signal = grown(noisy, 0.5), grown(silent, 1.0) if reliable else 1.0
    if noise < (1 - _SCALE) * signal * promised_at(bench, far):
        yield far


def _averaged(noisy: list[Walk], silent: list[Walk], step: int, reliable: bool) -> bool:
    """Whether steps are alike, and shorter than the first, in noise more than in contributions.

    That is a mean of weights that begins late. Noise that is repeated is as large as it was;
    noise that is made smaller is not alike; a learning rate that falls makes both smaller.
    """
    if not reliable or noisy[0].bench.box.observe is not None:
        return False

    def length(walks: list[Walk], at: int) -> float:
        return math.sqrt(sum(float(np.sum(walk.moved(at) ** 2)) for walk in walks))

    signal = length(silent, step) / max(length(silent, 1), 1e-300)
    noise = length(noisy, step) / max(length(noisy, 1), 1e-300)
    if not 0.02 < noise < 0.85 * signal < 0.85**2:
        return False
    here, before = (np.concatenate([walk.moved(at) for walk in noisy]) for at in (step, step - 1))
    value, p_value = correlation(here, before)
    return p_value < LEVEL and value > 0.3


def _together(bench: Bench, one: Data, other: Data, memory: Memory, look: Look) -> float:
    """Return noise over contributions, over that of step 1, from pairs of runs with one seed.

    A clipping norm that follows a noisy statistic takes another way without noise. Two runs
    with the same noise take the same way: what differs is what their records contribute.
    """
    lr = bench.rate(bench.usable_clip * SIGMA * bench.dimension**0.5, 1e-3)
    pair = [
        Walk(bench, data, bench.usable_clip, SIGMA, 1, lr, 6500, memory) for data in (one, other)
    ]

    def ratio(step: int) -> float:
        here, there = (walk.fresh(step) for walk in pair)
        apart = float(np.linalg.norm(here - there))
        return float(np.linalg.norm(here)) / apart if apart > 0 else 0.0

    first = ratio(1)
    return ratio(look.step) / first / look.promised if first > 0 and look.promised > 0 else 0.0


def _memory(bench: Bench, case: Case, walks: list[Walk], step: int) -> Memory | None:
    """Return what comes back of a step: declared, or seen in signal *and* noise.

    ``None`` where momentum and a changing learning rate cannot be told apart at this step.
    Noise that comes back although nothing else does is a finding.
    """
    if bench.adam or bench.box.observe is not None:
        return Memory()
    here = np.concatenate([walk.moved(step) for walk in walks])
    before = np.concatenate([walk.moved(step - 1) for walk in walks])
    seen = float(here @ before) / max(float(before @ before), 1e-300)
    candidates = (Memory(bench.momentum, bench.momentum), bench.known.memory, Memory())
    for candidate in candidates:
        if abs(seen - candidate.correlation(step)) < error_of(here.size):
            return candidate
    if not bench.known.steady:
        # What is returned mixes the steps in a way of its own, as means of all weights do.
        return None
    first = np.concatenate([walk.moved(1) for walk in walks])
    if float(np.mean(here**2)) < 0.05 * float(np.mean(first**2)):
        # Next to no noise: what is alike at both steps is what records contribute.
        return Memory()
    value, p_value = correlation(here, before)
    case.p_values.append(p_value)
    if candidates[0] == candidates[1] == Memory() and p_value < LEVEL and value > 0.3:
        case.findings.append(repeats(step - 1, step, value, p_value))
    return None


def _multiplier_findings(case: Case, looks: list[Look]) -> None:
    good = 1
    for look in looks:
        if not look.accused:
            good = look.step
            continue
        where = f"at step {look.step} (step {good} was still right)"
        evidence = {"step": look.step, "noise": look.noise, "contributions": look.signal}
        declared = "" if look.promised == 1 else " than the schedule that was declared"
        if look.noise < 0.02:
            name, what = "noise-stops", f"no noise is added any more {where}."
        elif look.signal < 1 + _SCALE:
            name = "noise-decays"
            what = (
                f"{where} the noise is {look.noise:.2f} times that of step 1 while records count "
                f"{look.signal:.2f} times: less noise{declared}, which the accountant does not "
                "know of. If sigma follows a public schedule that was accounted for, declare it "
                "(noise_schedule=)."
            )
        elif look.noise > 1 - _SCALE:
            name = "clipping-stops"
            what = (
                f"{where} records count {look.signal:.2f} times as much as at step 1 with the "
                "same noise: clipping is switched off or loosened, or gradients of earlier steps "
                "are used again. Train on one record for that many steps: with clipping its "
                "steps are no longer than lr C."
            )
        else:
            name = "noise-decays"
            what = (
                f"{where} noise is {look.noise:.2f} and contributions are {look.signal:.2f} times "
                "those of step 1: sigma falls, or the bound on a record grows. Runs with sigma = 0 "
                "and with C far below all gradients tell which."
            )
        component = "clipping" if name == "clipping-stops" else "noise"
        case.findings.append(Finding(name, "late-steps", component, what, evidence, look.p_value))
        return
