"""The whole law of private quantiles on tiny domains, and the exact epsilon between all neighbours.

Every draw of the mechanism is replaced by all its outcomes with their probabilities, and so are the
random digits that decide ties. What comes out is the law of the numbers that are released. No
inequality of the proof is used: the largest ratio over all pairs of neighbours must be at most
the epsilon that is stated; and it is near it, so that noise a tenth too small is found.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections import defaultdict
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from noisewise.ecdf.budget import Budget
from noisewise.ecdf.quantiles import plan_quantiles
from noisewise.privacy.relation import Relation
from noisewise.release import Contribution, rank_choice
from noisewise.release.decimals import Decimals
from noisewise.release.rank_choice import RankChoice, Ranked

TIES = 2


@dataclass(frozen=True)
class Few:
    """A domain of a few numbers 0, 1, 2, ... with any public measure."""

    masses: tuple[int, ...]
    lower: float = 0.0

    @property
    def upper(self) -> float:
        return float(len(self.masses) - 1)

    @property
    def ends(self) -> tuple[int, int]:
        return 0, len(self.masses) - 1

    def place(self, records: np.ndarray) -> np.ndarray:
        return np.clip(records.astype(np.int64), *self.ends)

    def upto(self, codes: Any) -> list[int]:
        return [sum(self.masses[: max(int(code) + 1, 0)]) for code in codes]

    def find(self, mass: int, low: int, high: int) -> int:
        return next(code for code in range(low + 1, high + 1) if self.upto([code])[0] > mass)

    def number(self, code: int) -> float:
        return float(code)


class Branches:
    """All ways that draws can go, one after the other, with their probabilities."""

    def __init__(self, domain: Few) -> None:
        codes = range(len(domain.masses))
        starts = domain.upto([code - 1 for code in codes])
        self.marks = {
            scale: sorted(
                scale * start + mass * tie
                for start, mass in zip(starts, domain.masses, strict=True)
                for tie in range(scale)
            )
            for scale in (1, TIES)
        }
        self.whole = sum(domain.masses)
        self.path: list[tuple[int, int]] = []  # taken, of how many

    def pick(self, regions: Any, rate: Fraction, whole: int, rng: Any) -> Any:
        found = regions(Fraction(10**40))
        assert sum(found.masses) == whole  # all of them
        best = min(found.scores)
        weights = [
            mass * math.exp(-float(rate * (score - best)))
            for mass, score in zip(found.masses, found.scores, strict=True)
        ]
        total = math.fsum(weights)
        scale = TIES if len(found.marks) > len(found.masses) else 1  # points have ties, numbers not
        outcomes = []
        for number, (first, mass) in enumerate(zip(found.marks, found.masses, strict=False)):
            inside = [first, *(m for m in self.marks[scale] if first < m < first + mass)]
            for one, last in zip(inside, [*inside[1:], first + mass], strict=True):
                part = (last - one) / mass if mass else 0.0
                if part:
                    outcomes.append((number, one - first, weights[number] / total * part))
        if self.depth == len(self.path):
            self.path.append((0, len(outcomes)))
        taken, size = self.path[self.depth]
        assert size == len(outcomes)
        self.depth += 1
        number, place, likely = outcomes[taken]
        self.probability *= likely
        return found, number, place

    def law(self, choice: RankChoice, exact: Ranked, ties: list[int]) -> dict[Any, float]:
        """Return the probability of every released tuple, with these random digits."""
        law: dict[Any, float] = defaultdict(float)
        while True:
            self.depth, self.probability = 0, 1.0
            found = tuple(choice.applied(exact, Words(ties)))  # type: ignore[arg-type]
            law[found] += self.probability
            while self.path and self.path[-1][0] + 1 == self.path[-1][1]:
                self.path.pop()
            if not self.path:
                return law
            taken, size = self.path[-1]
            self.path[-1] = (taken + 1, size)


class Words:
    """A source of random digits that are given."""

    def __init__(self, ties: list[int]) -> None:
        self.ties = ties

    def spawn(self, count: int) -> list[Words]:
        return [self] * count

    def uint64(self, size: int) -> np.ndarray:
        return 2 * np.array(self.ties[:size], np.uint64)


Rows = tuple[tuple[int, int], ...]  # (number, steps) of each row


def law_of(choice: RankChoice, rows: Rows) -> dict[Any, float]:
    """Return the law of what is released about these rows."""
    exact = Ranked(np.array([r[0] for r in rows], float), np.array([r[1] for r in rows], np.int64))
    digits = TIES if len(choice.quantiles) > 1 else 1
    law: dict[Any, float] = defaultdict(float)
    every = list(itertools.product(range(digits), repeat=len(rows)))
    with pytest.MonkeyPatch.context() as patch:
        branches = Branches(choice.domain)  # type: ignore[arg-type]
        patch.setattr(rank_choice, "pick", branches.pick)
        patch.setattr(rank_choice, "_TIES", TIES)
        for ties in every:
            for outcome, likely in branches.law(choice, exact, list(ties)).items():
                law[outcome] += likely / len(every)
    assert math.isclose(math.fsum(law.values()), 1.0, rel_tol=1e-9)
    return law


def exact_epsilon(choice: RankChoice, units: list[Rows], most: int, relation: str) -> float:
    """Return the largest log-ratio between any two neighbours of up to `most` units."""
    datasets: dict[tuple[int, ...], dict[Any, float]] = {}
    for size in range(most + 1):
        for members in itertools.combinations_with_replacement(range(len(units)), size):
            rows = tuple(row for member in members for row in units[member])
            datasets[members] = law_of(choice, rows)

    def apart(one: tuple[int, ...], other: tuple[int, ...]) -> float:
        first, second = datasets[one], datasets[other]
        return max(abs(math.log(first[out]) - math.log(second[out])) for out in first)

    worst = 0.0
    for members in datasets:
        if len(members) == most:
            continue
        more = [tuple(sorted((*members, unit))) for unit in range(len(units))]
        if relation == "add-remove":
            worst = max(worst, *(apart(members, other) for other in more))
        else:
            worst = max(worst, *(apart(a, b) for a, b in itertools.combinations(more, 2)))
    return worst


#: Measures on the domain: flat, and with nearly all of it at one place, which makes ratios large.
FLAT, LEFT, MIDDLE = (1, 1, 1), (10**6, 10**3, 1), (1, 10**6, 1)
SINGLE: list[Rows] = [((number, 1),) for number in range(3)]
#: Units of two steps: two rows anywhere, or one row that counts twice.
DOUBLE: list[Rows] = [((a, 1), (b, 1)) for a in range(3) for b in range(a, 3)] + [((1, 2),)]
#: Quantiles, measures, units, and up to how many of them.
TINY: dict[str, tuple[Any, Any, list[Rows], int]] = {
    "median": ((0.5,), (FLAT, LEFT, MIDDLE), SINGLE, 4),
    "lowest": ((0.0,), (FLAT, LEFT, MIDDLE), SINGLE, 4),
    "tenth": ((0.1,), (FLAT, LEFT, MIDDLE), SINGLE, 4),
    "median of units": ((0.5,), (FLAT, MIDDLE), DOUBLE, 3),
    "two": ((0.25, 0.75), (FLAT, LEFT, MIDDLE), SINGLE, 3),
    "three": ((0.25, 0.5, 0.75), (LEFT, MIDDLE), SINGLE, 2),
}
#: Quantiles, a measure, how many records have each number, units: where epsilon is nearly reached.
AIMED: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...], list[Rows]]] = {
    "median": ((0.5,), LEFT, (0, 4, 0), SINGLE),
    "median of units": ((0.5,), (10**9, 1, 1), (0, 9, 0), DOUBLE),
    "tenth": ((0.1,), (10**9, 1, 1), (0, 20, 0), SINGLE),
    "three": ((0.25, 0.5, 0.75), (1, 10**9, 1, 1), (0, 0, 4, 8), SINGLE),
}


def planned(masses: tuple[int, ...], quantiles: Any, relation: str, steps: int) -> RankChoice:
    most = Contribution(rows=steps, unit="one unit", sentences=("of units",))
    wanted = tuple(map(Fraction, quantiles))
    real = plan_quantiles(Decimals(0.0, 2.0), wanted, Relation.of(relation), Budget(1.0), most)
    return replace(real, domain=Few(masses))  # type: ignore[arg-type]


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize("case", TINY)
def test_the_exact_epsilon_between_all_neighbours_is_at_most_the_stated_one(
    case: str, relation: str
) -> None:
    quantiles, measures, units, most = TINY[case]
    steps = sum(row[1] for row in units[0])
    worst = [
        exact_epsilon(planned(masses, quantiles, relation, steps), units, most, relation)
        for masses in measures
    ]
    assert 0.3 < max(worst) <= 1.0 + 1e-9


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize("case", AIMED)
def test_noise_that_is_a_tenth_too_small_is_found(
    case: str, relation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where many records and an uneven measure bring out nearly all of the stated epsilon.

    All records have the same random digit, for which the bound holds as for any other.
    """
    quantiles, masses, numbers, units = AIMED[case]
    monkeypatch.setattr(sys.modules[__name__], "TIES", 1)
    rest: Rows = tuple((number, 1) for number, many in enumerate(numbers) for _ in range(many))
    choice = planned(masses, quantiles, relation, sum(row[1] for row in units[0]))
    too_small = replace(choice, rates=tuple(rate * 10 / 9 for rate in choice.rates))

    def worst(choice: RankChoice) -> float:
        laws = [law_of(choice, (*rest, *unit)) for unit in units]
        nothing = law_of(choice, rest)
        pairs = (
            [(nothing, law) for law in laws]
            if relation == "add-remove"
            else list(itertools.combinations(laws, 2))
        )
        return max(
            abs(math.log(one[outcome]) - math.log(other[outcome]))
            for one, other in pairs
            for outcome in one
        )

    assert worst(choice) <= 1.0 + 1e-9
    if (case, relation) != ("three", "replace-one"):  # each level is bounded for a worse case
        assert worst(too_small) > 1.0 + 1e-9


@dataclass(frozen=True)
class FewLimits(Few):
    """The same few numbers, or their negatives, for limits."""

    shift: int = 0
    low: int = 0

    @property
    def high(self) -> int:
        return len(self.masses) - 1

    def place(self, records: np.ndarray) -> np.ndarray:
        return super().place(records + self.shift)

    def number(self, code: int) -> float:
        return float(code - self.shift)


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize("q", [0.5, 0.25, 1.0])
def test_limits_and_quantile_together_cost_at_most_the_stated_epsilon(
    q: float, relation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = (Fraction(q),)
    real = plan_quantiles(Decimals(0.0, 2.0), wanted, Relation.of(relation), Budget(1.0), level=0.9)
    beyond = tuple(replace(limit, beyond=1) for limit in real.limits)  # as few records need it
    choice = replace(real, domain=Few(FLAT), limits=beyond)  # type: ignore[arg-type]
    monkeypatch.setattr(
        rank_choice.Coarse, "of", lambda _, mirrored: FewLimits(FLAT, shift=2 if mirrored else 0)
    )
    assert 0.3 < exact_epsilon(choice, SINGLE, 4, relation) <= 1.0 + 1e-9
