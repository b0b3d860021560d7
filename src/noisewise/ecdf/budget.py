"""Privacy budgets of a counting mechanism, and the Gaussian noise that they buy.

Three kinds: pure (epsilon), approximate (epsilon, delta) and concentrated (rho,
zCDP of Bun and Steinke 2016). A Gaussian mechanism is described by one number,
``mu = sensitivity / deviation``: it is mu^2/2-zCDP, and its smallest delta at a
given epsilon is the closed form of Balle and Wang (2018, Theorem 8).

Discrete noise. Mechanisms here draw *integer* Gaussian noise of variance s^2
(in units of a fine grid). Its zCDP guarantee is the continuous one, without loss
(Canonne, Kamath and Steinke 2020, Theorem 14). For (epsilon, delta) we compare it
with the continuous Gaussian rounded to the grid, whose guarantee is the closed
form because rounding is post-processing. Let phi be the N(0, s^2) density, Z the
sum of phi over the integers and r_k the mass of phi on [k - 1/2, k + 1/2]. Then
Z >= 1 (Poisson summation) and r_k >= phi(k) (1 - 1/(24 s^2)), since
exp(-u^2/2s^2) >= 1 - u^2/2s^2 and cosh >= 1 under the integral. Hence one
coordinate's total variation distance is at most

    sum_k (phi(k)/Z - r_k)_+  <=  sum_k phi(k) / (24 s^2)  =  Z / (24 s^2),

m independent coordinates cost at most m times as much, and passing through the
comparison twice costs (1 + e^epsilon) times that in delta.

Proof: docs/proofs/curves.md#discrete.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from scipy.optimize import brentq
from scipy.special import log_ndtr

from noisewise import checks
from noisewise.privacy import ZeroConcentrated, epsilon_of

__all__ = [
    "Budget",
    "concentrated_delta",
    "concentrated_rho",
    "discreteness",
    "discreteness_slack",
    "gaussian_delta",
    "gaussian_ratio",
]

# Above this epsilon the price (1 + e^epsilon) of the comparison asks for grids too fine for 64
# bits; integer noise is then accounted by its concentrated guarantee, which needs no fine grid.
LARGEST_COMPARED = 10.0
# The share of delta that may be spent on the difference between integer and real noise.
DISCRETENESS_SHARE = 2.0**-10


@dataclass(frozen=True)
class Budget:
    """How much privacy one release may cost.

    Parameters
    ----------
    epsilon : float
        The bound on the privacy loss; infinite for a budget in `rho`.
    delta : float
        0 asks for a pure guarantee.
    rho : float, optional
        A zCDP budget instead of (epsilon, delta).

    Examples
    --------
    >>> Budget(1.0).kind, Budget(1.0, 1e-6).kind, Budget.concentrated(0.5).kind
    ('pure', 'approximate', 'concentrated')
    """

    epsilon: float
    delta: float = 0.0
    rho: float | None = None

    def __post_init__(self) -> None:
        if self.rho is not None:
            object.__setattr__(self, "rho", checks.positive("rho", self.rho))
            object.__setattr__(self, "epsilon", math.inf)
            object.__setattr__(self, "delta", 0.0)
            return
        object.__setattr__(self, "epsilon", checks.budget(self.epsilon))
        delta = checks.probability("delta", self.delta, zero=True, one=False)
        object.__setattr__(self, "delta", delta)

    @classmethod
    def of(cls, epsilon: float | None, delta: float = 0.0, rho: float | None = None) -> Budget:
        """Return the budget that a user wrote down: (epsilon, delta) or rho, not both.

        Examples
        --------
        >>> Budget.of(None, rho=0.5).kind
        'concentrated'
        """
        if rho is None:
            if epsilon is None:
                raise TypeError("give a budget: epsilon (with delta, if you like) or rho")
            return cls(epsilon, delta)
        if epsilon is not None or delta != 0.0:
            raise ValueError(
                f"rho={rho!r} is a budget by itself (zero-concentrated privacy): leave out "
                f"epsilon and delta, got epsilon={epsilon!r}, delta={delta!r}"
            )
        return cls.concentrated(rho)

    @classmethod
    def concentrated(cls, rho: float) -> Budget:
        """Return a zCDP budget."""
        return cls(math.inf, 0.0, rho)

    @property
    def kind(self) -> str:
        """``"pure"``, ``"approximate"`` or ``"concentrated"``."""
        if self.rho is not None:
            return "concentrated"
        return "approximate" if self.delta > 0 else "pure"

    @property
    def allows_gaussian(self) -> bool:
        """Whether Gaussian noise can meet this budget at all."""
        return self.kind != "pure"

    @property
    def allows_laplace(self) -> bool:
        """Whether this budget has an epsilon that Laplace noise can meet."""
        return self.rho is None

    @property
    def concentrates(self) -> bool:
        """Whether Gaussian noise is accounted by zCDP: a budget in rho, or a large epsilon."""
        return self.rho is not None or (self.delta > 0 and self.epsilon > LARGEST_COMPARED)

    @property
    def ratio(self) -> float:
        """The largest sensitivity-to-deviation ratio of Gaussian noise that it buys."""
        if self.rho is not None:
            return math.sqrt(2 * self.rho)
        if self.concentrates:
            return math.sqrt(2 * concentrated_rho(self.epsilon, self.delta))
        return gaussian_ratio(self.epsilon, self.delta * (1 - DISCRETENESS_SHARE))

    def least_deviation(self, coordinates: int) -> float:
        """Smallest integer deviation whose discreteness fits the budget's share."""
        if self.concentrates:
            return 0.0
        room = self.delta * DISCRETENESS_SHARE / 2  # half, so that rounding fits beside it
        factor = 1 + math.exp(min(self.epsilon, 700.0))
        # Z <= 1.001 for s >= 1 is included in the factor 24 -> 23.9.
        return max(1.0, math.sqrt(coordinates * factor / (23.9 * room)))

    def __str__(self) -> str:
        if self.rho is not None:
            return f"{self.rho:g}-zCDP"
        return f"epsilon={self.epsilon:g}" + (f", delta={self.delta:g}" if self.delta else "")


