"""Certified spectral norms of matrices.

Five proofs, from cheap to tight, of ``||W|| <= value`` (docs/proofs/norms.md;
``P`` is the Gram matrix on the smaller side, n its size):

``frobenius``    ``||W||_F``; exact for rank one, else up to sqrt(n) too large.
``orthogonal``   ``sqrt(c + ||P - c I||_F)``, c the mean diagonal; exact for orthogonal W.
``gram``         ``||P^(2^t)||_F^(2^-(t+1))``; at most n^(2^-(t+2)) too large.
``cholesky``     a Rayleigh quotient raised by `tolerance` and proven by a factorisation.
``eigenvalue``   the same with LAPACK's eigenvalue as the guess; tight to rounding.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from noisewise import checks
from noisewise.bounds.norms.eigenvalue import (
    gram,
    gram_iteration,
    largest_eigenvalue,
    root,
    single_error,
    single_gram,
)
from noisewise.bounds.norms.precision import full_precision
from noisewise.bounds.norms.result import NormBound
from noisewise.bounds.norms.rounding import check_weight, relative, scale, up
from noisewise.bounds.norms.threads import one_thread

__all__ = ["spectral_norm"]

_SINGLE_FROM = 192
METHODS = ("auto", "frobenius", "orthogonal", "gram", "cholesky", "eigenvalue")


def spectral_norm(weight: Tensor, *, method: str = "auto", tolerance: float = 0.01) -> NormBound:
    """Return a proven upper bound on the largest singular value of a matrix.

    Parameters
    ----------
    weight : Tensor
        A matrix of any floating-point type, contiguous or not, on any device.
    method : str
        One of ``auto``, ``frobenius``, ``orthogonal``, ``gram``, ``cholesky`` and
        ``eigenvalue``. ``auto`` takes the cheapest that is proven to exceed the truth by at
        most `tolerance`.
    tolerance : float
        Relative over-estimate that ``auto`` and ``cholesky`` may make.

    Examples
    --------
    >>> import torch
    >>> bound = spectral_norm(torch.tensor([[3.0, 0.0], [4.0, 0.0]]))
    >>> 5.0 <= float(bound) < 5.0 + 1e-12
    True
    """
    checks.choice("method", method, METHODS)
    tolerance = checks.positive("tolerance", tolerance)
    check_weight(weight)
    if weight.dim() != 2:
        raise ValueError(
            f"spectral_norm takes a matrix, got shape {tuple(weight.shape)}; a convolution is "
            "not the matrix of its reshaped kernel: use conv_norm"
        )
    with full_precision(weight.device.type), one_thread(weight.shape):
        single = method in ("auto", "cholesky") and _single_suffices(weight, tolerance)
        scaled = scale(weight, torch.float32 if single else torch.float64)
        if scaled is None:
            return NormBound(0.0, "zero")
        value, used = _bound(scaled.values, method, tolerance)
    return NormBound(scaled.restore(value), used)


def _bound(A: Tensor, method: str, tolerance: float) -> tuple[float, str]:
    if method == "frobenius" or min(A.shape) == 1:
        return _frobenius(A), "frobenius"
    single = A.dtype == torch.float32
    P, error, mass = single_gram(A) if single else gram(A[None])
    if method == "gram":
        return root(gram_iteration(P, error, _gram_steps(P.shape[-1], tolerance))), "gram"
    if method in ("auto", "orthogonal"):
        centre, deviation = _from_orthogonal(P[0])
        orthogonal = _orthogonal(centre, deviation, error)
        if method == "orthogonal":
            return orthogonal, "orthogonal"
        # Every row and column is a lower bound, so this over-estimate is itself proven.
        diagonal = float(P[0].diagonal().max())
        longest = max(diagonal - error, 0.0)
        # Held to a part of the tolerance, as the first Cholesky guess is: a projection that
        # rescales by this bound then stays the nearest point to that part.
        enough = math.sqrt(longest) * (1.0 + tolerance / 16.0)
        if root(mass) <= enough:
            return root(mass), "frobenius"
        if orthogonal <= enough:
            return orthogonal, "orthogonal"
        if single and _orthogonal(centre, deviation, 0.0) <= math.sqrt(diagonal) * (
            1.0 + tolerance / 16.0
        ):
            return _bound(A.double(), method, tolerance)  # all that is missing is digits
    allowed = 2.0 * tolerance - (2.0 * single_error(P.shape[-1]) if single else 0.0)
    eigenvalue, used = largest_eigenvalue(
        P, tolerance=allowed, error=error, exact=method == "eigenvalue"
    )
    # The trace is always an alternative, and for rank one the better one.
    return min((root(eigenvalue), used), (root(mass), "frobenius"))


def _single_suffices(weight: Tensor, tolerance: float) -> bool:
    """Whether binary32 leaves most of the tolerance, and is the quicker way."""
    if weight.device.type != "cpu" or weight.dtype == torch.float64 or weight.dim() != 2:
        return False
    small = min(weight.shape)
    return small >= _SINGLE_FROM and 2.0 * single_error(small) <= tolerance


def _frobenius(A: Tensor) -> float:
    square = float(A.square().sum())
    return root(square * (1.0 + relative(A.numel())))


def _from_orthogonal(P: Tensor) -> tuple[float, float]:
    """Mean of the diagonal c, and a bound on c I less the matrix, with the rounding of both."""
    centre = float(P.diagonal().mean())
    size = P.shape[-1]
    B = P.clone()
    B.diagonal().sub_(centre)
    deviation = float(torch.linalg.matrix_norm(B)) * (1.0 + relative(size * size))
    return centre, deviation + relative(size) * centre


def _orthogonal(centre: float, deviation: float, error: float) -> float:
    return root(up(centre + deviation + error))


def _gram_steps(size: int, tolerance: float) -> int:
    """Squarings after which the worst over-estimate size**(2**-(t+2)) is within tolerance."""
    steps = 1
    while size ** (0.5 ** (steps + 2)) > 1.0 + tolerance and steps < 12:
        steps += 1
    return steps
