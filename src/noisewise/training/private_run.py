"""A private training run: the user's loop, step by step.

Each step is: bounded sum over the batch (the engine), charge to the ledger, noise once, division
by the expected batch size, the user's own optimizer, projection of constrained layers, averages.
Momentum, weight decay and schedules only ever see noisy gradients, so they are free.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from operator import itemgetter
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from noisewise.nn.projections import Projectable, project
from noisewise.privacy import Statement
from noisewise.privacy.accounting import epsilon_of
from noisewise.privacy.statement import Preprocessing
from noisewise.training import checkpoints, promise
from noisewise.training.account import Account
from noisewise.training.averaging import Averager, Averaging
from noisewise.training.errors import StepError
from noisewise.training.loader import PrivateLoader
from noisewise.training.loop import GradientWatch, Loop, PrivateLoss, PrivateModel
from noisewise.training.plan import Plan
from noisewise.training.records import Records, map_tensors, record_count
from noisewise.training.release import BoundedSumLike, EngineLike, NoisePlan
from noisewise.training.resolved import ResolvedPlan
from noisewise.training.sampling import FullSampler, PoissonSampler
from noisewise.training.sharding import sharded_modules
from noisewise.training.streams import Streams
from noisewise.training.team import Team

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
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: LossFunction,
        engine: EngineLike,
        resolved: ResolvedPlan,
        account: Account,
        streams: Streams,
        records: Records | None,
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
        self.streams = streams
        self.name = name
        self.team = team
        self.circumstances = promise.Circumstances(augmented=augmentation is not None)
        self.averager = None if averaging is None else Averager(model, averaging)
        self.next_step = 0
        self._engine = engine
        self._records = records
        self._views = views
        self._augmentation = augmentation
        self._chunk = chunk
        self._preprocessing = preprocessing
        sharded = bool(sharded_modules(model))
        self._loop = Loop(model, loss, engine, self._before_forward, sharded)
        self.model = PrivateModel(model, self._loop)
        self.loss = PrivateLoss(self._loop)
        self.device = torch.device(device) if device is not None else _device(model)
        self.loader = self._make_loader()
        self._inside_step = False
        self._released = False
        self._epsilon: tuple[int, float] | None = None
        self._constrained = _is_constrained(model)
        self._project()
        if optimizer in _IN_USE:
            raise StepError(
                "this optimizer belongs to another private run already; close that run first "
                "(run.close()), or make an optimizer for each."
            )
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

    def step(self, x: Any, y: Any) -> None:
        """Take one private step on a batch.

        The batch is the one that `run.loader` handed out last, or one that the caller drew; then
        the statement says that sampling is the caller's promise. It may be empty.

        Raises
        ------
        BudgetExceededError
            If the step would exceed the budget. Nothing was released.
        """
        self._loop.require_idle()
        self._announce()
        count = record_count(x)
        with self.team.gathered(self.plain_model):
            bounded = self._bounded_sum(x, y)
        self._release(bounded, count)
        self._inside_step = True
        try:
            self.optimizer.step()
        finally:
            self._inside_step = False

    def discard(self) -> None:
        """Drop a batch on which `run.model` was called but no step was taken."""
        self._loop.discard()

    def epsilon(self) -> float:
        """Epsilon of the steps so far, at the plan's delta.

        Raises
        ------
        UnsoundError
            If the estimator has no proof.
        """
        promise.require_sound(self.plan.gradients)
        if self._epsilon is None or self._epsilon[0] != self.steps_taken:
            value = epsilon_of(
                self.account.history,
                delta=self.resolved.delta,
                relation=self.plan.relation,
                accountant=self.plan.accountant,
            )
            self._epsilon = (self.steps_taken, value)
        return self._epsilon[1]

    def statement(self) -> Statement:
        """Return the privacy statement of everything this run has released so far."""
        self.circumstances.skipped_batches |= self.loader is not None and self.loader.unused > 0
        return promise.state(
            self.resolved,
            self.account.history,
            self.circumstances,
            randomness=self.streams.description,
            records=self._records,
            preprocessing=self._preprocessing,
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
        return checkpoints.load(self, path, **extra)

    @property
    def batches_known_by(self) -> str:
        """What a seeded batch depends on beside seed, name and step, for checkpoints."""
        records = None if self._records is None else len(self._records)
        return f"{records} records, {self.team.workers} workers"

    def go_to(self, step: int) -> None:
        """Make that step the next one, for batches, noise and schedules (used by checkpoints)."""
        self.discard()
        self.next_step = step
        if self.loader is not None:
            self.loader.seek(step)

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

    def _before_forward(self) -> None:
        self._watch.clear()
        self._announce()

    def _bounded_sum(self, x: Any, y: Any) -> BoundedSumLike:
        count = record_count(x)
        if self._augmentation is None:
            return self._engine.sum(x, y)
        if not count:
            return self._engine.zeros(x if self._views == 1 else map_tensors(x, self._repeated))
        size = self._chunk or count
        total: BoundedSumLike | None = None
        for start in range(0, count, size):
            part = slice(start, start + size)
            inputs = map_tensors(x, itemgetter(part))
            targets = map_tensors(y, itemgetter(part))
            bounded = self._engine.sum(self._augmented(inputs), targets)
            total = bounded if total is None else total.add(bounded)
        assert total is not None
        return total

    def _repeated(self, x: Tensor) -> Tensor:
        return x.unsqueeze(1).expand(-1, self._views, *x.shape[1:])

    def _augmented(self, x: Any) -> Any:
        assert self._augmentation is not None
        if self._views == 1:
            return self._augmentation(x)
        return torch.stack([self._augmentation(x) for _ in range(self._views)], dim=1)

    def _release(self, bounded: BoundedSumLike, count: int) -> None:
        """Charge, add noise once, and hand the noisy gradient to the optimizer."""
        noise = NoisePlan(
            self.team.largest([group.sensitivity for group in bounded.groups]),
            [group.size for group in bounded.groups],
            self.resolved.noise_multiplier,
            self.plan.noise,
        )
        own = self.loader is not None and self.loader.claim(count)
        if self.team.agree(not own):
            self.circumstances.caller_batches = True
            # Only the loader's batches are known to repeat; noise must never meet another batch.
            self.next_step = max(self.next_step, self.account.charged)
        step = self.next_step
        self.team.first(lambda: self.account.charge(step))
        if self.team.worker != 0:
            self.account.restore(step + 1)  # worker 0 holds the ledger
        self.next_step = step + 1  # at once: whatever fails below, this step's noise is used up
        rng = self.streams.noise(step)
        types = {name: p.dtype for name, p in self._engine.parameters.items()}
        noisy = self.team.noisy(bounded.groups, noise, rng, self.resolved.batch_size, types)
        self._watch.write(self._engine.pull_back(noisy))
        self._released = True

    def _before_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._inside_step:
            return
        given = [*args[1:], *kwargs.values()]  # the first argument is the optimizer itself
        if any(value is not None for value in given):
            raise StepError(
                "run.optimizer.step was given a closure, which would compute gradients that are "
                "not private. Call run.loss(run.model(x), y).backward() and then "
                "run.optimizer.step()."
            )
        self._watch.require_untouched()
        count = self._loop.records
        self._release(self._loop.collect(), count)

    def _after_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._released:
            return
        self._released = False
        self._watch.remember()
        self._project()
        if self.averager is not None:
            self.averager.update(self.next_step - 1, self.resolved.steps)

    def _project(self) -> None:
        if self._constrained:
            project(self.plain_model)

    def _make_loader(self) -> PrivateLoader | None:
        if self._records is None:
            return None
        shard = self.team.shard(len(self._records))
        sampler = (
            FullSampler(shard)
            if self.plan.sampling == "full"
            else PoissonSampler(shard, self.resolved.sample_rate, self.streams)
        )
        return PrivateLoader(
            self._records,
            sampler,
            self.resolved.steps,
            self.resolved.steps_per_epoch,
            self.device,
        )


def _device(model: nn.Module) -> torch.device | None:
    parameter = next(model.parameters(), None)
    return None if parameter is None else parameter.device


def _is_constrained(model: nn.Module) -> bool:
    return any(isinstance(module, Projectable) for module in model.modules())
