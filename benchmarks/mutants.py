"""Which tests catch which bugs, and how often correct code is accused.

``python -m benchmarks mutants`` prints the table bug by bug and runs 200 checks of correct
variants; it writes both to ``docs/debugging-mutants.md``. About 25 minutes on one core. To do
it in pieces, name a file in NOISEWISE_MUTANT_STORE, where finished rows are kept and not run
again, and a number of seconds in NOISEWISE_MUTANT_SECONDS, after which the piece ends.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from noisewise.auditing import mutant_columns
from noisewise.debugging import Findings, check
from noisewise.debugging.mutants import (
    BUGS,
    CORRECT,
    FRESH,
    LATEST,
    UNSEEN,
    Mutant,
    Training,
    Variant,
)

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
    """Say whether a gradient-canary audit and a black-box audit notice a bug."""
    model, loss, example = cases()["MLP"]
    caught = mutant_columns(Training(model, loss, bug=bug), model, loss, example)
    return "yes" if caught[0] else "", "yes" if caught[1] else ""


def judge(mutant: Mutant, rows: Rows) -> tuple[str, ...]:
    """Return one row of the table, and the processor seconds that the check took."""
    number, bug, early, paper, ours, names, seconds = rows.get(
        f"check: {mutant.bug}", lambda: checked(mutant)
    )
    canary, black_box = rows.get(f"audit: {mutant.bug}", lambda: audit_columns(mutant.bug))
    return number, bug, early, paper, canary, black_box, ours, names, seconds


def checked(mutant: Mutant) -> tuple[str, ...]:
    """Return what the tests say of a mutant."""
    began = time.process_time()
    findings = examine({"bug": mutant.bug, **mutant.settings}, {})
    spent = time.process_time() - began
    failed = [r.test for r in findings.results if r.status == "failed"]
    paper = [t for t in failed if t.startswith("T")]
    ours = [t for t in failed if not t.startswith("T")]
    return (
        str(mutant.number),
        mutant.bug,
        "yes" if set(paper) & {"T1", "T2", "T3"} else "",
        "yes" if paper else "",
        ", ".join(ours),
        ", ".join(findings.bugs) or "MISSED",
        f"{spent:.2f}",
    )


def examine_correct(index: int) -> tuple[str, ...]:
    """Check a correct variant; return its name and the alarm, if there is one."""
    names = list(cases())
    variant: Variant = CORRECT[index % len(CORRECT)]
    # The larger models cost more; every fifth run takes one of them.
    turn = index // len(CORRECT)
    case = names[4 + turn % 2] if turn % 5 == 4 else names[turn % 4]
    findings = examine(dict(variant.settings), dict(variant.declared), case, seed=100 + index)
    alarm = "" if findings.ok else f"{case}, seed {100 + index}: {', '.join(findings.bugs)}"
    return variant.name, alarm


class Rows:
    """Rows that are computed once, kept in a file if one is named, within a time limit."""

    def __init__(self) -> None:
        name = os.environ.get("NOISEWISE_MUTANT_STORE")
        self.store = Path(name) if name else None
        self.known: dict[str, list[str]] = {}
        if self.store is not None and self.store.exists():
            lines = self.store.read_text("utf-8").splitlines()
            self.known = dict(json.loads(line) for line in lines)
        self.end = time.monotonic() + float(os.environ.get("NOISEWISE_MUTANT_SECONDS", "inf"))

    def get(self, key: str, compute: Callable[[], tuple[str, ...]]) -> tuple[str, ...]:
        """Return a row, computing it if it is not there yet."""
        if key not in self.known:
            if time.monotonic() > self.end:
                raise SystemExit(f"stopped before {key}; run again to go on")
            torch.manual_seed(0)
            self.known[key] = list(compute())
            print("  " + " | ".join((key, *self.known[key])), flush=True)
            if self.store is not None:
                with self.store.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps([key, self.known[key]]) + "\n")
        return tuple(self.known[key])


def main() -> None:
    """Run everything; NOISEWISE_MUTANT_RUNS sets the number of correct runs."""
    runs = int(os.environ.get("NOISEWISE_MUTANT_RUNS", "200"))
    rows = Rows()
    known, unseen, fresh, latest = (
        [judge(mutant, rows) for mutant in group] for group in (BUGS, UNSEEN, FRESH, LATEST)
    )
    correct = [rows.get(f"correct {i}", lambda i=i: examine_correct(i)) for i in range(runs)]
    text = page(known, correct) + after_the_freeze(unseen, fresh, latest)
    PAGE.write_text(text, encoding="utf-8")


def after_the_freeze(
    unseen: list[tuple[str, ...]], fresh: list[tuple[str, ...]], latest: list[tuple[str, ...]]
) -> str:
    """Return the sections on the bugs that were written after the tests were frozen."""

    def caught(rows: list[tuple[str, ...]]) -> str:
        return f"{sum(row[7] != 'MISSED' for row in rows)} of {len(rows)}"

    missed = ", ".join(row[1] for row in latest if row[7] == "MISSED") or "none"
    lines = [
        "",
        "## Bugs written after the tests were frozen",
        "",
        "What counts is what the tests catch without having been made for it. Each time the tests "
        "were frozen in a commit of their own, bugs were written, and only then were the tests "
        "run. (Since the third freeze they were changed only where they accused correct code: E1 "
        "of noise that rightly differs between tensors, E7 of averaged weights.)",
        "",
        "| freeze | bugs | caught at that time | missed | what was added then | caught now |",
        "|---|---|---|---|---|---|",
        "| first | 15 | **13** | twelve-uniforms, poisson-truncated | kurtosis of many samples "
        f"(E1), batches that are cut off (E4) | {caught(unseen)} |",
        "| second | 5 | **4** | incomplete-batch-dropped | a dataset that is no multiple of the "
        f"batch size, records that are never drawn (E4) | {caught(fresh)} |",
        f"| third | {len(latest)} | **{caught(latest).split()[0]}** | {missed} | nothing | "
        f"{caught(latest)} |",
        "",
        "| # | bug | canary | black box | findings |",
        "|---|---|---|---|---|",
        *(
            f"| {row[0]} | {row[1]} | {row[4]} | {row[5]} | {row[7]} |"
            for row in (*unseen, *fresh, *latest)
        ),
        "",
    ]
    return "\n".join(lines)


def page(rows: list[tuple[str, ...]], correct: list[tuple[str, ...]]) -> str:
    """Return the results as a page of the documentation."""
    total = len(rows)
    paper, four, canary, black_box, ours = (sum(bool(row[i]) for row in rows) for i in range(2, 7))
    found = sum(row[7] != "MISSED" for row in rows)
    seconds = sorted(float(row[8]) for row in rows)[total // 2]
    alarms: dict[str, list[str]] = {variant.name: [] for variant in CORRECT}
    for name, alarm in correct:
        alarms[name].append(alarm)
    accused = sum(any(found) for found in alarms.values())
    lines = [
        "# Which tests catch which bugs",
        "",
        "Written by `python -m benchmarks mutants`. Every bug is one line changed in a correct "
        "DP-SGD (`noisewise.debugging.mutants`); numbers 39 and up were found in issues of real "
        "libraries, cited in `mutants/catalogue.py`. Columns: tests of the paper without and with "
        "its Kolmogorov-Smirnov test; a gradient-canary audit (`noisewise.auditing.screen`: 300 "
        "runs with a record of large gradient and 300 without, after one step and after three) and "
        "a black-box audit (losses of 120 canary records after one training), together at a "
        "level of 99.9 %; our tests that failed; and what `check` says.",
        "",
        f"Caught: paper T1-T3 **{paper} of {total}**, T1-T4 **{four}**, gradient-canary audit "
        f"**{canary}**, black-box audit **{black_box}**, P and E1-E9 **{ours}**, `check` as a "
        f"whole **{found} of {total}**; {seconds:.1f} s of processor time a check (median; MLP "
        "with 500 parameters).",
        "",
        "| # | bug | T1-T3 | T1-T4 | canary | black box | ours | findings |",
        "|---|---|---|---|---|---|---|---|",
        *("| " + " | ".join(row[:8]) + " |" for row in rows),
        "",
        f"## Correct variants: {len(correct)} runs, variants accused: {accused}",
        "",
        "Models: MLP with hard labels, soft labels, binary labels, regression; a CNN; a "
        "transformer. Another seed of data, weights and model in every run. When these were first "
        "run, one of the first 75 was accused (weight averaging, seed 116, of stale gradients). "
        "E7 was repaired, that case became a test, and every row that the repair could touch was "
        "run again.",
        "",
        "| variant | runs | alarms |",
        "|---|---|---|",
        *(
            f"| {name} | {len(found)} | {'; '.join(filter(None, found)) or 'none'} |"
            for name, found in alarms.items()
        ),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
