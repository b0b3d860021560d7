"""The engine: a model, a loss and an estimator, and a batch in, a bounded sum out.

``bounded_sum`` is the contract that everybody tests against. `GradientEngine` keeps what
can be kept between steps: the checked model, its traced graph, certified norms.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from noisewise.bounds.improvements import Improvements
from noisewise.errors import UnsupportedModelError
from noisewise.gradients.batches import (
    Seeded,
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
from noisewise.gradients.sums import SLACK, BoundedSum, Group
from noisewise.gradients.tape import Tape
from noisewise.privacy import _validate

__all__ = ["GradientEngine", "bounded_sum"]


def bounded_sum(
    model: nn.Module,
    loss: Any,
    x: Any,
    y: Any,
    gradients: Estimator | Schedule,
    *,
    views: int = 1,
    chunk: int | None = None,
) -> BoundedSum:
    """Sum the records' gradients, each bounded by an estimator. No noise is added.

    Parameters
    ----------
    model : Module
        Takes records along the first axis of its input. Left as it is.
    loss : loss module or callable
        A torch loss, read per record whatever its reduction, or a function
        ``(output, target) -> one loss per record``.
    x : Tensor, tuple or dict
        A batch; a tuple is passed as several arguments, a dict by name.
    y : Tensor or any structure of tensors
        Targets, records along the first axis.
    gradients : estimator
        `Clipped`, `Factored`, `InputScaled`, `Propagated`, ...
    views : int
        Augmentation multiplicity K: x then has shape (records, K, ...), and the gradients of
        a record's views are averaged before they are bounded.
    chunk : int, optional
        Largest number of records that are processed at a time. Gives the same sum. By default
        all, or half of them where groups span several layers.

    Returns
    -------
    BoundedSum
        Groups in a fixed order, each with sums of gradients and its sensitivity.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from noisewise.gradients import Clipped
    >>> model = nn.Linear(3, 2)
    >>> x, y = torch.randn(8, 3), torch.randint(2, (8,))
    >>> result = bounded_sum(model, nn.CrossEntropyLoss(), x, y, Clipped(1.0))
    >>> result.groups[0].names, result.groups[0].sensitivity
    (('weight', 'bias'), 1.001)
    """
    return GradientEngine(model, loss, gradients, views=views, chunk=chunk).sum(x, y)


class GradientEngine:
    """Bounded sums of one model, batch after batch.

    Parameters as of `bounded_sum`.

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
        for estimator in self._stages():
            if not isinstance(estimator, Lipschitz):
                estimator.limits(estimator.groups(self.sizes))

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
                gradients[name] = (
                    torch.zeros_like(parameter) if found is None else found.to(parameter.dtype)
                ).detach()
            sensitivity = limits[spec.name] * (1 + SLACK)
            groups.append(Group(spec.name, spec.names, gradients, sensitivity, spec.size))
        joined = {name: torch.cat(parts) for name, parts in norms.items()}
        return BoundedSum(tuple(groups), records, nonfinite, joined)

    # -- a loop of the user's own -------------------------------------------------------

    def attach(self) -> None:
        """Put the model's modules on the tape until `detach`."""
        self.interception.attach()
        self._attached = True

    def detach(self) -> None:
        """Give the model back as it was."""
        self.interception.detach()
        self._attached = False

    def forward(self, x: Any) -> Any:
        """Open a batch and run the model; `losses`, backward and `collect` follow."""
        if self.tape.open:
            raise RuntimeError(
                "a batch is open that was not collected: call backward and the optimizer's step "
                "before the next batch, or discard() it"
            )
        self.prepare(x)
        self._batch_limits = self._limits(x)
        self._batch_records = leading(x)
        if not self._attached:
            self.attach()
        for name, parameter in self.parameters.items():
            if parameter.grad is not None:
                raise RuntimeError(
                    f'the parameter "{name}" already has a gradient: call optimizer.zero_grad() '
                    "before the batch"
                )
        return self._forward(x, self._batch_limits)

    def losses(self, output: Any, y: Any) -> Tensor:
        """Mean loss of the open batch, whose backward seeds every record with exactly one."""
        if not self.tape.open:
            raise RuntimeError("no batch is open: call the model first")
        values = self._record_losses(output, y)
        result: Tensor = Seeded.apply(values, self._seeds(values))  # type: ignore[no-untyped-call]
        return result

    def collect(self) -> BoundedSum:
        """Close the open batch and return its bounded sum."""
        if not self.tape.open:
            raise RuntimeError("no batch is open: call the model and backward first")
        try:
            self.tape.finish()
            self._check_leaks()
            norms = {name: [values] for name, values in self.tape.norms.items()}
            return self._result(
                self.tape.sums, self._batch_limits, self._batch_records, self._bad(), norms
            )
        finally:
            self.tape.end()

    def discard(self) -> None:
        """Close an open batch without using it."""
        self.tape.end()

    @property
    def is_open(self) -> bool:
        """Whether a batch is open."""
        return self.tape.open

    @property
    def has_arrived(self) -> bool:
        """Whether gradients of the open batch have arrived (backward was called)."""
        return self.tape.open and self.tape.backward

    def pull_back(self, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        """Take gradients of effective weights back to the raw parameters (U19)."""
        result = dict(gradients)
        for name, parameter in self.parameters.items():
            owner = self.interception.owners.get(id(parameter))
            local = name.rpartition(".")[2]
            if local == "weight" and hasattr(owner, "pull_back") and name in result:
                result[name] = owner.pull_back(result[name])  # type: ignore[union-attr,operator]
        return result
