"""How long a check takes: processor seconds and runs of the training, by model and effort.

``python -m benchmarks debugging``. The training is the correct one of the mutants, whose
gradients are computed record by record; most of the time is its own. Processor time, so that
a busy machine changes little; what a second is worth, a loop of matrix products says.
"""

from __future__ import annotations

import os
import time

import torch
from torch import nn
from torch.nn import functional

from benchmarks import table
from noisewise.debugging import check
from noisewise.debugging.mutants import Case, Training, cases

SETTINGS = (
    ("MLP", "quick"),
    ("MLP", "default"),
    ("MLP", "thorough"),
    ("MLP for images", "default"),
    ("CNN", "default"),
    ("CNN", "thorough"),
    ("transformer", "default"),
    ("transformer", "thorough"),
)


def images() -> nn.Module:
    """Three layers for images of 28 x 28 pixels."""
    hidden = [nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(32, 10))


def one(case: str, effort: str) -> tuple[str, ...]:
    """Check a correct training and return the row of the table."""
    torch.manual_seed(0)
    large = Case(images, functional.cross_entropy, (torch.randn(2, 784), torch.tensor([0, 9])))
    chosen = {**cases(), "MLP for images": large}[case]
    model, loss, example = chosen.model, chosen.loss, chosen.example
    size = sum(p.numel() for p in model().parameters())
    began = time.process_time()
    findings = check(Training(model, loss), model, loss, example=example, effort=effort)
    spent = time.process_time() - began
    found = ", ".join(findings.bugs) or "none"
    return case, f"{size}", effort, f"{findings.runs}", f"{spent:.1f}", found


def main() -> None:
    """Measure all settings; NOISEWISE_DEBUG_SETTINGS picks some by number."""
    torch.set_num_threads(1)
    picked = os.environ.get("NOISEWISE_DEBUG_SETTINGS")
    numbers = [int(n) for n in picked.split(",")] if picked else range(len(SETTINGS))
    began = time.process_time()
    matrix = torch.randn(500, 500)
    for _ in range(200):
        matrix = torch.nn.functional.normalize(matrix @ matrix)
    unit = time.process_time() - began
    rows = [one(*SETTINGS[n]) for n in numbers]
    header = ("model", "parameters", "effort", "runs", "cpu seconds", "findings")
    table(f"Checks of correct training (200 products of 500 x 500: {unit:.2f} s)", header, rows)


if __name__ == "__main__":
    main()
