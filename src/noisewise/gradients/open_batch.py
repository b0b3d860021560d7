"""A batch within a loop of the user's own: ``loss(model(x), y).backward()``.

The output that the user gets is cut off from the model, and so is the loss: its backward runs the
pieces' own backward passes. Whatever else the user computes from the output (a penalty, another
loss) has no way into the model, and is told so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from noisewise.gradients.batches import Part, autocast_as_now, keeps_rows, leading
from noisewise.gradients.buffers import Stage
from noisewise.gradients.chance import Chance
from noisewise.gradients.detours import PiecesDifferError, PlacesMatterError, RecordsFailError
from noisewise.gradients.interception import NeedsFallbackError
from noisewise.gradients.piece import Piece, Selection
from noisewise.gradients.sums import BoundedSum
from noisewise.gradients.unit_places import UnitPlaces
from noisewise.gradients.wiring import OffPathError, RelayoutError
from noisewise.separation import RefusedError

if TYPE_CHECKING:
    from noisewise.gradients.summation import Summation

__all__ = ["OpenBatch", "selection_of", "withheld"]


#: Nobody but a loss scaler multiplies a mean loss by so much.
_LOSS_SCALE = 256.0


class _Propagated(torch.autograd.Function):
    """The mean loss; its backward starts the batch's own.

    Whatever multiplies the loss afterwards is ignored: a factor would change the sum that the
    sensitivity belongs to.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, value: Tensor, batch: OpenBatch) -> Tensor:
        ctx.batch = batch
        return value.detach().clone()

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        ctx.batch.require_unscaled(cotangents[0])
        ctx.batch.backward()
        return None, None, None