def gaussian_delta(ratio: float, epsilon: float) -> float:
    """Smallest delta of a Gaussian mechanism, a little rounded up.

    Parameters
    ----------
    ratio : float
        Sensitivity divided by the standard deviation of the noise.
    epsilon : float
        The epsilon of the pair.
    """
    if ratio <= 0:
        return 0.0
    first = log_ndtr(ratio / 2 - epsilon / ratio)
    second = epsilon + log_ndtr(-ratio / 2 - epsilon / ratio)
    # 1e-12 of the first term covers the rounding of the difference.
    return float(math.exp(first) * (1e-12 - math.expm1(min(second - first, 0.0))))


def gaussian_ratio(epsilon: float, delta: float) -> float:
    """Largest sensitivity-to-deviation ratio that is (epsilon, delta)-DP, rounded down."""
    low, high = 1e-12, 1.0
    while gaussian_delta(high, epsilon) <= delta:
        high *= 2
    while gaussian_delta(low, epsilon) > delta:
        low /= 16
        if low < 1e-100:
            raise ValueError(f"no Gaussian noise reaches delta={delta!r} at epsilon={epsilon!r}")
    root = brentq(lambda ratio: gaussian_delta(ratio, epsilon) - delta, low, high, xtol=1e-14)
    root *= 1 - 1e-9
    while gaussian_delta(root, epsilon) > delta:
        root *= 1 - 1e-6
    return float(root)


def discreteness(deviation: float, coordinates: int) -> float:
    """Total variation distance between integer and rounded real Gaussian noise, at most."""
    normaliser = 1 + 3 * math.exp(-2 * math.pi**2 * deviation**2)
    return min(1.0, coordinates * normaliser / (24 * deviation**2))


def discreteness_slack(deviation: float, coordinates: int, epsilon: float) -> float:
    """Delta paid for integer instead of real Gaussian noise (see the module's text)."""
    return (1 + math.exp(epsilon)) * discreteness(deviation, coordinates)


@lru_cache(maxsize=64)
def concentrated_rho(epsilon: float, delta: float) -> float:
    """Largest rho whose zCDP implies (epsilon, delta), rounded down.

    Also by the accountant of statements, which looks at fewer Renyi orders, so that no
    statement says more than was asked for.
    """

    def fits(rho: float) -> bool:
        if concentrated_delta(rho, epsilon) > delta:
            return False
        return epsilon_of(ZeroConcentrated(rho), delta=delta, accountant="rdp") <= epsilon

    low, high = 0.0, epsilon
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def concentrated_delta(rho: float, epsilon: float) -> float:
    """Delta that rho-zCDP implies at epsilon (Canonne, Kamath and Steinke 2020, Prop. 12).

    Minimises over the Renyi order ``a``
    ``exp((a-1)(a rho - epsilon)) / (a-1) * (1 - 1/a)^a``.
    """

    def exponent(order: float) -> float:
        return (
            (order - 1) * (order * rho - epsilon)
            - math.log(order - 1)
            + order * math.log1p(-1 / order)
        )

    low, high = 1 + 1e-9, max(2.0, (epsilon + 1) / (2 * rho) + 2)
    golden = (math.sqrt(5) - 1) / 2
    for _ in range(200):
        left, right = high - golden * (high - low), low + golden * (high - low)
        if exponent(left) < exponent(right):
            high = right
        else:
            low = left
    # Every order gives a true bound; the search only looks for a small one.
    return min(1.0, math.exp(exponent((low + high) / 2)))
