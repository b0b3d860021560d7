"""Records on which the user's program raises: they count nothing, and the step is taken.

An exception that ends a run tells that a record was drawn. So the records of a piece that fail are
looked for: some of them stay, made-up ones stand in the places of the others, and each part that
still fails is halved. An operation raises for several records if and only if it raises for one of
them (docs/proofs/separation.md), so whether a record fails is a matter of that record alone. What
fails on made-up records as well is a mistake in the program, and its error is shown. Code that
raises by itself has read a value or counts its calls, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from noisewise.errors import UnsupportedModelError
from noisewise.gradients.batches import Part
from noisewise.gradients.buffers import Buffers
from noisewise.gradients.detours import PiecesDifferError, RecordsFailError
from noisewise.gradients.interception import NeedsFallbackError
from noisewise.gradients.models import Chance
from noisewise.gradients.piece import Piece, Selection
from noisewise.gradients.slots import KINDS, one_record_everywhere
from noisewise.gradients.wiring import OffPathError, RelayoutError

__all__ = ["Failing"]


_RAISES = (
    "the model, the loss or the augmentation raises {} on some records and not on others, by "
    "itself and not in an operation of torch. So it has read a record's value into Python, and "
    "whether it raises may depend on several records; or it counts its calls. Nothing was released "
    "or charged. Give such records a weight of zero with torch.where, or check the data before "
    "training: records on which an operation of torch fails (a label that is out of range) count "
    "nothing."
)


class Failing:
    """Runs pieces without the records on which the program fails; a part of `Runner`."""

    buffers: Buffers
    wiring_of: Any
    fall_back: Any
    _device: Any
    _piece: Any
    _through: Any
    _run_all: Any
    #: While records that fail are looked for: the ways on which it did.
    _failed: set[Any] | None = None

    def _run(self, part: Part, limits: dict[str, float], select: Selection | None = None) -> Piece:
        """Forward, loss and backward of a piece, without the records on which these fail."""
        chance = Chance(self._device())
        self._failed = None
        try:
            whole: Piece = self._run_all(part, limits, select)
            return whole
        except RecordsFailError as found:
            failure = found
        chance.restore()
        self.buffers.rewind()
        try:
            part = self.without_failing(part, limits, failure, select)
            piece: Piece = self._run_all(part, limits, select)
            if not (self._failed or set()) <= (piece.path.prefixes or set()):
                # It raised on another way than the one that is taken without these records.
                raise PiecesDifferError
            return piece
        except RecordsFailError:
            raise PiecesDifferError from None  # none of them fails by itself
        finally:
            self._failed = None

    def without_failing(
        self,
        part: Part,
        limits: dict[str, float],
        failure: RecordsFailError,
        select: Selection | None = None,
    ) -> Part:
        """A piece without the records on which the program fails; its error if it always does.

        Afterwards `_failed` holds the ways on which it did.
        """
        chance = Chance(self._device())
        own = [failure.own]
        self._failed = ways = set()

        def fails(some: Part) -> bool:
            watched = False
            while True:
                piece = self._piece(some, self.wiring_of(some), limits, watched=watched)
                try:
                    self._through(piece, select, forward_only=part.y is None)
                    return False
                except RecordsFailError as error:
                    if piece.path.followed or watched:
                        own.append(error.own)
                        ways.add(piece.path.failing)
                        return True
                    watched = True  # its way is not known before it was watched
                except OffPathError:
                    watched = True
                except RelayoutError:
                    pass
                except NeedsFallbackError as need:
                    self.fall_back(need)
                finally:
                    chance.restore()
                    self.buffers.rewind()

        left = _without_failing(part, failure.shown, fails)
        if any(own):
            raise UnsupportedModelError(_RAISES.format(next(filter(None, own))))
        return left


def _without_failing(part: Part, shown: Exception, fails: Callable[[Part], bool]) -> Part:
    """The piece with made-up rows, which count nothing, in the places of the records that fail."""
    here = list(range(len(part.places)))
    zeros = pytree.tree_map(_zeros, (part.x, part.y))
    made_up = (one_record_everywhere(part.x, part.y, 0, kind) for kind in KINDS[:-1])
    for filler in (zeros, *made_up):
        if not fails(_only([], part, filler)):
            break
    else:
        raise shown from None
    found = _failing(here, part, filler, fails, known=True)
    barred = torch.zeros(len(here), dtype=torch.bool)
    barred[found] = True
    if part.barred is not None:
        barred |= part.barred
    left = _only([slot for slot in here if not barred[slot]], part, filler)
    return left._replace(barred=barred)


def _zeros(value: Any) -> Any:
    return torch.zeros_like(value) if isinstance(value, Tensor) else value


def _failing(
    slots: list[int], part: Part, filler: Any, fails: Callable[[Part], bool], known: bool = False
) -> list[int]:
    if not slots or not (known or fails(_only(slots, part, filler))):
        return []
    if len(slots) == 1:
        return slots
    half = len(slots) // 2
    return [
        *_failing(slots[:half], part, filler, fails),
        *_failing(slots[half:], part, filler, fails),
    ]


def _only(slots: list[int], part: Part, filler: Any) -> Part:
    """The records in these slots, made-up ones in all others."""
    stays = torch.zeros(len(part.places), dtype=torch.bool)
    stays[slots] = True

    def leaf(value: Any, other: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        shape = (-1, *(1,) * (value.dim() - 1))
        return torch.where(stays.to(value.device).reshape(shape), value, other)

    x, y = pytree.tree_map(leaf, (part.x, part.y), filler)
    return part._replace(x=x, y=y)
