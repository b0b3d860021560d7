"""Two meanings of "positive" for a matrix that is not symmetric.

After definition 4.3 of Bu, Wang, Dai and Long (2021).

In quadratic form: x'Ax >= 0 for all x, that is, the symmetric part (A + A')/2 has no negative
eigenvalue. In eigenvalues: no eigenvalue of A itself is negative. They agree for symmetric
matrices only, so both numbers are always reported. Eigenvalues of a clipped layerwise kernel
may be complex; then their real parts are meant, and the largest imaginary part is told.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import eigvals, eigvalsh

__all__ = ["Positivity", "positivity"]

#: Numbers of size TOLERANCE times the largest entry of the spectrum count as zero.
TOLERANCE = 1e-10


@dataclass(frozen=True)
class Positivity:
    """Symmetry and both kinds of positivity, as numbers and as verdicts.

    Parameters
    ----------
    asymmetry : float
        Frobenius norm of A - A' over that of A.
    smallest_quadratic : float
        Smallest value of x'Ax over unit vectors x.
    smallest_eigenvalue : float
        Smallest real part of an eigenvalue of A.
    largest_imaginary : float
        Largest imaginary part of an eigenvalue of A.
    scale : float
        Spectral radius of the symmetric part, to which tolerances are relative.
    """

    asymmetry: float
    smallest_quadratic: float
    smallest_eigenvalue: float
    largest_imaginary: float
    scale: float

    @property
    def symmetric(self) -> bool:
        """Whether A equals its transpose, up to rounding."""
        return self.asymmetry <= TOLERANCE

    @property
    def positive_in_quadratic_form(self) -> bool:
        """Whether x'Ax >= 0 for all x, up to rounding."""
        return self.smallest_quadratic >= -TOLERANCE * self.scale

    @property
    def positive_in_eigenvalues(self) -> bool:
        """Whether all eigenvalues have real parts >= 0, up to rounding."""
        return self.smallest_eigenvalue >= -TOLERANCE * self.scale


def positivity(matrix: Any, scaling: Any = None) -> Positivity:
    """Look at the symmetry and positivity of a matrix.

    Parameters
    ----------
    matrix : array
        Square. With `scaling` it must be symmetric.
    scaling : array, optional
        Look at ``matrix @ diag(scaling)``, scaling >= 0, instead. Its eigenvalues are
        those of the symmetric matrix D matrix D with D = diag(sqrt(scaling)), which is
        quicker and exact where a general eigenvalue solver loses digits.

    Examples
    --------
    Clipping one of two records: positive eigenvalues, a negative quadratic form.

    >>> found = positivity([[1.0, 0.9], [0.9, 1.0]], scaling=[1.0, 0.01])
    >>> found.positive_in_eigenvalues, found.positive_in_quadratic_form
    (True, False)
    """
    a = np.asarray(matrix, np.float64)
    if a.ndim != 2 or a.shape[0] != a.shape[1] or a.size == 0:
        raise ValueError(f"matrix must be square, got shape {a.shape}")
    if not np.isfinite(a).all():
        raise ValueError("matrix has NaN or infinite entries")
    values: Any = None
    if scaling is not None:
        c = np.asarray(scaling, np.float64)
        if c.shape != a.shape[:1] or np.any(c < 0) or not np.isfinite(c).all():
            raise ValueError(
                f"scaling must be {len(a)} finite numbers >= 0, one for each column of the matrix"
            )
        root = np.sqrt(c)
        values = eigvalsh(root[:, None] * a * root)
        a = a * c
    asymmetry = float(np.linalg.norm(a - a.T) / max(np.linalg.norm(a), np.finfo(float).tiny))
    quadratic = np.asarray(eigvalsh((a + a.T) / 2), np.float64)
    if values is None:
        values = quadratic if asymmetry == 0 else eigvals(a)
    return Positivity(
        asymmetry=asymmetry,
        smallest_quadratic=float(quadratic[0]),
        smallest_eigenvalue=float(np.real(values).min()),
        largest_imaginary=float(np.abs(np.imag(values)).max()),
        scale=float(np.abs(quadratic).max()),
    )
