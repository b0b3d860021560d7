"""Certified upper bounds on the largest eigenvalue of Hermitian matrices, one or many.

The heart of every norm here. Whatever guesses the eigenvalue, power iteration or LAPACK,
only a Cholesky factorisation is believed (Rump, *Verification of positive definiteness*,
2006): if floating-point Cholesky of ``B`` runs to its end, the exact ``B`` satisfies

    B >= -c I,   c = gamma / (1 - gamma) * trace(B),   gamma = (n + 1) UNIT,

because the computed factor obeys ``R'R = B + E`` with ``|E| <= gamma |R'||R|``, hence
``||E|| <= gamma * sum_j ||r_j||^2 = gamma * trace(B + E)``. We use ``relative(n)``, four
times that, to cover complex arithmetic and libraries that multiply by reciprocals. With
``B = t I - P``, where P is within `error` of a positive semi-definite matrix (so that
``trace(B) <= n (t + error)``), that exact matrix is at most

    (t + error) (1 + n * relative(n) + 4 UNIT) + error.

Batches of small matrices are factorised in single precision, on the CPU, where that is twice
as fast: UNIT is then 2^-24, which costs less than a thousandth at n = 64, and rounding the
entries adds 2^-24 ||P||_F to the error. (On a GPU single precision may mean less than that.)

Proof: docs/proofs/norms.md#cholesky.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from noisewise.bounds.norms.precision import full_float32
from noisewise.bounds.norms.rounding import UNIT, relative, up

__all__ = [
    "certify_below",
    "gram",
    "gram_iteration",
    "largest_eigenvalue",
    "root",
    "single_error",
    "single_gram",
]

_BLOCK = 4
_ROUNDS = 2
_LANCZOS = 16
_SOLVED = 4
_SMALL = 128
_BLOCKED = 192
_NARROW = range(24, 129)
_SINGLE = 2.0**-24
_INNER = 256
# Higham's bound on a real inner product, for every order and with fused operations or without,
# is n u / (1 - n u) of its absolute sum; this is above it.
_INNER_ERROR = 1.01 * (_INNER + 8) * _SINGLE


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
    P = _product(A.mH if rows < columns else A)
    # The squares are on the diagonal already: inner products of one side, summed over the other.
    squares = P.diagonal(dim1=-2, dim2=-1).real.sum(-1).max()
    mass = float(squares) * (1.0 + relative(rows * columns + rows + columns + 8))
    # |computed - exact| <= relative(inner) |A|'|A| entrywise, whose norm is at most ||A||_F^2.
    return P, up(relative(max(rows, columns)) * mass), mass


def _product(A: Tensor) -> Tensor:
    """A* A; for one large matrix only the blocks on and above the diagonal are computed."""
    if A.shape[0] != 1 or A.shape[-1] < _BLOCKED:
        return A.mH @ A
    return _blocks(A, lambda left, right: left.mH @ right)


def _blocks(A: Tensor, product: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Fill a Hermitian matrix from the blocks on and above its diagonal."""
    parts = A.tensor_split(4, dim=-1)
    P = A.new_empty(1, A.shape[-1], A.shape[-1], dtype=torch.promote_types(A.dtype, torch.float64))
    starts = [0]
    for part in parts:
        starts.append(starts[-1] + part.shape[-1])
    for i, left in enumerate(parts):
        below = slice(starts[i], starts[i + 1])
        for j in range(i, len(parts)):
            right = slice(starts[j], starts[j + 1])
            block = product(left, parts[j])
            P[:, below, right] = block
            if j > i:
                P[:, right, below] = block.mH
    return P


def single_error(size: int) -> float:
    """Bound the error of `single_gram` relative to the largest eigenvalue, by the size."""
    return _INNER_ERROR * size


def single_gram(A: Tensor) -> tuple[Tensor, float, float]:
    """As `gram`, of one matrix in binary32 on the CPU: twice as fast, and less exact.

    Inner products are cut into pieces of `_INNER` terms, whose binary32 sums are added in
    binary64, so that an entry errs by `_INNER_ERROR` of its absolute sum.
    """
    rows, columns = A.shape[-2:]
    if rows < columns:
        A = A.mT
    inner, size = A.shape
    short = -inner % _INNER
    if short:
        A = torch.nn.functional.pad(A, (0, 0, 0, short))
    pieces = A.reshape(-1, _INNER, size)
    with full_float32("cpu"):
        P = _blocks(pieces, lambda left, right: (left.mT @ right).sum(0, dtype=torch.float64)[None])
    unit = _INNER_ERROR + relative(len(pieces))
    squares = float(P.diagonal(dim1=-2, dim2=-1).sum())
    mass = squares * (1.0 + unit + relative(size)) / (1.0 - unit)
    return P, up(unit * mass), mass


def certify_below(P: Tensor, threshold: float) -> Tensor:
    """Tell for each matrix of the batch whether Cholesky bounds it by `threshold`."""
    B = -P
    B.diagonal(dim1=-2, dim2=-1).add_(threshold)
    ok: Tensor = torch.linalg.cholesky_ex(B).info == 0
    return ok


