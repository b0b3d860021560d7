"""`noise`: whether the noise is Gaussian, of the claimed size, and on every tensor.

The deviation of the noise that was measured (`noise_readings`) is compared with two yardsticks:

* the nominal one, ``C sigma / B``;
* what one record can contribute at the same batch size, times sigma. This is the one that
  privacy is about: a mechanism has noise multiplier sigma if whitened contributions have
  norm at most ``1/sigma``. It is blind to common factors such as weight averaging.

Noise is accused when it fails both. Patterns over (C, sigma, B) name the mistake.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from scipy import stats

from noisewise.debugging.bench import SIGMA, SMALL_SIGMA, Bench
from noisewise.debugging.findings import Finding, TestResult
from noisewise.debugging.noise_readings import SCALE, Measurement, Reading, measure
from noisewise.debugging.noise_structure import by_batch, mixed_afterwards, structure
from noisewise.debugging.statistics import LEVEL, Vector, kurtosis, normal_shape, skewness
from noisewise.debugging.trainer import Data

__all__ = ["distribution", "whitened"]

# Relative effects below these are not worth an accusation.
_GENEROUS = 0.2
_EXCESS, _SKEW = 0.04, 0.03
#: Of so many seeds some take no step, if one in ten takes none.
_COINS = 60


def distribution(bench: Bench) -> TestResult:
    """`noise`: size, shape and completeness of the noise at several (C, sigma, B)."""
    measured = measure(bench)
    title = "noise: size, shape, every tensor"
    readings = measured.readings
    findings: list[Finding] = []
    if measured.absent:
        findings.append(
            Finding(
                "no-noise",
                "noise",
                "noise",
                f"no noise is added: at sigma = {SIGMA} the weights are those of sigma = 0.",
            )
        )
        return TestResult("noise", title, "failed", "no noise", measured.p_values, tuple(findings))
    lengths = [np.linalg.norm(reading.rows, axis=1) for reading in readings.values()]
    uneven = any(float(np.min(length)) < 0.5 * float(np.median(length)) for length in lengths)
    mixed = mixed_afterwards(bench, measured)
    if bench.known.along_one:
        mixed = "every update lies along one direction that the seed draws, records and noise alike"
    if not mixed and uneven and _left_out(bench):
        mixed = "some seeds move nothing at all, neither by noise nor by records: a coin decides"
    if mixed:
        bench.known.obstacle = (
            f"{mixed}, which costs no privacy and hides the noise. Let train return the noisy "
            "gradient before it as well, and say so with observe="
        )
        bench.notes.append(bench.known.obstacle)
        return TestResult("noise", title, "skipped", bench.known.obstacle)
    findings += _missing_findings(bench, measured)
    findings = findings or _size_findings(bench, measured)
    p_values = list(measured.p_values)
    if not findings:
        found, p_value = by_batch(measured)
        findings += found
        p_values.append(p_value)
    values = _standardised(bench, measured, readings["base"].rows)
    rows = readings["base"].rows
    shape, tails = normal_shape(values)
    more = _further_rows(bench)
    if more is not None:
        rows = np.concatenate([rows / _size(rows), more / _size(more)])
        values = np.concatenate([values, _standardised(bench, measured, more)])
    excess, peaked = kurtosis(values)
    peaked = peaked if abs(excess) > _EXCESS else 1.0
    skew, leaning = skewness(values)
    leaning = leaning if abs(skew) > _SKEW else 1.0
    p_values += [shape, tails, peaked, leaning]
    p_value = min(shape, tails, peaked, leaning)
    if p_value < LEVEL:
        findings.append(
            Finding(
                "noise-not-gaussian",
                "noise",
                "noise",
                f"the noise is not Gaussian ({_kind(values)}): the accountant's epsilon is that "
                "of Gaussian noise.",
                {
                    "kolmogorov_smirnov_p": shape,
                    "tail_p": tails,
                    "kurtosis_p": peaked,
                    "skewness_p": leaning,
                },
                p_value,
            )
        )
    if not findings:
        found, further = structure(bench, measured, rows)
        findings += found
        p_values += further
    findings += _coarse(bench)
    factors = {label: round(r.factor, 3) for label, r in readings.items()}
    summary = "deviation over C sigma / B: " + ", ".join(f"{k} {v:g}" for k, v in factors.items())
    status = "failed" if findings else "passed"
    return TestResult("noise", title, status, summary, tuple(p_values), tuple(findings))


def _left_out(bench: Bench) -> bool:
    """Whether some seeds take no step, whatever the records are, with noise and without."""
    if not bench.known.deterministic or bench.known.same_noise:
        return False
    data, others = (bench.records.draw(4, seed=seed) for seed in (5, 6))
    clip = bench.usable_clip
    lr = bench.rate(clip * SIGMA / 4 * bench.dimension**0.5)

    def still(data: Data, sigma: float, seed: int) -> bool:
        return not np.any(bench.update(data, clip=clip, sigma=sigma, lr=lr, seed=seed))

    seeds = range(_COINS)
    left = [seed for seed in seeds if still(data, SIGMA, seed)]
    return 0 < len(left) < len(seeds) and all(
        still(data, 0.0, seed) and still(others, SIGMA, seed) for seed in left
    )


def _coarse(bench: Bench) -> list[Finding]:
    """Recognise noise that was rounded to half precision: its digits end early.

    A step so long that the first weights vanish beside it shows the noisy gradient to seven
    digits, of which half precision fills three and a half.
    """
    dtypes = {bench.init[name].dtype for name in bench.box.names}
    if bench.adam or bench.reach < 1 or bench.known.random or dtypes != {torch.float32}:
        return []
    clip = bench.usable_clip
    lr = bench.rate(clip * SIGMA / 4 * bench.dimension**0.5, 1e4)
    values = bench.update(bench.records.draw(4, seed=5), clip=clip, lr=lr, sigma=SIGMA, seed=91)
    values = np.abs(values[values != 0])
    if values.size < 30 or not np.isfinite(values).all():
        return []
    digits, _ = np.frexp(values)
    for bits, kind in ((8, "bfloat16"), (11, "float16")):
        scaled = digits * 2.0**bits
        whole = np.abs(scaled - np.round(scaled)) < 1e-3
        # Of numbers with all their digits two in a thousand look whole.
        p_value = float(stats.binom.sf(int(whole.sum()) - 1, whole.size, 4e-3))
        if p_value < LEVEL and float(whole.mean()) > 0.5:
            return [
                Finding(
                    "noise-in-half-precision",
                    "noise",
                    "noise",
                    f"{whole.mean():.0%} of the noisy gradient has no more digits than {kind}: the "
                    "sum or its noise was rounded, so that values which one dataset can reach and "
                    "another cannot are visible (Mironov, 2012). Add noise in float32 or better.",
                    {"share": float(whole.mean()), "precision": kind},
                    p_value,
                )
            ]
    return []


def _size_findings(bench: Bench, measured: Measurement) -> list[Finding]:
    readings = measured.readings
    if not any(reading.off for reading in readings.values()):
        return []
    largest = bench.known.largest
    if measured.uneven:
        # Tensors have noise of their own: what counts is the length of a whitened contribution.
        largest = readings["one record"].factor * max(
            (length for length, _ in whitened(bench, measured)), default=largest
        )
    divisors: Mapping[int, float] = bench.known.divisors
    relative = {}
    for label, reading in readings.items():
        share = divisors.get(reading.batch_size, 1.0 / reading.batch_size)
        if share * largest > 0:  # else no record was seen to move anything there
            relative[label] = reading.factor / reading.batch_size / (share * largest)
    low = {k: v for k, v in relative.items() if v < 1 - max(SCALE, readings[k].error)}
    high = {k: v for k, v in relative.items() if v * (1 - readings[k].error) > 1 + _GENEROUS}
    evidence = {"factors": {k: r.factor for k, r in readings.items()}, "relative": relative}
    p_value = min(reading.p_value for reading in readings.values())
    faulty = [reading for reading in readings.values() if reading.off]
    if low and not (measured.uneven and not any(readings[k].off for k in low)):
        if all(r.factor >= 1 for r in faulty) and not _pattern(readings)[0]:
            return []
        name, sentence = _pattern(readings)
        if not name:
            worst = min(low, key=lambda key: low[key])
            name = "noise-too-small"
            sentence = (
                f"the noise is {low[worst]:.3g} times what sigma promises for what one record "
                f"contributes (setting: {worst})"
            )
        return [Finding(name, "noise", "noise", f"{sentence}.", evidence, p_value)]
    over = {k: v for k, v in high.items() if readings[k].off and readings[k].factor > 1}
    if over and not measured.uneven:
        name, sentence = _pattern(readings)
        worst = max(over, key=lambda key: over[key])
        # A wrong power law is too large at some settings and too small at others.
        much = (
            f"the noise is {over[worst]:.3g} times too large ({worst}). Too much noise is "
            "private but not what sigma says; accuracy is lost."
        )
        sentence = f"{sentence}." if name else much
        return [Finding(name or "noise-too-large", "noise", "noise", sentence, evidence, p_value)]
    return []


def _pattern(readings: Mapping[str, Reading]) -> tuple[str, str]:
    """Name the power law that the deviation follows, if it is a well-known mistake."""
    base = readings["base"]
    if base.factor <= 0:
        return "", ""

    def power(label: str, change: float) -> float:
        factor = max(readings[label].factor, 1e-12)
        return math.log(factor / base.factor) / math.log(change)

    in_clip = power("five times C", 5.0)
    in_sigma = power("small sigma", SMALL_SIGMA / SIGMA)
    in_batch = power("large batch", 4.0)
    if abs(power("quarter lr", 0.25) + 1) < 0.1:
        return "noise-ignores-learning-rate", (
            "noise is not multiplied by the learning rate: a quarter of lr left it as it was, so "
            "its size on the gradient is not sigma C"
        )
    at_five = readings["five times C"].factor / base.factor * 5
    if abs(in_clip + 1) < 0.1:
        return "noise-ignores-clip", (
            "noise is not multiplied by the clipping norm: five times C left the noise at "
            f"{at_five:.2f}x instead of 5x"
        )
    if abs(in_clip - 1) < 0.1:
        return "noise-times-clip-squared", (
            f"noise grows with the square of the clipping norm: five times C made it {at_five:.1f}x"
        )
    if abs(in_sigma) > 0.1:
        exponent = in_sigma + 1
        return "noise-not-proportional-to-sigma", (
            f"noise grows like sigma to the power {exponent:.2f} instead of 1"
        )
    if abs(in_batch + 1) < 0.1:
        return "noise-divided-by-batch-twice", (
            "noise is divided by the batch size twice: four times B made it "
            f"{readings['large batch'].factor / base.factor / 4:.3f}x instead of 0.25x"
        )
    if abs(in_batch - 1) < 0.1:
        return "noise-added-to-mean", (
            "noise for the sum is added to the mean: it does not shrink with the batch size"
        )
    if abs(in_batch) > 0.1:
        return "noise-depends-on-batch", (
            f"the noise on the sum changes with the batch size: {base.factor:.2f}x nominal at "
            f"B = {base.batch_size}, {readings['large batch'].factor:.2f}x at B = 16 (is it added "
            "per micro-batch or per worker?)"
        )
    spare = readings.get("batch < dataset")
    if spare is not None and spare.off and not base.off:
        return "noise-depends-on-dataset-size", (
            f"the noise is {spare.factor:.2f}x nominal when the dataset is larger than the batch"
        )
    return "", ""


def whitened(bench: Bench, measured: Measurement) -> list[tuple[float, bool]]:
    """Lengths of contributions over ``C`` and the gain of the noise, coordinate by coordinate.

    A mechanism has noise multiplier sigma if none exceeds 1. The second entry says whether a
    record moves a tensor that gets no noise at all.
    """
    lengths = []
    for canary in bench.known.canaries:
        if not canary.own_weights:
            continue
        row, clip = canary.row, canary.clip
        ratio = np.divide(
            row, clip * measured.gain, out=np.zeros_like(row), where=measured.gain > 0
        )
        bare = any(
            np.linalg.norm(row[bench.box.slices[name]]) > 1e-4 * clip for name in measured.silent
        )
        lengths.append((float(np.linalg.norm(ratio)), bare))
    return lengths


def _missing_findings(bench: Bench, measured: Measurement) -> list[Finding]:
    """Whitened sensitivity: unequal noise is fine as long as contributions are covered."""
    if not measured.uneven:
        return []
    lengths = whitened(bench, measured)
    worst = max((length for length, _ in lengths), default=0.0)
    exposed = any(bare for _, bare in lengths)
    names = ", ".join(measured.silent or measured.uneven)
    if exposed:
        return [
            Finding(
                "tensor-without-noise",
                "noise",
                "noise",
                f"no noise reaches {names}, although records move it.",
                {"tensors": list(measured.silent)},
            )
        ]
    if worst > 1 + SCALE and bench.known.largest <= 1.01:
        return [
            Finding(
                "noise-uneven",
                "noise",
                "noise",
                f"the noise differs between tensors ({names}) and is too small where it counts: "
                f"the effective noise multiplier is sigma / {worst:.2f}.",
                {"whitened_sensitivity": worst},
            )
        ]
    return []


def _standardised(bench: Bench, measured: Measurement, rows: Vector) -> Vector:
    """Return noise of deviation one, tensor by tensor where tensors differ."""
    noisy = [
        rows[:, part][:, measured.live[part]]
        for name, part in bench.box.slices.items()
        if name not in measured.silent
    ]
    if not noisy:
        return _whitened(rows).ravel()
    if not measured.uneven:
        return _whitened(np.concatenate(noisy, axis=1)).ravel()
    return np.concatenate([_whitened(part).ravel() for part in noisy])


def _further_rows(bench: Bench) -> Vector | None:
    """Draw more noise for its shape alone; large models need a run or two, small ones many."""
    wanted = min(bench.effort.shape_seeds, -(-bench.effort.shape_samples // bench.dimension))
    if wanted <= bench.seeds() or bench.known.same_noise:
        return None
    clip = bench.usable_clip
    return bench.noise(clip=clip, sigma=SIGMA, batch_size=2, seeds=wanted, first_seed=20_000)


def _whitened(rows: Vector) -> Vector:
    deviation = float(np.sqrt(np.mean(rows**2)))
    return rows / deviation if deviation > 0 else rows


def _size(rows: Vector) -> float:
    return float(np.sqrt(np.mean(rows**2))) or 1.0


def _kind(values: Vector) -> str:
    standard = values / np.sqrt(np.mean(values**2))
    excess, largest = float(np.mean(standard**4)) - 3, float(np.max(np.abs(standard)))
    distinct = np.unique(np.round(standard, 9)).size
    if distinct < 0.5 * standard.size:
        return f"only {distinct} distinct values among {standard.size}"
    skew = float(np.mean(standard**3))
    heavy = "heavier tails, like Laplace noise" if excess > 0 else "tails cut off"
    if abs(skew) > max(0.05, abs(excess)):
        heavy = f"one side has more than the other, skewness {skew:.2f}"
    return f"{heavy}; excess kurtosis {excess:.2f}, largest value {largest:.2f} deviations"
