"""Records on which the user's program raises: they count nothing, and the step is taken.

An exception that ends a run tells that a record was drawn. So the records of a piece that fail are
looked for: some of them stay, others stand in the places of the rest, and each part that still
fails is halved. An operation raises for several records if and only if it raises for one of them
(docs/proofs/separation.md), so whether a record fails is a matter of that record alone. Zeros stand
in or, if the program takes none, other made-up rows, or else copies of records that stay. What
fails on all of these is a mistake in the program, and its error is shown. Code that raises by
itself has read a value or counts its calls, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from noisewise.gradients.batches import Part, leading
from noisewise.gradients.buffers import Buffers
from noisewise.gradients.chance import Chance
from noisewise.gradients.detours import PiecesDifferError, RecordsFailError
from noisewise.gradients.interception import NeedsFallbackError
from noisewise.gradients.piece import Piece, Selection
from noisewise.gradients.places import in_order
from noisewise.gradients.slots import KINDS, one_record_everywhere
from noisewise.gradients.wiring import OffPathError, RelayoutError
from noisewise.separation import RefusedError

__all__ = ["Failing"]


_RAISES = (
    "the model, the loss or the augmentation raises {} on some records and not on others, by "
    "itself and not in an operation of torch. So it has read a record's value into Python, and "
    "whether it raises may depend on several records; or it counts its calls. Nothing was released "
    "or charged"
)
_CHECK = (
    "Give such records a weight of zero with torch.where, or check the data before "
    "training: records on which an operation of torch fails (a label that is out of range) count "
    "nothing."
)


class Failing:
    """Runs pieces without the records on which the program fails; a part of `Runner`."""

    buffers: Buffers
    wiring_of: Any
    fall_back: Any
    unsteady: Any
    _device: Any
    _piece: Any
    _through: Any
    _run_all: Any
    #: Inputs and targets of the whole batch.
    whole: tuple[Any, Any]
    #: While records that fail are looked for: the ways on which it did.
    _failed: set[Any] | None = None

    def _run(
        self,
        part: Part,
        limits: dict[str, float],
        select: Selection | None = None,
        chance: Chance | None = None,
    ) -> Piece:
        """Forward, loss and backward of a piece, without the records on which these fail.

        `chance` is as it is, if somebody has looked already.
        """
        chance = chance or Chance(self._device())
        self._failed = None
        try:
            whole: Piece = self._run_all(part, limits, select, chance, self.buffers.moved())
            return whole
        except RecordsFailError as found:
            failure = found
        chance.restore()
        self.buffers.rewind()
        try:
            part = self.without_failing(part, limits, failure, select)
            held = self.buffers.moved()
            piece: Piece = self._run_all(part, limits, select, chance, held)
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

        def others() -> Iterator[Part]:
            x, y = self.whole[0], None if part.y is None else self.whole[1]
            for places in in_order(leading(x), len(part.places)):
                yield Part.of(x, y, places, part.number)

        try:
            left = _without_failing(part, failure.shown, fails, others)
        except Exception as error:
            if error is failure.shown and failure.alone and part.y is None:
                # On made-up records it had not raised, and now it does: it counts its calls.
                raise self.unsteady() from None
            raise
        if any(own):
            raise RefusedError(_RAISES.format(next(filter(None, own))), _CHECK)
        return left


def _without_failing(
    part: Part,
    shown: Exception,
    fails: Callable[[Part], bool],
    others: Callable[[], Iterable[Part]],
) -> Part:
    """The piece with what counts nothing in the places of the records that fail.

    Parameters
    ----------
    part : Part
        Fails.
    shown : Exception
        Raised if the program fails on made-up rows and on all records.
    fails : callable
        Whether the program raises on a piece.
    others : callable
        The other pieces of the batch, of which a record may stand in.
    """
    slots = list(range(len(part.places)))
    filler = next((rows for rows in _made_up(part) if not fails(_only([], part, rows))), None)
    found = set(_failing(slots, part, filler, fails, known=True))
    barred = torch.tensor([slot in found for slot in slots])
    if part.barred is not None:
        barred |= part.barred
    good = [slot for slot in slots if not barred[slot]]
    if good or filler is not None:
        return _only(good, part, filler)._replace(barred=barred)
    for other in others():
        everywhere = list(range(len(other.places)))
        bad = set(_failing(everywhere, other, None, fails))
        if takes := [slot for slot in everywhere if slot not in bad]:
            chosen = _only(takes[:1], other, None)
            return part._replace(x=chosen.x, y=chosen.y, barred=barred)
    raise shown from None


def _made_up(part: Part) -> Iterator[Any]:
    """Rows that no record has a part in, zeros first."""
    yield pytree.tree_map(
        lambda value: torch.zeros_like(value) if isinstance(value, Tensor) else value,
        (part.x, part.y),
    )
    for kind in KINDS[:-1]:
        yield one_record_everywhere(part.x, part.y, 0, kind)


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
    """The records in these slots, and in all others made-up rows, or copies if there are none.

    A unit is filled up with copies of its own rows, if it has one left: lengths of its factors are
    measured together, and must not depend on anybody else's.
    """
    stays = torch.zeros(len(part.places), dtype=torch.bool)
    stays[slots] = True
    first: dict[int, int] = {}
    for slot in slots:
        first.setdefault(slot // part.each, slot)
    standing = torch.tensor(
        [
            slot if stay or not slots else first.get(slot // part.each, slots[0])
            for slot, stay in enumerate(stays.tolist())
        ]
    )

    def copied(value: Any) -> Any:
        return (
            value.index_select(0, standing.to(value.device)) if isinstance(value, Tensor) else value
        )

    def filled(value: Any, other: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        shape = (-1, *(1,) * (value.dim() - 1))
        return torch.where(stays.to(value.device).reshape(shape), value, other)

    if filler is None:
        x, y = pytree.tree_map(copied, (part.x, part.y))
    else:
        x, y = pytree.tree_map(filled, (part.x, part.y), filler)
    return part._replace(x=x, y=y)
