"""Lower bounds on epsilon from one training with many canaries.

Each canary is put in by its own fair coin; the auditor guesses some of the coins
from one output. The canaries may influence each other in any way. Two bounds on
how many guesses can be right:

* :func:`one_run`: Steinke, Nasr and Jagielski (2023), Theorem 5.2, for every
  (epsilon, delta)-DP mechanism.
* :func:`one_run_tradeoff`: Mahloujifar, Melis and Chaudhuri (2024), for mechanisms
  with a known family of trade-off curves; a proof is in ``docs/auditing-details.md``.

How many coins to guess is chosen from a short list fixed in advance, by the union
bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import betainc, expit

from noisewise.auditing.bounds.bound import Bound
from noisewise.auditing.noise_model import NoiseModel
from noisewise.auditing.scores import Scores

__all__ = ["Guesses", "guesses", "one_run", "one_run_tradeoff"]


_SHRINK = 0.7


@dataclass(frozen=True)
class Guesses:
    """Guesses of coins: so many were made, so many were right."""

    canaries: int
    made: int
    right: int


def guesses(scores: Scores, seed: int = 0) -> list[Guesses]:
    """Guess "in" for the largest scores and "out" for the smallest ones.

    All canaries, 70 per cent of them, 70 per cent of those, and so on; each time both
    kinds of guesses in equal number, and "in" only. Ties are broken at random, without
    the coins.
    """
    _require_coins(scores)
    values = np.concatenate([scores.inside, scores.outside])
    coins = np.concatenate([np.ones(scores.inside.size, bool), np.zeros(scores.outside.size, bool)])
    shuffled = np.random.default_rng(seed).permutation(values.size)
    order = shuffled[np.argsort(values[shuffled], kind="stable")]
    coins = coins[order]
    found = []
    size = values.size // 2
    while size >= 1:
        wrong_low, right_high = int(coins[:size].sum()), int(coins[-size:].sum())
        found.append(Guesses(values.size, 2 * size, size - wrong_low + right_high))
        found.append(Guesses(values.size, size, right_high))
        if size <= 8:
            break
        size = int(_SHRINK * size)
    return found


def one_run(scores: Scores, *, delta: float, confidence: float = 0.95) -> Bound:
    """Lower bound on epsilon from one run, for every mechanism.

    Examples
    --------
    >>> perfect = Scores([1.0] * 50, [0.0] * 50, design="one-run", coins=True)
    >>> round(one_run(perfect, delta=1e-5).epsilon, 1)
    2.9
    """

    def best(candidates: list[Guesses]) -> float:
        error = (1 - confidence) / len(candidates)
        return max(_largest_epsilon(guess, delta, error) for guess in candidates)

    found = guesses(scores)
    return Bound(
        epsilon=best(found),
        largest=best(guesses(scores.perfect())),
        method="one-run",
        kind="confidence",
        rule=_rule(found),
    )


def one_run_tradeoff(
    scores: Scores, *, delta: float, confidence: float = 0.95, model: NoiseModel | None = None
) -> Bound:
    """Lower bound on epsilon from one run, for mechanisms that add Gaussian noise."""
    family = NoiseModel(relation=scores.relation) if model is None else model

    def best(candidates: list[Guesses]) -> tuple[float, float]:
        error = (1 - confidence) / len(candidates)
        noise = min(_noise(guess, family, error) for guess in candidates)
        return family.epsilon(noise, delta), noise

    found = guesses(scores)
    epsilon, noise = best(found)
    largest, _ = best(guesses(scores.perfect()))
    return Bound(
        epsilon=epsilon,
        largest=max(largest, epsilon),
        method="one-run-tradeoff",
        kind="confidence",
        noise_multiplier=noise,
        rule=_rule(found),
        assumptions=family.sentences,
    )


def p_value(guess: Guesses, epsilon: float, delta: float) -> float:
    """Probability of as many right guesses under (epsilon, delta)-DP, at most.

    P[B >= v] + 2 m delta max_i P[v > B >= v - i] / i, with B binomial over the guesses
    that were made, at the rate e^eps / (1 + e^eps).
    """
    rate = float(expit(epsilon))
    tail = float(_at_least(np.array([guess.right]), guess.made, rate)[0])
    if delta == 0.0 or guess.right == 0:
        return tail
    steps = np.arange(1, guess.right + 1)
    lost = _at_least(guess.right - steps, guess.made, rate) - tail
    return min(1.0, tail + 2 * guess.canaries * delta * float(np.max(lost / steps)))


def refutes(guess: Guesses, blow_up_inverse: Callable[[float], float], error: float) -> bool:
    """Whether as many right guesses have probability below `error` under the trade-off curve.

    With p_i the probability of exactly i right guesses of c', R_t = sum_{i>=t} i p_i / m
    and H_t = sum_{i>=t} (c'-i) p_i / m, f-DP implies R_{t+1} <= 1 - f(H_t). Starting
    from P[right >= c] = error, all of it at c, this forces mass upon smaller counts;
    if the total exceeds 1, the start was impossible.
    """
    made, right, canaries = guess.made, guess.right, guess.canaries
    hits = error * right / canaries
    misses = error * (made - right) / canaries
    total = made / canaries
    for count in range(right - 1, -1, -1):
        needed = blow_up_inverse(min(hits, 1.0))
        # No mass is needed at this count; smaller counts then need none either,
        # because neither sum changes any more.
        if needed <= misses:
            break
        hits += count / (made - count) * (needed - misses)
        misses = needed
        if hits + misses > total:
            return True
    return hits + misses > total


def _at_least(count: NDArray[np.int64], total: int, rate: float) -> NDArray[np.float64]:
    """P[binomial >= count]."""
    positive = np.maximum(count, 1)
    return np.where(count <= 0, 1.0, betainc(positive, total - positive + 1.0, rate))


@lru_cache(maxsize=1024)
def _largest_epsilon(guess: Guesses, delta: float, error: float) -> float:
    def surplus(epsilon: float) -> float:
        return math.log(error) - math.log(max(p_value(guess, epsilon, delta), 1e-300))

    if surplus(0.0) < 0.0:
        return 0.0
    high = 1.0
    while surplus(high) > 0.0:
        high *= 2
    # The root is found to 1e-7; stepping back keeps the answer on the side that is refuted.
    return max(0.0, float(brentq(surplus, 0.0, high, xtol=1e-8)) - 1e-7)


def _noise(guess: Guesses, family: NoiseModel, error: float) -> float:
    """Smallest noise multiplier that is refuted, rounded up."""

    def refuted(noise: float) -> bool:
        return refutes(guess, family.blow_up_inverse(noise), error)

    low, high = 1.0, 1.0
    while refuted(low):
        low, high = low / 2, low
        if low < 0.02:
            return high
    while not refuted(high):
        low, high = high, 2 * high
        if high > 1e4:
            return math.inf
    while high > low * 1.002:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if refuted(middle) else (middle, high)
    return high


def _require_coins(scores: Scores) -> None:
    if not scores.coins:
        raise ValueError(
            "one-run bounds need canaries that were each put in by its own fair coin, and these "
            "scores do not say so: collect them that way and pass coins=True"
        )


def _rule(found: list[Guesses]) -> str:
    return f"{len(found)} numbers of guesses fixed in advance, union bound"
