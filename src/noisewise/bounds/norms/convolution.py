"""Certified operator norms of convolutions, for any image size.

After dilation and stride are removed (`geometry`), a zero-padded convolution of any image
is a restriction of the convolution on the infinite grid, whose norm is the largest singular
value of the symbol ``F(w) = sum_t W_t exp(i w t)`` over all frequencies w. Three proofs:

``grid``       For unit vectors x, y the function ``Re(x* F(w) y)``, re-centred, is a real
               trigonometric polynomial of degree (K - 1)/2 in each variable. By the lemma
               of M. Riesz such a p of maximum |p| at w0 obeys
               ``p(w) >= |p| cos((K - 1)/2 (w - w0))``, and some point of a grid of M points
               lies within pi/M of w0. Hence
               ``sup ||F|| <= max_grid ||F|| / prod_i cos(pi (K_i - 1) / (2 M_i))``.
``embedding``  For a known small image the circular convolution of period N = n + K - 1
               contains the zero-padded one (period n does not): the grid of N points
               needs no correction. Chosen dimension by dimension.
``reshape``    ``F`` is ``(e(w1)* x I) M (e(w2) x I)`` with M the kernel reshaped to a matrix,
               the taps split between its rows and columns: ``||F|| <= sqrt(#taps) ||M||``.
``sums``       Schur's test: ``||F||^2`` is at most the largest row sum times the largest
               column sum of ``sum_t |W_t|``. Exact for box and other positive one-channel
               kernels.

Circular padding of at most d(k - 1) with stride one is a restriction of a circular
convolution, whose norm is a maximum over fewer frequencies. Other padding is a linear map
before a convolution without padding: its norm, the root of the largest number of copies of
one position, is multiplied in.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from noisewise.bounds.norms.eigenvalue import gram, largest_eigenvalue, root
from noisewise.bounds.norms.geometry import Geometry, Ints, geometry, space_to_depth
from noisewise.bounds.norms.matrix import spectral_norm
from noisewise.bounds.norms.result import NormBound
from noisewise.bounds.norms.rounding import UNIT, relative, scale, up
from noisewise.privacy import _validate

__all__ = ["conv_norm"]

METHODS = ("auto", "grid", "reshape", "sums")
_SOLVER_TOLERANCE = 0.005
_CHUNK = 1 << 23  # complex numbers held at once: 128 MiB


def conv_norm(
    weight: Tensor,
    *,
    stride: Ints = 1,
    padding: Ints | str = 0,
    dilation: Ints = 1,
    groups: int = 1,
    transposed: bool = False,
    padding_mode: str = "zeros",
    input_size: Ints | None = None,
    method: str = "auto",
    tolerance: float = 0.09,
) -> NormBound:
    """Return a proven upper bound on the l2 operator norm of a convolution.

    Parameters
    ----------
    weight : Tensor
        Kernel as torch stores it, ``(out, in/groups, *k)`` or, transposed,
        ``(in, out/groups, *k)``, with one to three spatial dimensions.
    stride, padding, dilation, groups, transposed, padding_mode
        As of the torch layer.
    input_size : int or sequence of int, optional
        Size of the layer's input image. Without it the bound holds for every size.
    method : str
        ``auto``, ``grid``, ``reshape`` or ``sums``; ``auto`` returns the least of them all.
    tolerance : float
        How far the grid may exceed the norm on the infinite plane; sets its fineness.

    Examples
    --------
    A box filter of nine ones sums nine equal pixels:

    >>> import torch
    >>> round(float(conv_norm(torch.ones(1, 1, 3, 3), padding=1)), 9)
    9.0
    """
    _validate.choice("method", method, METHODS)
    tolerance = _validate.positive("tolerance", tolerance)
    groups = _validate.integer("groups", groups, minimum=1)
    if isinstance(weight, Tensor) and weight.dim() not in (3, 4, 5):
        raise ValueError(
            f"conv_norm takes a kernel with one to three spatial dimensions, got shape "
            f"{tuple(weight.shape)}; for a matrix use spectral_norm"
        )
    dims = geometry(
        weight.shape[2:], stride, padding, dilation, padding_mode, input_size, transposed
    )
    if weight.shape[0] % groups:
        raise ValueError(f"{weight.shape[0]} channels do not divide into groups={groups}")
    scaled = scale(weight)
    if scaled is None:
        return NormBound(0.0, "zero")
    value, used = min(
        _bound(scaled.values, plan, factor, groups, method, tolerance)
        for plan, factor in _plans(dims, padding_mode)
    )
    return NormBound(scaled.restore(value), used)


def _plans(dims: list[Geometry], mode: str) -> list[tuple[list[Geometry], float]]:
    """Convolutions with zero padding, and factors, whose product bounds the given one."""
    if mode == "zeros":
        return [(dims, 1.0)]
    # The padded image is an input of unknown placement to a convolution without padding.
    outside = [_replace(dim, size=None, outputs=dim.outputs) for dim in dims]
    copies = math.prod(dim.multiplicity(mode) for dim in dims)
    plans = [(outside, up(math.sqrt(copies)))]
    if mode == "circular" and all(dim.windows_distinct for dim in dims):
        whole = all(
            dim.stride == 1 or (dim.size is not None and dim.size % dim.stride == 0) for dim in dims
        )
        steps = [_replace(d, size=None, outputs=None) for d in dims]
        if not whole:  # a subset of the outputs of stride one
            steps = [_replace(d, size=None, outputs=None, stride=1) for d in dims]
        plans.append((steps, 1.0))
    return plans


def _replace(
    dim: Geometry, *, size: int | None, outputs: int | None, stride: int | None = None
) -> Geometry:
    return Geometry(
        dim.kernel, stride or dim.stride, dim.dilation, dim.before, dim.after, size, outputs
    )


def _bound(
    weight: Tensor,
    dims: list[Geometry],
    factor: float,
    groups: int,
    method: str,
    tolerance: float,
) -> tuple[float, str]:
    kernel = space_to_depth(weight, [dim.step for dim in dims])
    kernel = kernel.reshape(groups, kernel.shape[0] // groups, *kernel.shape[1:])
    taps = math.prod(kernel.shape[3:])
    candidates: list[tuple[float, str]] = []
    if taps == 1 and method in ("auto", "grid"):
        candidates.append((_pointwise(kernel), "pointwise"))
    elif method in ("auto", "grid"):
        candidates.append(_grid(kernel, dims, tolerance))
    if method in ("auto", "sums"):
        candidates.append((_sums(kernel), "sums"))
    if method == "reshape":
        candidates.append((_reshape(kernel), "reshape"))
    value, used = min(candidates)
    return up(value * factor), used


def _pointwise(kernel: Tensor) -> float:
    matrices = kernel.flatten(2)
    P, error, _ = gram(matrices)
    eigenvalue, _ = largest_eigenvalue(P, tolerance=_SOLVER_TOLERANCE)
    return root(eigenvalue + error)


def _sums(kernel: Tensor) -> float:
    totals = kernel.abs().flatten(3).sum(-1)
    rows = float(totals.sum(2).max())
    columns = float(totals.sum(1).max())
    slack = 1.0 + relative(kernel[0].numel())
    return root(up(rows * columns * slack * slack))


def _reshape(kernel: Tensor) -> float:
    """Least of ``sqrt(taps) ||M||`` over the ways to split the dimensions of the kernel."""
    groups, _, _, *taps = kernel.shape
    axes = range(2, 2 + len(taps))
    best = math.inf
    for rows in itertools.product((True, False), repeat=len(taps)):
        first = [0, *(axis for axis, row in zip(axes, rows, strict=True) if row)]
        second = [1, *(axis for axis, row in zip(axes, rows, strict=True) if not row)]
        worst = 0.0
        for index in range(groups):
            part = kernel[index]
            matrix = part.permute(*first, *second).reshape(
                math.prod(part.shape[axis] for axis in first), -1
            )
            worst = max(worst, spectral_norm(matrix, tolerance=_SOLVER_TOLERANCE).value)
        best = min(best, worst)
    return up(best * up(math.sqrt(math.prod(taps))))


def _grid(kernel: Tensor, dims: Sequence[Geometry], tolerance: float) -> tuple[float, str]:
    groups, out, channels, *taps = kernel.shape
    points, correction, used = _grid_points(taps, dims, tolerance)
    cosines, sines = _phases(taps, points, kernel.device)
    flat = kernel.reshape(groups * out * channels, -1)
    # Each entry of F errs by (sum_t |w_t|) times the roundings of a short sum and of the phases.
    taps_count = flat.shape[1]
    mass = float(kernel.flatten(1).square().sum(-1).max()) * (1.0 + relative(kernel[0].numel()))
    phase_error = relative(taps_count) + 64.0 * len(taps) * UNIT
    error_symbol = up(phase_error * math.sqrt(2.0 * taps_count * mass))
    worst = 0.0
    chunk = max(1, _CHUNK // (groups * out * channels))
    for start in range(0, cosines.shape[1], chunk):
        real = flat @ cosines[:, start : start + chunk]
        imaginary = flat @ sines[:, start : start + chunk]
        symbol = torch.complex(real, imaginary).reshape(groups, out, channels, -1)
        symbol = symbol.permute(0, 3, 1, 2).reshape(-1, out, channels)
        P, error, _ = gram(symbol)
        eigenvalue, _ = largest_eigenvalue(P, tolerance=_SOLVER_TOLERANCE)
        worst = max(worst, root(eigenvalue + error))
    return up(up(worst + error_symbol) * correction), used


def _grid_points(
    taps: Sequence[int], dims: Sequence[Geometry], tolerance: float
) -> tuple[list[int], float, str]:
    """Grid sizes, the product of the Riesz corrections, and the name of the method."""
    share = (1.0 + tolerance) / (1.0 + _SOLVER_TOLERANCE)
    angle = math.acos(max(share, 1.0 + 1e-6) ** (-1.0 / sum(k > 1 for k in taps)))
    points, correction, embedded = [], 1.0, True
    for k, dim in zip(taps, dims, strict=True):
        if k == 1:
            points.append(1)
            continue
        size = math.ceil(math.pi * (k - 1) / (2.0 * angle))
        if dim.embedding is not None and dim.embedding <= size:
            points.append(dim.embedding)
            continue
        embedded = False
        points.append(size)
        correction = up(correction / math.cos(math.pi * (k - 1) / (2.0 * size)))
    return points, correction, "embedding" if embedded else "grid"


def _phases(
    taps: Sequence[int], points: Sequence[int], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of w t, ``(prod(taps), frequencies)``, for half of the grid.

    A real kernel has conjugate symbols at w and -w, so one of each pair is enough. Angles are
    reduced as integers first, so a phase errs by a few roundings only.
    """
    table = torch.ones(1, 1, dtype=torch.complex128)
    indices = torch.zeros(1, 0, dtype=torch.int64)
    for k, size in zip(taps, points, strict=True):
        turns = torch.outer(torch.arange(k), torch.arange(size)) % size
        angles = turns.to(torch.float64) * (2.0 * math.pi / size)
        phase = torch.complex(angles.cos(), angles.sin())
        table = torch.einsum("ta,kb->tkab", table, phase).reshape(
            table.shape[0] * k, table.shape[1] * size
        )
        old = indices.repeat_interleave(size, dim=0)
        new = torch.arange(size).repeat(indices.shape[0])[:, None]
        indices = torch.cat([old, new], dim=1)
    sizes = torch.tensor(points)
    place = torch.tensor([math.prod(points[i + 1 :]) for i in range(len(points))])
    own = (indices * place).sum(1)
    mirror = (((-indices) % sizes) * place).sum(1)
    table = table[:, own <= mirror].to(device)
    return table.real.contiguous(), table.imag.contiguous()
