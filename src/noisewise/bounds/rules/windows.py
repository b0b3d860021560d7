"""Which input position is read by which window, one dimension at a time.

Convolutions and poolings act on boxes, so how often a pixel is read is a product
over dimensions, and a mean over boxes is a Kronecker product of small matrices.
Counting what really happens (padding, ceil mode, dilation included) replaces
formulas such as ceil(k/s), which hold only where nothing is cut off.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from noisewise.arithmetic import product, root
from noisewise.bounds.norms import spectral_norm

__all__ = [
    "adaptive_windows",
    "copies_of_entries",
    "each_axis",
    "kronecker_norm",
    "largest_count",
    "padding_sources",
    "sliding_windows",
]

Indices = npt.NDArray[np.int64]
OUTSIDE = -1


def each_axis(value: int | Sequence[int] | None, dimensions: int) -> tuple[int, ...]:
    """Spread a setting that may be one number or one per dimension."""
    if value is None:
        raise ValueError("a setting is missing")
    return (value,) * dimensions if isinstance(value, int) else tuple(value)


def sliding_windows(
    size: int, outputs: int, kernel: int, stride: int, padding: int, dilation: int = 1
) -> Indices:
    """Index that tap t of window o reads, or -1 outside the input: array (outputs, kernel)."""
    index = np.arange(outputs)[:, None] * stride + np.arange(kernel)[None, :] * dilation - padding
    return np.where((index >= 0) & (index < size), index, OUTSIDE)


def adaptive_windows(size: int, outputs: int) -> Indices:
    """Windows of adaptive pooling: from floor(o n/m) to ceil((o + 1) n/m)."""
    starts = [o * size // outputs for o in range(outputs)]
    ends = [-((-(o + 1) * size) // outputs) for o in range(outputs)]
    width = max(end - start for start, end in zip(starts, ends, strict=True))
    rows = [
        list(range(start, end)) + [OUTSIDE] * (width - end + start)
        for start, end in zip(starts, ends, strict=True)
    ]
    return np.array(rows, dtype=np.int64)


def counts(sources: Indices, size: int) -> Indices:
    """How often each input position is read."""
    inside = sources[sources >= 0]
    return np.bincount(inside.ravel(), minlength=size).astype(np.int64)


def largest_count(axes: Iterable[tuple[Indices, int]]) -> int:
    """How often the most read pixel is read; `axes` are (sources, input size) per dimension."""
    return math.prod(int(counts(sources, size).max(initial=0)) for sources, size in axes)


def padding_sources(size: int, before: int, after: int, mode: str) -> Indices:
    """Which input position each padded position copies (-1: a constant), by torch itself."""
    line = torch.arange(size, dtype=torch.float64).reshape(1, 1, size)
    if mode in ("zeros", "constant"):
        padded = functional.pad(line, (before, after), value=OUTSIDE)
    else:
        padded = functional.pad(line, (before, after), mode=mode)
    return padded.flatten().round().long().numpy()


def copies_of_entries(sources: Indices, size: int) -> int:
    """How many copies the most copied position has."""
    return int(counts(sources, size).max(initial=0))


def kronecker_norm(matrices: Iterable[npt.NDArray[np.float64]]) -> float:
    """Norm of the Kronecker product of non-negative matrices.

    Schur's test, sqrt(largest row sum * largest column sum), and the certified
    spectral norm both bound each factor; the smaller is taken.
    """
    result = 1.0
    for matrix in matrices:
        absolute = np.abs(matrix)
        rows, columns = float(absolute.sum(1).max()), float(absolute.sum(0).max())
        # A sum of n floats is within n units in the last place of the exact one.
        slack = 1.0 + 4e-16 * max(matrix.shape)
        schur = product(root(product(rows, columns)), slack)
        result = product(result, min(schur, spectral_norm(torch.from_numpy(matrix)).value))
    return result


def spatial(module: nn.Module) -> int:
    """Return the number of spatial dimensions, by the layer's name (Conv2d, AvgPool3d, ...)."""
    endings = (re.search(r"([123])d$", kind.__name__) for kind in type(module).__mro__)
    return next(int(ending[1]) for ending in endings if ending)
