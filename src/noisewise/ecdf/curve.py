"""A private empirical distribution function and what can be read from it.

Everything here is post-processing of one release: as many quantiles, bands, means and
samples as wanted, at no further cost. Names follow ``scipy.stats.ecdf``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from noisewise import checks
from noisewise.ecdf.bands import critical_values, population_margin, ratio_deviations
from noisewise.ecdf.budget import Budget
from noisewise.ecdf.grid import Grid
from noisewise.ecdf.mechanisms.coarse import CoarseTree
from noisewise.ecdf.mechanisms.protocol import FloatArray, Mechanism
from noisewise.privacy import Relation, Statement
from noisewise.release import Promise

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["Band", "PrivateECDF", "Steps"]

Target = Literal["sample", "population"]


@dataclass(frozen=True, eq=False)
class Steps:
    """A right-continuous step function, like ``scipy.stats.ecdf(...).cdf``.

    Parameters
    ----------
    quantiles : array
        Where it steps.
    probabilities : array
        Its values from there on.
    before : float
        Its value before the first step.
    """

    quantiles: FloatArray
    probabilities: FloatArray
    before: float = 0.0

    def evaluate(self, x: ArrayLike) -> FloatArray:
        """Return the values at `x`."""
        place = np.searchsorted(self.quantiles, np.asarray(x, np.float64), side="right")
        return np.concatenate([[self.before], self.probabilities])[place]

    __call__ = evaluate


@dataclass(frozen=True, eq=False)
class Band:
    """A confidence band, like ``scipy.stats.ecdf(...).cdf.confidence_interval()``.

    Parameters
    ----------
    low, high : Steps
        The limits.
    level : float
        Probability that the curve lies between them.
    simultaneous : bool
        Whether at all thresholds at once, or at each one.
    """

    low: Steps
    high: Steps
    level: float
    simultaneous: bool


@dataclass(frozen=True, eq=False)
class PrivateECDF:
    """A private empirical distribution function. Made by :func:`noisewise.ecdf.dp_ecdf`.

    Parameters
    ----------
    grid : Grid
        Public thresholds.
    noisy_counts : array
        What was released: noisy numbers of records up to each threshold.
    counts : array
        The same made monotone (or as released, if no smoothing was asked for).
    mechanism : Mechanism
        How they were made.
    budget : Budget
        What was asked for.
    relation : Relation
        Which datasets are neighbours.
    smoothing : str
        How `counts` were made monotone.
    promise : Promise
        What the statement is derived from.
    """

    grid: Grid
    noisy_counts: FloatArray
    counts: FloatArray
    mechanism: Mechanism
    budget: Budget
    relation: Relation
    smoothing: str
    promise: Promise

    # --------------------------------------------------------------------- values

    @property
    def thresholds(self) -> FloatArray:
        """Where the curve steps; the last one is the upper bound."""
        return self.grid.thresholds

    @property
    def total(self) -> float:
        """Number of records: the public one, or a noisy one (at least 1)."""
        return max(float(self.counts[-1]), 1.0)

    @cached_property
    def probabilities(self) -> FloatArray:
        """Values of the curve at the thresholds; the last one is 1."""
        values = self.counts / self.total
        if self.smoothing != "none":
            values = np.clip(values, 0.0, 1.0)
        values[-1] = 1.0
        return values

    @cached_property
    def noisy_probabilities(self) -> FloatArray:
        """Values before smoothing: neither monotone nor between 0 and 1."""
        values = self.noisy_counts / max(float(self.noisy_counts[-1]), 1.0)
        values[-1] = 1.0
        return values

    @property
    def cdf(self) -> Steps:
        """The curve as a step function."""
        return Steps(self.thresholds, self.probabilities)

    @property
    def sf(self) -> Steps:
        """The survival function, 1 - cdf."""
        return Steps(self.thresholds, 1.0 - self.probabilities, before=1.0)

    def evaluate(self, x: ArrayLike) -> FloatArray:
        """Return the estimated fractions of records <= `x`."""
        return self.cdf.evaluate(x)

    __call__ = evaluate

    def quantile(
        self,
        q: ArrayLike,
        *,
        method: Literal["inverse", "linear", "bisection"] = "inverse",
        raw: bool = False,
        precision: float | None = None,
    ) -> FloatArray:
        """Return quantiles; as many as wanted cost nothing more.

        Parameters
        ----------
        q : float or array
            Probabilities in [0, 1].
        method : {"inverse", "linear", "bisection"}
            "inverse": the least threshold at which the curve reaches `q`. "linear": within
            that bin, as if records were spread evenly. "bisection": Algorithm 9 of Barczewski
            (2025), which needs no monotone curve.
        raw : bool
            Use the curve as it was before smoothing ("bisection" only).
        precision : float, optional
            Where bisection stops; by default a bin's width, the range over the bins.
        """
        checks.choice("method", method, ("inverse", "linear", "bisection"))
        wanted = np.asarray(q, np.float64)
        if np.isnan(wanted).any() or np.any((wanted < 0) | (wanted > 1)):
            raise ValueError(f"q must lie in [0, 1], got {q!r}")
        if method == "bisection":
            return self._bisection(wanted, raw, precision)
        if raw or self.smoothing == "none":
            raise ValueError(
                "a curve that is not monotone has no inverse: use method='bisection', or ask "
                "dp_ecdf for smoothing"
            )
        place = np.searchsorted(self.probabilities, wanted, side="left")
        if method == "inverse":
            return self.thresholds[place]
        values = np.concatenate([[0.0], self.probabilities])
        height = values[place + 1] - values[place]
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(height > 0, (wanted - values[place]) / height, 1.0)
        edges = self.grid.edges
        return np.asarray(edges[place] + np.clip(share, 0, 1) * (edges[place + 1] - edges[place]))

    def _bisection(self, wanted: FloatArray, raw: bool, precision: float | None) -> FloatArray:
        steps = Steps(self.thresholds, self.noisy_probabilities) if raw else self.cdf
        low = np.full(wanted.shape, self.grid.lower)
        high = np.full(wanted.shape, self.grid.upper)
        width = self.grid.upper - self.grid.lower
        stop = width / self.grid.bins if precision is None else precision
        stop = max(checks.positive("precision", stop), width * 2.0**-60)
        while width > stop:
            middle = (low + high) / 2
            short = steps.evaluate(middle) < wanted
            low, high = np.where(short, middle, low), np.where(short, high, middle)
            width /= 2
        return np.asarray((low + high) / 2)

    def mean(self) -> float:
        """Return the mean, with the records of a bin at its middle."""
        edges = self.grid.edges
        mass = np.diff(self.probabilities, prepend=0.0)
        return float(mass @ (edges[:-1] + edges[1:]) / 2)

    def sample(self, size: int, seed: int | np.random.Generator | None = None) -> FloatArray:
        """Draw synthetic records: a bin by its probability, then uniformly within it."""
        uniform = np.random.default_rng(seed).random(checks.integer("size", size))
        return self.quantile(uniform, method="linear")

    # ------------------------------------------------------------------- accuracy

    def variance(self) -> FloatArray:
        """Return the variance of the noise of each value, before smoothing.

        If blocks of bins were measured (mechanism "adaptive"), values inside a block have an
        error of interpolation besides, which the band allows for.

        If the number of records is private, the values are ratios of two noisy counts and
        this is the delta method's approximation.
        """
        variance = self.mechanism.variance
        if self.mechanism.setting.total_is_public:
            return variance / self.total**2
        ratio = self.probabilities
        covariance = self.mechanism.total_covariance
        spread = variance - 2 * ratio * covariance + ratio**2 * variance[-1]
        return np.asarray(np.maximum(spread, 0.0) / self.total**2)

    def confidence_band(
        self,
        level: float = 0.95,
        *,
        simultaneous: bool = True,
        target: Target = "sample",
        draws: int = 500,
    ) -> Band:
        """Return limits between which the true curve lies with probability `level`.

        At the thresholds: between them nothing was measured, and the true curve may step
        anywhere. Records outside the bounds count as moved to them.

        Parameters
        ----------
        level : float
            In (0, 1).
        simultaneous : bool
            At all thresholds at once (then monotony narrows it), or at each one.
        target : {"sample", "population"}
            The ECDF of the records, which only the noise hides; or the distribution that
            they were drawn from independently, which is hidden by sampling too.
        draws : int
            Number of noise curves simulated to find the width.
        """
        level = checks.fraction("level", level)
        checks.choice("target", target, ("sample", "population"))
        # Noise and sampling may each miss with half of what the level leaves.
        part = level if target == "sample" else (1 + level) / 2
        factors = critical_values(self.mechanism, part, simultaneous=simultaneous, draws=draws)
        low, high, records = self._limits(factors)
        if isinstance(self.mechanism.strategy, CoarseTree):
            # Inside a block only monotony is known.
            low, high = self.mechanism.strategy.between(low, high)
        if target == "population":
            margin = population_margin(records, part)
            low, high = low - margin, high + margin
        low, high = np.clip(low, 0.0, 1.0), np.clip(high, 0.0, 1.0)
        low[-1] = high[-1] = 1.0
        if simultaneous:
            low = np.maximum.accumulate(low)
            high = np.minimum.accumulate(high[::-1])[::-1]
        return Band(Steps(self.thresholds, low), Steps(self.thresholds, high), level, simultaneous)

    def _limits(self, factors: FloatArray) -> tuple[FloatArray, FloatArray, float]:
        """Limits of the values, and a lower limit of the number of records."""
        widths = factors * np.sqrt(self.mechanism.variance)
        low, high = self.noisy_counts - widths, self.noisy_counts + widths
        total = float(self.noisy_counts[-1])
        if self.mechanism.setting.total_is_public:
            return low / total, high / total, total
        excess = factors * ratio_deviations(self.mechanism) - widths
        with np.errstate(divide="ignore", invalid="ignore"):
            low = np.where(total + excess > 0, low / (total + excess), 0.0)
            high = np.where(total - excess > 0, high / (total - excess), 1.0)
        return low, high, total - float(widths[-1])

    # --------------------------------------------------------------------- output

    def to_frame(self, level: float | None = None) -> pd.DataFrame:
        """Return thresholds, values and their standard errors, with a band if `level` is given."""
        import pandas as pd

        columns: dict[str, Any] = {
            "threshold": self.thresholds,
            "probability": self.probabilities,
            "noisy_probability": self.noisy_probabilities,
            "standard_error": np.sqrt(self.variance()),
        }
        if level is not None:
            band = self.confidence_band(level)
            columns["low"] = band.low.probabilities
            columns["high"] = band.high.probabilities
        frame: pd.DataFrame = pd.DataFrame(columns)
        return frame

    def plot(self, ax: Axes | None = None, *, level: float | None = 0.95, **line: Any) -> Axes:
        """Draw the curve and its band.

        Parameters
        ----------
        ax : matplotlib axes, optional
            Where to draw.
        level : float or None
            Level of the simultaneous band; None for none.
        **line
            Passed to ``ax.step``.
        """
        if ax is None:
            import matplotlib.pyplot as plt

            ax = plt.subplots()[1]
        edges = self.grid.edges
        values = np.concatenate([[0.0], self.probabilities])
        (drawn,) = ax.step(edges, values, where="post", **{"label": "private ECDF", **line})
        if level is not None:
            band = self.confidence_band(level)
            low = np.concatenate([[0.0], band.low.probabilities])
            high = np.concatenate([[0.0], band.high.probabilities])
            colour = drawn.get_color()
            shade: dict[str, Any] = {"alpha": 0.25, "color": colour, "linewidth": 0}
            ax.fill_between(edges, low, high, step="post", label=f"{level:.0%} band", **shade)
        ax.set(xlabel="x", ylabel="fraction of records at most x", ylim=(-0.02, 1.02))
        ax.legend(loc="lower right")
        return ax

    def statement(self, delta: float | None = None) -> Statement:
        """Return what was promised.

        Parameters
        ----------
        delta : float, optional
            At which delta epsilon is stated; by default that of the budget, and for a budget
            in rho, which promises an epsilon for every delta, 1e-6.
        """
        return self.promise.state(delta)

    def __repr__(self) -> str:
        return (
            f"PrivateECDF({self.grid.bins} thresholds in [{self.grid.lower:g}, "
            f"{self.grid.upper:g}], {self.budget}, {self.relation}, {self.mechanism.name})"
        )
