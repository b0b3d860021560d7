"""Activations that keep norms: sorting and reflecting instead of cutting.

GroupSort, MaxMin and Householder activations have orthogonal Jacobians almost everywhere,
so a gradient loses nothing on its way back (gradient-norm preserving networks).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from noisewise import checks
from noisewise.arithmetic import loose
from noisewise.bounds import Call, LayerRule, register
from noisewise.bounds.rules import Constants, ElementwiseRule

__all__ = [
    "AbsoluteValue",
    "CReLU",
    "GroupSort",
    "HouseholderActivation",
    "MaxMin",
    "TemperedSigmoid",
]


class GroupSort(nn.Module):
    """Sort the channels (axis 1) within groups; the norm stays what it was.

    Examples
    --------
    >>> import torch
    >>> GroupSort(2)(torch.tensor([[3.0, 1.0, 2.0, 5.0]]))
    tensor([[1., 3., 2., 5.]])
    """

    def __init__(self, group_size: int = 2) -> None:
        super().__init__()
        self.group_size = checks.integer("group_size", group_size, minimum=2)

    def forward(self, x: Tensor) -> Tensor:
        """Sort each group in increasing order."""
        channels = _channels(x, self.group_size, type(self).__name__)
        groups = x.reshape(x.shape[0], channels // self.group_size, self.group_size, *x.shape[2:])
        return groups.sort(dim=2).values.reshape(x.shape)

    def extra_repr(self) -> str:
        """Return the settings, as given."""
        return f"group_size={self.group_size}"


class MaxMin(nn.Module):
    """Larger and smaller of each pair of neighbouring channels (axis 1): GroupSort of two."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the maxima at even, the minima at odd channels."""
        channels = _channels(x, 2, "MaxMin")
        pairs = x.reshape(x.shape[0], channels // 2, 2, *x.shape[2:])
        first, second = pairs[:, :, 0], pairs[:, :, 1]
        ordered = torch.stack([torch.maximum(first, second), torch.minimum(first, second)], dim=2)
        return ordered.reshape(x.shape)


class AbsoluteValue(nn.Module):
    """|x|, entry by entry."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the absolute values."""
        return x.abs()


class CReLU(nn.Module):
    """Positive and negative part side by side: twice the channels (axis 1), the same norm."""

    def forward(self, x: Tensor) -> Tensor:
        """Return max(x, 0) and max(-x, 0), joined along the channels."""
        return torch.cat([x.relu(), (-x).relu()], dim=1)


class HouseholderActivation(nn.Module):
    """Reflect a pair of channels on a learnt line if it lies on the far side of it.

    Pair (a, b) with angle t stays if a sin(t/2) > b cos(t/2), otherwise becomes
    (a cos t + b sin t, a sin t - b cos t) (Singla et al., 2022). t = pi/2 is MaxMin.

    Parameters
    ----------
    channels : int
        Number of channels (axis 1), even; one angle for each pair.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = checks.integer("channels", channels, minimum=2)
        if self.channels % 2:
            raise ValueError(f"channels must be even, got {channels}")
        self.angle = nn.Parameter(torch.full((self.channels // 2,), torch.pi / 2))

    def forward(self, x: Tensor) -> Tensor:
        """Reflect the pairs that are beyond their line."""
        channels = _channels(x, 2, "HouseholderActivation")
        if channels != self.channels:
            raise ValueError(f"expected {self.channels} channels, got a batch of {tuple(x.shape)}")
        pairs = x.reshape(x.shape[0], channels // 2, 2, *x.shape[2:])
        first, second = pairs[:, :, 0], pairs[:, :, 1]
        angle = self.angle.view(-1, *(1,) * (x.dim() - 2))
        sine, cosine = angle.sin(), angle.cos()
        # The side is a decision, not a path for gradients; both sides agree on the line.
        with torch.no_grad():
            stays = first * (angle / 2).sin() > second * (angle / 2).cos()
        reflected = (first * cosine + second * sine, first * sine - second * cosine)
        parts = [torch.where(stays, first, reflected[0]), torch.where(stays, second, reflected[1])]
        return torch.stack(parts, dim=2).reshape(x.shape)

    def extra_repr(self) -> str:
        """Return the settings, as given."""
        return f"channels={self.channels}"


class TemperedSigmoid(nn.Module):
    """scale / (1 + exp(-temperature x)) - offset (Papernot et al., 2021); (2, 2, 1) is tanh."""

    def __init__(self, scale: float = 2.0, temperature: float = 2.0, offset: float = 1.0) -> None:
        super().__init__()
        self.scale = checks.positive("scale", scale)
        self.temperature = checks.positive("temperature", temperature)
        self.offset = checks.finite("offset", offset)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function to each entry."""
        return self.scale * torch.sigmoid(self.temperature * x) - self.offset

    def extra_repr(self) -> str:
        """Return the settings, as given."""
        return f"scale={self.scale:g}, temperature={self.temperature:g}, offset={self.offset:g}"


def _channels(x: Tensor, group: int, name: str) -> int:
    if x.dim() < 2 or x.shape[1] % group:
        raise ValueError(
            f"{name} needs a number of channels (axis 1) that is a multiple of {group}, got a "
            f"batch of shape {tuple(x.shape)}"
        )
    return x.shape[1]


@register(GroupSort, MaxMin, CReLU)
class OrthogonalRule(LayerRule[Any]):
    """A permutation (or a split by sign) at every point: norm and Jacobian are kept."""

    def lipschitz(self, call: Call[Any]) -> float:
        """One."""
        return 1.0


@register(AbsoluteValue)
class AbsoluteValueRule(ElementwiseRule):
    """Slope 1 on both sides."""

    def constants(self, call: Call[AbsoluteValue]) -> Constants:
        """Slope one."""
        return Constants(1.0)


@register(HouseholderActivation)
class HouseholderRule(OrthogonalRule):
    """The derivative of a reflected pair in its angle has exactly the length of the pair.

    Summed over positions and over pairs that is at most ||d|| ||x||.
    """

    parameters = ("angle",)

    def parameter_factors(self, call: Call[HouseholderActivation]) -> dict[str, float]:
        """Return the norm of the input."""
        return {"angle": call.norm}


@register(TemperedSigmoid)
class TemperedSigmoidRule(ElementwiseRule):
    """Slope scale * temperature / 4 at zero, where the value is scale/2 - offset."""

    def constants(self, call: Call[TemperedSigmoid]) -> Constants:
        """Constants from the three settings."""
        scale, offset = call.module.scale, call.module.offset
        return Constants(
            slope=loose(scale * call.module.temperature / 4),
            offset=loose(abs(scale / 2 - offset)),
            ceiling=loose(max(abs(offset), abs(scale - offset))),
        )
