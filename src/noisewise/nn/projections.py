"""Projections of weights onto sets of bounded norm, applied after an optimiser step.

Four ways to meet ``norm <= limit`` (Barczewski and Ramon 2024, Algorithm 2; Béthune et al. 2024):

``clip``             radial: divide by norm/limit where that exceeds one (ClipWeights). It is
                     *not* the nearest point for the spectral norm: descent on
                     ``||W - diag(2, 1/2)||`` then ends at diag(1, 1/4), not diag(1, 1/2).
``fix``              radial, also upwards: norm = limit (Fix-Lip-DP-SGD).
``singular-values``  every singular value cut at the limit: the nearest point in Frobenius norm,
                     so that projected descent converges to a constrained optimum.
``bjorck``           all singular values to the limit (Bjorck's iteration): gradients keep
                     their norm.

All work in place on stored weights, see only noisy (public) weights, and are therefore free
post-processing. None is believed: whatever a method computed, the *stored* weight, rounded to
its own precision, is certified, and shrunk until the certificate is at most the limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from noisewise import checks
from noisewise.bounds.norms import NormBound, induced_norm, spectral_norm

__all__ = [
    "PROJECTIONS",
    "LayerProjection",
    "Projectable",
    "ProjectionReport",
    "bjorck_",
    "clip_absolute_sums",
    "clip_singular_values",
    "clip_weights",
    "fix_weights",
    "project",
]

PROJECTIONS = ("clip", "fix", "singular-values", "bjorck")
BOUNDARY = 1e-3
Norm = Callable[[Tensor], NormBound]
Rescale = Callable[[Tensor, float], None]


def _multiply(weight: Tensor, factor: float) -> None:
    with torch.no_grad():
        weight.mul_(factor)


def clip_weights(
    weight: Tensor, limit: float, norm: Norm = spectral_norm, *, rescale: Rescale = _multiply
) -> NormBound:
    """Scale a weight down, in place, until its certified norm is at most `limit`.

    The loop ends: each turn shrinks four times more than the last, and a weight of zeros,
    reached after finitely many, has norm zero.

    Parameters
    ----------
    weight : Tensor
        Changed in place. NaN or infinite entries raise a ValueError and change nothing.
    limit : float
        Largest norm allowed.
    norm : callable
        Certified norm of the weight: `spectral_norm`, or `conv_norm` or `induced_norm` with
        their options filled in.
    rescale : callable
        How to multiply a weight in place; a `NormCache` offers one that keeps certificates.

    Examples
    --------
    >>> weight = torch.diag(torch.tensor([2.0, 0.5]))
    >>> bound = clip_weights(weight, 1.0)
    >>> float(bound) <= 1.0, round(float(weight[1, 1]), 5)
    (True, 0.25)
    """
    limit = checks.positive("limit", limit)
    bound = norm(weight)
    margin = float(torch.finfo(weight.dtype).eps)
    if margin < 1e-4:  # a few roundings of room, so that a fresh certificate agrees
        margin *= 32.0
    while bound.value > limit:
        # In two factors, since one could leave the range of binary64 or of the weight.
        ratio = limit / bound.value * max(0.0, 1.0 - margin)
        rescale(weight, math.sqrt(ratio) if ratio < 1e-30 else ratio)
        if ratio < 1e-30:
            rescale(weight, math.sqrt(ratio))
        bound = norm(weight)
        margin *= 4.0
    return bound


def fix_weights(
    weight: Tensor, limit: float, norm: Norm = spectral_norm, *, rescale: Rescale = _multiply
) -> NormBound:
    """Scale a weight, in place, up or down to a certified norm of `limit`.

    The certificate ends at most at the limit and, up to the precision of the weight, on it. A
    weight of zeros has no direction and stays zero.
    """
    limit = checks.positive("limit", limit)
    bound = norm(weight)
    if 0.0 < bound.value < limit:
        ratio = limit / bound.value
        while ratio > 1e30:  # stay within the range of the weight's type
            rescale(weight, 1e30)
            ratio /= 1e30
        rescale(weight, ratio)
    return clip_weights(weight, limit, norm, rescale=rescale)


def clip_singular_values(
    weight: Tensor, limit: float, norm: Norm = spectral_norm, *, rescale: Rescale = _multiply
) -> NormBound:
    """Cut the singular values of a matrix at `limit`, in place: the nearest such matrix.

    Nearest in the Frobenius norm, up to the tightness of `norm`: rounding for up to 128 rows or
    columns, beyond that about a thousandth.

    Examples
    --------
    >>> weight = torch.diag(torch.tensor([2.0, 0.5]))
    >>> bound = clip_singular_values(weight, 1.0)
    >>> float(bound) <= 1.0, round(float(weight[1, 1]), 5)
    (True, 0.5)
    """
    limit = checks.positive("limit", limit)
    bound = norm(weight)
    if bound.value <= limit:
        return bound
    wide = _wide(weight, bound.value)
    with torch.no_grad():
        weight.copy_(cut(wide, limit / bound.value) * bound.value)
    return clip_weights(weight, limit, norm, rescale=rescale)


def bjorck_(
    weight: Tensor,
    limit: float = 1.0,
    norm: Norm = spectral_norm,
    *,
    iterations: int = 20,
    rescale: Rescale = _multiply,
) -> NormBound:
    """Turn a matrix, in place, into `limit` times one with orthonormal rows or columns.

    ``W <- 3/2 W - 1/2 W W' W`` moves every singular value in (0, sqrt(3)) towards one; beyond
    sqrt(3) it diverges, hence the first division by a certified norm. Singular values that are
    tiny beside the largest are not there after `iterations` steps, zeros never are; the
    result is certified whatever happened.
    """
    limit = checks.positive("limit", limit)
    iterations = checks.integer("iterations", iterations, minimum=0)
    bound = norm(weight)
    if bound.value > 0.0:
        W = orthogonalise(_wide(weight, bound.value), iterations)
        with torch.no_grad():
            weight.copy_(W * limit)
    return fix_weights(weight, limit, norm, rescale=rescale)


def clip_absolute_sums(weight: Tensor, limit: float, p: float = math.inf) -> NormBound:
    """Project a matrix, in place, onto induced l_p norm <= `limit`, p = 1 or infinity.

    The infinity norm is the largest absolute row sum, so the nearest matrix has each row
    projected onto the l1 ball; for p = 1 each column (Duchi et al., 2008).
    """
    limit = checks.positive("limit", limit)
    if p not in (1, math.inf):
        raise ValueError(f"p must be 1 or infinity, got {p!r}; for 2 use clip_singular_values")
    bound = induced_norm(weight, p)
    if bound.value > limit:
        wide = _wide(weight, bound.value)
        rows = wide if p == math.inf else wide.T
        rows = _onto_l1_ball(rows, limit / bound.value) * bound.value
        with torch.no_grad():
            weight.copy_(rows if p == math.inf else rows.T)
    return clip_weights(weight, limit, lambda tensor: induced_norm(tensor, p))


def _wide(weight: Tensor, norm: float) -> Tensor:
    """Return the weight divided by its norm, in binary64."""
    values = weight.detach()
    if values.device.type == "mps":
        values = values.cpu()
    return values.to(torch.float64) / norm


def cut(matrices: Tensor, limit: float) -> Tensor:
    """Cut the singular values of a batch of matrices; those within the limit stay exact.

    ``W + W V (f - 1) V*`` with V the eigenvectors of the Gram matrix on the smaller side.
    """
    tall = matrices.shape[-2] >= matrices.shape[-1]
    W = matrices if tall else matrices.mH
    values, vectors = torch.linalg.eigh(W.mH @ W)
    singular = values.clamp_min(0.0).sqrt()
    change = (limit / singular.clamp_min(limit) - 1.0).to(W.dtype)
    W = W + (W @ vectors * change[..., None, :]) @ vectors.mH
    result: Tensor = W if tall else W.mH
    return result


def orthogonalise(W: Tensor, iterations: int) -> Tensor:
    """Bjorck's iteration on a matrix of norm at most one."""
    tall = W.shape[0] >= W.shape[1]
    W = W if tall else W.T
    for _ in range(iterations):
        W = 1.5 * W - 0.5 * W @ (W.T @ W)
    return W if tall else W.T


