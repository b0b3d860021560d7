"""One loss per record from any loss, also from those about which nothing is proven.

Analysis needs no bound, so it takes every loss: those with a rule are read as training reads
them (:func:`noisewise.bounds.per_record`), others are applied to batches of one record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from noisewise.bounds import per_record
from noisewise.errors import UnsupportedModelError

__all__ = ["record_losses"]


def record_losses(loss: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function (outputs, targets) to one loss per record.

    Examples
    --------
    >>> import torch
    >>> record_losses(torch.nn.MSELoss())(torch.ones(2, 4), torch.zeros(2, 4))
    tensor([1., 1.])
    """
    if not callable(loss):
        raise TypeError(f"loss must be a module or a function (output, target), got {loss!r}")
    try:
        return per_record(loss)
    except UnsupportedModelError:
        return lambda output, target: torch.func.vmap(
            lambda z, t: loss(z.unsqueeze(0), t.unsqueeze(0)).sum()
        )(output, target)
