"""What every accountant answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from noisewise.privacy.events import History
from noisewise.privacy.relation import Relation

__all__ = ["Accountant"]


class Accountant(ABC):
    """Adds up the losses of a history; all its answers are upper bounds.

    Attributes
    ----------
    name : str
        The word of ``accountant=`` and of statements.
    words : str
        How it differs from the others, for people.
    """

    name: ClassVar[str]
    words: ClassVar[str]

    @abstractmethod
    def refusal(self, history: History, delta: float | None = None) -> str | None:
        """Why it cannot account for this history (at this delta), if so, in a sentence."""

    @abstractmethod
    def epsilon(self, history: History, delta: float, relation: Relation) -> float:
        """Epsilon at `delta` > 0 of a history that is not refused."""

    @abstractmethod
    def delta(self, history: History, epsilon: float, relation: Relation) -> float:
        """Delta at `epsilon` >= 0 of a history that is not refused."""

    def deltas(
        self, history: History, epsilons: NDArray[np.float64], relation: Relation
    ) -> NDArray[np.float64]:
        """Deltas at several epsilons >= 0."""
        return np.array([self.delta(history, float(each), relation) for each in epsilons])
