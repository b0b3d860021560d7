"""Renyi differential privacy of a history, by dp-accounting where it has a formula.

dp-accounting gives the Renyi divergences of the Poisson-sampled Gaussian under
add-remove (Mironov, Talwar, Zhang 2019) and of the Laplace mechanism, and the
conversion to (epsilon, delta) (Canonne, Kamath, Steinke 2020, Prop. 12). Added
here: Poisson sampling under replace-one, by quadrature of the worst pair; pure
releases, by randomised response; concentrated releases, by definition.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
from absl import logging
from dp_accounting import dp_event
from dp_accounting.rdp import rdp_privacy_accountant as rdp
from numpy.typing import NDArray
from scipy.special import logsumexp

from noisewise.privacy.events import (
    Event,
    Gaussian,
    History,
    Laplace,
    PoissonGaussian,
    Pure,
    ZeroConcentrated,
)
from noisewise.privacy.events import with_count as _with_count
from noisewise.privacy.relation import Relation

__all__ = ["delta", "epsilon", "replace_one_divergence", "size"]

Array = NDArray[np.float64]

ORDERS = tuple(float(order) for order in rdp.DEFAULT_RDP_ORDERS)

#: Quadrature and rounding error of the logarithm of a moment, with room to spare. Where a
#: record hardly matters, dp-accounting's own rounding (measured: up to 1e-14 too small) can
#: make a divergence negative, which its conversion would read as epsilon 0.
_SLACK = 1e-11
_MOST_POINTS = 400_000

_FEW_ORDERS = (2.0, 3.0, 4.0, 6.0, 8.0, 16.0, 32.0, 64.0, 256.0)


def epsilon(history: History, delta: float, relation: Relation) -> float:
    """Upper bound of epsilon at `delta` > 0."""
    value, _ = rdp.compute_epsilon(ORDERS, _total(history, relation), delta)
    return float(value)


def delta(history: History, epsilon: float, relation: Relation) -> float:
    """Upper bound of delta at `epsilon` >= 0."""
    value, _ = rdp.compute_delta(ORDERS, _total(history, relation), epsilon)
    return float(value)


def size(history: History, relation: Relation) -> float:
    """Rough epsilon from few orders, in milliseconds: how large a grid must be."""
    orders = _FEW_ORDERS
    value, _ = rdp.compute_epsilon(orders, _total(history, relation, orders), 1e-10)
    return float(value)


def _total(history: History, relation: Relation, orders: tuple[float, ...] = ORDERS) -> Array:
    total = np.zeros(len(orders))
    for event in history:
        total += event.count * _one(_with_count(event, 1), relation.name, orders)
    return total


@lru_cache(maxsize=64)
def _one(event: Event, relation: str, orders: tuple[float, ...]) -> Array:
    if isinstance(event, ZeroConcentrated):
        return event.rho * np.array(orders)
    if isinstance(event, Pure):
        return np.array([_randomised_response(event.epsilon, order) for order in orders])
    if isinstance(event, PoissonGaussian) and relation == "replace-one":
        if event.sample_rate == 1.0:
            return 2.0 * np.array(orders) / event.noise_multiplier**2
        noise, rate = event.noise_multiplier, event.sample_rate
        return np.array([replace_one_divergence(noise, rate, order) for order in orders])
    # dp-accounting's own Gaussian and Laplace events refer to the sensitivity under
    # whatever relation, exactly as ours do, so add-remove is the right setting for both.
    accountant = rdp.RdpAccountant(orders=orders)
    with _quiet():
        accountant.compose(_dp_event(event))
    divergences = np.maximum(np.asarray(accountant.rdp, dtype=np.float64), 0.0)
    return divergences + _SLACK / (np.array(orders) - 1)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the notice that a fractional order did not converge and was left out.

    Leaving an order out can only raise epsilon, so users have nothing to act on.
    """
    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _dp_event(event: Event) -> Any:
    if isinstance(event, PoissonGaussian):
        gaussian = dp_event.GaussianDpEvent(event.noise_multiplier)
        return dp_event.PoissonSampledDpEvent(event.sample_rate, gaussian)
    if isinstance(event, Gaussian):
        return dp_event.GaussianDpEvent(event.noise_multiplier)
    assert isinstance(event, Laplace)
    return dp_event.LaplaceDpEvent(event.noise_multiplier)


def _randomised_response(epsilon: float, order: float) -> float:
    """Renyi divergence of the pair that dominates every epsilon-DP release."""
    log_p = -np.logaddexp(0.0, -epsilon)  # truth is told with probability p
    log_q = -np.logaddexp(0.0, epsilon)
    terms = [order * log_p + (1 - order) * log_q, order * log_q + (1 - order) * log_p]
    return float(logsumexp(terms) / (order - 1)) * (1 + _SLACK)


def replace_one_divergence(noise_multiplier: float, sample_rate: float, order: float) -> float:
    """Renyi divergence between (1-q) N(0) + q N(1) and (1-q) N(0) + q N(-1).

    The trapezoidal rule on an analytic integrand that vanishes at both ends
    converges exponentially in (strip width / step). The strip ends where the
    second density has a zero, pi s^2 away from the real line, hence the step.
    Orders that would need too many points are answered by ``inf``, which only
    removes them from the minimum over orders.
    """
    s, q = noise_multiplier, sample_rate
    step = min(s / 8, s * s / 2)
    low, high = -1.0 - 40 * s, 2 * order + 1 + 40 * s
    points = math.ceil((high - low) / step)
    if points > _MOST_POINTS:
        return math.inf
    x = low + step * np.arange(points + 1)
    log_keep, log_take = math.log1p(-q), math.log(q)
    base = -(x**2) / (2 * s * s)
    log_upper = np.logaddexp(log_keep + base, log_take - (x - 1) ** 2 / (2 * s * s))
    log_lower = np.logaddexp(log_keep + base, log_take - (x + 1) ** 2 / (2 * s * s))
    log_integral = float(logsumexp(order * log_upper + (1 - order) * log_lower))
    log_moment = log_integral + math.log(step) - math.log(s) - 0.5 * math.log(2 * math.pi)
    return max(0.0, log_moment + _SLACK) / (order - 1) * (1 + _SLACK)
