"""Private training in Lightning's trainer, by a callback. Needs the extra ``lightning``.

``Trainer(callbacks=[PrivateTraining(plan, loss)])`` and ``trainer.fit(module, loader)`` as ever.
The callback replaces what touches private records: the loader by the run's Poisson batches, the
module's ``training_step`` by the run's step. Optimizer, schedules, validation, loggers, checkpoints
and all other callbacks stay.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from noisewise.accelerate import records_of_loader
from noisewise.errors import MissingExtraError, UnsoundError, UnsupportedModelError
from noisewise.privacy import Ledger, Statement, round_up, single_up
from noisewise.training import (
    EpochLoader,
    LoaderOptions,
    LossFunction,
    Plan,
    PrivateRun,
    StepError,
    SteppingOptimizer,
    make_private,
    records_shared,
    split_batch,
)

try:
    from lightning.pytorch import Callback
except ImportError as error:
    raise MissingExtraError(
        "PrivateTraining needs Lightning, which is not installed: "
        "pip install 'noisewise[lightning]'"
    ) from error

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["PrivateTraining"]

_KEY = "noisewise"
_CHOOSING = ("EarlyStopping", "LearningRateFinder", "BatchSizeFinder")


class PrivateTraining(Callback):  # type: ignore[misc]
    """Makes the training of a LightningModule private.

    The module's ``training_step`` is not called: what it would return is the loss of a batch, and
    what is needed is the loss of each record. That is `loss` of what its ``forward`` returns.

    Parameters
    ----------
    plan : Plan
        Decides batch size and length of training; ``max_epochs`` follows from it.
    loss : callable
        A torch loss, or ``(output, target) -> one loss per record``.
    split : callable, optional
        From a batch to inputs and targets; default: the last part, or the part called label or
        target.
    ledger : Ledger or path, optional
        Where steps are charged before they are taken; needed for checkpoints. Default: a file in
        the trainer's ``default_root_dir``.
    name : str
        Of this run in the ledger.
    public_validation : bool
        Whether the validation records are public, so that they may be used to choose.
    **options
        Further options of :func:`noisewise.make_private`: ``chunk``, ``views``, ...

    Attributes
    ----------
    run : PrivateRun or None
        The run, once training has begun.
    """

    run: PrivateRun | None = None

    def __init__(
        self,
        plan: Plan,
        loss: LossFunction,
        *,
        split: Callable[[Any], tuple[Any, Any]] = split_batch,
        ledger: Ledger | str | os.PathLike[str] | None = None,
        name: str = "training",
        public_validation: bool = False,
        **options: Unpack[LoaderOptions],
    ) -> None:
        self.plan = plan
        self._loss = loss
        self._split = split
        self._ledger = ledger
        self._name = name
        self._public = public_validation
        self._options = options
        self._loaded: bytes | None = None

    def statement(self) -> Statement:
        """Return the privacy statement of everything that was trained so far."""
        if self.run is None:
            raise StepError("there is no statement before training: call trainer.fit(module)")
        return self.run.statement()

    # ---------------------------------------------------------------- Lightning's moments

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Refuse what would not be private, and take over the optimization."""
        if stage != "fit":
            return
        _check(trainer, self._public)
        pl_module.automatic_optimization = False
        pl_module.training_step = self._training_step

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Make the run, once there is an optimizer and the model is where it is trained."""
        if len(trainer.optimizers) != 1:
            raise UnsupportedModelError(
                f"configure_optimizers returned {len(trainer.optimizers)} optimizers; a private "
                "run has one. Put parameters with other settings into groups of one optimizer, or "
                "train one part after the other."
            )
        for config in trainer.lr_scheduler_configs:
            if isinstance(config.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                raise UnsupportedModelError(
                    "ReduceLROnPlateau chooses by results, which PrivateTraining does not hand to "
                    "it. Use a schedule that counts steps or epochs."
                )
        source = trainer.fit_loop._data_source
        loader = source.dataloader()
        self._dataset = getattr(loader, "dataset", loader)
        ledger = self._ledger or Path(trainer.default_root_dir) / "_training.ledger"
        if isinstance(ledger, Path):
            ledger.parent.mkdir(parents=True, exist_ok=True)
        pl_module.train()
        run = make_private(
            pl_module,
            trainer.optimizers[0],
            self._loss,
            records_of_loader(loader),
            self.plan,
            ledger=ledger,
            name=self._name,
            device=pl_module.device,
            **self._options,
        )
        self.run = run
        steps = run.resolved.steps_per_epoch
        source.instance, source.name = EpochLoader(lambda: run, steps), ""
        trainer.fit_loop.max_epochs = math.ceil(run.steps / steps)
        trainer.strategy.optimizers = [_Optimizer(run, contextlib.nullcontext)]
        self._module = pl_module

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Resume the run, if a checkpoint was loaded."""
        if self._loaded is None:
            return
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "run.safetensors")
            path.write_bytes(self._loaded)
            self._open().resume(path)
        self._loaded = None

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Notice validation on training records: refuse choices by it, and state it."""
        loaders = trainer.val_dataloaders
        held = loaders if isinstance(loaders, (list, tuple)) else [loaders]
        if self.run is None or not any(records_shared(self._dataset, one) for one in held):
            return
        if chooses := _chooses(trainer):
            raise UnsoundError(
                f"{chooses} chooses by results on validation records, which are training records: "
                "the choice would tell of them, and no noise covers it."
            )
        if not self.run.circumstances.metrics:
            warnings.warn(
                "results on training records are computed without noise and are not covered by "
                "the statement, which says so. Show them to nobody but the keeper of the data.",
                stacklevel=2,
            )
        self.run.circumstances.metrics = True

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Log the epsilon of the statement, and write that beside the logs."""
        self._log_last(trainer)
        folder = Path(trainer.log_dir or trainer.default_root_dir)
        try:
            text = self.statement().to_json()
        except UnsoundError as error:  # an estimator that is there to be studied
            warnings.warn(f"no statement was written: {error}", stacklevel=2)
            return
        folder.mkdir(parents=True, exist_ok=True)
        Path(folder, "statement.json").write_text(text + "\n", "utf-8")

    def _log_last(self, trainer: Any) -> None:
        """Where training ended before its plan, what was shown last is of a later step."""
        run = self._open()
        epsilon = run.meter.after(run.steps_taken, exactly=True)
        if epsilon is None:
            return
        for logger in trainer.loggers:
            logger.log_metrics({"epsilon": _shown(epsilon)}, step=trainer.global_step)
        trainer.progress_bar_metrics["epsilon"] = _shown(epsilon)
        for shown in (trainer.callback_metrics, trainer.logged_metrics):
            shown["epsilon"] = torch.tensor(_shown(epsilon))

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Give everything back."""
        if stage != "fit":
            return
        vars(pl_module).pop("training_step", None)
        if self.run is not None:
            trainer.strategy.optimizers = [self.run.optimizer]
            self.run.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Give everything back when training fails."""
        self.teardown(trainer, pl_module, "fit")

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Put the run's checkpoint into Lightning's."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "run.safetensors")
            self._open().save(path)
            content = bytearray(path.read_bytes())
        checkpoint[_KEY] = torch.frombuffer(content, dtype=torch.uint8)

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Keep the run's checkpoint until there is a run."""
        if _KEY not in checkpoint:
            raise UnsoundError(
                "the checkpoint was not written by a private run: what its steps have spent is "
                "unknown. Load its weights into the module before trainer.fit if they are public."
            )
        self._loaded = checkpoint[_KEY].numpy().tobytes()

    # ---------------------------------------------------------------- a step

    def _training_step(self, batch: Any, batch_idx: int = 0) -> None:
        """Take the private step, in place of the module's own."""
        run, module = self._open(), self._module
        optimizer = module.optimizers()
        optimizer.optimizer.expect(*self._split(batch))
        optimizer.step()
        for config in module.trainer.lr_scheduler_configs:
            if config.interval == "step" and run.next_step % config.frequency == 0:
                config.scheduler.step()
        epsilon = run.meter.after(run.steps_taken)
        if epsilon is not None:
            module.log("epsilon", _shown(epsilon), prog_bar=True, batch_size=1)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Advance schedules that count epochs, which Lightning leaves to whoever takes steps."""
        for config in trainer.lr_scheduler_configs:
            if config.interval == "epoch" and (trainer.current_epoch + 1) % config.frequency == 0:
                config.scheduler.step()

    def _open(self) -> PrivateRun:
        if self.run is None:
            raise StepError("private steps are taken while trainer.fit runs only")
        return self.run


def _shown(epsilon: float) -> float:
    """An epsilon as Lightning keeps it, in single precision."""
    return single_up(float(round_up(epsilon)))


class _Optimizer(SteppingOptimizer):
    """The optimizer as Lightning steps it: with a closure that computes nothing."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Run Lightning's hooks, which the closure holds, and take the private step."""
        if closure is not None:
            closure()
        super().step()


