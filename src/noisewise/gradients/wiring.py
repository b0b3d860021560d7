"""What is known of a model before a run, and why a run may have to be made again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from noisewise.gradients.combinations import rule_of
from noisewise.gradients.contractions.base import Target
from noisewise.gradients.detours import Detour
from noisewise.gradients.grouping import GroupSpec
from noisewise.gradients.layout import Layout
from noisewise.separation import Origin, Outside, Path, RefusedError

__all__ = ["NotApartError", "OffPathError", "RelayoutError", "Use", "Wiring", "not_apart"]


#: Name of a call, how often it was made before, and the digest of the path to it.
Use = tuple[str, int, int]


class OffPathError(Detour):
    """A call that no proof has seen: the run must be watched before anything is taken from it."""


class NotApartError(RefusedError):
    """A use of a parameter on records that cannot be told apart."""


class RelayoutError(Detour):
    """A tensor without records was taken for rows of the batch, but its gradient mixes them."""


class Rules:
    """Which rule bounds which parameters: the same at every step.

    Attributes
    ----------
    group_of, members, rules : dict
        The group of a parameter, the parameters and the estimator of a group.
    """

    def __init__(self, estimator: Any, groups: Sequence[GroupSpec]) -> None:
        self.estimator, self.groups = estimator, groups
        self.group_of = {name: group.name for group in groups for name in group.names}
        self.members = {group.name: frozenset(group.names) for group in groups}
        self.rules = {g.name: rule_of(estimator, g) for g in groups if estimator is not None}


@dataclass
class Wiring:
    """What is known of a model before a run, and learnt by watching one.

    Attributes
    ----------
    targets : dict of int to Target
        Learnt parameters by identity.
    constants : set of int
        Identities of buffers and frozen parameters: public, the same for all records.
    layouts : dict
        Where the records sit, call by call; a call is known by its name, how often it was made
        before, and the path that led to it.
    outside : Outside
        Tensors that watched runs read though nothing in them had made them.
    unmeasured : set of str
        Parameters whose Jacobian is not measured.
    doubtful, constant_calls
        Calls on public rows as many as the batch has, and those that proved to be constants.
    paths : set of int
        Digests of the runs that were watched and accepted.
    settled : bool
        Whether all such pieces of a batch were treated alike before.
    lasting : dict of int to set of int
        By digest of a path: numbers of its results that are public, and that the program keeps.
    compared : set of (int, int)
        Digests of paths, and numbers of rows in a unit, for which slots were compared.
    rules : Rules or None
        Of the estimator that was in force last.
    assumed : bool
        Whether the user vouches that records stay apart, so that rows are taken for records.
    """

    targets: Mapping[int, Target]
    constants: frozenset[int]
    layouts: dict[Use, Layout] = field(default_factory=dict)
    unmeasured: set[str] = field(default_factory=set)
    doubtful: dict[Use, frozenset[str]] = field(default_factory=dict)
    constant_calls: set[Use] = field(default_factory=set)
    paths: set[int] = field(default_factory=set)
    lasting: dict[int, set[int]] = field(default_factory=dict)
    outside: Outside = field(default_factory=Outside)
    compared: set[tuple[int, int]] = field(default_factory=set)
    assumed: bool = False
    settled: bool = False
    rules: Rules | None = None

    def rules_for(self, estimator: Any, groups: Sequence[GroupSpec]) -> Rules:
        """Those of an estimator, made once as long as it is in force."""
        known = self.rules
        if known is None or known.estimator is not estimator or known.groups is not groups:
            known = self.rules = Rules(estimator, groups)
        return known

    def proves(self, path: Path) -> bool:
        """Whether a run with this path is one that was watched and accepted."""
        return path.followed and path.digest in self.paths


def not_apart(
    what: str, shape: Sequence[int], records: int, origin: Origin | None = None
) -> NotApartError:
    """Say of a use that it cannot be told which rows are whose, and what mixed them."""
    if origin is not None:
        return NotApartError(
            f"{origin.said} mixes records, and {what} gets the mixture",
            "Compute each record's rows from that record alone: no statistics, sorting, attention "
            "or selection over the batch axis. An index that comes from the data may point to any "
            "record: gather along an axis that each record has for itself, or compute for all "
            "rows and choose with torch.where. "
            "noisewise.nn.fix(model) replaces batch normalisation.",
            origin.place,
        )
    return NotApartError(
        f"{what} gets a tensor of shape {tuple(shape)} for {records} "
        "records, in which it cannot be told which rows belong to which record",
        "Keep the records of a batch along one axis, or merge them with positions in a fixed "
        "order: (batch, ..., "
        "features), (time, batch, features) and (batch * time, features) are understood.",
    )
