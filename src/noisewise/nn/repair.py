"""Replace layers that mix records by ones that do not.

Batch normalisation makes one record's gradient depend on the others, so no sensitivity
exists. Group normalisation does a similar job within one record.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from noisewise import checks
from noisewise.nn.normalisation import LipschitzGroupNorm

__all__ = ["fix"]


def fix(model: nn.Module, norm: str = "group", alpha: float = 1.0, groups: int = 32) -> nn.Module:
    """Return a copy of a model in which no normalisation mixes records.

    Batch normalisation in evaluation mode, with statistics of its own, is an affine map and stays
    as it is. What did not learn before does not learn afterwards.

    Parameters
    ----------
    model : Module
        Left as it is.
    norm : {"group", "lipschitz"}
        `group`: torch's GroupNorm, for estimators that measure. `lipschitz`:
        LipschitzGroupNorm, whose slope is at most 1/alpha, for estimators that propagate.
    alpha : float
        Of LipschitzGroupNorm.
    groups : int
        Largest number of groups; the largest divisor of both it and the channels is used.

    Examples
    --------
    >>> type(fix(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))[1]).__name__
    'GroupNorm'
    """
    checks.choice("norm", norm, ("group", "lipschitz"))
    groups = checks.integer("groups", groups, minimum=1)

    def replacement(layer: nn.Module) -> nn.Module | None:
        if _is_frozen(layer):
            return None
        if isinstance(layer, _InstanceNorm):
            if not layer.track_running_stats:
                return None
            count = layer.num_features
        elif isinstance(layer, _BatchNorm):
            count = math.gcd(groups, layer.num_features)
        else:
            return None
        channels, affine = layer.num_features, layer.affine
        made: nn.Module
        if norm == "group":
            made = nn.GroupNorm(count, channels, eps=layer.eps, affine=affine)
        else:
            made = LipschitzGroupNorm(count, channels, alpha=alpha, affine=affine)
        if affine:
            with torch.no_grad():
                made.weight.copy_(layer.weight)  # type: ignore[union-attr]
                made.bias.copy_(layer.bias)  # type: ignore[union-attr]
            made.to(device=layer.weight.device, dtype=layer.weight.dtype)
            made.weight.requires_grad_(layer.weight.requires_grad)  # type: ignore[union-attr]
            made.bias.requires_grad_(layer.bias.requires_grad)  # type: ignore[union-attr]
        return made.train(layer.training)

    def walk(module: nn.Module) -> nn.Module:
        new = replacement(module)
        if new is not None:
            return new
        for name, child in module.named_children():
            setattr(module, name, walk(child))
        return module

    return walk(copy.deepcopy(model))


def _is_frozen(layer: nn.Module) -> bool:
    """Whether a normalisation uses fixed statistics, not those of the batch."""
    return (
        isinstance(layer, (_BatchNorm, _InstanceNorm))
        and not layer.training
        and layer.running_mean is not None
    )
