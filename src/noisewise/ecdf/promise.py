"""The privacy statement of a curve."""

from __future__ import annotations

import math
from collections.abc import Iterable

from noisewise.ecdf.budget import Budget
from noisewise.ecdf.mechanisms.protocol import Mechanism
from noisewise.privacy.events import Event, Gaussian, Pure, ZeroConcentrated
from noisewise.privacy.relation import Relation
from noisewise.privacy.statement import Statement

__all__ = ["compose", "event_of", "state"]


def event_of(mechanism: Mechanism, budget: Budget) -> Event:
    """Return what one release of `mechanism` is to an accountant.

    For (epsilon, delta) the noise is integer, so fine that it is stated as Gaussian noise with
    its distance from real noise, which the accountant adds to delta in every composition.
    """
    if mechanism.kind == "laplace":
        return Pure(mechanism.epsilon)
    if budget.concentrates:
        return ZeroConcentrated(mechanism.rho)
    ratio = math.sqrt(mechanism.ratio_squared) * (1 + 1e-12)
    return Gaussian(1 / ratio, variation=mechanism.variation)


def compose(parts: Iterable[Statement], delta: float) -> Statement:
    """Return one statement for several releases, by an accountant that knows all of them."""
    parts = list(parts)
    concentrated = any(part.accountant == "rdp" for part in parts)
    return Statement.compose(parts, delta=delta, accountant="rdp" if concentrated else "pld")


def state(
    mechanism: Mechanism,
    budget: Budget,
    relation: Relation,
    *,
    randomness: str,
    what: str,
    assumptions: Iterable[str] = (),
    delta: float | None = None,
    looks: Iterable[str] = (),
) -> Statement:
    """Return the statement of one release of `mechanism`.

    If it was chosen after `looks` at the data, which have a part of the same pure budget, the
    budget is stated: what was spent on one way through them is a guarantee for no other.
    """
    said = [*assumptions]
    if relation.count_is_public:
        said.append("the number of records is public")
    event = event_of(mechanism, budget)
    if before := ", ".join(looks):
        event = Pure(budget.epsilon)
        what = f"{before}; then {what}"
    return Statement.derive(
        event,
        accountant="rdp" if isinstance(event, ZeroConcentrated) else "pld",
        delta=budget.delta if delta is None else delta,
        mechanism=f"{what}: {mechanism.description}",
        relation=relation,
        randomness=randomness,
        assumptions=said,
    )
