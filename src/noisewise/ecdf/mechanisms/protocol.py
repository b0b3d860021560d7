"""What every counting mechanism is made of: a strategy, integer noise, a guarantee.

A :class:`Strategy` measures the histogram of the data with integers and turns noisy
measurements into prefix counts. A :class:`Mechanism` is the noise that a budget buys
for a strategy, as :func:`noisewise.release.release` adds it to the measurements;
everything after that is post-processing.

Why it is private. Let the release be ``m(x) + T w`` with integer measurements m(x),
an integer matrix T (the identity, but for the thesis's tree) and a vector w of
independent integer noise. Suppose that for all neighbours x, x' there is an *integer*
vector c with ``m(x') - m(x) = T c``. Then the release on x' is ``m(x) + T (w + c)``: the
same function of the noise shifted by c. So it is at most as distinguishable from the
release on x as w + c is from w, which is

* pure: sum_i |c_i| / b_i for discrete Laplace noise of scales b_i;
* concentrated: 1/2 sum_i c_i^2 / s_i^2 for discrete Gaussian noise of parameters s_i
  (Canonne, Kamath and Steinke 2020, Theorem 14), and (epsilon, delta) by
  :mod:`noisewise.ecdf.budget` (rounding commutes with an integer shift).

A strategy answers for the size of c, block by block, in :meth:`Strategy.shift`.

Proof: docs/proofs/curves.md#shift.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from noisewise import checks
from noisewise.ecdf.budget import concentrated_delta, discreteness, gaussian_delta
from noisewise.privacy import (
    ADD_REMOVE,
    REPLACE_ONE,
    Event,
    Gaussian,
    Pure,
    Randomness,
    Relation,
    Sensitivity,
    ZeroConcentrated,
)
from noisewise.release import ONE_ROW, Additive, Block, Contribution

__all__ = [
    "Block",
    "Change",
    "FloatArray",
    "IntArray",
    "Mechanism",
    "Norm",
    "Setting",
    "Strategy",
    "round_up",
    "sensitivities",
]

IntArray: TypeAlias = NDArray[np.int64]
FloatArray: TypeAlias = NDArray[np.float64]
Norm: TypeAlias = Literal["l1", "l2-squared"]
# What one record may do to the prefix counts: "suffix", all counts from its bin on move
# by one (it comes or goes); "interval", the counts between two bins move by one (it is
# replaced); "joint", the worse of moving within one of two curves and changing from one
# curve to the other (a flipped label).
Change: TypeAlias = Literal["suffix", "interval", "joint"]


@dataclass(frozen=True)
class Setting:
    """What is public before anything is measured.

    Parameters
    ----------
    bins : int
        Number of cells of the histogram, the same as the number of thresholds.
    total_is_public : bool
        Whether the number of records is known, so that the last prefix count
        needs no noise.

    Examples
    --------
    >>> Setting.of(8, "replace").points
    7
    """

    bins: int
    total_is_public: bool

    def __post_init__(self) -> None:
        object.__setattr__(self, "bins", checks.integer("bins", self.bins, minimum=1))

    @classmethod
    def of(cls, bins: int, relation: Relation | str) -> Setting:
        """Return the setting of one curve under `relation`."""
        return cls(bins, Relation.of(relation).count_is_public)

    @property
    def points(self) -> int:
        """Number of prefix counts that need noise."""
        return self.bins - 1 if self.total_is_public else self.bins

    @property
    def change(self) -> Change:
        """What one record may do to a single curve in this setting."""
        return "interval" if self.total_is_public else "suffix"


class Strategy(Protocol):
    """How counts are measured with integers and how prefix counts come out of it."""

    @property
    def name(self) -> str:
        """A short name."""
        ...

    @property
    def description(self) -> str:
        """One line that says which strategy it is, with its parameters."""
        ...

    @property
    def setting(self) -> Setting:
        """What is public."""
        ...

    @property
    def blocks(self) -> tuple[int, ...]:
        """Sizes of the blocks of noise."""
        ...

    @property
    def shares(self) -> tuple[float, ...]:
        """How the budget is split over the blocks; sums to one."""
        ...

    def shift(self, change: Change, norm: Norm) -> tuple[Fraction, ...]:
        """Upper bounds, by block, of the noise shift that hides one record's change."""
        ...

    def touched(self, change: Change) -> int:
        """How many numbers of noise have to shift, at most, to hide one record's change.

        If the change is "joint", the numbers of both curves that it touches.
        """
        ...

    def measure(self, counts: IntArray) -> IntArray:
        """Measure a histogram: a linear map with integer values."""
        ...

    def spread(self, noise: NDArray[np.generic]) -> NDArray[np.generic]:
        """Turn the blocks of noise (last axis) into the noise of the measurements."""
        ...

    def reconstruct(self, measurements: NDArray[np.generic], total: float) -> FloatArray:
        """Prefix counts (last axis: bins) from noisy measurements; `total` if it is public."""
        ...

    def variance(self, blocks: tuple[float, ...]) -> FloatArray:
        """Variance of each prefix count, given the variance of the noise of each block."""
        ...

    def total_covariance(self, blocks: tuple[float, ...]) -> FloatArray:
        """Covariance of each prefix count with the last one (zero if the total is public)."""
        ...


