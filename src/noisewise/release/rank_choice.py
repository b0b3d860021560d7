"""Choosing points by their rank: the exponential mechanism over all numbers.

A point t of the domain of :mod:`noisewise.release.decimals` is chosen with probability proportional
to measure(t) exp(-rate s(t)), where s(t) says by how much t misses the rank that is wanted. Between
two records s is constant, so the choice is one of a gap (:mod:`noisewise.release.picking`, exact)
and of a place in it.

Several quantiles are chosen by recursive splitting (Kaplan, Schnapp and Stemmer 2022): the middle
one first, then those below it among the records below and those above it among the others. Every
record has random digits after its own, which decide on which side of a point it is if both are the
same number; so values that many records share are split where their rank says.

Proof: docs/proofs/curves.md#quantiles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from noisewise.privacy import Event, Randomness, Sensitivity
from noisewise.release.decimals import Coarse, Decimals
from noisewise.release.picking import Regions, pick

__all__ = ["RankChoice", "RankLimit", "Ranked", "spread_of"]

IntArray = NDArray[np.int64]
Point = tuple[int, int]
_TIES = 1 << 63


@dataclass(frozen=True, eq=False)
class Ranked:
    """Records: their numbers, and how many steps of a count each is."""

    values: NDArray[np.float64]
    steps: IntArray


@dataclass(frozen=True)
class RankLimit:
    """A point that is to lie so many steps beyond a quantile.

    Parameters
    ----------
    q : Fraction
    beyond : int
        Steps.
    upper : bool
        Above it, or below.
    rate : Fraction
        What is spent on it.
    """

    q: Fraction
    beyond: int
    upper: bool
    rate: Fraction


@dataclass(frozen=True)
class RankChoice:
    """Noise that is no number: points whose ranks are about right.

    Parameters
    ----------
    domain : Decimals
    quantiles : tuple of Fraction
        Increasing, in [0, 1].
    rates : tuple of Fraction
        What is spent on each level of the recursion: by how much one unit may move the logarithms
        of the probabilities of two points apart.
    planned : Sensitivity
        How many steps of a count one unit may be, in the largest-entry norm.
    event : Event
    description : str
    limits : tuple of RankLimit
    public_total : bool
        Whether the sum of all steps is the same for all neighbours.
    assumptions : tuple of str
    """

    domain: Decimals
    quantiles: tuple[Fraction, ...]
    rates: tuple[Fraction, ...]
    planned: Sensitivity
    event: Event
    description: str
    limits: tuple[RankLimit, ...] = ()
    public_total: bool = False
    assumptions: tuple[str, ...] = ()

    @property
    def sensitivity(self) -> tuple[Sensitivity, ...]:
        """Of every number of records."""
        return (self.planned,)

    def spread(self, part: Fraction, level: int = 0) -> Fraction:
        """Return how far one unit moves two scores apart at a node of the recursion."""
        return spread_of(part, self.planned, self.public_total and level == 0)

    def applied(self, exact: Ranked, rng: Randomness) -> list[float]:
        """Return the quantiles, then the limits."""
        # A stream of its own: how much is drawn of it depends on the records.
        (own,) = rng.spawn(1)
        table = _Table(self.domain, exact, own if len(self.quantiles) > 1 else None)
        found: dict[Fraction, int] = {}
        self._split(
            table, 0, (0, len(exact.values)), self.quantiles, (0, 1), table.ends, found, own
        )
        chosen = [self.domain.number(found[q]) for q in self.quantiles]
        return chosen + [self._limit(limit, exact, own) for limit in self.limits]

    def _split(
        self,
        table: _Table,
        level: int,
        rows: tuple[int, int],
        wanted: tuple[Fraction, ...],
        between: tuple[Any, Any],
        ends: tuple[Point, Point],
        found: dict[Fraction, int],
        rng: Randomness,
    ) -> None:
        """Choose the middle one among some records, then those on both sides."""
        if not wanted:
            return
        middle = len(wanted) // 2
        q, (low, high) = wanted[middle], between
        part = Fraction(q - low) / (high - low)
        rate = self.rates[level] / self.spread(part, level)
        if len(wanted) == 1:
            found[q] = table.number(rows, part, rate, ends, rng)
            return
        at = table.point(rows, part, rate, ends, rng)
        found[q] = at[0]
        cut = table.rows_up_to(at, rows)
        below, above = wanted[:middle], wanted[middle + 1 :]
        self._split(table, level + 1, (rows[0], cut), below, (low, q), (ends[0], at), found, rng)
        self._split(table, level + 1, (cut, rows[1]), above, (q, high), (at, ends[1]), found, rng)

    def _limit(self, limit: RankLimit, exact: Ranked, rng: Randomness) -> float:
        """Choose a limit: a lower one, or the negative of a lower one of negated records."""
        sign = -1.0 if limit.upper else 1.0
        coarse = Coarse.of(self.domain, limit.upper)
        place = coarse.place(sign * exact.values)
        order = np.argsort(place, kind="stable")
        below = np.concatenate([[0], np.cumsum(exact.steps[order])])
        q = 1 - limit.q if limit.upper else limit.q
        target = q * int(below[-1]) - limit.beyond
        rate = limit.rate / self.spread(q)
        ends = (coarse.low, coarse.high)
        chosen = _number(coarse, place[order], below, target, rate, ends, rng, open_below=True)
        return sign * coarse.number(chosen)


def spread_of(part: Fraction, planned: Sensitivity, public_total: bool) -> Fraction:
    """How far one unit can move the scores of two points apart.

    A record that comes below t moves N - q n by 1 - q, one above by -q, where N of n records are
    below t: two absolute values are moved apart by at most 2 max(q, 1 - q). A unit that is replaced
    leaves some records and enters the same or others: twice that. If n is the same for all
    neighbours, it moves N by one, and two scores by 2 at most.
    """
    steps = Fraction(planned.value)
    if not planned.relation.count_is_public:
        return 2 * max(part, 1 - part) * steps
    return 2 * steps if public_total else 4 * max(part, 1 - part) * steps


class _Measure(Protocol):
    def upto(self, codes: Any) -> list[int]: ...

    def find(self, mass: int, low: int, high: int) -> int: ...


class _Table:
    """Records in order, with the random digits that decide ties if there is a source of them."""

    def __init__(self, domain: Decimals, exact: Ranked, rng: Randomness | None) -> None:
        self.domain = domain
        codes = domain.place(exact.values)
        ties = np.zeros(codes.size, np.int64)
        if rng is not None:
            ties = (rng.uint64(codes.size) >> np.uint64(1)).astype(np.int64)
        order = np.lexsort((ties, codes))
        self.codes, self.ties = codes[order], ties[order]
        self.below = np.concatenate([[0], np.cumsum(exact.steps[order])])
        low, high = domain.ends
        self.ends: tuple[Point, Point] = ((low, 0), (high + 1, 0))

    def rows_up_to(self, at: Point, rows: tuple[int, int]) -> int:
        """Return the first of these rows after a point, or the end of them."""
        start = int(np.searchsorted(self.codes, at[0], side="left"))
        end = int(np.searchsorted(self.codes, at[0], side="right"))
        row = start + int(np.searchsorted(self.ties[start:end], at[1], side="right"))
        return min(max(row, rows[0]), rows[1])

    def _target(self, rows: tuple[int, int], part: Fraction) -> Fraction:
        first, last = int(self.below[rows[0]]), int(self.below[rows[1]])
        return first + part * (last - first)

    def number(
        self,
        rows: tuple[int, int],
        part: Fraction,
        rate: Fraction,
        ends: tuple[Point, Point],
        rng: Randomness,
    ) -> int:
        """Choose a number; one that records have is right if the rank is anywhere among them."""
        first, last = rows
        high = min(ends[1][0], self.domain.ends[1])
        below = self.below[first : last + 1]
        codes, target = self.codes[first:last], self._target(rows, part)
        return _number(self.domain, codes, below, target, rate, (ends[0][0], high), rng)

    def point(
        self,
        rows: tuple[int, int],
        part: Fraction,
        rate: Fraction,
        ends: tuple[Point, Point],
        rng: Randomness,
    ) -> Point:
        """Choose a number with random digits: between rows, even those of the same number."""
        first, last = rows
        target = self._target(rows, part)
        scale = target.denominator

        def regions(reach: Fraction) -> Regions:
            start, end = _window(self.below[first : last + 1], target, reach / scale)
            start, end = start + first, end + first
            points = list(
                zip(self.codes[start:end].tolist(), self.ties[start:end].tolist(), strict=True)
            )
            if start == first:
                points.insert(0, ends[0])
            if end == last:
                points.append(ends[1])
            # A gap has the count of the row that ends it, or of all if no row does.
            counts = self.below[start + (start != first) : end + (end == last)].tolist()
            marks = self._marks(points)
            masses = [after - before for before, after in pairwise(marks)]
            scores = [abs(count * scale - target.numerator) for count in counts]
            return Regions(scores[: len(masses)], masses, points, marks)

        low, high = self._marks(list(ends))
        found, number, inside = pick(regions, rate / scale, high - low, rng)
        mass = found.marks[number] + inside
        before, after = found.points[number][0], found.points[number + 1][0]
        code = self.domain.find(mass // _TIES, before - 1, after)
        start, end = self.domain.upto([code - 1, code])
        return code, (mass - start * _TIES) // (end - start)

    def _marks(self, points: list[Point]) -> list[int]:
        """Measure below each point, random digits included."""
        codes = np.array([code for code, _ in points], np.int64)
        before, upto = self.domain.upto(codes - 1), self.domain.upto(codes)
        return [
            low * _TIES + (high - low) * tie
            for low, high, (_, tie) in zip(before, upto, points, strict=True)
        ]


def _number(
    domain: _Measure,
    codes: IntArray,
    below: IntArray,
    target: Fraction,
    rate: Fraction,
    ends: tuple[int, int],
    rng: Randomness,
    open_below: bool = False,
) -> int:
    """Choose a code: a record's number is as good as the rank is near to any of its records.

    With `open_below` the lowest code has as many records below it as are wanted.
    """
    low, high = ends
    scale = target.denominator
    wanted = target.numerator

    def regions(reach: Fraction) -> Regions:
        start, end = _window(below, target, reach / scale)
        if start < end:  # whole runs of records with the same number
            start = int(np.searchsorted(codes, codes[start], side="left"))
            end = int(np.searchsorted(codes, codes[end - 1], side="right"))
        distinct, first = np.unique(codes[start:end], return_index=True)
        edges = [*(first + start).tolist(), end]
        numbers = distinct.tolist()
        counts = below[edges].tolist()  # below each number, and after the last
        scores, masses, points = [], [], []

        def add(one: int, last: int, score: int) -> None:
            if one <= last:
                points.append((one, last))
                scores.append(score)

        # From `edge` on nothing is placed yet; between numbers there is a gap.
        edge = low if start == 0 else (numbers[0] if numbers else None)
        if open_below and start == 0 and (not numbers or numbers[0] > low):
            add(low, low, max(0, wanted - counts[0] * scale))
            edge = low + 1
        for place, number in enumerate(numbers):
            under, upto = counts[place] * scale, counts[place + 1] * scale
            if edge is not None:
                add(edge, number - 1, abs(under - wanted))
            if open_below and number == low:
                under = min(under, wanted)
            add(number, number, max(0, under - wanted, wanted - upto))
            edge = number + 1
        if end == codes.size and edge is not None:
            add(edge, high, abs(counts[-1] * scale - wanted))
        starts = domain.upto([one - 1 for one, _ in points])
        stops = domain.upto([last for _, last in points])
        masses = [stop - begin for begin, stop in zip(starts, stops, strict=True)]
        return Regions(scores, masses, points, starts)

    begin, whole = domain.upto([low - 1, high])
    found, number, inside = pick(regions, rate / scale, whole - begin, rng)
    one, last = found.points[number]
    return domain.find(found.marks[number] + inside, one - 1, last)


def _window(below: IntArray, target: Fraction, reach: Fraction) -> tuple[int, int]:
    """Return the rows whose counts are within reach of the target, and one more on each side."""
    low, high = math.floor(target - reach), math.ceil(target + reach)
    rows = below.size - 1
    start = 0 if low <= int(below[0]) else int(np.searchsorted(below, low, side="left")) - 1
    end = rows if high >= int(below[-1]) else int(np.searchsorted(below, high, side="right"))
    return min(max(start, 0), rows), min(max(end, 0), rows)
