"""Certified upper bounds on the largest eigenvalue of Hermitian matrices, one or many.

The heart of every norm here. Whatever guesses the eigenvalue, power iteration or LAPACK,
only a Cholesky factorisation is believed (Rump, *Verification of positive definiteness*,
2006): if floating-point Cholesky of ``B`` runs to its end, the exact ``B`` satisfies

    B >= -c I,   c = gamma / (1 - gamma) * trace(B),   gamma = (n + 1) UNIT,

because the computed factor obeys ``R'R = B + E`` with ``|E| <= gamma |R'||R|``, hence
``||E|| <= gamma * sum_j ||r_j||^2 = gamma * trace(B + E)``. We use ``relative(n)``, four
times that, to cover complex arithmetic and libraries that multiply by reciprocals. With
``B = t I - P`` and a positive semi-definite ``P``, ``trace(B) <= n t``, so

    P <= t (1 + n * relative(n) + 4 UNIT) I.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from noisewise.bounds.norms.rounding import UNIT, relative, up

__all__ = ["certify_below", "gram", "gram_iteration", "largest_eigenvalue", "rayleigh"]

_POWER_STEPS = 12
_POWER_ROUNDS = 2
_BLOCK = 4
_SMALL = 32


def gram(A: Tensor) -> tuple[Tensor, float, float]:
    """Gram matrices on the smaller side of each matrix of a batch ``(batch, rows, columns)``.

    Returns
    -------
    P : Tensor
        Computed Gram matrices.
    error : float
        Bound on the spectral norm of (computed - exact), for every matrix of the batch.
    mass : float
        Bound on the largest squared Frobenius norm, that is the largest trace.
    """
    rows, columns = A.shape[-2:]
    P = A.mH @ A if rows >= columns else A @ A.mH
    squares = A.abs().square().sum((-2, -1)).max()
    mass = float(squares) * (1.0 + relative(rows * columns))
    # |computed - exact| <= relative(inner) |A|'|A| entrywise, whose norm is at most ||A||_F^2.
    return P, up(relative(max(rows, columns)) * mass), mass


def certify_below(P: Tensor, threshold: float) -> Tensor:
    """Tell for each matrix of the batch whether ``P <= certificate(threshold) I`` is proven."""
    B = -P
    B.diagonal(dim1=-2, dim2=-1).add_(threshold)
    ok: Tensor = torch.linalg.cholesky_ex(B).info == 0
    return ok


def certificate(threshold: float, size: int) -> float:
    """Return the eigenvalue bound that a successful `certify_below` proves."""
    return up(threshold * (1.0 + size * relative(size) + 4.0 * UNIT))


def rayleigh(P: Tensor, block: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Improve `block` by power steps; return lower estimates of the largest eigenvalues."""
    for _ in range(steps):
        block = P @ block
        block = block / block.abs().amax(dim=-2, keepdim=True).clamp_min(1e-300)
    image = P @ block
    quotient = torch.linalg.vector_norm(image, dim=-2) / torch.linalg.vector_norm(
        block, dim=-2
    ).clamp_min(1e-300)
    return quotient.amax(dim=-1), block


def _start(P: Tensor) -> Tensor:
    """Columns of P of large diagonal, and fixed pseudo-random vectors."""
    size = P.shape[-1]
    generator = torch.Generator().manual_seed(size)
    noise = torch.randn(size, _BLOCK - 1, generator=generator, dtype=torch.float64)
    noise = noise.to(device=P.device, dtype=P.dtype).expand(P.shape[0], -1, -1)
    index = P.diagonal(dim1=-2, dim2=-1).real.argmax(dim=-1)
    column = P.gather(-1, index[:, None, None].expand(-1, size, 1))
    return torch.cat([column, noise], dim=-1)


def largest_eigenvalue(P: Tensor, *, tolerance: float, exact: bool = False) -> tuple[float, str]:
    """Bound the largest eigenvalue of all matrices of a batch of positive semi-definite ones.

    Parameters
    ----------
    P : Tensor
        ``(batch, n, n)``, Hermitian up to rounding.
    tolerance : float
        The bound exceeds the truth by at most this fraction, rounding apart, if the guess
        comes from power iteration; with LAPACK it is tighter.
    exact : bool
        Guess by LAPACK at once.
    """
    size = P.shape[-1]
    ceiling = float(P.diagonal(dim1=-2, dim2=-1).real.sum(-1).max()) * (1.0 + relative(size))
    if size == 1 or ceiling == 0.0:
        return up(ceiling), "frobenius"
    pending = P
    guess = 0.0
    if not exact and size > _SMALL:
        block = _start(pending)
        for _ in range(_POWER_ROUNDS):
            estimate, block = rayleigh(pending, block, _POWER_STEPS)
            guess = max(guess, float(estimate.max()))
            threshold = guess * (1.0 + tolerance)
            fails = ~certify_below(pending, threshold)
            if not bool(fails.any()):
                return certificate(threshold, size), "cholesky"
            pending, block = pending[fails], block[fails]
    guess = max(guess, float(torch.linalg.eigvalsh(pending)[..., -1].max()))
    margin = 4.0 * size * relative(size)
    while True:
        threshold = min(guess * (1.0 + margin), 2.0 * ceiling)
        if bool(certify_below(pending, threshold).all()):
            return certificate(threshold, size), "eigenvalue"
        if threshold >= 2.0 * ceiling:  # the trace needs no certificate
            return up(ceiling), "frobenius"
        margin *= 4.0


def gram_iteration(P: Tensor, error: float, steps: int) -> float:
    """Bound the largest eigenvalue by ``||P^(2^steps)||_F^(2^-steps)`` (Gram iteration).

    A computed square of a normalised ``Q`` (``||Q||_F = 1``) errs by at most
    ``e = relative(n)`` in norm. If ``||Q|| <= b`` is to be proven from the bound ``b2`` of
    the computed square, ``||Q||^2 = ||Q^2|| <= b2 + e``; unrolled from the last square
    backwards, which is what the loop does. No smallness assumption is needed.
    """
    size = P.shape[-1]
    norms = []
    Q = P
    for _ in range(steps):
        norm = torch.linalg.matrix_norm(Q).clamp_min(1e-300)
        norms.append(norm)
        Q = Q / norm[..., None, None]
        Q = Q @ Q.mH
    bound = torch.linalg.matrix_norm(Q) * (1.0 + relative(size * size))
    for norm in reversed(norms):
        bound = (bound + 4.0 * relative(size)).sqrt() * norm * (1.0 + relative(size * size))
    return up(float(bound.max()) + error)


def root(value: float) -> float:
    """Return a number above the square root."""
    return up(math.sqrt(max(value, 0.0)))
