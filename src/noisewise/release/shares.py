"""Noise that several contributors add together: the share of each.

How much each adds, and what collusion leaves of it, is planned in
:mod:`noisewise.federated.noise`; here a share is drawn, and meets what its contributor holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from noisewise.privacy import Event, Randomness, Sensitivity
from noisewise.privacy.randomness import discrete_gaussian, discrete_laplace
from noisewise.release.account import Account, MemoryAccount
from noisewise.release.kernel import release
from noisewise.release.noise import Additive, Block, FloatArray, IntArray
from noisewise.release.parties import ThisProcess
from noisewise.release.polya import polya
from noisewise.release.query import Query

__all__ = ["OwnShare", "SharedBlock", "with_share"]


@dataclass(frozen=True)
class SharedBlock(Block):
    """A block of noise that is the sum of several contributors' shares.

    `scale` is that of the `honest` shares together: what survives. Variance and simulations
    are those of all `contributors`: what was added.
    """

    contributors: int = 1
    honest: int = 1

    @property
    def variance(self) -> float:
        """Variance of the sum of all shares."""
        surviving = Block(self.kind, self.scale, self.size).variance
        return surviving * self.contributors / self.honest

    def draw_share(self, rng: Randomness) -> IntArray:
        """Draw one contributor's share, exactly."""
        if self.kind == "gaussian":
            return discrete_gaussian(self.size, self.scale / self.honest, rng)
        if self.honest == 1:
            return discrete_laplace(self.size, self.scale, rng)
        return polya(self.size, self.honest, self.scale, rng) - polya(
            self.size, self.honest, self.scale, rng
        )

    def draw(self, rng: Randomness) -> IntArray:
        """Draw all shares and add them up."""
        total = self.draw_share(rng)
        for _ in range(self.contributors - 1):
            total = total + self.draw_share(rng)
        return total

    def simulate(self, generator: np.random.Generator, size: int) -> FloatArray:
        """Draw `size` copies of the sum with ordinary noise: for bands, never to release."""
        copies = self.contributors / self.honest
        shape = (size, self.size)
        if self.kind == "gaussian":
            return generator.normal(0.0, math.sqrt(float(self.scale) * copies), shape)
        success = -math.expm1(-1 / float(self.scale))
        plus = generator.negative_binomial(copies, success, shape)
        minus = generator.negative_binomial(copies, success, shape)
        return np.asarray(plus - minus, np.float64)


class Shared(Protocol):
    """Noise that is a sum of shares; its event is that of the shares that survive collusion."""

    @property
    def sensitivity(self) -> tuple[Sensitivity, ...]:
        """What it was planned for."""
        ...

    @property
    def event(self) -> Event:
        """What the release costs."""
        ...

    @property
    def description(self) -> str:
        """One line."""
        ...

    @property
    def assumptions(self) -> tuple[str, ...]:
        """For the statement."""
        ...

    def draw_share(self, rng: Randomness) -> IntArray:
        """Draw one contributor's share."""
        ...


@dataclass(frozen=True, eq=False)
class OwnShare(Additive):
    """One contributor's share, as the noise of what it sends.

    With a modulus sums are residues, from 0 on, and so is what is sent.
    """

    whole: Shared
    modulus: int | None = None

    @property
    def sensitivity(self) -> tuple[Sensitivity, ...]:
        """Of the whole."""
        return self.whole.sensitivity

    @property
    def event(self) -> Event:
        """Of the whole."""
        return self.whole.event

    @property
    def description(self) -> str:
        """Of the whole."""
        return self.whole.description

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Of the whole."""
        return self.whole.assumptions

    def draw(self, rng: Randomness) -> IntArray:
        """Draw the share."""
        return self.whole.draw_share(rng)

    def applied(self, exact: Any, rng: Randomness) -> Any:
        """Add the share to the exact numbers."""
        noisy = super().applied(exact, rng)
        return noisy if self.modulus is None else noisy % self.modulus


def with_share(
    query: Query,
    noise: Shared,
    records: Any,
    rng: Randomness,
    account: Account | None = None,
    *,
    modulus: int | None = None,
) -> Any:
    """Return what one contributor sends: its sums with its own share of the noise.

    Parameters
    ----------
    query : Query
        Measures what the contributor holds: its records, or its share of everybody's.
    noise : Shared
        As planned for all contributors.
    records : object
    rng : Randomness
        The contributor's own.
    account : Account, optional
        Of a contributor that keeps one; by default in memory.
    modulus : int, optional
        At most 2^62, if the sums are residues from 0 on; by default they are signed words.
    """
    held = MemoryAccount() if account is None else account
    own = OwnShare(noise, modulus)
    return release(query, own, ThisProcess(records), held, delta=None, rng=rng).value
