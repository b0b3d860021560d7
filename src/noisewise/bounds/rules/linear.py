"""Rules of dense layers: ||Wx + b|| <= ||W|| X + sqrt(T) ||b|| over T positions.

Proof: docs/proofs/layers.md#linear.
"""

# ruff: noqa: D102 (the methods are documented once, on LayerRule)

from __future__ import annotations

import math

from torch import Tensor, nn

from noisewise.arithmetic import product, root, total
from noisewise.bounds.layer import Call, LayerRule
from noisewise.bounds.registry import register
from noisewise.bounds.rules.vectors import vector_norm

__all__ = ["IdentityRule", "LinearRule"]


@register(nn.Linear)
class LinearRule(LayerRule[nn.Linear]):
    """Dense layer on the last axis, applied at T positions of a record.

    The gradient of W is sum_t d_t x_t', at most ||d|| ||x|| (Cauchy-Schwarz over
    positions, equality for one); that of b is sum_t d_t, at most sqrt(T) ||d||.
    """

    parameters = ("weight", "bias")

    def matrix(self, call: Call[nn.Linear]) -> Tensor:
        """Return the matrix that the layer applies now."""
        return call.module.weight

    def operator_norm(self, call: Call[nn.Linear]) -> float:
        """Certified norm of that matrix."""
        return call.norms.matrix(call.module, lambda: self.matrix(call))

    @staticmethod
    def positions(call: Call[nn.Linear]) -> int:
        """Return the number of positions at which a record meets the same weight."""
        return math.prod(call.output_shape[:-1])

    def check(self, call: Call[nn.Linear]) -> None:
        if not call.shape:
            call.refuse(
                "would act on the batch axis, because a record has no axes,",
                "Give every record at least one axis, for example with Unflatten.",
            )

    def lipschitz(self, call: Call[nn.Linear]) -> float:
        return self.operator_norm(call)

    def output_norm(self, call: Call[nn.Linear]) -> float:
        shift = product(root(self.positions(call)), vector_norm(call.module.bias))
        return total(product(self.operator_norm(call), call.norm), shift)

    def parameter_factors(self, call: Call[nn.Linear]) -> dict[str, float]:
        factors = {"weight": call.norm}
        if call.module.bias is not None:
            factors["bias"] = root(self.positions(call))
        return factors


@register(nn.Identity)
class IdentityRule(LayerRule[nn.Module]):
    """A layer that returns its input, or a rearrangement of it."""

    def lipschitz(self, call: Call[nn.Module]) -> float:
        return 1.0
