"""A second accountant, written independently, with which statements are verified.

Nothing of dp-accounting enters its result (a rough Renyi epsilon only sizes the grid). The
privacy loss of each event is spread
over a grid by cubic (four-point) weights, which preserve its first three
moments, and composed by one FFT, in the spirit of Gopi, Lee and Wutschitz
(2021). The result is an accurate *estimate*, not an upper bound: it serves to
catch an epsilon that is wrong in either direction, never to be reported.

Events do not bring their losses here themselves: whoever adds a kind of event derives its losses
a second time, in this file, and the common tests of events compare the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import norm

from noisewise import checks
from noisewise.privacy.accountants.rdp import size
from noisewise.privacy.accounting import with_variation
from noisewise.privacy.events import (
    Event,
    Gaussian,
    History,
    Laplace,
    PoissonGaussian,
    PoissonRows,
    Pure,
    Selection,
    ZeroConcentrated,
    as_history,
    require_relation,
    total_variation,
)
from noisewise.privacy.relation import Relation

__all__ = ["CONCENTRATED", "LOSSES", "estimate_epsilon"]

Array = NDArray[np.float64]
Losses = tuple[Array, Array]  # values of the privacy loss, and their probabilities

_CELLS = 2**16
_GRID = 2**18
_DEVIATIONS = 12.0
_BENDS = 1601


def estimate_epsilon(
    history: Event | Iterable[Event], *, delta: float, relation: Relation | str = "add-remove"
) -> float:
    """Estimate of the true epsilon of a history at `delta` > 0.

    Histories with concentrated (zCDP) releases cannot be mixed with others
    here; alone they are converted by the best real order, an upper bound.
    """
    events = as_history(history)
    relation = Relation.of(relation)
    delta = checks.fraction("delta", delta)
    require_relation(events, relation)
    if not events:
        return 0.0
    rhos = [CONCENTRATED[type(event)](event) for event in events if type(event) in CONCENTRATED]
    if rhos:
        if len(rhos) < len(events):
            raise ValueError("concentrated releases cannot be verified together with others")
        return _concentrated(math.fsum(rhos), delta)
    variation = total_variation(events)
    if variation > 0.0:
        return with_variation(lambda left: _estimate(events, left, relation), delta, variation)
    return _estimate(events, delta, relation)


def _estimate(events: History, delta: float, relation: Relation) -> float:
    reach = 1.5 * size(events, relation) + 1.0
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
        for values, probabilities in LOSSES[type(event)](event, way, relation):
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


def _rows(event: Any) -> int:
    """How many rows a unit may have, of which the event tells what one costs."""
    return 1 if event.rows is None else int(event.rows)


def _of_pure(event: Pure, way: int, relation: Relation) -> Iterator[Losses]:
    # A unit leaves row by row, and each step costs epsilon.
    loss = event.epsilon * _rows(event)
    values = np.array([loss, -loss])
    yield values, 1.0 / (1.0 + np.exp(-values))


def _of_laplace(event: Laplace, way: int, relation: Relation) -> Iterator[Losses]:
    scale = event.noise_multiplier
    edges = np.concatenate([[-60 * scale], np.linspace(0, 1, _CELLS), [1 + 60 * scale]])
    cdf = np.where(edges < 0, np.exp(edges / scale) / 2, 1 - np.exp(-edges / scale) / 2)
    middle = (edges[1:] + edges[:-1]) / 2
    yield (np.abs(middle - 1) - np.abs(middle)) / scale, np.diff(cdf)


def _of_gaussian(event: Gaussian, way: int, relation: Relation) -> Iterator[Losses]:
    yield _gaussian_losses(event.noise_multiplier / _rows(event), 1.0, way, False)


def _of_poisson_gaussian(event: PoissonGaussian, way: int, relation: Relation) -> Iterator[Losses]:
    doubled = relation.name == "replace-one"
    yield _gaussian_losses(event.noise_multiplier, event.sample_rate, way, doubled)


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


def _of_poisson_rows(event: PoissonRows, way: int, relation: Relation) -> Iterator[Losses]:
    """Losses between the sum with a binomial number of a unit's rows, and the sum without.

    The probability of exactly j rows is built up row by row, not taken from a formula.
    """
    noise, rate = event.noise_multiplier, event.sample_rate
    drawn = np.ones(1)
    for _ in range(event.rows):
        drawn = np.append(drawn, 0.0) * (1 - rate) + np.insert(drawn, 0, 0.0) * rate
        drawn = drawn[: max(2, int(np.flatnonzero(drawn > 1e-40)[-1]) + 1)]
    rows = np.flatnonzero(drawn > 0.0)
    edges = np.linspace(-_DEVIATIONS * noise, rows[-1] + _DEVIATIONS * noise, _CELLS + 1)
    middle = (edges[1:] + edges[:-1]) / 2
    ratio = np.full(middle.shape, -np.inf)
    mass = np.zeros(middle.shape)
    for j in rows:
        ratio = np.logaddexp(ratio, math.log(drawn[j]) + j * (middle - j / 2) / noise**2)
        left = norm.cdf((edges - j) / noise), norm.sf((edges - j) / noise)
        part = np.where(middle < j, np.diff(left[0]), -np.diff(left[1]))
        mass += drawn[j] * part if way == 0 else (part if j == 0 else 0.0)
    if way == 1 and rows[0] != 0:  # every row is drawn, always
        mass = np.where(
            middle < 0, np.diff(norm.cdf(edges / noise)), -np.diff(norm.sf(edges / noise))
        )
    yield (ratio if way == 0 else -ratio), mass


def _of_selection(event: Selection, way: int, relation: Relation) -> Iterator[Losses]:
    yield _selection_losses(event, relation)


@lru_cache(maxsize=16)
def _selection_losses(event: Selection, relation: Relation) -> Losses:
    """Losses of a pair whose profile is the bound of docs/proofs/selection.md#cost, by its slopes.

    Solved in the ratio g = e^epsilon on its own grid: the losses under Q are the bends of the
    profile, and those under P are g times as likely.
    """
    trial = _Trial(event.trials, relation)
    log_ratio = np.linspace(-trial.end, trial.end, _BENDS)
    if event.law == "poisson":
        m = event.parameter
        mean = m / (1 - math.exp(-m))
        far = m * trial.delta(0.0)
        loss, mass = _bends(log_ratio, np.array([trial.delta(x) for x in log_ratio]))
        top = trial.end + far

        def bound(x: float) -> float:
            best = 1.0
            for slope in np.r_[0.0, np.geomspace(0.01, 2.0, 25)]:
                c = x - m * trial.delta(slope)
                v = np.clip(loss - c - slope, None, 0.0) / math.expm1(slope) if slope else 0 * loss
                gain = np.maximum(np.exp(v) - np.exp(c - loss + v * math.exp(slope)), 0.0)
                best = min(best, mean * float(gain @ mass))
            return best
    else:
        gamma, eta = event.parameter, event.shape
        if eta == 0:
            mean = (1 - gamma) / gamma / -math.log(gamma)
        else:
            mean = eta * (1 - gamma) / gamma / (1 - gamma**eta)
        odds = gamma / (1 - gamma)
        root = brentq(
            lambda x: trial.delta(x) - odds * (math.exp(x) - 1), 0.0, trial.end + 50.0, xtol=1e-13
        )
        top = trial.end + (1 + eta) * float(root)

        def bound(x: float) -> float:
            shifted = x - (1 + eta) * float(root)
            return min(1.0, mean * trial.delta(shifted)) if shifted >= 0 else 1.0

    rising = np.linspace(0.0, top, _BENDS // 2)
    right = np.array([bound(float(x)) for x in rising])
    # The other direction has the same bound: E_g(P||Q) = 1 - g + g E_{1/g}(Q||P).
    left = (-np.expm1(-rising) + np.exp(-rising) * right)[:0:-1]
    return _bends(np.r_[-rising[:0:-1], rising], np.r_[left, right])


class _Trial:
    """Delta of one trial at any epsilon, by the losses of its events alone."""

    def __init__(self, histories: tuple[History, ...], relation: Relation) -> None:
        self._grids = []
        ends = []
        for history in histories:
            if any(type(event) in CONCENTRATED for event in history):
                raise ValueError("concentrated releases cannot be verified inside a selection")
            reach = 1.5 * size(history, relation) + 1.0
            pure = sum(event.pure_epsilon() for event in history)
            ends.append(min(pure, reach))
            half = reach / _GRID * 2
            grid: Array = half * np.arange(-_GRID // 2, _GRID // 2, dtype=np.float64)
            for way in (0, 1):
                mass = _compose(history, way, relation, grid)
                # (1 - e^(x - loss)) summed over losses above x, for all x at once.
                over = np.cumsum(mass[::-1])[::-1]
                tilted = np.cumsum((mass * np.exp(-np.maximum(grid, -600.0)))[::-1])[::-1]
                self._grids.append((grid, over, tilted, pure))
        self.end = max(ends)

    def delta(self, x: float) -> float:
        if x < 0:
            return 1 - math.exp(x) + math.exp(x) * self.delta(-x)
        found = 0.0
        for grid, over, tilted, pure in self._grids:
            index = int(np.searchsorted(grid, x, side="right"))
            if x < pure and index < len(grid):
                found = max(found, float(over[index] - math.exp(x) * tilted[index]))
        return found


def _bends(log_ratio: Array, profile: Array) -> Losses:
    """Losses and their probabilities from the bends of a profile, made convex from (0, 1) on.

    The largest convex curve below points has the isotonic regression of their slopes as slopes.
    """
    from sklearn.isotonic import isotonic_regression  # slow to import, seldom needed

    g = np.exp(log_ratio)
    widths = np.diff(np.r_[0.0, g])
    slopes = isotonic_regression(np.diff(np.r_[1.0, profile]) / widths, sample_weight=widths)
    return log_ratio, np.diff(np.r_[slopes, 0.0]) * g


#: Privacy losses of one release between a worst pair, in one of two directions, by kind of event.
LOSSES: dict[type[Event], Callable[[Any, int, Relation], Iterator[Losses]]] = {
    Gaussian: _of_gaussian,
    Laplace: _of_laplace,
    PoissonGaussian: _of_poisson_gaussian,
    PoissonRows: _of_poisson_rows,
    Pure: _of_pure,
    Selection: _of_selection,
}

#: rho of all releases, of kinds of which nothing else is known.
CONCENTRATED: dict[type[Event], Callable[[Any], float]] = {
    ZeroConcentrated: lambda event: event.rho * event.count * _rows(event) ** 2
}
