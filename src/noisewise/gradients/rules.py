"""Clipping rules: by which factor a record counts, given the norm of its gradient.

A rule is a promise: factor times norm is at most the limit, and a record's factor is a function of
its own norm. The tape relies on neither. It cuts every factor to what the limit allows (`held`), by
norms that no rule can reach, and a rule that is not of this module is shown one norm at a time
(`apart`), so that it has no other record to look at. A rule of one's own is a subclass with a
name; the common check of the tests finds it in the registry and holds it to its promise.

Sources: ``clip``, Abadi et al. (2016); ``automatic``, Bu, Wang, Zha and Karypis (2023);
``global``, Option 2 of Algorithm 1 of Bu, Wang, Dai and Long (2021): a record whose gradient is too
long is dropped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from noisewise.errors import UnsoundError

__all__ = ["LARGEST", "LEAST", "RULES", "SMALLEST", "Rule", "apart", "clip_scale", "held"]

#: Shorter gradients count as if they were this long, so that no factor grows without end.
SMALLEST = 1e-12
#: No factor is larger, so that a factor times an activation cannot overflow: activations whose
#: norm is above 2e19 have none in float32 (docs/proofs/rounding.md#factors).
LARGEST = 1e12
#: A smaller factor counts as none: float32 knows it only roughly (docs/proofs/rounding.md#factors).
LEAST = 2.0**-120

#: Every rule by its name.
RULES: dict[str, type[Rule]] = {}


class Rule(ABC):
    """A clipping rule; subclasses with a name are registered.

    Attributes
    ----------
    gamma : float
        A positive constant of the user's, for rules that have one.
    """

    name: ClassVar[str] = ""

    def __init__(self, gamma: float = 0.01) -> None:
        self.gamma = gamma

    def __init_subclass__(cls) -> None:
        """Enter the rule into the registry."""
        if cls.name:
            RULES[cls.name] = cls

    @abstractmethod
    def factors(self, norms: Tensor, limit: float) -> Tensor:
        """Return the factor of each norm, at most limit / norm; asked for one norm at a time."""


class Clip(Rule):
    """g min(1, C/|g|)."""

    name = "clip"

    def factors(self, norms: Tensor, limit: float) -> Tensor:
        """Shorten what is longer than the limit."""
        return (limit / norms.clamp_min(SMALLEST)).clamp_max(1.0)


class Automatic(Rule):
    """g C/(|g| + gamma)."""

    name = "automatic"

    def factors(self, norms: Tensor, limit: float) -> Tensor:
        """Give all gradients nearly the same length."""
        return limit / (norms + self.gamma)


class Global(Rule):
    """g if |g| <= C, else nothing."""

    name = "global"

    def factors(self, norms: Tensor, limit: float) -> Tensor:
        """Drop what is longer than the limit."""
        return (norms <= limit).to(norms.dtype)


class Normalise(Rule):
    """g C/|g|."""

    name = "normalise"

    def factors(self, norms: Tensor, limit: float) -> Tensor:
        """Give all gradients the same length, as far as they have one."""
        return limit / norms.clamp_min(SMALLEST)


#: Formulas entry by entry, as can be read above.
_ELEMENTWISE = frozenset((Clip, Automatic, Global, Normalise))


def clip_scale(norm: Tensor, limit: float, rule: str, gamma: float = 0.01) -> Tensor:
    """Return the factor of each record under a rule of the registry."""
    chosen = RULES[rule](gamma)
    if type(chosen) in _ELEMENTWISE:
        return chosen.factors(norm, limit)
    return apart(chosen.factors, norm, limit)


def apart(scale: Callable[[Tensor, float], Tensor], norms: Tensor, limit: float) -> Tensor:
    """Return what `scale` says of each norm, when it is shown no other one.

    Within ``torch.func.vmap`` the batch has no axis that could be reduced, sorted or indexed, no
    value can decide what the program does next, and nothing random is drawn.

    Raises
    ------
    UnsoundError
        If `scale` cannot be asked so, whatever the norms are.
    """
    if not norms.numel():
        return norms.clone()
    try:
        found = torch.func.vmap(lambda norm: scale(norm, limit), randomness="error")(
            norms.flatten().clone()
        )
        return found.reshape(norms.shape)
    except Exception as error:
        kind = type(error).__name__
    # Nothing of the error is shown or kept: its text may hold norms.
    raise UnsoundError(
        f"{getattr(scale, '__qualname__', scale)} cannot be applied to one record's norm at a time "
        f"({kind}). A factor must be a function of that record's norm and of public values, made "
        "of torch operations on a tensor without axes: no maximum, mean or quantile of the batch, "
        "no branch on a value, nothing random."
    )


def held(factors: Tensor, norms: Tensor, limit: float) -> Tensor:
    """Cut factors to what keeps factor times norm within the limit, whatever a rule said.

    A record counts zero if its norm is not finite, or if its factor is no number or so small that
    it would be rounded coarsely.
    """
    allowed = (limit / norms.clamp_min(SMALLEST)).clamp_max_(LARGEST)
    cut = torch.minimum(factors.to(norms.dtype).clamp_min(0.0), allowed)
    # A norm that is no number makes the cut no number, and an infinite one makes it zero.
    return torch.where((cut >= LEAST) & (factors < torch.inf), cut, 0.0)
