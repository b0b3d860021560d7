"""T1 to T4: the tests of "Finding private bugs" (Anonymous 2023), from losses and distances.

T1 and T2 are section 3.1, T3 is section 3.2 with the heuristics of appendix B, T4 is
appendix C. Where the paper leaves room, the sharper form is used: T2 looks at the slope on
log axes (-1 or 0) instead of a t-test, and T3 accuses only if distances do not grow.
"""

from __future__ import annotations

import numpy as np
from scipy import stats

from noisewise.debugging.bench import SIGMA, Bench
from noisewise.debugging.findings import Finding, TestResult
from noisewise.debugging.statistics import LEVEL, Vector, slope_test
from noisewise.debugging.trainer import Data, StateDict

__all__ = ["clipping_exists", "clipping_per_record", "noise_calibration", "noise_law"]


def _state_after(
    bench: Bench,
    data: Data,
    *,
    clip: float,
    lr: float,
    sigma: float = 0.0,
    seed: int = 0,
    steps: int = 1,
    init: StateDict | None = None,
) -> StateDict:
    """Run and return the weights, without the part that is weight decay."""
    start = init or bench.init
    outcome = bench.box.run(
        init=start,
        data=data,
        clip=clip,
        noise_multiplier=sigma,
        batch_size=len(data[0]),
        seed=seed,
        steps=steps,
        lr=lr,
    )
    moved = outcome.moved - lr * bench.weight_decay * bench.box.vector(start) * steps
    state = dict(start)
    for name, part in bench.box.slices.items():
        value = start[name].double()
        state[name] = value - value.new_tensor(moved[part]).reshape(value.shape)
    return state


def _change(bench: Bench, data: Data, init: StateDict, after: StateDict) -> float:
    """Return the change of the mean loss (Eq. 3 of the paper)."""
    change = bench.records.losses(after, data) - bench.records.losses(init, data)
    return float(change.mean())


def clipping_exists(bench: Bench) -> TestResult:
    """T1: one record, one step, no noise: the loss change must depend on C."""
    title = "clipping exists"
    data = bench.records.draw(1, seed=3)
    norm = bench.records.gradient_norms(bench.init, data)[0]
    grid = (
        bench.adam_epsilon * np.logspace(-2, 5, 8) if bench.adam else norm * np.logspace(-3, 1, 8)
    )
    lr = bench.rate(bench.adam_epsilon if bench.adam else norm, 0.02)
    changes = np.asarray(
        [
            _change(bench, data, bench.init, _state_after(bench, data, clip=float(c), lr=lr))
            for c in grid
        ]
    )
    figure = {"clip": grid, "change": changes}
    spread = float(np.ptp(changes)) / max(float(np.max(np.abs(changes))), 1e-300)
    summary = f"loss change varies by {spread:.1%} over C = {grid[0]:.2g} ... {grid[-1]:.2g}"
    if np.max(np.abs(changes)) == 0.0:
        return TestResult(
            "loss-and-clip", title, "skipped", "the loss never changes", (), (), figure
        )
    if spread > 1e-3:
        return TestResult("loss-and-clip", title, "passed", summary, (), (), figure)
    finding = Finding(
        "no-clipping",
        "loss-and-clip",
        "clipping",
        f"gradients are not clipped: {summary}.",
        {"changes": changes.tolist()},
    )
    return TestResult("loss-and-clip", title, "failed", summary, (), (finding,), figure)


