"""The accuracies in docs/patches.md are those of the stored runs of experiments/patches.py."""

import json
import re
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
NAMES = {"cifar10": "CIFAR-10", "fashion_mnist": "Fashion-MNIST", "mnist": "MNIST"}


def rows():
    """One row of the page's table for every dataset and epsilon that was run."""
    lines = (ROOT / "experiments" / "patches_runs.jsonl").read_text().splitlines()
    found = {}
    for run in map(json.loads, lines):
        assert run["judged_by"] == "test images"
        assert run["stated"] <= run["epsilon"]
        assert run["delta"] == 1e-5
        assert not run["settings"]
        found.setdefault((run["dataset"], run["epsilon"]), {})[run["seed"]] = run["accuracy"]
    for (name, epsilon), by_seed in found.items():
        each = [by_seed[seed] for seed in sorted(by_seed)]
        shown = ", ".join(f"{accuracy:.2f}" for accuracy in each)
        yield f"| {NAMES[name]} | {epsilon:g} | {np.mean(each):.2f} | {shown} |"


def test_the_page_shows_every_stored_run_and_no_other():
    page = (ROOT / "docs" / "patches.md").read_text()
    stored = list(rows())
    assert stored
    shown = re.findall(r"^\| (?:CIFAR-10|Fashion-MNIST|MNIST) \|.*\|$", page, re.MULTILINE)
    assert len(shown) == len(stored)
    for row in stored:
        assert any(line.startswith(row) for line in shown), row
