"""The laws that numbers of records must follow, for sampling: how often, how many, how alike.

All of it is about one table of whole numbers: how often each record (column) was in the batch
of each run (row). Under Poisson sampling its entries are independent coins of probability q.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from scipy import stats

from noisewise.debugging.findings import Finding
from noisewise.debugging.statistics import LEVEL, Vector, binomial, goodness_of_fit

__all__ = ["Case", "multiplicity", "related", "sizes_and_chances", "whole_counts"]

#: Correlations of membership below this are not worth an accusation.
_RELATED = 0.25


@dataclass
class Case:
    """What accumulates while the batches are looked at."""

    findings: list[Finding] = field(default_factory=list)
    p_values: list[float] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)

    def test(self, p_value: float, accuse: Callable[[], Finding | None]) -> None:
        """Keep a p-value, and accuse if it is below the level."""
        self.p_values.append(p_value)
        if p_value < LEVEL:
            finding = accuse()
            self.findings += [finding] if finding else []


def whole_counts(solved: Vector) -> tuple[Vector, float]:
    """Round multiplicities to whole numbers, each row by its own unit; return the usual unit."""
    counts = np.zeros_like(solved)
    units = []
    # An empty batch shows rounding errors only; a small learning rate makes all rows small.
    least = max(1e-6, 0.02 * float(np.max(solved, initial=0.0)))
    for index, row in enumerate(solved):
        present = row[row > 0.4 * float(np.max(row))] if np.max(row) > least else row[:0]
        if present.size == 0:
            continue
        unit = float(np.min(present))
        counts[index] = np.round(row / unit)
        units.append(unit)
    return counts, float(np.median(units)) if units else 1.0


def related(case: Case, tables: Mapping[int, Vector], test: str) -> None:
    """Whether one record's place in a batch tells anything of another's, by distance.

    `tables` has who was drawn by step: one row for each of neighbouring seeds. Distances are those
    in the list of records (around its end), in steps and in seeds. Records are drawn together or
    in turns, batches come again moved on by a few records, or with the next seed.
    """
    steps = sorted(tables)
    first = tables[steps[0]]
    seeds, total = first.shape
    rate = float(np.mean([table.mean() for table in tables.values()]))
    spread = rate * (1 - rate)
    if spread < 0.02:
        return
    drawn = {step: np.minimum(table, 1.0) - rate for step, table in tables.items()}
    waves = {step: np.fft.fft(table, axis=1) for step, table in drawn.items()}
    best, where, count, tests = 0.0, (0, 0, 0), 0.0, 0
    for apart in range(max(steps) - min(steps) + 1):
        pairs = [(step, step + apart) for step in steps if step + apart in drawn]
        for other in range(-seeds + 1 if apart else 0, seeds):
            here = slice(max(0, -other), seeds - max(0, other))
            there = slice(max(0, other), seeds + min(0, other))
            products = sum((np.conj(waves[a][here]) * waves[b][there]).sum(0) for a, b in pairs)
            if not pairs:
                continue
            sums = np.real(np.fft.ifft(products))
            trials = len(pairs) * (seeds - abs(other)) * total
            # The sums at a distance and its opposite are one where nothing else is apart.
            for shift in range(total):
                if apart == other == 0 and not 0 < shift <= total // 2:
                    continue
                tests += 1
                value = float(sums[shift]) / trials / spread
                score = abs(value) * trials**0.5
                if score > best and abs(value) > _RELATED:
                    best, where, count = score, (shift, apart, other), value
    # Products of coins have heavier tails than the normal law: a seventh of the score is left out.
    p_value = min(1.0, 2 * tests * float(stats.norm.sf(best / 1.15)))

    def accuse() -> Finding:
        shift, apart, other = where
        far = [
            f"{number} {what} apart"
            for number, what in ((shift, "records"), (apart, "steps"), (abs(other), "seeds"))
            if number
        ]
        return Finding(
            "membership-related",
            test,
            "sampling",
            f"who is in a batch tells who else is, {', '.join(far) or 'in the same place'} "
            f"(correlation {count:.2f}): records must be drawn independently of each other, of "
            "other steps and of other seeds.",
            {"correlation": count, "records": shift, "steps": apart, "seeds": other},
            p_value,
        )

    # What has been named already is not named again.
    if not case.findings:
        case.test(p_value, accuse)


def multiplicity(case: Case, counts: Vector) -> None:
    """No record may be in a batch twice."""
    if np.max(counts) >= 1.5:
        share = float(np.mean(np.any(counts >= 1.5, axis=1)))
        case.findings.append(
            Finding(
                "sampled-with-replacement",
                "sampling",
                "sampling",
                f"a record was up to {int(np.max(counts))} times in one batch (in {share:.0%} of "
                "the batches): drawing with replacement doubles what a record can do.",
            )
        )


def sizes_and_chances(case: Case, claimed: str, counts: Vector, rate: float) -> None:
    """Sizes of batches and chances of records must be those of the accountant's sampler."""
    runs, total = counts.shape
    sizes = counts.sum(1)
    mean, spread = float(sizes.mean()), float(sizes.std())
    case.seen.append(f"batch size {mean:.2f} ± {spread:.2f} (expected {rate * total:g})")
    p_rate = binomial(int(sizes.sum()), runs * total, rate)
    if claimed == "poisson" and spread == 0.0 and abs(mean - rate * total) < 1e-9:
        p_rate = 1.0
    case.test(
        p_rate,
        lambda: (
            # A lower rate is more private than was promised.
            None
            if mean < rate * total
            else Finding(
                "sampling-rate-wrong",
                "sampling",
                "sampling",
                f"a record is drawn with probability {mean / total:.3f} instead of "
                f"q = B/N = {rate:.3f}: the accountant uses another rate than the sampler.",
                {"rate": mean / total},
                p_rate,
            )
        ),
    )
    if p_rate < LEVEL and mean < rate * total:
        case.seen.append("records are drawn less often than they may be, which costs no privacy")
        rate = max(mean, 1e-3) / total
    if claimed == "poisson":
        p_size = goodness_of_fit(sizes.astype(int).tolist(), total, min(0.95, mean / total))

        def accuse() -> Finding:
            if spread < 0.3 * (total * rate * (1 - rate)) ** 0.5:
                name, how = (
                    "batch-size-fixed",
                    (
                        f"all batches have about the same size ({mean:.1f} ± {spread:.1f}); "
                        f"Poisson sampling would give ± {(total * rate * (1 - rate)) ** 0.5:.1f}. "
                        "Shuffled or fixed-size batches need their own accounting"
                    ),
                )
            elif spread < (total * rate * (1 - rate)) ** 0.5:
                name, how = (
                    "batch-size-underdispersed",
                    (
                        f"batch sizes vary too little ({spread:.1f}): some steps draw batches of "
                        "a fixed size"
                    ),
                )
            else:
                name, how = (
                    "batch-size-overdispersed",
                    (f"batch sizes vary too much ({spread:.1f}): records are drawn together"),
                )
            return Finding(name, "sampling", "sampling", f"{how}.", {"spread": spread}, p_size)

        case.test(p_size, accuse)
        _capped(case, sizes, total, rate)
    hits = counts.sum(0)
    p_alike = goodness_of_fit(hits.astype(int).tolist(), runs, min(0.95, max(0.05, mean / total)))
    case.test(
        p_alike,
        lambda: (
            None
            if hits.std() < (runs * rate * (1 - rate)) ** 0.5
            else Finding(
                "records-not-alike",
                "sampling",
                "sampling",
                f"records have different chances: one was in {int(hits.min())} of {runs} batches, "
                f"another in {int(hits.max())}. The accountant's q holds for none of them.",
                {"hits": hits.tolist()},
                p_alike,
            )
        ),
    )
    _never_drawn(case, counts, rate)


