"""The constants of a plan once the public size is known: what the accountant is told."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from noisewise import checks
from noisewise.privacy import (
    ADD_REMOVE,
    Event,
    PoissonGaussian,
    Sensitivity,
    calibrate,
    epsilon_of,
    noise_multiplier,
    training_step,
)
from noisewise.privacy.events import with_count

if TYPE_CHECKING:
    from torch import dtype

    from noisewise.release import TensorNoise
    from noisewise.training.plan import Plan

__all__ = ["Constants", "ResolvedPlan", "calibrated", "default_delta", "noise_beside"]


class Constants(NamedTuple):
    """Constants that follow from a plan and a public size."""

    rate: float
    divisor: float
    steps: int
    delta: float
    records: int | None = None


@lru_cache(maxsize=256)
def calibrated(
    epsilon: float,
    delta: float,
    steps: int,
    rate: float,
    accountant: str,
    relation: str,
    unit_rows: int | None = None,
) -> float:
    """Least noise multiplier; a plan checks at once that there is one, and asks again later."""
    return noise_multiplier(
        epsilon=epsilon,
        delta=delta,
        steps=steps,
        sample_rate=rate,
        unit_rows=unit_rows,
        accountant=accountant,
        relation=relation,
    )


@lru_cache(maxsize=256)
def noise_beside(
    others: tuple[Event, ...],
    epsilon: float,
    delta: float,
    steps: int,
    rate: float,
    accountant: str,
    relation: str,
) -> float:
    """Least noise multiplier with which all steps and other releases cost `epsilon` together."""

    def cost(multiplier: float) -> float:
        return epsilon_of(
            (PoissonGaussian(multiplier, rate, steps), *others),
            delta=delta,
            relation=relation,
            accountant=accountant,
        )

    return calibrate(cost, epsilon, "noise multiplier")


@dataclass(frozen=True)
class ResolvedPlan:
    """A plan with all its constants; see :class:`Plan`.

    Attributes
    ----------
    plan : Plan
    records : int or None
        The public number of records, if it was given.
    sample_rate, steps, delta, noise_multiplier
        What the accountant is told.
    batch_size : float
        The expected batch size, by which sums are divided.
    size_used : bool
        Whether any constant was computed from `records`.
    unit_rule : {"units", "rows"} or None
        How units of several rows are drawn; None if every record is a unit.
    """

    plan: Plan
    records: int | None
    sample_rate: float
    steps: int
    batch_size: float
    delta: float
    noise_multiplier: float
    size_used: bool
    unit_rule: str | None = None

    @property
    def unit_rows(self) -> int | None:
        """The bound on a unit's rows that epsilon follows from, if it does."""
        return self.plan.unit_rows if self.unit_rule == "rows" else None

    @property
    def event(self) -> Event:
        """One step, for the accountant."""
        return training_step(self.noise_multiplier, self.sample_rate, self.unit_rows)

    def noise(
        self, bounds: Sequence[float], sizes: tuple[int, ...], types: Mapping[str, dtype]
    ) -> TensorNoise:
        """Return the noise of a step whose groups one record moves by at most `bounds`."""
        from noisewise.release import TensorNoise

        return TensorNoise(
            tuple(Sensitivity(bound, "l2", ADD_REMOVE) for bound in bounds),
            sizes,
            self.noise_multiplier,
            self.plan.noise,
            self.batch_size,
            types,
            self.sample_rate,
            self.unit_rows,
        )

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps in which each record is drawn once on average."""
        return max(1, math.ceil(1 / self.sample_rate - 1e-9))

    def epsilon_after(self, steps: int) -> float:
        """Epsilon of that many steps."""
        if steps == 0:
            return 0.0
        return epsilon_of(
            with_count(self.event, steps),
            delta=self.delta,
            relation=self.plan.relation,
            accountant=self.plan.accountant,
        )

    @property
    def epsilon(self) -> float:
        """Epsilon of the whole plan."""
        return self.epsilon_after(self.steps)


def default_delta(records: int) -> float:
    """1/(10 n) rounded down to a power of ten.

    Examples
    --------
    >>> default_delta(1000), default_delta(1001), default_delta(60_000)
    (0.0001, 1e-05, 1e-06)
    """
    n = checks.integer("records", records, minimum=1)
    # 10^k >= 10 n for the least k: the digits of 10 n - 1, counted exactly.
    return float(f"1e-{len(str(10 * n - 1))}")
