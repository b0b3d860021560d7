"""Rules of normalisation within a record, torch's form (x - mean)/sqrt(var + eps).

The Jacobian of one group is (P - zz'/m)/s with s = sqrt(var + eps) >= sqrt(eps) and P a
projection, hence at most 1/sqrt(eps): sound, and too large to be of use; prefer
noisewise.nn.LipschitzGroupNorm, whose constant is 1/alpha. A group of m entries and centred
norm v leaves with norm^2 = m v^2/(v^2 + m eps), concave in v^2, so over all n entries of a
record at most n X^2/(X^2 + n eps) (Jensen), below both n and X^2/eps. Affine parameters: a
scale meets the normalised entries of its channel, at most sqrt(group size) in norm.

Proof: docs/proofs/layers.md#normalisation.
"""
# ruff: noqa: D102 (the methods are documented once, on LayerRule)

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from noisewise.arithmetic import loose, product, quotient, root, total
from noisewise.bounds.layer import Call, LayerRule
from noisewise.bounds.registry import refuse_type, register
from noisewise.bounds.rules.vectors import largest_entry, vector_norm

__all__ = ["Groups", "NormalisationRule"]


@dataclass(frozen=True)
class Groups:
    """How a record is cut into normalised groups, and how affine parameters are shared.

    Attributes
    ----------
    size : int
        Entries of a group.
    shared : int
        Entries of a record that one scale (and one shift) meets.
    met : int
        Of how many groups those entries come from.
    """

    size: int
    shared: int
    met: int


class NormalisationRule(LayerRule[Any]):
    """Common part of all normalisations: subclasses say how a record is cut."""

    parameters = ("weight", "bias")
    centres: ClassVar[bool] = True

    def groups(self, call: Call[Any]) -> Groups:
        """How the layer cuts a record."""
        raise NotImplementedError

    def steepest(self, call: Call[Any]) -> float:
        """Largest factor by which a group may be stretched."""
        return quotient(1.0, math.sqrt(self.epsilon(call)) * (1 - 1e-15))

    def epsilon(self, call: Call[Any]) -> float:
        """Constant under the root."""
        return float(call.module.eps)

    def normalised(self, call: Call[Any], entries: int, norm: float) -> float:
        """Norm of `entries` normalised entries that entered with at most `norm`."""
        if math.isinf(norm):
            return root(entries)
        square, floor = norm * norm, entries * self.epsilon(call)
        return 0.0 if square == 0 else loose(math.sqrt(entries * square / (square + floor)))

    def check(self, call: Call[Any]) -> None:
        if self.epsilon(call) <= 0:
            call.refuse("with eps <= 0 has no bounded slope.", "Use eps > 0.")

    def lipschitz(self, call: Call[Any]) -> float:
        return product(largest_entry(_weight(call)), self.steepest(call))

    def output_norm(self, call: Call[Any]) -> float:
        inner = self.normalised(call, call.size, call.norm)
        shift = product(root(self.groups(call).shared), vector_norm(_bias(call)))
        return total(product(largest_entry(_weight(call)), inner), shift)

    def parameter_factors(self, call: Call[Any]) -> dict[str, float]:
        groups, factors = self.groups(call), {}
        if _weight(call) is not None:
            largest = self.normalised(call, groups.size * groups.met, call.norm)
            if self.centres and groups.shared == groups.met:
                # One entry of m centred ones holds at most (m - 1)/m of the squared norm.
                largest = product(largest, root((groups.size - 1) / groups.size))
            factors["weight"] = largest
        if _bias(call) is not None:
            factors["bias"] = root(groups.shared)
        return factors


def _weight(call: Call[Any]) -> torch.Tensor | None:
    return getattr(call.module, "weight", None)


def _bias(call: Call[Any]) -> torch.Tensor | None:
    return getattr(call.module, "bias", None)


@register(nn.GroupNorm)
class GroupNormRule(NormalisationRule):
    """Groups of channels of one record."""

    def groups(self, call: Call[nn.GroupNorm]) -> Groups:
        return Groups(call.size // call.module.num_groups, math.prod(call.shape[1:]), 1)


@register(nn.LayerNorm)
class LayerNormRule(NormalisationRule):
    """The last axes of a record, at each position of the others."""

    def groups(self, call: Call[nn.LayerNorm]) -> Groups:
        size = math.prod(call.module.normalized_shape)
        positions = call.size // size
        return Groups(size, positions, positions)


@register(nn.RMSNorm)
class RMSNormRule(LayerNormRule):
    """No centring: (I - xx'/(m r^2))/r instead of (P - zz'/m)/s, the same bound."""

    centres = False

    def epsilon(self, call: Call[nn.RMSNorm]) -> float:
        # torch takes the machine epsilon of the input's type; the smallest is safe for all.
        eps = call.module.eps
        return float(torch.finfo(torch.float64).eps if eps is None else eps)


@register(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
class InstanceNormRule(NormalisationRule):
    """Each channel of one record by itself."""

    def check(self, call: Call[_InstanceNorm]) -> None:
        super().check(call)
        if call.module.track_running_stats:
            call.refuse(
                "keeps running statistics, which are averages over other records.",
                "Set track_running_stats=False.",
            )
        if len(call.shape) < 2:
            call.refuse("would take the batch for channels.", "Give each record a channel axis.")

    def groups(self, call: Call[_InstanceNorm]) -> Groups:
        size = math.prod(call.shape[1:])
        return Groups(size, size, 1)


refuse_type(
    _BatchNorm,
    "mixes the records of a batch, so one record's gradient would depend on the others and no "
    "sensitivity exists.",
    "Replace it, for example with GroupNorm(8, 64) or noisewise.nn.LipschitzGroupNorm: "
    "noisewise.nn.fix(model) does this for you.",
)
