"""Noise: which, how much, and what one release with it costs an accountant.

A :class:`Noise` is planned for a :class:`~noisewise.privacy.Sensitivity`, says which event a
release is, and turns exact numbers into what may be seen of them. Exact numbers and noise meet
in one line, :func:`add`; noise on the tensors of a training step is in
:mod:`noisewise.release.tensors`, choices among candidates in :mod:`noisewise.release.choice`.
Every result is computed from what :func:`add` returned and from what is public; so who fixes its
answers and changes the records must see the same result, bit by bit.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from noisewise import checks
from noisewise.errors import UnsoundError
from noisewise.privacy import (
    Event,
    Gaussian,
    Laplace,
    Pure,
    Randomness,
    Sensitivity,
    ZeroConcentrated,
)
from noisewise.privacy.randomness import (
    discrete_gaussian,
    discrete_laplace,
    discrete_laplace_variance,
)

__all__ = ["Additive", "Block", "GaussianNoise", "GridNoise", "IntegerNoise", "Noise", "add"]

IntArray: TypeAlias = NDArray[np.int64]
FloatArray: TypeAlias = NDArray[np.float64]
Exact = TypeVar("Exact", int, NDArray[np.int64], NDArray[np.float64])


def add(exact: Exact, noise: Exact) -> Exact:
    """Return what may be seen of private numbers: their sum with noise that was just drawn.

    An array is added to as a plain one: kinds with arithmetic of their own (masked arrays, say)
    may leave some of their numbers as they are.
    """
    if isinstance(exact, np.ndarray):
        exact = np.asarray(exact)
    return exact + noise


class Noise(Protocol):
    """What hides one unit in exact numbers."""

    @property
    def sensitivity(self) -> tuple[Sensitivity, ...]:
        """What it was planned for, by group of numbers."""
        ...

    @property
    def event(self) -> Event:
        """What one release is to an accountant."""
        ...

    @property
    def description(self) -> str:
        """One line for the statement."""
        ...

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the statement must say of it."""
        ...

    def applied(self, exact: Any, rng: Randomness) -> Any:
        """Return what may be seen of `exact`. Each call needs a charge."""
        ...


class Additive(ABC):
    """Noise that is added: a draw of it meets the exact numbers here and nowhere else."""

    @abstractmethod
    def draw(self, rng: Randomness) -> Any:
        """Draw the noise of all numbers."""

    def applied(self, exact: Any, rng: Randomness) -> Any:
        """Add a draw to the exact numbers. Each call needs a charge."""
        return add(exact, self.draw(rng))


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


def _require_norm(planned: Sensitivity, norms: tuple[str, ...]) -> None:
    if planned.norm not in norms:
        raise UnsoundError(
            f"this noise hides a change that is bounded in the {norms[0]} norm, got {planned}: a "
            "bound in another norm allows a longer one"
        )


def _above(value: Fraction) -> float:
    return math.nextafter(float(value), math.inf)


def _whole(exact: Any) -> Any:
    """Return integers as they are; refuse others by their type, whatever their values."""
    if isinstance(exact, int):
        return exact
    array = np.asarray(exact)
    if array.dtype.kind == "u" and array.dtype.itemsize == 8:
        return array.astype(object)  # with signed noise they would become floats
    if array.dtype.kind in "biu" or (
        array.dtype == object and all(isinstance(entry, int) for entry in array.flat)
    ):
        return array
    raise UnsoundError(
        f"integer noise hides integers, got {array.dtype}: what is behind the point would be "
        "released as it is. Round what every unit contributes, or use GridNoise or GaussianNoise."
    )


