"""Exact discrete Laplace and discrete Gaussian noise: integers in, integers out.

No floating-point number takes part in a sample, so its law is the one that is
written down, to the last bit of the random stream:

* an exponential number E by von Neumann's comparisons (1951): its whole part V
  counts refusals, its fractional part X is a uniform number of which 64 binary
  digits are drawn at once and further ones only where a comparison needs them;
* discrete Laplace of scale t/s: a geometric number is floor(E t/s), then a sign, where
  minus zero is refused (Canonne, Kamath, Steinke 2020, Algorithm 2);
* discrete Gaussian: a discrete Laplace number y of scale t = floor(sigma) + 1 is kept
  with probability exp(-(|y| - sigma^2/t)^2 / (2 sigma^2)) (same, Algorithm 3); an event
  of probability exp(-g) is E >= g.

Arithmetic is in 64 bits where a product is proven to fit and in Python's unbounded
integers elsewhere, so that no scale is silently wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from noisewise import checks
from noisewise.privacy.randomness.exponential import exponentials
from noisewise.privacy.randomness.generator import Randomness, Shape, resolve, sizes

__all__ = [
    "bernoulli_exp",
    "discrete_gaussian",
    "discrete_gaussian_pmf",
    "discrete_gaussian_variance",
    "discrete_laplace",
    "discrete_laplace_pmf",
    "discrete_laplace_variance",
    "exact_scale",
]

Scale: TypeAlias = int | float | Fraction
Integers: TypeAlias = NDArray[np.int64]

_SCALE_BITS = 24
_BLOCK = 1 << 15


def exact_scale(scale: Scale, name: str = "scale") -> Fraction:
    """Return the rational number that is used where `scale` is asked for.

    Integers and fractions are used as they are. A float is used as it is if it has at
    most 24 significant bits (2.5 has), and otherwise rounded *up* to 24 bits: the noise
    is never smaller than asked, and larger by less than one part in eight million.

    Examples
    --------
    >>> exact_scale(2.5)
    Fraction(5, 2)
    >>> exact_scale(0.1) >= Fraction(0.1)
    True
    """
    if isinstance(scale, (Fraction, int, np.integer)) and not isinstance(scale, bool):
        exact = Fraction(scale) if isinstance(scale, Fraction) else Fraction(int(scale))
        if exact <= 0:
            raise ValueError(f"{name} must be > 0, got {scale!r}; without noise nothing is private")
        return exact
    number = checks.positive(name, scale, hint="without noise nothing is private")
    exact = Fraction(number)
    step = Fraction(2) ** (math.frexp(number)[1] - _SCALE_BITS)
    return math.ceil(exact / step) * step


def discrete_laplace(shape: Shape, scale: Scale, rng: Any = None) -> Integers:
    """Draw integers x with probability proportional to exp(-abs(x) / scale), exactly.

    Parameters
    ----------
    shape : int or tuple
        How many.
    scale : int, Fraction or float
        ``sensitivity / epsilon``; see :func:`exact_scale` for what is used for a float.
    rng : None, int or Randomness
        Where the randomness comes from. ``None``: keyed from the operating system.

    Examples
    --------
    >>> from fractions import Fraction
    >>> discrete_laplace((2, 3), Fraction(5, 2), rng=1).shape
    (2, 3)
    """
    exact, source = exact_scale(scale), resolve(rng)
    return _in_blocks(shape, lambda count: _laplace_candidates(source, count, exact))


def discrete_gaussian(shape: Shape, sigma2: Scale, rng: Any = None) -> Integers:
    """Draw integers x with probability proportional to exp(-x^2 / (2 sigma2)), exactly.

    Parameters
    ----------
    shape : int or tuple
        How many.
    sigma2 : int, Fraction or float
        The *square* of the scale, which is slightly above the variance; see
        :func:`exact_scale` for what is used for a float.
    rng : None, int or Randomness
        Where the randomness comes from. ``None``: keyed from the operating system.

    Examples
    --------
    >>> int(discrete_gaussian((), 10**18, rng=1)) != 0
    True
    """
    exact, source = exact_scale(sigma2, "sigma2"), resolve(rng)
    return _in_blocks(shape, lambda count: _gaussian_candidates(source, count, exact))


def bernoulli_exp(shape: Shape, exponent: Scale, rng: Any = None) -> NDArray[np.bool_]:
    """Draw events of probability exp(-exponent), exactly; `exponent` >= 0 is rational.

    A float is taken as the rational number that it is.
    """
    if not isinstance(exponent, Fraction):
        checks.positive("exponent", exponent, zero=True)
    exact, source, size = Fraction(exponent), resolve(rng), sizes(shape)
    if exact < 0:
        raise ValueError(f"exponent must be >= 0, got {exponent!r}")
    return exponentials(source, math.prod(size)).at_least(exact).reshape(size)


def _in_blocks(shape: Shape, draw: Callable[[int], Integers]) -> Integers:
    """Collect the candidates that were kept, in the order in which they were drawn."""
    size = sizes(shape)
    result = np.empty(math.prod(size), np.int64)
    filled = 0
    while filled < result.size:
        missing = result.size - filled
        kept = draw(min(_BLOCK, missing * 3 // 2 + 16))[:missing]
        result[filled : filled + kept.size] = kept
        filled += kept.size
    return result.reshape(size)


def _laplace_candidates(
    source: Randomness, count: int, scale: Fraction, bits: int = 64
) -> Integers:
    size = exponentials(source, count, bits).floor_times(scale)
    minus = source.coins(count)
    kept = ~(minus & (size == 0))
    noise: Integers = np.where(minus, -size, size)[kept]
    return noise


def _gaussian_candidates(
    source: Randomness, count: int, sigma2: Fraction, bits: int = 64
) -> Integers:
    top, bottom = sigma2.numerator, sigma2.denominator
    t = math.isqrt(top // bottom) + 1
    proposal = _laplace_candidates(source, count, Fraction(t), bits)
    size = np.abs(proposal)
    # (|y| - sigma2 / t)^2 / (2 sigma2) = (|y| bottom t - top)^2 / (2 top bottom t^2)
    step, divisor = bottom * t, 2 * top * bottom * t * t
    distance: NDArray[Any]
    if max(int(size.max(initial=0)) * step, top) < 2**31:
        distance = np.abs(size * step - top).astype(np.uint64)
    else:
        distance = size.astype(object) * step - top
    kept = exponentials(source, size.size, bits).at_least_ratios(distance * distance, divisor)
    return proposal[kept]


def discrete_laplace_pmf(x: Any, scale: Scale) -> NDArray[np.float64]:
    """Return the probability of the integers `x`: tanh(1/(2 scale)) exp(-abs(x) / scale)."""
    inverse = float(1 / exact_scale(scale))
    return np.asarray(math.tanh(inverse / 2) * np.exp(-np.abs(_integers(x)) * inverse))


def discrete_laplace_variance(scale: Scale) -> float:
    """Return the variance, 1 / (2 sinh^2(1 / (2 scale))) = 2 e^-c / (1 - e^-c)^2, c = 1/scale."""
    inverse = float(1 / exact_scale(scale))
    return 2 * math.exp(-inverse) / math.expm1(-inverse) ** 2


def discrete_gaussian_pmf(x: Any, sigma2: Scale) -> NDArray[np.float64]:
    """Return the probability of the integers `x`: exp(-x^2 / (2 sigma2)) over its sum."""
    variance = float(exact_scale(sigma2, "sigma2"))
    whole = _integers(x).astype(np.float64)
    return np.asarray(np.exp(-(whole**2) / (2 * variance)) / _gaussian_sums(variance)[0])


def discrete_gaussian_variance(sigma2: Scale) -> float:
    """Return the variance, which is at most `sigma2` and nearly equal to it from 1 on."""
    total, second = _gaussian_sums(float(exact_scale(sigma2, "sigma2")))
    return second / total


def _gaussian_sums(variance: float) -> tuple[float, float]:
    """Return the sums over all integers of exp(-x^2 / (2 variance)) and of x^2 times that."""
    if variance > 100:
        # Poisson summation: the first neglected term is 2 exp(-2 pi^2 variance) of the whole.
        total = math.sqrt(2 * math.pi * variance)
        return total, total * variance
    whole = np.arange(1, math.ceil(40 * math.sqrt(variance)) + 2, dtype=np.float64)
    weight = np.exp(-(whole**2) / (2 * variance))
    return 1 + 2 * math.fsum(weight), 2 * math.fsum(whole**2 * weight)


def _integers(x: Any) -> NDArray[Any]:
    whole = np.asarray(x)
    if whole.dtype.kind not in "iu":
        raise TypeError(f"x must hold integers, got dtype {whole.dtype}")
    return whole