def _check(trainer: Any, public: bool) -> None:
    for refused, reason in _refused(trainer):
        if refused:
            raise UnsoundError(reason)
    if trainer.world_size > 1:
        raise UnsupportedModelError(
            "PrivateTraining runs in one process. With several, use make_private in a loop of your "
            "own under torchrun (docs/distributed.md)."
        )
    if str(trainer.precision).startswith("16"):
        raise UnsupportedModelError(
            f"precision={trainer.precision!r} scales the loss and skips steps whose gradients "
            "overflow, and which do depends on the records. Use 'bf16-mixed' or '32-true'."
        )
    if (chooses := _chooses(trainer)) and not public:
        raise UnsoundError(
            f"{chooses} chooses by results on validation records, and no statement covers a "
            "choice by private records. If those records are public, say so: "
            "PrivateTraining(public_validation=True)."
        )


def _chooses(trainer: Any) -> str:
    """A callback that chooses by results, if there is one."""
    for callback in trainer.callbacks:
        for kind in (base.__name__ for base in type(callback).__mro__):
            if kind in _CHOOSING or (kind == "ModelCheckpoint" and callback.monitor is not None):
                return type(callback).__name__
    return ""


def _refused(trainer: Any) -> Iterable[tuple[bool, str]]:
    yield (
        trainer.accumulate_grad_batches != 1,
        "accumulate_grad_batches adds up batches before a step, but one step is one Poisson batch. "
        "Leave it out: PrivateTraining(chunk=...) processes a batch in pieces.",
    )
    yield (
        trainer.gradient_clip_val is not None,
        "gradient_clip_val clips the gradient of a whole batch, which bounds no record. The bound "
        "on each record is the plan's: Plan(gradients=Clipped(...)). Leave it out.",
    )
    yield (
        trainer.limit_train_batches != 1.0 or bool(trainer.overfit_batches),
        "limit_train_batches and overfit_batches choose among batches, which are not the Poisson "
        "batches that are accounted for. Leave them out; Plan(steps=...) makes training shorter.",
    )
