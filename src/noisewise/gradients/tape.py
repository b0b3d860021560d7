"""The tape: what became of every use of a parameter in one batch.

Forward, each operation that uses a learnt parameter announces the use. Backward, it hands in
a contraction: the activation and the cotangent. As soon as all uses of a group have arrived
the estimator is asked for one factor per record, and the scaled sum is taken; a group with a
single use is settled inside that layer's own backward pass and stores nothing. Several uses
of one parameter are joined exactly before their norm is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from noisewise.bounds.norms import full_precision
from noisewise.gradients.combinations import PerLayer, propagating
from noisewise.gradients.contractions import Contraction, Target
from noisewise.gradients.contractions.base import Sums, add_to, needed
from noisewise.gradients.contractions.derived import Derived, check_lost, pulled_back
from noisewise.gradients.contractions.given import GivenContraction
from noisewise.gradients.contractions.joining import joined
from noisewise.gradients.estimators import Estimator, Lipschitz, clips
from noisewise.gradients.grouping import GroupSpec
from noisewise.gradients.layout import (
    CONSTANT,
    FIRST,
    NOT_APART,
    Layout,
    is_foreign,
    joined_planes,
    layout_of,
)
from noisewise.gradients.rules import clipped, held
from noisewise.gradients.wiring import (
    OffPathError,
    RelayoutError,
    Use,
    Wiring,
    not_apart,
)
from noisewise.separation import (
    Finding,
    Origin,
    Path,
    RefusedError,
    Watch,
    broadcast_shapes,
    is_mixed,
    place,
)

__all__ = ["KEPT_BYTES", "Factors", "Tape"]

#: What gradients that would be made twice may take, over all layers of a piece.
KEPT_BYTES = 64 << 20

#: For every group, what gives records their factors.
Factors = Mapping[str, Callable[[Tensor], Tensor]]


class Tape:
    """Uses, contractions and bounded sums of one batch.

    Parameters
    ----------
    wiring : Wiring
        What is known of the model: its parameters and constants, and the layouts of its calls.
    rows, views : int
        Rows of the batch; a record has `views` of them.
    estimator, groups, limits
        What bounds the sums. Without estimator nothing is summed.
    valid : Tensor, optional
        Which records count; the others only fill the batch up. None: all.
    watch : Watch, optional
        Follows the records through this run; without one, calls must be known to the wiring.
    path : Path, optional
        That of the run, which tells its calls from those of other paths.
    each, weights, gathers : int, Tensor, bool
        Records that are one unit, added before they are bounded; what each counts in it, where
        records are bounded by themselves; whether to add all up, for a unit that is bounded later.
    factors : mapping of str to callable
        From the measures of records to their factors, for every group.
    slacks : mapping of str to float
        What rounding may take of the sensitivities of groups, where it is not the usual.
    """

    def __init__(
        self,
        wiring: Wiring,
        rows: int,
        views: int,
        estimator: Estimator | PerLayer | None,
        groups: Sequence[GroupSpec],
        limits: Mapping[str, float],
        device: str = "cpu",
        valid: Tensor | None = None,
        watch: Watch | None = None,
        path: Path | None = None,
        each: int = 1,
        weights: Tensor | None = None,
        gathers: bool = False,
        factors: Factors | None = None,
        slacks: Mapping[str, float] | None = None,
    ) -> None:
        self.factors: Factors = {} if factors is None else factors
        self.slacks: Mapping[str, float] = {} if slacks is None else slacks
        self.each, self.weights, self.gathers = each, weights, gathers
        self.wiring, self.watch, self.valid = wiring, watch, valid
        self.path, self.unmeasured = Path() if path is None else path, wiring.unmeasured
        self.targets, self.constants = wiring.targets, wiring.constants
        self.rows, self.views, self.estimator = rows, views, estimator
        rules = wiring.rules_for(estimator, groups)
        self.group_of, self.members, self.rules = rules.group_of, rules.members, rules.rules
        # Where bounds are propagated, seeds are whole: the mean over views is taken afterwards.
        self.whole = 1 if propagating(estimator) is None else views
        self.counts: Tensor | None = None
        self.limits, self.device = limits, device
        self.stack: list[str] = []
        self.sums: Sums = {}
        self.norms: dict[str, Tensor] = {}
        self.nonfinite: Tensor | None = None
        self.mixed: list[Finding] = []
        #: Leaves that the library made so that autograd visits an operation.
        self.anchors: list[Tensor] = []
        #: Whether the batch's own backward pass is under way.
        self.returning, self.open = False, True
        #: How many derivatives the program itself is taking now, one within another.
        self.slopes = 0
        #: Whether it takes several in one pass.
        self.batched = False
        #: A layer that was used, of which no derivative can be differentiated again.
        self.once = ""
        #: Whether float32 is known to be full in the whole backward pass.
        self.is_full = False
        #: Shown every use that arrives, if somebody compares runs.
        self.observe: Callable[[Contraction], None] | None = None
        self._counter: dict[str, int] = {}
        self._room = KEPT_BYTES
        self._reset()

    def _reset(self) -> None:
        self.derived: dict[int, Derived] = {}
        self.pending: dict[str, list[Contraction]] = {}
        self.expected: dict[str, int] = {}
        self.arrived: dict[str, int] = {}
        self.settled: set[str] = set()
        self.backward = False

    def end(self) -> None:
        """Close the batch and let go of everything but the sums."""
        self.open = False
        self.stack.clear()
        self.anchors.clear()
        self.counts = None
        self._reset()

    @property
    def records(self) -> int:
        """Records of the batch; each may have several views."""
        return self.rows // self.views

    # -- where records sit --------------------------------------------------------------

    def layout(
        self, what: str, x: Tensor | Sequence[Tensor], features: int, names: Sequence[str]
    ) -> Layout:
        """Where the records sit in the operand of a call, or in several that are broadcast.

        Parameters
        ----------
        what : str
            Names the call; the same name stands for call after call of a run.
        features : int
            How many last axes of x belong to every position; -1: only the first axis counts.
        names : sequence of str
            Parameters that the call uses.
        """
        key = self._use(what)
        if self.watch is None:
            known = self.wiring.layouts.get(key)
            if known is None:
                raise OffPathError
            if known is NOT_APART:
                shape = broadcast_shapes(*[t.shape for t in ([x] if isinstance(x, Tensor) else x)])
                raise not_apart(what, shape, self.records)
            return known
        with self.watch.pause():
            self.wiring.layouts[key] = NOT_APART
            found = self._read_layout(key, x, features, names)
            found = found.on((x if isinstance(x, Tensor) else x[0]).device)
            for index in (found.order, found.inverse, found.owners):
                if index is not None:
                    self.watch.shadow.write(index, None, const=True)
        self.wiring.layouts[key] = found
        return found

    def _use(self, what: str) -> Use:
        ordinal = self._counter.get(what, 0)
        self._counter[what] = ordinal + 1
        return what, ordinal, self.path.digest

    def are_public(self, tensors: Sequence[Tensor], what: str) -> bool:
        """Whether a call meets no record, so that its result is part of a weight."""
        others = [t for t in tensors if not self.is_constant(t)]
        if any(t.requires_grad for t in others):
            return False
        key = self._use(f"{what} of constants")
        if self.watch is not None:
            public = all(self.watch.shadow.read(t) is None for t in others)
            self.wiring.layouts[key] = CONSTANT if public else FIRST
        found = self.wiring.layouts.get(key)
        if found is None:
            raise OffPathError
        return found.constant

    def spreads(self, what: str, copies: int, target: Target) -> bool:
        """Whether a parameter is spread over the rows of the batch, not only over positions."""
        if copies != self.rows:
            return False
        key = self._use(what)
        if key in self.wiring.constant_calls:
            return False
        self.wiring.doubtful.setdefault(key, frozenset(self.bases(target)))
        return True

    def _read_layout(
        self,
        key: Use,
        x: Tensor | Sequence[Tensor],
        features: int,
        names: Sequence[str],
    ) -> Layout:
        assert self.watch is not None
        operands = [x] if isinstance(x, Tensor) else list(x)
        shape = broadcast_shapes(*[t.shape for t in operands])
        found = layout_of(joined_planes(self.watch.shadow, operands, shape), self.records, features)
        leading = shape[0] if shape else 0
        if found is None and self.wiring.assumed and leading == self.rows:
            return FIRST
        if found is None:
            raise not_apart(key[0], shape, self.records, self._mixing(operands))
        each = self._rows_each(shape)
        if found.constant and each and key not in self.wiring.constant_calls:
            # Rows of the batch that happen to be public, or a table as long as the batch: its
            # gradient will tell.
            self.wiring.doubtful.setdefault(key, frozenset(names))
            if each == 1:
                return FIRST
            return Layout(owners=torch.arange(leading) // (leading // self.records))
        return found

    def _mixing(self, operands: Sequence[Tensor]) -> Origin | None:
        """What mixed the records of some operands, if they are mixed and not only moved."""
        assert self.watch is not None
        shadow = self.watch.shadow
        for operand in operands:
            cell, planes = shadow.cell(operand), shadow.read(operand)
            if cell is not None and planes is not None and bool(is_mixed(planes).any()):
                return cell.origin
        return None

    def _rows_each(self, shape: Sequence[int]) -> int:
        """How often a tensor may hold every row of the batch; 0 if it is no such tensor.

        Masks of attention are made for all windows of all records, before any record is in them.
        """
        leading = shape[0] if shape else 0
        windows = self.rows > 1 and len(shape) > 2 and leading % self.rows == 0
        return leading // self.rows if windows or leading == self.rows else 0

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
        if self.slopes and propagating(self.estimator) is not None:
            raise RefusedError(
                f"a derivative is computed inside the model, at {place()}, and bounds that are "
                "propagated through the model do not hold for what uses its weights once more",
                "Use noisewise.Clipped or noisewise.Factored, which measure every record.",
            )
        if self.batched:
            raise RefusedError(
                f"several derivatives are computed in one pass (is_grads_batched, vectorize), at "
                f"{place()}, through a layer that learns",
                "Call torch.autograd.grad once for each of them, or leave vectorize=False.",
            )
        if self.slopes:
            return  # on its way to an input: whoever asked gets no gradient of a parameter
        if not self.returning:
            raise RefusedError(
                f"backward() is called inside the model or the loss, at {place()}: what it leaves "
                "in .grad would be taken for the record's own gradient",
                "For a derivative by an input, call torch.autograd.grad(output.sum(), x, "
                "create_graph=True), which is followed.",
            )
        self.backward = True
        if self.observe is not None:
            self.observe(contraction)
        with torch._C.DisableTorchFunction():
            if self.is_full:
                self._arrive(contraction)
                return
            with full_precision(self.device):
                if self.watch is None:
                    self._arrive(contraction)
                    return
                with self.watch.pause():
                    self._inspect(contraction)
                    self._arrive(contraction)

    def _inspect(self, contraction: Contraction) -> None:
        """Every factor of a record holds that record alone: the condition of a sensitivity."""
        assert self.watch is not None
        for name, factor in contraction.ingredients():
            cell = self.watch.shadow.cell(factor)
            planes = self.watch.shadow.read(factor)
            if cell is not None:
                self.watch.trace.add(name, contraction.names, factor)
            # What was read from memory of before is dealt with where it is read.
            known = cell is not None or name in ("x", "tokens")
            if known and not is_foreign(planes, self.records):
                continue
            names = set(contraction.names)
            again = [key for key, used in self.wiring.doubtful.items() if names & used]
            again = [key for key in again if key not in self.wiring.constant_calls]
            if again and name != "x":
                self.wiring.constant_calls.update(again)
                raise RelayoutError
            origin = None if cell is None else cell.origin
            operation, where = origin or Origin("a reordering of the records", "the model")
            shown = ", ".join(f'"{n}"' for n in contraction.names)
            what = f"mixes records, and the mixture reaches the gradient of {shown}"
            self.mixed.append(Finding(operation, where, what))

    def _arrive(self, contraction: Contraction) -> None:
        if self.estimator is None:
            return
        if self.valid is not None:
            contraction = contraction.counting(self.valid)
        if self.counts is not None:
            contraction = contraction.weighted(self.counts)
        if self.each > 1 and not self.gathers:
            contraction = contraction.grouped(self.each)
        contraction = pulled_back(contraction, self.derived)
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
        estimator = self.rules[group]
        # Without a propagated bound every record is measured, whatever an estimator asks for.
        measures = estimator.measures if isinstance(estimator, Lipschitz) else "norm"
        if self.gathers:
            add_to(self.sums, {name: g.double() for name, g in part.sums(None, None).items()})
        elif measures == "nothing" or (
            measures == "input" and not self.unmeasured.isdisjoint(self.members[group])
        ):
            # Every use has a bound of its own.
            part.alone, part.slack = True, self.slacks.get(group)
            add_to(self.sums, part.sums(self.weights, None))
        elif measures == "input":
            part.alone, part.slack = True, self.slacks.get(group)
            norm = part.input_squares().double().sqrt()
            keep = needed(norm)
            # The limit is that of a cotangent, so a factor may undo the Jacobian and no more.
            scale = held(self.factors[group](norm), norm, 1.0)
            scale = scale if self.weights is None else scale * self.weights.to(scale)
            self._note(keep)
            add_to(self.sums, part.sums(scale, keep))
        else:
            if group in self.settled:
                raise RefusedError(
                    f'a parameter of "{group}" was used again after the group had been bounded: '
                    "it was used in the backward pass more often than in the forward pass",
                    "Do not call backward twice on one batch; and if the model recomputes "
                    "activations (gradient checkpointing), use the way that is not reentrant: "
                    "use_reentrant=False.",
                )
            complete = self.arrived[group] >= self.expected.get(group, 0)
            waiting = self.pending.setdefault(group, [])
            # A use that is alone is measured and added in one pass.
            waiting.append(part if complete and not waiting else self._condensed(part))
            if complete:
                self._settle(group)

    def _condensed(self, part: Contraction) -> Contraction:
        """What waits for other layers, as gradients where these fit into what is left for them."""
        found = part.condensed(self._room)
        if found is not part and isinstance(found, GivenContraction):
            self._room -= sum(g.numel() * g.element_size() for g in found.gradients.values())
        return found

    def _settle(self, group: str) -> None:
        """All uses are in: join them, scale every record, and sum.

        Whatever the estimator's factor, factor times norm is held below the limit here.
        """
        estimator, limit = self.rules[group], self.limits[group]
        uses = joined(self.pending.pop(group))
        self.settled.add(group)
        cheap = estimator.measures == "bound" and self.each == 1

        def factors(norms: Tensor) -> Tensor:
            norms = norms / self.whole if self.whole > 1 else norms
            if clips(estimator):
                return clipped(norms, limit)
            return held(self.factors[group](norms), norms, limit)

        if len(uses) == 1:
            uses[0].alone = True
            sums, norm = uses[0].clipped_sums(factors, cheap)
            add_to(self.sums, sums)
        else:
            lengths = torch.stack([use.lengths(cheap) for use in uses])
            norm = torch.linalg.vector_norm(lengths, dim=0).amax(0)
            scale, keep = factors(norm), needed(norm)
            for use in uses:
                add_to(self.sums, use.sums(scale, keep))
        self._note(needed(norm))
        self.norms[group] = norm

    def count(self, counts: Tensor) -> None:
        """Let every record count by a factor of its own, from 0 to 1, before it is bounded."""
        if self.watch is not None:
            with self.watch.pause():
                if is_foreign(self.watch.shadow.read(counts), self.records):
                    what = "mixes records, and decides by how much a record counts"
                    self.mixed.append(Finding("the loss's gradient", "the loss", what))
        self.counts = counts

    def _note(self, finite: Tensor | None) -> None:
        if finite is not None:  # else all records are
            self.nonfinite = ~finite if self.nonfinite is None else self.nonfinite | ~finite

    @property
    def is_unfinished(self) -> bool:
        """Whether some group still waits, or weights were computed from parameters."""
        return bool(self.pending or self.derived)

    def finish(self) -> None:
        """Settle the groups of which some announced use never came back (unused branches)."""
        check_lost(self.derived.values())
        if not self.pending:
            return
        with torch._C.DisableTorchFunction(), full_precision(self.device):
            for group in list(self.pending):
                self._settle(group)
