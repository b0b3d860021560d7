"""Clipping rules: by which factor a record counts, given the norm of its gradient.

A rule is a promise: factor times norm is at most the limit, and a record's factor is a function of
its own norm. The tape relies on neither. It cuts every factor to what the limit allows (`held`), by
norms that no rule can reach; and a rule that is not of this module is shown none. It is asked once
a batch what it does to a norm, and that is written down (`formula`). A rule of one's own is a
subclass with a name; the common check of the tests finds it in the registry and holds it to its
promise.

Sources: ``clip``, Abadi et al. (2016); ``automatic``, Bu, Wang, Zha and Karypis (2023);
``global``, Option 2 of Algorithm 1 of Bu, Wang, Dai and Long (2021): a record whose gradient is too
long is dropped.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from noisewise.errors import UnsoundError

__all__ = [
    "LARGEST",
    "LEAST",
    "RULES",
    "SMALLEST",
    "Rule",
    "clip_scale",
    "clipped",
    "formula",
    "held",
    "is_elementwise",
]

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
        """Return the factor of each norm, at most limit / norm; asked once a batch, of one norm."""


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
    return RULES[rule](gamma).factors(norm, limit)


def is_elementwise(rule: str) -> bool:
    """Whether a rule is a formula of this module."""
    return RULES[rule] in _ELEMENTWISE


def formula(
    scale: Callable[[Tensor, float], Tensor], limit: float, device: torch.device | str = "cpu"
) -> Callable[[Tensor], Tensor]:
    """Write down what `scale` does to one norm, as a function of many.

    It is asked once, about a norm without axes and without a value. So it cannot look at another
    record, decide by a value, keep one, or answer differently for another piece of a batch; what
    it reads besides (a counter, a schedule) is what it is now.

    Raises
    ------
    UnsoundError
        If `scale` cannot be asked so, or draws.
    """
    from torch.fx.experimental.proxy_tensor import make_fx  # slow, and rarely needed

    name = getattr(scale, "__qualname__", scale)
    probe = torch.ones((), dtype=torch.float64, device=device)
    kind = ""
    try:
        written = make_fx(
            lambda norm: scale(norm, limit), tracing_mode="fake", _allow_non_fake_inputs=True
        )(probe)
        _require_pure(written)
        _each(written, torch.ones(2, dtype=torch.float64, device=device))
    except Exception as error:
        kind = type(error).__name__
    if kind:
        # Nothing of the error is kept: its text may hold what a rule has seen elsewhere.
        raise UnsoundError(
            f"{name} cannot be applied to one record's norm at a time ({kind}). A factor must be a "
            "function of that record's norm and of public values, made of torch operations on a "
            "tensor without axes: no maximum, mean or quantile of the batch, no branch on a value, "
            "nothing random, no tensor that it changes."
        )
    return functools.partial(_each, written)


def _each(written: Callable[[Tensor], Tensor], norms: Tensor) -> Tensor:
    """Apply what was written down to every norm; nothing random is drawn."""
    if not norms.numel():
        return norms.clone()
    found = torch.func.vmap(written, randomness="error")(norms.flatten().clone())
    return found.reshape(norms.shape)


def _require_pure(written: torch.fx.GraphModule) -> None:
    """Tensors of the rule's own are read, not changed: or the next piece would meet others."""
    for node in written.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is None or not schema.is_mutable:
            continue
        for argument in node.args:
            if isinstance(argument, torch.fx.Node) and argument.op == "get_attr":
                raise ValueError("changes a tensor of its own")


def held(factors: Tensor, norms: Tensor, limit: float) -> Tensor:
    """Cut factors to what keeps factor times norm within the limit, whatever a rule said.

    A record counts zero if its norm is not finite, or if its factor is no number or so small that
    it would be rounded coarsely.
    """
    allowed = limit / norms.clamp_min(SMALLEST)  # zero for an infinite norm
    cut = torch.minimum(factors.to(norms.dtype), allowed).clamp(0.0, LARGEST)
    return torch.where(cut >= LEAST, cut, 0.0)  # what is no number is not larger


def clipped(norms: Tensor, limit: float) -> Tensor:
    """Return `held` of the factors of `Clip`, to the bit: what is allowed, and at most one."""
    cut = (limit / norms.clamp_min(SMALLEST)).clamp_max(1.0)
    return torch.where(cut >= LEAST, cut, 0.0)
