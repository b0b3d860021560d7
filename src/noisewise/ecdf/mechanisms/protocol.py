"""What every counting mechanism is made of: a strategy, integer noise, a guarantee.

A :class:`Strategy` measures the histogram of the data with integers and turns noisy
measurements into prefix counts. A :class:`Mechanism` is a strategy with the noise
that a budget buys. The data are touched in one line, ``measure(counts) + noise``;
everything after it is post-processing.

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
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from noisewise.ecdf import noising
from noisewise.ecdf.budget import Budget, concentrated_delta, discreteness, gaussian_delta
from noisewise.privacy import _validate
from noisewise.privacy.discrete import (
    discrete_gaussian,
    discrete_laplace,
    discrete_laplace_variance,
    exact_scale,
)
from noisewise.privacy.randomness import Randomness
from noisewise.privacy.relation import Relation

__all__ = [
    "Block",
    "Change",
    "FloatArray",
    "IntArray",
    "Mechanism",
    "Norm",
    "Setting",
    "Strategy",
    "calibrate",
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
        object.__setattr__(self, "bins", _validate.integer("bins", self.bins, minimum=1))

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


@dataclass(frozen=True)
class Block:
    """Independent, identically distributed integer noise.

    Parameters
    ----------
    kind : {"laplace", "gaussian"}
        Discrete Laplace or discrete Gaussian.
    scale : Fraction
        The Laplace scale, or the *square* of the Gaussian parameter.
    size : int
        How many numbers.
    """

    kind: Literal["laplace", "gaussian"]
    scale: Fraction
    size: int

    @property
    def variance(self) -> float:
        """Variance of one number (of a Gaussian: the parameter, an upper bound)."""
        if self.kind == "gaussian":
            return float(self.scale)
        return float(discrete_laplace_variance(self.scale))

    def draw(self, rng: Randomness) -> IntArray:
        """Draw the block, exactly."""
        if self.kind == "gaussian":
            return discrete_gaussian(self.size, self.scale, rng)
        return discrete_laplace(self.size, self.scale, rng)

    def simulate(self, generator: np.random.Generator, size: int) -> FloatArray:
        """Draw `size` copies with ordinary floating-point noise: for bands, never to release."""
        if self.kind == "gaussian":
            return generator.normal(0.0, math.sqrt(self.scale), (size, self.size))
        # The difference of two geometric numbers is discrete Laplace.
        success = -math.expm1(-1 / float(self.scale))
        shape = (size, self.size)
        difference = generator.geometric(success, shape) - generator.geometric(success, shape)
        return difference.astype(np.float64)


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
class Mechanism:
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
    """

    strategy: Strategy
    noise: tuple[Block, ...]
    change: Change
    reason: str = ""

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
        return f"{self.strategy.description}, discrete {self.kind.capitalize()} noise"

    # ------------------------------------------------------------------ guarantee

    @cached_property
    def epsilon(self) -> float:
        """The pure epsilon, exactly (infinite for Gaussian noise)."""
        if self.kind != "laplace":
            return math.inf
        shifts = self.strategy.shift(self.change, "l1")
        loss = sum((s / b.scale for s, b in zip(shifts, self.noise, strict=True)), Fraction(0))
        return _round_up(loss)

    @cached_property
    def ratio_squared(self) -> float:
        """Squared sensitivity over noise parameter, summed over the blocks (Gaussian)."""
        if self.kind != "gaussian":
            return math.inf
        shifts = self.strategy.shift(self.change, "l2-squared")
        total = sum((s / b.scale for s, b in zip(shifts, self.noise, strict=True)), Fraction(0))
        return _round_up(total)

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
        return discreteness(deviation, self.strategy.touched(self.change))

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

    def release(self, counts: IntArray, rng: Randomness) -> FloatArray:
        """Noisy prefix counts of a histogram. Each call spends the budget once."""
        counts = np.asarray(counts)
        if counts.shape != (self.setting.bins,) or not np.issubdtype(counts.dtype, np.integer):
            raise ValueError(
                f"counts must be {self.setting.bins} integers, "
                f"got shape {counts.shape} of {counts.dtype}"
            )
        noisy = noising.add(self.strategy.measure(counts.astype(np.int64)), self.draw(rng))
        return self.strategy.reconstruct(noisy, float(counts.sum()))

    def simulate(self, generator: np.random.Generator, size: int = 1) -> FloatArray:
        """`size` draws of the noise of the prefix counts: for bands, never to release."""
        drawn = np.concatenate([block.simulate(generator, size) for block in self.noise], axis=1)
        return self.strategy.reconstruct(self.strategy.spread(drawn), 0.0)

    # ------------------------------------------------------------------- accuracy

    @cached_property
    def variance(self) -> FloatArray:
        """Variance of each noisy prefix count."""
        return self.strategy.variance(tuple(block.variance for block in self.noise))

    @cached_property
    def total_covariance(self) -> FloatArray:
        """Covariance of each noisy prefix count with the noisy total."""
        return self.strategy.total_covariance(tuple(block.variance for block in self.noise))

    @property
    def mean_variance(self) -> float:
        """Mean variance over the prefix counts that have noise."""
        points = self.setting.points
        return float(self.variance[:points].mean()) if points else 0.0

    @property
    def max_variance(self) -> float:
        """Largest variance of a prefix count."""
        return float(self.variance.max())


def calibrate(
    strategy: Strategy,
    budget: Budget,
    kind: Literal["laplace", "gaussian"],
    *,
    change: Change | None = None,
    reason: str = "",
) -> Mechanism:
    """Give `strategy` the least noise that `budget` allows.

    Parameters
    ----------
    strategy : Strategy
        What is measured.
    budget : Budget
        What one release may cost.
    kind : {"laplace", "gaussian"}
        Which noise.
    change : {"suffix", "interval", "joint"}, optional
        What one record may do; by default what the strategy's setting says.
    reason : str
        Kept with the mechanism.
    """
    change = change or strategy.setting.change
    if kind == "laplace" and not budget.allows_laplace:
        raise ValueError(f"Laplace noise needs a budget in epsilon, got {budget}")
    if kind == "gaussian" and not budget.allows_gaussian:
        raise ValueError(f"Gaussian noise needs delta > 0 or rho, got {budget}")
    norm: Norm = "l1" if kind == "laplace" else "l2-squared"
    shifts = strategy.shift(change, norm)
    ratio_squared = Fraction(budget.epsilon) if kind == "laplace" else Fraction(budget.ratio) ** 2
    blocks = []
    for size, share, shift in zip(strategy.blocks, strategy.shares, shifts, strict=True):
        scale = shift / (Fraction(share) * ratio_squared)
        blocks.append(Block(kind, _short(scale), size))
    return Mechanism(strategy, tuple(blocks), change, reason)


def _short(scale: Fraction) -> Fraction:
    """Return a nearby larger rational number with few bits, for fast exact sampling."""
    number = float(scale)
    short = exact_scale(math.nextafter(number, math.inf))
    return short if short >= scale else exact_scale(math.nextafter(float(short), math.inf))


def _round_up(value: Fraction) -> float:
    """Return the smallest float that is not below `value`."""
    number = float(value)
    return number if Fraction(number) >= value else math.nextafter(number, math.inf)
