"""A second accountant, written independently, with which statements are verified.

Nothing of dp-accounting enters its result (a rough Renyi epsilon only sizes the grid). The
privacy loss of each event is spread
over a grid by cubic (four-point) weights, which preserve its first three
moments, and composed by one FFT, in the spirit of Gopi, Lee and Wutschitz
(2021). The result is an accurate *estimate*, not an upper bound: it serves to
catch an epsilon that is wrong in either direction, never to be reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import norm

from noisewise.privacy import _rdp, _validate
from noisewise.privacy.accounting import with_variation
from noisewise.privacy.events import (
    Event,
    Gaussian,
    History,
    Laplace,
    PoissonGaussian,
    Pure,
    ZeroConcentrated,
    as_history,
    total_variation,
)
from noisewise.privacy.relation import Relation

__all__ = ["estimate_epsilon"]

Array = NDArray[np.float64]
Losses = tuple[Array, Array]  # values of the privacy loss, and their probabilities

_CELLS = 2**16
_GRID = 2**18
_DEVIATIONS = 12.0


def estimate_epsilon(
    history: Event | Iterable[Event], *, delta: float, relation: Relation | str = "add-remove"
) -> float:
    """Estimate of the true epsilon of a history at `delta` > 0.

    Histories with concentrated (zCDP) releases cannot be mixed with others
    here; alone they are converted by the best real order, an upper bound.
    """
    events = as_history(history)
    relation = Relation.of(relation)
    delta = _validate.fraction("delta", delta)
    if not events:
        return 0.0
    concentrated = [event for event in events if isinstance(event, ZeroConcentrated)]
    if concentrated:
        if len(concentrated) < len(events):
            raise ValueError("concentrated releases cannot be verified together with others")
        return _concentrated(math.fsum(event.rho * event.count for event in concentrated), delta)
    variation = total_variation(events)
    if variation > 0.0:
        return with_variation(lambda left: _estimate(events, left, relation), delta, variation)
    return _estimate(events, delta, relation)


def _estimate(events: History, delta: float, relation: Relation) -> float:
    reach = 1.5 * _rdp.size(events, relation) + 1.0
    grid: Array = 2 * reach / _GRID * np.arange(-_GRID // 2, _GRID // 2, dtype=np.float64)
    return max(_solve(grid, _compose(events, way, relation, grid), delta) for way in (0, 1))


def _concentrated(rho: float, delta: float) -> float:
    """The conversion of Canonne, Kamath and Steinke (2020), minimised over real orders."""

    def epsilon(log_order: float) -> float:
        order = 1.0 + math.exp(log_order)
        return float(rho * order + math.log1p(-1 / order) - math.log(delta * order) / (order - 1))

    best = minimize_scalar(epsilon, bounds=(-12.0, 12.0), method="bounded", options={"xatol": 1e-9})
    return max(0.0, float(best.fun))


def _compose(events: tuple[Event, ...], way: int, relation: Relation, grid: Array) -> Array:
    width = float(grid[1] - grid[0])
    spectrum: NDArray[np.complex128] | None = None
    for event in events:
        mass = np.zeros(grid.size)
        for values, probabilities in _losses(event, way, relation):
            _deposit(mass, values / width, probabilities)
        part = np.fft.rfft(mass) ** event.count
        spectrum = part if spectrum is None else spectrum * part
    assert spectrum is not None
    return np.fft.fftshift(np.fft.irfft(spectrum, grid.size))


def _deposit(mass: Array, position: Array, probability: Array) -> None:
    """Add probability at real positions to integer cells, keeping three moments."""
    cell = np.floor(position).astype(np.int64)
    f = position - cell
    weights = (
        -f * (f - 1) * (f - 2) / 6,
        (f + 1) * (f - 1) * (f - 2) / 2,
        -(f + 1) * f * (f - 2) / 2,
        (f + 1) * f * (f - 1) / 6,
    )
    for offset, weight in zip((-1, 0, 1, 2), weights, strict=True):
        np.add.at(mass, (cell + offset) % mass.size, weight * probability)


def _solve(grid: Array, mass: Array, delta: float) -> float:
    def excess(epsilon: float) -> float:
        above = grid > epsilon
        return float(-(np.expm1(epsilon - grid[above]) * mass[above]).sum()) - delta

    if excess(0.0) <= 0:
        return 0.0
    top = float(grid[-1])
    return top if excess(top) > 0 else float(brentq(excess, 0.0, top, xtol=1e-10))


def _losses(event: Event, way: int, relation: Relation) -> Iterator[Losses]:
    """Privacy losses of one release between a worst pair, in one of two directions."""
    if isinstance(event, Pure):
        values = np.array([event.epsilon, -event.epsilon])
        yield values, 1.0 / (1.0 + np.exp(-values))
    elif isinstance(event, Laplace):
        scale = event.noise_multiplier
        edges = np.concatenate([[-60 * scale], np.linspace(0, 1, _CELLS), [1 + 60 * scale]])
        cdf = np.where(edges < 0, np.exp(edges / scale) / 2, 1 - np.exp(-edges / scale) / 2)
        middle = (edges[1:] + edges[:-1]) / 2
        yield (np.abs(middle - 1) - np.abs(middle)) / scale, np.diff(cdf)
    else:
        assert isinstance(event, (Gaussian, PoissonGaussian))
        rate = event.sample_rate if isinstance(event, PoissonGaussian) else 1.0
        doubled = isinstance(event, PoissonGaussian) and relation.name == "replace-one"
        yield _gaussian_losses(event.noise_multiplier, rate, way, doubled)


def _gaussian_losses(noise: float, rate: float, way: int, doubled: bool) -> Losses:
    """Losses between (1-q) N(0) + q N(1) and N(0), or its mirror image if `doubled`."""
    edge = _DEVIATIONS * noise
    edges = np.linspace(-1 - edge, 1 + edge, _CELLS + 1)
    middle = (edges[1:] + edges[:-1]) / 2

    def log_ratio(x: Array) -> Array:
        tilt = math.log(rate) + (2 * x - 1) / (2 * noise**2)
        return np.logaddexp(math.log1p(-rate), tilt) if rate < 1 else tilt

    def upper(side: Callable[..., Array]) -> Array:
        return (1 - rate) * side(edges / noise) + rate * side((edges - 1) / noise)

    def lower(side: Callable[..., Array]) -> Array:
        return np.asarray(side(edges / noise))

    loss = log_ratio(middle) - (log_ratio(-middle) if doubled else 0.0)
    reverse = way == 1 and not doubled
    if reverse:
        loss = -loss
    drawn_from = lower if reverse else upper
    # Differences of the nearer tail, so that small probabilities keep their digits.
    below, above = np.diff(drawn_from(norm.cdf)), -np.diff(drawn_from(norm.sf))
    return loss, np.where(middle < 0.5, below, above)
