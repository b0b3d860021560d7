"""What is returned for quantiles: a float or an array, with a statement and an interval."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from noisewise import checks
from noisewise.ecdf.mechanisms.protocol import FloatArray
from noisewise.privacy import Statement
from noisewise.release import StatedArray, StatedNumber

__all__ = ["Between", "PrivateQuantile", "PrivateQuantiles"]

Between = Callable[[float], tuple[FloatArray, FloatArray]]


class PrivateQuantile(StatedNumber):
    """A private quantile: a float that knows what was promised for it."""

    mechanism: str
    _between: Between

    @classmethod
    def made(
        cls, value: FloatArray, state: Callable[[], Statement], between: Between, how: str
    ) -> PrivateQuantile:
        """Return the number with its statement and its limits."""
        made = cls(float(value))
        made._state, made._between, made.mechanism = state, between, how
        return made

    def confidence_interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return limits of the records' own quantile, which only noise hides.

        What was not paid for is not known: without ``interval=``, or for a higher level than that,
        the limits are the bounds. Quantiles of a curve have limits of any level.
        """
        low, high = self._between(checks.fraction("level", level))
        return float(low), float(high)


class PrivateQuantiles(StatedArray):
    """Private quantiles: an array that knows what was promised for it."""

    mechanism: str
    _between: Between | None

    @classmethod
    def made(
        cls, values: FloatArray, state: Callable[[], Statement], between: Between, how: str
    ) -> PrivateQuantiles:
        """Return the numbers with their statement and their limits."""
        made = np.array(values, np.float64).view(cls)
        made._state, made._between, made.mechanism = state, between, how
        return made

    def confidence_interval(self, level: float = 0.95) -> tuple[FloatArray, FloatArray]:
        """Return limits of the records' own quantiles, which only noise hides.

        All of them hold at once with probability `level`. What was not paid for is not known:
        without ``interval=``, or for a higher level than that, the limits are the bounds.
        """
        self.statement()  # an array that was changed has neither
        between: Any = self._between
        found: tuple[FloatArray, FloatArray] = between(checks.fraction("level", level))
        return found