def certificate(threshold: float, size: int, error: float, unit: float) -> float:
    """Return the eigenvalue bound that a successful `certify_below` proves."""
    return up((threshold + error) * (1.0 + size * relative(size, unit) + 4.0 * unit) + error)


def _guess(P: Tensor) -> float:
    """Estimate the largest eigenvalue of a batch; nothing is believed of it."""
    narrow = P.to(torch.complex64 if P.is_complex() else torch.float32)
    if P.shape[0] == 1:
        return _ritz(narrow[0])
    # Power steps in single precision find the few matrices that matter, LAPACK solves those.
    batch, size = P.shape[:2]
    block = _start(size, _BLOCK).to(narrow).expand(batch, -1, -1)
    for _ in range(_ROUNDS):
        block = narrow @ (narrow @ (narrow @ block))  # stays far inside the range of the type
        parts = torch.view_as_real(block) if block.is_complex() else block
        length = torch.linalg.vector_norm(parts.flatten(1), dim=1)
        block = block / length.clamp_min(1e-30)[:, None, None]
    before = torch.linalg.vector_norm(block, dim=-2).clamp_min(1e-30)
    estimates = (torch.linalg.vector_norm(narrow @ block, dim=-2) / before).amax(dim=1)
    best = estimates.topk(min(batch, _SOLVED)).indices
    return float(torch.linalg.eigvalsh(P[best])[..., -1].max())


def _ritz(P: Tensor) -> float:
    """Estimate the largest eigenvalue of one matrix by Lanczos steps.

    Weights that carry noise have crowded spectra, on which power steps are too slow: 24 of them
    missed by several hundredths where as many of these are within one.
    """
    size = P.shape[0]
    steps = min(size, _LANCZOS)
    # Moves no eigenvector, and keeps new vectors from drowning in the one before.
    centred = P.clone()
    centred.diagonal().sub_(P.diagonal().mean())
    vector = _start(size, 1).to(P)[:, 0]
    vector = vector / torch.linalg.vector_norm(vector)
    basis = P.new_empty(steps, size)
    shares, lengths = [], []
    for step in range(steps):
        basis[step] = vector
        found = basis[: step + 1]
        image = centred @ vector
        share = found.conj() @ image
        vector = torch.addmv(image, found.mT, share, alpha=-1)
        length = torch.linalg.vector_norm(vector)
        shares.append(share[step])
        lengths.append(length)
        vector = vector / length.clamp_min(1e-30)
    below = torch.stack(lengths[:-1]).to(P) if steps > 1 else P.new_empty(0)
    projected = torch.stack(shares).diag() + below.diag(-1)
    best = torch.linalg.eigh(projected).eigenvectors[:, -1] @ basis  # of the lower triangle
    image = P @ best
    # A Rayleigh quotient is never above the eigenvalue, whatever became of the basis.
    return float(torch.linalg.vecdot(best, image).real / torch.linalg.vecdot(best, best).real)


def _start(size: int, count: int) -> Tensor:
    """The same random vectors every time, so that certificates do not vary."""
    return torch.randn(size, count, generator=torch.Generator().manual_seed(size))


def largest_eigenvalue(
    P: Tensor, *, tolerance: float, error: float, exact: bool = False
) -> tuple[float, str]:
    """Bound the largest eigenvalue of the positive semi-definite matrices that P approximates.

    Parameters
    ----------
    P : Tensor
        ``(batch, n, n)``, Hermitian up to rounding.
    tolerance : float
        The bound exceeds the truth by at most this fraction, rounding apart, if the guess
        comes from power iteration; with LAPACK it is tighter.
    error : float
        Bound on the spectral norm of (P - exact), included in the result.
    exact : bool
        Guess by LAPACK at once.
    """
    size = P.shape[-1]
    trace = float(P.diagonal(dim1=-2, dim2=-1).real.sum(-1).max())
    ceiling = up(trace * (1.0 + relative(size)) + size * error)
    if size == 1 or ceiling == 0.0:
        return ceiling, "frobenius"
    unit = UNIT
    if not exact and P.shape[0] > 1 and P.device.type == "cpu" and size in _NARROW:
        unit = _SINGLE
        P = P.to(torch.complex64 if P.is_complex() else torch.float32)
        error = up(error + 2.0 * unit * ceiling)
    pending = P
    guess = 0.0
    if not exact and P.shape[0] * size > _SMALL:
        guess = _guess(P)
        # A single matrix may be tight at once, and a flat spectrum usually is.
        for raised in (tolerance / 16.0, tolerance) if P.shape[0] == 1 else (tolerance,):
            threshold = guess * (1.0 + raised)
            fails = ~certify_below(P, threshold)
            if not bool(fails.any()):
                return certificate(threshold, size, error, unit), "cholesky"
        pending = P[fails]
    guess = max(guess, float(torch.linalg.eigvalsh(pending)[..., -1].max()))
    margin = 4.0 * size * relative(size, unit)
    while guess * (1.0 + margin) < ceiling:
        threshold = guess * (1.0 + margin)
        if bool(certify_below(pending, threshold).all()):
            proven = certificate(threshold, size, error, unit)
            return min((proven, "eigenvalue"), (ceiling, "frobenius"))
        margin *= 4.0
    return ceiling, "frobenius"  # the trace needs no certificate


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