def _onto_l1_ball(rows: Tensor, radius: float) -> Tensor:
    sizes = rows.abs()
    outside = sizes.sum(1, keepdim=True) > radius
    # Measured from the largest entry, so that a radius far below it is not lost to rounding.
    below = sizes - sizes.amax(dim=1, keepdim=True)
    ordered = below.sort(dim=1, descending=True).values
    counts = torch.arange(1, rows.shape[1] + 1, dtype=rows.dtype, device=rows.device)
    thresholds = (ordered.cumsum(1) - radius) / counts
    # The last k for which the k-th largest entry survives its own threshold.
    last = (ordered > thresholds).sum(1, keepdim=True).clamp_min(1) - 1
    kept = (below - thresholds.gather(1, last)).clamp_min(0.0)
    return torch.where(outside, rows.sign() * kept, rows)


@runtime_checkable
class Projectable(Protocol):
    """A layer whose weight is kept within a limit."""

    limit: float

    def project_(self) -> NormBound:
        """Bring the weight back into its set; afterwards every bound of the layer holds."""
        ...


@dataclass(frozen=True)
class LayerProjection:
    """Where one layer ended: its certified norm and the limit it was held to."""

    name: str
    norm: float
    limit: float

    @property
    def ratio(self) -> float:
        """Norm as a fraction of the limit, at most one."""
        return self.norm / self.limit

    @property
    def at_boundary(self) -> bool:
        """Whether the limit binds, so that a larger one may serve the model."""
        return self.ratio >= 1.0 - BOUNDARY


