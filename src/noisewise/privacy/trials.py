"""How many trials a selection makes: a random number whose law is part of the guarantee.

Papernot and Steinke (2022). The truncated negative binomial law of shape s and parameter g gives
k >= 1 trials with probability proportional to (1 - g)^k times the product of (l + s)/(l + 1) for
l < k; shape 1 is geometric (Liu and Talwar 2019), shape 0 logarithmic. The Poisson law is
truncated to k >= 1 here.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Context, Decimal, localcontext

from scipy.optimize import brentq

from noisewise import checks
from noisewise.privacy.events.pure import Pure
from noisewise.privacy.events.selection import LAWS, Selection, mean_trials
from noisewise.privacy.randomness import Randomness

__all__ = ["TrialNumber"]

#: Digits of the probabilities, and random bits that they are compared with.
_DIGITS = Context(prec=90)
_BITS = 256


@dataclass(frozen=True)
class TrialNumber:
    """The law of the number of trials; see :class:`~noisewise.privacy.Selection`.

    Parameters
    ----------
    law : {"negative-binomial", "poisson"}
    shape : float
    parameter : float

    Examples
    --------
    >>> TrialNumber.of_mean(10.0, "negative-binomial", 1.0)
    TrialNumber(law='negative-binomial', shape=1.0, parameter=0.1)
    """

    law: str
    shape: float
    parameter: float

    def __post_init__(self) -> None:
        Selection(((Pure(1.0),),), self.law, self.shape, self.parameter)

    @classmethod
    def of_mean(cls, mean: float, law: str = LAWS[0], shape: float = 0.0) -> TrialNumber:
        """Return the law of that kind with an expected number of trials."""
        mean = checks.positive("mean", mean)
        if not 1.0 < mean <= 1e6:
            raise ValueError(
                f"the expected number of trials must be above 1 and at most a million, got {mean!r}"
            )
        if law == "negative-binomial" and shape == 1.0:
            return cls(law, shape, 1 / mean)
        low, high = (1e-12, 2 * mean) if law == "poisson" else (1e-15, 1 - 1e-12)
        found = brentq(
            lambda parameter: mean_trials(law, shape, parameter) - mean, low, high, xtol=1e-16
        )
        return cls(law, shape, float(found))

    @property
    def mean(self) -> float:
        """Expected number of trials."""
        return mean_trials(self.law, self.shape, self.parameter)

    def probability(self, trials: int) -> Decimal:
        """Probability of that many trials, to 80 digits or so."""
        with localcontext(_DIGITS):
            value = self._first()
            for k in range(1, trials):
                value *= self._ratio(k)
            return value

    def draw(self, rng: Randomness) -> int:
        """Draw the number of trials, exact to 80 digits."""
        with localcontext(_DIGITS):
            uniform = Decimal(int.from_bytes(rng.bytes(_BITS // 8), "big")) / Decimal(2**_BITS)
            trials, value = 1, self._first()
            left = uniform - value
            while left >= 0 and value > 0:
                value *= self._ratio(trials)
                trials += 1
                left -= value
            return trials

    def _first(self) -> Decimal:
        parameter, shape = Decimal(self.parameter), Decimal(self.shape)
        if self.law == "poisson":
            return parameter / (parameter.exp() - 1)
        if shape == 0:
            return (1 - parameter) / -parameter.ln()
        return shape * (1 - parameter) / ((-shape * parameter.ln()).exp() - 1)

    def _ratio(self, k: int) -> Decimal:
        """Probability of k + 1 trials over that of k."""
        if self.law == "poisson":
            return Decimal(self.parameter) / (k + 1)
        return (1 - Decimal(self.parameter)) * (k + Decimal(self.shape)) / (k + 1)
