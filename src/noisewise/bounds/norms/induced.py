r"""Norms of a matrix as a map from l_p to l_q (Barczewski 2025, section 2.7).

| from, to     | value                                | here              |
|--------------|--------------------------------------|-------------------|
| 1, 1         | largest column sum of |a|          | exact             |
| inf, inf     | largest row sum of |a|             | exact             |
| 2, 2         | largest singular value               | `spectral_norm`   |
| 1, 2         | largest column norm                  | exact             |
| 2, inf       | largest row norm                     | exact             |
| 1, inf       | largest entry                        | exact             |
| 2, 1; inf, 2 | max over signs s of ``||A' s||_2``    | exact or bounded  |
| inf, 1       | max over two sign vectors            | bounded           |

*Exact* means up to rounding, which is always rounded up. The maximum over m signs is NP-hard;
it is enumerated for m <= 12. Beyond, with ``G = A A'``, the least of three bounds is taken:
``sqrt(m) ||A||``, ``sqrt(sum |G_ij|)`` and ``sqrt(tr D + m lambda_max(G - D))`` for a diagonal D
made from a good sign vector. The last is a point of the dual of the semi-definite relaxation,
whose optimum is at most sqrt(pi/2) = 1.254 above the truth (Nesterov); ours is not the optimum,
and was measured within 1.3 of a local search on Gaussian matrices.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from noisewise.bounds.norms.eigenvalue import root
from noisewise.bounds.norms.matrix import spectral_norm
from noisewise.bounds.norms.result import NormBound
from noisewise.bounds.norms.rounding import check_weight, relative, scale, up

__all__ = ["induced_norm"]

_ENUMERATED = 12


def induced_norm(weight: Tensor, p: float, q: float | None = None) -> NormBound:
    """Return a proven upper bound on ``max ||W x||_q / ||x||_p``.

    Parameters
    ----------
    weight : Tensor
        A matrix ``(outputs, inputs)``.
    p, q : 1, 2 or infinity
        Norms on the input and on the output; `q` is `p` when left out.

    Examples
    --------
    >>> import torch
    >>> round(float(induced_norm(torch.tensor([[1.0, -2.0], [3.0, 4.0]]), math.inf)), 9)
    7.0
    """
    q = p if q is None else q
    for name, value in (("p", p), ("q", q)):
        if value not in (1, 2, math.inf):
            raise ValueError(f"{name} must be 1, 2 or infinity, got {value!r}")
    check_weight(weight)
    if weight.dim() != 2:
        raise ValueError(f"induced_norm takes a matrix, got shape {tuple(weight.shape)}")
    if p == q == 2:
        return spectral_norm(weight)
    scaled = scale(weight)
    if scaled is None:
        return NormBound(0.0, "zero")
    value, method = _bound(scaled.values, p, q)
    return NormBound(scaled.restore(value), method)


def _bound(A: Tensor, p: float, q: float) -> tuple[float, str]:
    if (p, q) in ((2, 1), (math.inf, 2)):
        return _signs(A if p == 2 else A.T)
    if (p, q) == (math.inf, 1):
        total = float(A.abs().sum()) * (1.0 + relative(A.numel()))
        spectral = spectral_norm(A)
        return min(
            (up(total), "sum"),
            (up(math.sqrt(A.numel()) * spectral.value), spectral.method),
        )
    if (p, q) == (1, math.inf):
        return up(float(A.abs().max())), "entry"
    if (p, q) in ((1, 1), (math.inf, math.inf)):
        axis = 0 if p == 1 else 1
        return up(float(A.abs().sum(axis).max()) * (1.0 + relative(A.shape[axis]))), "sums"
    axis = 0 if p == 1 else 1
    return root(float(A.square().sum(axis).max()) * (1.0 + relative(A.shape[axis]))), "lengths"


def _signs(A: Tensor) -> tuple[float, str]:
    """Bound ``max_s ||A' s||_2`` over sign vectors s."""
    rows, columns = A.shape
    if rows <= _ENUMERATED:
        codes = torch.arange(1 << (rows - 1), device=A.device)
        bits = (codes[:, None] >> torch.arange(rows, device=A.device)) & 1
        images = (1.0 - 2.0 * bits.to(A.dtype)) @ A
        # Entry errors are relative to the sum of absolute values of a column.
        error = relative(rows) * float(A.abs().sum(0).square().sum().sqrt()) * 2.0
        longest = root(float(images.square().sum(1).max()) * (1.0 + relative(columns)))
        return up(longest + error), "enumeration"
    G = A @ A.T
    slack = relative(columns + rows) * float(A.square().sum()) * rows * 4.0
    spectral = spectral_norm(A)
    pairwise = root(up(float(G.abs().sum()) * (1.0 + relative(rows * rows)) + slack))
    return min(
        (up(math.sqrt(rows) * spectral.value), spectral.method),
        (pairwise, "pairwise"),
        (_dual(G, slack), "dual"),
    )


def _dual(G: Tensor, slack: float) -> float:
    """``sqrt(tr D + m lambda_max(G - D))``, D from the signs that a local search ends at."""
    rows = G.shape[0]
    s = torch.ones(rows, dtype=G.dtype, device=G.device)
    s[torch.linalg.eigh(G).eigenvectors[:, -1] < 0] = -1.0
    for _ in range(32):
        s = torch.where(G @ s < 0, -1.0, 1.0).to(G.dtype)
    D = (G @ s).abs()
    shifted = G - torch.diag(D)
    low = float(torch.linalg.eigvalsh(shifted)[-1])
    # Any number above the eigenvalue is good; a Cholesky factor proves it (see `eigenvalue`).
    size = float(D.max()) + float(G.diagonal().max())
    margin = size * rows * relative(rows)
    while True:
        top = low + margin
        B = -shifted
        B.diagonal().add_(top)
        if int(torch.linalg.cholesky_ex(B).info) == 0:
            trace = abs(top) * rows + size * rows
            proven = top + relative(rows) * trace
            total = float(D.sum()) * (1.0 + relative(rows)) + rows * proven
            return root(up(total + slack))
        margin *= 4.0
