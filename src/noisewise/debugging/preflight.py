"""P: whether the training can be tested, what kind it is, and at which settings it can be read.

Nothing here rests on a failure that the check itself caused: every argument is handed over in
every run, a clipping norm is looked for at which data change something, a refused noise
multiplier of zero is replaced by a tiny one, and an error on a single record counts against the
training only if the same call works with four.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from noisewise.debugging import replay, sensitivity
from noisewise.debugging.bench import LOUD, SIGMA, Bench
from noisewise.debugging.findings import Finding, TestResult
from noisewise.debugging.noise_readings import SCALE
from noisewise.debugging.rounding import rounded_afterwards
from noisewise.debugging.statistics import LEVEL, Vector, loud_places, variance_ratio
from noisewise.debugging.trainer import TrainingFailedError

__all__ = ["preflight"]

_TITLE = "preflight: repeatable, and every argument matters"
_TINY_NOISE = 1e-12


@dataclass
class _Probe:
    """One step on four records, with some of the settings changed."""

    bench: Bench
    clip: float
    lr: float

    def at(self, **changed: Any) -> Vector:
        given: dict[str, Any] = {
            "clip": self.clip,
            "noise_multiplier": 0.0,
            "batch_size": 4,
            "seed": 0,
            "steps": 1,
            "lr": self.lr,
            "data": self.bench.records.draw(4, seed=5),
            "init": self.bench.init,
        }
        return self.bench.box.run(**{**given, **changed}).moved


def preflight(bench: Bench) -> TestResult:
    """Check that the training can be tested at all, and learn what kind it is."""
    _accept_no_noise(bench)
    _inside_of_a_set(bench)
    _short_enough(bench)
    probe = _Probe(bench, bench.clip, bench.rate(bench.clip, 0.1))
    findings = _data_matter(probe)
    if bench.known.hopeless:
        return _result(bench, findings)
    base = probe.at()
    _learn_randomness(probe, base, findings)
    findings += _ignored(probe, base)
    if "noise_multiplier" in bench.box.accepted:
        findings += _learn_noise(probe, base)
    findings += _prepare(bench)
    return _result(bench, findings)


def _result(bench: Bench, findings: list[Finding]) -> TestResult:
    summary = "; ".join(f.sentence for f in findings) or "repeatable; data, init, lr, steps matter"
    if bench.known.obstacle and not findings:
        summary = bench.known.obstacle
    status = "failed" if findings else "passed"
    return TestResult("preflight", _TITLE, status, summary, (), tuple(findings))


def _accept_no_noise(bench: Bench) -> None:
    """Some code refuses a noise multiplier of zero; a tiny one is as good."""
    probe = _Probe(bench, bench.clip, bench.rate(bench.clip, 0.1))
    try:
        probe.at()
    except TrainingFailedError as error:
        if "noise_multiplier" not in bench.box.accepted:
            raise
        bench.box.zero_noise = _TINY_NOISE
        try:
            probe.at()
        except TrainingFailedError:
            raise error from None
        bench.notes.append("a noise multiplier of zero is refused; a tiny one is used instead")


def _inside_of_a_set(bench: Bench) -> None:
    """Weights that are projected after each step are moved inside the set, where steps show.

    A projection shows in a run whose learning rate is next to nothing: the weights jump.
    """
    if "lr" not in bench.box.accepted or bench.box.observe is not None:
        return
    rate = bench.rate(bench.clip, 1e-9)
    try:
        jump = _Probe(bench, bench.clip, rate).at()
    except TrainingFailedError:
        # A learning rate this small is our wish alone.
        return
    size = float(np.linalg.norm(jump))
    if not np.isfinite(size) or size < 1e-3 * bench.size:
        return
    first = bench.init
    bench.start_at(bench.moved_init(jump, 1.0))
    bench.start_at(dict(bench.scaled_init(0.5)))
    again = _Probe(bench, bench.clip, bench.rate(bench.clip, 1e-9)).at()
    if np.linalg.norm(again) > 1e-4 * bench.size:
        bench.start_at(first)
        return
    bench.reach = 0.1
    bench.notes.append(
        "weights are projected after each step (post-processing); the tests start inside the set "
        "and take small steps, so that the projection does nothing"
    )


def _short_enough(bench: Bench) -> None:
    """Take shorter steps where twice the learning rate does not lead twice as far.

    Weights may lie inside a set at first and be held at its border after a long step. Where no
    step is short enough, something else is at work, and nothing is changed.
    """
    if not {"lr", "noise_multiplier"} <= bench.box.accepted or bench.box.observe is not None:
        return
    length = bench.clip * SIGMA / 4 * bench.dimension**0.5
    first, straight = bench.reach, False
    while not straight and bench.reach > 1e-3 * first:
        lr = bench.rate(length, 1.0)
        try:
            far, half = (
                _Probe(bench, bench.clip, rate).at(noise_multiplier=SIGMA) for rate in (lr, lr / 2)
            )
        except TrainingFailedError:
            break
        bent = float(np.linalg.norm(far - 2 * half))
        straight = bent <= 1e-3 * float(np.linalg.norm(far))
        bench.reach *= 1.0 if straight else 0.1
    if not straight:
        bench.reach = first
    elif bench.reach < first:
        bench.notes.append(
            "long steps are cut off at the border of a set of weights (post-processing); the tests "
            "take steps that stay inside"
        )


def _data_matter(probe: _Probe) -> list[Finding]:
    """Choose a clipping norm at which two datasets end apart: rules may drop long gradients."""
    bench = probe.bench
    large = 1e3 * bench.clip if bench.adam else 3.0 * bench.norm
    still = True
    for clip in (bench.clip, large, 10 * large):
        probe.clip = clip
        one, other = probe.at(), probe.at(data=bench.records.draw(4, seed=6))
        still = still and not np.any(one)
        if np.linalg.norm(one - other) > 1e-7 * bench.size:
            return []
    bench.known.hopeless = True
    later = _first_that_moves(probe) if still else 0
    if later:
        bench.known.obstacle = (
            f"the weights stay where they were until step {later}: `steps` seems to count batches "
            f"of which several make an update. Hand over `steps` as updates, {later} batches each"
        )
        return _several_batches(probe, later)
    if still:
        sentence = "one step without noise leaves the weights where they were."
        return [Finding("nothing-trained", "preflight", "training", sentence)]
    sentence = "`data` has no effect: changing it leaves the same weights."
    return [Finding("data-ignored", "preflight", "interface", sentence)]


def _first_that_moves(probe: _Probe) -> int:
    """Return after how many steps the weights have moved at all; 0 for not within sixteen."""
    if "steps" not in probe.bench.box.accepted:
        return 0
    return next((steps for steps in range(2, 17) if np.any(probe.at(steps=steps))), 0)


def _several_batches(probe: _Probe, count: int) -> list[Finding]:
    """Hold one update of several batches to what the accountant says of as many steps.

    A record that is in all of them may be k steps' worth of visible: the square of what it
    contributes over the noise must stay below k / sigma^2.
    """
    bench = probe.bench
    if "noise_multiplier" not in bench.box.accepted or bench.adam or bench.box.observe is not None:
        return []
    probe.clip = bench.clip
    one = {"data": bench.records.draw(1, seed=5), "batch_size": 1, "steps": count}
    silent = probe.at(**one)
    again = probe.at(**one, seed=1)
    signal = float(np.linalg.norm(silent))
    if not np.isfinite(signal) or signal == 0.0 or not np.allclose(silent, again, rtol=1e-3):
        return []
    rows = np.stack(
        [probe.at(**one, noise_multiplier=SIGMA, seed=40 + k) - silent for k in range(4)]
    )
    places = loud_places(rows.ravel())
    if not np.isfinite(rows).all() or places < 30:
        return []
    least = signal**2 * SIGMA**2 / count
    squares = float(np.sum(rows**2))
    multiplier = math.sqrt(squares / places / least)
    p_value = variance_ratio(squares, least, places)
    if p_value >= LEVEL or multiplier > 1 - SCALE:
        return []
    return [
        Finding(
            "noise-once-for-several-batches",
            "preflight",
            "noise",
            f"{count} batches make an update, and its noise is {multiplier:.2f} times what {count} "
            "steps of this noise multiplier need for what a record in all of them contributes: "
            "every batch needs its noise, or the noise of an update must cover all its batches.",
            {"batches": count, "multiplier": multiplier},
            p_value,
        )
    ]


def _learn_randomness(probe: _Probe, base: Vector, findings: list[Finding]) -> None:
    bench = probe.bench
    spread = float(np.linalg.norm(probe.at(seed=1) - base)) / float(np.linalg.norm(base))
    if spread <= 1e-3:
        return
    if "noise_multiplier" not in bench.box.accepted:
        bench.known.noise_always_on = True
        bench.known.obstacle = (
            f"two runs that differ only in their seed end apart ({spread:.1%} of an update), and "
            "without `noise_multiplier` the noise cannot be switched off: hand it to the training"
        )
        return
    if _one_record_repeats(bench):
        bench.known.incomplete = True
        findings.append(
            Finding(
                "full-batch-incomplete",
                "preflight",
                "sampling",
                "when the batch size equals the number of records, seeds give different updates "
                "although a single record gives always the same: the sampler leaves records out "
                "or takes them twice (sampling with replacement?).",
            )
        )
        return
    bench.known.random = True
    bench.known.along_one = _along_one_direction(probe)
    bench.notes.append(
        f"gradients are random even without noise (changes of {spread:.0%} between seeds: dropout "
        "or augmentation); the tests fix the seed, replace records and drown gradients in noise "
        "instead of comparing updates"
    )


def _along_one_direction(probe: _Probe) -> bool:
    """Whether updates of one seed are all parallel, and those of two seeds are not."""
    bench = probe.bench
    if bench.dimension < 16:
        return False
    rows = []
    for seed in (21, 22, 23):
        one = [
            probe.at(seed=seed),
            probe.at(seed=seed, data=bench.records.draw(4, seed=6)),
            probe.at(seed=seed, noise_multiplier=SIGMA),
        ]
        if not all(np.isfinite(row).all() and np.any(row) for row in one):
            return False
        rows += [row / np.linalg.norm(row) for row in one]
    cosines = np.abs(np.stack(rows) @ np.stack(rows).T)
    same = np.kron(np.eye(3), np.ones((3, 3))) > 0
    return bool(np.all(cosines[same] > 0.999) and np.all(cosines[~same] < 0.9))


def _one_record_repeats(bench: Bench) -> bool:
    """Whether one record alone always contributes the same: then the sampler is what varies."""
    data = bench.records.draw(1, seed=5)
    lr = bench.rate(bench.clip, 0.1)
    alone = [
        bench.update(data, clip=bench.clip, lr=lr, batch_size=1, seed=seed) for seed in range(4)
    ]
    size = float(np.linalg.norm(alone[0]))
    return all(float(np.linalg.norm(row - alone[0])) <= 1e-3 * size for row in alone[1:])


def _ignored(probe: _Probe, base: Vector) -> list[Finding]:
    """Name arguments without effect. They are still handed over, in case they have one later."""
    bench = probe.bench
    ignored = []
    accepted = bench.box.accepted
    if bench.box.observe is None:
        if "steps" in accepted and _unmoved(probe):
            ignored.append("steps")
        if "lr" in accepted and _same(probe, base, lr=2 * probe.lr):
            ignored.append("lr")
        other = probe.at(init=bench.scaled_init(1.1))
        if np.linalg.norm(other - base) > 0.05 * bench.size + 10 * np.linalg.norm(base):
            ignored.append("init")
            bench.known.hopeless = True
    return [
        Finding(
            f"{name}-ignored",
            "preflight",
            "interface",
            f"`{name}` has no effect: changing it leaves the same weights.",
        )
        for name in ignored
    ]


def _same(probe: _Probe, base: Vector, **changed: Any) -> bool:
    """Whether a change has no effect; a run that fails says nothing, since it was our wish."""
    try:
        return bool(np.allclose(probe.at(**changed), base, rtol=1e-3, atol=0))
    except TrainingFailedError:
        return False


def _unmoved(probe: _Probe) -> bool:
    """Whether a second step changes nothing; some rules stand still after a long first one."""
    for lr in (probe.lr, probe.lr / 1000):
        try:
            if not np.array_equal(probe.at(steps=2, lr=lr), probe.at(lr=lr)):
                return False
        except TrainingFailedError:
            # Steps that are too long for the optimizer, and a model that overflows.
            return False
    return True


def _learn_noise(probe: _Probe, base: Vector) -> list[Finding]:
    bench = probe.bench
    noisy, repeat = (probe.at(noise_multiplier=SIGMA) for _ in range(2))
    bench.known.deterministic = bool(np.array_equal(noisy, repeat))
    if not bench.known.deterministic:
        bench.notes.append("the same seed gives different noise (a secure generator?)")
    elif np.array_equal(noisy, probe.at(noise_multiplier=SIGMA, seed=1)) and not np.array_equal(
        noisy, base
    ):
        bench.known.same_noise = True
        return [
            Finding(
                "noise-same-for-every-seed",
                "preflight",
                "randomness",
                "two runs with different seeds add the same noise: it is a constant that anybody "
                "can subtract.",
            )
        ]
    shape = _post_processing(probe)
    if shape:
        bench.known.obstacle = (
            f"{shape}: post-processing, which is harmless, hides what the step released. Let "
            "train return the noisy gradient before it as well, and say so with observe="
        )
        bench.notes.append(bench.known.obstacle)
    return []


def _post_processing(probe: _Probe) -> str:
    """Recognise updates that keep only signs, or only a direction, of the noisy gradient.

    Noise makes the signature: after it, no two updates have the same length or equal entries
    unless something made them so.
    """
    bench = probe.bench
    rows = [
        probe.at(noise_multiplier=sigma, seed=seed)
        for sigma, seed in ((SIGMA, 11), (SIGMA, 12), (10 * SIGMA, 13))
    ]
    if not all(np.isfinite(row).all() and np.any(row) for row in rows):
        return ""
    apart = float(np.linalg.norm(rows[0] - rows[2])) / float(np.linalg.norm(rows[0]))
    if apart < 0.1 or bench.adam or bench.dimension < 16:
        return ""
    if _few_digits(bench, rows):
        return (
            "the weights themselves are rounded to few digits after each step (bfloat16, float16), "
            "so that an update cannot be read off them"
        )
    if rounded_afterwards(bench, partial(_to_all_digits, probe)):
        return "the noisy gradient is rounded to few digits or levels after the noise"
    if _takes_turns(probe):
        return "steps move other weights by turns, so that the first step tells nothing of the next"
    for row in rows:
        sizes = np.abs(row[row != 0])
        if np.mean(np.abs(sizes / np.median(sizes) - 1) < 1e-2) < 0.98:
            break
    else:
        return (
            "all entries of an update are equally large: the optimizer is Adam (say so: "
            'optimizer="adam", --optimizer adam), or only signs of the noisy gradient are used'
        )
    if _without_scale(probe, rows[2]):
        return (
            "three times the noise, or three times C, moves the weights no further: an optimizer "
            "divides by what it has seen (Adam, RMSprop, Adagrad, ...). If it is Adam, say so: "
            'optimizer="adam", --optimizer adam'
        )
    if _places_chosen_by_noise(probe):
        return "entries of the noisy gradient are set to zero after the noise, by their size"
    louder = probe.at(noise_multiplier=30 * SIGMA, seed=14)
    lengths = [float(np.linalg.norm(row)) for row in (rows[2], louder)]
    if abs(lengths[1] / lengths[0] - 1) < 1e-3:
        return "the length of the noisy gradient is limited or normalised after the noise"
    loudest = probe.at(noise_multiplier=90 * SIGMA, seed=18)
    for name, part in bench.box.slices.items():
        vectors = [row[part] for row in (rows[2], louder, loudest)]
        parts = [float(np.linalg.norm(vector)) for vector in vectors]
        # A tensor without noise keeps its direction too, which is the business of noise.
        turned = float(np.linalg.norm(vectors[0] - vectors[1])) > 0.1 * parts[0]
        if turned and np.allclose(parts[1:], parts[0], rtol=1e-3):
            return f"the length of {name} in the noisy gradient is limited or made equal afterwards"
    return ""


def _few_digits(bench: Bench, rows: list[Vector]) -> bool:
    """Whether the weights that come back have no more digits than half precision, whatever moved.

    Of numbers with all their digits four in a thousand end so early.
    """
    values = np.concatenate([(bench.weights - row)[row != 0] for row in rows])
    digits, _ = np.frexp(values[np.isfinite(values) & (values != 0)])
    scaled = digits * 2.0**11
    return scaled.size >= 30 and float(np.mean(scaled == np.round(scaled))) > 0.98


def _to_all_digits(probe: _Probe, which: int, sigma: float, seed: int) -> Vector:
    """Return an update of one of two datasets by a step beside which the first weights vanish."""
    bench = probe.bench
    data = bench.records.draw(4, seed=5 + which)
    lr = bench.rate(probe.clip * max(sigma, 0.1) / 4 * bench.dimension**0.5, 1e4)
    return probe.at(data=data, noise_multiplier=sigma, seed=seed, lr=lr) / lr


def _takes_turns(probe: _Probe) -> bool:
    """Whether the second step moves places that the first left alone, and the other way round.

    Noise and records alike: noise that is lost after a step shows nowhere new, and a place that
    loses its noise and not its records is no matter of turns.
    """
    if "steps" not in probe.bench.box.accepted or probe.bench.box.observe is not None:
        return False
    loud = [probe.at(noise_multiplier=SIGMA, seed=17, steps=steps) for steps in (1, 2)]
    silent = [probe.at(seed=17, steps=steps) for steps in (1, 2)]
    first, second = (np.abs(row) > 0 for row in (loud[0], loud[1] - loud[0]))
    left, records = first & ~second, silent[1] != silent[0]
    new, lost = (int(np.count_nonzero(places)) for places in (second & ~first, left))
    # A place or two may stay where it was because its noise is below the last digit.
    return min(new, lost) > 2 and not np.any(records & left)


def _without_scale(probe: _Probe, row: Vector) -> bool:
    """Whether neither sigma nor C makes the same noise lead further: its size is divided out."""
    if not probe.bench.known.deterministic:
        return False
    others = [
        probe.at(noise_multiplier=30 * SIGMA, seed=13),
        probe.at(clip=3 * probe.clip, noise_multiplier=10 * SIGMA, seed=13),
    ]
    length = float(np.linalg.norm(row))
    return all(abs(float(np.linalg.norm(other)) / length - 1) < 0.05 for other in others)


def _places_chosen_by_noise(probe: _Probe) -> bool:
    """Whether noise decides which entries of an update are zero: neither noise nor records there.

    Weights that are not trained are zero in every run, and so is what the records decide where
    noise drowns them.
    """
    quiet = probe.clip / LOUD**2
    zeros = [
        probe.at(clip=quiet, noise_multiplier=SIGMA * LOUD**2, seed=seed) == 0 for seed in (15, 16)
    ]
    differ = float(np.mean(zeros[0] != zeros[1]))
    if differ <= 0.05 or min(float(np.mean(row)) for row in zeros) <= 0.05:
        return False
    # Where records are louder and still show at such places, nothing but noise is missing there.
    moved = probe.at() != 0
    return float(np.mean(probe.at(noise_multiplier=SIGMA, seed=15)[moved] == 0)) > 0.05


def _prepare(bench: Bench) -> list[Finding]:
    """Learn weight decay, a usable clipping norm, contributions and momentum."""
    if bench.known.hopeless or bench.known.obstacle:
        return []
    try:
        if not _find_decay(bench):
            return []
        sensitivity.choose_clip(bench)
        sensitivity.canaries(bench)
        if not bench.known.random:
            replay.response(bench)
    except TrainingFailedError as error:
        return _single_record_fails(bench, error)
    return []


def _single_record_fails(bench: Bench, error: TrainingFailedError) -> list[Finding]:
    """Accuse only if one record fails where four with the same settings do not."""
    settings = {"clip": bench.norm, "lr": bench.rate(bench.norm, 0.1)}
    failed = []
    for count in (1, 4):
        try:
            bench.update(bench.records.draw(count, seed=5), **settings)  # type: ignore[arg-type]
        except TrainingFailedError:
            failed.append(count)
    bench.known.obstacle = f"a run that the tests need failed: {error}"
    if failed != [1]:
        return []
    return [
        Finding(
            "single-record-fails",
            "preflight",
            "model",
            f"a batch of one record stops training ({error}). Poisson sampling draws such "
            "batches; batch norm cannot take them and is not private anyway.",
        )
    ]


def _find_decay(bench: Bench) -> bool:
    """Detect what moves the weights when the clipping norm goes to zero.

    Undeclared weight decay is read through. Anything else that does not depend on the records,
    such as gradients of public data, would be taken for what a record contributes: then the answer
    is no.
    """
    if bench.weight_decay or bench.adam or bench.known.random or bench.box.observe is not None:
        return True
    data = bench.records.draw(2, seed=5)
    try:
        rest = bench.update(data, clip=1e-9 * bench.least_norm, lr=0.5)
    except TrainingFailedError:
        # A clipping norm this small is our wish alone; code may refuse it.
        return True
    size = float(np.linalg.norm(rest))
    along = float(rest @ bench.weights) / bench.size**2
    if size > 1e-6 * bench.size and np.linalg.norm(rest - along * bench.weights) < 1e-3 * size:
        bench.weight_decay = along
        bench.notes.append(f"weight decay of {along:.4g} was found and taken into account")
        return True
    other = bench.update(bench.records.draw(2, seed=16), clip=1e-9 * bench.least_norm, lr=0.5)
    if size > 1e-6 * bench.size and np.linalg.norm(other - rest) < 1e-5 * size:
        bench.known.obstacle = (
            "the weights move by the same, whatever the records are, where the clipping norm is "
            "next to zero: part of an update does not come from the records (public data, a "
            "regulariser). Leave that part out for the check, or let train return the noisy "
            "gradient by itself and say so with observe="
        )
        return False
    return True
