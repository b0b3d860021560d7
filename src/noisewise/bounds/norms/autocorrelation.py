"""Norm of a convolution from the autocorrelation of its kernel: tight near orthogonal kernels.

Proof: docs/proofs/norms.md#autocorrelation.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from noisewise.arithmetic import root, total
from noisewise.bounds.norms.result import NormBound

__all__ = ["autocorrelation_bound"]

#: Unit roundoff of float64, with room for the two roundings of a product and its addition.
_ROUNDING = 3e-16


def autocorrelation_bound(kernel: Tensor) -> NormBound:
    """Bound the norm of a convolution of stride one with zeros or copies beyond the border.

    The square of the operator is a convolution with G_d = sum_s K_s' K_(s+d), whose norm is at most
    ``|G_0| + sum |G_d|`` over all lags d. For an orthogonal kernel G_0 is the identity and
    the others vanish, so nothing is lost; for others it is far from tight.

    Examples
    --------
    >>> round(autocorrelation_bound(torch.eye(3)[:, :, None, None]).value, 6)
    1.0
    """
    wide = kernel.detach().double().cpu()
    if wide.shape[0] < wide.shape[1]:
        wide = wide.transpose(0, 1)
    taps = wide.shape[2:]
    identity = torch.eye(wide.shape[1], dtype=torch.float64)
    terms = []
    for lag in itertools.product(*(range(-(k - 1), k) for k in taps)):
        here = [slice(max(0, -d), min(k, k - d)) for d, k in zip(lag, taps, strict=True)]
        there = [slice(max(0, d), min(k, k + d)) for d, k in zip(lag, taps, strict=True)]
        first = wide[tuple([slice(None)] * 2 + here)].flatten(2)
        second = wide[tuple([slice(None)] * 2 + there)].flatten(2)
        gram = torch.einsum("oit,ojt->ij", first, second)
        if any(lag):
            terms.append(float(torch.linalg.matrix_norm(gram)))
        else:
            # |G_0| <= a + |G_0 - a I| for every a; the mean of the diagonal is the best guess.
            middle = float(gram.diagonal().mean())
            terms += [abs(middle), float(torch.linalg.matrix_norm(gram - middle * identity))]
    size = float(wide.square().sum())
    # An entry of G_d is a sum of so many products, each rounded; |G_d| is at most the size.
    slack = _ROUNDING * (math.prod(taps) * wide.shape[0] + 8) * len(terms) * size
    if not math.isfinite(size):
        return NormBound(math.nan, "autocorrelation")
    squared = total(*terms, slack)
    return NormBound(root(squared), "autocorrelation")
