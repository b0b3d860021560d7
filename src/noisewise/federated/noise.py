"""Noise that several servers add together: how much each, and what collusion leaves.

Each of m contributors adds an independent share; at least h of them are honest and keep theirs
secret. Whoever colludes subtracts their own shares, so the accountant may count on h shares and
no more, while accuracy pays for all m. With h = 1 each share is the full noise.

* Discrete Laplace noise of scale b is the difference of two geometric numbers of ratio
  q = exp(-1/b), and a geometric number is a sum of h Polya (negative binomial) numbers of shape
  1/h: shares that are differences of two Polya numbers sum to it *exactly*
  (:mod:`noisewise.release.polya`).
* Discrete Gaussian noise is not divisible. A share is discrete Gaussian of parameter s/h. For
  the sum of two, with parameters a and c, completing the square gives

      P(X + Y = z) / P(Z = z) = S(z a/(a+c)) / E[S(Z a/(a+c))],   Z of parameter a + c,
      S(u) = sum_x exp(-(x - u)^2 / 2v),  v = a c / (a + c),

  and by Poisson summation S(u) / sqrt(2 pi v) lies within 1 -+ 2 t with
  t = sum_k>=1 exp(-2 pi^2 v k^2) <= exp(-2 pi^2 v) / (1 - exp(-6 pi^2 v)). So the logarithm of
  the ratio is at most 2 artanh(2 t). Adding a further independent share cannot increase such a
  bound, hence for h shares the bounds for v = (s/h) k/(k+1), k = 1..h-1, add up; and so does
  the total variation distance, which is at most as large. It is charged to delta like the
  distance between integer and real noise. (Kairouz, Liu and Steinke 2021 has the same bound
  with other constants.) A zCDP guarantee does not follow and is not given.

Proof: docs/proofs/curves.md#shared-noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from noisewise import checks
from noisewise.ecdf import Mechanism, gaussian_delta
from noisewise.ecdf.mechanisms import IntArray
from noisewise.errors import UnsoundError
from noisewise.privacy import Randomness
from noisewise.release import SharedBlock

__all__ = ["SharedBlock", "SharedMechanism", "SharedNoise", "gaussian_sum_distance"]


@dataclass(frozen=True)
class SharedMechanism(Mechanism):
    """A mechanism whose noise is the sum of shares; its guarantee is that of the honest ones."""

    @property
    def description(self) -> str:
        """One line: strategy, noise and who adds it."""
        said = Mechanism.description.__get__(self)
        first = self.noise[0]
        if not isinstance(first, SharedBlock) or first.contributors == 1:
            return str(said)
        portion = "in full" if first.honest == 1 else f"1/{first.honest} of it"
        return f"{said}, {portion} by each of {first.contributors}"

    @property
    def divided(self) -> bool:
        """Whether Gaussian noise is a sum of parts, so that it is only nearly Gaussian."""
        first = self.noise[0]
        return isinstance(first, SharedBlock) and first.kind == "gaussian" and first.honest > 1

    @property
    def rho(self) -> float:
        """The zCDP parameter, if there is one."""
        if self.divided:
            raise UnsoundError(
                "a sum of discrete Gaussian shares has no zCDP guarantee here: ask for epsilon "
                "and delta, or let every contributor add the full noise (honest=1)"
            )
        return float(Mechanism.rho.__get__(self))

    @property
    def variation(self) -> float:
        """Total variation distance from rounded real noise, shares included."""
        distance = float(Mechanism.variation.__get__(self))
        if self.divided:
            # As there: numbers that do not shift have the same law on both sides.
            parts = [
                gaussian_sum_distance(float(block.scale), block.honest)
                for block in self.noise
                if isinstance(block, SharedBlock)
            ]
            distance += self.touched * max(parts)
        return min(1.0, distance)

    def delta(self, epsilon: float) -> float:
        """Return a proven delta for which one release is (epsilon, delta)-DP."""
        if not self.divided:
            return super().delta(epsilon)
        slack = (1 + math.exp(epsilon)) * self.variation
        return min(1.0, gaussian_delta(math.sqrt(self.ratio_squared), epsilon) + slack)

    def draw_share(self, rng: Randomness) -> IntArray:
        """Draw one contributor's share of the noise of the measurements, exactly."""
        drawn = [
            block.draw_share(rng) if isinstance(block, SharedBlock) else block.draw(rng)
            for block in self.noise
        ]
        return np.asarray(self.strategy.spread(np.concatenate(drawn)), np.int64)


