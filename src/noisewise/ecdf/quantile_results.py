"""What is asked for and what is returned: a float or an array, with a statement and an interval."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from noisewise import checks
from noisewise.ecdf.curve import PrivateECDF
from noisewise.ecdf.mechanisms.protocol import FloatArray
from noisewise.ecdf.search import Found
from noisewise.privacy import Event, Statement
from noisewise.release import StatedArray, StatedNumber

__all__ = [
    "Between",
    "PrivateQuantile",
    "PrivateQuantiles",
    "asked_for",
    "made_of",
    "named",
    "placed",
    "read_from",
    "searched",
]

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


def asked_for(q: Any) -> FloatArray:
    """Return which quantiles are wanted; refused unless they are some."""
    given, wanted = np.asarray(q), np.empty(0)
    if given.dtype.kind in "iufO":  # fractions, too
        with contextlib.suppress(TypeError, ValueError):
            wanted = given.astype(np.float64)
    if wanted.size == 0 or not ((wanted >= 0) & (wanted <= 1)).all():
        raise ValueError(f"q must be numbers in [0, 1], at least one, got {q!r}")
    if wanted.size > 1 << 12:
        raise ValueError(f"q holds {wanted.size} numbers: release a whole curve with dp_ecdf")
    return wanted


def named(quantiles: tuple[Fraction, ...]) -> str:
    """Return which quantiles they are, in words."""
    names = ", ".join(f"{float(one):g}" for one in quantiles)
    return f"{'quantile' if len(quantiles) == 1 else 'quantiles'} {names}"


def placed(value: dict[Fraction, float], wanted: FloatArray) -> FloatArray:
    """Return values in the shape and order in which their quantiles were asked for."""
    values = np.array([value[Fraction(one)] for one in wanted.ravel().tolist()])
    return values.reshape(wanted.shape)


def read_from(
    curve: PrivateECDF, wanted: FloatArray, values: FloatArray | None = None, how: str = ""
) -> PrivateQuantile | PrivateQuantiles:
    """Return quantiles of a curve with its statement and limits, at no cost.

    Parameters
    ----------
    curve : PrivateECDF
    wanted : array
    values : array, optional
        What stands for each inside its bin; by default as if records were spread evenly in it.
    how : str
        By what mechanism, if not the curve's.
    """

    def between(level: float) -> tuple[FloatArray, FloatArray]:
        """The least and the largest threshold at which a curve inside the band reaches q."""
        band = curve.confidence_band(level)
        points = curve.thresholds
        first = np.searchsorted(band.high.probabilities, wanted, side="left")
        last = np.searchsorted(band.low.probabilities, wanted, side="left")
        # Where it reaches q at a threshold, the quantile is in the bin that ends there.
        return curve.grid.edges[first], points[np.minimum(last, points.size - 1)]

    found = curve.quantile(wanted, method="linear") if values is None else values
    described = how or curve.mechanism.description
    return made_of(np.asarray(found), curve.promise.state, between, described)


def searched(
    found: Found, quantiles: tuple[Fraction, ...], wanted: FloatArray, whole: Event, delta: float
) -> PrivateQuantile | PrivateQuantiles:
    """Return what a search has found, with what was promised for all of its looks: the `whole`.

    The last look speaks of itself alone, so its own promise would be too small.
    """
    last = found.curve.mechanism.description
    said = f"{named(quantiles)}, searched for in {found.looks} looks at counts; the last: {last}"
    promise = replace(found.curve.promise, history=(whole,), delta=delta, mechanism=said)
    values = placed(dict(zip(quantiles, found.values, strict=True)), wanted)
    return read_from(replace(found.curve, promise=promise), wanted, values, said)


def made_of(
    values: FloatArray, state: Callable[[], Statement], between: Between, how: str
) -> PrivateQuantile | PrivateQuantiles:
    """Return a float or an array, as was asked for."""
    if values.ndim == 0:
        return PrivateQuantile.made(values, state, between, how)
    return PrivateQuantiles.made(values, state, between, how)
