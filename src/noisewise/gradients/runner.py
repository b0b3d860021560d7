"""Runs pieces of batches: bound to a path that was proven, or watched until they are.

What runs is what was proven, or it is watched before anything is taken from it. A piece that takes
an unknown path through the user's code is thrown away and run again under watch; what is not proven
apart is refused, with operation, line and repair.
"""

from __future__ import annotations

import contextlib
import secrets
import warnings
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from noisewise.bounds.norms import check_full_precision, full_float32
from noisewise.errors import UnsupportedModelError
from noisewise.gradients.agreeing import Agreeing
from noisewise.gradients.batches import Part, signature
from noisewise.gradients.buffers import Buffers, Held
from noisewise.gradients.chance import Chance
from noisewise.gradients.combinations import PerLayer, propagating
from noisewise.gradients.comparing import Comparing
from noisewise.gradients.contractions.base import Target
from noisewise.gradients.detours import Detour, PiecesDifferError, RecordsFailError
from noisewise.gradients.estimators import Estimator
from noisewise.gradients.failing import Failing
from noisewise.gradients.grouping import GroupSpec
from noisewise.gradients.interception import Interception, NeedsFallbackError, not_understood
from noisewise.gradients.models import check_gradients, check_hooks
from noisewise.gradients.piece import Piece, Selection
from noisewise.gradients.retained import Lingering
from noisewise.gradients.slots import Difference
from noisewise.gradients.tape import Factors
from noisewise.gradients.vouched import compare_halves
from noisewise.gradients.wiring import OffPathError, RelayoutError, Wiring
from noisewise.separation import (
    HANDED,
    Finding,
    Origin,
    Path,
    Proof,
    RefusedError,
    Storages,
    storage_key,
    storages,
)

__all__ = ["Runner", "WatchedWarning"]


class WatchedWarning(UserWarning):
    """Every step is watched, since a proof of one does not speak for the next."""


