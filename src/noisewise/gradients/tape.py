"""The tape: what became of every use of a parameter in one batch.

Forward, each operation that uses a learnt parameter announces the use. Backward, it hands in
a contraction: the activation and the cotangent. As soon as all uses of a group have arrived
the estimator is asked for one factor per record, and the scaled sum is taken; a group with a
single use is settled inside that layer's own backward pass and stores nothing. Several uses
of one parameter are joined exactly before their norm is taken.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from noisewise.bounds.norms.precision import full_precision
from noisewise.errors import UnsupportedModelError
from noisewise.gradients.contractions import CombinedContraction, Contraction, Target
from noisewise.gradients.contractions.base import Sums, add_to, needed
from noisewise.gradients.contractions.derived import Derived, pulled_back
from noisewise.gradients.estimators import Estimator
from noisewise.gradients.grouping import GroupSpec

__all__ = ["Calls", "Tape"]


@dataclass
class Calls:
    """Which calls see records along their first axis, learnt from runs of two batch sizes.

    A table of positions has as many rows as a sequence is long, which may happen to be the
    size of the batch; the size that moved with the batch tells them apart.
    """

    seen: dict[tuple[str, int], list[_Sight]] = field(default_factory=dict)
    probing: bool = False
    counter: dict[str, int] = field(default_factory=dict)

    def restart(self) -> None:
        """Begin a forward pass."""
        self.counter = {}

    def batched(self, what: str, leading: int, rows: int, witness: Tensor | None = None) -> bool:
        """Whether this call's first axis counts records.

        What does not is a constant, for which `witness` vouches: it must be the same in runs
        with other records.
        """
        ordinal = self.counter.get(what, 0)
        self.counter[what] = ordinal + 1
        if self.probing:
            kept = None if witness is None else witness.detach().clone()
            self.seen.setdefault((what, ordinal), []).append(_Sight(leading, rows, kept))
            return leading == rows
        sights = self.seen.get((what, ordinal))
        if sights is None:  # a recomputation, or a path that the probe did not take
            known = [entry for (name, _), entry in self.seen.items() if name == what]
            sights = known[0] if known else [_Sight(leading, rows, None)]
        if _constant(sights):
            return False
        if leading != rows:
            raise UnsupportedModelError(_not_first(what, leading, rows))
        return True

    def check(self) -> None:
        """Refuse calls whose first axis is neither the batch nor that of a constant."""
        for (what, _), sights in self.seen.items():
            wrong = [s for s in sights if s.leading != s.rows]
            if wrong and not _constant(sights):
                raise UnsupportedModelError(_not_first(what, wrong[0].leading, wrong[0].rows))


@dataclass(frozen=True)
class _Sight:
    """One call in a probe."""

    leading: int
    rows: int
    witness: Tensor | None


def _constant(sights: Sequence[_Sight]) -> bool:
    first = sights[0]
    if len(sights) < 2 or len({s.leading for s in sights}) != 1:
        return False
    if first.witness is None:
        return True
    return all(s.witness is not None and torch.equal(s.witness, first.witness) for s in sights)


def _not_first(what: str, leading: int, rows: int) -> str:
    return (
        f"{what} gets a tensor whose first axis has size {leading} for a batch of {rows} records, "
        "so it cannot be told which rows belong to which record. Keep the batch as the first axis: "
        "apply layers to (batch, ..., features) without flattening, and use batch_first=True."
    )


class Tape:
    """Uses, contractions and bounded sums of one batch.

    Parameters
    ----------
    targets : dict of int to Target
        Learnt parameters by identity.
    constants : set of int
        Identities of buffers and frozen parameters: public, the same for all records.
    """

    def __init__(self, targets: Mapping[int, Target], constants: frozenset[int]) -> None:
        self.targets, self.constants = targets, constants
        self.calls = Calls()
        self.stack: list[str] = []
        self.rows = self.views = 0
        self.open = False
        self.device = "cpu"
        self.sums: Sums = {}
        self.norms: dict[str, Tensor] = {}
        #: Parameters whose Jacobian is not measured, found while probing.
        self.unmeasured: set[str] = set()
        self._reset()

    def _reset(self) -> None:
        self.derived: dict[int, Derived] = {}
        self.pending: dict[str, list[Contraction]] = {}
        self.expected: dict[str, int] = {}
        self.arrived: dict[str, int] = {}
        self.settled: set[str] = set()
        self.backward = False
        self.nonfinite: Tensor | None = None

    # -- a batch ------------------------------------------------------------------------

    @contextlib.contextmanager
    def batch(
        self,
        rows: int,
        views: int,
        estimator: Estimator | None,
        groups: Sequence[GroupSpec],
        limits: Mapping[str, float],
    ) -> Iterator[Tape]:
        """Record one batch; without estimator nothing is summed (a probe)."""
        self.begin(rows, views, estimator, groups, limits)
        try:
            yield self
        finally:
            self.end()

    def begin(
        self,
        rows: int,
        views: int,
        estimator: Estimator | None,
        groups: Sequence[GroupSpec],
        limits: Mapping[str, float],
    ) -> None:
        """Open a batch."""
        self._reset()
        self.rows, self.views, self.estimator = rows, views, estimator
        self.group_of = {name: group.name for group in groups for name in group.names}
        self.members = {group.name: frozenset(group.names) for group in groups}
        self.limits = limits
        self.sums, self.norms = {}, {}
        self.calls.restart()
        self.open = True

    def end(self) -> None:
        """Close the batch and let go of everything but the sums."""
        self.open = False
        self.stack.clear()
        self._reset()

    @property
    def records(self) -> int:
        """Records of the batch; each may have several views."""
        return self.rows // self.views

    # -- forward ------------------------------------------------------------------------

    def target(self, tensor: Any) -> Target | None:
        """Return what a tensor is to the tape, if it is a parameter or computed from some."""
        if not isinstance(tensor, Tensor):
            return None
        found = self.targets.get(id(tensor))
        if found is None and id(tensor) in self.derived:
            found = self.derived[id(tensor)].target
        return found

    def is_constant(self, tensor: Tensor) -> bool:
        """Whether a tensor is public and the same for all records, as far as is known."""
        return id(tensor) in self.constants or id(tensor) in self.targets or self.is_derived(tensor)

    def is_derived(self, tensor: Tensor) -> bool:
        """Whether a tensor was computed from parameters alone."""
        return id(tensor) in self.derived

    def use(self, *targets: Target | None) -> None:
        """Announce a use, so that the group waits for it."""
        if self.backward:
            return
        for name in self.bases(*targets):
            group = self.group_of.get(name)
            if group is not None:
                self.expected[group] = self.expected.get(group, 0) + 1

    def bases(self, *targets: Target | None) -> list[str]:
        """Names of the parameters that the gradients of these targets reach."""
        names: list[str] = []
        for target in targets:
            if target is not None:
                chain = next((d for d in self.derived.values() if d.target is target), None)
                names.extend([target.name] if chain is None else chain.names)
        return names

    # -- backward -----------------------------------------------------------------------

    def arrive(self, contraction: Contraction) -> None:
        """Take in the factors of one use."""
        if not self.open:
            raise RuntimeError(
                "a gradient arrived after its batch was closed: call backward once, and before the "
                "optimizer's step"
            )
        if self.estimator is None:
            return
        self.backward = True
        with full_precision(self.device):
            self._arrive(pulled_back(contraction, self.derived))

    def _arrive(self, contraction: Contraction) -> None:
        by_group: dict[str, set[str]] = {}
        for name in contraction.names:
            group = self.group_of[name]
            self.arrived[group] = self.arrived.get(group, 0) + 1
            by_group.setdefault(group, set()).add(name)
        for group, names in by_group.items():
            part = contraction
            if len(names) < len(set(contraction.names)):
                part = contraction.only(frozenset(names))
            self._take(group, part)

    def _take(self, group: str, part: Contraction) -> None:
        estimator = self.estimator
        assert estimator is not None
        if estimator.measures == "nothing" or (
            estimator.measures == "input" and not self.unmeasured.isdisjoint(self.members[group])
        ):
            add_to(self.sums, part.sums(None, None))
        elif estimator.measures == "input":
            norm = part.input_squares().sqrt()
            finite = torch.isfinite(norm)
            scale = estimator.scale(norm, self.limits[group])
            scale = torch.where(finite, scale, torch.zeros_like(scale))
            self._note(~finite)
            add_to(self.sums, part.sums(scale, needed(finite)))
        else:
            if group in self.settled:
                raise UnsupportedModelError(
                    f'a parameter of "{group}" was used again after the group had been bounded: '
                    "it was used in the backward pass more often than in the forward pass. Do not "
                    "call backward twice on one batch."
                )
            complete = self.arrived[group] >= self.expected.get(group, 0)
            self.pending.setdefault(group, []).append(part if complete else part.condensed())
            if complete:
                self._settle(group)

    def _settle(self, group: str) -> None:
        """All uses are in: join them, scale every record, and sum."""
        estimator, limit = self.estimator, self.limits[group]
        assert estimator is not None
        uses = joined(self.pending.pop(group))
        self.settled.add(group)
        cheap = estimator.measures == "bound"
        if len(uses) == 1:
            sums, norm = uses[0].clipped_sums(lambda n: estimator.scale(n, limit), cheap)
            self._note(~torch.isfinite(norm))
            self.norms[group] = norm
            add_to(self.sums, sums)
            return
        squares = torch.stack([u.bound().square() if cheap else u.squares() for u in uses])
        norm = squares.sum(0).sqrt()
        finite = torch.isfinite(norm)
        scale = torch.where(finite, estimator.scale(norm, limit), torch.zeros_like(norm))
        self._note(~finite)
        self.norms[group] = norm
        keep = needed(finite)
        for use in uses:
            add_to(self.sums, use.sums(scale, keep))

    def _note(self, bad: Tensor) -> None:
        self.nonfinite = bad if self.nonfinite is None else self.nonfinite | bad

    def finish(self) -> None:
        """Settle the groups of which some announced use never came back (unused branches)."""
        with full_precision(self.device):
            for group in list(self.pending):
                self._settle(group)


def joined(uses: list[Contraction]) -> list[Contraction]:
    """Join uses that share a parameter, so that the rest are orthogonal to each other."""
    clusters: list[list[Contraction]] = []
    for use in uses:
        apart = [c for c in clusters if not any(_overlap(use, member) for member in c)]
        touching = [c for c in clusters if any(_overlap(use, member) for member in c)]
        clusters = [*apart, [*(member for c in touching for member in c), use]]
    return [_join(cluster) for cluster in clusters]


def _overlap(first: Contraction, second: Contraction) -> bool:
    for one in first.targets:
        for other in second.targets:
            if one.name != other.name:
                continue
            if one.rows is None or other.rows is None:
                return True
            if one.rows[0] < other.rows[1] and other.rows[0] < one.rows[1]:
                return True
    return False


def _join(cluster: list[Contraction]) -> Contraction:
    if len(cluster) == 1:
        return cluster[0]
    result: Contraction | None = cluster[0]
    for other in cluster[1:]:
        result = None if result is None else result.merged(other)
    return CombinedContraction(cluster) if result is None else result
