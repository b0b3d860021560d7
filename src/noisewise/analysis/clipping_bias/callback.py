"""The clipping bias as a callback of :func:`noisewise.training.fit`. NOT PRIVATE.

A callback sees the run, not its batches, so it draws a few records of its own from the data it
was given. It changes nothing in training: not the weights, not the batches, not the noise. The
run's statement says that numbers about private records were shown.
"""

from __future__ import annotations

import torch
from torch import Tensor

from noisewise.analysis.clipping_bias.series import BiasSeries
from noisewise.gradients import Schedule
from noisewise.training import Callback, PrivateRun

__all__ = ["BiasCallback"]


class BiasCallback(Callback):
    """Measure what bounding does to the gradient while training goes on.

    Parameters
    ----------
    x, target : Tensor
        Records from which a few are drawn for each measurement.
    every, share, chunk
        As of :class:`BiasSeries`: by default at most 10 % of the training's time.
    seed : int
        Of the records that are drawn.

    Attributes
    ----------
    series : BiasSeries
        The measurements, ``series.plot()`` and ``series.to_frame()``.

    Examples
    --------
    >>> from torch import nn
    >>> from noisewise.gradients import Clipped
    >>> from noisewise.training import Plan, fit
    >>> x, y = torch.randn(300, 4), torch.randint(0, 2, (300,))
    >>> watch = BiasCallback(x, y, every=5)
    >>> plan = Plan(gradients=Clipped(0.1), epsilon=3.0, steps=20, batch_size=30)
    >>> _ = fit(nn.Linear(4, 2), (x, y), plan, loss=nn.CrossEntropyLoss(), progress=False,
    ...         metrics=False, callbacks=[watch])
    >>> [m.step for m in watch.series.measurements]
    [0, 5, 10, 15]
    """

    def __init__(
        self,
        x: Tensor,
        target: Tensor,
        *,
        seed: int = 0,
        every: int | None = None,
        share: float = 0.1,
        chunk: int = 64,
    ) -> None:
        if len(x) != len(target) or len(x) == 0:
            raise ValueError(
                f"x and target must hold as many records, at least one, got {len(x)} and "
                f"{len(target)}"
            )
        self.x, self.target = x, target
        self.series = BiasSeries(every=every, share=share, chunk=chunk)
        self._generator = torch.Generator().manual_seed(seed)

    def on_start(self, run: PrivateRun) -> None:
        """Let the statement say that private records are looked at."""
        run.circumstances.metrics = True

    def on_step(self, run: PrivateRun, metrics: dict[str, float]) -> None:
        """Measure if it is time."""
        estimator = run.plan.gradients
        if isinstance(estimator, Schedule):
            estimator = estimator.at(min(1.0, run.next_step / run.steps))
        index = torch.randint(len(self.x), (self.series.chunk,), generator=self._generator)
        index = index.to(self.x.device)
        self.series.observe(
            run.plain_model,
            run.plain_loss,
            self.x[index].to(run.device),
            self.target[index].to(run.device),
            estimator,
            noise_multiplier=run.resolved.noise_multiplier,
            allocation=run.plan.noise,
            batch_size=run.resolved.batch_size,
        )
