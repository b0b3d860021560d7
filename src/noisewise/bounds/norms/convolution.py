"""Certified operator norms of convolutions, for any image size.

After dilation and stride are removed (`geometry`), a zero-padded convolution of any image
is a restriction of the convolution on the infinite grid, whose norm is the largest singular
value of the symbol ``F(w) = sum_t W_t exp(i w t)`` over all frequencies w. The proofs:

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
               the taps split between its rows and columns: ``||F|| <= sqrt(#taps) ||M||``, the
               least over all splits; ``flat`` takes the one split that is cheapest.
``dense``      For a very small known image, the matrix itself, whatever the padding.
``sums``       Schur's test: ``||F||^2`` is at most the largest row sum times the largest
               column sum of ``sum_t |W_t|``. Exact for box and other positive one-channel
               kernels.

Circular padding of at most d(k - 1) with stride one is a restriction of a circular
convolution, whose norm is a maximum over fewer frequencies. Other padding is a linear map
before a convolution without padding: its norm, the root of the largest number of copies of
one position, is multiplied in.

Proofs: docs/proofs/norms.md#convolution.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from noisewise import checks
from noisewise.bounds.norms.dense import dense_matrix, dense_size
from noisewise.bounds.norms.eigenvalue import gram, largest_eigenvalue, root
from noisewise.bounds.norms.geometry import Geometry, Ints, geometry, space_to_depth
from noisewise.bounds.norms.matrix import spectral_norm
from noisewise.bounds.norms.result import NormBound
from noisewise.bounds.norms.rounding import UNIT, check_weight, relative, scale, up
from noisewise.bounds.norms.threads import one_thread

__all__ = ["conv_norm", "kernel_factor", "riesz_grid"]

METHODS = ("auto", "grid", "reshape", "flat", "sums", "dense")
_SOLVER_TOLERANCE = 0.005
_DENSE = 320  # largest smaller side of a matrix that `auto` writes out
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
        ``auto``, ``grid``, ``reshape``, ``flat``, ``sums`` or ``dense``. ``auto`` writes the
        matrix out if the image is known and tiny, else takes the lesser of grid and sums.
    tolerance : float
        How far the grid may exceed the norm on the infinite plane; sets its fineness.

    Examples
    --------
    A box filter of nine ones sums nine equal pixels:

    >>> import torch
    >>> round(float(conv_norm(torch.ones(1, 1, 3, 3), padding=1)), 9)
    9.0
    """
    checks.choice("method", method, METHODS)
    tolerance = checks.positive("tolerance", tolerance)
    groups = checks.integer("groups", groups, minimum=1)
    check_weight(weight)
    if weight.dim() not in (3, 4, 5):
        raise ValueError(
            f"conv_norm takes a kernel with one to three spatial dimensions, got shape "
            f"{tuple(weight.shape)}; for a matrix use spectral_norm"
        )
    dims = geometry(
        weight.shape[2:], stride, padding, dilation, padding_mode, input_size, transposed
    )
    if weight.shape[0] % groups:
        raise ValueError(f"{weight.shape[0]} channels do not divide into groups={groups}")
    with one_thread(weight.shape):
        scaled = scale(weight)
        if scaled is None:
            return NormBound(0.0, "zero")
        if _write_out(method, weight, dims, groups, transposed):
            value = _dense(scaled.values, dims, groups, padding_mode, transposed)
            return NormBound(scaled.restore(value), "dense")
        value, used = min(
            _bound(scaled.values, plan, factor, groups, method, tolerance)
            for plan, factor in _plans(dims, padding_mode)
        )
    return NormBound(scaled.restore(value), used)


def _write_out(
    method: str, weight: Tensor, dims: list[Geometry], groups: int, transposed: bool
) -> bool:
    size = dense_size(weight.shape, dims, groups, transposed)
    if method == "dense" and size is None:
        raise ValueError("method='dense' needs input_size: the matrix depends on it")
    small = size is not None and min(size) <= _DENSE and max(size) <= 16 * _DENSE
    return method == "dense" or (method == "auto" and small)


def _dense(weight: Tensor, dims: list[Geometry], groups: int, mode: str, transposed: bool) -> float:
    matrix = dense_matrix(weight, dims, groups, mode, transposed)
    value = spectral_norm(matrix, tolerance=_SOLVER_TOLERANCE).value
    if mode == "zeros":
        return value
    # Entries are sums over copied pixels, of at most `taps` numbers below one.
    taps = math.prod(weight.shape[2:])
    return up(value + relative(taps) * taps * math.sqrt(matrix.numel()))


