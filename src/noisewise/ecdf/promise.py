"""The privacy statement of a curve."""

from __future__ import annotations

import math
from collections.abc import Iterable

from noisewise.ecdf.budget import Budget, gaussian_delta, gaussian_ratio
from noisewise.ecdf.mechanisms.protocol import Mechanism
from noisewise.privacy.events import Event, Gaussian, Pure, ZeroConcentrated
from noisewise.privacy.relation import Relation
from noisewise.privacy.statement import Statement

__all__ = ["event_of", "state"]


def event_of(mechanism: Mechanism, budget: Budget) -> Event:
    """Return what one release of `mechanism` is to an accountant.

    For (epsilon, delta) the noise is integer but so fine that it is stated as Gaussian noise:
    with the multiplier at which Gaussian noise would have the delta that was proven for the
    integer noise, at the budget's epsilon.
    """
    if mechanism.kind == "laplace":
        return Pure(mechanism.epsilon)
    if budget.rho is not None:
        return ZeroConcentrated(mechanism.rho)
    proven = mechanism.delta(budget.epsilon)
    ratio = max(math.sqrt(mechanism.ratio_squared), gaussian_ratio(budget.epsilon, proven))
    while gaussian_delta(ratio, budget.epsilon) < proven:
        ratio *= 1 + 1e-9
    return Gaussian(1 / (ratio * (1 + 1e-12)))


def state(
    mechanism: Mechanism,
    budget: Budget,
    relation: Relation,
    *,
    randomness: str,
    what: str,
    assumptions: Iterable[str] = (),
    delta: float | None = None,
) -> Statement:
    """Return the statement of one release of `mechanism`."""
    said = [*assumptions]
    if relation.count_is_public:
        said.append("the number of records is public")
    if mechanism.kind == "gaussian" and budget.rho is None:
        said.append(
            "noise is integer on a grid so fine that its difference from Gaussian noise adds less "
            f"than {budget.delta / 500:.1g} to delta; this is included here, and must be added "
            "again if the release is stated at another epsilon"
        )
    return Statement.derive(
        event_of(mechanism, budget),
        delta=budget.delta if delta is None else delta,
        mechanism=f"{what}: {mechanism.description}",
        relation=relation,
        randomness=randomness,
        assumptions=said,
    )
