"""The epsilon that is shown while training: accounted now and then, never below the truth.

Accounting costs tens of milliseconds, too much for every step. So epsilon is accounted at a few
dozen marks of the plan, and between two marks the *later* one is shown: an upper bound until that
mark is reached, however rarely anybody reads. The last step of the plan is a mark, so that what
is shown at the end is what the statement says.
"""

from __future__ import annotations

import math

from noisewise.errors import UnsoundError
from noisewise.privacy import History, epsilon_of
from noisewise.privacy.events import simplify, with_count
from noisewise.training.promise import require_sound
from noisewise.training.resolved import ResolvedPlan

__all__ = ["EpsilonMeter"]

#: Marks of a plan: at most so many accountings, whatever the number of steps and readers.
_MARKS = 24


class EpsilonMeter:
    """Upper bounds of epsilon after any number of steps of a run.

    Parameters
    ----------
    resolved : ResolvedPlan
    history : History
        What was charged when the meter was made.
    """

    def __init__(self, resolved: ResolvedPlan, history: History = ()) -> None:
        self._resolved = resolved
        self._before = history
        self._charged = sum(event.count for event in history)
        self._known: dict[int, float] = {}
        try:
            require_sound(resolved.plan.gradients)
            self._sound = True
        except UnsoundError:
            self._sound = False

    def after(self, charged: int, *, exactly: bool = False) -> float | None:
        """Epsilon after that many charges, or somewhat more; None if there is no proof.

        Parameters
        ----------
        charged : int
            At least as many as when the meter was made.
        exactly : bool
            Account at this very step instead of the next mark.
        """
        if not self._sound:
            return None
        mark = charged if exactly else self._mark(charged)
        if mark not in self._known:
            more = mark - self._charged
            step = with_count(self._resolved.event, more) if more else None
            self._known[mark] = epsilon_of(
                simplify((*self._before, *([] if step is None else [step]))),
                delta=self._resolved.delta,
                relation=self._resolved.plan.relation,
                accountant=self._resolved.plan.accountant,
            )
        return self._known[mark]

    def _mark(self, charged: int) -> int:
        """The first mark that is not before this step."""
        steps = self._resolved.steps
        stride = math.ceil(steps / _MARKS)
        mark = math.ceil(charged / stride) * stride
        return min(mark, steps) if charged <= steps else mark