@dataclass(frozen=True)
class Mechanism(Additive):
    """A strategy, the noise it gets and what one release of it costs.

    Make one with :func:`noisewise.ecdf.mechanisms.plan`.

    Parameters
    ----------
    strategy : Strategy
        How counts are measured and read out.
    noise : tuple of Block
        One block of noise for each block of the strategy.
    change : {"suffix", "interval", "joint"}
        What one record may do.
    reason : str
        Why this mechanism was chosen.
    concentrated : bool
        Whether Gaussian noise is accounted by zCDP, and not by its distance from real noise.
    contribution : Contribution
        How many rows' worth one unit may change, and in which steps rows are counted.
    """

    strategy: Strategy
    noise: tuple[Block, ...]
    change: Change
    reason: str = ""
    concentrated: bool = False
    contribution: Contribution = ONE_ROW

    @property
    def name(self) -> str:
        """The strategy's short name."""
        return self.strategy.name

    @property
    def kind(self) -> Literal["laplace", "gaussian"]:
        """Which noise is used."""
        return self.noise[0].kind

    @property
    def setting(self) -> Setting:
        """What is public."""
        return self.strategy.setting

    @property
    def description(self) -> str:
        """One line: strategy and noise."""
        said = f"{self.strategy.description}, discrete {self.kind.capitalize()} noise"
        rows = self.contribution.rows
        return said if not self.contribution.of_units else f"{said} for {rows} rows of a unit"

    # ------------------------------------------------------------------ guarantee

    @cached_property
    def sensitivity(self) -> tuple[Sensitivity, ...]:
        """What the noise of each block was planned for."""
        return sensitivities(self.strategy, self.change, self.kind, self.contribution)

    @property
    def event(self) -> Event:
        """What one release is to an accountant.

        For (epsilon, delta) the noise is integer, so fine that it is stated as Gaussian noise with
        its distance from real noise, which the accountant adds to delta in every composition.
        """
        told = self.contribution.told
        if self.kind == "laplace":
            return told(Pure(self.epsilon))
        if self.concentrated:
            return told(ZeroConcentrated(self.rho))
        ratio = math.sqrt(self.ratio_squared) * (1 + 1e-12)
        return told(Gaussian(1 / ratio, variation=self.variation))

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is public, for the statement."""
        if self.change == "suffix":
            return ()
        units = self.contribution.of_units
        return (f"the number of {'units' if units else 'records'} is public",)

    @cached_property
    def epsilon(self) -> float:
        """The pure epsilon, exactly (infinite for Gaussian noise)."""
        if self.kind != "laplace":
            return math.inf
        shifts = _shifts(self.strategy, self.change, "l1", self.contribution)
        loss = sum((s / b.scale for s, b in zip(shifts, self.noise, strict=True)), Fraction(0))
        return round_up(loss)

    @cached_property
    def ratio_squared(self) -> float:
        """Squared sensitivity over noise parameter, summed over the blocks (Gaussian)."""
        if self.kind != "gaussian":
            return math.inf
        shifts = _shifts(self.strategy, self.change, "l2-squared", self.contribution)
        total = sum((s / b.scale for s, b in zip(shifts, self.noise, strict=True)), Fraction(0))
        return round_up(total)

    @property
    def rho(self) -> float:
        """The zCDP parameter; of Laplace noise the bound epsilon^2/2 (Bun and Steinke 2016)."""
        return self.ratio_squared / 2 if self.kind == "gaussian" else self.epsilon**2 / 2

    @property
    def variation(self) -> float:
        """How far a release is from one with rounded real Gaussian noise (total variation).

        Only numbers of noise that shift between the two neighbours count: the others are
        independent of them and have the same law on both sides, whichever law that is, so
        the release is exactly as distinguishable as without them.
        """
        deviation = math.sqrt(min(block.scale for block in self.noise))
        return discreteness(deviation, self.touched)

    @property
    def touched(self) -> int:
        """How many numbers of noise have to shift, at most, to hide one unit's change."""
        of_one = self.strategy.touched(self.change)
        return (
            of_one
            if self.contribution == ONE_ROW
            else self.contribution.places(of_one, sum(self.strategy.blocks))
        )

    def delta(self, epsilon: float) -> float:
        """Return a proven delta for which one release is (epsilon, delta)-DP."""
        if self.kind == "laplace":
            return 0.0 if epsilon >= self.epsilon else 1.0
        slack = (1 + math.exp(min(epsilon, 700.0))) * self.variation
        close_to_real = gaussian_delta(math.sqrt(self.ratio_squared), epsilon) + slack
        return min(1.0, close_to_real, concentrated_delta(self.rho, epsilon))

    # -------------------------------------------------------------------- release

    def draw(self, rng: Randomness) -> IntArray:
        """Draw the noise of the measurements, exactly."""
        drawn = np.concatenate([block.draw(rng) for block in self.noise])
        return np.asarray(self.strategy.spread(drawn), np.int64)

    def simulate(self, generator: np.random.Generator, size: int = 1) -> FloatArray:
        """`size` draws of the noise of the prefix counts: for bands, never to release."""
        drawn = np.concatenate([block.simulate(generator, size) for block in self.noise], axis=1)
        return self.read(self.strategy.spread(drawn), 0.0)

    def read(self, measurements: NDArray[np.generic], total: float) -> FloatArray:
        """Prefix counts, in rows, from noisy measurements; `total` if it is public."""
        grain = self.contribution.grain
        counted = measurements if grain == 1 else measurements.astype(np.float64) / grain
        return self.strategy.reconstruct(counted, total)

    # ------------------------------------------------------------------- accuracy

    @cached_property
    def variance(self) -> FloatArray:
        """Variance of each noisy prefix count."""
        return self.strategy.variance(self.block_variances)

    @property
    def block_variances(self) -> tuple[float, ...]:
        """Variance of the noise of each block, in rows."""
        return tuple(block.variance / self.contribution.grain**2 for block in self.noise)

    @cached_property
    def total_covariance(self) -> FloatArray:
        """Covariance of each noisy prefix count with the noisy total."""
        return self.strategy.total_covariance(self.block_variances)

    @property
    def mean_variance(self) -> float:
        """Mean variance over the prefix counts that have noise."""
        points = self.setting.points
        return float(self.variance[:points].mean()) if points else 0.0

    @property
    def max_variance(self) -> float:
        """Largest variance of a prefix count."""
        return float(self.variance.max())


