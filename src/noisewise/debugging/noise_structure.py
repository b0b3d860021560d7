"""Noise that is Gaussian number by number, and not as a whole.

Each number may have the right law while some direction has less noise than the others: a
coordinate that is left out, sums over rows that vanish, neighbours at any distance that share a
part, a direction of the weights or of the gradients that is projected away. Each of these is read
from the rows that the other tests of noise have drawn.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from noisewise.debugging.bench import SIGMA, Bench
from noisewise.debugging.findings import Finding
from noisewise.debugging.noise_readings import SCALE, Measurement
from noisewise.debugging.statistics import LEVEL, Vector

__all__ = ["by_batch", "late_structure", "mixed_afterwards", "structure"]

# A tenth of a deviation less, or more, is not worth an accusation here.
_LEAST, _MOST = 0.75, 1.35
_LAGS = 400
#: Rows and columns of a tensor that are looked at one by one, and a bound on all cuts of it.
_LINES, _CUTS = 64, 136
#: Squared lengths that vary by less than this share of what they should are no accident.
_STEADY = 0.5
#: More parameters than these make too many runs of a look for a subspace.
_LARGE = 3_000
#: As many runs show what any two of them share.
_RUNS = 24
#: And by so many times more than they should.
_VARIABLE = 1.5


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
        *_blocks(bench, measured, rows),
        *_lengths(bench, measured, rows),
        *_directions(bench, measured, rows),
        _distances(bench, measured, rows),
        _sphere(bench, measured, rows),
    ):
        p_values.append(p_value)
        findings += [found] if found and p_value < LEVEL else []
    return findings[:1], p_values


def late_structure(
    bench: Bench, measured: Measurement, rows: Vector
) -> list[tuple[Finding | None, float]]:
    """Look at sums and at distances between numbers of noise of late steps, one row per step.

    Each row has a size of its own by schedule, so that lengths tell nothing.
    """
    rows = rows / np.sqrt(np.mean(rows[:, measured.live] ** 2, axis=1, keepdims=True))
    return [*_sums(bench, measured, rows), _distances(bench, measured, rows)]


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


def _blocks(
    bench: Bench, measured: Measurement, rows: Vector
) -> list[tuple[Finding | None, float]]:
    """Tell rows, columns, halves and quarters of a tensor with less noise than the rest of it.

    What counts is how much longer that makes what a record contributes, over the noise.
    """
    least = 1.0
    gain = np.ones(bench.dimension)
    names = []
    for name, part in bench.box.slices.items():
        inside = rows[:, part]
        if name in measured.silent or not measured.live[part].all() or inside.shape[1] < 2:
            continue
        squares = np.mean(inside**2, axis=0)
        usual = float(squares.mean())
        for places in _cuts(tuple(bench.init[name].shape)):
            count, others = places.size * len(rows), (squares.size - places.size) * len(rows)
            if min(count, others) < 60:
                continue
            here = float(squares[places].mean())
            rest = (usual * squares.size - here * places.size) / (squares.size - places.size)
            ratio = here / max(rest, 1e-300)
            p_value = min(1.0, _CUTS * float(stats.f.cdf(ratio, count, others)))
            least = min(least, p_value)
            if p_value < LEVEL and ratio < 0.9:
                at = np.arange(part.start, part.stop)[places]
                gain[at] = np.minimum(gain[at], np.sqrt(here / usual))
                names.append(name)
    if not names:
        return [(None, least)]
    own = np.where(measured.gain > 0, measured.gain, 1.0) * np.maximum(gain, 1e-9)
    worst = max(
        (
            float(np.linalg.norm(canary.row / own)) / canary.clip
            for canary in bench.known.canaries
            if canary.own_weights and canary.ratio <= 1.01
        ),
        default=0.0,
    )
    if worst <= 1 + 2 * SCALE:
        return [(None, least)]
    found = Finding(
        "noise-uneven",
        "noise",
        "noise",
        f"parts of {', '.join(dict.fromkeys(names))} get {float(gain.min()):.2g} times the noise "
        f"of their tensor: the effective noise multiplier is sigma / {worst:.3g}.",
        {"whitened_sensitivity": worst},
        least,
    )
    return [(found, least)]


def _cuts(shape: tuple[int, ...]) -> list[NDArray[np.int64]]:
    """Return the places of quarters, halves, first rows and single rows and columns of a tensor."""
    size = int(np.prod(shape))
    where = np.arange(size)
    cuts = [where[size * k // 4 : size * (k + 1) // 4] for k in range(4)]
    cuts += [where[: size // 2], where[size // 2 :], where[::2], where[1::2]]
    if len(shape) > 1:
        table = where.reshape(shape[0], -1)
        cuts += [table[k] for k in range(min(shape[0], _LINES))]
        cuts += [table[:, k] for k in range(min(table.shape[1], _LINES))]
    return cuts


def _lengths(
    bench: Bench, measured: Measurement, rows: Vector
) -> list[tuple[Finding | None, float]]:
    """Lengths of independent noise vary from run to run, by a known amount."""
    parts = {name: part for name, part in bench.box.slices.items() if name not in measured.silent}
    if not measured.uneven:
        parts["all tensors"] = slice(0, rows.shape[1])
    results: list[tuple[Finding | None, float]] = []
    tables = {name: rows[:, part][:, measured.live[part]] for name, part in parts.items()}
    for name, part in parts.items():
        shape = tuple(bench.init[name].shape) if name in bench.init else ()
        if len(shape) > 1 and measured.live[part].all():
            lines = rows[:, part].reshape(-1, int(np.prod(shape[1:])))
            tables[f"a row of {name}"] = lines
    for name, inside in tables.items():
        size = inside.shape[1]
        if size < 12 or len(inside) < 6:
            continue
        squares = np.sum(inside**2, axis=1)
        ratio = float(np.var(squares, ddof=1) / np.mean(squares) ** 2) * size / 2
        # The variance of squares has a fourth moment of its own, hence the few degrees of freedom.
        freedom = (len(inside) - 1) / (1 + 6 / size)
        low = float(stats.chi2.cdf((len(inside) - 1) * ratio, len(inside) - 1))
        high = float(stats.chi2.sf(freedom * ratio / _VARIABLE, freedom))
        p_value = min(low, high)
        found = None
        if p_value < LEVEL and (ratio < _STEADY or high < LEVEL):
            why = (
                "noise is scaled or standardised after it was drawn, so its law is not Gaussian "
                "and what it hides can be computed from its length"
                if ratio < 1
                else "some runs have less noise than others, by chance or by their seed, so that "
                "its law is a mixture"
            )
            found = Finding(
                "noise-correlated" if ratio < 1 else "noise-not-gaussian",
                "noise",
                "randomness",
                f"the length of the noise of {name} varies {ratio:.2g} times as much as that of "
                f"independent numbers: {why}.",
                {"variance_of_squares": ratio},
                p_value,
            )
        results.append((found, p_value))
    return results


def _judged(
    bench: Bench, values: Vector, records: Vector, what: str
) -> tuple[Finding | None, float] | None:
    """Judge parts along directions of length one; those of records are over their norm."""
    if bench.known.canaries and float(np.max(np.abs(records), initial=0.0)) < 1e-3:
        # Records have no part there either: projected afterwards, at no cost.
        return None
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
    return found, p_value


def _seen(bench: Bench, rows: Vector) -> list[Vector]:
    return [canary.row for canary in bench.known.canaries if np.any(canary.row)] or [rows[0]]


def _sums(bench: Bench, measured: Measurement, rows: Vector) -> list[tuple[Finding | None, float]]:
    """Compare sums over tensors, rows and columns with what independent numbers would give."""
    seen = _seen(bench, rows)
    results: list[tuple[Finding | None, float] | None] = []
    for name, part in bench.box.slices.items():
        if name in measured.silent or not measured.live[part].all():
            continue
        inside = rows[:, part]
        inside = inside / max(float(np.sqrt(np.mean(inside**2))), 1e-300)
        shape = tuple(bench.init[name].shape)
        contributions = np.stack([row[part] / np.linalg.norm(row) for row in seen])
        if inside.shape[1] > 1:
            whole = inside.shape[1] ** 0.5
            what = f"sums over the noise of {name}"
            results.append(
                _judged(bench, inside.sum(1) / whole, contributions.sum(1) / whole, what)
            )
        if len(shape) < 2:
            continue
        for axes in {(1,), tuple(range(2, len(shape) + 1))}:
            size = float(np.prod([shape[axis - 1] for axis in axes]))
            if size < 2:
                continue
            noise, records = (
                part.reshape(-1, *shape).sum(axes).ravel() / size**0.5
                for part in (inside, contributions)
            )
            what = f"sums over {'rows' if axes == (1,) else 'inputs'} of the noise of {name}"
            results.append(_judged(bench, noise, records, what))
    return [result for result in results if result is not None]


def _directions(
    bench: Bench, measured: Measurement, rows: Vector
) -> list[tuple[Finding | None, float]]:
    """Compare sums, and parts along weights and gradients, with the rest."""
    seen = _seen(bench, rows)
    along: list[Vector] = []
    along_records: list[Vector] = []
    for name, part in bench.box.slices.items():
        weights = bench.weights[part]
        length = float(np.linalg.norm(weights))
        if name in measured.silent or not measured.live[part].all():
            continue
        if length > 0 and weights.size > 1:
            inside = rows[:, part]
            inside = inside / max(float(np.sqrt(np.mean(inside**2))), 1e-300)
            along.append(inside @ weights / length)
            along_records.append(
                np.stack([row[part] / np.linalg.norm(row) for row in seen]) @ weights / length
            )
    results: list[tuple[Finding | None, float] | None] = [*_sums(bench, measured, rows)]
    if along:
        noise, records = np.concatenate(along), np.concatenate(along_records)
        results.append(_judged(bench, noise, records, "parts of noise along the weights"))
    whole = [c.row for c in bench.known.canaries if c.own_weights and np.any(c.row)][:8]
    if whole and not measured.uneven and bench.dimension > 20 * len(whole):
        basis, _ = np.linalg.qr(np.stack([row / np.linalg.norm(row) for row in whole]).T)
        what = "parts of noise along the gradients of records"
        results.append(_judged(bench, (rows @ basis).ravel(), np.ones(1), what))
    return [result for result in results if result is not None]


def mixed_afterwards(bench: Bench, measured: Measurement) -> str:
    """Say that noise was multiplied by a public matrix, and records too, if that is so."""
    rows = measured.readings["base"].rows
    if bench.known.same_noise or all(
        _as_computed(bench, part) for part in bench.box.slices.values()
    ):
        return ""
    if _distances(bench, measured, rows, whatever=True)[0] is not None:
        return (
            "noise of neighbouring places is related, and what records contribute does not have "
            "the direction of their gradients either: noisy gradients seem to be smoothed or "
            "multiplied by a public matrix"
        )
    directions = _subspace(bench, measured)
    if directions:
        return (
            f"noise and what records contribute lie in the same {directions} of {bench.dimension} "
            "directions: noisy gradients seem to be projected"
        )
    return ""


def _subspace(bench: Bench, measured: Measurement) -> int:
    """Return how many directions hold all noise and all contributions, if they are not all."""
    live = int(measured.live.sum())
    if measured.readings["base"].factor > 0.98 or bench.dimension > _LARGE or bench.adam:
        return 0
    clip = bench.usable_clip
    count = bench.dimension + 8
    rows = bench.noise(clip=clip, sigma=SIGMA, batch_size=1, seeds=count, first_seed=70_000)
    # Each row is known to six digits of the weights.
    _, sizes, basis = np.linalg.svd(rows, full_matrices=False)
    rank = int((sizes > 1e-3 * sizes[0]).sum())
    if not 0 < rank < 0.97 * live:
        return 0
    basis = basis[:rank]
    seen = [canary.row for canary in bench.known.canaries if np.any(canary.row)]
    rests = [np.linalg.norm(row - basis.T @ (basis @ row)) / np.linalg.norm(row) for row in seen]
    return rank if rests and max(rests) < 0.01 else 0


def _distances(
    bench: Bench, measured: Measurement, rows: Vector, *, whatever: bool = False
) -> tuple[Finding | None, float]:
    """Correlate noise with itself at every distance within a tensor, and over all of them.

    Tensors that records do not move along their gradients are left out, unless `whatever`.
    """
    best, where, count, place = 0.0, 0, 1, ""
    for name, part in [*bench.box.slices.items(), ("all tensors", slice(0, rows.shape[1]))]:
        inside = rows[:, part]
        size = inside.shape[1]
        if size < 16 or name in measured.silent or not measured.live[part].all():
            continue
        if name != "all tensors" and _centred(bench, name, part, inside):
            continue
        if not whatever and not _as_computed(bench, part):
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


def _as_computed(bench: Bench, part: slice) -> bool:
    """Whether what records contribute to a tensor has the direction of their gradients there.

    Where it has another, noisy gradients may be smoothed or multiplied by a public matrix, which
    makes noise and contributions alike and costs no privacy.
    """
    cosines = []
    for canary in bench.known.canaries:
        row, gradient = canary.row[part], canary.gradient[part]
        size = float(np.linalg.norm(row) * np.linalg.norm(gradient))
        if canary.own_weights and size > 0:
            cosines.append(abs(float(row @ gradient)) / size)
    return not cosines or float(np.median(cosines)) > 0.999


def _sphere(bench: Bench, measured: Measurement, rows: Vector) -> tuple[Finding | None, float]:
    """No direction has more noise than another: inner products of runs vary as they should.

    Their mean square is the trace of the squared covariance (John, 1971), which grows whatever the
    numbers share: any fixed mixture, a subspace, noise of a few sources.
    """
    if len(rows) < _RUNS or measured.uneven or not measured.live.all():
        return None, 1.0
    if not _as_computed(bench, slice(0, rows.shape[1])):
        return None, 1.0
    # Unequal sizes of coordinates are judged by what records contribute there.
    standard = rows / np.sqrt(np.mean(rows**2, axis=0))
    size = rows.shape[1]
    products = np.tril(standard @ standard.T, -1)
    pairs = len(rows) * (len(rows) - 1) / 2
    ratio = float(np.sum(products**2)) / pairs / size
    # Dividing by an estimate makes products a little smaller; a twentieth is left for that.
    p_value = float(stats.norm.sf((ratio - 1.05) / np.sqrt(3 / pairs + 4 / size / len(rows))))
    if p_value >= LEVEL or ratio < 1.2:
        return None, max(p_value, LEVEL)
    return (
        Finding(
            "noise-correlated",
            "noise",
            "randomness",
            f"inner products of the noise of two runs have {ratio:.2f} times the variance of "
            f"independent noise: it has about {size / ratio:.0f} independent numbers for {size} "
            "parameters, so that some directions get less noise than promised.",
            {"ratio": ratio},
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
