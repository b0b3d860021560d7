"""`sampling`: which records are in a batch, found from checkpoints alone.

Without noise, an update is ``sum of m_i c_i`` where c_i is what record i contributes alone
(measured, see separation) and m_i is its multiplicity over the divisor. Least squares gives m. Its
law must be the accountant's: every record by itself with probability q = B/N, again and
again at each step, divided by a constant, and an empty batch is a step with noise only.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

from noisewise.debugging.bench import LOUD, SIGMA, Bench
from noisewise.debugging.findings import Finding, TestResult
from noisewise.debugging.many_records import expected_share, large_dataset
from noisewise.debugging.noise_readings import measure
from noisewise.debugging.replacement import batches_by_replacement
from noisewise.debugging.sampling_laws import (
    Case,
    multiplicity,
    related,
    sizes_and_chances,
    whole_counts,
)
from noisewise.debugging.statistics import LEVEL, Vector, binomial
from noisewise.debugging.trainer import Data, TrainingFailedError

__all__ = ["batches"]

# If all records are drawn in as many runs, the rate is above 5 / 6 with p = 3e-10.
_ROUNDED_RUNS = 20
#: What a batch may differ from the sum of its records.
_REST = 0.03
#: Length of noise over C that is next to nothing.
_QUIET = 0.02
_TITLE = "batches are drawn as the accountant believes"


def batches(bench: Bench) -> TestResult:
    """`sampling`: size, dispersion, overlap, empties and divisor of the batches."""
    if bench.known.mute:
        return TestResult(
            "sampling", _TITLE, "skipped", "records contribute nothing at any C tried"
        )
    if bench.known.random:
        return batches_by_replacement(bench, _TITLE)
    if not (bench.known.additive or bench.known.incomplete):
        return TestResult(
            "sampling", _TITLE, "skipped", "a batch is not the sum of its records (see separation)"
        )
    if bench.dimension < 60:
        return batches_by_replacement(bench, _TITLE)
    # No multiple of the batch size, so that records of an incomplete last batch exist.
    clip, batch_size, total = bench.usable_clip, 5, 24
    data = bench.records.draw(total, seed=8)
    rows = bench.contributions(data, clip)
    values = np.linalg.svd(rows / np.linalg.norm(rows, axis=1, keepdims=True), compute_uv=False)
    if values[-1] < 1e-3:
        return batches_by_replacement(bench, _TITLE)
    case = Case()
    solved, gaps = _memberships(bench, data, rows, batch_size, bench.effort.sampling_runs)
    if len(solved) == 0:
        return TestResult("sampling", _TITLE, "skipped", "weights are not finite after any batch")
    # One batch is enough: code may treat a small, a large or an unlucky one in a way of its own.
    sizes = np.linalg.norm(solved, axis=1)
    gap = float(np.max(gaps[sizes > 0.1 * float(np.median(sizes))], initial=0.0))
    if gap > _REST:
        case.findings.append(
            Finding(
                "batch-not-a-sum",
                "sampling",
                "sampling",
                f"batches of a larger dataset are not sums of the contributions of its records "
                f"(relative rest {gap:.2g}): does preprocessing look at the whole dataset, or are "
                "batches of some sizes treated in another way? With a batch of all records the "
                "second cause is gone.",
            )
        )
        return _result(case)
    counts, unit = whole_counts(solved)
    if _in_parts(solved, counts):
        case.findings.append(_by_company("a broken number of times what another one weighs"))
        return _result(case)
    multiplicity(case, counts)
    if not case.findings:
        sizes_and_chances(case, bench.sampling, counts, batch_size / total)
        _divisor(case, bench, solved, counts, unit, batch_size)
        # Where a run shows its last step only, two steps cannot be added up.
        if "steps" in bench.box.accepted and bench.box.observe is None:
            rate = float(counts.mean())
            _overlap(case, bench, data, rows, batch_size, unit, rate)
        _empties(case, bench, clip)
        _shared_seed(case, bench, data, rows, batch_size, counts)
        _dataset_size(case, bench, clip, unit * batch_size)
        if bench.sampling == "poisson":
            related(case, {1: counts}, "sampling")
        _more_than_all(case, bench)
        if bench.sampling == "poisson" and not case.findings:
            _rounded_rate(case, bench)
        if bench.sampling == "poisson" and not case.findings and bench.effort.sizes_runs:
            _cut_off(case, bench, data, rows, rate=float(counts.mean()))
        share = expected_share(bench)
        if not case.findings and share is not None and bench.effort.every_step:
            large_dataset(case, bench, share)
    return _result(case)


def _cut_off(case: Case, bench: Bench, data: Data, rows: Vector, rate: float) -> None:
    """Of so many batches some are far above the expected size, unless there is no room for them."""
    batch_size, total = 4, len(data[0])
    chance = min(batch_size / total, rate * batch_size / 5)
    # The noise is on and hardly there: code may draw in another way without any.
    sigma = 0.0 if bench.adam else _QUIET / bench.dimension**0.5
    runs = bench.effort.sizes_runs
    solved, gaps = _memberships(bench, data, rows, batch_size, runs, 2400, sigma)
    if len(solved) == 0 or float(np.median(gaps)) > _REST:
        return
    table = whole_counts(solved)[0]
    related(case, {1: table}, "sampling")
    _pairs(case, table)
    sizes = table.sum(1)
    _every_size(case, sizes, total, min(batch_size / total, float(table.mean())))
    for limit in range(batch_size, total):
        expected = float(stats.binom.sf(limit, total, chance))
        if len(sizes) * expected < 15:
            return
        above = int((sizes > limit).sum())
        # As many limits are tried as there are sizes worth a look.
        p_value = min(1.0, 8 * float(stats.binom.cdf(above, len(sizes), expected)))
        case.p_values.append(p_value)
        if p_value < LEVEL:
            case.findings.append(
                Finding(
                    "batch-size-capped",
                    "sampling",
                    "sampling",
                    f"{above} of {len(sizes)} batches had more than {limit} records, "
                    f"{len(sizes) * expected:.0f} expected: large batches are cut off, so whether "
                    "a record is used depends on the others.",
                    {"above": above, "limit": limit},
                    p_value,
                )
            )
            return


def _every_size(case: Case, sizes: Vector, total: int, rate: float) -> None:
    """Each size of a batch is as frequent as the binomial law says: none is left out or padded."""
    if case.findings:
        return
    found = []
    for size in range(total + 1):
        chance = float(stats.binom.pmf(size, total, rate))
        count = int((sizes == size).sum())
        found.append((binomial(count, len(sizes), chance), size, count, chance * len(sizes)))
    least, size, count, expected = min(found)
    # An error in the rate, which is estimated, moves chances by less than this.
    p_value = min(1.0, len(found) * least) if abs(count - expected) > 0.4 * expected else 1.0
    case.test(
        p_value,
        lambda: Finding(
            "batch-sizes-rounded",
            "sampling",
            "sampling",
            f"{count} of {len(sizes)} batches had exactly {size} records, {expected:.0f} expected: "
            "batches are padded, cut or drawn again to sizes that suit, so whether a record is "
            "used depends on the others.",
            {"size": size, "count": count},
            p_value,
        ),
    )


def _pairs(case: Case, table: Vector) -> None:
    """Any two records are together in a batch as often as chance has it, whatever relates them."""
    drawn = np.minimum(table, 1.0)
    together = drawn.T @ drawn
    np.fill_diagonal(together, 0.0)
    first, second = np.unravel_index(int(np.argmax(together)), together.shape)
    most, rates = int(together[first, second]), drawn.mean(0)
    total = len(rates)
    chance = float(rates[first] * rates[second])
    unlucky = float(stats.binom.sf(most - 1, len(drawn), chance))
    p_value = min(1.0, total * (total - 1) / 2 * unlucky)
    if case.findings:
        return
    case.test(
        p_value,
        lambda: Finding(
            "membership-related",
            "sampling",
            "sampling",
            f"records {first} and {second} were in {most} of {len(drawn)} batches together, "
            f"{len(drawn) * chance:.0f} expected: records are drawn together.",
            {"together": most},
            p_value,
        ),
    )


def _more_than_all(case: Case, bench: Bench) -> None:
    """Where a batch may hold more records than there are, a record is in it once at most.

    Whether the divisor is the batch size or the number of records, noise has the same one.
    """
    if "noise_multiplier" not in bench.box.accepted or bench.adam or case.findings:
        return
    total, batch_size, clip = 4, 11, bench.usable_clip
    data = bench.records.draw(total, seed=5)
    whole = bench.contributions(data, clip).sum(0)
    deviation = clip * SIGMA / batch_size * bench.dimension**0.5
    settings = {"clip": clip, "batch_size": batch_size, "lr": bench.rate(deviation)}
    runs = max(4, -(-1_500 // bench.dimension))
    try:
        silent = [bench.update(data, seed=seed, **settings) for seed in (1, 2, 3)]  # type: ignore[arg-type]
        noisy = bench.updates(data, range(runs), sigma=SIGMA, **settings)
    except TrainingFailedError:
        # More than all records is our wish alone.
        return
    length = float(np.linalg.norm(whole))
    shares = [float(row @ whole) / length**2 for row in silent]
    rests = [float(np.linalg.norm(row - s * whole)) for row, s in zip(silent, shares, strict=True)]
    if length == 0 or not np.isfinite(shares).all() or len(noisy) < 2:
        return
    share = max(abs(value) for value in shares)
    measured = measure(bench)
    usual, known = measured.readings["base"], bench.known.divisors.get(4)
    if share == 0 or known is None or usual.factor == 0 or measured.uneven:
        return
    if max(rests) > 0.05 * share * length:
        # Some records count twice, or not at all: of those that count most a bound is known.
        rows = bench.contributions(data, clip)
        solved = np.linalg.lstsq(rows.T, np.stack(silent).T, rcond=None)[0]
        share = float(np.max(np.abs(solved)))
    rows = noisy - noisy.mean(0)
    count = (len(rows) - 1) * int(measured.live.sum())
    noise = float(np.sum(rows**2)) / count
    expected = (usual.factor * clip * SIGMA / 4 * share / known) ** 2
    ratio = noise / expected
    p_value = float(stats.f.cdf(ratio, count, usual.count))
    case.test(
        p_value if ratio < 0.8 else max(p_value, LEVEL),
        lambda: Finding(
            "noise-depends-on-dataset-size",
            "sampling",
            "noise",
            f"with {total} records at batch size {batch_size} the noise is {ratio**0.5:.2f} times "
            "what it should be for what a record weighs: records are repeated until a batch is "
            "full, or sum and noise have divisors of their own.",
            {"ratio": ratio**0.5},
            p_value,
        ),
    )


def _rounded_rate(case: Case, bench: Bench) -> None:
    """One over the number of whole batches is far above B / N where N is just above B.

    A number of batches that is rounded up gives a lower rate, which costs no privacy.
    """
    batch_size, total = 5, 6
    data = bench.records.draw(total, seed=18)
    rows = bench.contributions(data, bench.usable_clip)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if np.linalg.svd(rows / lengths, compute_uv=False)[-1] < 1e-3:
        return
    solved, gaps = _memberships(bench, data, rows, batch_size, _ROUNDED_RUNS, first_seed=900)
    if len(solved) == 0 or float(np.median(gaps)) > 0.03:
        return
    drawn = int((solved > 0.5 * float(np.median(solved[solved > 0]))).sum())
    rate, seen = batch_size / total, drawn / solved.size
    p_value = float(stats.binom.sf(drawn - 1, solved.size, rate))
    case.p_values.append(p_value)
    if p_value < LEVEL:
        case.findings.append(
            Finding(
                "sampling-rate-wrong",
                "sampling",
                "sampling",
                f"of {total} records at batch size {batch_size}, each is drawn with probability "
                f"{seen:.2f} instead of {rate:.2f}: the rate seems to be one over a number of "
                "batches that was rounded down. If the accountant uses the same rate, its epsilon "
                "is right; hand it B / N otherwise.",
                {"rate": seen},
                p_value,
            )
        )


def _result(case: Case) -> TestResult:
    status = "failed" if case.findings else "passed"
    summary = "; ".join(case.seen) or case.findings[0].sentence
    return TestResult(
        "sampling", _TITLE, status, summary, tuple(case.p_values), tuple(case.findings)
    )


def _memberships(
    bench: Bench,
    data: Data,
    rows: Vector,
    batch_size: int,
    runs: int,
    first_seed: int = 200,
    sigma: float = 0.0,
) -> tuple[Vector, Vector]:
    """Return multiplicities over the divisor, one row per seed, and the relative rests."""
    clip = bench.usable_clip
    lr = bench.rate(float(np.median(np.linalg.norm(rows, axis=1))) / batch_size**0.5)
    seeds = range(first_seed, first_seed + runs)
    updates = bench.updates(data, seeds, clip=clip, lr=lr, batch_size=batch_size, sigma=sigma)
    solved = np.linalg.lstsq(rows.T, updates.T, rcond=None)[0].T
    rests = np.linalg.norm(updates - solved @ rows, axis=1)
    sizes = np.linalg.norm(updates, axis=1)
    return solved, rests / np.where(sizes > 0, sizes, 1.0)


def _divisor(
    case: Case, bench: Bench, solved: Vector, counts: Vector, unit: float, batch_size: int
) -> None:
    """The divisor must not follow the size of the batch that was drawn."""
    sizes = counts.sum(1)
    full = sizes > 0
    if full.sum() < 4 or np.ptp(sizes[full]) == 0:
        return
    shares = solved[full].sum(1) / sizes[full]
    slope = float(np.polyfit(np.log(sizes[full]), np.log(np.maximum(shares, 1e-12)), 1)[0])
    case.seen.append(f"divisor {1 / float(np.median(shares)):.2f}")
    if slope < -0.5:
        case.findings.append(
            Finding(
                "divides-by-actual-batch-size",
                "sampling",
                "averaging",
                "the sum is divided by the size of the batch that was drawn "
                f"(log-log slope {slope:.2f}): adding a record then changes what the others "
                "contribute and how strong the noise is. Divide by the expected size.",
                {"slope": slope},
            )
        )
        return
    # A record weighs the same in every batch, whoever else is in it.
    apart = float(np.max(shares) / max(float(np.min(shares)), 1e-12))
    if apart > 1.15:
        case.findings.append(_by_company(f"{apart:.2f} times as much in one batch as in another"))
        return
    ratio = solved[full] / shares[:, None]
    broken = np.abs(ratio - np.round(ratio)).max(1) > 0.15
    if float(broken.mean()) > 0.3:
        case.findings.append(_by_company("more than another record of its batch"))


def _in_parts(solved: Vector, counts: Vector) -> bool:
    """Whether batches whose records weigh unlike hold no whole multiples of one weight."""
    unlike = counts.max(1) >= 1.5
    if not unlike.any():
        return False
    rows = solved[unlike]
    least = np.where(counts[unlike] >= 0.5, rows, np.inf).min(1, keepdims=True)
    return bool(np.mean(np.abs(rows / least - np.round(rows / least)).max(1) > 0.15) > 0.5)


def _by_company(how: str) -> Finding:
    return Finding(
        "weight-depends-on-company",
        "sampling",
        "averaging",
        f"with equal settings, a record weighs {how}: bound, divisor or weights of records follow "
        "the size of the batch, the dataset or other records. Batches of all records, of several "
        "sizes, tell the first from the others.",
    )


def _overlap(
    case: Case, bench: Bench, data: Data, rows: Vector, batch_size: int, unit: float, rate: float
) -> None:
    """Records in both of two steps: q^2 of them if the steps draw independently."""
    clip, total = bench.usable_clip, len(data[0])
    norm = float(np.median(np.linalg.norm(rows, axis=1)))
    lr = bench.rate(norm, 3e-3)
    response = bench.adam_response(2) if bench.adam else bench.known.response[1:]
    both = float(np.sum(response))
    runs = max(12, bench.effort.sampling_runs // 2)
    updates = bench.updates(
        data, range(200, 200 + runs), clip=clip, lr=lr, batch_size=batch_size, steps=2
    )
    runs = len(updates)
    if runs == 0:
        return
    # Weight decay moves along the weights themselves; that column takes it up.
    basis = np.vstack([rows, bench.weights / bench.size * norm])
    solved = np.linalg.lstsq(basis.T, updates.T, rcond=None)[0].T[:, :-1] / unit
    largest = float(np.max(response))
    threshold = (largest + both) / 2
    twice = int((solved > threshold).sum())
    expected = runs * total * rate**2
    case.seen.append(f"{twice} records in two steps running (expected {expected:.0f})")
    p_value = binomial(twice, runs * total, rate**2)

    def accuse() -> Finding:
        if twice > expected:
            name, how = "same-batch-again", "the second step uses the batch of the first again"
        else:
            name, how = "batches-disjoint", "batches of one epoch never overlap (shuffling)"
        return Finding(
            name,
            "sampling",
            "sampling",
            f"{how}: {twice} records were in two steps running, {expected:.0f} expected.",
            {"twice": twice},
            p_value,
        )

    if bench.sampling == "poisson":
        case.test(p_value, accuse)


def _empties(case: Case, bench: Bench, clip: float) -> None:
    """With q = 1/8 and eight records a third of all batches is empty."""
    if bench.sampling != "poisson" or "batch-size-fixed" in [f.name for f in case.findings]:
        return
    total, runs = 8, max(44, bench.effort.sampling_runs)
    data = bench.records.draw(total, seed=8)
    lr = bench.rate(clip)
    empty = []
    try:
        for seed in range(runs):
            update = bench.update(data, clip=clip, lr=lr, batch_size=1, seed=300 + seed)
            if not np.isfinite(update).all():
                raise TrainingFailedError("the weights are not finite afterwards")
            if np.linalg.norm(update) < 1e-5 * min(clip, bench.least_norm):
                empty.append(seed)
    except TrainingFailedError as error:
        case.findings.append(
            Finding(
                "empty-batch-fails",
                "sampling",
                "sampling",
                f"training stops at a small or empty batch ({error}): an empty batch is a step "
                "with noise only.",
            )
        )
        return
    probability = (1 - 1 / total) ** total
    p_value = binomial(len(empty), runs, probability)
    if len(empty) > runs * probability and any("less often" in part for part in case.seen):
        # Lower chances make more of them, and no harm.
        p_value = 1.0
    case.seen.append(f"{len(empty)} of {runs} batches empty (expected {runs * probability:.0f})")
    case.test(
        p_value,
        lambda: Finding(
            "empty-batches-avoided"
            if len(empty) < runs * probability
            else "too-many-empty-batches",
            "sampling",
            "sampling",
            f"{len(empty)} of {runs} batches were empty, {runs * probability:.0f} expected: "
            "drawing again until a batch has records changes the sampling rate.",
            {"empty": len(empty)},
            p_value,
        ),
    )
    if "noise_multiplier" not in bench.box.accepted or not empty:
        return
    noisy = [
        bench.update(data, clip=clip, lr=lr, batch_size=1, seed=300 + seed, sigma=SIGMA)
        for seed in empty[:4]
    ]
    measured = bench.known.noise
    if measured is not None and measured.absent:
        return
    if measured is not None and not measured.uneven and any(np.any(row) for row in noisy):
        _noise_of_empties(case, bench, np.stack(noisy))
        return
    if all(np.linalg.norm(row) < 1e-5 * clip for row in noisy):
        case.findings.append(
            Finding(
                "empty-batch-without-noise",
                "sampling",
                "noise",
                "a step whose batch is empty adds no noise: weights that did not move tell that "
                "nobody was drawn.",
            )
        )


def _noise_of_empties(case: Case, bench: Bench, rows: Vector) -> None:
    """A step on nobody has the noise of every other step."""
    measured = measure(bench)
    one, count = measured.readings["one record"], rows.shape[0] * int(measured.live.sum())
    expected = (one.factor * bench.usable_clip * SIGMA) ** 2 * count
    if expected == 0 or count < 60:
        return
    ratio = float(np.sum(rows**2)) / expected
    p_value = float(stats.f.cdf(ratio, count, one.count))
    case.test(
        p_value if ratio < 0.7 else max(p_value, LEVEL),
        lambda: Finding(
            "empty-batch-without-noise",
            "sampling",
            "noise",
            f"a step whose batch is empty has {ratio**0.5:.2g} times the noise of others: its "
            "length tells that nobody was drawn.",
            {"ratio": ratio**0.5},
            p_value,
        ),
    )


def _shared_seed(
    case: Case, bench: Bench, data: Data, rows: Vector, batch_size: int, counts: Vector
) -> None:
    """Noise must not tell who was drawn: generators with one seed give related numbers.

    A uniform number u that decides whether a record is drawn comes back as the length
    sqrt(-2 log(1 - u)) of a pair of normal numbers, at some shift. So membership is correlated
    with squared noise, shift by shift, over all records and seeds.
    """
    runs = len(counts)
    usable = "noise_multiplier" in bench.box.accepted and bench.known.deterministic
    if not usable or runs < 40 or bench.known.same_noise or bench.dimension < 64:
        return
    further, _ = _memberships(bench, data, rows, batch_size, runs, first_seed=200 + runs)
    table = np.concatenate([counts, whole_counts(further)[0]])
    clip, sigma = bench.usable_clip / LOUD, SIGMA * LOUD
    lr = bench.rate(clip * sigma / batch_size * bench.dimension**0.5, 1.0)
    seeds = range(200, 200 + 2 * runs)
    noisy = bench.updates(data, seeds, clip=clip, sigma=sigma, lr=lr, batch_size=batch_size)
    if len(noisy) != len(table):
        return
    drawn = table - table.mean(0)
    squares = noisy[:, :64] ** 2
    squares = squares - squares.mean(0)
    scale = drawn.std(0)[:, None] * squares.std(0)[None, :]
    related = drawn.T @ squares / np.where(scale > 0, scale, 1.0) / len(table) ** 0.5
    best, where = 0.0, 0
    for shift in range(-8, 40):
        pairs = [related[i, i + shift] for i in range(len(related)) if 0 <= i + shift < 64]
        statistic = abs(float(np.sum(pairs))) / max(1, len(pairs)) ** 0.5
        best, where = max((best, where), (statistic, shift))
    p_value = min(1.0, 48 * 2 * float(stats.norm.sf(best)))
    case.test(
        p_value,
        lambda: Finding(
            "noise-follows-batch",
            "sampling",
            "randomness",
            "who is in a batch can be read off its noise (squared noise and membership are related "
            f"at a shift of {where}, {best:.1f} deviations): sampler and noise use generators with "
            "the same seed.",
            {"deviations": best, "shift": where},
            p_value,
        ),
    )


def _dataset_size(case: Case, bench: Bench, clip: float, scale: float) -> None:
    """The divisor must stay when one record is added, or many: N = 16, 17 and 40, B = 8."""
    shares = {}
    for total in (16, 17, 40) if bench.effort.sizes_runs else (16, 17):
        data = bench.records.draw(total, seed=8)
        rows = bench.contributions(data, clip)
        solved, _ = _memberships(bench, data, rows, 8, 4, first_seed=700)
        counts, _ = whole_counts(solved)
        if counts.sum() == 0:
            return
        present = solved[counts > 0.5]
        shares[total] = float(np.median(present))
    apart = {total: abs(share / shares[16] - 1) for total, share in shares.items()}
    more = max(apart, key=lambda total: apart[total])
    if apart[more] > 0.03:
        if any(f.name == "divides-by-actual-batch-size" for f in case.findings):
            return
        case.findings.append(
            Finding(
                "divisor-depends-on-dataset-size",
                "sampling",
                "averaging",
                f"the sum is divided by {1 / shares[16]:.3g} with 16 records and by "
                f"{1 / shares[more]:.3g} with {more}, at the same batch size 8: the divisor, "
                "or the learning rate, tells how many records there are. Use a public constant.",
                {f"divisor_{total}": 1 / share for total, share in shares.items()},
            )
        )
