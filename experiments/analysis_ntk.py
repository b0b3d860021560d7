"""Kernels under clipping on wine and on small MNIST.

Table 1 of Bu, Wang, Dai and Long (2021), measured.

Writes docs/images/analysis_ntk.png and prints the tables. Left: predicted and measured change of
the loss by one step. Middle: smallest quadratic form over R. Right: slope of the loss over R,
relative to that without clipping; above zero the loss grows.
"""

from __future__ import annotations

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from analysis_data import Task, small_mnist, wine
from analysis_training import IMAGES, Stopwatch, arguments
from torch import nn

from noisewise.analysis.ntk import analyse, kernels, table_of_kernels

WAYS = (("clip", "model"), ("global", "model"), ("clip", "layer"), ("global", "layer"))
NAMES = {"clip": "local", "global": "global", "model": "flat", "layer": "layerwise"}


def trained(task: Task, steps: int, rate: float) -> nn.Module:
    torch.manual_seed(0)
    model = task.model().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    x, y = task.x.double(), task.y.double() if not task.classify else task.y
    for _ in range(steps):
        optimizer.zero_grad()
        task.loss(model(x), y).backward()
        optimizer.step()
    return model


def show(rows: list[dict], title: str) -> None:
    print(f"\n{title}\n")
    print("| clipping | clipped % | asymmetry | smallest x'Kx | smallest Re eigenvalue | dL/dt |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        name = "none" if row["rule"] == "none" else f"{row['rule']}, {row['per']}"
        print(
            f"| {name} | {100 * row['clipped']:.0f} | {row['asymmetry']:.3f} "
            f"| {row['smallest_quadratic']:.3g} | {row['smallest_eigenvalue']:.3g} "
            f"| {row['slope']:.3g} |"
        )


def main() -> None:
    Stopwatch(arguments(__doc__).seconds)
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.9), layout="constrained")
    task = wine()
    model = trained(task, 200, 0.1)
    x, y = task.x[:150].double(), task.y[:150].double()
    show(table_of_kernels(model, task.loss, x, y, clip=0.5), "wine, 150 records, R 0.5")
    known = kernels(model, x)
    free = analyse(model, task.loss, x, y, rule="none", found=known)
    steps = np.geomspace(1e-4, 1, 13)
    for rule, per in (("none", "model"), *WAYS[:3:2]):
        found = analyse(model, task.loss, x, y, clip=0.5, rule=rule, per=per, found=known)
        ratio = [found.loss_change(model, task.loss, x, y, step=s).ratio for s in steps]
        label = "no clipping" if rule == "none" else f"{NAMES[rule]}, {NAMES[per]}"
        axes[0].semilogx(steps, ratio, marker=".", label=label)
    axes[0].set(xlabel="step size", title="measured over predicted change (wine)")
    norms = np.geomspace(0.03, 30, 16)
    for rule, per in WAYS:
        found = [analyse(model, task.loss, x, y, clip=float(r), rule=rule, per=per, found=known)
                 for r in norms]  # fmt: skip
        label = f"{NAMES[rule]}, {NAMES[per]}"
        scale = free.positivity.scale
        axes[1].plot(norms, [f.positivity.smallest_quadratic / scale for f in found], label=label)
        axes[2].plot(norms, [-f.slope / free.slope for f in found], label=label)
    axes[1].set(xscale="log", xlabel="R", title="smallest x'Kx over largest x'Hx (wine)")
    axes[2].set(xscale="log", xlabel="R", title="dL/dt over |dL/dt| without clipping (wine)")
    for ax in axes:
        ax.axhline(0 if ax is not axes[0] else 1, color="0.7", linewidth=0.8)
        ax.legend(fontsize="small")
    figure.savefig(IMAGES / "analysis_ntk.png", dpi=90)
    task = small_mnist(400, 10)
    for steps_done, when in ((0, "at the start"), (300, "after 300 steps")):
        model = trained(task, steps_done, 0.2)
        x, y = task.x[:100].double(), task.y[:100]
        rows = table_of_kernels(model, task.loss, x, y, clip=1.0)
        show(rows, f"small MNIST, 100 records x 10 outputs, R 1, {when}")


if __name__ == "__main__":
    main()
