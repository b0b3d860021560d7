"""The best of a random number of private trials, as one release.

What leaves is the best trial alone: neither the others nor their number. What that costs is shown
in docs/proofs/selection.md#cost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from noisewise.errors import BudgetExceededError
from noisewise.privacy import Event, History, Randomness, Selection, Sensitivity, TrialNumber

__all__ = ["BestOf", "Outcome"]


@dataclass(frozen=True, eq=False)
class Outcome:
    """One trial: what may be seen of it if it is the best.

    Attributes
    ----------
    score : float
        Private like the rest. The larger, the better.
    value : object
        Computed from private releases and what is public.
    spent : tuple of histories
        What each kind of record went through.
    """

    score: float
    value: Any
    spent: tuple[History, ...]


@dataclass(frozen=True, eq=False)
class BestOf:
    """Runs trials and keeps the best one.

    Parameters
    ----------
    number : TrialNumber
        Law of the number of trials.
    trials : tuple of histories
        What a trial may cost; one that spent anything else is an error.
    planned : Sensitivity
        Of what the trials are told of the records.
    run : callable
        From the records and a generator of its own to an `Outcome`. Every trial is drawn from
        the same law, whatever came before.
    """

    number: TrialNumber
    trials: tuple[History, ...]
    planned: Sensitivity
    run: Callable[[Any, Randomness], Outcome]

    @property
    def sensitivity(self) -> tuple[Sensitivity, ...]:
        """Of what the trials are told."""
        return (self.planned,)

    @property
    def event(self) -> Event:
        """A selection."""
        return Selection(self.trials, self.number.law, self.number.shape, self.number.parameter)

    @property
    def description(self) -> str:
        """One line for the statement."""
        law = "Poisson" if self.number.law == "poisson" else "negative binomial"
        return (
            f"the best of a random number of trials (truncated {law} law, "
            f"{self.number.mean:.4g} expected)"
        )

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What must not be seen."""
        return (
            "Of all trials nothing was seen but the chosen one: not their number, their scores, "
            "or how long they took.",
        )

    def applied(self, exact: Any, rng: Randomness) -> tuple[float, Any]:
        """Return score and value of the best trial. Each call needs a charge."""
        best: Outcome | None = None
        for own in rng.spawn(self.number.draw(rng)):
            found = self.run(exact, own)
            if not set(found.spent) <= set(self.trials):
                raise BudgetExceededError(
                    "a trial spent something that was not paid for. This is a mistake in "
                    "noisewise; nothing was released."
                )
            # The first of equals stays, which is as good as any other rule.
            if best is None or found.score > best.score:
                best = found
        assert best is not None
        return best.score, best.value
