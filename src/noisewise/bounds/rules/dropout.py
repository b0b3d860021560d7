"""Rules of dropout: each entry is dropped or divided by 1 - p, so everything grows by 1/(1 - p).

The masks are drawn independently of the data, so the bounds hold for every mask. Both
modes are covered: in evaluation the layer is the identity, which the bound includes.

Proof: docs/proofs/layers.md#dropout.
"""
# ruff: noqa: D102 (the methods are documented once, on LayerRule)

from __future__ import annotations

import math
from typing import Any

from torch import nn

from noisewise.arithmetic import loose, product, quotient, root, total
from noisewise.bounds.layer import Call, Diagonal, LayerRule
from noisewise.bounds.registry import register

__all__ = ["AlphaDropoutRule", "DropoutRule"]

# Value that alpha dropout gives to dropped entries: minus scale * alpha of SELU.
_DROPPED = 1.7580993408473766


@register(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
class DropoutRule(LayerRule[Any]):
    """Dropout of entries or whole channels."""

    def lipschitz(self, call: Call[Any]) -> float:
        # With p = 1 the layer returns zeros in training and its input in evaluation.
        kept = 1.0 - float(call.module.p)
        return 1.0 if kept == 0 else max(1.0, quotient(1.0, kept))

    def diagonal(self, call: Call[Any]) -> Diagonal:
        gain = self.lipschitz(call)
        return Diagonal(gain, gain, 0.0)


@register(nn.AlphaDropout, nn.FeatureAlphaDropout)
class AlphaDropoutRule(LayerRule[Any]):
    """a x + b where kept, b - a c where dropped, with c = 1.758, b = a c p."""

    def _affine(self, call: Call[Any]) -> tuple[float, float]:
        p = float(call.module.p)
        if p >= 1:
            return 1.0, 0.0
        gain = loose(1.0 / math.sqrt((1.0 - p) * (1.0 + p * _DROPPED * _DROPPED)))
        return gain, loose(gain * _DROPPED * max(p, 1.0 - p))

    def lipschitz(self, call: Call[Any]) -> float:
        return max(1.0, self._affine(call)[0])

    def output_norm(self, call: Call[Any]) -> float:
        gain, shift = self._affine(call)
        return max(call.norm, total(product(gain, call.norm), product(root(call.size), shift)))
