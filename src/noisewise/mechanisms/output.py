"""Output perturbation of a strongly convex problem (Barczewski 2025, Algorithm 5).

The objective is a *sum*, F(t) = sum_i l_i(t) + (lambda / 2) |t|^2 with public lambda,
and each l_i is L-Lipschitz. Adding or removing one record moves the minimiser by at
most L / lambda (its gradient there is the record's own, and F is lambda-strongly
convex); replacing one, by twice that. A minimiser known only up to gradient norm g is
off by at most g / lambda, on both sides, so the sensitivity used is
(factor L + 2 g) / lambda with a public g that the solver must certify. The printed
algorithm assumes the exact minimiser, divides by the number of records, uses the
classic lemma at any epsilon, and adds the noise to F; here none of these is needed.

Proof: docs/proofs/mechanisms.md#output.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from noisewise import checks
from noisewise.mechanisms.additive import PUBLIC_SENSITIVITY, gaussian_deviation, release_value
from noisewise.privacy import ADD_REMOVE, Preprocessing, Randomness, Relation, Sensitivity
from noisewise.release import GaussianNoise, LedgerOrPath, Release, one_vocabulary

__all__ = ["LogisticProblem", "StronglyConvexProblem", "output_perturbation"]

Array = NDArray[np.float64]


@runtime_checkable
class StronglyConvexProblem(Protocol):
    """What :func:`output_perturbation` must know of a problem."""

    @property
    def lipschitz(self) -> float:
        """Public bound of every record's gradient norm, at every point."""
        ...

    @property
    def strong_convexity(self) -> float:
        """Public lambda of the regulariser (lambda / 2) |t|^2."""
        ...

    def solve(self, tolerance: float) -> Array:
        """Return a point whose gradient norm is certified to be at most `tolerance`."""
        ...


class LogisticProblem:
    """Binary logistic regression with rows of bounded norm and an l2 regulariser.

    Parameters
    ----------
    features : array of shape (records, features)
        Rows are scaled down to `norm_bound` where they are longer; each row alone
        decides, so this costs no privacy.
    labels : array of 0 and 1
    regularisation : float
        The public lambda, for the *sum* of losses.
    norm_bound : float
        Public bound of a row's norm.
    intercept : bool
        Append a constant feature; its coefficient is the last one.
    """

    def __init__(
        self,
        features: Any,
        labels: Any,
        *,
        regularisation: float,
        norm_bound: float = 1.0,
        intercept: bool = True,
    ) -> None:
        self.regularisation = checks.positive("regularisation", regularisation)
        self.norm_bound = checks.positive("norm_bound", norm_bound)
        self.intercept = intercept
        rows = np.asarray(features, dtype=np.float64)
        signs = np.asarray(labels)
        if rows.ndim != 2 or rows.shape[0] != signs.shape[0] or signs.ndim != 1:
            raise ValueError(
                f"features must be a matrix and labels a vector of as many rows, got shapes "
                f"{rows.shape} and {signs.shape}"
            )
        if not np.isin(signs, (0, 1)).all():
            raise ValueError("labels must be 0 or 1")
        if not np.isfinite(rows).all():
            raise ValueError("features must be finite, got NaN or infinity")
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        # A hair below the bound, so that rounding cannot push a row over it.
        rows = rows * np.minimum(1.0, self.norm_bound * (1 - 1e-12) / np.maximum(norms, 1e-300))
        if intercept:
            rows = np.hstack([rows, np.ones((rows.shape[0], 1))])
        self._rows = rows
        self._signs = np.where(signs == 1, 1.0, -1.0)

    @property
    def lipschitz(self) -> float:
        """|x| times the derivative of log(1 + e^-m), which is at most 1."""
        return float(np.hypot(self.norm_bound, 1.0)) if self.intercept else self.norm_bound

    @property
    def smoothness(self) -> float:
        """Bound of every record's Hessian norm, |x|^2 / 4."""
        return self.lipschitz**2 / 4

    @property
    def strong_convexity(self) -> float:
        """The public lambda."""
        return self.regularisation

    def solve(self, tolerance: float) -> Array:
        """Newton's method with backtracking; the gradient's rounding error is added to its norm."""
        point = np.zeros(self._rows.shape[1])
        # Each of the n summed terms has norm <= L; 64-bit rounding of n terms and a d-term
        # product stays far below this.
        rounding = 1e-15 * (self._rows.shape[0] + 10) * self.lipschitz
        for _ in range(200):
            gradient, curvature = self._derivatives(point)
            if np.linalg.norm(gradient) + rounding <= tolerance:
                return point
            step = np.linalg.solve(curvature, gradient)
            size, value, slope = 1.0, self._value(point), float(gradient @ step)
            while self._value(point - size * step) > value - 0.25 * size * slope and size > 1e-6:
                size /= 2
            point = point - size * step
        raise RuntimeError(
            f"the solver did not certify a gradient norm of {tolerance:g}; allow a larger "
            "tolerance or a larger regularisation. Nothing was released."
        )

    def _value(self, point: Array) -> float:
        margins = self._signs * (self._rows @ point)
        losses = np.logaddexp(0.0, -margins).sum()
        return float(losses + 0.5 * self.regularisation * (point @ point))

    def _derivatives(self, point: Array) -> tuple[Array, Array]:
        weight = expit(-self._signs * (self._rows @ point))
        gradient = self.regularisation * point - self._rows.T @ (weight * self._signs)
        curvature = (self._rows * (weight * (1 - weight))[:, None]).T @ self._rows
        curvature[np.diag_indices_from(curvature)] += self.regularisation
        return gradient, curvature


