"""Single steps of a long training: what step t did, from runs of t - 1 and of t steps.

Two runs with the same seed, data and settings go the same way until the shorter one ends, so
the difference of their checkpoints is the last step of the longer one. What momentum (or an
average of weights, or Adam's first moment) carries over from the step before is subtracted, so
that a step shows what was fresh in it. Where the user says what is observed, each run shows the
release of its last step directly.

Weights move so little over the whole run that gradients stay what they were, and still by
thousands of units of float32 in every step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from noisewise.debugging.bench import LOUD, SIGMA, Bench
from noisewise.debugging.knowledge import Memory
from noisewise.debugging.statistics import Vector
from noisewise.debugging.trainer import Data, StateDict, TrainingFailedError

__all__ = ["Walk", "loud_walk", "silent_walk"]

# How far back echoes of Nesterov's momentum are followed; each is less than half of the last.
_DEPTH = 8


@dataclass
class Walk:
    """Runs of growing length with one seed on one dataset, made when they are asked for."""

    bench: Bench
    data: Data
    clip: float
    sigma: float
    batch_size: int
    lr: float
    seed: int = 0
    memory: Memory = field(default_factory=Memory)
    init: StateDict | None = None
    _places: dict[int, Vector] = field(default_factory=dict)

    def place(self, steps: int) -> Vector:
        """Return the displacement after so many steps, in gradient units."""
        if steps <= 0:
            return np.zeros(self.bench.dimension)
        if steps not in self._places:
            found = self.bench.update(
                self.data,
                clip=self.clip,
                sigma=self.sigma,
                batch_size=self.batch_size,
                seed=self.seed,
                steps=steps,
                lr=self.lr,
                init=self.init,
            )
            if not np.isfinite(found).all():
                raise TrainingFailedError(f"weights are not finite after {steps} steps")
            self._places[steps] = found
        return self._places[steps]

    def moved(self, step: int) -> Vector:
        """Return what step number `step` (from 1 on) did to the weights."""
        if self.bench.box.observe is not None:
            return self.place(step)
        return self.place(step) - self.place(step - 1)

    def fresh(self, step: int) -> Vector:
        """Return what step number `step` added that was not carried over from the one before."""
        now = self.moved(step)
        if self.bench.box.observe is not None:
            return now
        if self.bench.adam:
            # The moment is an average of all gradients so far, corrected for its start at zero.
            kept = self.bench.adam_betas[0]
            before = self.moved(step - 1) if step > 1 else np.zeros_like(now)
            whole, part = 1 - kept**step, 1 - kept ** (step - 1)
            return np.asarray((whole * now - kept * part * before) / (1 - kept), dtype=np.float64)
        return self._fresh(step, _DEPTH)

    def _fresh(self, step: int, depth: int) -> Vector:
        now = self.moved(step)
        if self.memory.kept == 0.0 or step == 1:
            return now
        now = now - self.memory.kept * self.moved(step - 1)
        # Nesterov's momentum echoes less at once than it keeps later.
        excess = self.memory.echo - self.memory.kept
        if abs(excess) > 0.03 and depth > 0:
            now = now - excess * self._fresh(step - 1, depth - 1)
        return now


def loud_walk(
    bench: Bench,
    data: Data,
    batch_size: int,
    seed: int,
    move: float = 1e-3,
    memory: Memory | None = None,
) -> Walk:
    """Return a walk whose noise drowns what records contribute: only noise is seen.

    The clipping norm goes down and sigma up by the same factor, so the noise is as large as at
    the usual clipping norm.
    """
    clip, sigma = bench.usable_clip / LOUD, SIGMA * LOUD
    if bench.adam:
        # Its steps are linear only where noise is small beside its epsilon.
        clip /= 10
    lr = bench.rate(clip * sigma / batch_size * bench.dimension**0.5, move)
    return Walk(bench, data, clip, sigma, batch_size, lr, seed, memory or Memory())


def silent_walk(
    bench: Bench,
    data: Data,
    batch_size: int,
    seed: int,
    move: float = 1e-4,
    memory: Memory | None = None,
) -> Walk:
    """Return a walk without noise: only what records contribute is seen."""
    clip = bench.usable_clip
    lr = bench.rate(min(clip, bench.norm), move)
    return Walk(bench, data, clip, 0.0, batch_size, lr, seed, memory or Memory())