@dataclass(frozen=True)
class ProjectionReport:
    """What `project` did, layer by layer."""

    layers: tuple[LayerProjection, ...]

    @property
    def boundary(self) -> tuple[str, ...]:
        """Names of the layers whose limit binds."""
        return tuple(layer.name for layer in self.layers if layer.at_boundary)

    def __iter__(self) -> Iterator[LayerProjection]:
        return iter(self.layers)

    def __str__(self) -> str:
        width = max([5, *(len(layer.name) for layer in self.layers)])
        lines = [f"{'layer':{width}}  {'norm':>10}  {'limit':>10}"]
        for layer in self.layers:
            mark = "  on the boundary" if layer.at_boundary else ""
            lines.append(f"{layer.name:{width}}  {layer.norm:10.6g}  {layer.limit:10.6g}{mark}")
        return "\n".join(lines)


def project(model: nn.Module) -> ProjectionReport:
    """Project every constrained layer of a model and tell which limits bind.

    Every layer is checked before any is changed, so that a NaN in one leaves all as they were.

    Examples
    --------
    >>> from noisewise.nn.linear import SpectralLinear
    >>> model = nn.Sequential(SpectralLinear(4, 4), nn.ReLU(), SpectralLinear(4, 2))
    >>> project(model).boundary
    ('0', '2')
    """
    layers: list[tuple[str, Projectable]] = []
    for name, module in model.named_modules():
        # As isinstance would say, which looks through the protocol anew each time.
        if not callable(getattr(module, "project_", None)) or not hasattr(module, "limit"):
            continue
        layers.append((name, cast("Projectable", module)))
        for own, parameter in module.named_parameters(recurse=False):
            # The sum is not finite if an entry is not; only then look at every entry.
            if not bool(torch.isfinite(parameter.sum())) and not bool(
                torch.isfinite(parameter).all()
            ):
                where = f"{name}.{own}" if name else own
                raise ValueError(
                    f"parameter {where!r} has NaN or infinite entries, so no bound of the model "
                    "holds; restore a checkpoint or lower the learning rate"
                )
    done = [LayerProjection(name, layer.project_().value, layer.limit) for name, layer in layers]
    return ProjectionReport(tuple(done))
