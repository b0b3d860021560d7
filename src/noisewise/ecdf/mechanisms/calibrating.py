"""The least noise that a budget allows for a strategy, for one row or for all rows of a unit.

Proof: docs/proofs/curves.md#shift and docs/proofs/curves.md#units.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Literal

from noisewise.ecdf.budget import Budget
from noisewise.ecdf.mechanisms.protocol import Change, Mechanism, Norm, Strategy
from noisewise.privacy.randomness import exact_scale
from noisewise.release import ONE_ROW, Block, Contribution

__all__ = ["calibrate", "for_units"]


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
    return Mechanism(strategy, tuple(blocks), change, reason, budget.concentrates)


def for_units(mechanism: Mechanism, contribution: Contribution) -> Mechanism:
    """Give a mechanism that was planned for one row the noise that hides a whole unit.

    A unit shifts each block of noise by at most `steps` times what one row does, in any norm, and
    noise of so many times the deviation hides that as well as before.
    """
    if contribution == ONE_ROW:
        return mechanism
    steps = contribution.steps
    blocks = tuple(
        replace(block, scale=block.scale * (steps if block.kind == "laplace" else steps**2))
        for block in mechanism.noise
    )
    return replace(mechanism, noise=blocks, contribution=contribution)


def _short(scale: Fraction) -> Fraction:
    """Return a nearby larger rational number with few bits, for fast exact sampling."""
    number = float(scale)
    short = exact_scale(math.nextafter(number, math.inf))
    return short if short >= scale else exact_scale(math.nextafter(float(short), math.inf))
