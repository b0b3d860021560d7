"""A private training run: the user's loop, step by step.

Each step is: bounded sum over the batch (the engine), charge to the ledger, noise once, division
by the expected batch size, the user's own optimizer, projection of constrained layers, averages.
Momentum, weight decay and schedules only ever see noisy gradients, so they are free.
"""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from noisewise.gradients import BoundedSum, GradientEngine
from noisewise.nn import Projectable, project
from noisewise.privacy import Preprocessing, Statement
from noisewise.release import Query, Step, Steps, TensorNoise, release
from noisewise.training import checkpoints, promise
from noisewise.training.averaging import Averager, Averaging
from noisewise.training.binding import Binding, require_constant
from noisewise.training.drawing import make_loader
from noisewise.training.errors import StepError
from noisewise.training.loader import ALL_ROWS, PrivateLoader
from noisewise.training.loop import GradientWatch, Loop, PrivateLoss, PrivateModel
from noisewise.training.meter import EpsilonMeter
from noisewise.training.plan import Plan
from noisewise.training.records import Records, record_count
from noisewise.training.resolved import ResolvedPlan
from noisewise.training.sharding import are_parallel, sharded_modules
from noisewise.training.streams import Streams
from noisewise.training.team import Team, Workers
from noisewise.training.turn import Turn
from noisewise.training.units import UnitTable, batch_units

__all__ = ["Augmentation", "LossFunction", "PrivateRun"]

LossFunction = Callable[[Any, Any], Tensor]
Augmentation = Callable[[Any], Any]

#: Optimizers that belong to a run that is not closed; two runs would both noise its steps.
_IN_USE: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()


