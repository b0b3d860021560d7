"""Bias of every estimator over training: paper 000 figure 3, thesis figure 5.3.3.

Writes docs/images/analysis_bias_<dataset>.png and prints a table: |g - bounded(g)| and
|bounded(g)|, cosine, share of clipped records and signal to noise, at the start and the end of
training on Dropout and Adult. Averaged over two runs (the papers: 500). NOT private numbers, of
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
STEPS, BATCH, SIGMA, RUNS = 200, 256, 1.0, 2
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
    engine = nw.gradients.GradientEngine(model, task.loss, estimator)
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


def main() -> None:
    watch = Stopwatch(arguments(__doc__).seconds)
    for dataset, title in DATASETS.items():
        task = tabular(dataset)
        figure, axes = plt.subplots(2, 4, figsize=(13, 5.6), layout="constrained", sharex=True)
        print(f"\n{title}\n\n| estimator | when | " + " | ".join(COLUMNS) + " | boundary |")
        print("|---" * (3 + len(COLUMNS)) + "|")
        for ax, (label, (make, estimator, rate)) in zip(axes.flat, ESTIMATORS.items(), strict=True):
            kept = CACHE / f"bias-{dataset}-{label}-{STEPS}-{RUNS}.npz"
            if not kept.exists():
                watch.check()
                many = [run(task, make, estimator, rate, seed) for seed in range(RUNS)]
                frames = [series.to_frame().query("group == 'all'") for series in many]
                np.savez(
                    kept,
                    mean=sum(frame[list(COLUMNS)].to_numpy() for frame in frames) / RUNS,
                    steps=frames[0]["step"].to_numpy(),
                    edge=np.mean([len(series.measurements[-1].boundary) for series in many]),
                )
            with np.load(kept) as stored:
                mean, steps, edge = stored["mean"], stored["steps"], float(stored["edge"])
            ax.plot(steps, mean[:, 0], color="#2b6a99", label="|g - bounded(g)|")
            ax.plot(steps, mean[:, 1], color="#c1440e", label="|bounded(g)|")
            ax.set(title=label, ylim=(0, None))
            for when, row in (("first", mean[0]), ("last", mean[-1])):
                cells = " | ".join(f"{value:.3f}" for value in row)
                print(f"| {label} | {when} | {cells} | {edge:.1f} |", flush=True)
        axes[0, 0].legend(fontsize="small")
        for ax in axes[1]:
            ax.set(xlabel="step")
        figure.suptitle(f"{title}: bias of the mean gradient, mean of {RUNS} runs (NOT private)")
        figure.savefig(IMAGES / f"analysis_bias_{dataset}.png", dpi=90)
        plt.close(figure)


if __name__ == "__main__":
    main()
