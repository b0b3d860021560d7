"""Which tests catch which bugs, and how often correct code is accused.

``python -m benchmarks mutants`` prints the table bug by bug and runs 200 checks of correct
variants; it writes both to ``docs/debugging-mutants.md``. Columns for audits are filled if
`noisewise.auditing` is there (see `audit_columns`).
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from noisewise.debugging import Findings, check
from noisewise.debugging.mutants import BUGS, CORRECT, UNSEEN, Mutant, Training, Variant

PAGE = Path(__file__).parent.parent / "docs" / "debugging-mutants.md"
Case = tuple[Callable[[], nn.Module], Callable[[Tensor, Tensor], Tensor], tuple[Tensor, Tensor]]


def mlp(inputs: int = 8, outputs: int = 4) -> nn.Module:
    hidden = [nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(16, outputs))


def cnn() -> nn.Module:
    front = [nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Conv2d(4, 6, 3, stride=2), nn.GroupNorm(2, 6)]
    return nn.Sequential(*front, nn.ReLU(), nn.Flatten(), nn.Linear(6 * 4, 3))


class Reader(nn.Module):
    """A transformer of one layer that classifies short texts."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 12)
        self.layer = nn.TransformerEncoderLayer(12, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(12, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits."""
        out: Tensor = self.head(self.layer(self.embedding(tokens)).mean(1))
        return out


def cases() -> dict[str, Case]:
    """Return models with their losses and examples: hard and soft labels, numbers, texts."""
    soft = torch.softmax(torch.randn(4, 4), -1)
    return {
        "MLP": (mlp, functional.cross_entropy, (torch.randn(4, 8), torch.randint(4, (4,)))),
        "MLP, soft labels": (mlp, functional.cross_entropy, (torch.randn(4, 8), soft)),
        "MLP, regression": (
            lambda: mlp(6, 2),
            functional.mse_loss,
            (torch.randn(4, 6), torch.randn(4, 2)),
        ),
        "MLP, binary": (
            lambda: mlp(5, 1),
            functional.binary_cross_entropy_with_logits,
            (torch.randn(4, 5), torch.tensor([[0.0], [1.0], [1.0], [0.0]])),
        ),
        "CNN": (cnn, functional.cross_entropy, (torch.randn(2, 1, 8, 8), torch.tensor([0, 2]))),
        "transformer": (
            Reader,
            functional.cross_entropy,
            (torch.randint(20, (2, 5)), torch.tensor([0, 2])),
        ),
    }


def examine(
    settings: dict[str, Any], declared: dict[str, Any], case: str = "MLP", seed: int = 0
) -> Findings:
    """Check one training of the mutants' family on one model."""
    model, loss, example = cases()[case]
    train = Training(model, loss, **settings)
    return check(train, model, loss, example=example, seed=seed, **declared)


def audit_columns(bug: str | None) -> tuple[str, str]:
    """Say whether a gradient-canary audit and a black-box audit notice a bug.

    The auditing package registers itself by a function ``mutant_columns(train, model_fn,
    loss_fn, example)`` that returns two booleans.
    """
    if importlib.util.find_spec("noisewise.auditing") is None:
        return "-", "-"
    auditing = importlib.import_module("noisewise.auditing")
    columns = getattr(auditing, "mutant_columns", None)
    if columns is None:
        return "-", "-"
    model, loss, example = cases()["MLP"]
    caught = columns(Training(model, loss, bug=bug), model, loss, example)
    return "yes" if caught[0] else "", "yes" if caught[1] else ""


def judge(mutant: Mutant) -> tuple[str, ...]:
    """Return one row of the table."""
    findings = examine({"bug": mutant.bug, **mutant.settings}, {})
    failed = [r.test for r in findings.results if r.status == "failed"]
    paper = [t for t in failed if t.startswith("T")]
    ours = [t for t in failed if not t.startswith("T")]
    return (
        str(mutant.number),
        mutant.bug,
        "yes" if set(paper) & {"T1", "T2", "T3"} else "",
        "yes" if paper else "",
        *audit_columns(mutant.bug),
        ", ".join(ours),
        ", ".join(findings.bugs) or "MISSED",
    )


def false_alarms(runs: int) -> list[tuple[str, ...]]:
    """Check correct variants over models and seeds; return a row per variant."""
    names = list(cases())
    alarms: dict[str, list[str]] = {variant.name: [] for variant in CORRECT}
    counts = dict.fromkeys(alarms, 0)
    for index in range(runs):
        variant: Variant = CORRECT[index % len(CORRECT)]
        # The larger models cost more; every fifth run takes one of them.
        turn = index // len(CORRECT)
        case = names[4 + turn % 2] if turn % 5 == 4 else names[turn % 4]
        settings, declared = dict(variant.settings), dict(variant.declared)
        findings = examine(settings, declared, case, seed=100 + index)
        counts[variant.name] += 1
        if not findings.ok:
            alarms[variant.name].append(f"{case}, seed {100 + index}: {', '.join(findings.bugs)}")
            print(
                f"  false alarm: {variant.name}: {alarms[variant.name][-1]}\n{findings}", flush=True
            )
    return [(name, str(counts[name]), "; ".join(alarms[name]) or "none") for name in alarms]


def main() -> None:
    """Run everything; NOISEWISE_MUTANT_RUNS sets the number of correct runs."""
    torch.manual_seed(0)
    runs = int(os.environ.get("NOISEWISE_MUTANT_RUNS", "200"))
    began = time.perf_counter()
    rows = []
    for mutant in BUGS:
        rows.append(judge(mutant))
        print("  " + " | ".join(rows[-1]), flush=True)
    spent = time.perf_counter() - began
    correct = false_alarms(runs) if runs else []
    for row in correct:
        print("  " + " | ".join(row), flush=True)
    unseen = [judge(mutant) for mutant in UNSEEN]
    text = page(rows, correct, spent / len(rows)) + after_the_freeze(unseen)
    PAGE.write_text(text, encoding="utf-8")


def after_the_freeze(rows: list[tuple[str, ...]]) -> str:
    """Return the section on the bugs that were written after the tests were frozen."""
    caught = sum(row[7] != "MISSED" for row in rows)
    lines = [
        "",
        "## Fifteen bugs written after the tests were frozen",
        "",
        "The tests were frozen in a commit of their own; these were written afterwards and the "
        f"tests not touched again. **Caught: {caught} of {len(rows)}.**",
        "",
        "| # | bug | findings |",
        "|---|---|---|",
        *(f"| {row[0]} | {row[1]} | {row[7]} |" for row in rows),
        "",
    ]
    return "\n".join(lines)


def page(rows: list[tuple[str, ...]], correct: list[tuple[str, ...]], each: float) -> str:
    """Return the results as a page of the documentation."""
    total = len(rows)
    caught = [sum(bool(row[i]) for row in rows) for i in (2, 3)]
    ours = sum(bool(row[6]) for row in rows)
    found = sum(row[7] != "MISSED" for row in rows)
    runs = sum(int(row[1]) for row in correct)
    alarms = sum(row[2] != "none" for row in correct)
    lines = [
        "# Which tests catch which bugs",
        "",
        "Written by `python -m benchmarks mutants`. Every bug is one line changed in a correct "
        "DP-SGD (`noisewise.debugging.mutants`); numbers 39 and up were found in issues of real "
        "libraries, cited in `mutants/catalogue.py`. Columns: tests of the paper without and with "
        "its Kolmogorov-Smirnov test, a gradient-canary audit and a black-box audit (filled when "
        "`noisewise.auditing` offers them), our tests that failed, and what `check` says.",
        "",
        f"Caught: paper T1-T3 **{caught[0]} of {total}**, T1-T4 **{caught[1]} of {total}**, "
        f"P and E1-E9 **{ours} of {total}**, all together **{found} of {total}**; "
        f"{each:.1f} s a check (MLP with 500 parameters, shared core).",
        "",
        "| # | bug | T1-T3 | T1-T4 | canary | black box | ours | findings |",
        "|---|---|---|---|---|---|---|---|",
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
        f"## Correct variants: {runs} runs, variants accused: {alarms}",
        "",
        "Models: MLP with hard labels, soft labels, binary labels, regression; a CNN; a "
        "transformer. Another seed of data, weights and model in every run.",
        "",
        "| variant | runs | alarms |",
        "|---|---|---|",
        *("| " + " | ".join(row) + " |" for row in correct),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
