"""Best linear estimates in a tree of counts with noise that depends on the level.

Two passes over a complete tree with fan-outs k_0 (above the leaves), ..., k_(h-1) (below
the root), after Hay et al. (2010): upwards each node's count is combined with the sum of
its children, downwards what a family's sum misses is shared equally. O(leaves).

With u_l the variance of a level-l node estimated from its own subtree,
``1/u_l = 1/s_l + 1/(k_(l-1) u_(l-1))``, the variance of a prefix that takes j whole
children and the fraction w of the next one, at every level, is
``W^2 u_root + sum_l u_l (j + w^2 - (j + w)^2 / k_l)``, W the fraction of the whole tree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from noisewise.ecdf.mechanisms.protocol import FloatArray

__all__ = [
    "estimate_leaves",
    "prefix_covariance",
    "prefix_variance",
    "prefix_weights",
    "subtree_variances",
]


def subtree_variances(
    fanouts: Sequence[int], variances: Sequence[float], root_known: bool
) -> tuple[list[float], float]:
    """Return u_0, ..., u_(h-1) and the variance of the root."""
    upward = [variances[0]]
    for fanout, variance in zip(fanouts, variances[1:], strict=False):
        below = fanout * upward[-1]
        # The smaller one times a number between 1/2 and 1: no product of tiny numbers can
        # underflow on the way, and where both are zero (noise so rare that its variance
        # underflows) nothing is divided by zero.
        small, large = min(variance, below), max(variance, below)
        upward.append(small / (1 + small / large) if large > 0 else 0.0)
    return upward, 0.0 if root_known else fanouts[-1] * upward[-1]


def prefix_weights(
    lengths: NDArray[np.int64], fanouts: Sequence[int]
) -> tuple[FloatArray, FloatArray]:
    """Return what u_0, ..., u_(h-1) (rows) and the root's variance are multiplied with."""
    size = math.prod(fanouts)
    of_root = (lengths / size) ** 2
    weights = np.empty((len(fanouts), lengths.size))
    rest = lengths.astype(np.int64)
    for level in range(len(fanouts) - 1, -1, -1):
        fanout = fanouts[level]
        size //= fanout
        whole = np.minimum(rest // size, fanout)
        rest = rest - whole * size
        part = rest / size
        weights[level] = whole + part**2 - (whole + part) ** 2 / fanout
    return weights, of_root


def prefix_variance(
    lengths: NDArray[np.int64],
    fanouts: Sequence[int],
    variances: Sequence[float],
    root_known: bool,
) -> FloatArray:
    """Return the variance of the estimated sums of the first `lengths` leaves."""
    upward, root = subtree_variances(fanouts, variances, root_known)
    weights, of_root = prefix_weights(lengths, fanouts)
    return np.asarray(of_root * root + np.array(upward) @ weights)


def prefix_covariance(
    lengths: NDArray[np.int64], end: int, fanouts: Sequence[int], variances: Sequence[float]
) -> FloatArray:
    """Return the covariance of prefixes with the prefix of length `end`, root not known.

    Inside a family of k children of variance u the deviations from the family's mean have
    covariance u (1[same child] - 1/k); deviations in different families are uncorrelated.
    So two prefixes correlate at the levels at which they still end in the same family.
    """
    upward, root = subtree_variances(fanouts, variances, False)
    size = math.prod(fanouts)
    result = (lengths / size) * (end / size) * root
    rest = lengths.astype(np.int64)
    together = np.ones(rest.shape, np.bool_)
    for fanout, variance in zip(reversed(fanouts), reversed(upward), strict=True):
        size //= fanout
        whole, end_whole = np.minimum(rest // size, fanout), min(end // size, fanout)
        rest, end = rest - whole * size, end - end_whole * size
        part, end_part = rest / size, end / size
        common = np.minimum(whole, end_whole) + np.where(
            whole < end_whole, part, np.where(whole > end_whole, end_part, part * end_part)
        )
        product = (whole + part) * (end_whole + end_part) / fanout
        result += np.where(together, variance * (common - product), 0.0)
        together &= whole == end_whole
    return result


def estimate_leaves(
    levels: Sequence[FloatArray],
    fanouts: Sequence[int],
    variances: Sequence[float],
    root: FloatArray | None,
) -> FloatArray:
    """Return the best linear unbiased estimates of the leaves.

    Parameters
    ----------
    levels : sequence of arrays
        Noisy counts of each level (last axis), leaves first, without the root.
    fanouts, variances : sequences
        Fan-out above and noise variance of each level.
    root : array or None
        The known total, or None if it is not known.
    """
    estimates = [levels[0]]
    upward, _ = subtree_variances(fanouts, variances, False)
    for level, (fanout, variance) in enumerate(zip(fanouts, variances[1:], strict=False)):
        children = _families(estimates[-1], fanout).sum(-1)
        below = fanout * upward[level]
        # Where both are exact, either will do.
        weight = below / (variance + below) if variance + below > 0 else 0.5
        estimates.append(weight * levels[level + 1] + (1 - weight) * children)
    final = estimates[-1]
    if root is not None:
        final = final + ((root - final.sum(-1)) / final.shape[-1])[..., None]
    for estimate, fanout in zip(reversed(estimates[:-1]), reversed(fanouts[:-1]), strict=True):
        families = _families(estimate, fanout)
        missing = (final - families.sum(-1)) / fanout
        final = (families + missing[..., None]).reshape(estimate.shape)
    return final


def _families(values: FloatArray, fanout: int) -> FloatArray:
    return values.reshape(*values.shape[:-1], values.shape[-1] // fanout, fanout)
