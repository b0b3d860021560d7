"""Summation over a batch: a model, a loss and an estimator, and records in, bounded sums out.

`Summation` keeps what can be kept between steps: the checked model, its traced graph,
certified norms. Forward under the interception, losses per record, one backward pass whose
cotangents go to the tape; then the tape's sums, group by group, with their sensitivities.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from noisewise import checks
from noisewise.bounds import Improvements
from noisewise.bounds.norms import require_strict_libraries
from noisewise.errors import UnsoundError
from noisewise.gradients.batches import (
    Part,
    count_records,
    fold_views,
    leading,
)
from noisewise.gradients.buffers import Buffers
from noisewise.gradients.chance import Chance
from noisewise.gradients.collecting import Collection
from noisewise.gradients.combinations import PerLayer, Schedule, propagating, rule_of
from noisewise.gradients.comparing import Start
from noisewise.gradients.compiled import uncompiled
from noisewise.gradients.contractions.base import Target
from noisewise.gradients.detours import RecordsFailError
from noisewise.gradients.estimators import Estimator, Lipschitz, factors_of, keeps_its_word
from noisewise.gradients.grouping import GroupSpec, layer_of
from noisewise.gradients.interception import Interception, NeedsFallbackError
from noisewise.gradients.lipschitz import LipschitzBounds
from noisewise.gradients.losses import record_losses
from noisewise.gradients.models import check_modules, undisturbed
from noisewise.gradients.piece import Selection
from noisewise.gradients.places import by_chance, in_order
from noisewise.gradients.retained import Lingering
from noisewise.gradients.runner import Runner
from noisewise.gradients.sizing import PIECE, Cost, cost_of_a_call, piece_size, saves_memory
from noisewise.gradients.sums import SLACK, BoundedSum, Group, sensitivity_of, sum_type
from noisewise.gradients.tape import Factors
from noisewise.gradients.unit_places import UnitPlaces, in_units, units_by_chance
from noisewise.gradients.units import check_within, numbered
from noisewise.gradients.wiring import Wiring
from noisewise.separation import MOST_RECORDS, RefusedError, Watch, storages

__all__ = ["Summation"]

#: Rows of units that are processed at a time, at most.
_OF_UNITS = 1024


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
        gradients: Estimator | PerLayer | Schedule,
        *,
        views: int = 1,
        chunk: int | None = None,
        improvements: Improvements | None = None,
        augmentation: Callable[[Any], Any] | None = None,
        assume_apart: bool = False,
        private: Sequence[Tensor] = (),
        expected: float | None = None,
        within: str | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch module, got {type(model).__name__}")
        model = uncompiled(model)
        known = isinstance(gradients, (Estimator, PerLayer, Schedule))
        if not known or isinstance(gradients, type):  # a class has the methods, too
            raise TypeError(
                f"gradients must be an estimator, for example noisewise.Clipped(1.0), got "
                f"{gradients!r}"
            )
        self.model, self.loss, self.schedule = model, loss, gradients
        self.views = checks.integer("views", views, minimum=1)
        self.chunk = None if chunk is None else checks.integer("chunk", chunk, minimum=1)
        if self.chunk is not None and self.chunk > MOST_RECORDS:
            raise ValueError(f"chunk must be at most {MOST_RECORDS}, got {chunk}")
        self.augmentation, self.assume_apart, self.private = augmentation, assume_apart, private
        self.expected = expected
        # Balancing costs three norms a layer; norms of weights that moved little are cached.
        self.improvements = Improvements(balancing=False) if improvements is None else improvements
        require_strict_libraries()
        check_modules(model)
        self.losses_of = record_losses(loss)
        self.within = within
        self.parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise RefusedError(
                "the model has no parameter that learns", "Give it one: p.requires_grad_(True)."
            )
        for name, parameter in self.parameters.items():
            if not parameter.is_floating_point():
                raise RefusedError(
                    f'the parameter "{name}" is not a real number',
                    "Split it into real and imaginary part.",
                )
        targets = {id(p): Target(n, tuple(p.shape)) for n, p in self.parameters.items()}
        frozen = {id(p) for p in model.parameters() if not p.requires_grad}
        constants = frozenset(frozen | {id(b) for b in model.buffers()})
        self._targets, self._constants = targets, constants
        self._unmeasured: set[str] = set()
        self._wirings: dict[Any, Wiring] = {}
        self._owned = [module._parameters for module in model.modules()]
        self.interception = Interception(model, Wiring(targets, constants))
        self.sizes = {n: p.numel() for n, p in self.parameters.items()}
        self.buffers = Buffers(model, loss, augmentation)
        self.buffers.line_that = self.line_that
        self.lingering = Lingering(model)
        self.progress = 0.0
        self.factors, self.slacks = {}, {}
        self.threads = torch.get_num_threads()
        self.bounds: LipschitzBounds | None = None
        self._surveyed = False
        self._size: int | None = None
        self._of_estimator: tuple[Estimator | PerLayer, tuple[GroupSpec, ...], bool] | None = None
        self._fixed: tuple[Estimator | PerLayer, dict[str, float], Factors] | None = None
        self._precision = contextlib.ExitStack()
        for estimator in self._stages():
            check_within(within, estimator)
            if (bounded := propagating(estimator)) is not None:
                self._check_type(bounded)
            if not isinstance(estimator, Lipschitz):
                estimator.limits(estimator.groups(self.sizes))

    def _check_type(self, estimator: Lipschitz) -> None:
        """Bounds hold for arithmetic whose rounding is below the slack."""
        for name, parameter in self.parameters.items():
            if parameter.dtype not in (torch.float32, torch.float64):
                kind = str(parameter.dtype).removeprefix("torch.")
                raise RefusedError(
                    f'{type(estimator).__name__} bounds what the model computes, and "{name}" is '
                    f"{kind}, whose rounding exceeds the allowance on every bound",
                    "Use model.float(), or noisewise.Clipped, which measures every record as "
                    "it is.",
                )

    # -- groups and limits --------------------------------------------------------------

    def _stages(self) -> list[Estimator | PerLayer]:
        if isinstance(self.schedule, Schedule):
            return [estimator for _, estimator in self.schedule.stages]
        return [self.schedule]

    @property
    def estimator(self) -> Estimator | PerLayer:
        """The one in force at the present progress."""
        if isinstance(self.schedule, Schedule):
            return self.schedule.at(self.progress)
        return self.schedule

    @property
    def groups(self) -> tuple[GroupSpec, ...]:
        """Groups of the estimator in force."""
        return self._grouped()[0]

    def _grouped(self) -> tuple[tuple[GroupSpec, ...], bool]:
        """The groups, and whether one waits for several layers; computed once an estimator."""
        estimator = self.estimator
        if self._of_estimator is None or self._of_estimator[0] is not estimator:
            groups = estimator.groups(self.sizes)
            waiting = any(len({layer_of(n) for n in group.names}) > 1 for group in groups)
            self._of_estimator = estimator, groups, waiting
        return self._of_estimator[1:]

    def _limits(self, x: Any) -> dict[str, float]:
        """Bound on one record's contribution per group, at the present weights."""
        groups, limits = self.groups, {}
        self.slacks = {}
        if not isinstance(self.estimator, Lipschitz):
            names = [group.name for group in groups]
            limits = dict(zip(names, self.estimator.limits(groups), strict=True))
        if propagating(self.estimator) is None:
            return limits
        if self.bounds is None:
            self.bounds = LipschitzBounds.of(self.model, self.loss, self._sample(x), 1)
        self.bounds.require_current(self.loss)
        rules = [(group, rule_of(self.estimator, group)) for group in groups]
        bounded = [(g, rule) for g, rule in rules if isinstance(rule, Lipschitz)]
        limits.update(self.bounds.limits(bounded, self._unmeasured, self.improvements))
        self.slacks = self.bounds.slacks([group for group, _ in bounded], self.views)
        return limits

    # -- sums ---------------------------------------------------------------------------

    def sum(self, x: Any, y: Any, units: Tensor | None = None) -> BoundedSum:
        """Return the bounded sum of a batch, which may be empty.

        `units` numbers the unit of every row, in an engine that was made for units.
        """
        records = count_records(x, y)
        codes = self._codes(units, records)
        if not records:
            return self.idle(x, y)
        self.whole = x, y
        limits = self.prepared(x)
        plain = isinstance(x, Tensor) and isinstance(y, Tensor)
        leaves = (x, y) if plain else pytree.tree_leaves((x, y))
        self.batch = [t for t in leaves if isinstance(t, Tensor)]
        return self.steadily(lambda start: self.summed(start, x, y, records, limits, codes=codes))

    def summed(
        self,
        start: Start,
        x: Any,
        y: Any,
        records: int,
        limits: dict[str, float],
        select: Selection | None = None,
        codes: Tensor | None = None,
    ) -> BoundedSum:
        """Return the bounded sum of a batch, from its start on."""
        found = self.collection(limits)
        # Slots of the records' own are drawn first; else nothing is drawn before the first piece.
        chance = None if self.own_places else start.chance
        seen: dict[Any, Any] = {}
        stage = self.buffers.stage(start.held)
        places = self.placed(x, y, records, codes)
        with self._attachment():
            for part in self.parts_of(x, y, records, codes, places):
                chance = self.repeated_chance(chance)
                with stage.piece():
                    here = chance if self.own_places or not part.number else None
                    piece = self._run(part, limits, select, here)
                self.compare_chance(chance.is_unseen)
                if len(places) > 1:
                    self.compare_pieces(seen, part, piece, stage)
                found.add(piece, part)
        self.compare_stages(stage)
        self.buffers.accept_moved()
        self.settle()
        return self.result(found, limits, records if codes is None else int(codes.max()) + 1)

    def repeated_chance(self, chance: Chance | None) -> Chance:
        """Let every piece of a batch draw the same, where places may matter.

        Then what is drawn for a record depends on its slot, which is its own, and not on the piece,
        which depends on the others (docs/proofs/separation.md#places).
        """
        self.require_steady_chance()
        if chance is None:
            return Chance(self._device())
        if self.own_places:
            chance.restore()
        return chance

    def collection(self, limits: dict[str, float]) -> Collection:
        """An empty one, for the pieces of a batch."""
        ordered = not self.own_places and self.within is None
        return Collection(self.factors, self.groups, limits, self._device(), ordered)

    def _codes(self, units: Tensor | None, records: int) -> Tensor | None:
        """Units numbered in the order in which they come, where there are any to be kept."""
        if self.within is None:
            if units is not None:
                raise ValueError("this engine was made for records: give within='mean' for units")
            return None
        if units is None:
            raise UnsoundError(
                "the unit of every row is needed: rows of one unit are bounded together, and "
                "without units each of them would be bounded by itself. Give units=."
            )
        if len(units) != records:
            raise ValueError(f"units needs one entry for each of the {records} rows")
        return numbered(units)

    def idle(self, x: Any, y: Any, select: Selection | None = None) -> BoundedSum:
        """Return the sum of an empty batch; state moves with a made-up record as with any other."""
        inputs, targets = pytree.tree_map(
            lambda v: v.new_zeros((1, *v.shape[1:])) if isinstance(v, Tensor) else v, (x, y)
        )
        self.whole = inputs, targets
        limits = self.prepared(inputs)
        codes = None if self.within is None else torch.zeros(1, dtype=torch.long)
        self.batch = ()
        self.steadily(lambda start: self.summed(start, inputs, targets, 1, limits, select, codes))
        return self.zeros(x)

    def zeros(self, x: Any) -> BoundedSum:
        """Return the sum of an empty batch of records like those of x."""
        limits = self._limits(x)
        return self.result(self.collection(limits), limits, 0)

    def prepared(self, x: Any) -> dict[str, float]:
        """Limits for a batch. What they depend on is found out first, once."""
        self.threads = torch.get_num_threads()
        self.buffers.require_unchanged()
        self.lingering.require_gone()
        if self._lipschitz and not self._surveyed:
            if self.bounds is None:
                self.bounds = LipschitzBounds.of(self.model, self.loss, self._sample(x), 1)
                found = (propagating(estimator) for estimator in self._stages())
                self.bounds.check(next(rule for rule in found if rule is not None))
            with self._attachment():
                self._survey(next(self.parts_of(x, None, leading(x))))
            self._surveyed = True
        if self._fixed is not None and self._fixed[0] is self.estimator:
            _, limits, self.factors = self._fixed
            return limits
        limits = self._limits(x)
        self.factors = self._factors(limits)
        if keeps_its_word(self.estimator):
            self._fixed = self.estimator, limits, self.factors
        return limits

    def _factors(self, limits: dict[str, float]) -> Factors:
        """Ask every estimator once, for all pieces of a batch, how it scales."""
        asked: dict[Any, Any] = {}
        factors = {}
        for group in self.groups:
            rule, limit = rule_of(self.estimator, group), limits[group.name]
            key = id(rule), limit
            if key not in asked:
                asked[key] = factors_of(rule, limit, self._device())
            factors[group.name] = asked[key]
        return factors

    def _survey(self, part: Part) -> None:
        """Find the parameters whose Jacobian is not measured, by one forward pass."""
        piece = self._piece(part, self.wiring_of(part), {}, watched=True, summing=False)
        try:
            with torch.enable_grad():
                piece.forward()
        except NeedsFallbackError as need:
            self.fall_back(need)
        except RecordsFailError as failure:
            if part.barred is not None:
                raise failure.shown from None
            self._survey(self.without_failing(part, {}, failure))
        finally:
            piece.close()

    def parts_of(
        self,
        x: Any,
        y: Any,
        records: int,
        codes: Tensor | None = None,
        places: Sequence[UnitPlaces] | None = None,
    ) -> Iterator[Part]:
        """Pieces of one size; the last one is filled up."""
        places = self.placed(x, y, records, codes) if places is None else places
        for number, held in enumerate(places):
            part = Part.of(x, y, held.places, number, held.each, held.left)
            if codes is not None:
                part = self._shared(part, codes)._replace(owners=held.owners)
            yield part

    def placed(self, x: Any, y: Any, records: int, codes: Tensor | None) -> list[UnitPlaces]:
        """Piece by piece, the row in every slot."""
        size = self._piece_size(x)
        if codes is not None and not self._lipschitz:
            return list(self._unit_places(codes, size, x, y))
        return [UnitPlaces(slots, 1, slots) for slots in self._places(x, y, records, size)]

    def _shared(self, part: Part, codes: Tensor) -> Part:
        """Give every row its share of its unit."""
        if self.within != "mean":
            return part
        counts = torch.bincount(codes.cpu())
        shares = counts.double().reciprocal()[codes.cpu()]
        shares = shares[part.places.clamp_min(0)] * (part.places >= 0)
        return part._replace(weights=shares.to(self._device()))

    def _unit_places(self, codes: Tensor, size: int, x: Any, y: Any) -> Iterator[UnitPlaces]:
        """Piece by piece, the rows of units side by side."""
        return units_by_chance(codes, size) if self.own_places else in_units(codes, size)

    def _places(self, x: Any, y: Any, records: int, size: int) -> list[Tensor]:
        """Piece by piece, the record in every slot."""
        return by_chance(records, size) if self.own_places else in_order(records, size)

    def _piece_size(self, x: Any) -> int:
        """The fixed size: as asked for, best for the expected batch, or a constant.

        Waiting factors of convolutions and sequences take as much memory as the activations of
        ordinary training, which a part of the batch at a time more than makes up for; those of
        dense layers are small. The number must not depend on the batch, or one record more
        would shift the kernels of all others (docs/proofs/rounding.md#order).
        """
        if self.chunk is not None:
            return self.chunk
        if self._size is None:
            self._size = self._even(self._best_size(x))
        if self.own_places:
            # Pieces are as many as records share a slot: the fewer slots, the fewer are empty.
            return self._even(math.ceil(math.sqrt(self.expected or self._size)))
        return self._size

    def _even(self, size: int) -> int:
        """With units, a power of two, which has many divisors, and not a very large one.

        Units with about the same number of rows share pieces, so there are several to be filled up.
        """
        return size if self.within is None else min(1 << (size - 1).bit_length(), _OF_UNITS)

    def _best_size(self, x: Any) -> int:
        if self.expected is None:
            return PIECE
        _, waiting = self._grouped()
        dense = all(isinstance(owner, nn.Linear) for owner in self.interception.owners.values())
        halved = waiting and not dense
        cost, parameters = self._cost(x), sum(self.sizes.values())
        halved = halved and saves_memory(cost.activations, parameters, self.expected)
        return piece_size(self.expected, cost.price, halved)

    def _cost(self, x: Any) -> Cost:
        """What a call of the model costs, from one on a made-up record."""
        sample = self._sample(x)
        cost: Cost = self.on_made_up(lambda: cost_of_a_call(self.model, sample))
        return cost

    def on_made_up(self, run: Callable[[], Any]) -> Any:
        """Let the model run on made-up records; what it makes and keeps is public."""
        known = [*self.model.parameters(), *self.model.buffers()]
        watch = Watch(known, before=self.storages_before())
        with watch:
            result = run()
        if left := watch.left_behind():
            # Made from public values, and kept: a cache that later runs may read.
            storages(left, self.storages_before())
        return result

    def _sample(self, x: Any) -> Any:
        """One made-up input of the model, with the shapes that records have there."""
        zeros = pytree.tree_map(
            lambda v: v.new_zeros((1, *v.shape[1:])) if isinstance(v, Tensor) else v, x
        )
        if self.augmentation is None:
            return fold_views(zeros, self.views)
        with undisturbed(self.model):
            return self.augmentation(zeros)

    def result(self, found: Collection, limits: dict[str, float], records: int) -> BoundedSum:
        """Sums with their sensitivities, group by group."""
        groups = []
        views = 1 if propagating(self.estimator) is None else self.views
        for spec in self.groups:
            gradients = {}
            for name in spec.names:
                parameter = self.parameters[name]
                total = found.total.get(name)
                total = total if total is None or views == 1 else total / views
                kind = sum_type(parameter.dtype, records)
                if total is None:
                    total = torch.zeros_like(parameter, dtype=kind, requires_grad=False)
                gradients[name] = total if total.dtype is kind else total.to(kind)
            slack = self.slacks.get(spec.name, SLACK)
            sensitivity = sensitivity_of(limits[spec.name], slack)
            groups.append(Group(spec.name, spec.names, gradients, sensitivity, spec.size, slack))
        kind = sum_type(next(iter(self.parameters.values())).dtype, 0)
        return BoundedSum(tuple(groups), records, found.nonfinite, found.norms(kind))