class Runner(Comparing, Failing, Agreeing):
    """A model on the tape, and what is proven of it.

    Attributes
    ----------
    proof : Proof or None
        What was shown of the model and the loss; None before the first batch.
    before : Storages or None
        Memory that existed before any record was met, if that is known already.
    batch : sequence of Tensor
        What the caller holds of the batch under way: reading it would mix records.
    whole : tuple
        Inputs and targets of the batch under way.
    factors : mapping of str to callable
        What gives records their factors, for every group, in the batch under way.
    slacks : dict of str to float
        What rounding may take of the sensitivities of groups, where it is not the usual.
    threads : int
        With which torch computed when the batch under way began.
    random : bool
        Whether model, loss or augmentation drew anything.
    own_places : bool
        Slots of a piece are not shown to be treated alike, so every record has one of its own.
    looking : bool
        Only a proof is wanted: no checks of what is vouched for.
    unscaled : bool
        A loss was propagated back that no scaler had multiplied.
    """

    model: nn.Module
    parameters: dict[str, nn.Parameter]
    losses_of: Callable[[Any, Any], Tensor]
    views: int
    augmentation: Callable[[Any], Any] | None
    assume_apart: bool
    private: Sequence[Tensor]
    batch: Sequence[Tensor] = ()
    whole: tuple[Any, Any] = (None, None)
    factors: Factors
    slacks: dict[str, float]
    threads: int
    interception: Interception
    buffers: Buffers
    lingering: Lingering
    proof: Proof | None = None
    before: Storages | None = None
    looking: bool = False
    unscaled: bool = False
    own_places: bool = False
    random = False
    _shifting: Origin | None = None
    _attached = False
    _slow = False
    _targets: dict[int, Target]
    _constants: frozenset[int]
    _unmeasured: set[str]
    _wirings: dict[Any, Wiring]
    #: Parameters of every module.
    _owned: list[dict[str, nn.Parameter | None]]
    _precision: contextlib.ExitStack

    @property
    def estimator(self) -> Estimator | PerLayer:
        """The one in force."""
        raise NotImplementedError

    @property
    def groups(self) -> tuple[GroupSpec, ...]:
        """Groups of the estimator in force."""
        raise NotImplementedError

    def _stages(self) -> list[Estimator | PerLayer]:
        raise NotImplementedError

    @property
    def assumed(self) -> Proof | None:
        """What was not proven and is trained on the user's word, if anything is."""
        return None if self.proof is None or self.proof.proven else self.proof

    @property
    def _lipschitz(self) -> bool:
        return any(propagating(estimator) is not None for estimator in self._stages())

    def _device(self) -> torch.device:
        return next(iter(self.parameters.values())).device

    # -- one piece ----------------------------------------------------------------------

    def piece_of(self, part: Part, limits: dict[str, float]) -> Piece:
        """A piece to be run step by step: bound if such pieces are known, else watched."""
        wiring = self.wiring_of(part)
        return self._piece(part, wiring, limits, watched=not wiring.paths)

    def finish(self, piece: Piece) -> None:
        """The backward pass of a piece that was run step by step."""
        try:
            piece.backward()
        except (RelayoutError, OffPathError, NeedsFallbackError, RecordsFailError):
            piece.path.digest = -1  # watched from the start when it is collected

    def checked(
        self, piece: Piece, part: Part, limits: dict[str, float], select: Selection | None
    ) -> Piece:
        """A piece that was run step by step, or one that was watched in its place."""
        wiring = piece.wiring
        if self._proves(piece, wiring):
            self._compare_grouped(piece, part, wiring, limits)
            self._note_alive(piece, wiring)
            return piece
        if piece.watch is not None and piece.path.digest != -1 and not piece.meets_strangers:
            self._judge(piece, wiring)
            self._agree(piece, part, wiring, limits)
            self._compare_slots(piece, part, wiring, limits)
            return piece
        if self.buffers.count:
            raise PiecesDifferError  # its state has moved with it: all from the start
        return self._run(part, limits, select)

    def fall_back(self, need: NeedsFallbackError) -> None:
        """Differentiate the module that is not understood record by record, from now on."""
        if self._lipschitz or need.path in self.interception.fallbacks:
            raise not_understood(self.model, need) from None
        self.interception.fallbacks[need.path] = need.function
        self.detach()
        self.attach()

    def _run_all(
        self,
        part: Part,
        limits: dict[str, float],
        select: Selection | None,
        chance: Chance,
        held: Held,
    ) -> Piece:
        """All records of a piece: bound to a path that was proven, else watched."""
        wiring = self.wiring_of(part)
        if wiring.paths and self.assumed is not None and not self.looking:
            compare_halves(self.model, self.losses_of, part.x, part.y)
        tried: Path | None = None
        ways = len(self.interception.fallbacks), len(self.interception.looped)
        if wiring.paths:
            piece = self._piece(part, wiring, limits)
            try:
                self._through(piece, select)
                if self._proves(piece, wiring):
                    self._compare_grouped(piece, part, wiring, limits)
                    self._note_alive(piece, wiring)
                    return piece
            except OffPathError:
                pass
            tried = piece.path
            chance.restore()
            self.buffers.restore(held)
        piece = self._watched(part, limits, select)
        same = ways == (len(self.interception.fallbacks), len(self.interception.looped))
        if same and tried is not None and tried.followed and not piece.path.passes(tried):
            raise PiecesDifferError(
                wiring.settled
            )  # the same piece, with the same state and chance
        return piece

    def _watched(
        self,
        part: Part,
        limits: dict[str, float],
        select: Selection | None = None,
    ) -> Piece:
        """Watch a piece, and refuse it unless its records are proven apart."""
        wiring = self.wiring_of(part)
        before: Storages | None = None
        chance = Chance(self._device())
        held = self.buffers.remember()
        while True:
            piece = self._piece(part, wiring, limits, watched=True, before=before)
            try:
                self._through(piece, select)
                if before is not None or not piece.meets_strangers:
                    break
                before = self.storages_before()
            except NeedsFallbackError as need:
                self.fall_back(need)
            except RelayoutError:
                pass
            except UnsupportedModelError:
                self.buffers.restore(held)  # what records wrote there is not left behind
                raise
            chance.restore()  # whatever is drawn is drawn once, however often it is watched
            self.buffers.restore(held)
        try:
            self._judge(piece, wiring)
        except UnsupportedModelError:
            self.buffers.restore(held)
            raise
        self.buffers.learn(held)
        if piece.watch is not None and piece.watch.random and not self.own_places:
            where = piece.watch.draws.were_set or self._sets_generator(part, wiring, limits)
            if where:  # what is drawn then is the same for whoever gets a place in a batch
                piece.watch.unlike.setdefault(Origin("the generator, which is set", where))
        self._agree(piece, part, wiring, limits)
        self._compare_slots(piece, part, wiring, limits)
        if self.assumed is not None and not self.looking:
            compare_halves(self.model, self.losses_of, part.x, part.y)
        return piece

    def _judge(self, piece: Piece, wiring: Wiring) -> None:
        """Accept what is proven, or what the user vouches for."""
        self.buffers.attributes.look()
        proof = piece.proof()
        if handing := self.buffers.attributes.handing:
            found = Finding(handing, self.defined() or "the program", HANDED)
            proof = replace(proof, escapes=(*proof.escapes, found))
        if not proof.proven and not self.assume_apart:
            raise proof.refusal(self.defined())
        if self.proof is None or self.proof.proven:
            self.proof = proof
        if piece.watch is not None and not (self.looking or self.assumed):
            self.buffers.write(piece.watch.written)
        if piece.watch is not None:
            self.random = self.random or piece.watch.random
            self._shifting = next(iter(piece.watch.shifting), self._shifting)
            self.require_steady_chance()
        if piece.path.followed:
            wiring.paths.add(piece.path.digest)
            wiring.lasting.setdefault(piece.path.digest, set()).update(piece.lasting())
        elif not self._slow and not self.looking:
            self._slow = True
            warnings.warn(
                f"every step of this model is watched, which costs about ten plain steps: "
                f"{piece.path.unfollowed}. What such code does cannot be told from what torch is "
                "asked to do, so one proof does not speak for the next step. Training is exact; "
                "without that code it is fast.",
                WatchedWarning,
                stacklevel=2,
            )
        if cached := piece.left_behind():
            # Made from public values while we watched, and kept: a cache that later runs may read.
            storages(cached, self.storages_before())
        self.interception.warn()

    def _sets_generator(self, part: Part, wiring: Wiring, limits: dict[str, float]) -> str:
        """Where a program sets torch's generator: forward pass and loss once more, watched.

        They begin with a state that nobody can have kept: a program that sets the generator back to
        what it is at the moment could not be told from one that draws on.
        """
        chance, held = Chance(self._device()), self.buffers.remember()
        torch.manual_seed(secrets.randbits(63))
        piece = self._piece(part, wiring, limits, watched=True, summing=False)
        try:
            with torch.enable_grad(), contextlib.suppress(Detour):
                piece.forward()
                piece.loss()
        finally:
            piece.close()
            chance.restore()
            self.buffers.restore(held)
        assert piece.watch is not None
        return piece.watch.draws.were_set

    def require_steady_chance(self) -> None:
        """Refuse draws that depend on who is in a piece, where all pieces are to draw the same."""
        if self._shifting is None or not self.own_places or self.assumed or self.looking:
            return
        raise RefusedError(
            f"{self._shifting.operation} at {self._shifting.place} takes more or fewer random "
            "numbers for other values of a record, and the program treats places of a batch "
            "differently or draws something for all records together (one mask, one layer that is "
            "dropped). What is drawn next would depend on who else is in the batch",
            "Draw for every entry whatever it is (torch.rand_like and torch.where instead of "
            "rrelu), or nothing for all records together.",
            self._shifting.place,
        )

    def _note_alive(self, piece: Piece, wiring: Wiring) -> None:
        """Remember what a bound piece has left alive: in time it must be gone."""
        if self.assumed is None and not self.looking:
            self.lingering.note(piece.path, wiring.lasting.get(piece.path.digest, ()))

    def _piece(
        self,
        part: Part,
        wiring: Wiring,
        limits: dict[str, float],
        watched: bool = False,
        summing: bool = True,
        before: Storages | None = None,
        program: nn.Module | None = None,
    ) -> Piece:
        piece = Piece(
            self.interception,
            wiring,
            self.losses_of,
            part.x,
            part.y,
            valid=part.valid,
            views=self.views,
            augmentation=self.augmentation,
            estimator=self.estimator,
            groups=self.groups,
            limits=limits,
            device=self._device(),
            private=[*self.private, *self.batch],
            watched=watched,
            summing=summing,
            before=before,
            each=part.each,
            weights=part.weights,
            gathers=part.gathered is not None,
            barred=part.barred,
            factors=self.factors,
            slacks=self.slacks,
            program=program,
        )
        if piece.watch is not None:
            piece.watch.comparing = not (self.looking or self.own_places)
        if self.own_places:
            piece.path.drawing = {}
        if unseen := self.buffers.attributes.unseen:
            piece.path.lose(unseen)
        if self._failed is not None or watched:
            piece.path.prefixes = set()
        return piece

    def _through(
        self,
        piece: Piece,
        select: Selection | None = None,
        observe: Difference | None = None,
        forward_only: bool = False,
    ) -> Piece:
        if (bounded := propagating(self.estimator)) is not None:
            check_full_precision(self._device().type, type(bounded).__name__)
        check_hooks(self.parameters)
        held = [(p, p.grad) for own in self._owned for p in own.values() if p is not None]
        for parameter, gradient in held:
            if gradient is not None:
                parameter.grad = None
        try:
            with torch.enable_grad():
                if forward_only:
                    piece.forward()
                elif observe is None:
                    with piece.together():
                        piece.forward()
                        piece.loss(select)
                        piece.backward()
                else:
                    piece.forward()
                    losses = piece.loss(select)
                    with piece.unwatched():
                        observe.compare([losses])
                    piece.backward()
            self.check_leaks()
        finally:
            piece.close()
            for parameter, gradient in held:
                if parameter.grad is not gradient:
                    parameter.grad = gradient
        return piece

    def accept_buffers(self) -> None:
        """Take the model's buffers as they are now for public: they were loaded from a release."""
        self.buffers.accept()

    def storages_before(self) -> Storages:
        """Memory from before this model met any record: what came later may hold some."""
        if self.before is None:
            # Parameters and buffers are known, and the dataset is private wherever it is read.
            held = (*self.model.parameters(), *self.model.buffers(), *self.private)
            self.before = storages(without={storage_key(tensor) for tensor in held})
        return self.before

    def wiring_of(self, part: Part) -> Wiring:
        """What is known of pieces of this shape."""
        key = signature(part.x)
        found = self._wirings.get(key)
        if found is None:
            found = Wiring(
                self._targets,
                self._constants,
                unmeasured=self._unmeasured,
                assumed=self.assume_apart,
            )
            self._wirings[key] = found
        return found

    def settle(self) -> None:
        """All pieces of a batch were treated alike: later ones are, too."""
        if torch.get_num_threads() != self.threads:
            # What is measured, and added later, may be computed twice; and pieces are to be alike.
            raise RefusedError(
                "the number of torch's threads changed while a batch was computed, and kernels "
                "may round in another way with another number of them",
                "Call torch.set_num_threads once, before training, and neither in the model nor "
                "in a thread beside it.",
            )
        for wiring in self._wirings.values():
            wiring.settled = wiring.settled or bool(wiring.paths)

    def check_leaks(self, before: Container[int] = ()) -> None:
        """Refuse gradients that bypassed the tape; `before` had one already."""
        check_gradients(self.model, self._owned, before, self._line_of_gradient)

    def _line_of_gradient(self, parameter: nn.Parameter) -> str:
        found = self.line_that(lambda: parameter.grad is not None, backward=False)
        return found or self.defined()

    # -- the model on the tape ----------------------------------------------------------

    def attach(self) -> None:
        """Put the model's modules on the tape until `detach`.

        Until then a model whose bounds are propagated also computes in full float32.
        """
        self.interception.attach()
        if self._lipschitz:
            self._precision.enter_context(full_float32(self._device().type))
        self._attached = True

    def detach(self) -> None:
        """Give the model back as it was."""
        self.interception.detach()
        self._precision.close()
        self._attached = False

    @contextlib.contextmanager
    def _attachment(self) -> Iterator[None]:
        attached = self._attached
        if not attached:
            self.attach()
        try:
            yield
        finally:
            if not attached:
                self.detach()