@dataclass(frozen=True)
class SharedNoise:
    """Who adds noise: `contributors` parties, of whom at least `honest` keep their share secret.

    Parameters
    ----------
    contributors : int
        How many add a share. For accuracy all of them are assumed to.
    honest : int
        How many shares the accountant may count on: those of contributors that neither
        collude with whoever sees the result nor drop out before adding theirs. 1: each share
        is the full noise.

    Examples
    --------
    >>> from noisewise.ecdf import Budget, plan
    >>> alone = plan(64, "replace-one", Budget(1.0))
    >>> both = SharedNoise(contributors=2, honest=1).apply(alone)
    >>> both.epsilon == alone.epsilon, round(both.max_variance / alone.max_variance, 6)
    (True, 2.0)
    """

    contributors: int = 1
    honest: int = 1

    def __post_init__(self) -> None:
        contributors = checks.integer("contributors", self.contributors, minimum=1)
        object.__setattr__(self, "contributors", contributors)
        honest = checks.integer("honest", self.honest, minimum=1, maximum=contributors)
        object.__setattr__(self, "honest", honest)

    def apply(self, mechanism: Mechanism) -> SharedMechanism:
        """Return the mechanism with this noise: the same guarantee, perhaps more variance.

        Noise that cannot be accounted for is refused now, before anything is spent, and not when
        the statement is asked for.
        """
        if mechanism.concentrated and mechanism.kind == "gaussian" and self.honest > 1:
            raise UnsoundError(
                "this noise is accounted by zCDP, which a sum of discrete Gaussian shares does not "
                "have here: let every contributor add the full noise (honest=1), or ask for a "
                "smaller epsilon, or for delta instead of rho"
            )
        blocks = tuple(
            SharedBlock(block.kind, block.scale, block.size, self.contributors, self.honest)
            for block in mechanism.noise
        )
        return SharedMechanism(
            mechanism.strategy,
            blocks,
            mechanism.change,
            mechanism.reason,
            mechanism.concentrated,
            mechanism.contribution,
        )

    @property
    def sentence(self) -> str:
        """Who adds how much, for a threat model."""
        m, h = self.contributors, self.honest
        if m == 1:
            return "added once, in full, by the one who sums"
        portion = "a full share" if h == 1 else f"1/{h} of the noise"
        return (
            f"each of {m} contributors adds {portion}; epsilon counts on {h} honest "
            f"{'share' if h == 1 else 'shares'} only, so it survives {m - h} of them colluding"
        )


def gaussian_sum_distance(sigma2: float, shares: int) -> float:
    """Bound the distance between a sum of discrete Gaussian shares and one discrete Gaussian.

    Parameters
    ----------
    sigma2 : float
        Parameter of the whole; each share has `sigma2` / `shares`.
    shares : int
        How many.

    Returns
    -------
    float
        An upper bound on the largest absolute logarithm of the ratio of probabilities, hence on
        the total variation distance; infinite where the proof needs larger shares.
    """
    total = 0.0
    part = sigma2 / shares * (1 - 1e-12)
    for k in range(1, shares):
        v = part * k / (k + 1)
        t = math.exp(-2 * math.pi**2 * v) / -math.expm1(-6 * math.pi**2 * v)
        if 2 * t >= 1:
            return math.inf
        total += 2 * math.atanh(2 * t)
    return total * (1 + 1e-9)
