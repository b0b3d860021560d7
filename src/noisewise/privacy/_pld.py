"""Privacy loss distributions of a history, by dp-accounting.

Responsible for one decision: the width of the grid on which losses are
rounded (up, by "connect the dots", so every answer stays an upper bound). The
grids are nested (1e-4 times a power of two), hence a coarser grid can only
raise epsilon.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution as pld

from noisewise.privacy import _rdp
from noisewise.privacy.events import Event, Gaussian, History, Laplace, PoissonGaussian, Pure
from noisewise.privacy.events import with_count as _with_count
from noisewise.privacy.relation import Relation

__all__ = ["delta", "epsilon"]

FINEST = 1e-4
_ONE_STEP_POINTS = 1e5
_COMPOSED_POINTS = 5e5
_ACCURATE = 0.02
_WIDEST_FOR_ACCURACY = 1e-3
#: Mass put aside for the rounding of the FFT and for the tails that composing cuts off.
_ROUNDING = 1e-14
_ONE_STAGE = 100_000
_TAIL = 10.0  # exp(-50), dp-accounting's truncation, is ten deviations out


def epsilon(history: History, delta: float, relation: Relation) -> float:
    """Upper bound of epsilon at `delta` >= 1e-12."""
    kept = delta * (1 - 1e-6) - _ROUNDING
    return float(_composed(history, relation).get_epsilon_for_delta(kept))


def delta(history: History, epsilon: float, relation: Relation) -> float:
    """Upper bound of delta at `epsilon` >= 0."""
    return float(_composed(history, relation).get_delta_for_epsilon(epsilon)) + _ROUNDING


def _composed(history: History, relation: Relation) -> Any:
    width = _width(history, relation)
    total = None
    for event in history:
        part = _one(_with_count(event, 1), relation.name, width, _shared(event))
        if event.count > 1 and not _shared(event):
            part = _repeat(part, event.count)
        total = part if total is None else total.compose(part)
    return total


def _repeat(part: Any, count: int) -> Any:
    """Compose a distribution with itself, in two stages where the count is large.

    dp-accounting raises the number of points of a small distribution to the power of the
    count, as a whole number, to decide how to store it; beyond about 10^6 that never ends.
    The first stage gives up so little of the tails that all stages together stay within
    the mass put aside for it.
    """
    if count <= _ONE_STAGE:
        return part.self_compose(count)
    blocks, rest = divmod(count, _ONE_STAGE)
    total = part.self_compose(_ONE_STAGE, 1e-15 / blocks).self_compose(blocks)
    return total.compose(part.self_compose(rest)) if rest else total


def _shared(event: Event) -> int:
    """Releases that are exactly one release with less noise: composed without rounding."""
    return event.count if isinstance(event, Gaussian) else 0


@lru_cache(maxsize=64)
def _one(event: Event, relation: str, width: float, shared: int) -> Any:
    options = {"value_discretization_interval": width}
    if isinstance(event, PoissonGaussian):
        neighbours = (
            NeighboringRelation.ADD_OR_REMOVE_ONE
            if relation == "add-remove"
            else NeighboringRelation.REPLACE_ONE
        )
        return pld.from_gaussian_mechanism(
            event.noise_multiplier,
            sampling_prob=event.sample_rate,
            neighboring_relation=neighbours,
            **options,
        )
    if isinstance(event, Gaussian):
        # The multiplier of this event already refers to the relation's sensitivity,
        # so dp-accounting's replace-one pair, two units apart, would count it twice.
        return pld.from_gaussian_mechanism(event.noise_multiplier / math.sqrt(shared), **options)
    if isinstance(event, Laplace):
        return pld.from_laplace_mechanism(event.noise_multiplier, **options)
    assert isinstance(event, Pure)
    return _pure(event.epsilon, width)


def _pure(epsilon: float, width: float) -> Any:
    """Randomised response, which dominates every epsilon-DP release, on the grid.

    Epsilon is raised to the grid first and both outcomes keep it, since a larger
    epsilon dominates a smaller one. (Rounding both losses up instead, as
    dp-accounting's ``from_privacy_parameters`` does, shifts every step by one cell.)
    """
    cells = math.ceil(epsilon / width * (1 + 1e-12))
    raised = cells * width
    rare = math.exp(-raised)
    mass = {cells: 1.0 / (1.0 + rare), -cells: rare / (1.0 + rare)}
    return pld.PrivacyLossDistribution.create_from_rounded_probability(mass, 0.0, width)


def _width(history: History, relation: Relation) -> float:
    """Grid width, a power of two times 1e-4.

    Rounding adds up to width^2/4 to the variance of each step's loss. The width
    keeps that below about a hundredth of the total variance (epsilon is several
    deviations), is never above 1e-3 for accuracy alone, and grows beyond that
    only where the arrays would become too long.
    """
    steps = sum(event.count for event in history)
    reach = max(_reach(event, relation) for event in history)
    total = min(_rdp.size(history, relation), steps * reach)
    accurate = min(_ACCURATE * total / math.sqrt(steps), _WIDEST_FOR_ACCURACY)
    affordable = max(reach / _ONE_STEP_POINTS, total / _COMPOSED_POINTS)
    return FINEST * 2.0 ** math.floor(math.log2(max(accurate, affordable, FINEST) / FINEST))


def _reach(event: Event, relation: Relation) -> float:
    """About the largest loss of one release that matters; a size, not a bound."""
    if isinstance(event, Pure):
        return event.epsilon
    if isinstance(event, Laplace):
        return 1.0 / event.noise_multiplier
    assert isinstance(event, (Gaussian, PoissonGaussian))
    if isinstance(event, Gaussian):
        mu = math.sqrt(event.count) / event.noise_multiplier
    else:
        mu = relation.sum_factor / event.noise_multiplier
    return mu * mu / 2 + _TAIL * mu
