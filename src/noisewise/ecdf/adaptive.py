"""How fine to measure: a private look at the shape of the data before the curve is released.

With n records spread over N bins by independent draws from a density that hardly changes within m
bins, the ECDF deviates from straight lines over blocks of m bins by (m - 1/m) n / (6 N) in mean
square, whatever the density is. Measuring blocks only has less noise; so the best width of a
block follows from n, N and epsilon, all public (or, if n is private, from a noisy n), and from
the noisy number of bins that hold records: where there are none, making the curve monotone
removes most of the noise anyhow, but no error of interpolation. Whether *this* dataset is so
smooth is measured, for that width, a fourth and a sixteenth of it: with c_i the records up to bin
i of their block and C those in the block, the vector

    g_i = m c_i - i C          (m times the distance of the ECDF from its straight lines)

is linear in the records, so its length moves by at most the length of one record's change. A
record that comes or goes changes g by m [i >= j] - i, of squared length at most
(m-1) m (2m-1) / 6 (it is in the first or last bin of its block). A record that is replaced
changes it by at most m^2 (m-1) (it moves from the first to the last bin of a block), or by twice
the former (it changes its block), which is less; the first and the last bin, where records
outside the bounds are, are blocks of their own and have no part in g. The lengths are rounded to
integers and get discrete Laplace noise. All looks together cost a 64th of epsilon. Where lines
are off by more than they save, e.g. for data that take few values, all bins are measured as ever,
at the cost of that 64th: errors are larger by 1.6 %.

The rule balances mean squares over all thresholds. An error of interpolation is concentrated
on blocks with large atoms, so that the largest error of a curve can be larger; confidence
bands allow for any shape inside a block.

Proof: docs/proofs/curves.md#adaptive.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

import numpy as np

from noisewise.ecdf.budget import Budget
from noisewise.ecdf.mechanisms import plan
from noisewise.ecdf.mechanisms.coarse import CoarseTree
from noisewise.ecdf.mechanisms.kary import CountTree
from noisewise.ecdf.mechanisms.protocol import IntArray, Mechanism
from noisewise.privacy import Pure, Randomness, Relation, Sensitivity
from noisewise.privacy.randomness import exact_scale
from noisewise.release import (
    Account,
    Envelope,
    IntegerNoise,
    MemoryAccount,
    Query,
    ThisProcess,
    release,
)

__all__ = ["Choice", "bend", "bend_sensitivity_squared", "choose_width", "propose_width"]

# The part of epsilon for looking; of that, the parts for the number of bins that hold records, and
# for the number of records if it is private.
LOOK = 2.0**-6
PART = 0.25
# With fewer blocks the looks would be too noisy to decide: their noise in counts is about
# 1.75 sqrt(width / bins) / (LOOK epsilon), here 7 / epsilon, beside 30 / epsilon for the curve.
FEWEST_BLOCKS = 256
# What a squared error of interpolation counts, beside the variance of noise, if all bins hold
# records. Making the curve monotone removes some noise, and more if few bins do.
PENALTY = 1.5
LEAST_FILLED = 0.1
# Steps of the grid of the length in one record's change.
STEPS = 1 << 12


@dataclass(frozen=True)
class Choice:
    """What is measured, and what was spent to find out.

    Parameters
    ----------
    mechanism : Mechanism
        For all bins, or for blocks of them; with its reason.
    looks : dict of str to float
        What was released for this choice, and its epsilon. Which looks were taken depends on
        earlier ones, so that only their largest sum, LOOK of the budget, is a guarantee.
    """

    mechanism: Mechanism
    looks: dict[str, float]


def bend(counts: IntArray, width: int) -> int:
    """Return |g|^2, exactly: how far the cumulative counts are from lines over blocks.

    `counts` are those of all bins but the first and the last, which have blocks of their own.

    Examples
    --------
    >>> bend(np.array([2, 2, 5, 5]), 2), bend(np.array([4, 0, 0, 1]), 2)
    (0, 17)
    """
    padded = np.zeros(-(-counts.size // width) * width, np.int64)
    padded[: counts.size] = counts
    inside = np.cumsum(padded.reshape(-1, width), axis=1)
    # Exact: |g_i| <= width n, which fits; squares are summed in integers of any size if need be.
    gaps = width * inside - np.arange(1, width + 1) * inside[:, -1:]
    if width**3 * int(counts.sum()) ** 2 < 1 << 62:
        return int((gaps**2).sum())
    return sum(gap * gap for gap in gaps[gaps != 0].tolist())


def bend_sensitivity_squared(width: int, relation: Relation) -> int:
    """Return the largest |g' - g|^2 over neighbours."""
    if relation.count_is_public:
        return width**2 * (width - 1)
    return (width - 1) * width * (2 * width - 1) // 6


def propose_width(
    bins: int, records: float, epsilon: float, relation: Relation, penalty: float = PENALTY
) -> int:
    """Return the width of blocks of least expected error if records are spread smoothly.

    The variance of a tree of h equal levels over B blocks is about h (B^(1/h) - 1) / 6 times
    that of a node, 2 (c h / epsilon)^2, where a record changes c nodes of a level.

    Examples
    --------
    >>> propose_width(2**15, 10**6, 1.0, Relation("replace-one"))
    16
    >>> propose_width(2**15, 10**9, 1.0, Relation("replace-one"))
    1
    """

    def error(width: int) -> float:
        blocks = math.ceil(bins / width)
        noise = min(
            (relation.sum_factor * h / epsilon) ** 2 * h * (math.pow(blocks, 1 / h) - 1) / 3
            for h in range(1, 9)
        )
        return noise + penalty * records / bins * (width - 1 / width) / 6

    widths = [1]
    for power in range(1, bins.bit_length()):
        widths += [
            w for w in (2**power, 3 * 2 ** (power - 1)) if math.ceil(bins / w) >= FEWEST_BLOCKS
        ]
    best = min(widths, key=error)
    # Looking is not free: it has to promise a gain.
    return best if error(best) < 0.9 * error(1) else 1


