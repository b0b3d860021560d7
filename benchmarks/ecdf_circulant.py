"""Search the low frequencies of the circulant strategy (``ecdf/mechanisms/circulant.py``).

    python benchmarks/ecdf_circulant.py

For each ratio of places to prefix counts, the factors of the first FREQUENCIES frequencies of
the spectrum |sin| are tuned at 2^9 bins so that mean or largest variance times the largest
squared change is least (L-BFGS on p-norms, p growing). Printed are the factors, as they are
stored, and what they reach at other numbers of bins, beside the flat circulant mechanism on as
many places as there are counts, with its best mean. They are parameters, not guarantees:
sensitivity and variance are computed from the integer matrix that they lead to.
"""

from __future__ import annotations

import argparse
import math

import numpy as np
import torch
from scipy.fft import irfft, next_fast_len
from scipy.optimize import minimize

from noisewise.ecdf.mechanisms.circulant import circulant_spectrum, inverse_column

torch.set_default_dtype(torch.float64)
FREQUENCIES = 13


def places_of(points: int, ratio: float) -> int:
    if ratio == 1:
        return points
    return next_fast_len(max(math.ceil(ratio * points), 2), real=True)


def reached(points: int, ratio: float, factors: tuple[float, ...]) -> tuple[float, float]:
    """Mean and largest variance at rho = 1/2."""
    places = places_of(points, ratio)
    correlation = irfft(circulant_spectrum(places, factors), places)[:points]
    column = inverse_column(correlation)
    diagonal = np.cumsum(column**2 - np.append(0.0, column[:0:-1]) ** 2) / column[0]
    change = np.cumsum(np.cumsum(np.append(correlation[0], 2 * correlation[1:]))).max()
    return float(diagonal.mean() * change), float(diagonal.max() * change)


def power_mean(values: torch.Tensor, power: float) -> torch.Tensor:
    top = values.max().detach()
    return top.log() + ((values / top) ** power).sum().log() / power


def search(points: int, ratio: float, objective: str) -> tuple[float, ...]:
    places = places_of(points, ratio)
    base = torch.tensor(circulant_spectrum(places, ()))
    lag = (torch.arange(points)[:, None] - torch.arange(points)[None, :]).abs()

    def loss(x: np.ndarray, power: float) -> tuple[float, np.ndarray]:
        factors = torch.tensor(x, requires_grad=True)
        spectrum = base * torch.cat([factors.exp(), torch.ones(base.numel() - FREQUENCIES)])
        correlation = torch.fft.irfft(spectrum.to(torch.complex128), n=places)[:points]
        diagonal = torch.linalg.inv(correlation[lag]).diagonal()
        changes = torch.cat([correlation[:1], 2 * correlation[1:]]).cumsum(0).cumsum(0)
        noise = diagonal.mean().log() if objective == "mean" else power_mean(diagonal, power)
        value = noise + power_mean(changes, power)
        value.backward()
        return value.item(), factors.grad.numpy().copy()

    x = np.zeros(FREQUENCIES)
    x[0] = -3.0
    bounds = [(-12.0, 6.0)] + [(-3.0, 3.0)] * (FREQUENCIES - 1)
    for power in (30.0, 100.0, 400.0, 1500.0):
        options = {"maxiter": 120}
        found = minimize(
            loss, x, args=(power,), jac=True, method="L-BFGS-B", bounds=bounds, options=options
        )
        x = found.x
    return tuple(np.round(x, 3).tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ratios", type=float, nargs="+", default=[1.125, 1.25, 1.5])
    parser.add_argument("--heights", type=int, nargs="+", default=[6, 10, 15])
    arguments, _ = parser.parse_known_args()
    torch.set_num_threads(1)
    for height in arguments.heights:
        flat = min(reached(2**height - 1, 1.0, (f,))[1] for f in np.linspace(-3, 1, 33).tolist())
        print(f"flat circulant, 2^{height} bins: {flat:.3f}")
    for ratio in arguments.ratios:
        for objective in ("mean", "max"):
            factors = search(511, ratio, objective)
            print(f"ratio {ratio}, least {objective}: {list(factors)}")
            for height in arguments.heights:
                mean, largest = reached(2**height - 1, ratio, factors)
                print(f"  2^{height} bins: mean {mean:.3f}, max {largest:.3f}", flush=True)


if __name__ == "__main__":
    main()
