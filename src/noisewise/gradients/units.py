"""Units of several rows: what one of them contributes, and which rules can bound it."""

from __future__ import annotations

import torch
from torch import Tensor

from noisewise import checks
from noisewise.errors import UnsoundError
from noisewise.gradients.combinations import PerLayer, propagating
from noisewise.gradients.estimators import Estimator, Lipschitz

__all__ = ["WITHIN", "check_within", "numbered"]

#: What the gradients of a unit's rows become before they are bounded.
WITHIN = ("mean", "sum")


def check_within(within: str | None, estimator: Estimator | PerLayer) -> None:
    """Refuse a rule that cannot bound a unit."""
    if within is None:
        return
    checks.choice("within", within, WITHIN)
    name = type(estimator).__name__
    if not estimator.sound:
        raise UnsoundError(
            f"{name} is here to be studied, record by record; it has no meaning for units. Use "
            "InputScaled, Factored or Clipped."
        )
    if isinstance(estimator, PerLayer) and propagating(estimator) is not None:
        raise UnsoundError(
            "some estimators of this PerLayer bound every row by itself, others the whole unit. "
            "Use one estimator for all layers, or one that measures (Clipped, Factored) for each."
        )
    if within == "sum" and isinstance(estimator, Lipschitz):
        raise UnsoundError(
            f"{name} bounds every row by itself, and a unit may have any number of rows, so their "
            "sum has no bound. Use the mean over a unit's rows (within='mean'), or Clipped or "
            "Factored, which measure the unit."
        )


def numbered(units: Tensor) -> Tensor:
    """Number units from 0 in the order in which they come."""
    if not units.numel():
        return units.long()
    _, codes = torch.unique(units, return_inverse=True)
    count = int(codes.max()) + 1
    first = torch.full((count,), len(codes)).scatter_reduce_(
        0, codes.cpu(), torch.arange(len(codes)), "amin"
    )
    rank = torch.empty_like(first)
    rank[first.argsort()] = torch.arange(count)
    return rank[codes.cpu()]