class Withheld:
    """Stands for an object in the output, which may hold tensors of the records (a cache of keys).

    It can be handed to the loss, which gets the object itself, piece by piece.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise RefusedError(
            f"the output of run.model(x) has a {self._kind}, in which tensors of the records "
            f'cannot be told apart, so "{name}" of it is not handed out',
            "Hand it to run.loss as it is, and take what you need in the loss function that "
            "you give to make_private; or let "
            "the model return tensors, tuples, lists or dicts.",
        )


def withheld(value: Any) -> Any:
    """A plain value as it is, something that stands for any other."""
    plain = isinstance(value, (bool, int, float, str, type(None)))
    return value if plain else Withheld(type(value).__name__)


class OpenBatch:
    """All pieces of one batch, between the model's call and the optimizer's step."""

    def __init__(
        self, owner: Summation, x: Any, limits: dict[str, float], codes: Tensor | None = None
    ) -> None:
        self.owner, self.x, self.codes = owner, x, codes
        owner.batch = [t for t in pytree.tree_leaves(x) if isinstance(t, Tensor)]
        self.records = leading(x)
        self.pieces: list[Piece] = []
        self.parts: list[Part] = []
        self.places: list[UnitPlaces] = []
        self.y: Any = None
        self.leaves: list[Any] = []
        self.arrived = False
        self._autocast = autocast_as_now(owner._device().type)
        self._select: Selection | None = None
        self._limits = limits
        #: Whether Python or numpy have drawn for a piece.
        self._unseen = False
        self._stages: list[Stage] = []
        #: Pieces with a record on which the program fails.
        self._failed: list[Piece] = []
        self._held, self._moving = owner.buffers.remember(), owner.buffers.count
        self._before = {id(p) for p in owner.model.parameters() if p.grad is not None}

    def forward(self) -> Any:
        """Run the model piece by piece; returns its output, cut off."""
        owner = self.owner
        self.places = owner.placed(self.x, None, self.records, self.codes)
        chance: Chance | None = None
        stage = self._stage()
        for part in owner.parts_of(self.x, None, self.records, self.codes, self.places):
            chance = owner.repeated_chance(chance)
            with stage.piece():
                piece, started = self._started(part)
            self.pieces.append(piece)
            self.parts.append(started)
            self._unseen |= chance.is_unseen
        stage.end()
        flat = [pytree.tree_flatten(piece.output) for piece in self.pieces]
        structure = flat[0][1]
        columns = zip(*(leaves for leaves, _ in flat), strict=True)
        self.leaves = [self._joined(column) for column in columns]
        return pytree.tree_unflatten(self.leaves, structure)

    def _started(self, part: Part) -> tuple[Piece, Part]:
        """A piece whose forward pass has run: bound if such pieces are known, else watched."""
        owner = self.owner
        while True:
            piece = owner.piece_of(part, self._limits)
            try:
                with torch.enable_grad():
                    piece.forward()
                return piece, part
            except RecordsFailError as failure:
                piece.close()
                if part.barred is not None:
                    raise owner.unsteady() from None
                part = owner.without_failing(part, self._limits, failure)
            except OffPathError:
                owner.wiring_of(part).paths.clear()
            except RelayoutError:
                pass
            except NeedsFallbackError as need:
                owner.fall_back(need)
            owner.buffers.rewind()

    def _joined(self, column: Sequence[Any]) -> Any:
        """One leaf of the output for the whole batch."""
        first = column[0]
        if not isinstance(first, Tensor):
            return withheld(first)
        rows = [
            part.counting(value, self.owner.views)
            if value.dim() and value.shape[0] == len(_first(part.x)) * self.owner.views
            else value
            for value, part in zip(column, self.parts, strict=True)
        ]
        joined = (
            torch.cat([row.detach() for row in rows]) if first.dim() else first.detach().clone()
        )
        if joined.dim() and len(joined) == self.records * self.owner.views:
            joined = joined[self._order().to(joined.device)]
        if joined.is_floating_point() and any(value.requires_grad for value in column):
            joined.requires_grad_()
            joined.register_hook(_refuse)  # type: ignore[no-untyped-call]
        return joined

    def _order(self) -> Tensor:
        """Where each row of the batch is among the rows of all pieces."""
        places = torch.cat([part.places[part.places >= 0] for part in self.parts])
        inside = torch.arange(self.owner.views)
        return (places.argsort().unsqueeze(1) * self.owner.views + inside).flatten()

    def loss(self, chosen: Any, y: Any) -> Tensor:
        """Mean loss; `chosen` is the output or tensors taken from it."""
        self._select = selection_of(self.leaves, chosen)
        values = []
        self.y = y
        self.owner.whole = self.x, y
        parts = self.owner.parts_of(self.x, y, self.records, self.codes, self.places)
        chance: Chance | None = None
        stage = self._stage()
        device = self.owner._device()
        for index, part in enumerate(parts):
            chance = self.owner.repeated_chance(chance)
            started, self.parts[index] = self.parts[index], part
            piece = self.pieces[index]
            piece.set_targets(part.y)
            try:
                if started.barred is not None:
                    raise RecordsFailError(ValueError("a record failed in the model"))
                with torch.enable_grad(), stage.piece():
                    losses = piece.loss(self._select)
            except RecordsFailError:
                # Which record it is, is found out when the batch is collected.
                self.owner.buffers.rewind()
                self._failed.append(piece)
                losses = torch.zeros(len(part.places) * self.owner.views, device=device)
            self._unseen |= chance.is_unseen
            values.append(part.counting(losses.detach(), self.owner.views))
        stage.end()
        mean = torch.cat(values).mean()
        anchor = torch.zeros((), device=mean.device, requires_grad=True)
        result: Tensor = _Propagated.apply(anchor, mean, self)  # type: ignore[no-untyped-call]
        return result

    def require_unscaled(self, factor: Tensor) -> None:
        """Refuse a loss that a `GradScaler` has multiplied: it would find nothing to divide."""
        if factor.device.type != "cpu" and self.owner.unscaled:
            return  # a scaler is there from the first step on; do not wait for the device again
        self.owner.unscaled = factor.is_meta or float(factor) < _LOSS_SCALE
        if not self.owner.unscaled:
            raise RefusedError(
                f"the loss was multiplied by {float(factor):g} before backward, as "
                "torch.amp.GradScaler does. A factor has no effect here, since every record's "
                "gradient is bounded by the engine, and the scaler would find no gradients to "
                "divide",
                "Call run.loss(...).backward() and run.optimizer.step() without it, also "
                "under float16 autocast: records whose gradient overflows count zero. bfloat16 "
                "loses less.",
            )

    def backward(self) -> None:
        """The pieces' backward passes; called by the backward of the loss."""
        if self.arrived:
            raise RefusedError(
                "every record would count twice", "Do not call backward twice on one batch."
            )
        self.arrived = True
        chance: Chance | None = None
        stage = self._stage()
        for piece in self.pieces:
            chance = self.owner.repeated_chance(chance)
            if any(piece is failed for failed in self._failed):
                piece.path.digest = -1
                continue
            with torch.enable_grad(), stage.piece():
                self.owner.finish(piece)
            self._unseen |= chance.is_unseen
        stage.end()

    def collect(self) -> BoundedSum:
        """The bounded sum of the batch. A piece off the proven paths is watched from the start."""
        owner = self.owner
        found = owner.collection(self._limits)
        count = self.records if self.codes is None else int(self.codes.max()) + 1
        try:
            owner.check_leaks(self._before)
            owner.compare_chance(self._unseen)
            owner.compare_stages(*self._stages)
            seen: dict[Any, Any] = {}
            stage = self._stage()
            for piece, part in zip(self.pieces, self.parts, strict=True):
                piece.close()
                # As the forward pass was, should it be run again.
                with self._autocast(), stage.piece():
                    checked = owner.checked(piece, part, self._limits, self._select)
                owner.compare_pieces(seen, part, checked, *self._stages)
                found.add(checked, part)
            owner.compare_stages(stage)
            owner.buffers.accept_moved()
            owner.settle()
            return owner.result(found, self._limits, count)
        except (PlacesMatterError, PiecesDifferError) as found:
            differed = isinstance(found, PiecesDifferError) and found.settled
            differed = differed and owner.buffers.count == self._moving and not owner.own_places
            owner.buffers.restore_moving(self._held)
            return owner.steadily(
                lambda start: owner.summed(
                    start, self.x, self.y, self.records, self._limits, self._select, self.codes
                ),
                differed,
            )
        finally:
            self.close()

    def _stage(self) -> Stage:
        self._stages.append(self.owner.buffers.stage())
        return self._stages[-1]

    def close(self) -> None:
        """Let go of all pieces."""
        for piece in self.pieces:
            piece.close()
        self.pieces, self.parts, self.leaves = [], [], []


