"""`second-step` and `claim`: whether the second step is right, and the claim adds up."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from noisewise import checks, privacy
from noisewise.debugging.bench import SIGMA, Bench
from noisewise.debugging.findings import Finding, TestResult
from noisewise.debugging.noise import whitened
from noisewise.debugging.noise_readings import measure
from noisewise.debugging.statistics import Vector
from noisewise.debugging.trainer import Data, StateDict
from noisewise.debugging.walk import Walk

__all__ = ["Claim", "claim", "response", "two_steps"]

#: At most so many pairs of runs, until as many have a record in the first step as in the second.
_PAIRS, _ENOUGH = 200, 5


@dataclass(frozen=True)
class Claim:
    """What the user's accountant printed, for claim."""

    epsilon: float
    delta: float
    noise_multiplier: float
    sample_rate: float
    steps: int

    def __post_init__(self) -> None:
        checks.positive("epsilon", self.epsilon)
        checks.fraction("delta", self.delta)
        checks.positive("noise_multiplier", self.noise_multiplier)
        checks.probability("sample_rate", self.sample_rate)
        checks.integer("steps", self.steps, minimum=1)


def response(bench: Bench) -> None:
    """Learn how strongly gradients of earlier steps count: momentum makes them count more.

    D_t, the displacement after t steps of an almost constant gradient, grows by the response
    of the optimizer. The difference between two datasets is used, so that weight decay and
    whatever else does not depend on the data cancels.
    """
    if bench.box.observe is not None:
        return
    if bench.adam or "steps" not in bench.box.accepted or bench.known.mute:
        return
    clip = bench.usable_clip
    lr = bench.rate(min(clip, bench.norm), 1e-3)
    along = _growth(bench, clip, lr)
    if along is None:
        return
    if abs(along[1] - 2.0) > 0.03:
        # Gradients change a little on the way, by jumps where a ReLU opens: a tenth of the way
        # meets a tenth of them, and still moves float32 weights by a hundred of their units.
        finer = _growth(bench, clip, lr / 10)
        along = along if finer is None else finer
    bench.known.growth = along
    if abs(along[1] - 2.0 - bench.momentum) > 0.03:
        bench.notes.append(
            f"the first gradient counts {along[1] - 1:.2f} times in two steps (momentum or weight "
            f"averaging?); the tests take it into account"
        )


def _growth(bench: Bench, clip: float, lr: float) -> Vector | None:
    """Return displacements after one, two and three steps, over that after one."""
    one, other = (bench.records.draw(4, seed=seed) for seed in (5, 15))
    runs = [
        bench.update(one, clip=clip, lr=lr, steps=t)
        - bench.update(other, clip=clip, lr=lr, steps=t)
        for t in (1, 2, 3)
    ]
    size = float(runs[0] @ runs[0])
    return np.asarray([float(run @ runs[0]) / size for run in runs]) if size > 0 else None


def two_steps(bench: Bench) -> TestResult:
    """`second-step`: two steps combine the gradients at the start and after the first."""
    title = "the second step uses fresh gradients"
    if "steps" not in bench.box.accepted:
        return TestResult("second-step", title, "skipped", "train takes no `steps`")
    if bench.box.observe is not None:
        return TestResult("second-step", title, "skipped", "a run shows its last step only")
    if bench.known.mute:
        return TestResult(
            "second-step", title, "skipped", "records contribute nothing at any C tried"
        )
    if bench.known.incomplete:
        return TestResult(
            "second-step", title, "skipped", "the sampler leaves records out at q = 1"
        )
    clip = bench.usable_clip
    data = bench.records.draw(4, seed=5)
    rough = bench.update(data, clip=clip, lr=bench.rate(min(clip, bench.norm)))
    lr = bench.rate(float(np.linalg.norm(rough)) or clip, 0.15)

    def moved(init: StateDict, steps: int, lr: float) -> Vector:
        return bench.box.run(
            init=init,
            data=data,
            clip=clip,
            noise_multiplier=0.0,
            batch_size=4,
            seed=0,
            steps=steps,
            lr=lr,
        ).moved

    # If an average of the weights is returned, the second gradient was taken further away, by a
    # factor that follows from what the average keeps. That is known to a hundredth, which near
    # one is a tenth of the factor: all that it may be is tried before anybody is accused.
    lag = float(bench.known.response[1]) - 1
    kept = [lag + error for error in (0.0, -0.005, 0.005, -0.01, 0.01)] if 0.05 < lag < 0.99 else []
    reaches = [1.0] + [1 / (1 - share) for share in kept if share < 0.995]
    summary, finding = "", None
    for reach in reaches:
        first, both = moved(bench.init, 1, lr / reach), moved(bench.init, 2, lr / reach)
        there = bench.moved_init(reach * first, 1.0)
        fresh = moved(there, 1, lr / reach)
        change = float(np.linalg.norm(fresh - first)) / max(float(np.linalg.norm(first)), 1e-300)
        if change < 0.02:
            return TestResult(
                "second-step", title, "skipped", "gradients hardly change over one step"
            )
        columns = [first, fresh]
        if bench.weight_decay:
            columns += [bench.weights, bench.box.vector(there)]
        basis = np.stack(columns, axis=1)
        weights, *_ = np.linalg.lstsq(basis, both, rcond=None)
        size = max(float(np.linalg.norm(both)), 1e-300)
        rest = float(np.linalg.norm(both - basis @ weights)) / size
        summary = (
            f"two steps = {weights[0]:.3f} x first + {weights[1]:.3f} x second gradient, "
            f"rest {rest:.1e}"
        )
        allowed = 0.05 if bench.adam else 0.02
        if rest <= allowed * change:
            if abs(weights[1]) < 0.1:
                # Whose weights a gradient is taken at is public; noise and bound are the same.
                summary += ": it is computed at older weights, which costs no privacy"
                bench.notes.append("gradients are computed at older weights (asynchronous?)")
            return TestResult("second-step", title, "passed", summary)
        if reach == 1.0 and not bench.adam and _weighted(bench, data, there, both - first, lr):
            summary += ": each record counts at most as much as it may, by a weight of its own"
            bench.known.weighted = True
            bench.notes.append("what a record weighs follows what was released before")
            return TestResult("second-step", title, "passed", summary)
        if reach == 1.0 and _by_what_was_released(bench):
            summary += ": each record counts at most C, given what was released before it"
            bench.known.weighted = True
            bench.notes.append("where gradients are taken follows what was released before")
            return TestResult("second-step", title, "passed", summary)
        finding = finding or Finding(
            "stale-gradients",
            "second-step",
            "training",
            f"the gradient of the second step is that of neither place: {summary}.",
            {"weights": weights.tolist(), "rest": rest},
        )
    return TestResult("second-step", title, "failed", summary, (), (finding,) if finding else ())


