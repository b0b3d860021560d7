"""Accuracy, epsilon and certified accuracy of one private model, at several radii.

    python experiments/robustness.py
    python experiments/robustness.py --report

A dense Lipschitz network (784, 64, 10; every weight of norm at most one, `GroupSort`) learns from
pixels in [0, 1] by `InputScaled`: no gradient is formed or clipped for a record. The constants that
bound a record's influence then bound what moving a picture can do. Radii are Euclidean, of pixels
in [0, 1]. Beside what is certified stands what projected gradient attacks leave, an upper bound on
what any certificate could show, both on the same first 1,000 test images.

A line of ``experiments/robustness_runs.jsonl`` for each run; what is there is not trained again.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn

import noisewise as nw
from noisewise.datasets import load_images
from noisewise.nn import BoundedInput, GroupSort, SpectralLinear
from noisewise.nn.losses import CrossEntropy
from noisewise.training import Ema

RUNS = Path(__file__).with_name("robustness_runs.jsonl")
PAGE = Path(__file__).parents[1] / "docs" / "robustness.md"
BEGIN, END = "<!-- begin of the table -->", "<!-- end of the table -->"
RADII = (0.1, 0.25, 0.5, 1.0)
EPSILONS = {"mnist": (2.93, 1.0), "fashion_mnist": (2.7, 1.0)}
#: The loss sees logits times this: large for accuracy, small for wide margins.
TEMPERATURES = (16.0, 64.0)
LOSS_CLIP, RATE, STEPS, SAMPLE_RATE = 0.3, 0.6, 60, 0.1
JUDGED = 1000


def prepare(images: Any) -> Tensor:
    """Pixels in [0, 1] as rows, each less its own mean: a projection, which lengthens no move."""
    x = torch.from_numpy(images).float().flatten(1) / 255
    return x - x.mean(1, keepdim=True)


def network() -> nn.Sequential:
    """Return the network; no row is longer than 14, so that the input bound changes none."""
    return nn.Sequential(
        BoundedInput((784,), 14.01),
        SpectralLinear(784, 64),
        GroupSort(2),
        SpectralLinear(64, 10),
    )


def attacked(model: nn.Module, x: Tensor, y: Tensor, radius: float) -> float:
    """Accuracy that is left by projected gradient ascent on the lead of the best wrong class."""
    right = model(x).argmax(1) == y
    for restart in range(2):
        torch.manual_seed(restart)
        move = torch.randn_like(x) * (radius / math.sqrt(x.shape[1]))
        for _ in range(20):
            move.requires_grad_(True)
            output = model(x + move)
            own = output.gather(1, y[:, None])[:, 0]
            lead = output.scatter(1, y[:, None], -math.inf).max(1).values - own
            (slope,) = torch.autograd.grad(lead.sum(), move)
            with torch.no_grad():
                right &= lead <= 0
                length = slope.norm(dim=1, keepdim=True).clamp_min(1e-30)
                move = move + 0.2 * radius * slope / length
                move = move * (radius / move.norm(dim=1, keepdim=True)).clamp(max=1.0)
    return float(right.double().mean())


def trained(data: str, epsilon: float, temperature: float, seed: int, split: bool) -> Any:
    """One run."""
    images = load_images(data)
    x, y = prepare(images.x_train), torch.from_numpy(images.y_train).long()
    judged, answers = prepare(images.x_test), torch.from_numpy(images.y_test).long()
    if split:
        x, judged, y, answers = x[:-10000], x[-10000:], y[:-10000], y[-10000:]
    torch.manual_seed(seed)
    model = network()
    plan = nw.Plan(
        gradients=nw.InputScaled(loss_clip=LOSS_CLIP),
        epsilon=epsilon,
        delta=1e-5,
        steps=STEPS,
        sample_rate=SAMPLE_RATE,
        seed=seed,
    )
    start = time.process_time()
    fitted = nw.fit(
        model,
        (x, y),
        plan,
        loss=CrossEntropy(temperature=temperature),
        optimizer=lambda p: torch.optim.SGD(p, RATE, momentum=0.9),
        averaging=Ema(0.95),
        metrics=False,
        progress=False,
    )
    seconds = time.process_time() - start
    model = fitted.model.eval()
    some, labels = judged[:JUDGED], answers[:JUDGED]
    with torch.no_grad():
        accuracy = float((model(judged).argmax(1) == answers).double().mean())
    radius = nw.certified_radius(model, some, labels)
    return {
        "accuracy": round(100 * accuracy, 2),
        "stated": fitted.statement().epsilon,
        "certified": [round(100 * float((radius >= r).double().mean()), 2) for r in RADII],
        "attacked": [round(100 * attacked(model, some, labels, r), 2) for r in RADII],
        "seconds": round(seconds, 1),
    }


def done() -> list[dict[str, Any]]:
    """What was trained before."""
    return [json.loads(line) for line in RUNS.read_text().splitlines()] if RUNS.exists() else []


def markdown(runs: list[dict[str, Any]]) -> str:
    """Return the table of the page: means of the seeds on the test images."""
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for run in runs:
        if not run["split"]:
            key = (run["data"], run["epsilon"], run["temperature"])
            found.setdefault(key, []).append(run)
    wide = " | ".join(f"within {radius:g}" for radius in RADII)
    lines = [f"| pictures | epsilon | temperature | accuracy | {wide} | seeds |"]
    lines.append("|---|" + "---:|" * (len(RADII) + 4))
    for (data, epsilon, temperature), own in sorted(found.items()):
        cells = []
        for index in range(len(RADII)):
            sure, left = (
                mean(run[kind][index] for run in own) for kind in ("certified", "attacked")
            )
            cells.append(f"{sure:.1f} ({left:.1f})")
        accuracy = f"{mean(run['accuracy'] for run in own):.2f}"
        title = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST"}[data]
        lines.append(
            f"| {title} | {epsilon:g} | {temperature:g} | {accuracy} | {' | '.join(cells)} "
            f"| {len(own)} |"
        )
    return "\n".join(lines)


def report() -> None:
    """Write the table into the page."""
    before, rest = PAGE.read_text("utf-8").split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{markdown(done())}\n\n{END}{after}", "utf-8")


def main() -> None:
    """Train what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--data", nargs="+", default=list(EPSILONS))
    parser.add_argument("--temperatures", type=float, nargs="+", default=list(TEMPERATURES))
    parser.add_argument("--split", action="store_true", help="judge by records held back")
    parser.add_argument("--report", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.report:
        report()
        return
    for seed in args.seeds:
        for data in args.data:
            for epsilon in EPSILONS[data]:
                for temperature in args.temperatures:
                    setting = {
                        "data": data,
                        "epsilon": epsilon,
                        "temperature": temperature,
                        "seed": seed,
                        "split": args.split,
                    }
                    if any(all(run[k] == v for k, v in setting.items()) for run in done()):
                        continue
                    line = {**setting, **trained(**setting)}
                    with RUNS.open("a") as file:
                        file.write(json.dumps(line) + "\n")
                    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
