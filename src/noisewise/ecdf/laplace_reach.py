"""How far independent Laplace noise reaches, exactly.

The sum of k Laplace variables of scale 1 has the size of a gamma variable whose shape is random:
k - j with probability ``2^(1-k-j) C(k-1+j, j)``, for j from 0 to k - 1 (partial fractions of the
characteristic function ``(1 + t^2)^-k``). Sizes by themselves are exponential, so k of them sum
to a gamma variable of shape k. Discrete noise is less than one grid step from a continuous
variable: the difference of two geometric numbers is that of two exponential ones, each rounded
down. Proof: docs/proofs/curves.md#intervals.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy import special
from scipy.optimize import brentq
from scipy.stats import nbinom

__all__ = ["sizes_within", "sum_within"]

#: For the rounding of the functions below.
_SLACK = 1 + 1e-9


@lru_cache
def sum_within(terms: int, level: float) -> float:
    """Within which |L1 + ... + Lk| lies with probability `level`, for scale 1."""
    if terms == 0:
        return 0.0
    past = np.arange(terms)
    weights, shapes = 2 * nbinom.pmf(past, terms, 0.5), terms - past

    def missing(limit: float) -> float:
        return float(weights @ special.gammaincc(shapes, limit)) - (1 - level)

    return _SLACK * float(brentq(missing, 0.0, sizes_within(terms, level), xtol=1e-12))


@lru_cache
def sizes_within(terms: int, level: float) -> float:
    """Within which |L1| + ... + |Lk| lies with probability `level`, for scale 1."""
    return _SLACK * float(special.gammaincinv(terms, level)) if terms else 0.0
