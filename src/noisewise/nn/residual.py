"""Residual connections whose Lipschitz constant is known.

A sum has constant L_a + L_b (not L_a * L_b: docs/proofs/layers.md#residual); a convex mix keeps
it at the mix of both, so that a chain of 1-Lipschitz blocks stays 1-Lipschitz.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from noisewise import checks
from noisewise.arithmetic import loose, product, total
from noisewise.bounds import Call, LayerRule, register
from noisewise.bounds.rules import wide

__all__ = ["ConvexMix", "LipschitzResidual"]


class ConvexMix(nn.Module):
    """(1 - c) a + c b, with c fixed or learnt.

    Parameters
    ----------
    coefficient : float
        Weight of the second input, in (0, 1).
    learn : bool
        Whether the coefficient is a parameter (through a sigmoid). It learns from noisy
        gradients like any other, so its value is public.
    """

    raw: Tensor

    def __init__(self, coefficient: float = 0.5, learn: bool = False) -> None:
        super().__init__()
        share = checks.fraction("coefficient", coefficient)
        raw = torch.tensor(math.log(share / (1.0 - share)))
        if learn:
            self.raw = nn.Parameter(raw)
        else:
            self.register_buffer("raw", raw)

    @property
    def coefficient(self) -> float:
        """Present weight of the second input."""
        return float(torch.sigmoid(wide(self.raw)))

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Mix two tensors of equal shape."""
        if first.shape != second.shape:
            raise ValueError(f"shapes differ: {tuple(first.shape)} and {tuple(second.shape)}")
        return torch.lerp(first, second, torch.sigmoid(self.raw).to(first.dtype))

    def extra_repr(self) -> str:
        """Present settings."""
        return f"coefficient={self.coefficient:g}, learn={isinstance(self.raw, nn.Parameter)}"


class LipschitzResidual(nn.Module):
    """shortcut(x) combined with branch(x), as a sum or as a convex mix.

    Parameters
    ----------
    branch : Module
        Keeps the shape of its input (or that of `shortcut`).
    shortcut : Module, optional
        The identity by default.
    mix : {"convex", "sum"}
        `convex` keeps the Lipschitz constant of the larger branch; `sum` adds them.
    coefficient, learn
        Of the convex mix, see :class:`ConvexMix`.

    Examples
    --------
    >>> import torch
    >>> block = LipschitzResidual(nn.ReLU(), coefficient=0.25)
    >>> block(torch.tensor([[-4.0, 4.0]]))
    tensor([[-3.,  4.]])
    """

    def __init__(
        self,
        branch: nn.Module,
        shortcut: nn.Module | None = None,
        mix: str = "convex",
        coefficient: float = 0.5,
        learn: bool = False,
    ) -> None:
        super().__init__()
        checks.choice("mix", mix, ("convex", "sum"))
        self.branch = branch
        self.shortcut = nn.Identity() if shortcut is None else shortcut
        self.mix = ConvexMix(coefficient, learn) if mix == "convex" else None

    def forward(self, x: Tensor) -> Tensor:
        """Combine both ways."""
        kept: Tensor = self.shortcut(x)
        changed: Tensor = self.branch(x)
        if self.mix is None:
            return kept + changed
        mixed: Tensor = self.mix(kept, changed)
        return mixed


@register(ConvexMix)
class ConvexMixRule(LayerRule[ConvexMix]):
    """(1 - c) X_a + c X_b. The raw coefficient has derivative c (1 - c) (b - a)."""

    parameters = ("raw",)
    inputs = 2

    def lipschitz(self, call: Call[ConvexMix]) -> float:
        """Largest of both shares."""
        return max(self.lipschitz_of(call, 0), self.lipschitz_of(call, 1))

    def lipschitz_of(self, call: Call[ConvexMix], index: int) -> float:
        """Return the share of that input, with room for the float in which it is applied."""
        share = call.module.coefficient
        slack = 1.0 + 4 * torch.finfo(call.module.raw.dtype).eps
        return product(loose(share if index else 1.0 - share), slack)

    def output_norm(self, call: Call[ConvexMix]) -> float:
        """Mix of both norms."""
        return total(*(product(self.lipschitz_of(call, i), call.inputs[i].norm) for i in (0, 1)))

    def parameter_factors(self, call: Call[ConvexMix]) -> dict[str, float]:
        """At most c (1 - c) (X_a + X_b)."""
        slope = product(self.lipschitz_of(call, 0), self.lipschitz_of(call, 1))
        return {"raw": product(slope, total(call.inputs[0].norm, call.inputs[1].norm))}
