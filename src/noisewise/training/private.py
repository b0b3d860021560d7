"""``make_private``: a model, an optimizer, a loss, data and a plan become a private run."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from noisewise import checks
from noisewise.errors import UnsoundError, UnsupportedModelError
from noisewise.gradients import GradientEngine, uncompiled
from noisewise.nn import Projectable
from noisewise.privacy import Ledger, Preprocessing
from noisewise.release import Steps
from noisewise.training.account import memory_account, open_account
from noisewise.training.averaging import Averaging, averaging_of
from noisewise.training.distributed import default_team
from noisewise.training.errors import StepError
from noisewise.training.plan import Plan
from noisewise.training.private_run import Augmentation, LossFunction, PrivateRun
from noisewise.training.records import Records, TensorRecords, records_of
from noisewise.training.sharding import are_parallel, is_sharded, sharded_modules
from noisewise.training.streamed import Streamed
from noisewise.training.streams import Streams
from noisewise.training.team import Solo, Team
from noisewise.training.units import UnitTable

__all__ = ["build_engine", "make_private"]


def make_private(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: LossFunction,
    data: Any,
    plan: Plan,
    *,
    records: int | None = None,
    ledger: Ledger | str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    name: str = "training",
    units: Any = None,
    views: int = 1,
    augmentation: Augmentation | None = None,
    chunk: int | None = None,
    averaging: Averaging | str | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    workers: int = 0,
    pin_memory: bool = False,
    device: torch.device | str | None = None,
    preprocessing: Preprocessing | None = None,
    team: Team | None = None,
    bound_to: bytes = b"",
) -> PrivateRun:
    """Make a training loop private.

    Parameters
    ----------
    model : nn.Module
        Trained in place.
    optimizer : torch.optim.Optimizer
        Any of torch's, over parameters of the model.
    loss : callable
        A torch loss (its reduction does not matter) or ``(output, target) -> losses``.
    data : tensors, dataset, DataLoader or None
        From which `run.loader` draws. None: the caller draws all batches.
    plan : Plan
    records : int, optional
        The number of records, declared public. Default: the plan's; else, if the plan needs it,
        the size of `data`, and the statement says that it was read there.
    ledger : Ledger or path, optional
        Where each step is charged before it is taken; needed for checkpoints.
    resume : path, optional
        Checkpoint to continue, with the same plan, name and ledger.
    name : str
        Of this run, in the ledger; runs of one program differ by it.
    units : sequence, optional
        The unit that each row of `data` belongs to, by identifiers of any hashable type: all visits
        of a patient. What is protected is then a unit with all its rows, and the expected batch
        size counts units; see `Plan.unit_rule`. Identifiers are neither kept nor shown.
    views, augmentation : int, callable
        Augmentation multiplicity: every record's gradient is the mean over `views` augmented
        copies, bounded as one. `augmentation` maps a batch of inputs to another, record by record.
    chunk : int, optional
        Number of records that are processed at once; batches may be much larger.
    averaging : {"ema", "polyak"}, Ema or Polyak, optional
        Average of the weights, see :meth:`PrivateRun.averaged_model`.
    collate, workers, pin_memory, device
        Of the loader. `collate` is called with one item at a time, so that what it makes of a
        record cannot depend on who else was drawn: records need one shape.
    preprocessing : Preprocessing, optional
        How records became numbers, e.g. a schema; it adds its assumptions to the statement.
    team : Team, optional
        Default: all processes of torch.distributed if it is initialised, each of which was given
        the whole `data`; see :class:`noisewise.training.Distributed`.
    bound_to : bytes
        With a seeded plan: a hash of records and settings, so that other ones draw other noise
        under the same seed. It is shown nowhere.

    Examples
    --------
    >>> import torch, noisewise.training as training
    >>> from noisewise.gradients import Clipped
    >>> x, y = torch.randn(200, 5), torch.randint(0, 2, (200,))
    >>> model = torch.nn.Linear(5, 2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    >>> plan = training.Plan(gradients=Clipped(1.0), epsilon=2.0, epochs=2, batch_size=20)
    >>> run = training.make_private(model, optimizer, torch.nn.CrossEntropyLoss(), (x, y), plan)
    >>> for inputs, targets in run.loader:
    ...     run.step(inputs, targets)
    >>> run.steps_taken, run.statement().epsilon <= 2.0
    (20, True)
    """
    if isinstance(model, nn.parallel.DistributedDataParallel):
        model = model.module  # its own reduction would never see a gradient
    model = uncompiled(model)
    team = team or default_team() or Solo()
    if isinstance(data, Streamed) and team.workers > 1:
        raise UnsoundError(
            "a stream is read by one process: what several of them read cannot be compared, so a "
            "record might be drawn by two. Give a map-style dataset, or train in one process."
        )
    if isinstance(data, Streamed) and units is not None:
        raise UnsoundError(
            "a stream may come in another order in every pass, and units say by position whose row "
            "it is: a row would be bounded with somebody else's. Give a map-style dataset."
        )
    held = (
        None
        if data is None
        else records_of(data, collate=collate, workers=workers, pin_memory=pin_memory)
    )
    table = _table(units, held, team)
    size_read = records is None and plan.records is None and plan.needs_size and held is not None
    if size_read:
        assert held is not None
        records = team.public_size(len(held) if table is None else len(table))
    resolved = plan.resolve(records, of_units=False if table is None else table.name)
    plan = resolved.plan
    within = "mean" if resolved.unit_rule == "units" else None
    _check_parameters(model, optimizer)
    _check_sharded(model, averaging)
    team.prepare(model, plan.to_json())
    declared = None if size_read else resolved.records
    if table is None:
        division = team.compare(held, declared)
    else:
        assert held is not None
        division = team.compare_units(held, units, table.codes, declared)
    with team.gathered(model):
        _check_whole(model)
        engine = build_engine(
            model,
            loss,
            plan.gradients,
            views,
            chunk,
            augmentation=augmentation,
            assume_apart=plan.assume_apart,
            expected=resolved.batch_size / team.workers,
            within=within,
            private=held.held if isinstance(held, TensorRecords) else (),
        )
        # Now, before any batch is handed out: what is made later may hold records.
        engine.storages_before()
    account: Steps = memory_account(resolved)
    opened: list[Steps] = []
    team.first(lambda: opened.append(open_account(resolved, ledger, name)))
    account = opened[0] if opened else account
    try:
        run = PrivateRun(
            model=model,
            optimizer=optimizer,
            loss=loss,
            engine=engine,
            resolved=resolved,
            account=account,
            streams=Streams(plan.seed, name, team.worker, bound_to),
            records=held,
            table=table,
            name=name,
            team=team,
            views=checks.integer("views", views, minimum=1),
            augmentation=augmentation,
            chunk=chunk,
            averaging=averaging_of(averaging),
            device=device,
            preprocessing=preprocessing,
        )
        run.circumstances.size_read = size_read
        run.circumstances.division = division
        run.circumstances.workers = team.workers
    except BaseException:
        account.close()
        raise
    if resume is not None:
        try:
            run.resume(resume)
        except BaseException:
            run.close()
            raise
    return run


def build_engine(
    model: nn.Module,
    loss: LossFunction,
    estimator: Any,
    views: int,
    chunk: int | None,
    *,
    augmentation: Augmentation | None = None,
    assume_apart: bool = False,
    expected: float | None = None,
    private: Sequence[Tensor] = (),
    within: str | None = None,
) -> GradientEngine:
    """Return the engine that bounds every record's contribution."""
    return GradientEngine(
        model,
        loss,
        estimator,
        views=views,
        chunk=chunk,
        augmentation=augmentation,
        assume_apart=assume_apart,
        expected=expected,
        private=private,
        within=within,
    )


def _table(units: Any, held: Records | None, team: Team) -> UnitTable | None:
    """Read the units of all rows; None if rows are units, or the caller draws all batches."""
    if team.agree(units is None) and team.agree(units is not None):
        raise StepError("only some workers were given units; give all of them, or none")
    failure: Exception | None = None
    table: UnitTable | None = None
    try:
        if units is not None and held is None:
            raise ValueError(
                "units belong to the rows of data, and there are none. Give data, from which "
                "batches of whole units are drawn."
            )
        if units is not None and held is not None:
            table = UnitTable.of(units, len(held))
    except Exception as error:  # told to all, so that no worker waits for this one
        failure = error
    if team.agree(failure is not None):
        raise failure or StepError("another worker could not read its units, see there")
    return table


def _check_parameters(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    if isinstance(optimizer, (torch.optim.LBFGS, torch.optim.SparseAdam)):
        raise ValueError(
            f"{type(optimizer).__name__} needs several exact gradients per step, or sparse ones, "
            "which noisy gradients are not. Use e.g. torch.optim.Adam or torch.optim.SGD."
        )
    known = {id(parameter): name for name, parameter in model.named_parameters()}
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    if foreign := len(held - set(known)):
        raise UnsoundError(
            f"the optimizer holds {foreign} parameters that are not parameters of the model, so "
            "their gradients would not be private. Build it from model.parameters(), after the "
            "model was changed or moved for the last time."
        )
    left = [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and id(parameter) not in held
    ]
    if left:
        warnings.warn(
            f"the optimizer does not hold {', '.join(left[:3])}{' ...' * (len(left) > 3)}; noise "
            "is spent on their gradients for nothing. Freeze them with requires_grad_(False).",
            stacklevel=3,
        )


def _check_whole(model: nn.Module) -> None:
    """Refuse weights that are in parts even when the team has gathered its own."""
    for name, parameter in model.named_parameters():
        if is_sharded(parameter):
            raise UnsupportedModelError(
                f'the parameter "{name}" is a DTensor that the workers of this run do not put '
                "together: there is one worker only, or fully_shard (FSDP2) was called on layers "
                "that are parallel already. Start several processes, and use either fully_shard "
                "or parallelize_module."
            )


def _check_sharded(model: nn.Module, averaging: object) -> None:
    if not sharded_modules(model) and not are_parallel(model):
        return
    if averaging is not None:
        raise UnsupportedModelError(
            "averages of weights that are kept in parts (by fully_shard or tensor parallelism) are "
            "not available; leave out averaging=, or train with replicated weights"
        )
    if any(isinstance(module, Projectable) for module in model.modules()):
        raise UnsupportedModelError(
            "constrained layers cannot be projected while their weights are kept in parts (by "
            "fully_shard or tensor parallelism); train with replicated weights"
        )