def kernel_factor(
    shape: Sequence[int],
    *,
    stride: Ints = 1,
    padding: Ints | str = 0,
    dilation: Ints = 1,
    transposed: bool = False,
    padding_mode: str = "zeros",
    input_size: Ints | None = None,
) -> float:
    """Return c such that a convolution has norm at most ``c ||kernel||_F``, whatever its kernel."""
    dims = geometry(shape[2:], stride, padding, dilation, padding_mode, input_size, transposed)
    return min(
        up(factor * math.sqrt(math.prod(dim.taps for dim in plan)))
        for plan, factor in _plans(dims, padding_mode)
    )


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
    if method in ("auto", "sums"):
        candidates.append((_sums(kernel), "sums"))
    if method in ("auto", "grid"):
        if taps == 1:
            candidates.append((_matrices(kernel.flatten(2)), "pointwise"))
        elif method == "grid" or _affordable(kernel, dims, tolerance):
            candidates.append(_grid(kernel, dims, tolerance))
        else:
            candidates.append((_reshape(kernel, False), "reshape"))
    if method in ("reshape", "flat"):
        candidates.append((_reshape(kernel, method == "flat"), method))
    elif method == "auto" and _flat_floor(kernel) < min(candidates)[0]:
        candidates.append((_reshape(kernel, True), "flat"))
    value, used = min(candidates)
    return up(value * factor), used


def _affordable(kernel: Tensor, dims: Sequence[Geometry], tolerance: float) -> bool:
    """Whether the grid needs neither minutes nor gigabytes."""
    groups, out, channels, *taps = kernel.shape
    points = math.prod(_grid_points(taps, dims, tolerance)[0]) / 2
    offsets = math.prod(2 * k - 1 for k in taps) / 2
    return groups * min(out, channels) ** 3 * points < 2e11 and points * offsets < 5e7


def _flat_floor(kernel: Tensor) -> float:
    """Return what the flat bound can reach at best: all singular values alike."""
    size = min(kernel.shape[1:3])
    square = float(kernel.flatten(1).square().sum(1).max())
    return math.sqrt(square / size * math.prod(kernel.shape[3:]))


def _matrices(matrices: Tensor) -> float:
    """Largest spectral norm of a batch."""
    P, error, _ = gram(matrices)
    return root(largest_eigenvalue(P, tolerance=2 * _SOLVER_TOLERANCE, error=error)[0])


def _sums(kernel: Tensor) -> float:
    totals = kernel.abs().flatten(3).sum(-1)
    rows = float(totals.sum(2).max())
    columns = float(totals.sum(1).max())
    slack = 1.0 + relative(kernel[0].numel())
    return root(up(rows * columns * slack * slack))


def _reshape(kernel: Tensor, cheapest: bool) -> float:
    """Least of ``sqrt(taps) ||M||`` over the ways to split the dimensions of the kernel."""
    taps = kernel.shape[3:]
    axes = range(3, kernel.dim())
    splits = list(itertools.product((True, False), repeat=len(taps)))
    if cheapest:  # the smaller number of channels alone on its side
        splits = [(kernel.shape[1] > kernel.shape[2],) * len(taps)]
    best = math.inf
    for rows in splits:
        first = [1, *(axis for axis, row in zip(axes, rows, strict=True) if row)]
        second = [2, *(axis for axis, row in zip(axes, rows, strict=True) if not row)]
        height = math.prod(kernel.shape[axis] for axis in first)
        matrices = kernel.permute(0, *first, *second).reshape(kernel.shape[0], height, -1)
        best = min(best, _matrices(matrices))
    return up(best * up(math.sqrt(math.prod(taps))))


