"""Search the parameters of the scaled Toeplitz strategy (``ecdf/mechanisms/toeplitz.py``).

    python benchmarks/ecdf_scaled_toeplitz.py --bins 1024

The strategy matrix is ``C = E T D``: T lower triangular Toeplitz with the coefficients of
(1 - q)^-a, E and D diagonal. log E and log D are piecewise linear between KNOTS values in the
coordinate of :func:`noisewise.ecdf.mechanisms.profile.interpolation`. Minimised is the mean or
the largest variance of a prefix count times the largest squared change of C x, over all
neighbours, by L-BFGS on the p-norms of both, p growing. For add-remove D is what makes all
columns equally long. Prints the parameters that are stored in ``profile.py`` and what they
reach at other numbers of bins than the one they were found at.
"""

from __future__ import annotations

import argparse
import json

import numpy as np
import torch
from scipy.optimize import minimize

from noisewise.ecdf.mechanisms.profile import (
    KNOTS,
    binomial_coefficients,
    interpolation,
    stored_profiles,
)

torch.set_default_dtype(torch.float64)


def coefficients(points: int, exponent: torch.Tensor) -> torch.Tensor:
    k = torch.arange(1, points)
    return torch.cat([torch.zeros(1), torch.log((k - 1 + exponent) / k)]).cumsum(0).exp()


def parts(x: torch.Tensor, bins: int, relation: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Variances of the prefix counts, and squared changes that neighbours can make."""
    points = bins - 1 if relation == "replace-one" else bins
    weights = torch.tensor(interpolation(points))
    lag = torch.arange(points)[:, None] - torch.arange(points)[None, :]
    toeplitz = torch.where(lag >= 0, coefficients(points, x[0])[lag.clamp(min=0)], 0.0)
    matrix = toeplitz * (weights @ x[1 : 1 + KNOTS]).exp()[:, None]
    if relation == "add-remove":
        matrix = matrix / matrix.norm(dim=0)
        changes = torch.ones(1)
    else:
        matrix = matrix * (weights @ x[1 + KNOTS :]).exp()
        gram = matrix.T @ matrix
        square = gram.diagonal()
        pairs = square[:, None] + square[None, :] - 2 * gram
        changes = torch.cat([pairs.flatten(), square]) + 1e-12
    ones = torch.tril(torch.ones(points, points))
    readout = torch.linalg.solve_triangular(matrix, ones, upper=False, left=False)
    return (readout**2).sum(1), changes


def power_mean(values: torch.Tensor, power: float) -> torch.Tensor:
    top = values.max().detach()
    return top.log() + ((values / top) ** power).sum().log() / power


def search(bins: int, relation: str, objective: str, iterations: int, warm: bool) -> np.ndarray:
    def loss(x: np.ndarray, power: float) -> tuple[float, np.ndarray]:
        point = torch.tensor(x, requires_grad=True)
        variances, changes = parts(point, bins, relation)
        value = variances.mean().log() if objective == "mean" else power_mean(variances, power)
        value = value + power_mean(changes, power)
        value.backward()
        return value.item(), point.grad.numpy().copy()

    count = 1 + KNOTS * (2 if relation == "replace-one" else 1)
    x = np.concatenate([[0.5], np.zeros(count - 1)])
    if warm:
        (near,) = stored_profiles(relation, objective, bins)
        x = np.concatenate([[near.exponent], near.rows, near.columns or ()])
    for power in (100.0, 400.0) if warm else (30.0, 100.0, 400.0):
        found = minimize(
            loss,
            x,
            args=(power,),
            jac=True,
            method="L-BFGS-B",
            bounds=[(0.4, 0.6)] + [(-4.0, 4.0)] * (count - 1),
            options={"maxiter": iterations},
        )
        x = found.x
    return x


def reached(x: np.ndarray, bins: int, relation: str) -> tuple[float, float]:
    with torch.no_grad():
        variances, changes = parts(torch.tensor(x), bins, relation)
        return float(variances.mean() * changes.max()), float(variances.max() * changes.max())


def square_root(bins: int, relation: str) -> tuple[float, float]:
    points = bins - 1 if relation == "replace-one" else bins
    f = binomial_coefficients(points, 0.5)
    rows = np.cumsum(f**2)
    change = rows[-1]
    if relation == "replace-one":
        lags = np.correlate(f, f, "full")[points:]
        change = max(change, (rows[-1] + rows[points - 2 :: -1] - 2 * lags).max())
    return rows.mean() * change, rows.max() * change


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bins", type=int, default=1024)
    parser.add_argument("--iterations", type=int, default=150)
    parser.add_argument("--warm", action="store_true", help="start from the nearest stored one")
    parser.add_argument("--relations", nargs="*", default=["add-remove", "replace-one"])
    parser.add_argument("--objectives", nargs="*", default=["max", "mean"])
    parser.add_argument("--check", type=int, nargs="*", default=[64, 256, 1024, 2048])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for relation in arguments.relations:
        for objective in arguments.objectives:
            x = search(arguments.bins, relation, objective, arguments.iterations, arguments.warm)
            print(relation, objective, json.dumps([round(float(v), 5) for v in x]))
            for bins in arguments.check:
                mean, largest = reached(np.round(x, 5), bins, relation)
                root_mean, root_largest = square_root(bins, relation)
                print(
                    f"  N={bins}: mean {mean:.3f} (square root {root_mean:.3f}), "
                    f"max {largest:.3f} ({root_largest:.3f})",
                    flush=True,
                )


if __name__ == "__main__":
    main()