def choose_width(
    counts: IntArray,
    relation: Relation,
    budget: Budget,
    source: Randomness,
    account: Account | None = None,
) -> Choice:
    """Look, and decide whether blocks of bins are measured or all bins.

    Parameters
    ----------
    counts : array
        Histogram of the records: private.
    relation, budget : Relation, Budget
        Of the whole curve; the budget is pure.
    source : Randomness
        Where noise comes from.
    account : Account, optional
        In which all looks together are set aside; by default in memory.
    """
    if account is None:
        account = envelope = Envelope(MemoryAccount(), budget.epsilon, source)
        source = envelope.rng
    bins, look = counts.size, LOOK * budget.epsilon
    looks: dict[str, float] = {}

    def noisy(value: int, change: int, part: float, what: str) -> int:
        scale = exact_scale(change / part * (1 + 1e-12))
        cost = Fraction(change) / scale
        looks[what] = float(cost)
        bound = Sensitivity(change, "l1", relation)
        event = Pure(math.nextafter(float(cost), math.inf))
        noise = IntegerNoise("laplace", scale, bound, event, "discrete Laplace noise")
        query = Query.of(lambda held: held, bound, what)
        return int(release(query, noise, ThisProcess(value), account, rng=source).value)

    def take(value: int, what: str) -> int:
        nonlocal look
        look -= PART * LOOK * budget.epsilon
        return max(0, noisy(value, 1, PART * LOOK * budget.epsilon, what))

    number, largest, penalty = int(counts.sum()), 1, PENALTY
    if not relation.count_is_public:
        number = take(number, "number of records")
    if propose_width(bins, number, budget.epsilon, relation) > 1:
        # A record that moves may fill a bin and leave another one empty: a change of one at most.
        filled = take(int(np.count_nonzero(counts)), "number of filled bins") / bins
        # As a part of the bins that would be filled if records were spread evenly.
        filled /= -math.expm1(-max(number, 1) / bins)
        penalty = PENALTY / min(max(filled, LEAST_FILLED), 1.0)
        largest = propose_width(bins, number, budget.epsilon, relation, penalty)
    widths = [width for width in (largest, largest // 4, largest // 16) if width > 1]
    # If n is public, so is the decision not to look, and nothing was spent on it.
    rest = _rest(budget) if looks else budget
    fine = plan(bins, relation, rest, mechanism="kary")
    best, least = fine, fine.mean_variance
    said = [f"the noise of all {bins} bins is {math.sqrt(least):.3g} (root mean square)"]
    reaches = [math.sqrt(bend_sensitivity_squared(width, relation)) / width for width in widths]
    for width, reach in zip(widths, reaches, strict=True):
        # All looks get the same noise, in counts.
        part = look * (1 - 1e-12) * reach / math.fsum(reaches)
        squared_line = _look(counts, width, relation, part, noisy)
        coarse = _coarse(bins, width, relation, rest)
        said.append(
            f"that of blocks of {width} bins {math.sqrt(coarse.mean_variance):.3g}, with lines "
            f"that are off by about {math.sqrt(squared_line):.3g}"
        )
        if (error := coarse.mean_variance + penalty * squared_line) < least:
            best, least = coarse, error
    return Choice(replace(best, reason="; ".join(said)), looks)


def _look(
    counts: IntArray,
    width: int,
    relation: Relation,
    epsilon: float,
    noisy: Callable[[int, int, float, str], int],
) -> float:
    """Return the noisy mean squared distance of the curve from lines over blocks, in counts."""
    change_squared = bend_sensitivity_squared(width, relation)
    # The length in units of 1/unit is an integer, and moves by less than `change` + 1.
    unit = math.isqrt(STEPS**2 // change_squared) + 1
    length = math.isqrt(unit**2 * bend(counts[1:-1], width))
    change = math.isqrt(unit**2 * change_squared - 1) + 1
    what = f"distance of the curve from lines over {width} bins"
    found = max(0, noisy(length, change, epsilon, what))
    # Less the variance of the noise, so that the square is right on average (or too large, by
    # what is cut off at zero).
    square = max(0.0, float(found**2) - 2 * (change / epsilon) ** 2)
    return square / (unit * width) ** 2 / counts.size


def _rest(budget: Budget) -> Budget:
    """Return what is left after a look; rounded down, so that nothing is overspent."""
    return Budget(math.nextafter(budget.epsilon * (1 - LOOK), 0.0))


@lru_cache(maxsize=64)
def _coarse(bins: int, width: int, relation: Relation, budget: Budget) -> Mechanism:
    inner = plan(CoarseTree.count(bins, width), relation, budget, mechanism="kary")
    tree = inner.strategy
    assert isinstance(tree, CountTree)
    return replace(inner, strategy=CoarseTree(tree, bins, width))