class PrivateRun:
    """One model in private training; made by :func:`make_private`.

    Attributes
    ----------
    model, loss, optimizer : of the user's own loop
        ``run.loss(run.model(x), y).backward(); run.optimizer.step()``.
    loader : PrivateLoader or None
        The batches of all steps that are left.
    resolved : ResolvedPlan
        The constants of the accountant.
    meter : EpsilonMeter
        Cheap upper bounds of epsilon, for whatever shows it while training.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: LossFunction,
        engine: GradientEngine,
        resolved: ResolvedPlan,
        account: Steps,
        streams: Streams,
        records: Records | None,
        table: UnitTable | None = None,
        name: str,
        team: Team,
        views: int,
        augmentation: Augmentation | None,
        chunk: int | None,
        averaging: Averaging | None,
        device: torch.device | str | None,
        preprocessing: Preprocessing | None,
    ) -> None:
        self.plain_model = model
        self.plain_loss = loss
        self.optimizer = optimizer
        self.resolved = resolved
        self.account = account
        self.meter = EpsilonMeter(resolved, account.history)
        self.streams = streams
        self.name = name
        self.team = team
        self.circumstances = promise.Circumstances()
        self.averager = None if averaging is None else Averager(model, averaging)
        self.next_step = 0
        self._engine = engine
        self._records = records
        self._table = table
        self._views = views
        self._preprocessing = preprocessing
        self._sharded = bool(sharded_modules(model)) or are_parallel(model)
        self._rows: tuple[int, int] | None = None
        self._turn = Turn()
        self._loop = Loop(
            model,
            loss,
            engine,
            self._before_forward,
            self._before_loss,
            partial(team.gathered, model),
            self._units,
            self._turn,
        )
        self.model = PrivateModel(model, self._loop)
        self.loss = PrivateLoss(self._loop)
        self.device = torch.device(device) if device is not None else _device(model)
        self._loader = make_loader(records, table, resolved, team, streams, self.device)
        self._noise: tuple[Any, TensorNoise] | None = None
        self._inside_step = False
        self._released = False
        self._constrained = _is_constrained(model)
        self._project()
        if optimizer in _IN_USE:
            raise StepError(
                "this optimizer belongs to another private run already; close that run first "
                "(run.close()), or make an optimizer for each."
            )
        self._binding = Binding(model, optimizer)
        self._watch = GradientWatch(dict(model.named_parameters()), optimizer, team.write)
        _IN_USE.add(optimizer)
        self._hooks = (
            optimizer.register_step_pre_hook(self._before_optimizer),
            optimizer.register_step_post_hook(self._after_optimizer),
        )

    # ---------------------------------------------------------------- what users call

    @property
    def plan(self) -> Plan:
        """The plan of this run."""
        return self.resolved.plan

    @property
    def steps_taken(self) -> int:
        """Number of steps that were charged."""
        return self.account.charged

    @property
    def steps(self) -> int:
        """Number of steps of the plan."""
        return self.resolved.steps

    @property
    def finished(self) -> bool:
        """Whether all planned steps were taken."""
        return self.next_step >= self.resolved.steps

    def step(self, x: Any, y: Any, units: Any = None) -> None:
        """Take one private step on a batch.

        The batch is the one that `run.loader` handed out last, or one that the caller drew; then
        the statement says that sampling is the caller's promise. It may be empty.

        Parameters
        ----------
        x, y : inputs and targets
        units : sequence, optional
            In a run with units, of each row of a batch that the caller drew: rows of one unit are
            bounded together. Those of the loader's batches are known.

        Raises
        ------
        BudgetExceededError
            If the step would exceed the budget. Nothing was released.
        """
        self._turn.take()
        try:
            self._step(x, y, units)
        finally:
            if self._loop.idle:  # else it is another batch's, of a loop by hand
                self._turn.give()

    def _step(self, x: Any, y: Any, units: Any) -> None:
        self._loop.require_idle()
        self._binding.require(self.optimizer)
        require_constant((x, y))
        self._announce()
        rows = self._recognise((x, y))
        codes = self._units_of(rows, record_count(x), units)
        with self.team.gathered(self.plain_model):
            bounded = self._engine.sum(x, y, codes)
        self._release(bounded, rows == ALL_ROWS)
        self._inside_step = True
        try:
            self.optimizer.step()
        finally:
            self._inside_step = False

    def discard(self) -> None:
        """Drop a batch that was handed out, or on which `run.model` was called, without a step."""
        self._loop.discard()
        if self._loader is not None:
            self._loader.drop()

    def epsilon(self) -> float:
        """Epsilon of the steps so far, at the plan's delta.

        Raises
        ------
        UnsoundError
            If the estimator has no proof.
        UnsupportedModelError
            If the model has kept records.
        """
        promise.require_sound(self.plan.gradients)
        self._engine.lingering.require_gone(all_of_it=True)
        value = self.meter.after(self.steps_taken, exactly=True)
        assert value is not None
        return value

    def statement(self) -> Statement:
        """Return the privacy statement of everything this run has released so far."""
        self._engine.lingering.require_gone(all_of_it=True)
        assumed = self._engine.assumed
        if assumed is not None:
            self.circumstances.unproven = "; ".join(assumed.reasons[:3])
        self.circumstances.skipped_batches |= self._loader is not None and self._loader.unused > 0
        return promise.state(
            self.resolved,
            self.account,
            self.circumstances,
            randomness=self.streams.description,
            records=self._records,
            preprocessing=self._preprocessing,
        )

    def assumptions(self) -> tuple[str, ...]:
        """Return what must hold for a promise about this run, as far as it went."""
        return promise.assumptions(
            self.resolved, self.circumstances, self._records, self._preprocessing
        )

    def averaged_model(self) -> nn.Module:
        """Return a copy of the model with averaged weights (public, like the weights)."""
        if self.averager is None:
            raise ValueError("this run averages nothing; give averaging='ema' to make_private")
        return self.averager.model()

    def save(self, path: str | os.PathLike[str], **extra: Any) -> None:
        """Write a checkpoint: weights, optimizer, averages, position; atomic, without pickle."""
        checkpoints.save_run(self, path, **extra)

    def resume(self, path: str | os.PathLike[str], **extra: Any) -> dict[str, Any]:
        """Continue from a checkpoint of this run; what the ledger has charged stays charged."""
        rest = checkpoints.load(self, path, **extra)
        self._engine.accept_buffers()
        return rest

    @property
    def batches_known_by(self) -> str:
        """What a seeded batch depends on beside seed, name and step, for checkpoints."""
        records = None if self._records is None else len(self._records)
        held = "" if self._table is None else f", {len(self._table)} units"
        return f"{records} records{held}, {self.team.workers} workers"

    def go_to(self, step: int) -> None:
        """Make that step the next one, for batches, noise and schedules (used by checkpoints)."""
        self.discard()
        self.next_step = step
        if self._loader is not None:
            self._loader.seek(step)

    def close(self) -> None:
        """Give the optimizer back, and the ledger if this run opened it."""
        self._loop.discard()
        for hook in self._hooks:
            hook.remove()
        _IN_USE.discard(self.optimizer)
        self.account.close()

    def __enter__(self) -> PrivateRun:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ---------------------------------------------------------------- one step

    def _announce(self) -> None:
        """Tell the engine how far training is, for estimators that change on the way."""
        self._engine.progress = min(1.0, self.next_step / self.resolved.steps)

    def _before_forward(self, x: Any) -> None:
        self._binding.require(self.optimizer)
        self._rows = self._recognise(x)
        self._watch.clear()
        self._announce()

    def _before_loss(self, y: Any) -> None:
        require_constant(y)
        if self._rows is not None:
            self._recognise(y, self._rows)

    def _recognise(
        self, values: Any, like: tuple[int, int] | None = None
    ) -> tuple[int, int] | None:
        """Which rows of the loader's batch these are; a changed one is refused."""
        return None if self._loader is None else self._loader.recognise(values, like)

    def _units(self, x: Any) -> Tensor | None:
        """Units of the batch on which `run.model` is called."""
        return self._units_of(self._rows, record_count(x), None)

    def _units_of(self, rows: tuple[int, int] | None, count: int, given: Any) -> Tensor | None:
        """The unit of every row of a batch, where rows of one unit are bounded together."""
        known = None if rows is None or self._loader is None else self._loader.units(rows)
        most = self.resolved.unit_rows
        return batch_units(self.resolved.unit_rule, most, known, rows is not None, given, count)

    def _release(self, bounded: BoundedSum, own: bool) -> None:
        """Charge, add noise once, and hand the noisy gradient to the optimizer."""
        bounds = self.team.largest([group.sensitivity for group in bounded.groups])
        noise = self._planned(tuple(bounds), tuple(group.size for group in bounded.groups))
        if self._loader is not None:
            self._loader.claim()
        if self.team.agree(not own):
            self.circumstances.caller_batches = True
            # Only the loader's batches are known to repeat; noise must never meet another batch.
            self.next_step = max(self.next_step, self.account.charged)
        if self.streams.is_secret:
            # A charge whose step was interrupted is lost: secret noise is never repeated.
            self.next_step = self.team.share(max(self.next_step, self.account.charged))
        step = self.next_step
        sums = [group.gradients for group in bounded.groups]
        found = release(
            Query(lambda _: sums, noise.sensitivity, "sum of gradients", self.plan.unit),
            noise,
            Workers(self.team),
            Step(self.account, step, partial(self._use, step)),
            delta=None,
            rng=self.streams.noise(step),
        ).value
        if found is None:
            self._lose()
            return
        self.account.follow(step + 1)
        self.next_step = step + 1
        self._watch.write(self._engine.pull_back(found))
        self._released = True

    def _planned(self, bounds: tuple[float, ...], sizes: tuple[int, ...]) -> TensorNoise:
        """Noise for groups that one record moves so far; mostly the same as of the step before."""
        key = bounds, sizes, id(self.resolved)
        if self._noise is None or self._noise[0] != key:
            types = {name: p.dtype for name, p in self._engine.parameters.items()}
            noise = self.resolved.noise(bounds, sizes, types)
            self._noise = key, noise
        return self._noise[1]

    def _use(self, step: int) -> None:
        """Never draw the noise of this step again."""
        self.next_step = step + 1

    def _lose(self) -> None:
        """Leave out steps that were charged but cannot be repeated: their noise is used up."""
        first, charged = self.next_step + 1, self.team.share(self.account.charged)
        warnings.warn(
            f"step {first} was charged before and cannot be repeated bit by bit: the records, the "
            "program or the machine differ from those with which it was taken. What steps "
            f"{first} to {charged} had learnt is lost; training goes on behind them, with new "
            "batches and new noise, which are charged.",
            stacklevel=5,
        )
        self._watch.write({})  # the optimizer leaves alone what has no gradient
        self.account.follow(charged)
        self.go_to(charged)

    def _before_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._turn.require()
        if self._inside_step:
            return
        given = [*args[1:], *kwargs.values()]  # the first argument is the optimizer itself
        if any(value is not None for value in given):
            raise StepError(
                "run.optimizer.step was given a closure, which would compute gradients that are "
                "not private. Call run.loss(run.model(x), y).backward() and then "
                "run.optimizer.step()."
            )
        if self._sharded:
            # The model shows its parts again, which are what the optimizer holds, after collecting.
            self._watch.require_untouched()
            bounded = self._loop.collect()
            self._binding.require(self.optimizer)
        else:
            self._binding.require(self.optimizer)
            self._watch.require_untouched()
            bounded = self._loop.collect()
        self._release(bounded, self._rows == ALL_ROWS)

    def _after_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._released:
            return
        self._released = False
        self._watch.remember()
        self._project()
        if self.averager is not None:
            self.averager.update(self.next_step - 1, self.resolved.steps)
        self._turn.give()

    def _project(self) -> None:
        if self._constrained:
            project(self.plain_model)

    @property
    def loader(self) -> PrivateLoader:
        """All batches of the plan, drawn as the accountant assumes."""
        if self._loader is None:
            raise StepError(
                "this run has no loader: it was made without data (data=None), so batches are "
                "the caller's. Hand the records to make_private, or draw batches yourself and "
                "call run.step(x, y)."
            )
        return self._loader


def _device(model: nn.Module) -> torch.device | None:
    parameter = next(model.parameters(), None)
    return None if parameter is None else parameter.device


def _is_constrained(model: nn.Module) -> bool:
    return any(isinstance(module, Projectable) for module in model.modules())
