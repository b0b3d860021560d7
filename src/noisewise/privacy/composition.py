"""The theorems by which guarantees combine, as functions (Barczewski 2025, section 3.1.2).

The accountants of :mod:`noisewise.privacy.accounting` are tighter and are what
the library uses. These are the textbook bounds, to check by hand, to teach, and
to combine guarantees of which nothing but (epsilon, delta) is known. Each takes
and returns :class:`Guarantee` pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from noisewise import checks
from noisewise.privacy.accountants import ACCOUNTANTS
from noisewise.privacy.accounting import epsilon_of
from noisewise.privacy.events import Event, as_history
from noisewise.privacy.relation import Relation

__all__ = [
    "Guarantee",
    "advanced_composition",
    "amplification_by_sampling",
    "classic_gaussian_deviation",
    "group_privacy",
    "group_privacy_of",
    "renyi_to_approximate",
    "simple_composition",
    "zero_concentrated_to_approximate",
]


class Guarantee(NamedTuple):
    """(epsilon, delta)-differential privacy; unpacks like a pair."""

    epsilon: float
    delta: float


def simple_composition(parts: Iterable[tuple[float, float]]) -> Guarantee:
    """Guarantees add up (Theorem 3.1.2), also when chosen adaptively.

    Examples
    --------
    >>> simple_composition([(0.5, 0.0), (0.25, 1e-6)])
    Guarantee(epsilon=0.75, delta=1e-06)
    """
    checked = [_guarantee(*part) for part in parts]
    return Guarantee(
        math.fsum(part.epsilon for part in checked),
        min(1.0, math.fsum(part.delta for part in checked)),
    )


def advanced_composition(epsilon: float, delta: float, count: int, slack: float) -> Guarantee:
    """K adaptive releases cost about sqrt(K) epsilon (Theorem 3.1.3).

    epsilon' = sqrt(2 K ln(1/slack)) epsilon + K epsilon (e^epsilon - 1) at
    delta' = K delta + slack, or the sum K epsilon at K delta if that is smaller.
    """
    epsilon, delta = _guarantee(epsilon, delta)
    count = checks.integer("count", count, minimum=1)
    slack = checks.fraction("slack", slack)
    rooted = math.sqrt(2 * count * math.log(1 / slack)) * epsilon
    advanced = rooted + count * epsilon * math.expm1(min(epsilon, 700.0))
    return Guarantee(min(advanced, count * epsilon), min(1.0, count * delta + slack))


def group_privacy(epsilon: float, delta: float, size: int) -> Guarantee:
    """Guarantee towards `size` records that change together (Theorem 3.1.6).

    delta grows by (e^{K epsilon} - 1) / (e^epsilon - 1), what K applications of
    the definition give. Barczewski (2025) prints the looser K e^{K epsilon}.

    Examples
    --------
    >>> group_privacy(0.1, 0.0, 3).epsilon == 3 * 0.1
    True
    """
    epsilon, delta = _guarantee(epsilon, delta)
    size = checks.integer("size", size, minimum=1)
    total = size * epsilon
    if delta == 0.0:
        return Guarantee(total, 0.0)
    if total > 700.0:
        return Guarantee(total, 1.0)
    growth = size if epsilon == 0.0 else math.expm1(total) / math.expm1(epsilon)
    return Guarantee(total, min(1.0, growth * delta))


def group_privacy_of(
    history: Event | Iterable[Event],
    *,
    size: int,
    delta: float,
    relation: Relation | str = "add-remove",
    accountant: str = "pld",
) -> float:
    """What a statement about one record says of `size` records of one person: a bad bound.

    The epsilon at `delta` of a group, by :func:`group_privacy` from the best smaller delta for one
    record. A unit that is bounded, or accounted for, as a whole costs far less; this is what is
    left to a reader who was given a statement about rows. Infinite where nothing follows.

    Examples
    --------
    >>> from noisewise.privacy import PoissonGaussian, PoissonRows
    >>> group_privacy_of(PoissonGaussian(2.0, 0.01, 500), size=8, delta=1e-5) > epsilon_of(
    ...     PoissonRows(2.0, 0.01, 8, 500), delta=1e-5
    ... )
    True
    """
    events, target = as_history(history), checks.fraction("delta", delta)
    size = checks.integer("size", size, minimum=1)
    checks.choice("accountant", accountant, ACCOUNTANTS)

    def cost(log_delta: float) -> Guarantee:
        left = math.exp(log_delta)
        # Where rounding forbids so small a delta, Renyi orders still give a true bound.
        refused = ACCOUNTANTS[accountant].refusal(events, left) is not None
        chosen = "rdp" if refused else accountant
        one = epsilon_of(events, delta=left, relation=relation, accountant=chosen)
        return group_privacy(one, left, size) if math.isfinite(one) else Guarantee(one, 1.0)

    low, high = math.log(max(target * 1e-200, 2e-12)), math.log(target)
    if cost(low).delta > target:
        return math.inf
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if cost(middle).delta <= target else (low, middle)
    return cost(low).epsilon


def amplification_by_sampling(epsilon: float, delta: float, sample_rate: float) -> Guarantee:
    """Guarantee of a release that saw a Poisson sample, under add-remove.

    epsilon' = ln(1 + q (e^epsilon - 1)) and delta' = q delta (Balle, Barthe and
    Gaboardi 2018). It needs *secret* independent sampling of each record.
    """
    epsilon, delta = _guarantee(epsilon, delta)
    rate = checks.probability("sample_rate", sample_rate)
    # ln(1 + q (e^x - 1)) = x + ln(q + (1 - q) e^-x), which does not overflow.
    amplified = epsilon + math.log(rate + (1 - rate) * math.exp(-epsilon))
    if epsilon < 1.0:
        amplified = math.log1p(rate * math.expm1(epsilon))
    return Guarantee(amplified, rate * delta)


def renyi_to_approximate(order: float, divergence: float, delta: float) -> Guarantee:
    """(order, divergence)-RDP as (epsilon, delta)-DP.

    Theorem 3.1.5 of Barczewski (2025), after Mironov (2017), is divergence + ln(1/delta) /
    (order - 1); this is the sharper Prop. 12 of Canonne, Kamath and Steinke (2020), never
    larger.
    """
    order = checks.finite("order", order)
    if order <= 1:
        raise ValueError(f"order must be > 1, got {order!r}")
    divergence = checks.positive("divergence", divergence, zero=True)
    delta = checks.fraction("delta", delta)
    epsilon = divergence + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)
    return Guarantee(max(0.0, epsilon), delta)


def zero_concentrated_to_approximate(rho: float, delta: float) -> Guarantee:
    """rho-zCDP as (epsilon, delta)-DP by the closed form rho + 2 sqrt(rho ln(1/delta))."""
    rho = checks.positive("rho", rho, zero=True)
    delta = checks.fraction("delta", delta)
    return Guarantee(rho + 2 * math.sqrt(rho * math.log(1 / delta)), delta)


def classic_gaussian_deviation(epsilon: float, delta: float, sensitivity: float) -> float:
    """Deviation sqrt(2 ln(1.25/delta)) sensitivity / epsilon, valid for epsilon <= 1 only.

    For comparison (Barczewski 2025, Algorithm 3). At epsilon 10 and 20 it really gives
    10.4 and 25.4 (delta 1e-5), so above 1 this function refuses;
    :func:`noisewise.privacy.gaussian` is exact for every epsilon.
    """
    epsilon = checks.positive("epsilon", epsilon)
    delta = checks.fraction("delta", delta)
    sensitivity = checks.positive("sensitivity", sensitivity, zero=True)
    if epsilon > 1:
        raise ValueError(
            f"epsilon must be <= 1 for the classic Gaussian lemma, got {epsilon!r}; "
            "use noisewise.privacy.gaussian, which is exact for every epsilon"
        )
    return math.sqrt(2 * math.log(1.25 / delta)) * sensitivity / epsilon


def _guarantee(epsilon: float, delta: float) -> Guarantee:
    return Guarantee(
        checks.positive("epsilon", epsilon, zero=True),
        checks.probability("delta", delta, zero=True),
    )
