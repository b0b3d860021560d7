"""Summation over a batch: a model, a loss and an estimator, and records in, bounded sums out.

`Summation` keeps what can be kept between steps: the checked model, its traced graph,
certified norms. Forward under the interception, losses per record, one backward pass whose
cotangents go to the tape; then the tape's sums, group by group, with their sensitivities.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from noisewise.bounds.improvements import Improvements
from noisewise.bounds.norms.precision import check_full_precision, full_float32
from noisewise.errors import UnsupportedModelError
from noisewise.gradients.batches import (
    count_records,
    finite_records,
    fold_views,
    leading,
    slice_batch,
)
from noisewise.gradients.contractions.base import Sums, Target, add_to
from noisewise.gradients.estimators import Estimator, Lipschitz, Schedule
from noisewise.gradients.grouping import GroupSpec, layer_of
from noisewise.gradients.interception import Interception
from noisewise.gradients.lipschitz import Gate, LipschitzBounds, shortened
from noisewise.gradients.losses import check_apart, check_losses, record_losses
from noisewise.gradients.probe import call_model, check_modules, probe
from noisewise.gradients.sums import SLACK, BoundedSum, Group, sum_type
from noisewise.gradients.tape import Tape
from noisewise.privacy import _validate

__all__ = ["Summation"]


class Summation:
    """Bounded sums of one model, each of a whole batch.

    Parameters as of `noisewise.gradients.bounded_sum`.

    Attributes
    ----------
    progress : float
        Fraction of training done, for `Schedule`.
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
        self.tape = Tape(targets, constants)
        self.interception = Interception(model, self.tape)
        self.sizes = {n: p.numel() for n, p in self.parameters.items()}
        self.progress = 0.0
        self.bounds: LipschitzBounds | None = None
        self._probed = self._loss_checked = False
        self._attached = False
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
            self.bounds = LipschitzBounds.of(self.model, self.loss, x, self.views)
        return self.bounds.limits(self.estimator, groups, self.tape.unmeasured, self.improvements)

    # -- sums ---------------------------------------------------------------------------

    def prepare(self, x: Any) -> None:
        """Check the model on made-up records of the same shape, once; raises what is wrong."""
        if self._probed:
            return
        measuring = all(e.measures in ("norm", "bound") for e in self._stages())
        was = self._attached
        if was:
            self.detach()
        folded = fold_views(x, self.views)
        if not measuring and self.bounds is None:
            estimator = next(e for e in self._stages() if isinstance(e, Lipschitz))
            self.bounds = LipschitzBounds.of(self.model, self.loss, folded, 1)
            self.bounds.check(estimator)
        probe(self.interception, folded, self.views, measuring)
        self._probed = True
        if was:
            self.attach()

    def sum(self, x: Any, y: Any) -> BoundedSum:
        """Return the bounded sum of a batch, which may be empty."""
        records = count_records(x, y)
        self.prepare(x)
        limits = self._limits(x)
        total: Sums = {}
        nonfinite = torch.zeros((), dtype=torch.long, device=self._device())
        norms: dict[str, list[Tensor]] = {}
        step = self.chunk or self._default_chunk(records)
        attached = self._attached
        if not attached:
            self.attach()
        try:
            for start in range(0, records, step):
                part_x, part_y = (slice_batch(v, start, min(start + step, records)) for v in (x, y))
                bad = self._run(part_x, part_y, limits, total, norms)
                nonfinite = nonfinite + bad
        finally:
            if not attached:
                self.detach()
        return self._result(total, limits, records, nonfinite, norms)

    def _default_chunk(self, records: int) -> int:
        """All at once, or in two halves where factors wait for other layers.

        Waiting factors of convolutions and sequences take as much memory as the activations of
        ordinary training; half of both at a time is less than those alone, and takes no longer.
        Those of dense layers are small.
        """
        waiting = any(len({layer_of(n) for n in group.names}) > 1 for group in self.groups)
        dense = all(isinstance(owner, nn.Linear) for owner in self.interception.owners.values())
        return -(-records // 2) if waiting and not dense and records >= 64 else max(records, 1)

    def zeros(self, x: Any) -> BoundedSum:
        """Return the sum of an empty batch of records like those of x."""
        limits = self._limits(x)
        return self._result({}, limits, 0, torch.zeros((), dtype=torch.long), {})

    def _device(self) -> torch.device:
        return next(iter(self.parameters.values())).device

    def _run(
        self,
        x: Any,
        y: Any,
        limits: dict[str, float],
        total: Sums,
        norms: dict[str, list[Tensor]],
    ) -> Tensor:
        held = {n: p.grad for n, p in self.parameters.items()}
        for parameter in self.parameters.values():
            parameter.grad = None
        try:
            with torch.enable_grad():
                losses = self._open(x, y, limits)
                if losses.requires_grad:
                    torch.autograd.backward(losses, self._seeds(losses))
            self.tape.finish()
            self._check_leaks()
            add_to(total, self.tape.sums)
            for name, values in self.tape.norms.items():
                norms.setdefault(name, []).append(values)
            return self._bad()
        finally:
            self.tape.end()
            for name, parameter in self.parameters.items():
                parameter.grad = held[name]

    def _open(self, x: Any, y: Any, limits: dict[str, float]) -> Tensor:
        return self._record_losses(self._forward(x, limits), y)

    def _record_losses(self, output: Any, y: Any) -> Tensor:
        rows = self.tape.rows
        repeated = pytree.tree_map(self._repeat, y) if self.views > 1 else y
        bounded = isinstance(self.estimator, Lipschitz)
        leaf = output.detach().requires_grad_() if bounded else output
        with torch.enable_grad():
            losses = check_losses(self.losses_of(leaf, repeated), rows)
        if not self._loss_checked and rows > 1:
            check_apart(losses, leaf)
            self._loss_checked = True
        return self._gate.enter(losses, leaf, self._seeds(losses), output) if bounded else losses

    def _repeat(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.repeat_interleave(self.views, dim=0)
        return value

    def _seeds(self, losses: Tensor) -> Tensor:
        """One over the number of views for every row; nothing for a record that is not finite.

        Bounds are propagated for whole cotangents: there views are averaged afterwards, since a
        limit on a cotangent that was divided before would let each view reach it.
        """
        views = 1 if isinstance(self.estimator, Lipschitz) else self.views
        return self._kept.to(losses.dtype) / views

    def _forward(self, x: Any, limits: dict[str, float]) -> Any:
        x, self._kept = finite_records(fold_views(x, self.views), self.views)
        self.tape.device = self._device().type
        if isinstance(self.estimator, Lipschitz):
            check_full_precision(self.tape.device, type(self.estimator).__name__)
        self.tape.begin(leading(x), self.views, self.estimator, self.groups, limits)
        if not isinstance(self.estimator, Lipschitz):
            return call_model(self.model, x)
        if self.estimator.input_norm is not None:
            x = shortened(x, self.estimator.input_norm)
        self._gate = Gate(self.estimator.loss_clip)
        return self._gate.guard(call_model(self.model, x))

    def _bad(self) -> Tensor:
        """How many records counted zero."""
        bad = ~self._kept.reshape(-1, self.views)[:, 0]
        found = self.tape.nonfinite
        return (bad if found is None else bad | found).sum()

    def _check_leaks(self) -> None:
        for name, parameter in self.parameters.items():
            if parameter.grad is not None:
                parameter.grad = None
                raise UnsupportedModelError(
                    f'the parameter "{name}" received a gradient outside the tape, so its records '
                    "could not be bounded: it is used by code that runs outside the model's "
                    "forward, or by an operation of its own kind. Use it inside a torch module."
                )

    def _result(
        self,
        total: Sums,
        limits: dict[str, float],
        records: int,
        nonfinite: Tensor,
        norms: dict[str, list[Tensor]],
    ) -> BoundedSum:
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
        joined = {name: torch.cat(parts) for name, parts in norms.items()}
        return BoundedSum(tuple(groups), records, nonfinite, joined)

    # -- the model on the tape ----------------------------------------------------------

    def attach(self) -> None:
        """Put the model's modules on the tape until `detach`.

        Until then a model whose bounds are propagated also computes in full float32.
        """
        self.interception.attach()
        if any(isinstance(estimator, Lipschitz) for estimator in self._stages()):
            self._precision.enter_context(full_float32(self._device().type))
        self._attached = True

    def detach(self) -> None:
        """Give the model back as it was."""
        self.interception.detach()
        self._precision.close()
        self._attached = False