def _shifts(
    strategy: Strategy, change: Change, norm: Norm, contribution: Contribution
) -> tuple[Fraction, ...]:
    """Upper bounds, by block, of the shift that hides one unit's change."""
    times = contribution.steps if norm == "l1" else contribution.steps**2
    return tuple(shift * times for shift in strategy.shift(change, norm))


def sensitivities(
    strategy: Strategy,
    change: Change,
    kind: Literal["laplace", "gaussian"],
    contribution: Contribution = ONE_ROW,
) -> tuple[Sensitivity, ...]:
    """How far one unit shifts the noise that hides it, block by block, under its relation."""
    relation = ADD_REMOVE if change == "suffix" else REPLACE_ONE
    if kind == "laplace":
        shifts = _shifts(strategy, change, "l1", contribution)
        return tuple(Sensitivity(round_up(shift), "l1", relation) for shift in shifts)
    squares = _shifts(strategy, change, "l2-squared", contribution)
    return tuple(
        Sensitivity(math.nextafter(math.sqrt(round_up(square)), math.inf), "l2", relation)
        for square in squares
    )


def round_up(value: Fraction) -> float:
    """Return the smallest float that is not below `value`."""
    number = float(value)
    return number if Fraction(number) >= value else math.nextafter(number, math.inf)
