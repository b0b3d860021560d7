"""A user's own loop: ``run.loss(run.model(x), y).backward(); run.optimizer.step()``.

:class:`Loop` follows one batch from forward to step and refuses every order that is not exactly
one private step: two forwards, two losses, two backwards, a step without a backward, gradients
written by somebody else in between. It refuses before anything is charged or released.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from noisewise.gradients import BoundedSum, GradientEngine, selection_of, withheld
from noisewise.training.binding import require_constant
from noisewise.training.errors import StepError
from noisewise.training.evaluation import call_model, mean_loss
from noisewise.training.records import first_record, leaves, record_count
from noisewise.training.turn import Turn

__all__ = ["GradientWatch", "Loop", "PrivateLoss", "PrivateModel"]

_IDLE, _FORWARD, _LOSS, _BACKWARD, _SPOILED = "idle", "forward", "loss", "backward", "spoiled"


class Loop:
    """The state of the batch that is under way.

    Parameters
    ----------
    model : nn.Module
    loss : callable
        As the user gave it; used as it is on evaluation batches.
    engine : GradientEngine
    before, before_loss : callable
        Called with the inputs before a forward pass, and with the targets before the loss.
    gathered : callable
        Returns a context in which weights that are in parts on several workers are whole; it is
        held from the forward pass to the step.
    units : callable
        From the inputs, after `before`, to the units of their rows; None: every row is one.
    turn : Turn
        Of the run: a batch belongs to the thread that opened it.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Any, Any], Tensor],
        engine: GradientEngine,
        before: Callable[[Any], None],
        before_loss: Callable[[Any], None],
        gathered: Callable[[], AbstractContextManager[None]] = nullcontext,
        units: Callable[[Any], Tensor | None] = lambda x: None,
        turn: Turn | None = None,
    ) -> None:
        self._units = units
        self._turn = turn or Turn()
        self._gathered, self._held = gathered, ExitStack()
        self._model = model
        self._loss = loss
        self._engine = engine
        self._before, self._before_loss = before, before_loss
        self._state = _IDLE
        self._records = 0
        self._inputs: Any = None
        #: Of an empty batch: its targets, the output's tensors, and what of them the loss takes.
        self._targets: Any = None
        self._leaves: list[Any] = []
        self._select: Any = None

    @property
    def records(self) -> int:
        """Number of records of the batch under way."""
        return self._records

    @property
    def idle(self) -> bool:
        """Whether no batch is under way."""
        return self._state == _IDLE

    def forward(self, x: Any) -> Any:
        """Open a batch, or evaluate the model if it is not training."""
        if not torch.is_grad_enabled() or not self._model.training:
            return call_model(self._model, x)
        self._turn.take()
        if self._state not in (_IDLE, _SPOILED):
            raise StepError(
                "run.model was called twice in training mode without a step in between; the "
                "second batch would be added to the first. Finish the first (backward, then "
                "run.optimizer.step()), drop it with run.discard(), or evaluate under "
                "torch.no_grad(). A batch that is too large for memory is stepped on with "
                "run.step(x, y) and chunk=."
            )
        self._drop()
        try:
            self._before(x)
            require_constant(x)
            self._records = record_count(x)
            self._inputs = x
            self._held.enter_context(self._gathered())
            codes = self._units(x)
            output = self._engine.forward(x, codes) if self._records else self._no_output(x)
        except BaseException:
            self.discard()
            raise
        self._state = _FORWARD
        return output

    def loss(self, output: Any, y: Any) -> Tensor:
        """Mean loss of the open batch, whose backward gives the private gradients."""
        if not torch.is_grad_enabled() or not any(t.requires_grad for t in leaves(output)):
            return mean_loss(self._loss, output, y)
        self._turn.require()
        if self._state != _FORWARD:
            raise StepError(
                "run.loss was called "
                + ("twice on one batch" if self._state in (_LOSS, _BACKWARD) else "without a batch")
                + ": one record's contribution would not be bounded. Call run.model(x) once, then "
                "run.loss(output, y) once, with all terms in one loss."
            )
        self._before_loss(y)
        if self._records:
            value = self._engine.losses(output, y)
        else:
            self._targets, self._select = y, selection_of(self._leaves, output)
            value = _zero(output)
        value.register_hook(self._on_backward)  # type: ignore[no-untyped-call]
        self._state = _LOSS
        return value

    def collect(self) -> BoundedSum:
        """Close the batch and return its bounded sum."""
        if self._state != _BACKWARD:
            reasons = {
                _IDLE: "there is no batch: it was stepped on already, or run.model(x) and "
                "loss.backward() were not called",
                _FORWARD: "there was a forward pass but no run.loss(output, y).backward()",
                _LOSS: "loss.backward() was not called",
                _SPOILED: "loss.backward() was called twice on this batch",
            }
            raise StepError(
                f"step without a private gradient: {reasons[self._state]}. Nothing was released "
                "or charged."
            )
        self._state = _IDLE
        try:
            if self._records:
                return self._engine.collect()
            return self._engine.idle(self._inputs, self._targets, self._select)
        finally:
            self._close()

    def discard(self) -> None:
        """Drop the batch under way, if there is one. It was not released, so nothing is charged."""
        self._turn.take()
        self._drop()
        self._turn.give()

    def _drop(self) -> None:
        self._state = _IDLE
        self._engine.discard()
        self._close()

    def require_idle(self) -> None:
        """Refuse `run.step` in the middle of a loop of the user's own."""
        if self._state != _IDLE:
            raise StepError(
                "run.step(x, y) was called while a batch of run.model(x) is under way. Finish that "
                "with run.optimizer.step(), or drop it with run.discard()."
            )

    def _close(self) -> None:
        self._inputs = self._targets = self._select = None
        self._leaves = []
        self._engine.detach()
        self._held.close()

    def _on_backward(self, gradient: Tensor) -> None:
        if self._state != _LOSS:
            self._state = _SPOILED
            raise StepError(
                "loss.backward() was called twice on one batch; every record would count twice "
                "and the sensitivity would be false. Call run.model(x) again for a new batch. "
                "Nothing was released or charged."
            )
        self._state = _BACKWARD

    def _no_output(self, x: Any) -> Any:
        """Output for no records; layers that refuse an empty batch see one of zeros instead."""
        engine, made_up = self._engine, first_record(x)
        with torch.no_grad(), engine.buffers.kept():
            output = engine.on_made_up(lambda: call_model(self._model, made_up))
        output = pytree.tree_map(_without_rows, output)
        self._leaves = pytree.tree_leaves(output)
        return output


