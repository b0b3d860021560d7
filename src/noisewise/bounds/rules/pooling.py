"""Rules of pooling layers.

Maximum: a pixel is the maximum of at most c windows, so norm and Jacobian grow by at
most sqrt(c), c the largest number of windows over one pixel; ceil(k/s) in each dimension
where nothing is cut off. Mean: a linear map, the Kronecker product of one small matrix
per dimension, whose norm is computed (divisors as torch takes them).

Proof: docs/proofs/layers.md#pooling.
"""
# ruff: noqa: D102 (the methods are documented once, on LayerRule)

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from noisewise.arithmetic import loose, product, root
from noisewise.bounds.layer import Call, LayerRule
from noisewise.bounds.registry import register
from noisewise.bounds.rules.windows import (
    Indices,
    adaptive_windows,
    each_axis,
    kronecker_norm,
    largest_count,
    sliding_windows,
    spatial,
)

__all__ = [
    "AdaptiveMaxPoolRule",
    "AdaptiveMeanPoolRule",
    "MaxPoolRule",
    "MeanPoolRule",
    "PowerPoolRule",
]

Matrix = npt.NDArray[np.float64]


def check_axes(call: Call[Any], dimensions: int) -> None:
    """Refuse records in which the batch axis would be taken for the channels."""
    if len(call.shape) != dimensions + 1:
        call.refuse(
            f"takes records with {dimensions + 1} axes (channels first) but would get "
            f"{call.shape}.",
            "Reshape the records, for example with Unflatten.",
        )


def axes(call: Call[Any]) -> list[tuple[int, int]]:
    """(input size, output size) of each spatial dimension."""
    return list(zip(call.shape[1:], call.output_shape[1:], strict=True))


def windows_of(call: Call[Any]) -> list[Indices]:
    """Windows of a sliding pool, per dimension, from the layer's settings."""
    module, dimensions = call.module, spatial(call.module)
    kernel = each_axis(module.kernel_size, dimensions)
    stride = each_axis(module.stride or module.kernel_size, dimensions)
    padding = each_axis(getattr(module, "padding", 0), dimensions)
    dilation = each_axis(getattr(module, "dilation", 1), dimensions)
    return [
        sliding_windows(size, outputs, kernel[i], stride[i], padding[i], dilation[i])
        for i, (size, outputs) in enumerate(axes(call))
    ]


class _Selection(LayerRule[Any]):
    """Every output is one of the inputs, no input more than c times."""

    windows: Callable[[Call[Any]], list[Indices]] = staticmethod(windows_of)

    def check(self, call: Call[Any]) -> None:
        check_axes(call, spatial(call.module))
        if getattr(call.module, "return_indices", False):
            call.refuse("returns indices too.", "Set return_indices=False.")
        if any((window < 0).all(axis=1).any() for window in self.windows(call)):
            call.refuse(
                "has a window that lies in the padding alone, whose maximum is -inf.",
                "Use less padding or less dilation.",
            )

    def lipschitz(self, call: Call[Any]) -> float:
        sizes = call.shape[1:]
        return root(largest_count(zip(self.windows(call), sizes, strict=True)))


@register(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
class MaxPoolRule(_Selection):
    """Maximum over windows."""


def _adaptive(call: Call[Any]) -> list[Indices]:
    return [adaptive_windows(size, outputs) for size, outputs in axes(call)]


@register(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d)
class AdaptiveMaxPoolRule(_Selection):
    """Maximum over adaptive windows, which overlap where the sizes do not divide."""

    windows = staticmethod(_adaptive)


def _mean_matrix(window: Indices, size: int, divisors: npt.NDArray[np.int64] | int) -> Matrix:
    """Matrix whose row o averages the inputs of window o."""
    matrix = np.zeros((len(window), size))
    outputs, taps = np.nonzero(window >= 0)
    np.add.at(matrix, (outputs, window[outputs, taps]), 1.0)
    return matrix / np.broadcast_to(np.asarray(divisors, dtype=np.float64), (len(window),))[:, None]


@register(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
class MeanPoolRule(LayerRule[Any]):
    """Mean over windows; the divisor of a cut-off window is what torch divides by."""

    def check(self, call: Call[Any]) -> None:
        check_axes(call, spatial(call.module))

    def lipschitz(self, call: Call[Any]) -> float:
        module, dimensions = call.module, spatial(call.module)
        kernel = each_axis(module.kernel_size, dimensions)
        stride = each_axis(module.stride or module.kernel_size, dimensions)
        padding = each_axis(module.padding, dimensions)
        override = getattr(module, "divisor_override", None)
        matrices = []
        for i, (window, (size, outputs)) in enumerate(
            zip(windows_of(call), axes(call), strict=True)
        ):
            starts = np.arange(outputs) * stride[i] - padding[i]
            # The end is cut at the padded size (ceil mode) before the divisor is taken.
            ends = np.minimum(starts + kernel[i], size + padding[i])
            divisors = ends - starts if module.count_include_pad else (window >= 0).sum(axis=1)
            matrices.append(_mean_matrix(window, size, 1 if override else divisors))
        norm = kronecker_norm(matrices)
        return norm if not override else product(norm, loose(1.0 / abs(override)))


@register(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
class AdaptiveMeanPoolRule(LayerRule[Any]):
    """Mean over adaptive windows; over everything: X / sqrt(HW)."""

    def check(self, call: Call[Any]) -> None:
        check_axes(call, spatial(call.module))

    def lipschitz(self, call: Call[Any]) -> float:
        windows = _adaptive(call)
        return kronecker_norm(
            _mean_matrix(window, size, (window >= 0).sum(axis=1))
            for window, (size, _) in zip(windows, axes(call), strict=True)
        )


@register(nn.LPPool1d, nn.LPPool2d, nn.LPPool3d)
class PowerPoolRule(LayerRule[Any]):
    """p-norm over windows, for p = 1 (a signed sum in torch) and even p.

    For p >= 2 a window's output is at most the 2-norm of the window, and so is its
    gradient at most one (dual norm q <= 2). torch computes the mean of the window that is
    left after cutting and multiplies by the full size, hence the weights (k/left)^(2/p).
    """

    def check(self, call: Call[Any]) -> None:
        check_axes(call, spatial(call.module))
        power = float(call.module.norm_type)
        if power != 1 and (power <= 0 or power % 2):
            call.refuse(
                f"with norm_type={call.module.norm_type} takes roots of negative numbers.",
                "Use norm_type 1 or an even number, or noisewise.nn.ScaledL2Pool2d.",
            )

    def lipschitz(self, call: Call[Any]) -> float:
        module, power = call.module, float(call.module.norm_type)
        kernel = each_axis(module.kernel_size, spatial(module))
        windows = windows_of(call)
        left = [(window >= 0).sum(axis=1) for window in windows]
        if power == 1:
            sums = (
                _mean_matrix(window, size, divisors) * k
                for window, divisors, k, (size, _) in zip(
                    windows, left, kernel, axes(call), strict=True
                )
            )
            return product(kronecker_norm(sums), loose(1.0))
        result = 1.0
        for window, divisors, k, (size, _) in zip(windows, left, kernel, axes(call), strict=True):
            weights = (k / divisors) ** (2.0 / power)
            column = (_mean_matrix(window, size, 1) * weights[:, None]).sum(axis=0).max()
            result = product(result, loose(float(column)))
        return root(result)
