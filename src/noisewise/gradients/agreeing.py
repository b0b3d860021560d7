"""That bounds speak of the program that runs.

Bounds are propagated through a graph that was read of the model. What then runs is the model, and
Python may do something else in it: another branch, a hook, a number that has changed, records of
another shape. So whenever a way through the model is watched, the model is read once more, which
has to give the same graph; and the graph is run in place of the model, which has to ask the same
of torch. Runs that are not watched must take such a way, equal in every float, too.
"""

from __future__ import annotations

import contextlib

import torch
from torch import nn

from noisewise.bounds import Graph, trace
from noisewise.gradients.batches import Part
from noisewise.gradients.buffers import Buffers
from noisewise.gradients.chance import Chance
from noisewise.gradients.lipschitz import LipschitzBounds, changed
from noisewise.gradients.piece import Piece
from noisewise.gradients.wiring import OffPathError, Wiring

__all__ = ["Agreeing"]


class Agreeing:
    """The part of a runner that lets bounds speak for what runs."""

    model: nn.Module
    buffers: Buffers
    bounds: LipschitzBounds | None = None
    _attached: bool

    def attach(self) -> None:
        """Put the model's modules on the tape."""
        raise NotImplementedError

    def detach(self) -> None:
        """Give the model back as it was."""
        raise NotImplementedError

    def _piece(
        self,
        part: Part,
        wiring: Wiring,
        limits: dict[str, float],
        *,
        summing: bool = True,
        program: nn.Module | None = None,
    ) -> Piece:
        raise NotImplementedError

    def _device(self) -> torch.device:
        raise NotImplementedError

    def _proves(self, piece: Piece, wiring: Wiring) -> bool:
        """Whether what a piece did was watched, and is what bounds were propagated through."""
        known = piece.way is None or (self.bounds is not None and piece.way in self.bounds.ways)
        return known and wiring.proves(piece.path)

    def _agree(self, piece: Piece, part: Part, wiring: Wiring, limits: dict[str, float]) -> None:
        """Refuse a watched piece that did something else than the graph of the bounds says."""
        bounds = self.bounds
        if piece.way is None or bounds is None:
            return
        if not piece.path.followed:
            raise changed(f"what it does now cannot be told: {piece.path.unfollowed}")
        if piece.way in bounds.ways:
            return
        assert piece.entering is not None
        graph = self._read_again(*piece.entering)
        if not graph.is_like(bounds.graph):
            raise changed("for this batch it computes something else, or records of another shape")
        if self._way_of(graph.program, part, wiring, limits) != piece.way:
            raise changed("it does something else when it trains than when it is read")
        bounds.ways.add(piece.way)

    def _read_again(self, shape: tuple[int, ...], dtype: torch.dtype) -> Graph:
        """Read the model as it is now."""
        attached = self._attached
        if attached:
            self.detach()
        try:
            return trace(self.model, shape, dtype)
        finally:
            if attached:
                self.attach()

    def _way_of(
        self, program: nn.Module, part: Part, wiring: Wiring, limits: dict[str, float]
    ) -> object:
        """What a program asks of torch in place of the model."""
        chance, held = Chance(self._device()), self.buffers.remember()
        piece = self._piece(part, wiring, limits, summing=False, program=program)
        piece.tape.stack.append("")  # the model's own place
        try:
            with torch.enable_grad(), contextlib.suppress(OffPathError):
                piece.forward()
            return piece.way
        finally:
            piece.close()
            chance.restore()
            self.buffers.restore(held)
