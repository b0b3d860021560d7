"""Bias of every estimator over training.

Barczewski and Ramon (2024), figure 3; Barczewski (2025), figure 5.3.3.

Writes docs/images/analysis_bias_<dataset>.png and prints a table: |g - bounded(g)| and
|bounded(g)|, cosine, share of clipped records and signal to noise, at the start and the end of
training on Dropout and Adult. Averaged over ten runs (the papers: 500). NOT private numbers, of
public data.
"""

from __future__ import annotations

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from analysis_data import Task, tabular
from analysis_training import CACHE, IMAGES, Stopwatch, arguments
from torch import nn

import noisewise as nw
from noisewise.analysis.clipping_bias import BiasSeries

DATASETS = {"students_dropout": "Dropout", "adult": "Adult"}
STEPS, BATCH, SIGMA, RUNS = 200, 256, 1.0, 10
TASKS: dict[str, Task] = {}
COLUMNS = ("bias_norm", "bounded_norm", "cosine", "clipped_fraction", "signal_to_noise")


def plain_model(task: Task) -> nn.Module:
    return task.model()


def bounded_model(task: Task) -> nn.Module:
    """The same width with weights of norm at most one, as the papers constrain it."""
    inputs, classes = task.x[0].numel(), int(task.y.max()) + 1
    return nn.Sequential(
        nw.nn.BoundedInput((inputs,), 1.0, mode="normalise"),
        nw.nn.SpectralLinear(inputs, 64),
        nw.nn.GroupSort(2),
        nw.nn.SpectralLinear(64, classes),
    )


ESTIMATORS = {
    "Clipped, R 0.5": (plain_model, nw.Clipped(0.5), 0.2),
    "Clipped by layer, R 0.35": (plain_model, nw.Clipped(0.35, per="layer"), 0.2),
    "global, R 2": (plain_model, nw.Clipped(2.0, rule="global"), 0.2),
    "automatic": (plain_model, nw.Clipped(0.5, rule="automatic"), 0.2),
    "Factored, R 0.35": (plain_model, nw.Factored(0.35), 0.2),
    "InputScaled": (bounded_model, nw.InputScaled(), 0.2),
    "Propagated": (bounded_model, nw.Propagated(), 0.2),
    "Propagated, loss clip 0.5": (bounded_model, nw.Propagated(loss_clip=0.5), 0.2),
}


def run(task: Task, make, estimator, rate: float, seed: int) -> BiasSeries:
    """Train with noise and measure every tenth step."""
    torch.manual_seed(seed)
    model, generator = make(task), torch.Generator().manual_seed(seed)
    engine = nw.gradients.GradientEngine(model, task.loss, estimator, expected=float(BATCH))
    series, n = BiasSeries(every=10, chunk=BATCH), len(task.x)
    for _ in range(STEPS):
        chosen = torch.rand(n, generator=generator) < BATCH / n
        x, y = task.x[chosen], task.y[chosen]
        found = engine.sum(x, y)
        spread = sum(g.sensitivity * g.size**0.5 for g in found.groups)
        noise = {
            g.name: SIGMA * (g.sensitivity * spread / g.size**0.5) ** 0.5 for g in found.groups
        }
        series.observe(model, task.loss, x, y, estimator, noise_multiplier=SIGMA, batch_size=BATCH)
        with torch.no_grad():
            for group in found.groups:
                for name, value in group.gradients.items():
                    drawn = torch.randn(value.shape, generator=generator) * noise[group.name]
                    engine.parameters[name].sub_(value + drawn, alpha=rate / BATCH)
            for module in model.modules():
                if hasattr(module, "project_"):
                    module.project_()
    return series


def series_of(dataset: str, label: str, seed: int, watch: Stopwatch) -> tuple[np.ndarray, ...]:
    """One run's columns, steps and number of layers at their limit: read, or trained."""
    kept = CACHE / f"bias-{dataset}-{label}-{STEPS}-seed-{seed}.npz"
    if not kept.exists():
        watch.check()
        make, estimator, rate = ESTIMATORS[label]
        if dataset not in TASKS:
            TASKS[dataset] = tabular(dataset)
        series = run(TASKS[dataset], make, estimator, rate, seed)
        frame = series.to_frame().query("group == 'all'")
        edge = len(series.measurements[-1].boundary)
        np.savez(kept, rows=frame[list(COLUMNS)], steps=frame["step"], edge=edge)
    with np.load(kept) as stored:
        return stored["rows"], stored["steps"], stored["edge"]


def main() -> None:
    watch = Stopwatch(arguments(__doc__).seconds)
    for dataset, title in DATASETS.items():
        figure, axes = plt.subplots(2, 4, figsize=(13, 6.0), layout="constrained", sharex=True)
        print(f"\n{title}\n\n| estimator | when | " + " | ".join(COLUMNS) + " | boundary |")
        print("|---" * (3 + len(COLUMNS)) + "|")
        for ax, label in zip(axes.flat, ESTIMATORS, strict=True):
            many = [series_of(dataset, label, seed, watch) for seed in range(RUNS)]
            rows, steps = np.stack([found[0] for found in many]), many[0][1]
            edge = np.mean([found[2] for found in many])
            mean, low, high = rows.mean(0), rows.min(0), rows.max(0)
            for column, colour, text in (
                (0, "#2b6a99", "|g - bounded(g)|"),
                (1, "#c1440e", "|bounded(g)|"),
            ):
                ax.plot(steps, mean[:, column], color=colour, label=text)
                ax.fill_between(
                    steps, low[:, column], high[:, column], color=colour, alpha=0.2, linewidth=0
                )
            ax.set(title=label, ylim=(0, None))
            for when, row, spread in (
                ("first", mean[0], rows[:, 0].std(0, ddof=1)),
                ("last", mean[-1], rows[:, -1].std(0, ddof=1)),
            ):
                cells = " | ".join(f"{v:.3f} ± {s:.3f}" for v, s in zip(row, spread, strict=True))
                print(f"| {label} | {when} | {cells} | {edge:.1f} |", flush=True)
        handles, texts = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, texts, loc="outside lower center", ncols=2)
        for ax in axes[1]:
            ax.set(xlabel="step")
        figure.suptitle(
            f"{title}: bias of the mean gradient, mean and range of {RUNS} runs (NOT private)"
        )
        figure.savefig(IMAGES / f"analysis_bias_{dataset}.png", dpi=90)
        plt.close(figure)


if __name__ == "__main__":
    main()
