"""The matrix of a convolution on a small image, for a norm that is exact up to rounding.

The operator is applied to every basis vector. On the CPU in binary64 torch multiplies a kernel
with zeros and a single one and adds, which is exact, so the matrix holds kernel entries and
their sums (reflected and replicated pixels are read more than once) and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from noisewise.bounds.norms.geometry import Geometry

__all__ = ["dense_matrix", "dense_size"]

_CONV = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_TRANSPOSED = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}


def dense_size(
    shape: Sequence[int], dims: Sequence[Geometry], groups: int, transposed: bool
) -> tuple[int, int] | None:
    """Rows and columns of the matrix, up to output padding; None for an unknown image size."""
    images = [dim.outputs if transposed else dim.size for dim in dims]
    if any(size is None for size in images):
        return None
    columns = math.prod(size for size in images if size is not None)
    if transposed:
        rows = math.prod(
            (dim.outputs or 1) * dim.stride + dim.dilation * dim.kernel for dim in dims
        )
        return shape[1] * groups * rows, shape[0] * columns
    rows = math.prod(dim.outputs or 1 for dim in dims)
    return shape[0] * rows, shape[1] * groups * columns


def dense_matrix(
    weight: Tensor, dims: Sequence[Geometry], groups: int, mode: str, transposed: bool
) -> Tensor:
    """Return the matrix, transposed, of a convolution whose image size is known.

    A transposed convolution is built without cropping, which leaves rows in that padding
    would take away: the norm can only grow, and covers every output padding.
    """
    weight = weight.cpu()
    count = len(dims)
    strides = [dim.stride for dim in dims]
    dilations = [dim.dilation for dim in dims]
    images = [(dim.outputs if transposed else dim.size) or 1 for dim in dims]
    channels = weight.shape[0] if transposed else weight.shape[1] * groups
    basis = torch.eye(channels * math.prod(images), dtype=torch.float64)
    basis = basis.reshape(-1, channels, *images)
    if transposed:
        operator = _TRANSPOSED[count]
        result: Tensor = operator(basis, weight, None, strides, 0, 0, groups, dilations)
        return result.flatten(1)
    pads = [side for dim in reversed(dims) for side in (dim.before, dim.after)]
    basis = functional.pad(basis, pads, mode="constant" if mode == "zeros" else mode)
    result = _CONV[count](basis, weight, None, strides, 0, dilations, groups)
    return result.flatten(1)