@dataclass(frozen=True)
class IntegerNoise:
    """The same discrete noise on every number of an array of integers, or on a single one.

    Parameters
    ----------
    kind : {"laplace", "gaussian"}
    scale : Fraction
        As for :class:`Block`.
    planned : Sensitivity
        In whole units.
    event : Event
        What noise of this scale costs towards that sensitivity.
    description : str
    """

    kind: Literal["laplace", "gaussian"]
    scale: Fraction
    planned: Sensitivity
    event: Event
    description: str
    assumptions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse an event that costs less than noise of this scale does."""
        checks.choice("kind", self.kind, ("laplace", "gaussian"))
        _require_norm(self.planned, ("l1",) if self.kind == "laplace" else ("l2", "l1"))
        if not self.scale > 0:
            raise UnsoundError(f"noise needs a positive scale, got {self.scale}")
        distance, event = Fraction(self.planned.value), self.event
        if self.kind == "gaussian":
            rho = distance**2 / (2 * self.scale)
            needed = f"ZeroConcentrated({_above(rho)!r})"
            enough = isinstance(event, ZeroConcentrated) and Fraction(event.whole) >= rho
        else:
            cost = distance / self.scale
            needed = f"Pure({_above(cost)!r})"
            enough = isinstance(event, Pure) and Fraction(event.whole) >= cost
            if isinstance(event, Laplace):
                # Integer noise costs more than continuous noise: docs/proofs/events.md#laplace.
                further = cost + 1 / (4 * self.scale**2)
                enough = Fraction(event.noise_multiplier) * further <= 1
        if not enough or event.count != 1:
            raise UnsoundError(
                f"{event} costs less than {self.kind} noise of scale {float(self.scale):g} on "
                f"integers that one unit moves by {self.planned}: it is {needed}"
            )

    @property
    def sensitivity(self) -> tuple[Sensitivity, ...]:
        """One for all numbers together."""
        return (self.planned,)

    def applied(self, exact: Any, rng: Randomness) -> Any:
        """Add one number of noise to each."""
        exact = _whole(exact)
        block = Block(self.kind, self.scale, int(np.size(exact)))
        drawn = block.draw(rng).reshape(np.shape(exact))
        return add(exact, int(drawn) if isinstance(exact, int) else drawn)


@dataclass(frozen=True)
class GridNoise:
    """Exact discrete Laplace noise on real numbers that are rounded to a public grid first.

    Parameters
    ----------
    grid : float
        A power of two.
    noise : IntegerNoise
        In units of the grid; its sensitivity allows for the rounding.
    planned : Sensitivity
        Of the real numbers.
    """

    grid: float
    noise: IntegerNoise
    planned: Sensitivity

    def __post_init__(self) -> None:
        """Refuse a grid on which rounding is not exact."""
        _require_norm(self.planned, ("l1",))
        if not (self.grid > 0 and math.frexp(self.grid)[0] == 0.5):
            raise UnsoundError(f"the grid must be a power of two, got {self.grid}")

    @property
    def sensitivity(self) -> tuple[Sensitivity, ...]:
        """Of the real numbers together."""
        return (self.planned,)

    @property
    def event(self) -> Event:
        """That of the noise in units of the grid."""
        return self.noise.event

    @property
    def description(self) -> str:
        """One line."""
        return self.noise.description

    @property
    def assumptions(self) -> tuple[str, ...]:
        """None of its own."""
        return self.noise.assumptions

    def applied(self, exact: FloatArray, rng: Randomness) -> FloatArray:
        """Round to multiples of the grid, add the noise there, and come back."""
        flat = exact.ravel()
        units = Fraction(self.planned.value) / Fraction(self.grid) + flat.size
        if self.noise.planned.value < units:
            raise UnsoundError(
                f"on a grid of {self.grid:g} one unit moves {flat.size} rounded numbers by up to "
                f"{float(units):g}, but the noise was planned for {self.noise.planned}"
            )
        # Noise of 2^11 scales, which would overflow, has a probability below e^-2000.
        if np.abs(flat).max(initial=0.0) < 2.0**61 * self.grid and self.noise.scale < 2**50:
            cells = np.rint(flat / self.grid).astype(np.int64)  # exact: by a power of two
            noisy = self.noise.applied(cells, rng)
            return np.asarray(noisy.astype(np.float64) * self.grid).reshape(exact.shape)
        step = Fraction(self.grid)
        wide = np.array([round(Fraction(float(value)) / step) for value in flat], dtype=object)
        noisy = self.noise.applied(wide, rng)
        return np.array([float(cell * step) for cell in noisy]).reshape(exact.shape)


FLOATING_POINT = (
    "noise is drawn in floating point: the guarantee is that of real numbers, and holds for "
    "readers who do not study the last bits of the result"
)


@dataclass(frozen=True)
class GaussianNoise:
    """Gaussian noise in floating point; the statement says so.

    Parameters
    ----------
    deviation : float
    planned : Sensitivity
        In the l2 norm.
    description : str
    """

    deviation: float
    planned: Sensitivity
    description: str

    def __post_init__(self) -> None:
        """Refuse a bound that says nothing of the length in the l2 norm."""
        _require_norm(self.planned, ("l2", "l1"))

    @property
    def sensitivity(self) -> tuple[Sensitivity, ...]:
        """One for all numbers together."""
        return (self.planned,)

    @property
    def event(self) -> Event:
        """A Gaussian release of this multiplier."""
        return Gaussian(self.deviation / self.planned.value)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """That nobody studies the last bits."""
        return (FLOATING_POINT,)

    def applied(self, exact: FloatArray, rng: Randomness) -> FloatArray:
        """Add noise to every number."""
        return add(exact, rng.normal_numpy(exact.shape, std=self.deviation))
