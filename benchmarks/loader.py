"""What drawing a Poisson batch costs beside the private step that follows.

The CNN of 18.8 thousand parameters on images of Fashion-MNIST's size, 60,000 of them in memory,
expected batch 2048: the loader's share of a step, for a fast and a slow estimator. And the same
records through a map-style dataset, item by item, as torch's own loader reads them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks import interleaved, table
from noisewise.gradients import Clipped, Factored
from noisewise.training import Plan, make_private
from noisewise.training.records import MapRecords

RECORDS, BATCH = 60_000, 2048


def network() -> nn.Module:
    """The small ConvNet of the image experiments."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(16, 32, 4, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(288, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def main() -> None:
    torch.manual_seed(0)
    x, y = torch.rand(RECORDS, 1, 28, 28), torch.randint(10, (RECORDS,))
    held = x[:BATCH], y[:BATCH]
    rows = []
    for name, estimator in (("Factored", Factored(1.0)), ("Clipped", Clipped(1.0, per="layer"))):
        plan = Plan(
            gradients=estimator, noise_multiplier=1.0, steps=10**6, batch_size=BATCH, delta=1e-6
        )
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        run = make_private(model, optimizer, nn.CrossEntropyLoss(), (x, y), plan)
        batches = iter(run.loader)
        seconds = interleaved(
            {"batch": lambda it=batches: next(it), "step": lambda r=run: r.step(*held)}, repeats=9
        )
        share = seconds["batch"] / (seconds["batch"] + seconds["step"])
        rows.append(
            (
                name,
                f"{1e3 * seconds['batch']:.1f}",
                f"{1e3 * seconds['step']:.0f}",
                f"{100 * share:.1f} %",
            )
        )
        run.close()
    table(
        f"Loader beside a step, {RECORDS:,} records, expected batch {BATCH}",
        ("", "batch [ms]", "step [ms]", "loader's share"),
        rows,
    )
    compare_loaders(x, y)


def compare_loaders(x: torch.Tensor, y: torch.Tensor) -> None:
    """Ours from memory and item by item, against torch's shuffled loader."""
    plan = Plan(noise_multiplier=1.0, steps=10**6, batch_size=BATCH, delta=1e-6)

    def ours(data: object) -> Callable[[], object]:
        model = nn.Linear(2, 2)  # never trained: only its loader is used
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = make_private(model, optimizer, nn.CrossEntropyLoss(), data, plan)
        return iter(run.loader).__next__

    def forever() -> object:
        while True:
            yield from DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=True)

    shuffled = forever()
    seconds = interleaved(
        {
            "noisewise, tensors": ours((x, y)),
            "noisewise, map-style": ours(MapRecords(TensorDataset(x, y))),
            "torch, shuffled": lambda: next(shuffled),
        },
        repeats=9,
    )
    base = seconds["torch, shuffled"]
    table(
        "A batch of 2048 images",
        ("", "[ms]", "speed / torch's"),
        [(name, f"{1e3 * s:.1f}", f"{base / s:.1f}") for name, s in seconds.items()],
    )


if __name__ == "__main__":
    main()