def _grid(kernel: Tensor, dims: Sequence[Geometry], tolerance: float) -> tuple[float, str]:
    """Largest ``||F(w)||`` on the grid, corrected, from the symbol ``F* F`` of the Gram operator.

    ``F(w)* F(w) = sum_d C_d exp(i w d)`` with ``C_d = sum_t W_t' W_{t+d}``, and C_{-d} = C_d'. This
    takes fewer products than a Gram matrix at every frequency.
    """
    groups, out, channels, *taps = kernel.shape
    if out < channels:
        kernel = kernel.transpose(1, 2)
    size = kernel.shape[2]
    points, correction, used = _grid_points(taps, dims, tolerance)
    offsets = [d for d in itertools.product(*(range(1 - k, k) for k in taps)) if d > (0,) * len(d)]
    half = torch.stack([_autocorrelation(kernel, d) for d in offsets])
    centre = _autocorrelation(kernel, (0,) * len(taps))[None]
    even = torch.cat([centre, half + half.mT]).flatten(1)
    odd = (half - half.mT).flatten(1)
    cosines, sines = _phases(offsets, points, kernel.device)
    # sum_d |C_d| <= (sum_t |W_t|)'(sum_t |W_t|), whose norm is at most taps * ||W||_F^2; each C_d
    # errs by the roundings of an inner product and each term by those of its phase and the sum.
    mass = float(kernel.flatten(1).square().sum(-1).max()) * (1.0 + relative(kernel[0].numel()))
    roundings = relative(max(out, channels) * math.prod(taps)) + relative(len(offsets))
    error = up((2.0 * roundings + 256.0 * len(taps) * UNIT) * math.prod(taps) * mass)
    worst = 0.0
    chunk = max(1, _CHUNK // (groups * size * size))
    for start in range(0, cosines.shape[0], chunk):
        part = slice(start, start + chunk)
        P = torch.complex(cosines[part] @ even, sines[part] @ odd).reshape(-1, size, size)
        worst = max(worst, largest_eigenvalue(P, tolerance=2 * _SOLVER_TOLERANCE, error=error)[0])
    return up(root(worst) * correction), used


def _autocorrelation(kernel: Tensor, offset: tuple[int, ...]) -> Tensor:
    """``sum_t W_t' W_{t + offset}`` of ``(groups, rows, columns, *taps)``, for each group."""
    early: list[slice] = []
    late: list[slice] = []
    for d, k in zip(offset, kernel.shape[3:], strict=True):
        early.append(slice(max(0, -d), k - max(0, d)))
        late.append(slice(max(0, d), k - max(0, -d)))
    everything = [slice(None)] * 3
    first = kernel[tuple(everything + early)].transpose(1, 2).flatten(2)
    second = kernel[tuple(everything + late)].transpose(1, 2).flatten(2)
    return first @ second.mT


def _grid_points(
    taps: Sequence[int], dims: Sequence[Geometry], tolerance: float
) -> tuple[list[int], float, str]:
    """Grid sizes, the product of the Riesz corrections, and the name of the method."""
    sizes, _ = riesz_grid(taps, tolerance)
    points, correction, embedded = [], 1.0, True
    for k, size, dim in zip(taps, sizes, dims, strict=True):
        if k > 1 and (dim.embedding is None or dim.embedding > size):
            embedded = False
            points.append(size)
            correction = up(correction * _riesz(k, size))
        else:
            points.append(1 if k == 1 or dim.embedding is None else dim.embedding)
    return points, correction, "embedding" if embedded else "grid"


def riesz_grid(taps: Sequence[int], tolerance: float = 0.09) -> tuple[list[int], float]:
    """Return the coarsest even-handed grid for a tolerance, and its correction factor."""
    long = sum(k > 1 for k in taps)
    if long == 0:
        return [1] * len(taps), 1.0
    share = max((1.0 + tolerance) / (1.0 + _SOLVER_TOLERANCE), 1.0 + 1e-4)
    angle = math.acos(share ** (-1.0 / long))
    sizes = [1 if k == 1 else math.ceil(math.pi * (k - 1) / (2.0 * angle)) for k in taps]
    return sizes, up(math.prod(_riesz(k, size) for k, size in zip(taps, sizes, strict=True)))


def _riesz(taps: int, points: int) -> float:
    return up(1.0 / math.cos(math.pi * (taps - 1) / (2.0 * points)))


def _phases(
    offsets: Sequence[tuple[int, ...]], points: Sequence[int], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of w d, a row a frequency, for half of the grid.

    The cosines begin with the offset zero.

    A real kernel has conjugate symbols at w and -w, so one of each pair is enough. Turns are
    reduced modulo one as integers, so that a phase errs by a few roundings only.
    """
    grid = torch.cartesian_prod(*(torch.arange(size) for size in points)).reshape(-1, len(points))
    sizes = torch.tensor(points)
    place = torch.tensor([math.prod(points[i + 1 :]) for i in range(len(points))])
    mirror = ((-grid) % sizes * place).sum(1)
    grid = grid[(grid * place).sum(1) <= mirror]
    common = math.lcm(*points)
    turns = grid @ (torch.tensor(offsets) * (common // sizes)).T % common
    angles = (turns.to(torch.float64) * (2.0 * math.pi / common)).to(device)
    cosines = torch.cat([torch.ones_like(angles[:, :1]), angles.cos()], dim=1)
    return cosines, angles.sin()