def _never_drawn(case: Case, counts: Vector, rate: float) -> None:
    """A record that is in no batch at all has no chance, unless it was unlucky many times."""
    runs, total = counts.shape
    unused = np.flatnonzero(counts.sum(0) == 0)
    chance = (1 - rate) ** runs
    p_value = float(stats.binom.sf(unused.size - 1, total, chance)) if unused.size else 1.0

    def accuse() -> Finding | None:
        # Unequal chances in general have been named already.
        if any(finding.name == "records-not-alike" for finding in case.findings):
            return None
        listed = ", ".join(str(index) for index in unused[:6])
        return Finding(
            "records-never-drawn",
            "sampling",
            "sampling",
            f"{unused.size} of {total} records (numbers {listed}) were in none of {runs} batches "
            f"of about {rate * total:.0f}: the sampler leaves them out (an incomplete last batch "
            "that is dropped?), so q is wrong for all.",
            {"unused": unused.tolist()},
            p_value,
        )

    case.test(p_value, accuse)


def _capped(case: Case, sizes: Vector, total: int, rate: float) -> None:
    """Batches above a limit must be as frequent as the binomial law says."""
    for limit in (rate * total, 1.5 * rate * total):
        above = int((sizes > limit).sum())
        chance = float(stats.binom.sf(np.floor(limit), total, rate))
        p_value = binomial(above, sizes.size, chance)
        expected = sizes.size * chance

        def accuse(
            above: int = above,
            limit: float = limit,
            expected: float = expected,
            p_value: float = p_value,
        ) -> Finding | None:
            # Another law altogether has been named already.
            if above > expected or case.findings:
                return None
            return Finding(
                "batch-size-capped",
                "sampling",
                "sampling",
                f"{above} of {sizes.size} batches had more than {limit:g} records, {expected:.0f} "
                "expected: large batches are cut off, so whether a record is used depends on the "
                "others.",
                {"above": above, "expected": expected},
                p_value,
            )

        case.test(p_value, accuse)
