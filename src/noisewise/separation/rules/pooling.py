"""Pooling, interpolation and padding: each plane of pixels by itself."""

from __future__ import annotations

import torch
from torch import Tensor

from noisewise.separation.call import Call, Planes, all_but
from noisewise.separation.registry import rule
from noisewise.separation.shadow import PLANE

__all__ = ["leading_axes"]


def leading_axes(call: Call, kept: int) -> list[Planes]:
    """Every index of the first `kept` axes by itself, all else together."""
    sizes = call.results[0].shape[:kept]
    total = torch.zeros(2, *sizes, dtype=PLANE)
    for tensor in call.tensors:
        planes = call.found(tensor)
        if planes is None:
            continue
        if tensor.dim() < kept or tensor.shape[:kept] != sizes:
            planes = planes.reshape(2, -1).amax(1).reshape(2, *(1,) * kept)
        else:
            planes = all_but(planes, *range(kept)).reshape(2, *sizes)
        total = torch.maximum(total, planes)
    return [_laid(total, result, kept) for result in call.results]


def _laid(total: Tensor, result: Tensor, kept: int) -> Tensor:
    if result.shape[:kept] != total.shape[1:]:
        return total.reshape(2, -1).amax(1).reshape(2, *(1,) * result.dim())
    return total.reshape(2, *result.shape[:kept], *(1,) * (result.dim() - kept))


@rule(
    "avg_pool1d max_pool1d_with_indices _adaptive_avg_pool1d adaptive_max_pool1d",
    "upsample_linear1d upsample_linear1d_backward upsample_nearest1d upsample_nearest1d_backward",
    "reflection_pad1d reflection_pad1d_backward replication_pad1d replication_pad1d_backward",
)
def lines(call: Call) -> list[Planes]:
    """The last axis together."""
    return leading_axes(call, call.results[0].dim() - 1)


@rule(
    "max_pool2d_with_indices avg_pool2d max_pool2d_with_indices_backward avg_pool2d_backward",
    "_adaptive_avg_pool2d adaptive_max_pool2d _adaptive_avg_pool2d_backward",
    "adaptive_max_pool2d_backward upsample_bilinear2d upsample_nearest2d upsample_bicubic2d",
    "upsample_bilinear2d_backward upsample_nearest2d_backward upsample_bicubic2d_backward",
    "_upsample_nearest_exact2d _upsample_nearest_exact2d_backward _upsample_bilinear2d_aa",
    "_upsample_bilinear2d_aa_backward _upsample_bicubic2d_aa _upsample_bicubic2d_aa_backward",
    "reflection_pad2d reflection_pad2d_backward replication_pad2d replication_pad2d_backward",
    "fractional_max_pool2d fractional_max_pool2d_backward max_unpool2d",
)
def images(call: Call) -> list[Planes]:
    """The last two axes together."""
    return leading_axes(call, call.results[0].dim() - 2)


@rule(
    "max_pool3d_with_indices avg_pool3d max_pool3d_with_indices_backward avg_pool3d_backward",
    "_adaptive_avg_pool3d adaptive_max_pool3d _adaptive_avg_pool3d_backward",
    "adaptive_max_pool3d_backward upsample_trilinear3d upsample_nearest3d",
    "upsample_trilinear3d_backward upsample_nearest3d_backward reflection_pad3d",
    "reflection_pad3d_backward replication_pad3d replication_pad3d_backward",
)
def volumes(call: Call) -> list[Planes]:
    """The last three axes together."""
    return leading_axes(call, call.results[0].dim() - 3)


@rule(
    "im2col col2im grid_sampler_2d grid_sampler_3d grid_sampler_2d_backward affine_grid_generator"
)
def first_axis(call: Call) -> list[Planes]:
    """Each index of the first axis by itself; without a batch axis, all together."""
    batched = {"im2col": 4, "col2im": 3}.get(call.name)
    if batched is not None and call.tensors[0].dim() != batched:
        return leading_axes(call, 0)
    return leading_axes(call, 1)
