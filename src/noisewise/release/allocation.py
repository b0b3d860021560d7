"""How the noise of one step is spread over groups of parameters.

Groups k have sensitivity D_k and d_k entries. With deviations s_k the step is one Gaussian
mechanism of multiplier sigma with 1/sigma^2 = sum_k D_k^2 / s_k^2 (docs/proofs/sums.md#groups).
Three ways to meet that with equality, hence at the same cost in privacy:

``global``     s_k = sigma * sqrt(sum_j D_j^2), one deviation for all;
``per-layer``  s_k = sigma * sqrt(K) * D_k, every group equally noisy relative to its bound;
``optimal``    s_k^2 = sigma^2 * (D_k / sqrt(d_k)) * sum_j D_j sqrt(d_j), the least total
               energy sum_k d_k s_k^2 (Lagrange; never worse than the others by Cauchy-Schwarz).

Where D_k = 0 no record moves the group, so it adds nothing to the sum above: ``per-layer`` and
``optimal`` then put no noise there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from noisewise import checks

__all__ = ["ALLOCATIONS", "deviations"]

ALLOCATIONS = ("optimal", "per-layer", "global")

#: Far above the rounding of the few operations below, far below anything that matters.
_ROUNDING = 1e-12


def deviations(
    sensitivities: Sequence[float],
    sizes: Sequence[int],
    noise_multiplier: float,
    allocation: str = "optimal",
) -> list[float]:
    """Noise deviation of each group, such that the step has the given noise multiplier.

    Parameters
    ----------
    sensitivities : sequence of float
        D_k, the largest norm of one record's contribution to group k.
    sizes : sequence of int
        d_k, the number of entries of group k.
    noise_multiplier : float
        sigma of the whole step.
    allocation : {"optimal", "per-layer", "global"}

    Examples
    --------
    >>> from noisewise.privacy import split_noise
    >>> s = deviations([1.0, 3.0], [100, 4], 2.0)
    >>> round(split_noise([1.0, 3.0], s), 9)
    2.0
    """
    sigma = checks.positive("noise_multiplier", noise_multiplier) * (1 + _ROUNDING)
    kind = checks.choice("noise", allocation, ALLOCATIONS)
    if len(sensitivities) != len(sizes) or not sizes:
        raise ValueError(
            f"sensitivities and sizes must be as many, and at least one, got {len(sensitivities)} "
            f"and {len(sizes)}"
        )
    bounds = [checks.positive("sensitivity", value, zero=True) for value in sensitivities]
    counts = [checks.integer("size", size, minimum=1) for size in sizes]
    if kind == "global":
        return [sigma * math.hypot(*bounds)] * len(bounds)
    if kind == "per-layer":
        moved = sum(bound > 0 for bound in bounds)
        return [sigma * math.sqrt(moved) * bound for bound in bounds]
    total = math.fsum(bound * math.sqrt(d) for bound, d in zip(bounds, counts, strict=True))
    return [
        sigma * math.sqrt(bound / math.sqrt(d) * total)
        for bound, d in zip(bounds, counts, strict=True)
    ]
