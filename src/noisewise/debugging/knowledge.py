"""What has been learned about a training so far, in typed form: one test reads what another saw.

The preflight fills most of it. Every field has a value that means "not known yet", so that a
test which was left out by the user never makes another one fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from noisewise.debugging.statistics import Vector

if TYPE_CHECKING:
    from noisewise.debugging.noise_readings import Measurement
    from noisewise.debugging.trainer import StateDict

__all__ = ["Canary", "Knowledge", "Memory"]


@dataclass(frozen=True)
class Canary:
    """One record alone: its raw gradient, the clipping norm, and what it contributed.

    `own_weights` says that it was measured at the first weights, where the noise is measured.
    """

    row: Vector
    clip: float
    gradient: Vector
    norm: float
    own_weights: bool

    @property
    def ratio(self) -> float:
        """Length of the contribution over the clipping norm."""
        return float(np.linalg.norm(self.row)) / self.clip


@dataclass(frozen=True)
class Memory:
    """What comes back of a step: `echo` of it in the next, then `kept` of that in each further.

    Both are the momentum for the usual kind; Nesterov's has a smaller echo.
    """

    echo: float = 0.0
    kept: float = 0.0

    def correlation(self, step: int) -> float:
        """Regression of a step on the one before if what each adds is independent."""
        if step <= 3:
            return self.echo * (1 + self.echo * self.kept) / (1 + self.echo**2)
        excess = self.echo - self.kept
        product = self.kept * excess
        return (1 + product) * self.echo / (1 + 2 * product + excess**2)


@dataclass
class Knowledge:
    """Facts about the training under test.

    Attributes
    ----------
    hopeless
        Nothing can be tested: the training does nothing, or ignores data or first weights.
    obstacle
        Why the tests that read single updates cannot run; empty if they can.
    noise_always_on
        Noise cannot be switched off, since the training takes no `noise_multiplier`.
    deterministic
        The same seed gives the same weights, noise included.
    same_noise
        Different seeds give the same noise.
    random
        Gradients are random even without noise (dropout, augmentation).
    along_one
        Each seed draws a direction, and every update lies along it, records and noise alike.
    incomplete
        At batch size = dataset size the sampler leaves records out or takes them twice.
    clip
        A clipping norm at which records contribute; 0 before one was looked for.
    mute
        Records contribute nothing at any clipping norm that was tried.
    canaries
        Contributions of single records over graded gradients.
    divisors
        By batch size: what a batch weighs, over the sum of its records.
    additive
        A batch is the sum of its records (separation).
    unbounded
        A record contributes more than it may, alone (contribution) or among others (separation).
    weighted
        What a record weighs follows what was released before (second-step).
    decided_by_data
        Whether a step is taken, or how long it is, depends on the data (decisions).
    growth
        Displacement after one, two and three steps of a constant gradient, over that after one.
    noise
        The measured noise, once noise or another test has asked for it.
    scaled
        First weights times a factor, kept alive so that caching by identity is safe.
    """

    hopeless: bool = False
    obstacle: str = ""
    noise_always_on: bool = False
    deterministic: bool = True
    same_noise: bool = False
    random: bool = False
    along_one: bool = False
    incomplete: bool = False
    clip: float = 0.0
    mute: bool = False
    canaries: list[Canary] = field(default_factory=list)
    divisors: Mapping[int, float] = field(default_factory=dict)
    additive: bool = False
    unbounded: bool = False
    weighted: bool = False
    decided_by_data: bool = False
    growth: Vector | None = None
    noise: Measurement | None = None
    scaled: dict[float, StateDict] = field(default_factory=dict)

    @property
    def largest(self) -> float:
        """The longest contribution of one record over the clipping norm; 1 if none was seen."""
        return max((canary.ratio for canary in self.canaries), default=1.0)

    @property
    def response(self) -> Vector:
        """How strongly the gradient of each of three steps counts (momentum: the first most)."""
        if self.growth is None:
            return np.ones(3)
        return np.asarray(np.diff([0.0, *self.growth])[::-1], dtype=np.float64)

    @property
    def steady(self) -> bool:
        """Whether steps count alike, or as some momentum says; else weights may be averaged."""
        if self.growth is None or self.memory != Memory():
            return True
        return bool(np.allclose(self.growth, [1.0, 2.0, 3.0], rtol=0.03))

    @property
    def memory(self) -> Memory:
        """What comes back of a step in later ones: momentum, or an average of weights."""
        if self.growth is None:
            return Memory()
        first, second, third = np.diff([0.0, *self.growth])
        echo, later = second - first, third - second
        if echo < 0.02:
            # What falls back after a step is no momentum.
            return Memory()
        kept = later / echo
        if abs(kept - echo) < 0.05:
            # One number for the usual momentum; the echo is the more accurate of the two.
            kept = echo
        return Memory(float(echo), float(kept)) if 0.0 < kept < 0.9995 else Memory()
