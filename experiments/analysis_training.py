"""Training for the analysis experiments: one run is one file in the temporary folder.

Every experiment asks for the runs it needs; those that exist are read, the others are trained,
so a long experiment may be stopped and taken up again, and experiments share runs. A setup says
everything that a run depends on. ``--seconds`` ends a script once it has used that much processor
time.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import time
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import analysis_data
import numpy as np
import torch
from torch import Tensor, nn

import noisewise as nw

__all__ = ["IMAGES", "Outcome", "Setup", "Stopwatch", "arguments", "obtain", "spent", "task_of"]

IMAGES = Path(__file__).parents[1] / "docs" / "images"
CACHE = Path(tempfile.gettempdir()) / "noisewise-analysis-runs"
DELTA = 1e-5
POINTS = 16
LATE = 0.9  # where the last part of mix-up training begins
TASKS: dict[str, Any] = {}


@dataclass(frozen=True)
class Setup:
    """All that a run depends on.

    `rate` is the learning rate per unit of clipped gradient: with clipping norm R the optimiser
    gets rate / R, so that runs with different R see the same noise (for SGD; Adam does not mind).
    """

    task: str
    rule: str = "none"  # none (not private), clip, global, automatic, mix-up, widened
    per: str = "model"
    clip: float = 1.0
    sigma: float = 1.1
    rate: float = 0.15
    optimizer: str = "sgd"
    epochs: int = 10
    batch: int = 256
    seed: int = 0
    options: tuple[tuple[str, int], ...] = ()
    steps: int = 0  # instead of epochs
    late: float = 0.0  # clipping norm of the last tenth of mix-up and widened; 0: `clip`

    @property
    def path(self) -> Path:
        """Where the run is kept."""
        # Fields that came later count only if they are set, so that older runs are still found.
        later = {"steps": 0, "late": 0.0}
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        kept = {k: v for k, v in values.items() if k not in later or v != later[k]}
        text = ";".join(f"{name}={value!r}" for name, value in kept.items())
        return CACHE / f"{self.task}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.npz"


@dataclass(frozen=True, eq=False)
class Outcome:
    """A finished run."""

    test: np.ndarray
    test_labels: np.ndarray
    train: np.ndarray
    train_labels: np.ndarray
    steps: np.ndarray
    train_loss: np.ndarray
    test_loss: np.ndarray
    accuracy: np.ndarray
    epsilon: float
    seconds: float
    held: np.ndarray = field(default_factory=lambda: np.empty(0))
    held_labels: np.ndarray = field(default_factory=lambda: np.empty(0))


@dataclass
class Stopwatch:
    """Says when a script should stop and be started again."""

    limit: float
    start: float = field(default_factory=time.process_time)

    def check(self) -> None:
        """End the script if its time has passed."""
        if time.process_time() - self.start > self.limit:
            raise SystemExit("time is up: start again to go on with the missing runs")


def arguments(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--task", default="")
    return parser.parse_args()


def task_of(setup: Setup) -> analysis_data.Task:
    key = (setup.task, setup.options)
    if key not in TASKS:
        if hasattr(analysis_data, setup.task):
            TASKS[key] = getattr(analysis_data, setup.task)(**dict(setup.options))
        else:
            TASKS[key] = analysis_data.tabular(setup.task)
    return TASKS[key]


def spent(epsilon: float) -> str:
    """Epsilon with two digits, rounded up: never less than the truth."""
    return "none" if np.isinf(epsilon) else f"{np.ceil(100 * epsilon) / 100:.2f}"


def obtain(setup: Setup, watch: Stopwatch | None = None) -> Outcome:
    """Read a run, or train it."""
    if not setup.path.exists():
        if watch is not None:
            watch.check()
        CACHE.mkdir(exist_ok=True)
        found = train(setup)
        partial = setup.path.with_suffix(".part.npz")
        np.savez_compressed(partial, **{f.name: getattr(found, f.name) for f in fields(Outcome)})
        partial.rename(setup.path)
        print(
            f"trained {setup}: loss {found.test_loss[-1]:.4f}, accuracy {found.accuracy[-1]:.4f}, "
            f"epsilon {spent(found.epsilon)}, {found.seconds:.0f} s",
            flush=True,
        )
    with np.load(setup.path) as stored:
        values = {name: stored[name] for name in stored.files}
    return Outcome(
        **{k: v for k, v in values.items() if k not in ("epsilon", "seconds")},
        epsilon=float(values["epsilon"]),
        seconds=float(values["seconds"]),
    )


def optimizer_of(setup: Setup, model: nn.Module) -> torch.optim.Optimizer:
    if setup.optimizer == "sgd":
        scale = 1.0 if setup.rule == "none" else setup.clip
        return torch.optim.SGD(model.parameters(), lr=setup.rate / scale)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[setup.optimizer]
    return kind(model.parameters(), lr=setup.rate)


def estimator_of(setup: Setup) -> Any:
    if setup.rule in ("mix-up", "widened"):
        # The noise multiplier stays, so with another norm for the last part the noise grows with
        # it. The paper keeps R. "widened" stays local, to tell the norm's effect from the rule's.
        local = nw.Clipped(setup.clip, per=setup.per)
        rule = "global" if setup.rule == "mix-up" else "clip"
        late = nw.Clipped(setup.late or setup.clip, per=setup.per, rule=rule)
        return nw.gradients.Schedule([(0.0, local), (LATE, late)])
    return nw.Clipped(setup.clip, per=setup.per, rule=setup.rule)


class Log:
    """Losses and accuracy at a few points of a training."""

    def __init__(self, task: analysis_data.Task, model: nn.Module, total: int) -> None:
        self.task, self.model = task, model
        self.at = set(np.unique(np.geomspace(1, total, POINTS).astype(int)).tolist()) | {0}
        self.rows: list[tuple[float, ...]] = []

    def note(self, step: int) -> None:
        """Measure if this is one of the points."""
        if step not in self.at:
            return
        task = self.task
        train, test = (
            # Spread over all: the first 1,000 test images of MNIST are harder than the rest.
            self._look(*(part[:: max(1, len(x) // 1000)][:1000] for part in (x, y)))
            for x, y in ((task.x, task.y), (task.x_test, task.y_test))
        )
        self.rows.append((step, train[0], test[0], test[1]))

    def _look(self, x: Tensor, y: Tensor) -> tuple[float, float]:
        with torch.no_grad():
            output = self.model(x)
            loss = float(self.task.loss(output, y))
            right = float((output.argmax(1) == y).float().mean()) if self.task.classify else -loss
        return loss, right


def predict(model: nn.Module, x: Tensor) -> np.ndarray:
    with torch.no_grad():
        return torch.cat([model(part) for part in x.split(1000)]).numpy()


def train(setup: Setup) -> Outcome:
    task = task_of(setup)
    torch.manual_seed(setup.seed)
    model = task.model()
    optimizer = optimizer_of(setup, model)
    start = time.perf_counter()
    loop = plain_loop if setup.rule == "none" else private_loop
    log, epsilon = loop(setup, task, model, optimizer)
    seconds = time.perf_counter() - start
    steps, train_loss, test_loss, accuracy = np.array(log.rows).T
    held = min(len(task.x), len(task.x_test))
    return Outcome(
        test=predict(model, task.x_test),
        test_labels=task.y_test.numpy(),
        train=predict(model, task.x[:held]),
        train_labels=task.y[:held].numpy(),
        steps=steps,
        train_loss=train_loss,
        test_loss=test_loss,
        accuracy=accuracy,
        epsilon=epsilon,
        seconds=seconds,
        held=predict(model, task.held[0]) if task.held else np.empty(0),
        held_labels=task.held[1].numpy() if task.held else np.empty(0),
    )


def plain_loop(
    setup: Setup, task: analysis_data.Task, model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[Log, float]:
    """Ordinary training on shuffled batches."""
    n = len(task.x)
    total = setup.steps or setup.epochs * max(1, n // setup.batch)
    log, step = Log(task, model, total), 0
    log.note(0)
    while step < total:
        for index in torch.randperm(n).split(setup.batch):
            if step == total or (len(index) < setup.batch and n >= setup.batch):
                continue
            optimizer.zero_grad()
            task.loss(model(task.x[index]), task.y[index]).backward()
            optimizer.step()
            step += 1
            log.note(step)
    return log, float("inf")


def private_loop(
    setup: Setup, task: analysis_data.Task, model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[Log, float]:
    """Private training; its noise is seeded, so that two rules meet the same batches and noise."""
    if setup.sigma == 0:
        return noiseless_loop(setup, task, model, optimizer)
    full = setup.batch >= len(task.x)
    plan = nw.Plan(
        gradients=estimator_of(setup),
        noise_multiplier=setup.sigma,
        delta=DELTA,
        epochs=None if setup.steps else setup.epochs,
        steps=setup.steps or None,
        batch_size=None if full else setup.batch,
        sampling="full" if full else "poisson",
        seed=setup.seed,
    )
    run = nw.make_private(model, optimizer, task.loss, (task.x, task.y), plan)
    log = Log(task, model, run.steps)
    log.note(0)
    for x, y in run.loader:
        if setup.late and setup.optimizer == "sgd" and run.steps_taken >= LATE * run.steps:
            for group in optimizer.param_groups:  # rate / R for the new R
                group["lr"] = setup.rate / setup.late
        run.step(x, y)
        log.note(run.steps_taken)
    epsilon = run.statement().epsilon
    run.close()
    return log, float(epsilon)


def noiseless_loop(
    setup: Setup, task: analysis_data.Task, model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[Log, float]:
    """Clipping without noise: no epsilon, so no private run; for figure 3."""
    n, generator = len(task.x), torch.Generator().manual_seed(setup.seed)
    rate = min(1.0, setup.batch / n)
    total = round(setup.epochs / rate)
    estimator, expected = estimator_of(setup), float(setup.batch)
    engine = nw.gradients.GradientEngine(model, task.loss, estimator, expected=expected)
    log = Log(task, model, total)
    log.note(0)
    for step in range(total):
        engine.progress = step / total
        chosen = torch.rand(n, generator=generator) < rate
        for name, value in engine.sum(task.x[chosen], task.y[chosen]).gradients.items():
            engine.parameters[name].grad = value / (rate * n)
        optimizer.step()
        log.note(step + 1)
    return log, float("inf")
