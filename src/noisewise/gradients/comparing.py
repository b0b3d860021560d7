"""Whether a path treats the slots of a piece alike: a made-up record in all of them."""

from __future__ import annotations

from typing import Any

import torch

from noisewise.gradients.batches import Part
from noisewise.gradients.buffers import Buffers
from noisewise.gradients.calm import Calm
from noisewise.gradients.detours import PlacesMatterError
from noisewise.gradients.models import Chance
from noisewise.gradients.piece import Piece
from noisewise.gradients.slots import KINDS, TRIALS, Difference, one_record_everywhere
from noisewise.gradients.wiring import OffPathError, Wiring

__all__ = ["Comparing"]


class Comparing:
    """Compares slots; a part of `Runner`."""

    buffers: Buffers
    looking: bool
    own_places: bool
    _piece: Any
    _through: Any

    def _device(self) -> torch.device:
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
            chance, held = Chance(self._device()), self.buffers.remember()
            alike = all(self._same_bits(trial, part, wiring, limits) for trial in range(TRIALS))
            chance.restore()
            self.buffers.restore(held)
            wiring.compared.add(digest)
        if not alike:
            self._give_own_places()

    def _give_own_places(self) -> None:
        self.own_places = True
        raise PlacesMatterError

    def compare_chance(self, unseen: bool) -> None:
        """Give records slots of their own if Python or numpy have drawn: for a whole piece."""
        if unseen and not (self.own_places or self.looking):
            self._give_own_places()

    def _same_bits(self, trial: int, part: Part, wiring: Wiring, limits: dict[str, float]) -> bool:
        """Whether a made-up record has the same numbers in every slot."""
        for kind in KINDS:
            x, y = one_record_everywhere(part.x, part.y, trial, kind)
            everywhere = Part(x, y, part.places, None, part.number, part.each)
            for watched in (False, True):  # whatever path it takes, this time
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
                return not found.found and (piece.watch is None or not piece.watch.unlike)
        return False
