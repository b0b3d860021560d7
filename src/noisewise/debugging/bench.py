"""The workbench: how the tests ask the black box for updates, in gradient units.

One run of one step at noise multiplier zero, on a dataset of exactly one batch, shows the
private gradient: ``(init - result) / lr``. That is true whatever the sampler, since every
record is then in the batch. Three things make it true for other optimizers as well:

* momentum starts at zero, so the first step of SGD is the gradient; weight decay adds a
  known multiple of `init`, which is subtracted;
* Adam's first step is g / (|g| + eps), element by element. At ordinary clipping norms that
  is the sign of g. At clipping norms near eps it is invertible, and almost linear, so all
  tests run there: clip = 0.05 eps;
* an unknown common factor (weight averaging, a learning-rate schedule, a sum instead of a
  mean) multiplies signal and noise alike, so the tests compare the two with each other.

The learning rate is chosen such that one step moves the weights by about their own size:
reading it from float32 checkpoints then costs six digits less nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from noisewise.debugging.knowledge import Knowledge
from noisewise.debugging.statistics import Vector
from noisewise.debugging.synthesis import Records
from noisewise.debugging.trainer import BlackBox, Data, StateDict, TrainingFailedError

__all__ = ["DEFAULT", "LOUD", "QUICK", "SIGMA", "SMALL_SIGMA", "THOROUGH", "Bench", "Effort"]


@dataclass(frozen=True)
class Effort:
    """How many runs the tests may spend."""

    noise_samples: int
    most_seeds: int
    shape_samples: int
    shape_seeds: int
    sampling_runs: int
    paper_clips: int
    paper_seeds: int
    paper_steps: int
    trials: int
    #: Steps at which noise and contributions are compared with those of the first.
    late_steps: tuple[int, ...]
    #: Steps that are followed one by one, with how many seeds, and one late step for batches.
    trace_steps: int
    trace_seeds: int
    late_sample: int
    #: Steps after which two datasets must have led the same way.
    path_steps: int
    #: A step far beyond, at which one run of each kind tells whether to look closer; 0 for none.
    far_step: int
    #: How many steps of two neighbouring datasets are compared, and in how many pairs of runs.
    neighbour_steps: int = 3
    neighbour_walks: int = 2
    #: Every step up to this one is in some stretch whose noise and contributions are read.
    every_step: int = 0
    #: Steps on the way of which decisions with much patience must show.
    long_path: int = 0
    #: Of how many batches the sizes are counted.
    sizes_runs: int = 0


QUICK = Effort(4_000, 8, 0, 0, 16, 4, 2, 3, 1, (3, 12, 70), 6, 4, 0, 9, 0)
# Late steps are multiples of the intervals at which something else is often done, and one more.
DEFAULT = Effort(
    9_000,
    40,
    130_000,
    260,
    44,
    7,
    3,
    10,
    2,
    (3, 8, 25, 64, 100, 101, 250),
    11,
    6,
    20,
    14,
    600,
    neighbour_steps=8,
    neighbour_walks=4,
    every_step=64,
    long_path=100,
    sizes_runs=160,
)
THOROUGH = Effort(
    40_000,
    120,
    400_000,
    800,
    80,
    10,
    5,
    10,
    3,
    (3, 8, 25, 64, 65, 100, 101, 250, 251, 600),
    16,
    16,
    120,
    40,
    2000,
    neighbour_steps=12,
    neighbour_walks=8,
    every_step=130,
    long_path=250,
    sizes_runs=400,
)

# Neither is ever 1, since C = 1 and sigma = 1 hide a forgotten factor.
SIGMA = 1.7
SMALL_SIGMA = 0.31
#: How much louder noise is made where it should drown what records contribute.
LOUD = 30.0


@dataclass
class Bench:
    """The black box, the records, and what has been learned about the optimizer so far."""

    box: BlackBox
    records: Records
    init: StateDict
    optimizer: str
    momentum: float
    weight_decay: float
    adam_epsilon: float
    adam_betas: tuple[float, float]
    effort: Effort
    options: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    sampling: str = "poisson"
    notes: list[str] = field(default_factory=list)
    known: Knowledge = field(default_factory=Knowledge)
    #: How far a step may lead; less where the weights are kept inside a set.
    reach: float = 1.0
    #: Public factor of the noise multiplier at each step, from step 0 on.
    schedule: Callable[[int], float] | None = None
    #: Whether noise is correlated between steps in a way that the accountant knows.
    correlated: bool = False
    _singles: dict[tuple[Any, ...], Vector] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.start_at(self.init)

    def start_at(self, init: StateDict) -> None:
        """Choose the first weights of all runs, and a clipping norm that suits them."""
        self.init = init
        self.known.scaled.clear()
        self._singles.clear()
        self.weights = self.box.vector(self.init)
        self.size = float(np.linalg.norm(self.weights))
        norms = self.records.gradient_norms(self.init, self.records.draw(16, seed=1))
        positive = sorted(norm for norm in norms if norm > 0)
        if not positive or not np.isfinite(positive[-1]):
            raise ValueError(
                "loss_fn has no finite gradient on random records at the weights of model_fn; "
                "check that loss_fn takes (output, target) and matches the example"
            )
        self.norm = positive[len(positive) // 2]
        self.least_norm = positive[0]
        self.clip = self.reachable(0.137 * self.least_norm)

    @property
    def adam(self) -> bool:
        """Whether the optimizer is Adam."""
        return self.optimizer == "adam"

    @property
    def usable_clip(self) -> float:
        """A clipping norm at which records contribute, as far as one was found."""
        return self.known.clip or self.clip

    @property
    def dimension(self) -> int:
        """Number of trainable parameters."""
        return int(self.weights.size)

    def reachable(self, clip: float) -> float:
        """Return a clipping norm at which updates can be read: that of Adam is near eps."""
        return 0.05 * self.adam_epsilon if self.adam else clip

    def seeds(self, per_run: int | None = None) -> int:
        """Number of runs that give enough samples of the noise."""
        per_run = per_run or self.dimension
        wanted = -(-self.effort.noise_samples // per_run)
        return max(2, min(self.effort.most_seeds, wanted))

    def rate(self, expected: float, move: float = 0.3) -> float:
        """Return the learning rate at which a gradient of norm `expected` moves the weights."""
        unit = self.adam_epsilon if self.adam else 1.0
        return self.reach * move * self.size * unit / expected

    def update(
        self,
        data: Data,
        *,
        clip: float,
        lr: float,
        sigma: float = 0.0,
        batch_size: int | None = None,
        seed: int = 0,
        steps: int = 1,
        init: StateDict | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Vector:
        """Train once and return the (summed) update in gradient units, weight decay removed."""
        if "lr" not in self.box.accepted:
            lr = 1.0
        start = init or self.init
        outcome = self.box.run(
            init=start,
            data=data,
            clip=clip,
            noise_multiplier=sigma,
            batch_size=batch_size or len(data[0]),
            seed=seed,
            steps=steps,
            lr=lr,
            options=options,
        )
        if self.box.observe is not None:
            return outcome.moved
        decay = self.weight_decay * self.box.vector(start) * steps if self.weight_decay else 0.0
        moved = outcome.moved / lr - decay
        if not self.adam:
            return moved
        if steps > 1:
            return self.adam_epsilon * moved
        bounded = np.clip(moved, -0.9999, 0.9999)
        return self.adam_epsilon * bounded / (1.0 - np.abs(bounded))

    def updates(self, data: Data, seeds: range, **settings: Any) -> Vector:
        """Return one update per seed, without those that failed or are not finite.

        Batches that were drawn at random may be empty, and some training cannot take that; sampling
        looks at empty batches on their own.
        """
        rows, failure = [], None
        for seed in seeds:
            try:
                rows.append(self.update(data, seed=seed, **settings))
            except TrainingFailedError as error:
                failure = error
        if failure is not None and not rows:
            raise failure
        stacked = np.stack(rows)
        return stacked[np.isfinite(stacked).all(1)]

    def single(
        self, x: Tensor, y: Tensor, clip: float, init: StateDict | None = None, seed: int = 0
    ) -> Vector:
        """Return what one record alone contributes: a dataset and a batch of one."""
        start = init or self.init
        key = (clip, x.numpy().tobytes(), y.numpy().tobytes(), id(start), seed)
        if key not in self._singles:
            norm = self.records.gradient_norms(start, (x[None], y[None]))[0]
            expected = min(clip, norm) if np.isfinite(norm) and norm > 0 else clip
            self._singles[key] = self.update(
                (x[None], y[None]),
                clip=clip,
                lr=self.rate(expected),
                init=start,
                batch_size=1,
                seed=seed,
            )
        return self._singles[key]

    def contributions(self, data: Data, clip: float) -> Vector:
        """Return the matrix of single-record contributions, one row per record."""
        return np.stack([self.single(x, y, clip) for x, y in zip(*data, strict=True)])

    def noise(
        self,
        *,
        clip: float,
        sigma: float,
        batch_size: int,
        seeds: int,
        first_seed: int = 0,
        steps: int = 1,
        options: Mapping[str, Any] | None = None,
        move: float = 1.0,
        init: StateDict | None = None,
    ) -> Vector:
        """Return noise, one row per seed: updates with noise minus the update without.

        Where gradients are random themselves, the update without noise is another one each
        time. There the clipping norm goes down and sigma goes up by the same factor: the noise
        stays what it was, and what records contribute vanishes beside it.
        """
        data = self.records.draw(batch_size, seed=5)
        if self.known.random:
            clip, sigma = clip / LOUD, sigma * LOUD
        deviation = clip * sigma / batch_size * self.dimension**0.5
        lr = self.rate(deviation, move)
        keyword = {"clip": clip, "lr": lr, "steps": steps, "options": options, "init": init}
        silent: Vector | float = 0.0
        if not self.known.random:
            silent = self.update(data, sigma=0.0, **keyword)  # type: ignore[arg-type]
        # Noise that ignores the seed gives no second sample.
        seeds = 1 if self.known.same_noise else seeds
        rows = [
            self.update(data, sigma=sigma, seed=first_seed + seed, **keyword)  # type: ignore[arg-type]
            for seed in range(seeds)
        ]
        return np.stack(rows) - silent

    def scaled_init(self, factor: float) -> StateDict:
        """Return the initial weights times a factor, kept alive so that caching is safe."""
        if factor not in self.known.scaled:
            names = set(self.box.names)
            self.known.scaled[factor] = {
                name: value * factor if name in names else value.clone()
                for name, value in self.init.items()
            }
        return self.known.scaled[factor]

    def moved_init(self, update: Vector, lr: float) -> StateDict:
        """Return the initial weights after a displacement that a run has shown."""
        state = {name: value.clone() for name, value in self.init.items()}
        for name, part in self.box.slices.items():
            step = torch.from_numpy(lr * update[part]).reshape(state[name].shape)
            state[name] = (state[name].double() - step).to(state[name].dtype)
        return state

    def adam_response(self, steps: int) -> Vector:
        """Weights of the gradients of each step in Adam's sum of updates, where it is linear."""
        first = self.adam_betas[0]
        return np.asarray(
            [
                sum(
                    (1 - first) * first ** (later - step) / (1 - first**later)
                    for later in range(step, steps + 1)
                )
                for step in range(1, steps + 1)
            ]
        )