def selection_of(leaves: Sequence[Any], chosen: Any) -> Selection | None:
    """How the loss's argument is taken from the output: whole tensors, or parts of rows."""
    wanted, structure = pytree.tree_flatten(chosen)
    takes = [_taken(leaves, value) for value in wanted]

    def select(output: Any) -> Any:
        found = pytree.tree_leaves(output)
        return pytree.tree_unflatten([take(found) for take in takes], structure)

    return select


def _taken(known: Sequence[Any], value: Any) -> Any:
    if isinstance(value, Withheld):
        for index, leaf in enumerate(known):
            if value is leaf:
                return lambda leaves, index=index: leaves[index]
    if not isinstance(value, Tensor):
        if value is not None and not any(value is leaf for leaf in known):
            raise RefusedError(
                f"run.loss was given a {type(value).__name__} beside the output of the model. "
                "It may depend on the records in ways that cannot be followed",
                "Compute it in the loss function that you give to make_private.",
            )
        return lambda leaves: value
    for index, leaf in enumerate(known):
        if value is leaf:
            return lambda leaves, index=index: leaves[index]
    for index, leaf in enumerate(known):
        if isinstance(leaf, Tensor) and value._base is leaf and keeps_rows(value, leaf):
            shape, strides, offset = value.shape[1:], value.stride(), value.storage_offset()

            def view(
                leaves: list[Any],
                index: int = index,
                shape: Any = shape,
                strides: Any = strides,
                offset: Any = offset,
            ) -> Tensor:
                whole: Tensor = leaves[index].contiguous()
                return whole.as_strided(
                    (whole.shape[0], *shape), strides, offset + whole.storage_offset()
                )

            return view
    raise RefusedError(
        "run.loss was given a tensor that is not the output of run.model(x), nor a part of its "
        "rows, so it cannot be proven that each record's loss comes from that record",
        "Put what you compute from the output into the loss function that you give to "
        "make_private: "
        "there it is followed.",
    )


def _first(values: Any) -> Tensor:
    return next(t for t in pytree.tree_leaves(values) if isinstance(t, Tensor))


def _refuse(gradient: Tensor) -> None:
    raise RefusedError(
        "a term that run.loss did not return was propagated back into the model's output (a "
        "penalty on outputs, a second loss). It could mix records, and no sensitivity covers it",
        "Put all terms into the loss function that you give to make_private, one value per record.",
    )
