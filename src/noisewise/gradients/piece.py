"""A piece of a batch on its way: forward, loss, backward, and the sums that it leaves.

All pieces of a model have one size, which is a public constant; the last one of a batch is filled
up with rows that count nothing. So one proof speaks for all of them. A piece is either *watched*,
which proves it apart or finds out why not, or *bound*: it must take a path that was proven.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import _engine_run_backward
from torch.utils import _pytree as pytree

from noisewise.bounds.norms import is_full
from noisewise.gradients.batches import augmented, finite_records, fold_views, signature
from noisewise.gradients.combinations import propagating
from noisewise.gradients.compiled import as_written
from noisewise.gradients.foreign import require_known, require_no_modes
from noisewise.gradients.grouping import GroupSpec
from noisewise.gradients.interception import Following, Interception
from noisewise.gradients.lipschitz import Gate, Way, shortened
from noisewise.gradients.losses import check_losses
from noisewise.gradients.marking import constant, followed, tensors
from noisewise.gradients.models import call_model
from noisewise.gradients.retained import kept_by, remember_kept
from noisewise.gradients.tape import Factors, Tape
from noisewise.gradients.wiring import Wiring
from noisewise.gradients.withheld import no_values, without_values
from noisewise.separation import (
    ESCAPED,
    FOREIGN,
    RAISING,
    Cell,
    Finding,
    Leaks,
    Path,
    Proof,
    Storages,
    Watch,
    general_ways,
    is_mixed,
    noticing_backward_code,
    noticing_threads,
    place,
)

__all__ = ["Piece", "Selection"]

_NOTHING: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()

#: From what the model returned (as a structure of tensors) to what the loss is given.
Selection = Callable[[Any], Any]


class Piece:
    """One piece.

    Parameters
    ----------
    interception : Interception
        Of a model that is attached to it.
    wiring : Wiring
    losses_of : callable
        From output and target to one loss per row.
    x, y : structures of tensors
        Records along the first axis, as many as every piece has.
    valid : Tensor, optional
        Which records count; None: all.
    augmentation : callable, optional
        Applied to x, `views` times, before the model.
    private : sequence of Tensor
        The dataset, if it is known: reading it would mix records.
    watched, summing : bool
        Whether to follow the records; to sum, or only to look.
    before : Storages, optional
        Memory from before any record was met; looked at closely if it is given.
    each, weights, gathers
        How records are one unit, as of `Tape`.
    barred : Tensor, optional
        Slots of records that count nothing.
    factors, slacks
        As of `Tape`.
    program : Module, optional
        Run in place of the model.

    Attributes
    ----------
    way, entering
        What the forward pass did where bounds are propagated through it, and with what records.
    """

    way: Way | None = None
    entering: tuple[tuple[int, ...], torch.dtype] | None = None

    def __init__(
        self,
        interception: Interception,
        wiring: Wiring,
        losses_of: Callable[[Any, Any], Tensor],
        x: Any,
        y: Any,
        *,
        valid: Tensor | None,
        views: int,
        augmentation: Callable[[Any], Any] | None,
        estimator: Any,
        groups: Sequence[GroupSpec],
        limits: Mapping[str, float],
        device: torch.device,
        private: Sequence[Tensor] = (),
        watched: bool = False,
        summing: bool = True,
        before: Storages | None = None,
        each: int = 1,
        weights: Tensor | None = None,
        gathers: bool = False,
        barred: Tensor | None = None,
        factors: Factors | None = None,
        slacks: Mapping[str, float] | None = None,
        program: nn.Module | None = None,
    ) -> None:
        self.program = interception.model if program is None else program
        self.each, self.weights, self.barred = each, weights, barred
        self.interception, self.wiring, self.losses_of = interception, wiring, losses_of
        self.x, self.y = constant(x), constant(y)
        self.valid, self.views = valid, views
        self.augmentation, self.bounded = augmentation, propagating(estimator)
        self.records = next(t.shape[0] for t in tensors(x))
        self.path = Path(interception.known(), wiring.outside, learning=watched)
        self.watch = self._watch(private, before) if watched else None
        if self.watch is not None:
            self.path.made = self.watch.shadow.cell
        self.tape = Tape(
            wiring,
            self.records * views,
            views,
            estimator if summing else None,
            groups,
            limits,
            device.type,
            valid,
            self.watch,
            self.path,
            each,
            None if propagating(estimator) is None else weights,
            gathers,
            factors,
            slacks,
        )
        self.output: Any = None
        self.losses: Tensor | None = None
        self.gate: Gate | None = None
        self.kept: Tensor
        #: What every row counts; None if that is one.
        self.shares: Tensor | None = None
        self.findings: list[Finding] = []
        #: Results without records that were alive after a moment of a watched run.
        self._public: dict[int, Cell | None] = {}
        self._within = False

    def set_targets(self, y: Any) -> None:
        """Give the targets, which a loop of the user's own has only after the forward pass."""
        self.y = constant(y)
        if self.watch is not None:
            with self.watch.pause():
                self.y = followed(self.watch, y)

    def _watch(self, private: Sequence[Tensor], before: Storages | None) -> Watch:
        model = self.interception.model
        watch = Watch([*model.parameters(), *model.buffers()], private, before)
        self.x, self.y = followed(watch, (self.x, self.y))
        return watch

    # -- the three moments --------------------------------------------------------------

    def forward(self) -> Any:
        """Run the model."""
        with self._following():
            x = self._inputs()
            self.interception.active = True
            with self.interception.mode:
                model = partial(call_model, self.program)
                output = without_values(self.path, "the model", model, x)
            self.interception.active = False
            if self.bounded is not None:
                self.entering = tuple(x.shape[1:]), x.dtype
                self.way = self.path.digest, self.path.floats
                self.gate = Gate(self.bounded.loss_clip)
                self.path.hand_over(pytree.tree_leaves(output))
                output = self.gate.guard(output)
                self._name(output)
            if self.watch is not None:
                self._note_public()
        self.output = output
        return output

    def loss(self, select: Selection | None = None) -> Tensor:
        """One loss per row."""
        rows, bounded = self.records * self.views, self.bounded
        with self._following():
            chosen = self.output
            if select is not None:
                with Following(self.path):
                    chosen = select(chosen)
            self.path.hand_over((chosen,) if _is_one(chosen) else pytree.tree_leaves(chosen))
            self.path.digest = hash((self.path.digest, signature(self.y)))
            self._name(self.y)
            y = self.y
            if self.views > 1:
                y = pytree.tree_map(self._repeated, y)
                self._name(y)  # or every step would meet a stranger, and be watched
            leaf = chosen if bounded is None else chosen.detach().requires_grad_()
            if bounded is not None:
                self._name(leaf)
            self.interception.active = True
            with torch.enable_grad(), self.interception.mode:
                values = without_values(self.path, "the loss", self.losses_of, leaf, y)
            self.interception.active = False
            losses = check_losses(values, rows)
            self.path.hand_over((losses,))
            self._check_losses(losses)
            if self.watch is not None:
                known = {*self.wiring.targets, *self.tape.derived, id(leaf)}
                known.update(map(id, self.tape.anchors))
                with self.watch.pause():
                    require_known(losses, known, self.watch.shadow)
            if bounded is not None:
                assert self.gate is not None
                losses = self.gate.enter(losses, leaf, self.seeds(losses), chosen)
                if bounded.knee is not None:
                    self.tape.count(self.gate.counts(bounded.knee, self.views))
            if self.watch is not None:
                self._note_public()
        self.losses = losses
        return losses

    def backward(self) -> None:
        """Send every record's seed back; what arrives goes to the tape."""
        losses = self.losses
        self.tape.returning = True
        self.path.turn_back()
        assert losses is not None
        # Where nobody else's code runs in a bound backward pass, it stays as it is.
        alone = self.watch is None and not self.path.recomputes
        self.tape.is_full = alone and is_full(self.tape.device)
        with self._following():
            if losses.requires_grad:
                seeds = self.seeds(losses)
                with Following(self.path):
                    # torch.autograd.backward is a torch function itself: under it, the modes
                    # would not see what hooks and custom functions do.
                    no_values(
                        self.path,
                        "the backward pass",
                        _engine_run_backward,
                        (losses,),
                        (seeds,),
                        False,
                        False,
                        (),
                        allow_unreachable=True,
                        accumulate_grad=True,
                    )
        if self.tape.is_unfinished:
            with torch.no_grad(), self.unwatched():
                self.tape.finish()

    def close(self) -> None:
        """Let go of the graph."""
        self.output = self.losses = self.gate = None
        self.tape.end()
        self.path.end()
        if self.watch is not None:
            self._note_public()
            remember_kept(self.watch.shadow)

    def seeds(self, losses: Tensor) -> Tensor:
        """One over the number of views for every row; nothing for a row that does not count.

        A row of a unit has its share of the unit. Bounds are propagated for whole cotangents: there
        views and rows are averaged afterwards, since a limit on a cotangent that was divided before
        would let each of them reach it.
        """
        if self.bounded is not None:
            return self.kept.to(losses.dtype)
        if self.shares is None:
            return torch.full_like(losses, 1 / self.views, requires_grad=False)
        return self.shares.to(losses.dtype) / self.views

    @property
    def meets_strangers(self) -> bool:
        """Whether a watched piece read memory that no operation made and that is not known."""
        return self.watch is not None and self.watch.strangers

    @property
    def trace(self) -> tuple[Any, ...]:
        """What the program did; equal for pieces that it treats alike."""
        path, watch = self.path, self.watch
        computed = None if path.followed or watch is None else watch.trace.digest
        return path.digest, path.floats, path.followed, computed

    @property
    def all_count(self) -> bool:
        """Whether every record is known to count: nobody had to be asked a device for it."""
        return self.shares is None and self.tape.nonfinite is None

    def bad(self) -> Tensor | None:
        """How many records counted zero because they were not finite; None: none of them."""
        if self.all_count:
            return None
        each = self.each if self.bounded is None else 1
        bad = ~self.kept.reshape(-1, each * self.views).any(1)
        found = self.tape.nonfinite
        bad = bad if found is None else bad | found
        # A unit's first row is always its own.
        return (bad if self.valid is None else bad & self.valid.reshape(-1, each)[:, 0]).sum()

    def unwatched(self) -> contextlib.AbstractContextManager[None]:
        """The library itself computes."""
        return contextlib.nullcontext() if self.watch is None else self.watch.pause()

    # -- inside -------------------------------------------------------------------------

    def together(self) -> contextlib.AbstractContextManager[None]:
        """Take the three moments of a bound piece without letting go in between."""
        return self._followed(True) if self.watch is None else _NOTHING

    def _following(self) -> contextlib.AbstractContextManager[None]:
        """Modules record on this piece's tape; a watched piece is watched."""
        return _NOTHING if self._within else self._followed()

    @contextlib.contextmanager
    def _followed(self, within: bool = False) -> Iterator[None]:
        interception = self.interception
        interception.tape, interception.path, interception.running = self.tape, self.path, True
        try:
            with (
                as_written(),
                general_ways(interception.model),
                noticing_backward_code(self.path.called),
                noticing_threads(self._notice),
            ):
                require_no_modes()
                buffers = interception.versions()
                if self.watch is None:
                    self.path.begin()
                    self._within = within
                    yield
                    self.path.require_no_setting()
                else:
                    with self.watch, Leaks(self.watch):
                        self.path.begin()
                        yield
                    if self.watch.random:
                        self.watch.draws.begin(place)
                if buffers:
                    now = interception.versions()
                    self.path.wrote(
                        (before, after, version)
                        for (before, version), (after, _) in zip(buffers, now, strict=True)
                    )
        finally:
            self._within = False
            interception.running = interception.active = False
            interception.path = None

    def _notice(self, what: str) -> None:
        """Something was called that cannot be followed."""
        self.path.lose(what)
        if self.watch is not None:
            self.watch.notice(what)

    def _inputs(self) -> Any:
        """Augmented and folded inputs; rows of records that are not finite become zeros."""
        x = self.x
        self._name(x)
        if self.augmentation is not None:
            with Following(self.path):
                change = partial(augmented, self.augmentation, self.views)
                x = without_values(self.path, "the augmentation", change, x)
            self.path.hand_over(pytree.tree_leaves(x))
        x = fold_views(x, self.views)
        with self.unwatched():
            # Each row by itself: the library's own, and right whatever the rows hold.
            cleaned, self.kept = finite_records(x, self.views)
            self._carry(x, cleaned)
            # On a CPU the very inputs say that all rows are finite.
            whole = cleaned is x and self.kept.device.type == "cpu"
            if self.valid is not None:
                self.kept, whole = self.kept & self.valid.repeat_interleave(self.views), False
            if self.barred is not None:
                barred = self.barred.to(self.kept.device)
                self.kept, whole = self.kept & ~barred.repeat_interleave(self.views), False
            if self.watch is not None or self.weights is not None or not whole:
                self.shares = self.kept.double()
            if self.shares is not None and self.weights is not None:
                self.shares = self.shares * self.weights.repeat_interleave(self.views)
            if self.watch is not None and self.shares is not None:
                rows = torch.arange(len(self.kept))
                self.watch.mark(self.kept, rows // self.views)
                self.watch.mark(self.shares, rows // self.views)
        x = cleaned
        if self.bounded is not None and self.bounded.input_norm is not None:
            x = shortened(x, self.bounded.input_norm)
        self._name(x)
        return x

    def _name(self, values: Any) -> None:
        """Let the path know tensors that the library itself has made."""
        for tensor in tensors(values):
            self.path.name(tensor)

    def _carry(self, before: Any, after: Any) -> None:
        """Give cleaned rows the shadow that they had."""
        if self.watch is None:
            return
        pairs = zip(pytree.tree_leaves(before), pytree.tree_leaves(after), strict=True)
        for old, new in pairs:
            if isinstance(new, Tensor) and new is not old:
                self.watch.carry(old, new)

    def _repeated(self, value: Any) -> Any:
        return value.repeat_interleave(self.views, dim=0) if isinstance(value, Tensor) else value

    def _check_losses(self, losses: Tensor) -> None:
        """Each row's loss holds its own record alone."""
        if self.watch is None:
            return
        with self.watch.pause():
            planes = self.watch.shadow.read(losses)
            cell = self.watch.shadow.cell(losses)
            if planes is None:
                return
            expected = torch.arange(len(losses)) // self.views + 1
            if bool(((planes[0] > 0) & (is_mixed(planes) | (planes[0] != expected))).any()):
                origin = None if cell is None else cell.origin
                operation, place = origin or ("a reordering of the records", "the loss")
                what = "mixes records, and the mixture reaches a record's loss"
                self.findings.append(Finding(operation, place, what))

    def lasting(self) -> set[int]:
        """Numbers of results without records that a watched run made and somebody keeps."""
        return {n for n, cell in self._public.items() if cell is None or cell.planes is None}

    def _note_public(self) -> None:
        """A moment is over: what is alive and without records, the program may keep.

        In a loop of the user's own the next piece may replace it before this one is judged.
        """
        assert self.watch is not None
        shadow = self.watch.shadow
        for key, number in self.path.alive():
            cell = shadow.cells.get(key)
            if cell is None or cell.planes is None:
                self._public[number] = cell

    def left_behind(self) -> set[int]:
        """Memory without records that a watched run made and somebody keeps."""
        assert self.watch is not None
        return self.watch.left_behind()

    # -- the verdict --------------------------------------------------------------------

    def proof(self) -> Proof:
        """What watching showed. Call it after `close`."""
        watch = self.watch
        assert watch is not None
        model = self.interception.model
        raising = [Finding(o.operation, o.place, RAISING) for o in watch.may_raise]
        # What is still alive afterwards, somebody else keeps: also the records themselves.
        self.x = self.y = None
        self.kept = self.kept.clone()
        self.shares = None if self.shares is None else self.shares.clone()
        kept = kept_by(model, watch.shadow)
        return Proof(
            mixed=tuple(dict.fromkeys((*self.findings, *self.tape.mixed, *raising))),
            unknown=tuple(
                Finding(o.operation, o.place, "is an operation on records that no rule speaks for")
                for o in watch.unknown
            ),
            escapes=tuple(
                Finding(o.operation, o.place, FOREIGN if "unknown" in o.operation else ESCAPED)
                for o in watch.escapes
            ),
            state=tuple(kept),
            outside=tuple(
                Finding(o.operation, o.place, "neither an input nor a parameter or buffer")
                for o in watch.outside
            ),
            records=self.records,
        )


def _is_one(values: Any) -> bool:
    """Whether a structure of tensors is a tensor by itself."""
    return type(values) is Tensor
