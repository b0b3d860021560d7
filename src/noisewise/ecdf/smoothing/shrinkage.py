"""Shrinking inside the families of a tree of counts: less error where records are spread evenly.

Least squares assumes nothing about the counts. If the children of a node hold about equally many
records, as neighbouring bins of a fine grid mostly do, their differences are mostly noise.
With k children whose differences have noise variance u (:mod:`noisewise.ecdf.mechanisms.
tree_estimate`), the deviations d from the family's mean are multiplied by

    max(0, 1 - (k - 3) u / |d|^2)                                    (James and Stein 1961)

from the root downwards. Families whose differences are far above the noise, such as those with
a single full bin, are left alone. Post-processing of the release: it costs no privacy, and makes
the estimate biased, so that variances and bands are those of the curve before it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from noisewise.ecdf.mechanisms.protocol import FloatArray

__all__ = ["shrink_families"]


def shrink_families(
    prefix: FloatArray, fanouts: Sequence[int], variances: Sequence[float]
) -> FloatArray:
    """Return prefix counts with shrunken differences inside families.

    Parameters
    ----------
    prefix : array
        Least-squares prefix counts of all bins; the last one stays as it is.
    fanouts : sequence of int
        Children of a node, leaves first.
    variances : sequence of float
        Noise variance of a node's count estimated from its own subtree, leaves first.

    Examples
    --------
    >>> even = np.cumsum([5.0, 6.0, 4.0, 5.0, 5.0])
    >>> shrink_families(even, (5,), (100.0,)).tolist()
    [5.0, 10.0, 15.0, 20.0, 25.0]
    """
    leaves = np.zeros(math.prod(fanouts))
    leaves[: prefix.size] = np.diff(prefix, prepend=0.0)
    levels = [leaves]
    for fanout in fanouts[:-1]:
        levels.append(levels[-1].reshape(-1, fanout).sum(1))
    estimate = np.array([levels[-1].sum()])
    # The last family of a level may be partly empty, beyond the last bin: it is left alone.
    size = leaves.size
    for level in range(len(fanouts) - 1, -1, -1):
        fanout = fanouts[level]
        families = levels[level].reshape(-1, fanout)
        deviations = families - families.mean(1, keepdims=True)
        squares = (deviations**2).sum(1)
        with np.errstate(divide="ignore", invalid="ignore"):
            factors = 1 - max(fanout - 3, 0) * variances[level] / squares
        factors = np.where(squares > 0, np.maximum(factors, 0.0), 1.0)
        full = prefix.size // size  # families that hold bins only
        factors[full:] = 1.0
        estimate = (estimate[:, None] / fanout + factors[:, None] * deviations).ravel()
        size //= fanout
    result = np.cumsum(estimate[: prefix.size])
    result[-1] = prefix[-1]
    return result
