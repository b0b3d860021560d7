"""Measurements over a training, taken seldom enough to cost little, and their picture.

A :class:`BiasSeries` is told of every step and decides by itself when to measure: at fixed
steps, or whenever its own share of the time would stay below a limit (10 % by default). NOT
PRIVATE, and neither is the choice to stop a training because of what it shows.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from noisewise import checks
from noisewise.analysis.clipping_bias.measure import Measurement, measure
from noisewise.gradients import GradientEngine

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["WARNING", "BiasSeries"]

WARNING = "NOT PRIVATE: computed from private records without noise. Do not share."
ERROR_COLOUR, BOUNDED_COLOUR = "#2b6a99", "#c1440e"


class BiasSeries:
    """Measurements of the clipping bias over a training. NOT PRIVATE.

    Parameters
    ----------
    every : int, optional
        Measure at multiples of this step. By default whenever the time allows.
    share : float
        Largest part of the training's time that measurements may take, if `every` is not
        given. The first step is always measured; after it the series waits until it has
        been paid for.
    chunk : int
        Records of the batch that are looked at.

    Attributes
    ----------
    measurements : list of Measurement
    """

    private = False

    def __init__(self, *, every: int | None = None, share: float = 0.1, chunk: int = 64) -> None:
        self.every = None if every is None else checks.integer("every", every, minimum=1)
        self.share = checks.probability("share", share)
        self.chunk = checks.integer("chunk", chunk, minimum=1)
        self.measurements: list[Measurement] = []
        self.seen = 0
        self._costs: list[float] = []
        self._start: float | None = None
        self._engine: GradientEngine | None = None

    def observe(
        self,
        model: nn.Module,
        loss: Any,
        x: Tensor,
        target: Tensor,
        gradients: Any,
        *,
        noise_multiplier: float | None = None,
        allocation: str = "optimal",
        batch_size: float | None = None,
    ) -> Measurement | None:
        """Take note of one step's batch; measure it if it is time. Call it once a step.

        Call it between steps, not while a batch of ``run.model`` is open. Arguments as of
        :func:`noisewise.analysis.clipping_bias.measure`.
        """
        step, self.seen = self.seen, self.seen + 1
        now = time.perf_counter()
        if self._start is None:
            self._start = now
        if len(x) == 0 or not self._due(step, now):
            return None
        found = measure(
            model,
            loss,
            x,
            target,
            gradients,
            chunk=self.chunk,
            noise_multiplier=noise_multiplier,
            allocation=allocation,
            batch_size=batch_size,
            step=step,
            engine=self._engine_of(model, loss, gradients),
        )
        self._costs.append(time.perf_counter() - now)
        self.measurements.append(found)
        return found

    def _engine_of(self, model: nn.Module, loss: Any, gradients: Any) -> GradientEngine:
        """Keep one engine over the training: checking a model takes longer than a step."""
        known = self._engine
        same = known is not None and (known.model, known.loss) == (model, loss)
        if known is None or not same or known.schedule is not gradients:
            expected = float(self.chunk)
            known = self._engine = GradientEngine(model, loss, gradients, expected=expected)
        return known

    def _due(self, step: int, now: float) -> bool:
        if self.every is not None:
            return step % self.every == 0
        if not self.measurements:
            return True
        assert self._start is not None
        training = now - self._start - self._spent
        # The next one is expected to take as long as the slowest of the last few did.
        return self._spent + max(self._costs[-5:]) <= self.share * training

    @property
    def _spent(self) -> float:
        return sum(self._costs)

    @property
    def overhead(self) -> float:
        """Time of all measurements over that of the training so far, without them."""
        if self._start is None:
            return 0.0
        training = time.perf_counter() - self._start - self._spent
        return self._spent / max(training, 1e-9)

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each measurement and group, and one for the whole ("all")."""
        import pandas as pd

        rows = []
        for m in self.measurements:
            whole = {
                "group": "all",
                "true_norm": m.true_norm,
                "bounded_norm": m.bounded_norm,
                "bias_norm": m.bias_norm,
                "cosine": m.cosine,
                "clipped_fraction": m.clipped_fraction,
                "signal_to_noise": m.signal_to_noise,
            }
            parts = [
                {"group": g.name, **{key: getattr(g, key) for key in whole if key != "group"}}
                for g in m.groups
            ]
            rows += [{"step": m.step, **row} for row in (whole, *parts)]
        frame: pd.DataFrame = pd.DataFrame(rows)
        frame.attrs["warning"] = WARNING
        return frame

    def save(self, path: str | Path) -> Path:
        """Write the measurements as JSON that says that it is not private."""
        place = Path(path)
        content = {
            "warning": WARNING,
            "private": False,
            "measurements": [m.to_dict() for m in self.measurements],
        }
        place.write_text(json.dumps(content, indent=1), encoding="utf-8")
        return place

    def plot(self, *, title: str = "") -> Figure:
        """Draw the bias, the cosine with the share of clipped records, and signal to noise."""
        from matplotlib.figure import Figure

        if not self.measurements:
            raise ValueError("nothing was measured yet")
        figure = Figure(figsize=(12.5, 3.8), layout="constrained")
        left, middle, right = figure.subplots(1, 3)
        self.plot_bias(left)
        steps = [m.step for m in self.measurements]
        middle.plot(steps, [m.cosine for m in self.measurements], label="cosine to true gradient")
        middle.plot(
            steps,
            [m.clipped_fraction for m in self.measurements],
            linestyle="--",
            label="share of records clipped",
        )
        middle.set(xlabel="step", ylim=(min(-0.02, *middle.get_ylim()), 1.02))
        middle.legend(fontsize="small")
        for index, group in enumerate(self.measurements[0].groups):
            values = [m.groups[index].signal_to_noise for m in self.measurements]
            right.semilogy(steps, values, label=group.name, linewidth=1.2)
        right.axhline(1.0, color="0.7", linewidth=0.8)
        right.set(xlabel="step", title="signal to noise of one step", ylabel="|sum| / |noise|")
        right.legend(fontsize="x-small", title="group", title_fontsize="x-small")
        figure.suptitle(f"{title + ': ' if title else ''}{WARNING}", fontsize="medium")
        return figure

    def plot_bias(self, ax: Axes) -> Axes:
        """Draw |g - bounded(g)| and |bounded(g)|, as figure 3 of Barczewski and Ramon (2024)."""
        steps = [m.step for m in self.measurements]
        ax.plot(
            steps,
            [m.bias_norm for m in self.measurements],
            color=ERROR_COLOUR,
            label="|g - bounded(g)|",
        )
        ax.plot(
            steps,
            [m.bounded_norm for m in self.measurements],
            color=BOUNDED_COLOUR,
            label="|bounded(g)|",
        )
        ax.set(xlabel="step", ylabel="norm of the mean", ylim=(0, None))
        ax.legend(fontsize="small")
        return ax