def clipping_per_record(bench: Bench) -> TestResult:
    """T2: one record with a gradient among B - 1 without: its effect must fall like 1/B."""
    title = "clipping is per record"
    sizes = (1, 2, 4, 8, 16)
    made = bench.records.zero_gradient_batch(bench.init, max(sizes))
    if made is None:
        return TestResult(
            "loss-and-batch", title, "skipped", "no records without gradient could be made"
        )
    init, (x, y) = made
    norm = bench.records.gradient_norms(init, (x[:1], y[:1]))[0]
    clip = bench.reachable(0.1 * norm / max(sizes))
    lr = bench.rate(clip, 0.02)
    changes = []
    for size in sizes:
        after = _state_after(bench, (x[:size], y[:size]), clip=clip, lr=lr, init=init)
        changes.append(_change(bench, (x[:1], y[:1]), init, after))
    values = np.abs(np.asarray(changes))
    figure = {"batch": np.asarray(sizes), "change": values}
    if values.max() <= 1e-9 * norm:
        return TestResult(
            "loss-and-batch",
            title,
            "skipped",
            "a record with a large gradient contributes nothing (dropped, not clipped)",
            (),
            (),
            figure,
        )
    safe = np.maximum(values, 1e-6 * values.max())
    slope = float(np.polyfit(np.log(sizes), np.log(safe), 1)[0])
    summary = f"loss change falls like B to the power {slope:.2f}"
    if slope < -0.5:
        return TestResult("loss-and-batch", title, "passed", summary, (), (), figure)
    finding = Finding(
        "clipped-per-batch",
        "loss-and-batch",
        "clipping",
        f"the mean gradient of the batch is clipped instead of each record's: {summary} "
        f"instead of -1.",
        {"slope": slope},
    )
    return TestResult("loss-and-batch", title, "failed", summary, (), (finding,), figure)


def noise_calibration(bench: Bench) -> TestResult:
    """T3: at C so large that nothing is clipped, distances between seeds must grow with C."""
    title = "noise grows with C"
    data = bench.records.draw(4, seed=4)
    trials = [_trial(bench, data, trial) for trial in range(bench.effort.trials)]
    least = max(clip for clip, _, _ in trials)
    start, lr = trials[0][1], trials[0][2]
    sigma = min(_sigma_star(bench, data, clip, start, lr) for clip, start, lr in trials)
    grid = np.linspace(least, 10 * least, bench.effort.paper_clips)
    steps = bench.effort.paper_steps if "steps" in bench.box.accepted else 1
    distances = np.asarray([_distance(bench, data, c, sigma, start, lr, steps) for c in grid])
    control = np.asarray(
        [_distance(bench, data, c, 0.0, start, lr, steps, seeds=2) for c in (grid[0], grid[-1])]
    )
    _, p_value = slope_test(grid, distances)
    growth = float(distances[-1] / distances[0]) if distances[0] > 0 else 0.0
    figure = {
        "clip": grid,
        "distance": distances,
        "control_clip": grid[[0, -1]],
        "control": control,
    }
    summary = (
        f"C* = {least:.3g}, sigma* = {sigma:.0e}; distance grows {growth:.2f}x over ten times C "
        f"(slope test p = {p_value:.1e}), {control.max():.1e} at sigma = 0"
    )
    if not np.isfinite(distances).all():
        return TestResult(
            "distance-and-clip",
            title,
            "skipped",
            "weights are not finite at large C",
            (),
            (),
            figure,
        )
    if distances.max() <= 1e-9 * bench.size:
        finding = Finding(
            "no-noise",
            "distance-and-clip",
            "noise",
            "runs with different seeds end at the same weights.",
        )
        return TestResult("distance-and-clip", title, "failed", summary, (), (finding,), figure)
    flat = growth < (1.05 if bench.adam else 2.0)
    if not flat:
        return TestResult("distance-and-clip", title, "passed", summary, (), (), figure)
    if control.max() > 0.2 * distances.max():
        return TestResult(
            "distance-and-clip",
            title,
            "skipped",
            "runs differ even at sigma = 0 (random gradients?)",
            (),
            (),
            figure,
        )
    finding = Finding(
        "noise-ignores-clip",
        "distance-and-clip",
        "noise",
        f"noise is not multiplied by the clipping norm: {summary}.",
        {"growth": growth},
    )
    return TestResult("distance-and-clip", title, "failed", summary, (), (finding,), figure)


