"""The bounded sum: what a batch becomes before noise.

A sum over records, never a mean; one group after another in a fixed order; each with the
distance by which adding or removing one record can move it (replacing one moves it by up to
twice that).

Type of the sums: that of the parameter, float32 at least, for up to `FEW` records. Beyond that
float64, since rounding a sum of n records to float32 moves it by up to 6e-8 n bounds, and that
must stay far below the slack; a sum is rounded to the parameter's type after its noise.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from noisewise.gradients.contractions.rounding import SLACK

__all__ = ["FLOOR", "SLACK", "BoundedSum", "Group", "sensitivity_of", "sum_type"]

#: What numbers too small for float32 may add to a sum: docs/proofs/rounding.md#floor.
FLOOR = 1e-19
#: Largest number of records whose sum is rounded to float32: docs/proofs/rounding.md#result.
FEW = 1024


def sensitivity_of(limit: float, slack: float = SLACK) -> float:
    """How far one record moves a computed sum, if its exact one is moved by `limit` at most."""
    return limit * (1 + slack) + FLOOR if limit else 0.0


def sum_type(parameter: torch.dtype, records: int) -> torch.dtype:
    """Return the type of a sum over so many records for a parameter of this type."""
    if records > FEW:
        return torch.float64
    known = parameter is torch.float32
    return parameter if known else torch.promote_types(parameter, torch.float32)


@dataclass(frozen=True)
class Group:
    """Parameters that are bounded together.

    Attributes
    ----------
    name : str
    names : tuple of str
        The parameters.
    gradients : dict of str to Tensor
        Sums over records, one tensor per parameter, in the type of `sum_type`.
    sensitivity : float
        Largest norm by which one record, added or removed, moves all of `gradients`
        together. Includes the slack for rounding.
    size : int
        Number of entries.
    slack : float
        That of `sensitivity`, relative to the exact sum's.
    """

    name: str
    names: tuple[str, ...]
    gradients: dict[str, Tensor]
    sensitivity: float
    size: int
    slack: float = SLACK


@dataclass(frozen=True)
class BoundedSum:
    """Sums of a batch, and diagnostics that must not be published.

    Attributes
    ----------
    groups : tuple of Group
    records : int
        Records in the batch. Not private.
    nonfinite : Tensor
        How many records counted zero because a gradient was not finite. Not private.
    norms : dict of str to Tensor
        What was measured of every record, per group, if anything was. Not private.
    """

    groups: tuple[Group, ...]
    records: int
    nonfinite: Tensor
    norms: dict[str, Tensor] = field(default_factory=dict, repr=False)

    @property
    def gradients(self) -> dict[str, Tensor]:
        """The sums of all parameters."""
        return {name: g for group in self.groups for name, g in group.gradients.items()}

    @property
    def sensitivities(self) -> dict[str, float]:
        """The sensitivity of every group, by name."""
        return {group.name: group.sensitivity for group in self.groups}

    def add(self, other: BoundedSum) -> BoundedSum:
        """Join the sums of two disjoint parts of a batch."""
        mine = [(g.name, g.names, g.sensitivity) for g in self.groups]
        if mine != [(g.name, g.names, g.sensitivity) for g in other.groups]:
            raise ValueError(
                "bounded sums can only be added if their groups and sensitivities agree: use the "
                "same estimator and the same weights for all parts of a batch"
            )
        records = self.records + other.records

        def joined(a: Tensor, b: Tensor) -> Tensor:
            return (a.double() + b).to(sum_type(torch.promote_types(a.dtype, b.dtype), records))

        groups = tuple(
            Group(
                a.name,
                a.names,
                {n: joined(a.gradients[n], b.gradients[n]) for n in a.names},
                a.sensitivity,
                a.size,
                a.slack,
            )
            for a, b in zip(self.groups, other.groups, strict=True)
        )
        norms = {k: torch.cat([v, other.norms[k]]) for k, v in self.norms.items()}
        return BoundedSum(groups, records, self.nonfinite + other.nonfinite, norms)
