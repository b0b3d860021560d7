"""The best of a random number of private trials: a choice among settings.

Proof and formulas: docs/proofs/selection.md#cost. What costs privacy are the trials; the law of
their number decides how much more the best of them costs than one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from dp_accounting.pld import pld_pmf, privacy_loss_distribution as pld

from noisewise import checks
from noisewise.privacy.events.base import Array, Event, event_from_dict, register
from noisewise.privacy.events.profile import Profile, convex_minorant, masses, profile_of
from noisewise.privacy.relation import Relation

__all__ = ["LAWS", "Selection", "best_of", "mean_trials"]

#: How the number of trials is drawn; both laws give at least one.
LAWS = ("negative-binomial", "poisson")

#: Points of a profile, and slopes that are tried for the Poisson law.
_POINTS = 1200
_FEWER = 500
_SLOPES = (0.0, *np.geomspace(0.01, 2.0, 14).tolist())
#: Below this a profile is cut off; what is cut off is counted in full.
_TAIL = 1e-15


@register
@dataclass(frozen=True)
class Selection(Event):
    """The best of K trials by a score that is part of them, K random and at least one.

    Parameters
    ----------
    trials : tuple of histories
        What one trial may cost: each is what a record can go through in it. A trial on other
        settings may be another history, and a record that was held back for the score sees the
        score alone.
    law : {"negative-binomial", "poisson"}
        Of the number of trials, truncated to at least one (Papernot and Steinke 2022).
    shape : float
        Of the negative binomial law, above -1: 1 is geometric, 0 logarithmic. 0 for Poisson.
    parameter : float
        Its gamma, in (0, 1), or the mean of the Poisson law before it was truncated.
    count : int
        Number of such selections.
    """

    trials: tuple[tuple[Event, ...], ...]
    law: str
    shape: float
    parameter: float
    count: int = 1
    kind: ClassVar[str] = "selection"
    words: ClassVar[str] = "the best of a random number of private trials"
    proof: ClassVar[str] = "docs/proofs/selection.md#cost"

    def __post_init__(self) -> None:
        trials = tuple(tuple(_event(each) for each in history) for history in self.trials)
        object.__setattr__(self, "trials", trials)
        if not trials or not all(trials):
            raise ValueError("trials must hold at least one history, and none that is empty")
        if any(isinstance(event, Selection) for history in trials for event in history):
            raise ValueError("a trial of a selection cannot be a selection itself")
        self._check("law", checks.choice, allowed=LAWS)
        self._check("shape", checks.finite)
        if self.law == "poisson":
            if self.shape != 0.0:
                raise ValueError(f"shape must be 0 for the Poisson law, got {self.shape!r}")
            self._check("parameter", checks.positive)
        else:
            if self.shape <= -1.0 or self.shape > 100.0:
                raise ValueError(f"shape must be above -1 and at most 100, got {self.shape!r}")
            self._check("parameter", checks.fraction)
        self._check_count()

    @property
    def parts(self) -> tuple[Event, ...]:
        """All that a trial may be."""
        return tuple(event for history in self.trials for event in history)

    @classmethod
    def examples(cls) -> tuple[Selection, ...]:
        """Trainings by both laws, and choices by pure scores."""
        from noisewise.privacy.events.poisson_gaussian import PoissonGaussian
        from noisewise.privacy.events.pure import Pure

        training = ((PoissonGaussian(2.0, 0.1, 50),), (Pure(0.3),))
        return (
            cls(training, "negative-binomial", 0.0, 0.05),
            cls(training, "poisson", 0.0, 5.0),
            cls(((Pure(0.4),),), "negative-binomial", 1.0, 0.1, 2),
        )

    # ---------------------------------------------------------------- what it costs

    @property
    def mean(self) -> float:
        """Expected number of trials."""
        return mean_trials(self.law, self.shape, self.parameter)

    def losses(self, relation: Relation, width: float) -> Any:
        """A pair that dominates it, by the dots of its profile on the grid."""
        points, deltas = self.profile(relation)
        cells = np.unique(np.ceil(points / width).astype(np.int64))
        cells = np.union1d(cells, -cells)
        # A convex function lies below its chords, so values between points are upper bounds.
        ratios = np.exp(np.clip(cells * width, -700.0, 700.0))
        values = _everywhere(ratios, np.exp(points), deltas)
        kept, heights = convex_minorant(np.r_[0.0, ratios], np.r_[1.0, values])
        chosen = np.isin(ratios, kept[1:])
        pmf = pld_pmf.create_pmf_pessimistic_connect_dots(
            width, cells[chosen], np.clip(heights[1:] + 1e-14, 0.0, 1.0)
        )
        return pld.PrivacyLossDistribution(pmf)

    def largest_loss(self, relation: Relation) -> float:
        """Where its profile ends."""
        return float(self.profile(relation)[0][-1])

    def divergences(self, relation: Relation, orders: tuple[float, ...]) -> Array:
        """Theorems 2 and 6 of Papernot and Steinke (2022), for laws that give at least one."""
        one = np.array(orders)
        cost = np.max([_divergences(history, relation, orders) for history in self.trials], axis=0)
        if self.law == "poisson":
            rank = self.parameter * self._base(relation).delta(np.log1p(1 / (one - 1)))
        else:
            found = (1 - 1 / one) * cost + math.log(1 / self.parameter) / one
            rank = np.full(len(one), (1 + self.shape) * float(np.min(found)))
        return np.asarray(cost + rank + math.log(self.mean) / (one - 1))

    def pure_epsilon(self) -> float:
        """That of the worst trial, and of what its rank tells."""
        worst = max(math.fsum(e.pure_epsilon() for e in history) for history in self.trials)
        if not math.isfinite(worst):
            return math.inf
        if self.law == "poisson":
            rank = self.parameter * math.tanh(worst / 2)
        else:
            gamma, falling = self.parameter, math.exp(-worst)
            rank = (1 + self.shape) * math.log((1 + gamma * falling) / (falling + gamma))
        return self.count * (worst + rank) * (1 + 1e-12)

    def profile(self, relation: Relation) -> tuple[Array, Array]:
        """Return epsilons from 0 on and upper bounds of delta there, for one selection."""
        return best_of(self._base(relation), self.law, self.shape, self.parameter)

    def _base(self, relation: Relation) -> Profile:
        return Profile(*profile_of(self.trials, relation, _POINTS, _TAIL))

    # ---------------------------------------------------------------- what it says

    @property
    def secret_rates(self) -> tuple[float, ...]:
        """Those of its trials."""
        return tuple(rate for trial in self.trials for e in trial for rate in e.secret_rates)

    def total_variation(self) -> float:
        """None: what its trials have is in its profile."""
        return 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "kind": self.kind,
            "trials": [[event.to_dict() for event in history] for history in self.trials],
            "law": self.law,
            "shape": self.shape,
            "parameter": self.parameter,
            "count": self.count,
        }


def best_of(base: Profile, law: str, shape: float, parameter: float) -> tuple[Array, Array]:
    """Return the profile of the best of trials that have the profile `base`."""
    if law == "poisson":
        return _poisson_profile(base, parameter)
    rank = (1 + shape) * base.crossing(parameter)
    mean = mean_trials(law, shape, parameter)
    return base.epsilons + rank, np.minimum(1.0, mean * base.deltas)


def _poisson_profile(base: Profile, mean: float) -> tuple[Array, Array]:
    """The bound of docs/proofs/selection.md#poisson, the best slope at every epsilon."""
    trials = mean_trials("poisson", 0.0, mean)
    far = mean * float(base.delta(np.zeros(1))[0])
    epsilons = np.linspace(0.0, float(base.epsilons[-1]) + far, _FEWER)
    step = max(1, len(base.epsilons) // _FEWER)
    kept = np.r_[base.epsilons[:-1:step], base.epsilons[-1]]
    ratios = np.exp(np.r_[-kept[:0:-1], kept])
    values = _everywhere(ratios, np.exp(base.epsilons), base.deltas)
    losses, probabilities, infinite = masses(ratios, values)
    best = np.ones(len(epsilons))
    for slope in _SLOPES:
        shift = epsilons - mean * float(base.delta(np.array([slope]))[0])
        found = trials * (_tilted(losses, shift[:, None], slope) @ probabilities + infinite)
        best = np.minimum(best, found)
    return epsilons, np.minimum.accumulate(best)


def _tilted(losses: Array, shift: Array, slope: float) -> Array:
    """Largest v - e^shift v^(e^slope) e^-loss over v in [0, 1], and nothing below 0."""
    whole = np.maximum(0.0, -np.expm1(np.minimum(shift - losses, 0.0)))
    if slope == 0.0:
        return np.asarray(whole)
    over = losses - shift - slope
    part = -math.expm1(-slope) * np.exp(np.minimum(over / math.expm1(slope), 0.0))
    return np.asarray(np.where(over >= 0, whole, part))


def mean_trials(law: str, shape: float, parameter: float) -> float:
    """Expected number of trials.

    Examples
    --------
    >>> round(mean_trials("negative-binomial", 1.0, 0.1), 9)
    10.0
    """
    if law == "poisson":
        return parameter / -math.expm1(-parameter)
    if shape == 0.0:
        return (1 / parameter - 1) / math.log(1 / parameter)
    return shape * (1 - parameter) / (parameter * (-math.expm1(shape * math.log(parameter))))


def _everywhere(ratios: Array, known: Array, deltas: Array) -> Array:
    """Upper bounds at all ratios >= 0 of a profile that is known from 1 on, in both directions."""
    above = np.interp(np.maximum(ratios, 1.0), known, deltas, left=1.0)
    inverse = 1 / np.clip(ratios, 1e-300, 1.0)
    below = 1 - ratios + ratios * np.interp(inverse, known, deltas, left=1.0)
    return np.asarray(np.where(ratios >= 1.0, above, np.minimum(1.0, below)))


def _divergences(
    history: tuple[Event, ...], relation: Relation, orders: tuple[float, ...]
) -> Array:
    parts = [event.count * event.divergences(relation, orders) for event in history]
    return np.asarray(np.sum(parts, axis=0))


def _event(given: Any) -> Event:
    if isinstance(given, Mapping):
        return event_from_dict(given)
    if not isinstance(given, Event):
        raise TypeError(f"a trial is a history of events such as PoissonGaussian, got {given!r}")
    return given