def _by_what_was_released(bench: Bench) -> bool:
    """Whether a record moves the second step by its bound if it was in the first one, or not.

    Where the first step is the same for two datasets, the second one may differ by twice C. Where
    the first differed by a record, and noise hides it, the second hardly does.
    """
    known = bench.known
    if "noise_multiplier" not in bench.box.accepted or not known.deterministic or bench.adam:
        return False
    if known.random or known.unbounded or bench.correlated or not known.steady:
        return False
    clip, total, batch = bench.usable_clip, 24, 4
    share = known.divisors.get(batch, 1.0 / batch)
    lr = bench.rate(clip * SIGMA * share * bench.dimension**0.5, 1e-3)
    x, y = bench.records.draw(total, seed=8)
    fresh, after = [], []
    for seed in range(8700, 8700 + _PAIRS):
        swapped = (x.clone(), y.clone())
        one, target = bench.records.draw(1, seed=seed)
        swapped[0][seed % total], swapped[1][seed % total] = one[0], target[0]
        walks = [Walk(bench, data, clip, SIGMA, batch, lr, seed) for data in ((x, y), swapped)]
        apart = [
            float(np.linalg.norm(walks[0].moved(step) - walks[1].moved(step))) / clip / share
            for step in (1, 2)
        ]
        if apart[0] > 0.05:
            after.append(apart[1])
        elif apart[1] > 0.05:
            fresh.append(apart[1])
        if min(len(fresh), len(after)) >= _ENOUGH:
            break
    if min(len(fresh), len(after)) < _ENOUGH:
        return False
    return max(fresh) < 2.05 * max(1.0, known.largest) and float(np.median(after)) < 0.3


def _weighted(bench: Bench, data: Data, there: StateDict, second: Vector, lr: float) -> bool:
    """Whether a step is a sum of what its records contribute there, each at most once."""
    size = len(data[0])
    share = bench.known.divisors.get(size, 1.0 / size)
    rows = [
        share
        * bench.box.run(
            init=there,
            data=(data[0][row : row + 1], data[1][row : row + 1]),
            clip=bench.usable_clip,
            noise_multiplier=0.0,
            batch_size=1,
            seed=0,
            steps=1,
            lr=lr,
        ).moved
        for row in range(size)
    ]
    basis = np.stack(rows, axis=1)
    weights, *_ = np.linalg.lstsq(basis, second, rcond=None)
    rest = float(np.linalg.norm(second - basis @ weights))
    small = rest <= 2e-3 * float(np.linalg.norm(second))
    return small and bool(np.all((weights > -0.01) & (weights < 1.01)))


def claim(bench: Bench, claimed: Claim | None) -> TestResult:
    """`claim`: recompute epsilon from what was measured and compare it with what was printed."""
    title = "the printed epsilon follows from what was measured"
    if claimed is None:
        return TestResult("claim", title, "skipped", "no claim given (claimed=Claim(epsilon=...))")
    measured = measure(bench)
    largest = bench.known.largest
    one = measured.readings["one record"]
    level = one.factor if one.off else 1.0
    if measured.uneven:
        lengths = whitened(bench, measured)
        level = 0.0 if any(bare for _, bare in lengths) else 1.0
        largest = max((length for length, _ in lengths), default=1.0)
    multiplier = claimed.noise_multiplier * level / (largest if largest > 1 + 2e-3 else 1.0)
    if multiplier <= 0:
        epsilon = math.inf
    else:
        epsilon = privacy.epsilon(
            noise_multiplier=multiplier,
            sample_rate=claimed.sample_rate,
            steps=claimed.steps,
            delta=claimed.delta,
        )
    summary = f"claimed epsilon {claimed.epsilon:.3g}, from the measured noise {epsilon:.3g}"
    if epsilon <= 1.02 * claimed.epsilon:
        return TestResult("claim", title, "passed", summary)
    finding = Finding(
        "epsilon-too-small",
        "claim",
        "accounting",
        f"{summary} (effective noise multiplier {multiplier:.3g}, q = {claimed.sample_rate:g}, "
        f"{claimed.steps} steps, delta {claimed.delta:g}).",
        {"epsilon": epsilon},
    )
    return TestResult("claim", title, "failed", summary, (), (finding,))
