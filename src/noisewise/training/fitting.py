"""``fit``: the whole training for those who want no loop of their own."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from noisewise import checks
from noisewise.errors import BudgetExceededError
from noisewise.privacy import Statement
from noisewise.training.callbacks import Callback, ProgressBar
from noisewise.training.errors import CheckpointError, StepError
from noisewise.training.evaluation import Metric, evaluate, measure_apart, split_batch
from noisewise.training.meter import EpsilonMeter
from noisewise.training.options import RunOptions
from noisewise.training.plan import Plan
from noisewise.training.private import make_private
from noisewise.training.private_run import LossFunction, PrivateRun
from noisewise.training.records import map_tensors, record_count, records_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Fitted", "fit"]

#: Records of a batch that are looked at for the progress bar.
_LOOK = 256

_PRIVATE_METRICS = (
    "loss and accuracy on private records are shown as they are, without noise: they are not "
    "covered by the privacy statement, so keep them to yourself (metrics=False shows none). To "
    "publish how good the model is, measure it privately with noisewise.ecdf (dp_roc_curve, "
    "dp_calibration_curve, ...) or the command `noisewise evaluate`."
)
_warned = False

OptimizerLike = torch.optim.Optimizer | Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class Epochs:
    """What is written down after every epoch; epsilon is accounted only when somebody reads it."""

    def __init__(self, meter: EpsilonMeter) -> None:
        self._meter = meter
        self._records: list[dict[str, Any]] = []
        self._charged: list[int] = []

    def add(self, record: dict[str, Any], charged: int) -> None:
        """Write down an epoch at whose end so many steps were charged."""
        self._records.append(record)
        self._charged.append(charged)

    def read(self) -> list[dict[str, Any]]:
        """Return the records of all epochs, the last of which has epsilon exactly."""
        last = len(self._records) - 1
        for index, (record, charged) in enumerate(zip(self._records, self._charged, strict=True)):
            record["epsilon"] = self._meter.after(charged, exactly=index == last)
        return self._records


@dataclass
class Fitted:
    """A finished training.

    Attributes
    ----------
    run : PrivateRun
    history : list of dict
        One record per epoch: step, epsilon (at most this much, and exactly this in the last one),
        seconds and metrics. Metrics of private records in it are not private.
    stopped : {"finished", "budget", "callback"}
        What ended training.
    """

    run: PrivateRun
    epochs: Epochs
    stopped: str = "finished"

    @property
    def history(self) -> list[dict[str, Any]]:
        """One record per epoch; epsilon is accounted when this is read for the first time."""
        return self.epochs.read()

    @property
    def model(self) -> nn.Module:
        """The trained model; its average if averaging was asked for."""
        if self.run.averager is not None:
            return self.run.averaged_model()
        return self.run.plain_model

    def statement(self) -> Statement:
        """Return the privacy statement of the training."""
        return self.run.statement()


def fit(
    model: nn.Module,
    data: Any,
    plan: Plan,
    *,
    loss: LossFunction,
    optimizer: OptimizerLike | None = None,
    scheduler: Callable[[torch.optim.Optimizer], Any] | None = None,
    validation: Any = None,
    validation_public: bool = False,
    metrics: bool | Mapping[str, Metric] = True,
    callbacks: Iterable[Callback] = (),
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int | None = None,
    resume: bool = False,
    progress: bool = True,
    split: Callable[[Any], tuple[Any, Any]] = split_batch,
    **options: Unpack[RunOptions],
) -> Fitted:
    """Train a model privately, from the first step to the last of its plan.

    Parameters
    ----------
    model : nn.Module
        Trained in place.
    data : tensors, dataset or DataLoader
    plan : Plan
    loss : callable
    optimizer : Optimizer, or callable from parameters to one, optional
        Default: Adam with learning rate 0.001.
    scheduler : callable, optional
        From the optimizer to a learning-rate scheduler, which is stepped after every step.
    validation : tensors or dataset, optional
        Measured after every epoch.
    validation_public : bool
        Whether the validation records are public; otherwise their metrics are not private.
    metrics : bool or mapping of names to functions (output, target) -> number
        Whether to look at the loss and accuracy of training batches now and then. A mapping adds
        metrics of one's own.
    callbacks : iterable of Callback
    checkpoint : path, optional
        Written at the start, after every epoch and at the end; its ledger is beside it, with
        ``.ledger`` added to the name, unless `ledger` is given.
    checkpoint_every : int, optional
        Write it every so many steps as well.
    resume : bool
        Continue from the checkpoint if there is one.
    progress : bool
        Show a progress bar.
    split : callable, optional
        From a batch to (inputs, targets).
    **options
        Of :func:`make_private`: records, ledger, name, views, augmentation, chunk, averaging,
        collate, workers, pin_memory, device, preprocessing, team.

    Examples
    --------
    >>> import torch, noisewise.training as training
    >>> from noisewise.gradients import Clipped
    >>> x = torch.randn(300, 4)
    >>> y = (x[:, 0] > 0).long()
    >>> plan = training.Plan(gradients=Clipped(1.0), epsilon=3.0, epochs=3, batch_size=30)
    >>> fitted = training.fit(torch.nn.Linear(4, 2), (x, y), plan,
    ...                       loss=torch.nn.CrossEntropyLoss(), progress=False, metrics=False)
    >>> len(fitted.history), fitted.statement().epsilon <= 3.0
    (3, True)
    """
    chosen = _optimizer(optimizer, model)
    path = _checkpoint_path(checkpoint, resume)
    if path is not None:
        options.setdefault("ledger", path.with_name(path.name + ".ledger"))
    if checkpoint_every is not None:
        checks.integer("checkpoint_every", checkpoint_every, minimum=1)
    run = make_private(model, chosen, loss, data, plan, **options)
    try:
        schedule = None if scheduler is None else scheduler(chosen)
        watched = [*callbacks, *([ProgressBar()] if progress and run.team.worker == 0 else [])]
        training = _Training(run, schedule, watched, path, checkpoint_every, metrics, split)
        if validation is not None:
            training.validate_on(validation, validation_public)
        if path is not None and resume and run.team.share(int(path.exists())):
            run.resume(path, **training.saved_along())
        return training.to_the_end()
    finally:
        run.close()


class _Training:
    """The loop of `fit`."""

    def __init__(
        self,
        run: PrivateRun,
        schedule: Any,
        callbacks: list[Callback],
        checkpoint: Path | None,
        checkpoint_every: int | None,
        metrics: bool | Mapping[str, Metric],
        split: Callable[[Any], tuple[Any, Any]],
    ) -> None:
        self.run = run
        self.schedule = schedule
        self.callbacks = callbacks
        self.checkpoint = checkpoint
        self.checkpoint_every = checkpoint_every
        self.look = bool(metrics)
        self.metrics = dict(metrics) if isinstance(metrics, Mapping) else {}
        self.split = split
        self.validation: Any = None
        self.latest: dict[str, float] = {}
        self.look_every = max(1, run.resolved.steps_per_epoch // 10)
        if self.look:
            self._not_private()

    def validate_on(self, validation: Any, public: bool) -> None:
        self.validation = records_of(validation)
        if not public:
            self._not_private()

    def saved_along(self) -> dict[str, Any]:
        along = {
            f"callback{i}": callback
            for i, callback in enumerate(self.callbacks)
            if hasattr(callback, "state_dict")
        }
        return along if self.schedule is None else {**along, "scheduler": self.schedule}

    def to_the_end(self) -> Fitted:
        run, fitted = self.run, Fitted(self.run, Epochs(self.run.meter))
        run.plain_model.train()
        if run.next_step == 0:
            self._save()
        for callback in self.callbacks:
            callback.on_start(run)
        started = time.perf_counter()
        try:
            for batch in run.loader:
                x, y = self.split(batch)
                self._look(x, y)
                run.step(x, y)
                if self.schedule is not None:
                    self.schedule.step()
                for callback in self.callbacks:
                    callback.on_step(run, self.latest)
                ends = run.next_step % run.resolved.steps_per_epoch == 0 or run.finished
                if ends and self._end_epoch(fitted, time.perf_counter() - started):
                    fitted.stopped = "callback"
                    break
                if not ends and self.checkpoint_every and not run.next_step % self.checkpoint_every:
                    self._save()
        except BudgetExceededError:
            fitted.stopped = "budget"
        finally:
            for callback in self.callbacks:
                callback.on_end(run)
        run.plain_model.eval()
        return fitted

    def _look(self, x: Any, y: Any) -> None:
        if not self.look or self.run.next_step % self.look_every or not record_count(x):
            return
        first = itemgetter(slice(0, _LOOK))
        few, targets = map_tensors(x, first), map_tensors(y, first)
        run = self.run
        try:
            self.latest = measure_apart(run.plain_model, run.plain_loss, few, targets, self.metrics)
        except StepError:  # of a record: whether training goes on must not depend on it
            self.latest = {"loss": math.nan}

    def _end_epoch(self, fitted: Fitted, seconds: float) -> bool:
        run = self.run
        record: dict[str, Any] = {
            "epoch": -(-run.next_step // run.resolved.steps_per_epoch),
            "step": run.next_step,
            # An upper bound for those who are told now; nobody may ever read it.
            "epsilon": run.meter.after(run.steps_taken) if self.callbacks else None,
            "seconds": seconds,
            **{f"train_{name}": value for name, value in self.latest.items()},
        }
        if self.validation is not None:
            found = evaluate(
                run.plain_model,
                run.plain_loss,
                self.validation,
                metrics=self.metrics,
                split=self.split,
                device=run.device,
                private=True,
            )
            record.update({f"validation_{name}": value for name, value in found.items()})
        fitted.epochs.add(record, run.steps_taken)
        stop = [callback.on_epoch(run, record) for callback in self.callbacks]
        self._save()
        return self.run.team.agree(any(stop))

    def _save(self) -> None:
        if self.checkpoint is not None:
            self.run.save(self.checkpoint, **self.saved_along())

    def _not_private(self) -> None:
        global _warned
        self.run.circumstances.metrics = True
        if not _warned:
            _warned = True
            warnings.warn(_PRIVATE_METRICS, stacklevel=4)


def _optimizer(given: OptimizerLike | None, model: nn.Module) -> torch.optim.Optimizer:
    if given is None:
        return torch.optim.Adam(model.parameters(), lr=1e-3)
    if isinstance(given, torch.optim.Optimizer):
        return given
    if not callable(given):
        raise TypeError(
            "optimizer must be an optimizer of torch or make one from parameters, for example "
            f"lambda parameters: torch.optim.SGD(parameters, lr=1.0); got {given!r}"
        )
    return given(model.parameters())


def _checkpoint_path(checkpoint: str | os.PathLike[str] | None, resume: bool) -> Path | None:
    if checkpoint is None:
        if resume:
            raise ValueError("resume=True needs the checkpoint= that is to be continued")
        return None
    path = Path(checkpoint)
    if path.exists() and not resume:
        raise CheckpointError(
            f"{str(path)!r} exists. Continue it with resume=True, or choose another path for a new "
            "training."
        )
    return path
