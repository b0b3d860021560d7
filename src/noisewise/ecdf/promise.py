"""The privacy statement of a curve."""

from __future__ import annotations

import math
from collections.abc import Iterable

from noisewise.ecdf.budget import Budget
from noisewise.ecdf.mechanisms.protocol import Mechanism
from noisewise.privacy.events import Event, Gaussian, Pure, ZeroConcentrated
from noisewise.privacy.relation import Relation
from noisewise.privacy.statement import Statement

__all__ = ["event_of", "state"]


def event_of(mechanism: Mechanism, budget: Budget) -> Event:
    """Return what one release of `mechanism` is to an accountant.

    For (epsilon, delta) the noise is integer, so fine that it is stated as Gaussian noise with
    its distance from real noise, which the accountant adds to delta in every composition.
    """
    if mechanism.kind == "laplace":
        return Pure(mechanism.epsilon)
    if budget.rho is not None:
        return ZeroConcentrated(mechanism.rho)
    ratio = math.sqrt(mechanism.ratio_squared) * (1 + 1e-12)
    return Gaussian(1 / ratio, variation=mechanism.variation)


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
    return Statement.derive(
        event_of(mechanism, budget),
        delta=budget.delta if delta is None else delta,
        mechanism=f"{what}: {mechanism.description}",
        relation=relation,
        randomness=randomness,
        assumptions=said,
    )
