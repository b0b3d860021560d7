"""Whether a path treats the slots of a piece alike: a made-up record in all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from noisewise.gradients.batches import Part, signature
from noisewise.gradients.blame import Blame
from noisewise.gradients.buffers import Held, Stage
from noisewise.gradients.calm import Calm
from noisewise.gradients.chance import Chance
from noisewise.gradients.detours import PiecesDifferError, PlacesMatterError
from noisewise.gradients.piece import Piece
from noisewise.gradients.slots import KINDS, TRIALS, Difference, one_record_everywhere
from noisewise.gradients.wiring import OffPathError, Wiring
from noisewise.separation import Proof, RefusedError

__all__ = ["Comparing", "Start"]

_Result = TypeVar("_Result")

_UNSTEADY = (
    "the model, the loss or the augmentation does not do the same every time it is called, though "
    "torch, Python and numpy drew the same: it counts its calls, or draws from a generator of its "
    "own. A batch is computed in pieces, so how a record is treated would depend on who else is in "
    "the batch, and no sensitivity holds",
    "Keep counters and generators in attributes of the model, the loss or the augmentation (they "
    "move once a step), set schedules between the steps, or draw with torch.",
)


class Start(NamedTuple):
    """Chance and state as they are when a batch begins."""

    chance: Chance
    held: Held


class Comparing(Blame):
    """Compares slots; a part of `Runner`."""

    looking: bool
    own_places: bool
    _piece: Any
    _through: Any
    wiring_of: Any

    @property
    def assumed(self) -> Proof | None:
        """What was not proven and is trained on the user's word, if anything is."""
        raise NotImplementedError

    def _compare_grouped(
        self, piece: Piece, part: Part, wiring: Wiring, limits: dict[str, float]
    ) -> None:
        """Units with another number of rows are measured by other kernels: compare these, too."""
        known = (piece.path.digest, part.each) in wiring.compared
        if not known and part.gathered is None:
            self._compare_slots(piece, part, wiring, limits)

    def _compare_slots(
        self, piece: Piece, part: Part, wiring: Wiring, limits: dict[str, float]
    ) -> None:
        """Give records slots of their own, unless this path is shown to treat all slots alike."""
        if self.own_places or self.looking or self._device().type == "meta":
            return
        digest = (piece.path.digest, part.each)
        alike = piece.watch is None or not piece.watch.unlike
        if alike and digest not in wiring.compared:
            alike = self._all_same_bits(part, wiring, limits, piece.path.followed)
            wiring.compared.add(digest)
        if not alike:
            self._give_own_places()

    def _give_own_places(self) -> None:
        self.own_places = True
        raise PlacesMatterError

    def compare_pieces(
        self, seen: dict[Any, Any], part: Part, piece: Piece, *stages: Stage
    ) -> None:
        """Notice a program that does not do the same to every piece of a batch.

        It counts its calls, say, or draws from a generator of its own. Which records share a piece
        depends on who else was drawn. What was assumed may do as it likes.
        """
        if self.looking or self.assumed is not None:
            return
        key = (signature(part.x), signature(part.y))
        alike = seen.setdefault(key, piece.trace) == piece.trace
        if not alike or (part.number and any(stage.outgrown for stage in stages)):
            raise PiecesDifferError(self.wiring_of(part).settled)

    def compare_stages(self, *stages: Stage) -> None:
        """Notice state that moved though it was not known to: it has to be put back."""
        for stage in stages:
            stage.end()
        if any(stage.outgrown for stage in stages) and not (self.looking or self.assumed):
            raise PiecesDifferError

    def steadily(self, run: Callable[[Start], _Result], differed: bool = False) -> _Result:
        """Make a run again until all its pieces are treated alike, in slots that allow it.

        Once more as it was: what is made once and kept makes the first piece differ. It can be made
        when such pieces come for the first time; what happens once at a later step, though chance
        and state are the same, is a count that nobody sees. Then with slots of the records' own,
        where shared chance is the same for all pieces. `differed` if they did when the batch was
        run step by step, at such a later step.
        """
        held, chance = self.buffers.remember(), Chance(self._device())
        again = settled = differed
        while True:
            count = self.buffers.count
            try:
                result = run(Start(chance, held))
            except PlacesMatterError:
                again = False
            except PiecesDifferError as found:
                settled = found.settled and not self.own_places
                self.buffers.attributes.look()  # what came with the first piece is state, too
                self.buffers.learn(held)
                if self.buffers.count == count:
                    if again and self.own_places:
                        raise self.unsteady() from None
                    self.own_places, again = self.own_places or again, not again
                chance.restore()
            else:
                if again and settled:
                    raise self.unsteady()
                return result
            self.buffers.restore(held)
            held = self.buffers.remember()

    def unsteady(self) -> RefusedError:
        """Say that a program does not do the same every time."""
        return RefusedError(*_UNSTEADY, self.line_that_varies() or self.defined())

    def compare_chance(self, unseen: bool) -> None:
        """Give records slots of their own if Python or numpy have drawn: for a whole piece."""
        if unseen and not (self.own_places or self.looking):
            self._give_own_places()

    def _all_same_bits(
        self, part: Part, wiring: Wiring, limits: dict[str, float], followed: bool
    ) -> bool:
        """Whether made-up records have the same numbers in every slot."""
        chance, held = Chance(self._device()), self.buffers.remember()
        seen: dict[Any, Any] = {}
        try:
            for trial in range(TRIALS):
                chance.restore()
                self.buffers.restore(held)
                if not self._same_bits(trial, part, wiring, limits, followed, seen):
                    return False
            return True
        finally:
            chance.restore()
            self.buffers.restore(held)

    def _same_bits(
        self,
        trial: int,
        part: Part,
        wiring: Wiring,
        limits: dict[str, float],
        followed: bool,
        seen: dict[Any, Any],
    ) -> bool:
        """Whether a made-up record has the same numbers in every slot."""
        for kind in KINDS:
            x, y = one_record_everywhere(part.x, part.y, trial, kind)
            everywhere = Part(x, y, part.places, None, part.number, part.each)
            # Whatever path it takes, this time; and only a watch tells what backward code did.
            for watched in (False, True) if followed else (True,):
                found = Difference(len(part.places))
                piece = self._piece(everywhere, wiring, limits, watched=watched)
                piece.tape.observe = found.look
                try:
                    with Calm():  # type: ignore[no-untyped-call]
                        self._through(piece, observe=found)
                except OffPathError:
                    continue
                except Exception:
                    break  # numbers that the program does not take
                found.compare(piece.tape.norms.values(), len(part.places) // part.each)
                self.compare_pieces(seen, everywhere, piece)
                return not found.found and (piece.watch is None or not piece.watch.unlike)
        return False
