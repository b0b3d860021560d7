"""Normalisation of each record by itself, with a proven Lipschitz constant.

(x - mean)/max(alpha, deviation). Where the deviation is below alpha this is a projection over
alpha; above, (P - zz'/m)/deviation, a projection over something larger. So the Jacobian is at
most 1/alpha everywhere it exists, and a group of m entries leaves with norm at most
min(sqrt(m), X/alpha). Dividing by sqrt(var + eps) instead has slope 1/sqrt(eps).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from noisewise import checks
from noisewise.arithmetic import quotient, root
from noisewise.bounds import Call, register
from noisewise.bounds.rules import Groups, IdentityRule, NormalisationRule

__all__ = ["LayerCentering", "LipschitzGroupNorm", "LipschitzLayerNorm"]


def _normalise(groups: Tensor, alpha: float) -> Tensor:
    """Centre the last axis and divide by the deviation, but by no less than alpha."""
    centred = groups - groups.mean(dim=-1, keepdim=True)
    variance = centred.square().mean(dim=-1, keepdim=True)
    # The root is taken of a value >= alpha^2, so its gradient is finite for constant groups.
    return centred / variance.clamp_min(alpha * alpha).sqrt()


class LipschitzGroupNorm(nn.Module):
    """Group normalisation with slope at most 1/alpha.

    Parameters
    ----------
    num_groups, num_channels : int
        As of ``torch.nn.GroupNorm``.
    alpha : float
        Least deviation to divide by.
    affine : bool
        Whether to learn a scale and a shift per channel.

    Examples
    --------
    >>> import torch
    >>> layer = LipschitzGroupNorm(1, 2, alpha=2.0)
    >>> layer(torch.tensor([[[1.0], [-1.0]]])).flatten()
    tensor([ 0.5000, -0.5000])
    """

    def __init__(
        self, num_groups: int, num_channels: int, alpha: float = 1.0, affine: bool = False
    ) -> None:
        super().__init__()
        self.num_groups = checks.integer("num_groups", num_groups, minimum=1)
        self.num_channels = checks.integer("num_channels", num_channels, minimum=1)
        if self.num_channels % self.num_groups:
            raise ValueError(f"num_channels={num_channels} must be a multiple of {num_groups}")
        self.alpha = checks.positive("alpha", alpha)
        self.affine = affine
        self.weight = nn.Parameter(torch.ones(num_channels)) if affine else None
        self.bias = nn.Parameter(torch.zeros(num_channels)) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise groups of channels of each record."""
        if x.dim() < 2 or x.shape[1] != self.num_channels:
            raise ValueError(
                f"expected {self.num_channels} channels on axis 1, got shape {tuple(x.shape)}"
            )
        grouped = x.reshape(x.shape[0], self.num_groups, -1)
        result = _normalise(grouped, self.alpha).reshape(x.shape)
        if self.weight is None or self.bias is None:
            return result
        spread = (-1,) + (1,) * (x.dim() - 2)
        return result * self.weight.view(spread) + self.bias.view(spread)

    def extra_repr(self) -> str:
        """Return the settings, as given."""
        return f"{self.num_groups}, {self.num_channels}, alpha={self.alpha:g}, affine={self.affine}"


class LipschitzLayerNorm(nn.Module):
    """Layer normalisation over the last axes with slope at most 1/alpha.

    Parameters
    ----------
    normalized_shape : int or sequence of int
        Sizes of the last axes, which are normalised together.
    alpha : float
        Least deviation to divide by.
    affine : bool
        Whether to learn a scale and a shift per entry of `normalized_shape`.
    """

    def __init__(
        self, normalized_shape: int | Sequence[int], alpha: float = 1.0, affine: bool = False
    ) -> None:
        super().__init__()
        sizes = (normalized_shape,) if isinstance(normalized_shape, int) else normalized_shape
        self.normalized_shape = tuple(
            checks.integer("normalized_shape", size, minimum=1) for size in sizes
        )
        self.alpha = checks.positive("alpha", alpha)
        self.affine = affine
        self.weight = nn.Parameter(torch.ones(self.normalized_shape)) if affine else None
        self.bias = nn.Parameter(torch.zeros(self.normalized_shape)) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axes at every position of each record."""
        axes = len(self.normalized_shape)
        if x.dim() <= axes or tuple(x.shape[-axes:]) != self.normalized_shape:
            raise ValueError(
                f"expected records that end in {self.normalized_shape}, got {tuple(x.shape)}"
            )
        result = _normalise(x.flatten(-axes), self.alpha).reshape(x.shape)
        if self.weight is None or self.bias is None:
            return result
        return result * self.weight + self.bias

    def extra_repr(self) -> str:
        """Return the settings, as given."""
        return f"{self.normalized_shape}, alpha={self.alpha:g}, affine={self.affine}"


class LayerCentering(nn.Module):
    """Take away the mean of each record's own entries, all of them or along some axes.

    Parameters
    ----------
    axes : sequence of int, optional
        Axes of a record (0 is its first, not the batch); all by default.
    """

    def __init__(self, axes: Sequence[int] | None = None) -> None:
        super().__init__()
        self.axes = None if axes is None else tuple(checks.integer("axes", a) for a in axes)

    def forward(self, x: Tensor) -> Tensor:
        """Subtract the mean; never over the batch."""
        if x.dim() < 2:
            raise ValueError(f"records need at least one axis, got shape {tuple(x.shape)}")
        axes = range(x.dim() - 1) if self.axes is None else self.axes
        return x - x.mean(dim=[axis + 1 for axis in axes], keepdim=True)


class _Floored(NormalisationRule):
    """max(alpha, deviation) instead of sqrt(var + eps)."""

    def check(self, call: Call[Any]) -> None:
        """Every setting is valid."""

    def steepest(self, call: Call[Any]) -> float:
        """One over alpha."""
        return quotient(1.0, call.module.alpha)

    def normalised(self, call: Call[Any], entries: int, norm: float) -> float:
        """At most one per entry on average, and at most the input over alpha."""
        if math.isinf(norm):
            return root(entries)
        return min(root(entries), quotient(norm, call.module.alpha))


@register(LipschitzGroupNorm)
class LipschitzGroupNormRule(_Floored):
    """Groups of channels."""

    def groups(self, call: Call[LipschitzGroupNorm]) -> Groups:
        """Return groups of channels with all their positions."""
        return Groups(call.size // call.module.num_groups, math.prod(call.shape[1:]), 1)


@register(LipschitzLayerNorm)
class LipschitzLayerNormRule(_Floored):
    """The last axes at each position."""

    def groups(self, call: Call[LipschitzLayerNorm]) -> Groups:
        """One group per position of the leading axes."""
        size = math.prod(call.module.normalized_shape)
        return Groups(size, call.size // size, call.size // size)


@register(LayerCentering)
class LayerCenteringRule(IdentityRule):
    """An orthogonal projection."""
