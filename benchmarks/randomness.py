"""The cryptographic generator against the statistical ones of torch and numpy."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from fractions import Fraction

import numpy as np
import torch

from benchmarks import interleaved, table
from noisewise.privacy.randomness import Randomness
from noisewise.privacy.randomness.discrete import discrete_gaussian, discrete_laplace
from noisewise.privacy.randomness.gaussian import MANY
from noisewise.privacy.randomness.keystream import SLACK, Keystream

COUNT = 1_000_000
DISCRETE = 200_000


def pairs(rng: Randomness) -> Mapping[str, tuple[Callable[[], object], Callable[[], object]]]:
    """Return what is compared: ours, and the plain library's."""
    single, double = torch.empty(COUNT), torch.empty(COUNT, dtype=torch.float64)
    return {
        "normal float32": (lambda: rng.normal(COUNT), lambda: torch.randn(COUNT)),
        "normal float32, in place": (lambda: rng.normal_(single), lambda: single.normal_()),
        "normal float32, hardened": (
            lambda: rng.normal(COUNT, hardened=True),
            lambda: torch.randn(COUNT),
        ),
        "normal float64, in place": (lambda: rng.normal_(double), lambda: double.normal_()),
        "uniform float32": (lambda: rng.uniform(COUNT), lambda: torch.rand(COUNT)),
        "Poisson mask, rate 0.01": (
            lambda: rng.poisson_mask(COUNT, 0.01),
            lambda: torch.rand(COUNT) < 0.01,
        ),
        "integers below 10": (
            lambda: rng.below(10, COUNT),
            lambda: torch.randint(10, (COUNT,)),
        ),
    }


def compare_with_torch(rng: Randomness) -> None:
    before = torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        rows = []
        for name, (ours, theirs) in pairs(rng).items():
            seconds = interleaved({"ours": ours, "torch": theirs})
            rows.append(
                (
                    name,
                    f"{1e3 * seconds['ours']:.2f}",
                    f"{1e3 * seconds['torch']:.2f}",
                    f"{seconds['torch'] / seconds['ours']:.2f}",
                )
            )
        table(
            f"A million numbers, {threads} thread{'s' if threads > 1 else ''}",
            ("", "ours [ms]", "torch [ms]", "our speed / torch's"),
            rows,
        )
    torch.set_num_threads(before)


def compare_discrete(rng: Randomness) -> None:
    """Compare with rounded floating-point noise, which is fast and has no proof."""
    plain = np.random.default_rng(0)
    rows = []
    for scale in (Fraction(1, 3), Fraction(5, 2), Fraction(80), Fraction(10**6), Fraction(10**9)):
        seconds = interleaved(
            {
                "laplace": lambda scale=scale: discrete_laplace(DISCRETE, scale, rng),
                "plain": lambda scale=scale: np.rint(plain.laplace(0, float(scale), DISCRETE)),
                "gaussian": lambda scale=scale: discrete_gaussian(DISCRETE, scale**2, rng),
            },
            repeats=5,
        )
        each = {name: 1e9 * value / DISCRETE for name, value in seconds.items()}
        rows.append((str(scale), *(f"{each[name]:.0f}" for name in seconds)))
    table(
        "Exact discrete noise, nanoseconds a sample",
        ("scale", "Laplace", "numpy, rounded Laplace", "Gaussian"),
        rows,
    )


def compare_parts() -> None:
    """What a normal number costs, and what of that its random bits take."""
    bits, buffer = Keystream(None), np.empty(6 * COUNT + 2 * SLACK, np.uint8)
    plain, long, numbers = Randomness.secure(), Randomness.secure(), torch.empty(COUNT)
    for _ in range(MANY // COUNT + 1):
        long.normal_(numbers)  # from here on with compiled code, if numba is there
    ways: dict[str, Callable[[], object]] = {
        "its 48 random bits": lambda: bits.fill(buffer, 6 * COUNT),
        "at first": lambda: plain.normal_(numbers),
        f"after {MANY:,} numbers": lambda: long.normal_(numbers),
    }
    least = dict.fromkeys(ways, float("inf"))
    for _ in range(9):
        for name, way in ways.items():
            start = time.process_time()
            way()
            least[name] = min(least[name], time.process_time() - start)
    rows = [(name, f"{1e9 * seconds / COUNT:.2f}") for name, seconds in least.items()]
    table("A float32 normal number, nanoseconds of processor time", ("", "ns"), rows)


def main() -> None:
    rng = Randomness.secure()
    compare_parts()
    compare_with_torch(rng)
    compare_discrete(rng)
