"""Pooling that neither grows a norm nor wastes it.

An average of k inputs shrinks a constant region by sqrt(k); these layers scale it back as
far as a Lipschitz constant of one allows. With stride equal to the window, the average keeps
the norm of piecewise constant inputs, and the root of the sum of squares that of all.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from noisewise.arithmetic import loose, product, root
from noisewise.bounds import Call, LayerRule, register
from noisewise.bounds.rules import MeanPoolRule, check_axes, each_axis, largest_count, windows_of

__all__ = ["ScaledAvgPool2d", "ScaledL2Pool2d"]

Pair = int | tuple[int, int]


def _overlap(kernel: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Largest number of windows over one pixel."""
    return math.prod(-(-k // s) for k, s in zip(kernel, stride, strict=True))


class _Scaled(nn.Module):
    def __init__(self, kernel_size: Pair, stride: Pair | None = None, padding: Pair = 0) -> None:
        super().__init__()
        self.kernel_size = each_axis(kernel_size, 2)
        self.stride = self.kernel_size if stride is None else each_axis(stride, 2)
        self.padding = each_axis(padding, 2)
        if min(self.kernel_size) < 1 or min(self.stride) < 1 or min(self.padding) < 0:
            raise ValueError(
                f"kernel_size and stride must be >= 1 and padding >= 0, got {kernel_size}, "
                f"{stride}, {padding}"
            )

    def extra_repr(self) -> str:
        """Return the settings, spelt out per axis."""
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class ScaledAvgPool2d(_Scaled):
    """Average pooling times sqrt(window / overlap): Lipschitz constant one.

    Parameters
    ----------
    kernel_size, stride, padding
        As of ``torch.nn.AvgPool2d``; the stride defaults to the window.

    Examples
    --------
    >>> import torch
    >>> x = torch.ones(1, 1, 4, 4)
    >>> float(ScaledAvgPool2d(2)(x).norm()) == float(x.norm())
    True
    """

    count_include_pad = True
    ceil_mode = False
    divisor_override = None

    @property
    def scale(self) -> float:
        """What the average is multiplied by."""
        window = math.prod(self.kernel_size)
        return math.sqrt(window / _overlap(self.kernel_size, self.stride))

    def forward(self, x: Tensor) -> Tensor:
        """Average each window, scaled."""
        pooled = functional.avg_pool2d(x, self.kernel_size, self.stride, self.padding)
        return pooled * self.scale


class ScaledL2Pool2d(_Scaled):
    """Root of the sum of squares in each window, over sqrt(overlap): Lipschitz constant one.

    With stride equal to the window (and sizes that divide) the norm is kept exactly. The
    gradient of an all-zero window is zero.
    """

    @property
    def scale(self) -> float:
        """What the root is multiplied by."""
        return 1.0 / math.sqrt(_overlap(self.kernel_size, self.stride))

    def forward(self, x: Tensor) -> Tensor:
        """Euclidean norm of each window, scaled."""
        squares = functional.avg_pool2d(
            x.square(), self.kernel_size, self.stride, self.padding, divisor_override=1
        )
        # The root has no derivative at zero; such windows are cut out of the graph.
        tiny = torch.finfo(x.dtype).tiny
        positive = squares > tiny
        roots = torch.where(positive, squares, torch.ones_like(squares)).sqrt()
        return torch.where(positive, roots, torch.zeros_like(roots)) * self.scale


@register(ScaledAvgPool2d)
class ScaledAvgPoolRule(MeanPoolRule):
    """The norm of the averaging operator times the scale."""

    def lipschitz(self, call: Call[Any]) -> float:
        """At most one, less where the border is cut off."""
        return product(loose(call.module.scale), super().lipschitz(call))


@register(ScaledL2Pool2d)
class ScaledL2PoolRule(LayerRule[ScaledL2Pool2d]):
    """Each window's gradient has norm one; a pixel lies in at most c windows."""

    def check(self, call: Call[ScaledL2Pool2d]) -> None:
        """Images only."""
        check_axes(call, 2)

    def lipschitz(self, call: Call[ScaledL2Pool2d]) -> float:
        """Root of the true overlap times the scale, at most one."""
        windows = windows_of(call)
        overlap = root(largest_count(zip(windows, call.shape[1:], strict=True)))
        return product(loose(call.module.scale), overlap)
