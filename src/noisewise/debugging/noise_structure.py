"""Noise that is Gaussian number by number, and not as a whole.

Each number may have the right law while some direction has less noise than the others: a
coordinate that is left out, sums over rows that vanish, neighbours at any distance that share a
part, a direction of the weights or of the gradients that is projected away. Each of these is read
from the rows that the other tests of noise have drawn.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

from noisewise.debugging.bench import Bench
from noisewise.debugging.findings import Finding
from noisewise.debugging.noise_readings import SCALE, Measurement
from noisewise.debugging.statistics import LEVEL, Vector

__all__ = ["by_batch", "structure"]

# A tenth of a deviation less, or more, is not worth an accusation here.
_LEAST, _MOST = 0.75, 1.35
_LAGS = 400
#: Squared lengths that vary by less than this share of what they should are no accident.
_STEADY = 0.5


def structure(
    bench: Bench, measured: Measurement, rows: Vector
) -> tuple[list[Finding], list[float]]:
    """Look at single coordinates, sums and lags of noise, one row per run."""
    if len(rows) < 2 or bench.known.same_noise:
        return [], []
    rows = rows / np.sqrt(np.mean(rows[:, measured.live] ** 2))
    findings: list[Finding] = []
    p_values: list[float] = []
    for found, p_value in (
        _single_coordinates(bench, measured, rows),
        *_lengths(bench, measured, rows),
        *_directions(bench, measured, rows),
        _distances(bench, measured, rows),
    ):
        p_values.append(p_value)
        findings += [found] if found and p_value < LEVEL else []
    return findings[:1], p_values


def _single_coordinates(
    bench: Bench, measured: Measurement, rows: Vector
) -> tuple[Finding | None, float]:
    """Tell coordinates with less noise than their tensor has, although records move them."""
    least = np.ones(rows.shape[1])
    for name, part in bench.box.slices.items():
        inside = measured.live[part]
        if name in measured.silent or not inside.any():
            continue
        usual = float(np.median(np.mean(rows[:, part][:, inside] ** 2, axis=0)))
        least[part] = np.where(inside, np.mean(rows[:, part] ** 2, axis=0) / max(usual, 1e-300), 1)
    p_each = np.minimum(
        1.0, int(measured.live.sum()) * stats.chi2.cdf(len(rows) * least, len(rows))
    )
    low = (p_each < LEVEL) & (least < 0.6)
    p_value = float(np.min(p_each))
    if not low.any():
        return None, max(p_value, LEVEL)
    gain = np.where(low, np.sqrt(least), 1.0)
    worst = 0.0
    for canary in bench.known.canaries:
        if not canary.own_weights or canary.norm == 0:
            continue
        size = float(np.linalg.norm(canary.row)) or 1.0
        worst = max(worst, float(np.linalg.norm(canary.row / np.maximum(gain, 1e-9))) / size)
    if worst <= 1 + SCALE:
        return None, p_value
    return (
        Finding(
            "noise-uneven",
            "noise",
            "noise",
            f"{int(low.sum())} coordinates get {np.sqrt(least[low].min()):.2g} of the noise of "
            "their tensor or less, although records move them: the effective noise multiplier is "
            f"sigma / {worst:.3g}.",
            {"coordinates": np.flatnonzero(low)[:10].tolist(), "whitened_sensitivity": worst},
            p_value,
        ),
        p_value,
    )


def _lengths(
    bench: Bench, measured: Measurement, rows: Vector
) -> list[tuple[Finding | None, float]]:
    """Lengths of independent noise vary from run to run, by a known amount."""
    parts = {name: part for name, part in bench.box.slices.items() if name not in measured.silent}
    if not measured.uneven:
        parts["all tensors"] = slice(0, rows.shape[1])
    results: list[tuple[Finding | None, float]] = []
    for name, part in parts.items():
        inside = rows[:, part][:, measured.live[part]]
        size = inside.shape[1]
        if size < 12 or len(inside) < 6:
            continue
        squares = np.sum(inside**2, axis=1)
        ratio = float(np.var(squares, ddof=1) / np.mean(squares) ** 2) * size / 2
        p_value = float(stats.chi2.cdf((len(inside) - 1) * ratio, len(inside) - 1))
        found = None
        if p_value < LEVEL and ratio < _STEADY:
            found = Finding(
                "noise-correlated",
                "noise",
                "randomness",
                f"the length of the noise of {name} varies {ratio:.2g} times as much as that of "
                "independent numbers: noise is scaled or standardised after it was drawn, so its "
                "law is not Gaussian and what it hides can be computed from its length.",
                {"variance_of_squares": ratio},
                p_value,
            )
        results.append((found, p_value))
    return results


def _directions(
    bench: Bench, measured: Measurement, rows: Vector
) -> list[tuple[Finding | None, float]]:
    """Compare sums over rows and columns, and parts along weights and gradients, with the rest."""
    seen = [canary.row for canary in bench.known.canaries if np.any(canary.row)]
    results: list[tuple[Finding | None, float]] = []

    def judge(values: Vector, records: Vector, what: str) -> None:
        """Both are parts along directions of length one; those of records are over their norm."""
        if len(seen) and float(np.max(np.abs(records), initial=0.0)) < 1e-3:
            # Records have no part there either: projected afterwards, at no cost.
            return
        ratio = float(np.mean(values**2))
        count = values.size
        p_value = 2 * float(
            min(stats.chi2.cdf(count * ratio, count), stats.chi2.sf(count * ratio, count))
        )
        found = None
        if p_value < LEVEL and not _LEAST <= ratio <= _MOST:
            found = Finding(
                "noise-correlated",
                "noise",
                "randomness",
                f"{what} have {ratio:.2g} times the variance of independent noise: its numbers "
                "depend on each other, so that some directions get less noise than promised.",
                {"variance": ratio},
                p_value,
            )
        results.append((found, p_value))

    along: list[Vector] = []
    along_records: list[Vector] = []
    for name, part in bench.box.slices.items():
        if name in measured.silent or not measured.live[part].all():
            continue
        inside = rows[:, part]
        inside = inside / max(float(np.sqrt(np.mean(inside**2))), 1e-300)
        shape = tuple(bench.init[name].shape)
        contributions = np.stack([row[part] / np.linalg.norm(row) for row in seen or [rows[0]]])
        weights = bench.weights[part]
        length = float(np.linalg.norm(weights))
        if length > 0 and weights.size > 1:
            along.append(inside @ weights / length)
            along_records.append(contributions @ weights / length)
        if inside.shape[1] > 1:
            judge(
                inside.sum(1) / inside.shape[1] ** 0.5,
                contributions.sum(1) / inside.shape[1] ** 0.5,
                f"sums over the noise of {name}",
            )
        if len(shape) < 2:
            continue
        for axes in {(1,), tuple(range(2, len(shape) + 1))}:
            size = float(np.prod([shape[axis - 1] for axis in axes]))
            if size < 2:
                continue
            judge(
                inside.reshape(-1, *shape).sum(axes).ravel() / size**0.5,
                contributions.reshape(-1, *shape).sum(axes).ravel() / size**0.5,
                f"sums over {'rows' if axes == (1,) else 'inputs'} of the noise of {name}",
            )
    if along:
        judge(
            np.concatenate(along), np.concatenate(along_records), "parts of noise along the weights"
        )
    whole = [c.row for c in bench.known.canaries if c.own_weights and np.any(c.row)][:8]
    if whole and not measured.uneven and bench.dimension > 20 * len(whole):
        basis, _ = np.linalg.qr(np.stack([row / np.linalg.norm(row) for row in whole]).T)
        judge((rows @ basis).ravel(), np.ones(1), "parts of noise along the gradients of records")
    return results


def _distances(bench: Bench, measured: Measurement, rows: Vector) -> tuple[Finding | None, float]:
    """Correlate noise with itself at every distance within a tensor, and over all of them."""
    best, where, count, place = 0.0, 0, 1, ""
    for name, part in [*bench.box.slices.items(), ("all tensors", slice(0, rows.shape[1]))]:
        inside = rows[:, part]
        size = inside.shape[1]
        if size < 16 or name in measured.silent or not measured.live[part].all():
            continue
        if name != "all tensors" and _centred(bench, name, part, inside):
            continue
        if name == "all tensors" and measured.uneven:
            continue
        length = 1 << (2 * size - 1).bit_length()
        power = np.mean(np.abs(np.fft.rfft(inside, length, axis=1)) ** 2, axis=0)
        related = np.fft.irfft(power, length)[: min(size // 2, _LAGS)]
        places = size - np.arange(len(related))
        value = related[1:] / related[0] * size / places[1:]
        score = np.abs(value) * np.sqrt(places[1:] * len(rows))
        lag = int(np.argmax(score))
        if float(score[lag]) > best and abs(value[lag]) > 0.08:
            best, where, count, place = float(score[lag]), lag + 1, len(score), name
    tests = 2 * count * (len(bench.box.slices) + 1)
    p_value = min(1.0, tests * float(stats.norm.sf(best)))
    if p_value >= LEVEL or any(
        _centred(bench, name, part, rows[:, part]) for name, part in bench.box.slices.items()
    ):
        return None, max(p_value, LEVEL)
    return (
        Finding(
            "noise-correlated",
            "noise",
            "randomness",
            f"numbers of the noise of {place} that are {where} places apart depend on each other: "
            "noise is smoothed, or drawn for one number and used for several.",
            {"distance": where},
            p_value,
        ),
        p_value,
    )


def _centred(bench: Bench, name: str, part: slice, rows: Vector) -> bool:
    """Whether sums over the inputs of a tensor vanish (a noisy gradient that was centred)."""
    shape = tuple(bench.init[name].shape)
    if len(shape) < 2:
        return False
    sums = rows.reshape(-1, *shape).sum(tuple(range(2, len(shape) + 1)))
    return float(np.linalg.norm(sums)) <= 1e-3 * float(np.linalg.norm(rows))


def by_batch(measured: Measurement) -> tuple[list[Finding], float]:
    """Noise of runs that drew different batches must be equally loud."""
    reading = measured.readings.get("batch < dataset")
    if reading is None or len(reading.rows) < 4 or reading.factor == 0:
        return [], 1.0
    # Tensors may have noise of their own: without it, the loudest alone would be counted.
    gain = np.where(measured.gain > 0, measured.gain, 1.0)
    squares = np.sum((reading.rows / gain) ** 2, axis=1)
    places = reading.count / len(reading.rows)
    usual = float(np.median(squares)) / places
    statistic = squares / usual
    tails = np.minimum(stats.chi2.cdf(statistic, places), stats.chi2.sf(statistic, places))
    # The median is known to a few per cent; a fifth is asked for.
    off = np.abs(np.sqrt(statistic / places) - 1) > 0.15
    p_value = float(min(1.0, 2 * len(squares) * np.min(np.where(off, tails, 1.0))))
    if p_value >= LEVEL:
        return [], p_value
    worst = float(np.sqrt(np.min(statistic) / places)), float(np.sqrt(np.max(statistic) / places))
    return [
        Finding(
            "noise-depends-on-batch",
            "noise",
            "noise",
            f"where a batch is a part of the data, one run has {worst[0]:.2f} and another "
            f"{worst[1]:.2f} times the usual noise, with the same settings: the noise follows the "
            "batch that was drawn.",
            {"least": worst[0], "most": worst[1]},
            p_value,
        )
    ], p_value
