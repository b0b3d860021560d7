"""Every estimator of ours, audited through the code that trains.

``python -m benchmarks audit_estimators`` runs at each release and writes the table of
``docs/auditing-estimators.md``; NOISEWISE_AUDIT_REPEATS sets the steps in each world, and rows
that are done are kept in the file that NOISEWISE_AUDIT_STORE names, so that a run can be cut.
`private-steps` takes steps of a run with and without a canary in a batch that the auditor chose.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks import table
from benchmarks._our_engine import ESTIMATORS, LOSS_CLIPPED
from noisewise import __version__
from noisewise.auditing import AuditResult, audit
from noisewise.gradients import bounded_sum
from noisewise.privacy import PoissonGaussian, Statement
from noisewise.training import Plan, PrivateRun, deviations, make_private

PAGE = Path(__file__).parent.parent / "docs" / "auditing-estimators.md"
NIGHTLY = 1 - 1e-6
DELTA = 1e-5
SIGMA = 0.7


def claim(noise: float = SIGMA, rate: float = 1.0, steps: int = 1) -> Statement:
    event = PoissonGaussian(noise, rate, steps)
    return Statement.derive(event, delta=DELTA, mechanism="our engine")


def private_run(model: nn.Module, estimator: object, seed: int = 1, **plan: object) -> PrivateRun:
    given = {"noise_multiplier": SIGMA, "steps": 10, "batch_size": 16, "sample_rate": 0.1, **plan}
    whole = Plan(gradients=estimator, delta=DELTA, seed=seed, **given)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return make_private(model, optimizer, nn.CrossEntropyLoss(), None, whole)


def whitened(model: nn.Module, estimator: object, record: tuple[Tensor, Tensor]) -> float:
    """How far a record moves the sum, in units of the noise: at most one."""
    groups = bounded_sum(model, nn.CrossEntropyLoss(), *record, estimator).groups
    sizes = [group.size for group in groups]
    noise = deviations([group.sensitivity for group in groups], sizes, 1.0, "optimal")
    parts = [
        sum(float(g.double().square().sum()) for g in group.gradients.values()) / deviation**2
        for group, deviation in zip(groups, noise, strict=True)
    ]
    return sum(parts) ** 0.5


def attack(name: str, repeats: int = 2500) -> tuple[AuditResult, float]:
    """Audit an estimator with the strongest of some random canaries."""
    build, choose = {**ESTIMATORS, **LOSS_CLIPPED}[name]
    torch.manual_seed(3)
    model = build()
    data = (torch.randn(15, 8), torch.randint(4, (15,)))
    clip = 50.0 if "global" in name else 0.3
    estimator = choose(clip, model, data)
    drawn = [
        (scale * torch.randn(1, 8), torch.tensor([label]))
        for scale in (0.3, 3.0, 30.0)
        for label in (0, 1, 2, 3)
        for _ in range(4)
    ]
    canary = max(drawn, key=lambda record: whitened(model, estimator, record))
    run = private_run(model, estimator)
    result = audit(
        run, claimed=claim(), confidence=NIGHTLY, data=data, canary=canary, repeats=repeats
    )
    run.close()
    return result, whitened(model, estimator, canary)


def judged(name: str, repeats: int) -> tuple[str, ...]:
    """Audit one estimator; return its row."""
    result, strength = attack(name, repeats)
    claimed = result.claimed_epsilon or 1.0
    return (
        name,
        f"{strength:.3f}",
        f"{claimed:.3f}",
        f"{result.epsilon_lower_bound:.3f}",
        f"{result.epsilon_lower_bound / claimed:.2f}",
        {True: "holds", False: "REFUTED", None: "not judged"}[result.passed],
    )


def main() -> None:
    """Audit all of them and write the page."""
    repeats = int(os.environ.get("NOISEWISE_AUDIT_REPEATS", "2500"))
    store = os.environ.get("NOISEWISE_AUDIT_STORE")
    done: dict[str, tuple[str, ...]] = {}
    if store and Path(store).exists():
        lines = Path(store).read_text("utf-8").splitlines()
        done = {row[0]: tuple(row) for row in map(json.loads, lines)}
    rows = []
    for name in {**ESTIMATORS, **LOSS_CLIPPED}:
        row = done.get(name) or judged(name, repeats)
        if store and name not in done:
            with Path(store).open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(row) + "\n")
        rows.append(row)
        print("  " + " | ".join(row), flush=True)
    header = ("estimator", "reach", "claimed", "lower bound", "tightness", "claim")
    table("Audit of every estimator", header, rows)
    lines = [
        "# Audit of every estimator",
        "",
        f"Version {__version__}, written by `python -m benchmarks audit_estimators`, which is run "
        "at each release. One step of a `PrivateRun` on 15 records with and without the strongest "
        f"of 48 random canaries, {repeats} steps in each world, sigma = {SIGMA}, C = 0.3 (50 for "
        f"global clipping), delta = {DELTA:g}, add-remove, Gaussian bound at a level of 1 - 1e-6, "
        "all thresholds. *Reach* is how far the canary moves the sum, of the 1 that it may.",
        "",
        "| " + " | ".join(header) + " |",
        "|" + "---|" * len(header),
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
    ]
    PAGE.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
