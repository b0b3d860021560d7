"""Summation over a batch: a model, a loss and an estimator, and records in, bounded sums out.

`Summation` keeps what can be kept between steps: the checked model, its traced graph,
certified norms. Forward under the interception, losses per record, one backward pass whose
cotangents go to the tape; then the tape's sums, group by group, with their sensitivities.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from noisewise.bounds.improvements import Improvements
from noisewise.errors import UnsupportedModelError
from noisewise.gradients.batches import (
    Part,
    count_records,
    fold_views,
    leading,
)
from noisewise.gradients.buffers import Buffers
from noisewise.gradients.contractions.base import Sums, Target, add_to
from noisewise.gradients.estimators import Estimator, Lipschitz, Schedule
from noisewise.gradients.grouping import GroupSpec, layer_of
from noisewise.gradients.interception import Interception, NeedsFallbackError
from noisewise.gradients.lipschitz import LipschitzBounds
from noisewise.gradients.losses import record_losses
from noisewise.gradients.models import check_modules, undisturbed
from noisewise.gradients.piece import Piece
from noisewise.gradients.places import in_order
from noisewise.gradients.runner import Runner
from noisewise.gradients.sizing import piece_size, price_of_a_call
from noisewise.gradients.sums import SLACK, BoundedSum, Group, sum_type
from noisewise.gradients.wiring import Wiring
from noisewise.privacy import _validate
from noisewise.separation import Watch, storages
from noisewise.separation.shadow import LARGEST

__all__ = ["Summation"]

#: Records that are processed at a time where factors wait for other layers.
_WAITING = 128


class Summation(Runner):
    """Bounded sums of one model, each of a whole batch.

    Parameters as of `noisewise.gradients.bounded_sum`.

    Attributes
    ----------
    progress : float
        Fraction of training done, for `Schedule`.
    proof : Proof or None
        What was shown of the model and the loss; None before the first batch.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Any,
        gradients: Estimator | Schedule,
        *,
        views: int = 1,
        chunk: int | None = None,
        improvements: Improvements | None = None,
        augmentation: Callable[[Any], Any] | None = None,
        assume_apart: bool = False,
        private: Sequence[Tensor] = (),
        expected: float | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch module, got {type(model).__name__}")
        if not isinstance(gradients, (Estimator, Schedule)):
            raise TypeError(
                f"gradients must be an estimator, for example noisewise.Clipped(1.0), got "
                f"{gradients!r}"
            )
        self.model, self.loss, self.schedule = model, loss, gradients
        self.views = _validate.integer("views", views, minimum=1)
        self.chunk = None if chunk is None else _validate.integer("chunk", chunk, minimum=1)
        if self.chunk is not None and self.chunk > LARGEST:
            raise ValueError(f"chunk must be at most {LARGEST}, got {chunk}")
        self.augmentation, self.assume_apart, self.private = augmentation, assume_apart, private
        self.expected = expected
        # Balancing costs three norms a layer; norms of weights that moved little are cached.
        self.improvements = Improvements(balancing=False) if improvements is None else improvements
        check_modules(model)
        self.losses_of = record_losses(loss)
        self.parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise UnsupportedModelError("the model has no parameter that learns")
        for name, parameter in self.parameters.items():
            if not parameter.is_floating_point():
                raise UnsupportedModelError(f'the parameter "{name}" is not a real number')
        targets = {id(p): Target(n, tuple(p.shape)) for n, p in self.parameters.items()}
        frozen = {id(p) for p in model.parameters() if not p.requires_grad}
        constants = frozenset(frozen | {id(b) for b in model.buffers()})
        self._targets, self._constants = targets, constants
        self._unmeasured: set[str] = set()
        self._wirings: dict[Any, Wiring] = {}
        self.interception = Interception(model, Wiring(targets, constants))
        self.sizes = {n: p.numel() for n, p in self.parameters.items()}
        self.buffers = Buffers(model)
        self.progress = 0.0
        self.bounds: LipschitzBounds | None = None
        self._surveyed = False
        self._size: int | None = None
        self._precision = contextlib.ExitStack()
        for estimator in self._stages():
            if isinstance(estimator, Lipschitz):
                self._check_type(estimator)
            else:
                estimator.limits(estimator.groups(self.sizes))

    def _check_type(self, estimator: Lipschitz) -> None:
        """Bounds hold for arithmetic whose rounding is below the slack."""
        for name, parameter in self.parameters.items():
            if parameter.dtype not in (torch.float32, torch.float64):
                kind = str(parameter.dtype).removeprefix("torch.")
                raise UnsupportedModelError(
                    f'{type(estimator).__name__} bounds what the model computes, and "{name}" is '
                    f"{kind}, whose rounding exceeds the allowance on every bound. Use "
                    "model.float(), or noisewise.Clipped, which measures every record as it is."
                )

    # -- groups and limits --------------------------------------------------------------

    def _stages(self) -> list[Estimator]:
        if isinstance(self.schedule, Schedule):
            return [estimator for _, estimator in self.schedule.stages]
        return [self.schedule]

    @property
    def estimator(self) -> Estimator:
        """The one in force at the present progress."""
        if isinstance(self.schedule, Schedule):
            return self.schedule.at(self.progress)
        return self.schedule

    @property
    def groups(self) -> tuple[GroupSpec, ...]:
        """Groups of the estimator in force."""
        return self.estimator.groups(self.sizes)

    def _limits(self, x: Any) -> dict[str, float]:
        """Bound on one record's contribution per group, at the present weights."""
        groups = self.groups
        if not isinstance(self.estimator, Lipschitz):
            return dict(zip((g.name for g in groups), self.estimator.limits(groups), strict=True))
        if self.bounds is None:
            self.bounds = LipschitzBounds.of(self.model, self.loss, self._sample(x), 1)
        return self.bounds.limits(self.estimator, groups, self._unmeasured, self.improvements)

    # -- sums ---------------------------------------------------------------------------

    def sum(self, x: Any, y: Any) -> BoundedSum:
        """Return the bounded sum of a batch, which may be empty."""
        records = count_records(x, y)
        if not records:
            self._idle(x, y)
            return self.zeros(x)
        limits = self.prepared(x)
        self.batch = [t for t in pytree.tree_leaves((x, y)) if isinstance(t, Tensor)]
        total: Sums = {}
        nonfinite = torch.zeros((), dtype=torch.long, device=self._device())
        norms: dict[str, list[Tensor]] = {}
        places: list[Tensor] = []
        with self._attachment():
            for part in self.parts_of(x, y, records):
                with self.buffers.kept_from(part.number):
                    piece = self._run(part, limits)
                    nonfinite = nonfinite + self.add(piece, part, total, norms)
                places.append(part.places[part.places >= 0])
        self.buffers.accept_moved()
        result = self.result(total, limits, records, nonfinite, norms)
        order = torch.cat(places).argsort()
        return replace(result, norms={k: v[order.to(v.device)] for k, v in result.norms.items()})

    def _idle(self, x: Any, y: Any) -> None:
        """Let state that moves with every step move for an empty batch, too."""
        if not self.buffers.moving or self._size is None:
            return
        zeros = pytree.tree_map(
            lambda v: v.new_zeros((1, *v.shape[1:])) if isinstance(v, Tensor) else v, (x, y)
        )
        limits = self.prepared(zeros[0])
        with self._attachment():
            self._run(next(self.parts_of(zeros[0], zeros[1], 1)), limits)
        self.buffers.accept_moved()

    def zeros(self, x: Any) -> BoundedSum:
        """Return the sum of an empty batch of records like those of x."""
        limits = self._limits(x)
        return self.result({}, limits, 0, torch.zeros((), dtype=torch.long), {})

    def prepared(self, x: Any) -> dict[str, float]:
        """Limits for a batch. What they depend on is found out first, once."""
        self.buffers.require_unchanged()
        if self._lipschitz and not self._surveyed:
            if self.bounds is None:
                self.bounds = LipschitzBounds.of(self.model, self.loss, self._sample(x), 1)
                self.bounds.check(next(e for e in self._stages() if isinstance(e, Lipschitz)))
            with self._attachment():
                self._survey(next(self.parts_of(x, None, leading(x))))
            self._surveyed = True
        return self._limits(x)

    def _survey(self, part: Part) -> None:
        """Find the parameters whose Jacobian is not measured, by one forward pass."""
        piece = self._piece(part, self.wiring_of(part), {}, watched=True, summing=False)
        try:
            with torch.enable_grad():
                piece.forward()
        except NeedsFallbackError as need:
            self.fall_back(need)
        finally:
            piece.close()

    def parts_of(self, x: Any, y: Any, records: int) -> Iterator[Part]:
        """Pieces of one size; the last one is filled up."""
        size = self._piece_size(records, x)
        for number, places in enumerate(self._places(x, y, records, size)):
            yield Part.of(x, y, places, number)

    def _places(self, x: Any, y: Any, records: int, size: int) -> list[Tensor]:
        """Piece by piece, the record in every slot."""
        return in_order(records, size)

    def _piece_size(self, records: int, x: Any) -> int:
        """The fixed size: as asked for, best for the expected batch, or that of the first batch.

        Waiting factors of convolutions and sequences take as much memory as the activations of
        ordinary training, which a part of the batch at a time more than makes up for; those of
        dense layers are small. The number must not depend on the batch, or one record more
        would shift the kernels of all others (docs/proofs/rounding.md#order).
        """
        if self.chunk is not None:
            return self.chunk
        waiting = any(len({layer_of(n) for n in group.names}) > 1 for group in self.groups)
        dense = all(isinstance(owner, nn.Linear) for owner in self.interception.owners.values())
        halved = waiting and not dense
        if self._size is None and self.expected is not None:
            price = self._price(x)
            self._size = piece_size(self.expected, price, halved)
        elif self._size is None or (self.expected is None and records > 2 * self._size):
            self._size = min(records, _WAITING if halved else LARGEST)
        return self._size

    def _price(self, x: Any) -> float:
        """What a call of the model costs, from one on a made-up record."""
        known = [*self.model.parameters(), *self.model.buffers()]
        watch = Watch(known, before=self.storages_before())
        sample = self._sample(x)
        with watch:
            price = price_of_a_call(self.model, sample)
        if left := watch.left_behind():
            # Made from public values, and kept: a cache that later runs may read.
            storages(left, self.storages_before())
        return price

    def _sample(self, x: Any) -> Any:
        """One made-up input of the model, with the shapes that records have there."""
        zeros = pytree.tree_map(
            lambda v: v.new_zeros((1, *v.shape[1:])) if isinstance(v, Tensor) else v, x
        )
        if self.augmentation is None:
            return fold_views(zeros, self.views)
        with undisturbed(self.model):
            return self.augmentation(zeros)

    def add(self, piece: Piece, part: Part, total: Sums, norms: dict[str, list[Tensor]]) -> Tensor:
        """Add a piece's sums; returns how many records counted zero."""
        add_to(total, piece.tape.sums)
        for name, values in piece.tape.norms.items():
            norms.setdefault(name, []).append(part.counting(values))
        return piece.bad()

    def result(
        self,
        total: Sums,
        limits: dict[str, float],
        records: int,
        nonfinite: Tensor,
        norms: dict[str, list[Tensor]],
    ) -> BoundedSum:
        """Sums with their sensitivities, group by group."""
        groups = []
        views = self.views if isinstance(self.estimator, Lipschitz) else 1
        for spec in self.groups:
            gradients = {}
            for name in spec.names:
                parameter = self.parameters[name]
                found = total.get(name)
                found = found if found is None or views == 1 else found / views
                kind = sum_type(parameter.dtype, records)
                gradients[name] = (
                    torch.zeros_like(parameter, dtype=kind) if found is None else found.to(kind)
                ).detach()
            sensitivity = limits[spec.name] * (1 + SLACK)
            groups.append(Group(spec.name, spec.names, gradients, sensitivity, spec.size))
        kind = sum_type(next(iter(self.parameters.values())).dtype, 0)
        joined = {name: torch.cat(parts).to(kind) for name, parts in norms.items()}
        return BoundedSum(tuple(groups), records, nonfinite, joined)
