"""What happens beside training: a progress bar, curves, early stopping.

A callback is told of the start, of every step and of every epoch, and may ask to stop. It sees
the run and the metrics of the epoch; what it does with metrics on private records is not covered
by the statement.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

from noisewise import checks
from noisewise.errors import MissingExtraError, UnsoundError
from noisewise.privacy import round_up, single_up

if TYPE_CHECKING:
    from noisewise.training.private_run import PrivateRun

__all__ = ["Callback", "EarlyStopping", "ProgressBar", "TensorBoard"]


class Callback:
    """Base of callbacks; every method does nothing until overridden."""

    def on_start(self, run: PrivateRun) -> None:
        """Before the first step."""

    def on_step(self, run: PrivateRun, metrics: dict[str, float]) -> None:
        """After a step; `metrics` are the latest ones, of a batch of private records."""

    def on_epoch(self, run: PrivateRun, record: dict[str, Any]) -> bool | None:
        """After an epoch; return True to stop."""
        return None

    def on_end(self, run: PrivateRun) -> None:
        """After the last step, whatever ended training."""


class EarlyStopping(Callback):
    """Stop when a metric on *public* validation records no longer improves.

    Parameters
    ----------
    monitor : str
        Name of a metric of the epoch; it must be one of validation.
    patience : int
        Number of epochs without improvement that are waited for.
    minimise : bool, optional
        Default: True unless the name contains "accuracy".
    public : bool
        Must be True: it declares that the validation records are public. When training stops is
        visible to everybody, so it may not depend on private records without noise.
    """

    def __init__(
        self,
        monitor: str = "validation_loss",
        patience: int = 3,
        *,
        minimise: bool | None = None,
        public: bool = False,
    ) -> None:
        if not monitor.startswith("validation_"):
            raise UnsoundError(
                f"early stopping on {monitor!r} would depend on the private training records "
                "without noise, and when training stopped would tell about them. Monitor "
                "'validation_loss' on public records."
            )
        if not public:
            raise UnsoundError(
                "early stopping shows something about the validation records. If they are public, "
                "say so with EarlyStopping(public=True); if not, plan a fixed number of steps."
            )
        self.monitor = monitor
        self.patience = checks.integer("patience", patience, minimum=1)
        self.minimise = ("accuracy" not in monitor) if minimise is None else minimise
        self.best = math.inf
        self.waited = 0

    def on_epoch(self, run: PrivateRun, record: dict[str, Any]) -> bool | None:
        """Compare with the best epoch so far."""
        if self.monitor not in record:
            raise ValueError(f"there is no metric {self.monitor!r}; give validation= to fit")
        value = record[self.monitor] if self.minimise else -record[self.monitor]
        if value < self.best:
            self.best, self.waited = value, 0
        else:
            self.waited += 1
        return self.waited >= self.patience

    def state_dict(self) -> dict[str, Any]:
        """For checkpoints."""
        return {"best": self.best if math.isfinite(self.best) else None, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """From a checkpoint."""
        self.best = math.inf if state["best"] is None else state["best"]
        self.waited = state["waited"]


class TensorBoard(Callback):
    """Curves for TensorBoard, one point per epoch, and epsilon once more at the end.

    Parameters
    ----------
    folder : path
        Where the event files go.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtraError(
                "the TensorBoard callback needs the package tensorboard: pip install tensorboard"
            ) from error
        self._writer: Any = SummaryWriter(os.fspath(folder))

    def on_epoch(self, run: PrivateRun, record: dict[str, Any]) -> bool | None:
        """Write every number of the epoch."""
        for name, value in record.items():
            if isinstance(value, (int, float)) and name not in ("step", "epsilon"):
                self._writer.add_scalar(name, value, record["step"])
        self._write_epsilon(record["epsilon"], record["step"])
        self._writer.flush()
        return None

    def on_end(self, run: PrivateRun) -> None:
        """Write the epsilon of the statement, which may be below the last one shown; close."""
        self._write_epsilon(run.meter.after(run.steps_taken, exactly=True), run.next_step)
        self._writer.close()

    def _write_epsilon(self, epsilon: float | None, step: int) -> None:
        if epsilon is not None:
            self._writer.add_scalar("epsilon", single_up(epsilon), step)


class ProgressBar(Callback):
    """A bar with loss, accuracy, epsilon and the time that is left.

    While training, epsilon is that of one of the next steps (:mod:`noisewise.training.meter`), so
    it is never below the truth; in the end it is the statement's. It goes to standard error; where
    that is no terminal, a plain line tells of every tenth part.
    """

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn as Remaining,
        )

        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            Remaining(),
            console=Console(stderr=True),
        )
        self._plain = not self._bar.console.is_terminal
        self._told = 0
        self._task: Any = None
        self._metrics: dict[str, float] = {}

    def on_start(self, run: PrivateRun) -> None:
        """Show the bar."""
        if not self._plain:
            self._bar.start()
        self._task = self._bar.add_task(
            run.name, total=run.steps, completed=run.next_step, numbers=""
        )

    def on_step(self, run: PrivateRun, metrics: dict[str, float]) -> None:
        """Move on."""
        self._metrics = metrics
        self._show(run)

    def on_end(self, run: PrivateRun) -> None:
        """Leave the bar with the epsilon of the statement."""
        self._show(run, exactly=True)
        if not self._plain:
            self._bar.stop()

    def _show(self, run: PrivateRun, exactly: bool = False) -> None:
        epsilon = run.meter.after(run.steps_taken, exactly=exactly)
        shown = [f"{name} {value:.3f}" for name, value in self._metrics.items()]
        shown.append(f"epsilon {'none' if epsilon is None else round_up(epsilon)}")
        self._bar.update(self._task, completed=run.next_step, numbers=", ".join(shown))
        tenth = 10 * run.next_step // max(1, run.steps)
        if self._plain and tenth > self._told and (exactly or tenth < 10):
            self._told = tenth
            said = f"{run.name}: step {run.next_step} of {run.steps}, {', '.join(shown)}"
            self._bar.console.print(said, highlight=False, markup=False, soft_wrap=True)
