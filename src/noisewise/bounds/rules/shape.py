"""Rules of layers that move, copy or pad entries.

A copy that appears c times grows a norm by sqrt(c); how often a position is copied is
read off torch's own operator, one dimension at a time.

Proof: docs/proofs/layers.md#shapes.
"""
# ruff: noqa: D102 (the methods are documented once, on LayerRule)

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from noisewise.arithmetic import hypotenuse, product, root
from noisewise.bounds.layer import Call, LayerRule
from noisewise.bounds.registry import register
from noisewise.bounds.rules.linear import IdentityRule
from noisewise.bounds.rules.windows import (
    copies_of_entries,
    kronecker_norm,
    padding_sources,
    spatial,
)

__all__ = ["ConstantPadRule", "CopyPadRule", "RearrangementRule", "UpsampleRule"]


@register(nn.Flatten, nn.Unflatten, nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle)
class RearrangementRule(IdentityRule):
    """The same entries in another shape or order."""


@register(nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d)
class ZeroPadRule(IdentityRule):
    """Zeros around (or entries cut off): the norm cannot grow."""


@register(nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d)
class ConstantPadRule(IdentityRule):
    """m entries of a constant v around: ||y||^2 <= X^2 + m v^2."""

    def output_norm(self, call: Call[Any]) -> float:
        kept = math.prod(call.shape[: -spatial(call.module)])
        sizes = call.shape[-spatial(call.module) :]
        pads = _pads(call)
        for size, (before, after) in zip(sizes, pads, strict=True):
            kept *= size + min(before, 0) + min(after, 0)
        added = call.size - max(kept, 0)
        return hypotenuse(call.norm, product(root(added), abs(float(call.module.value))))


def _pads(call: Call[Any]) -> list[tuple[int, int]]:
    """(before, after) of each spatial dimension, in the order of the axes."""
    flat = tuple(call.module.padding)
    return [(flat[i], flat[i + 1]) for i in range(0, len(flat), 2)][::-1]


class CopyPadRule(LayerRule[Any]):
    """Padding by copies of the input."""

    mode: ClassVar[str]

    def lipschitz(self, call: Call[Any]) -> float:
        sizes = call.shape[-spatial(call.module) :]
        return root(
            math.prod(
                copies_of_entries(padding_sources(size, before, after, self.mode), size)
                for size, (before, after) in zip(sizes, _pads(call), strict=True)
            )
        )


@register(nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReflectionPad3d)
class ReflectionPadRule(CopyPadRule):
    """Mirror images of the border."""

    mode = "reflect"


@register(nn.ReplicationPad1d, nn.ReplicationPad2d, nn.ReplicationPad3d)
class ReplicationPadRule(CopyPadRule):
    """Copies of the border; a corner is copied in every dimension."""

    mode = "replicate"


@register(nn.CircularPad1d, nn.CircularPad2d, nn.CircularPad3d)
class CircularPadRule(CopyPadRule):
    """Copies of the opposite border."""

    mode = "circular"


_LINEAR = {"linear", "bilinear", "trilinear"}


@register(nn.Upsample)
class UpsampleRule(LayerRule[nn.Upsample]):
    """Nearest: sqrt of the copies. Linear modes: a Kronecker product of small matrices."""

    def check(self, call: Call[nn.Upsample]) -> None:
        if call.module.mode not in _LINEAR | {"nearest", "nearest-exact"}:
            call.refuse(
                f"with mode={call.module.mode!r} has no proven bound.",
                "Use mode 'nearest' or 'bilinear'.",
            )

    def lipschitz(self, call: Call[nn.Upsample]) -> float:
        module = call.module
        mode = "linear" if module.mode in _LINEAR else module.mode
        matrices = []
        for axis, size in enumerate(call.shape[1:]):
            resized = functional.interpolate(
                torch.eye(size, dtype=torch.float64)[None],
                size=None if module.size is None else _at(module.size, axis),
                scale_factor=None if module.size is not None else _at(module.scale_factor, axis),
                mode=mode,
                align_corners=module.align_corners if mode == "linear" else None,
                recompute_scale_factor=module.recompute_scale_factor,
            )
            matrices.append(np.ascontiguousarray(resized[0].numpy().T))
        return kronecker_norm(matrices)


def _at(value: Any, axis: int) -> Any:
    return value[axis] if isinstance(value, (tuple, list)) else value