@one_vocabulary
def output_perturbation(
    problem: StronglyConvexProblem,
    *,
    epsilon: float,
    delta: float,
    relation: Relation | str = ADD_REMOVE,
    tolerance: float = 1e-6,
    preprocessing: Preprocessing | None = None,
    unit: str = "one record",
    seed: Randomness | int | None = None,
    ledger: LedgerOrPath = None,
) -> Release:
    """Release the minimiser of a strongly convex problem with Gaussian noise.

    Parameters
    ----------
    problem : StronglyConvexProblem
        For example :class:`LogisticProblem`.
    epsilon, delta : float
        What the release may cost.
    relation : {"add-remove", "replace-one"}
    tolerance : float
        Public gradient norm, as a fraction of the Lipschitz constant, that the
        solver must certify. It is part of the sensitivity.
    preprocessing : Preprocessing, optional
        How records became numbers, for example a :class:`noisewise.datasets.Schema`.
        Its assumptions join the statement; one that is not sound is refused.
    unit, seed, ledger
        As for :func:`noisewise.privacy.gaussian`.
    """
    if preprocessing is not None:
        preprocessing.require_sound()
    relation = Relation.of(relation)
    tolerance = checks.positive("tolerance", tolerance)
    lipschitz = checks.positive("lipschitz", problem.lipschitz)
    convexity = checks.positive("strong_convexity", problem.strong_convexity)
    gradient_norm = tolerance * lipschitz
    distance = (relation.sum_factor * lipschitz + 2 * gradient_norm) / convexity
    checks.budget(epsilon)
    checks.fraction("delta", delta)
    bound = Sensitivity(distance, "l2", relation)
    noise = GaussianNoise(
        gaussian_deviation(epsilon, delta, bound.value),
        bound,
        "output perturbation of a strongly convex problem, Gaussian noise",
    )
    return release_value(
        problem.solve(gradient_norm),
        lambda point: point,
        bound,
        noise,
        delta=delta,
        unit=unit,
        seed=seed,
        ledger=ledger,
        assumptions=(
            f"each record's loss is {lipschitz:.6g}-Lipschitz and the regulariser "
            f"{convexity:.6g} is public",
            *(preprocessing.assumptions if preprocessing is not None else ()),
            PUBLIC_SENSITIVITY,
        ),
    )
