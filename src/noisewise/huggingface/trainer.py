"""`PrivateTrainer`: a Hugging Face trainer whose steps are private.

Everything that an ordinary trainer does stays as it is: collators, optimizers, schedules,
evaluation, checkpoints, logging, the hub. Replaced is what touches private records: batches come
from a private run, a step is that run's step, and what is logged of training is its epsilon.
"""

from __future__ import annotations

import contextlib
import copy
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer

from noisewise.accelerate import with_own_forward
from noisewise.errors import UnsoundError
from noisewise.huggingface import refusals
from noisewise.huggingface.checkpoints import CHECKPOINT, last_checkpoint, write_card
from noisewise.huggingface.reading import Reading
from noisewise.privacy import Ledger, Statement, round_up, single_up
from noisewise.training import (
    EpochLoader,
    Plan,
    PrivateRun,
    StepError,
    SteppingOptimizer,
    UnitTable,
    make_private,
    records_shared,
)

__all__ = ["PrivateTrainer"]

#: Of what an ordinary trainer logs, what was computed from private records or says nothing here.
_NOT_LOGGED = ("loss", "train_loss", "grad_norm", "total_flos")


class PrivateTrainer(Trainer):  # type: ignore[misc]
    """A Hugging Face trainer with a true epsilon.

    Parameters
    ----------
    model : PreTrainedModel, PeftModel or nn.Module
        Called with the columns of the data by name.
    args : TrainingArguments
        As for any trainer. The plan decides batch size and length of training;
        ``per_device_train_batch_size`` is how many records are processed at once.
    train_dataset : map-style dataset
        One record an item.
    plan : Plan
    loss : callable, optional
        ``(output, labels) -> one loss per record``. Default: the model's own loss of each record.
    ledger : Ledger or path, optional
        Where steps are charged; default: a file in ``args.output_dir``.
    name : str
        Of this run in the ledger.
    units : sequence or str, optional
        Who each item belongs to, or the column that says it: all sentences of one person are then
        protected together. See :func:`noisewise.make_private`.
    max_length : int, optional
        To which all texts are filled up or cut. Default: the limit of the tokenizer or the model.
    public_evaluation : bool
        Whether ``eval_dataset`` is public, so that it may be used to choose.
    **options
        Everything else that a trainer takes: ``data_collator``, ``eval_dataset``,
        ``processing_class``, ``compute_metrics``, ``callbacks``, ``optimizers``, ...

    Attributes
    ----------
    run : PrivateRun or None
        The run, once training has begun.
    """

    run: PrivateRun | None = None
    optimizer: Any
    lr_scheduler: Any

    def __init__(
        self,
        model: nn.Module,
        args: Any,
        train_dataset: Any = None,
        *,
        plan: Plan,
        loss: Any = None,
        ledger: Ledger | str | os.PathLike[str] | None = None,
        name: str = "training",
        units: Any = None,
        max_length: int | None = None,
        public_evaluation: bool = False,
        **options: Any,
    ) -> None:
        refusals.check_overridden(type(self), PrivateTrainer)
        refusals.check_options(options)
        refusals.check_dataset(train_dataset)
        refusals.check_arguments(args, plan)
        self.plan = plan
        train_dataset, self._units = _whose(train_dataset, units)
        table = None if self._units is None else UnitTable.of(self._units, len(train_dataset))
        count = len(train_dataset if table is None else table)
        size = count if plan.needs_size and plan.records is None else None
        self.resolved = plan.resolve(size, of_units=False if table is None else table.name)
        self._chunk = refusals.virtual_size(args, plan)
        self._ledger = ledger
        self._name = name
        self._public_evaluation = public_evaluation
        self._metrics_shown = False
        args = copy.copy(args)
        args.max_steps = self.resolved.steps
        args.gradient_accumulation_steps = 1  # pieces of a batch are the run's
        args.max_grad_norm = 0.0
        args.ignore_data_skip = True  # the run knows which batch is next
        args.gradient_checkpointing_kwargs = {
            "use_reentrant": False,
            **(args.gradient_checkpointing_kwargs or {}),
        }
        super().__init__(model=model, args=args, train_dataset=train_dataset, **options)
        self._given = self.optimizer, self.lr_scheduler
        self._check_choices()
        self._reading = Reading(self, loss, max_length)

    # ---------------------------------------------------------------- what users call

    def train(self, resume_from_checkpoint: str | bool | None = None, **options: Any) -> Any:
        """Train privately; see the trainer's own documentation.

        The training loss is not shown, since it was computed from private records: it is ``nan``
        in what is returned.
        """
        self._check_choices()
        if resume_from_checkpoint is True:
            resume_from_checkpoint = last_checkpoint(self.args.output_dir)
        if self.run is not None:  # an attempt before was interrupted
            self.run.close()
            self.run = None
            self.optimizer, self.lr_scheduler = self._given
        try:
            done = super().train(resume_from_checkpoint=resume_from_checkpoint, **options)
        finally:
            self.is_in_train = False
            run: PrivateRun | None = self.run
            if run is not None:
                run.close()
        self._write_statement(self.args.output_dir)
        shown = {key: value for key, value in done.metrics.items() if key not in _NOT_LOGGED}
        return done._replace(training_loss=float("nan"), metrics=shown)

    def statement(self) -> Statement:
        """Return the privacy statement of everything that was trained so far."""
        if self.run is None:
            raise StepError("there is no statement before training: call trainer.train()")
        return self.run.statement()

    def evaluate(self, eval_dataset: Any = None, *args: Any, **options: Any) -> Any:
        """Evaluate as any trainer does; metrics on private records are noted in the statement."""
        self._note_metrics(self.eval_dataset if eval_dataset is None else eval_dataset)
        return super().evaluate(eval_dataset, *args, **options)

    def predict(self, test_dataset: Any, *args: Any, **options: Any) -> Any:
        """Predict as any trainer does; results on private records are noted in the statement."""
        self._note_metrics(test_dataset)
        return super().predict(test_dataset, *args, **options)

    def hyperparameter_search(self, *args: Any, **options: Any) -> Any:
        """Refuse: every trial spends, and no statement covers the choice."""
        raise UnsoundError(
            "hyperparameter_search trains many models on the same records and keeps the best; each "
            "costs its epsilon, and the choice is covered by no statement. Choose with public data."
        )

    # ---------------------------------------------------------------- batches and steps

    def get_train_dataloader(self) -> Any:
        """Return the Poisson batches of the run, epoch by epoch."""
        return EpochLoader(self._open_run, self.resolved.steps_per_epoch)

    def get_total_train_batch_size(self, args: Any) -> int:
        """Return the expected batch size."""
        return max(1, round(self.resolved.batch_size))

    def create_optimizer(self, model: Any = None) -> Any:
        """Make the optimizer, and the private run around it once training begins."""
        optimizer = super().create_optimizer(model)
        if not self.is_in_train or isinstance(optimizer, SteppingOptimizer):
            return optimizer
        reading = self._reading
        self._into_training_mode()
        self.run = make_private(
            self.model,
            optimizer,
            reading.loss,
            reading.dataset,
            self.plan,
            collate=reading.collate,
            ledger=self._ledger or Path(self.args.output_dir) / "_training.ledger",
            name=self._name,
            units=self._units,
            chunk=1 if reading.alone else self._chunk,
            workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
            device=self.args.device,
        )
        self.run.circumstances.metrics |= self._metrics_shown
        self.optimizer = SteppingOptimizer(self.run, self._step)
        self._stepping = self.optimizer
        return self.optimizer

    def training_step(
        self, model: nn.Module, inputs: dict[str, Tensor], num_items_in_batch: Any = None
    ) -> Tensor:
        """Hold a batch ready for the optimizer's step; the loss stays secret."""
        self._into_training_mode()
        self._stepping.expect(*self._reading.split(inputs))
        return torch.zeros((), device=self.args.device)

    def floating_point_ops(self, inputs: Any) -> int:
        """Return 0: the number would tell how many records were drawn."""
        return 0

    def _open_run(self) -> PrivateRun:
        if self.run is None:
            raise StepError("batches are drawn while training only: call trainer.train()")
        return self.run

    def _into_training_mode(self) -> None:
        self.model.train()
        for module in self.model.modules():
            if _is_frozen_norm(module):
                module.eval()

    @contextlib.contextmanager
    def _step(self) -> Iterator[None]:
        """Within which a step is taken: the model's own forward, in the precision asked for."""
        device = self.args.device.type
        with (
            with_own_forward(self.model),
            torch.autocast(device, torch.bfloat16, enabled=self.args.bf16),
        ):
            yield
        # Steps that were charged before a crash and are lost count as taken.
        self.state.global_step = self._open_run().next_step - 1

    # ---------------------------------------------------------------- what is shown and kept

    def log(self, logs: dict[str, float], *args: Any, **options: Any) -> None:
        """Log what any trainer does, but epsilon in place of the loss on private records."""
        shown = {key: value for key, value in logs.items() if key not in _NOT_LOGGED}
        if self.run is not None:
            exactly = "train_runtime" in logs
            epsilon = self.run.meter.after(self.run.steps_taken, exactly=exactly)
            if epsilon is not None:
                # Trainers show four digits, and what they report to keeps single precision.
                shown["epsilon"] = single_up(float(round_up(epsilon)))
        super().log(shown, *args, **options)

    def create_model_card(self, *args: Any, **options: Any) -> None:
        """Draft the model card, with the privacy statement in it."""
        super().create_model_card(*args, **options)
        if self.run is not None and self.is_world_process_zero():
            write_card(self.args.output_dir, self.statement())

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        super()._save(output_dir, state_dict)
        self._write_statement(output_dir or self.args.output_dir)

    def _write_statement(self, folder: str) -> None:
        if self.run is None or not self.args.should_save:
            return
        try:
            text = self.run.statement().to_json()
        except UnsoundError as error:  # an estimator that is there to be studied
            warnings.warn(f"no statement was written: {error}", stacklevel=2)
            return
        Path(folder, "statement.json").write_text(text + "\n", "utf-8")

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        self._open_run().save(Path(output_dir, CHECKPOINT), scheduler=self.lr_scheduler)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        run = self._open_run()
        run.resume(Path(checkpoint, CHECKPOINT), scheduler=self.lr_scheduler)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the schedule goes ahead without the optimizer
            for _ in range(run.next_step - self.state.global_step):
                self.lr_scheduler.step()
        self.state.global_step = run.next_step

    # ---------------------------------------------------------------- checks

    def _check_choices(self) -> None:
        refusals.check_choices(
            self.args,
            self.callback_handler.callbacks,
            self._public_evaluation,
            records_shared(self.train_dataset, self.eval_dataset),
        )

    def _note_metrics(self, dataset: Any) -> None:
        if isinstance(dataset, str) and isinstance(self.eval_dataset, dict):
            dataset = self.eval_dataset.get(dataset)
        if not records_shared(self.train_dataset, dataset):
            return
        warnings.warn(
            "results on training records are computed without noise and are not covered by the "
            "statement, which says so. Show them to nobody but the keeper of the data.",
            stacklevel=3,
        )
        self._metrics_shown = True
        if self.run is not None:
            self.run.circumstances.metrics = True


def _is_frozen_norm(module: nn.Module) -> bool:
    """Whether it is a batch norm of a frozen part, which keeps its statistics."""
    parameters = list(module.parameters(recurse=False))
    return (
        isinstance(module, nn.modules.batchnorm._BatchNorm)
        and bool(parameters)
        and not any(parameter.requires_grad for parameter in parameters)
    )


def _whose(dataset: Any, units: Any) -> tuple[Any, Any]:
    """Return the dataset without the column that says whose its items are, and that column."""
    if not isinstance(units, str):
        return dataset, units
    if units not in (getattr(dataset, "column_names", None) or ()):
        raise ValueError(
            f"units={units!r} is no column of train_dataset: name one of a datasets.Dataset, or "
            "give one identifier for each item"
        )
    return dataset.remove_columns([units]), list(dataset[units])
