"""Convolutions whose operator norm is certified to stay within a limit, for any image size.

The norm is that of the operator on images (`noisewise.bounds.norms.conv_norm`), not of the
reshaped kernel, which can be smaller by the root of the number of taps. As with dense layers
the kernel is an ordinary parameter, projected after the step.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from noisewise import checks
from noisewise.bounds import NormCache
from noisewise.bounds.norms import NormBound, depth_to_space, geometry, riesz_grid, space_to_depth
from noisewise.nn.linear import check_finite
from noisewise.nn.projections import (
    PROJECTIONS,
    clip_weights,
    cut,
    fix_weights,
    orthogonalise,
)

__all__ = [
    "SpectralConv1d",
    "SpectralConv2d",
    "SpectralConv3d",
    "SpectralConvTranspose1d",
    "SpectralConvTranspose2d",
    "SpectralConvTranspose3d",
    "clip_kernel_singular_values",
]

_ALTERNATIONS = 12


class _Spectral(nn.Module):
    """What the convolutions share: certified norm and projection.

    Parameters
    ----------
    in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, **options
        As of the torch layer of the same name; ``padding_mode`` may be ``zeros`` or
        ``circular``, and ``reflect`` and ``replicate`` at the price of their own norm.
    limit : float
        Largest operator norm after `project_`, and at construction.
    projection : str
        ``clip`` (default), ``fix``, ``singular-values`` (alternating projections in the
        frequency domain, an order of magnitude slower) or ``bjorck`` (on the reshaped kernel).
    """

    weight: Tensor
    bias: Tensor | None
    transposed: bool
    padding_mode: Any
    groups: int

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        limit: float = 1.0,
        *,
        projection: str = "clip",
        **options: Any,
    ) -> None:
        self.limit = checks.positive("limit", limit)
        self.projection = checks.choice("projection", projection, PROJECTIONS)
        options.update(stride=stride, padding=padding, dilation=dilation, groups=groups)
        super().__init__(in_channels, out_channels, kernel_size, bias=bias, **options)
        self.norms = NormCache(tolerance=0.01)
        fix_weights(self.weight, self.limit, self._norm, rescale=self.norms.rescale_)

    def reset_parameters(self) -> None:
        """Draw a kernel that is orthogonal when reshaped; the bias starts at zero."""
        with torch.no_grad():
            for part in self.weight.chunk(self.groups):
                wide = part.new_empty(part.shape, dtype=torch.float32)
                part.copy_(nn.init.orthogonal_(wide) / math.sqrt(math.prod(part.shape[2:])))
            if self.bias is not None:
                self.bias.zero_()

    def _geometry(self) -> dict[str, Any]:
        return {
            "stride": self.stride,
            "padding": self.padding,
            "dilation": self.dilation,
            "transposed": self.transposed,
            "padding_mode": self.padding_mode,
        }

    def _norm(self, weight: Tensor) -> NormBound:
        return self.norms.conv_norm(weight, groups=self.groups, **self._geometry())

    def norm_bound(self) -> NormBound:
        """Return a proven upper bound on the norm of the convolution, for any image size."""
        return self._norm(self.weight)

    def project_(self) -> NormBound:
        """Bring the kernel back to operator norm <= limit, certified; return its norm."""
        check_finite(self)
        bound = self.norm_bound()
        if self.projection == "singular-values" and bound.value > self.limit:
            dims = geometry(self.weight.shape[2:], input_size=None, **self._geometry())
            steps = [dim.step for dim in dims]
            clip_kernel_singular_values(self.weight, self.limit, steps=steps, groups=self.groups)
        elif self.projection == "bjorck" and bound.value > 0.0:
            with torch.no_grad():
                for part in self.weight.chunk(self.groups):
                    matrix = part.to(torch.float64).flatten(1)
                    size = torch.linalg.matrix_norm(matrix, 2)
                    if size > 0:
                        part.copy_(orthogonalise(matrix / size, 20).reshape(part.shape))
        change = fix_weights if self.projection in ("fix", "bjorck") else clip_weights
        return change(self.weight, self.limit, self._norm, rescale=self.norms.rescale_)

    def extra_repr(self) -> str:
        """Options beyond those of the torch layer."""
        return f"{super().extra_repr()}, limit={self.limit:g}, projection={self.projection!r}"


def clip_kernel_singular_values(
    weight: Tensor,
    limit: float,
    *,
    steps: list[int],
    groups: int = 1,
    iterations: int = _ALTERNATIONS,
) -> None:
    """Move a kernel, in place, near the closest one whose symbols have norm at most `limit`.

    Dykstra's alternating projections between two convex sets: kernels of any support whose
    symbols on a frequency grid have singular values at most limit / correction (cut them), and
    kernels of the given support (truncate). Converges to the projection onto the
    intersection; stopped after `iterations`, so certify afterwards.
    """
    kernel = weight.detach()
    if kernel.device.type == "mps":
        kernel = kernel.cpu()
    largest = float(kernel.abs().max())
    deep = space_to_depth(kernel.to(torch.float64) / largest, steps)
    taps = deep.shape[2:]
    points, correction = riesz_grid(taps)
    level = limit / largest / (correction * 1.006)
    axes = tuple(range(2, deep.dim()))
    window = (slice(None), slice(None), *(slice(0, k) for k in taps))
    support = space_to_depth(torch.ones_like(kernel, dtype=torch.float64), steps)
    x = deep.new_zeros(*deep.shape[:2], *points)
    x[window] = deep
    memory = torch.zeros_like(x)
    for _ in range(iterations):
        shifted = x + memory
        y = _cut_symbols(shifted, level, groups, axes, points)
        memory = shifted - y
        x = torch.zeros_like(y)
        x[window] = y[window] * support
    result = depth_to_space(x[window], steps, weight.shape[2:])
    with torch.no_grad():
        weight.copy_(result * largest)


def _cut_symbols(
    x: Tensor, level: float, groups: int, axes: tuple[int, ...], points: list[int]
) -> Tensor:
    symbols = torch.fft.rfftn(x, dim=axes)
    grouped = symbols.reshape(groups, x.shape[0] // groups, x.shape[1], -1)
    matrices = cut(grouped.permute(0, 3, 1, 2), level)
    symbols = matrices.permute(0, 2, 3, 1).reshape(symbols.shape)
    result: Tensor = torch.fft.irfftn(symbols, s=points, dim=axes)
    return result


class SpectralConv1d(_Spectral, nn.Conv1d):
    """A 1-d convolution with operator norm at most `limit`; see `SpectralConv2d`."""


class SpectralConv2d(_Spectral, nn.Conv2d):
    """A 2-d convolution with operator norm at most `limit`, whatever the size of the image.

    Examples
    --------
    >>> layer = SpectralConv2d(3, 8, 3, stride=2, padding=1, limit=2.0)
    >>> float(layer.norm_bound()) <= 2.0
    True
    """


class SpectralConv3d(_Spectral, nn.Conv3d):
    """A 3-d convolution with operator norm at most `limit`; see `SpectralConv2d`."""


class SpectralConvTranspose1d(_Spectral, nn.ConvTranspose1d):
    """A transposed 1-d convolution with operator norm at most `limit`."""


class SpectralConvTranspose2d(_Spectral, nn.ConvTranspose2d):
    """A transposed 2-d convolution with operator norm at most `limit`."""


class SpectralConvTranspose3d(_Spectral, nn.ConvTranspose3d):
    """A transposed 3-d convolution with operator norm at most `limit`."""