def noise_law(bench: Bench) -> TestResult:
    """T4: for plain SGD, the noise over ``lr C sigma / B`` must be standard normal."""
    title = "Kolmogorov-Smirnov test of the noise"
    if bench.adam:
        return TestResult(
            "law-of-noise", title, "skipped", "the paper's test is for plain SGD; see noise"
        )
    if "lr" not in bench.box.accepted:
        return TestResult(
            "law-of-noise", title, "skipped", "the learning rate is unknown; see noise"
        )
    clip, size = bench.usable_clip, 4
    rows = bench.noise(clip=clip, sigma=SIGMA, batch_size=size, seeds=bench.seeds(), first_seed=77)
    standard = rows.ravel() * size / (clip * SIGMA)
    statistic = stats.kstest(standard[:200_000], "norm")
    p_value = float(statistic.pvalue)
    summary = f"distance {statistic.statistic:.3f}, p = {p_value:.1e}, n = {standard.size}"
    figure = {"standard": standard[:4000]}
    if p_value >= LEVEL or statistic.statistic < 0.01:
        return TestResult("law-of-noise", title, "passed", summary, (p_value,), (), figure)
    finding = Finding(
        "noise-law-wrong",
        "law-of-noise",
        "noise",
        f"the noise over lr C sigma / B is not standard normal: {summary}, deviation "
        f"{standard.std():.3f}.",
        {"deviation": float(standard.std())},
        p_value,
    )
    return TestResult("law-of-noise", title, "failed", summary, (p_value,), (finding,), figure)


def _trial(bench: Bench, data: Data, trial: int) -> tuple[float, StateDict, float]:
    """Return C*, warmed-up weights and a learning rate (appendix B, first list)."""
    lr = 0.05 * bench.size / (bench.dimension**0.5) if bench.adam else bench.rate(bench.norm, 0.01)
    warm = 5 if bench.adam and "steps" in bench.box.accepted else 1
    start = _state_after(bench, data, clip=1e6, lr=lr, seed=trial, steps=warm)
    start = {k: v.to(bench.init[k].dtype) for k, v in start.items()}
    grid = np.logspace(-2, 6, 9)
    changes = np.asarray(
        [
            _change(
                bench,
                data,
                start,
                _state_after(bench, data, clip=float(c), lr=lr, init=start, seed=trial),
            )
            for c in grid
        ]
    )
    # Rules that never stop depending on C (automatic clipping) have no C*: take a large one.
    close = np.abs(changes - changes[-1]) <= 1e-3 * max(abs(float(changes[-1])), 1e-12)
    moving = np.flatnonzero(~close)
    last = int(moving[-1]) + 1 if moving.size else 0
    star = float(grid[last]) if last < grid.size - 1 else 10.0 * bench.norm
    return star, start, lr


def _sigma_star(bench: Bench, data: Data, clip: float, start: StateDict, lr: float) -> float:
    """Return the least sigma that moves the loss change (appendix B, second list)."""
    silent = _change(bench, data, start, _state_after(bench, data, clip=clip, lr=lr, init=start))
    for sigma in np.logspace(-8, 1, 10):
        after = _state_after(bench, data, clip=clip, lr=lr, sigma=float(sigma), init=start)
        if abs(_change(bench, data, start, after) - silent) > 1e-3 * max(abs(silent), 1e-9):
            return float(sigma)
    return 10.0


def _distance(
    bench: Bench,
    data: Data,
    clip: float,
    sigma: float,
    start: StateDict,
    lr: float,
    steps: int,
    seeds: int | None = None,
) -> float:
    """Return the mean distance between the weights of several seeds."""
    ends: list[Vector] = [
        bench.box.vector(
            _state_after(
                bench,
                data,
                clip=float(clip),
                lr=lr,
                sigma=sigma,
                init=start,
                seed=seed,
                steps=steps,
            )
        )
        for seed in range(seeds or bench.effort.paper_seeds)
    ]
    pairs = [float(np.linalg.norm(a - b)) for i, a in enumerate(ends) for b in ends[i + 1 :]]
    return float(np.mean(pairs))