class PrivateModel:
    """The model of a run: trains privately, and is the model itself in every other respect."""

    def __init__(self, model: nn.Module, loop: Loop) -> None:
        self.__dict__["_model"] = model
        self.__dict__["_loop"] = loop

    def __call__(self, *x: Any, **named: Any) -> Any:
        """Run the model; in training mode this opens a private batch."""
        if named and x:
            raise TypeError(
                "give the inputs of a private model by position or by name, not both: "
                "run.model(a, b) or run.model(input_ids=a, mask=b)"
            )
        return self._loop.forward(named or (x[0] if len(x) == 1 else x))

    def __getattr__(self, name: str) -> Any:
        if name in ("_model", "_loop"):  # a copy that is not finished has neither
            raise AttributeError(name)
        return getattr(self._model, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Module:
        """Return a copy of the plain model: a run is not copied along."""
        copied: nn.Module = copy.deepcopy(self._model, memo)
        return copied

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._model, name, value)

    def __repr__(self) -> str:
        return f"PrivateModel({self._model!r})"


class PrivateLoss:
    """The loss of a run: the mean over the batch, whose backward bounds every record."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def __call__(self, output: Any, y: Any) -> Tensor:
        """Return the mean loss of a batch."""
        return self._loop.loss(output, y)


class GradientWatch:
    """Writes noisy gradients to ``.grad``, and notices when anybody else does."""

    def __init__(
        self,
        named: Mapping[str, nn.Parameter],
        optimizer: torch.optim.Optimizer,
        write: Callable[[nn.Parameter, Tensor | None], None],
    ) -> None:
        self._names = {id(parameter): name for name, parameter in named.items()}
        self._optimizer = optimizer
        self._write = write
        self._ours: dict[int, tuple[Tensor, int]] = {}
        for parameter in self._parameters():
            parameter.grad = None

    def require_untouched(self) -> None:
        """Raise if a gradient is there that is neither ours nor zero."""
        for parameter in self._parameters():
            gradient = parameter.grad
            if gradient is None:
                continue
            ours, version = self._ours.get(id(parameter), (None, -1))
            if gradient is ours and gradient._version == version:
                continue
            if not bool(gradient.any()):
                continue  # zero_grad(set_to_none=False)
            name = self._names.get(id(parameter), "a parameter")
            raise StepError(
                f"the gradient of {name!r} was written or changed since the last step, by another "
                "backward(), by hand (clipping, scaling, adding a penalty), or by a use of the "
                "parameter outside the model's modules. It is not private, "
                "so no step is taken and nothing is charged. Put penalties on weights into the "
                "optimizer (weight_decay), change noisy gradients in an optimizer hook, and clear "
                "other gradients with optimizer.zero_grad()."
            )

    def clear(self) -> None:
        """Drop gradients of the step before, after making sure that they are only those."""
        self.require_untouched()
        for parameter in self._parameters():
            parameter.grad = None

    def write(self, gradients: Mapping[str, Tensor]) -> None:
        """Replace every gradient that the optimizer can see by its noisy one, or by none."""
        for parameter in self._parameters():
            self._write(parameter, gradients.get(self._names[id(parameter)]))

    def remember(self) -> None:
        """Note the gradients as they are after a step: stale, but public."""
        self._ours = {
            id(parameter): (parameter.grad, parameter.grad._version)
            for parameter in self._parameters()
            if parameter.grad is not None
        }

    def _parameters(self) -> Iterable[nn.Parameter]:
        return (p for group in self._optimizer.param_groups for p in group["params"])


def _zero(output: Any) -> Tensor:
    total: Tensor = sum((tensor.sum() for tensor in leaves(output)), torch.zeros(()))
    return total * 0.0


def _without_rows(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return withheld(value)
    if not value.dim():
        return value
    rows = value[:0].detach()
    return rows.requires_grad_() if rows.is_floating_point() else rows
