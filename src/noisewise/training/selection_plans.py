"""The noise of all trials of a selection: the least that keeps the whole within epsilon."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from noisewise.privacy import History, Pure, Relation, Selection, TrialNumber, calibrate, epsilon_of
from noisewise.privacy.events import Profile, profile_of, with_count
from noisewise.training import promise
from noisewise.training.plan import Plan
from noisewise.training.resolved import ResolvedPlan

__all__ = ["Plans"]


@dataclass(frozen=True, eq=False)
class Plans:
    """The plans of all trials, with the noise that keeps the whole selection within epsilon."""

    resolved: Mapping[str, ResolvedPlan]
    score_epsilon: float | None

    @staticmethod
    def of(
        given: Plan | Mapping[str, Plan],
        records: int,
        number: TrialNumber,
        *,
        scored: bool,
        of_units: bool | str = False,
    ) -> Plans:
        """Calibrate the noise of every plan; `scored` if private records are held back."""
        plans = dict(given) if isinstance(given, Mapping) else {"": given}
        if not plans:
            raise ValueError("plan must hold at least one plan, got none")
        first = next(iter(plans.values()))
        fields = ("epsilon", "noise_multiplier", "delta", "relation", "unit", "accountant", "seed")
        for plan in plans.values():
            promise.require_sound(plan.gradients)
            if plan.assume_apart:
                raise ValueError(
                    "assume_apart=True is not available in a selection: what is assumed of a trial "
                    "that is not chosen could not be told. Train it with make_private."
                )
            if different := [f for f in fields if getattr(plan, f) != getattr(first, f)]:
                raise ValueError(f"the plans of one selection have one {different[0]}")
        # The sizes follow from the plan whatever the noise is; it is filled in below. A plan that
        # needs no number of records is told none: nothing may follow from it then.
        sized = {
            name: plan.with_(epsilon=None, noise_multiplier=1.0).resolve(
                records if plan.needs_size else None, of_units=of_units
            )
            for name, plan in plans.items()
        }
        relation = Relation.of(first.relation)
        delta = next(iter(sized.values())).delta
        alone = {
            name: _multiplier(first, (each,), delta, relation, number, scored)
            for name, each in sized.items()
        }

        def noised(factor: float) -> dict[str, ResolvedPlan]:
            return {
                name: replace(
                    each,
                    noise_multiplier=alone[name] * factor,
                    plan=each.plan.with_(noise_multiplier=alone[name] * factor, delta=delta),
                )
                for name, each in sized.items()
            }

        factor = 1.0
        if first.epsilon is not None and len(plans) > 1:
            # Plans that fit alone may not fit together, since the worst of them counts everywhere.
            while True:
                together = _cost(noised(factor).values(), delta, relation, number, scored)
                if together <= first.epsilon:
                    break
                factor *= 1.001 * together / first.epsilon
        found = noised(factor)
        history = tuple(_training(each) for each in found.values())
        return Plans(found, _score_epsilon(history, relation, number) if scored else None)

    @property
    def first(self) -> ResolvedPlan:
        """Of what all have in common."""
        return next(iter(self.resolved.values()))

    @property
    def histories(self) -> tuple[History, ...]:
        """What a record can go through in a trial."""
        held = () if self.score_epsilon is None else ((Pure(self.score_epsilon),),)
        return (*dict.fromkeys(_training(each) for each in self.resolved.values()), *held)


def _training(resolved: ResolvedPlan) -> History:
    return (with_count(resolved.event, resolved.steps),)


def _score_epsilon(
    histories: tuple[History, ...], relation: Relation, number: TrialNumber
) -> float:
    """Return an epsilon of the score at which held-back records hardly pay more than the others."""
    base = Profile(*profile_of(tuple(dict.fromkeys(histories)), relation, 1200, 1e-15))
    gamma = number.parameter if number.law != "poisson" else 1 / (1 + number.mean)
    return float(f"{base.crossing(gamma):.4g}")


def _cost(
    plans: Iterable[ResolvedPlan],
    delta: float,
    relation: Relation,
    number: TrialNumber,
    scored: bool,
) -> float:
    histories = tuple(dict.fromkeys(_training(each) for each in plans))
    if scored:
        histories = (*histories, (Pure(_score_epsilon(histories, relation, number)),))
    event = Selection(histories, number.law, number.shape, number.parameter)
    return epsilon_of(event, delta=delta, relation=relation)


def _multiplier(
    plan: Plan,
    sized: tuple[ResolvedPlan, ...],
    delta: float,
    relation: Relation,
    number: TrialNumber,
    scored: bool,
) -> float:
    if plan.noise_multiplier is not None:
        return plan.noise_multiplier
    assert plan.epsilon is not None

    def cost(sigma: float) -> float:
        noisy = [replace(each, noise_multiplier=sigma) for each in sized]
        return _cost(noisy, delta, relation, number, scored)

    return calibrate(cost, plan.epsilon, "noise multiplier")
