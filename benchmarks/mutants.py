"""The contest of bugs: one pass over all of them, 300 correct runs, and the page of both.

``python -m benchmarks mutants`` takes about twenty minutes of one core. Finished rows are kept in
the file that NOISEWISE_MUTANT_STORE names, each with a fingerprint of the code, and
NOISEWISE_MUTANT_SECONDS ends a piece; the page ``docs/debugging-mutants-table.md`` says how much
has been run, and with how many versions of the code. ``noisewise bench mutants`` is the same
contest with every test and every tool for every bug.

A bug is checked at quick effort, and if nothing is found at default effort. What other tools say
is taken from the store where it is known; NOISEWISE_MUTANT_OTHERS=4 runs them, and nothing else,
on every fourth bug of the catalogue, and NOISEWISE_MUTANT_OTHERS="ninth freeze" on a round.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from noisewise.cli.mutant_contest import TOOLS, Store, judge_correct
from noisewise.debugging import check
from noisewise.debugging.mutants import CORRECT, ROUNDS, Mutant, mutants, with_bug

PAGE = Path(__file__).parent.parent / "docs" / "debugging-mutants-table.md"
#: Tests of Anonymous (2023), T1 to T4 in this order.
PAPER = ("loss-and-clip", "loss-and-batch", "distance-and-clip", "law-of-noise")
#: How other tools are run, or which entry of what is kept under a name is theirs.
KEYS = {
    "Anonymous (2023), T1 to T4": ("paper", 0),
    "Anonymous (2023), T1 to T3": ("paper", 1),
    "noisewise audit, gradient canary": ("audit", 0),
    "jax-privacy auditing, gradient canary": ("jax-privacy", None),
    "noisewise audit, black box": ("audit", 1),
    "tests of Opacus 1.6, asked of this training": ("opacus tests", None),
}


def first_findings(bug: str) -> dict[str, Any]:
    """Check a bug until something is found: at quick effort, and else at default effort."""
    subject = with_bug(bug)
    case = subject.case
    row: dict[str, Any] = {}
    for effort in ("quick", "default"):
        found = check(
            subject.train,
            case.model,
            case.loss,
            example=case.example,
            effort=effort,
            fail_fast=True,
            **subject.declared,
        )
        row = {"verdict": found.verdict, "bugs": found.bugs, "effort": effort}
        if found.verdict == "bug":
            break
    return row


def paper(bug: str) -> list[bool]:
    """Return what T1 to T4, and T1 to T3, say by themselves."""
    subject = with_bug(bug)
    case, tests = subject.case, ("preflight", *PAPER)
    found = check(
        subject.train,
        case.model,
        case.loss,
        example=case.example,
        tests=tests,
        **subject.declared,
    )
    failed = {result.test for result in found.results if result.status == "failed"}
    return [bool(failed & set(PAPER)), bool(failed & set(PAPER[:3]))]


def run_others(store: Store, which: str, end: float) -> None:
    """Run the other tools on every so manieth bug, or on a round."""
    audits = [tool for tool in TOOLS if tool.name in KEYS and KEYS[tool.name][0] != "paper"]
    chosen = list(mutants()[:: int(which)] if which.isdigit() else mutants(which))
    # In random order, so that a run which is cut is a sample of all rounds.
    random.Random(0).shuffle(chosen)
    for mutant in chosen:
        if time.monotonic() > end:
            return
        store.get(f"paper: {mutant.bug}", lambda bug=mutant.bug: paper(bug))
        for tool in audits:
            if tool.installed:
                tool.catches(store, mutant.bug, "default")


def judged(store: Store, mutant: Mutant) -> dict[str, Any] | None:
    """Return what is known about a bug: from a whole check, or from one that ended early."""
    for kind in ("check default", "first findings"):
        if f"{kind}: {mutant.bug}" in store.known:
            row: dict[str, Any] = store.known[f"{kind}: {mutant.bug}"]
            return row
    return None


def caught_by(store: Store, tool: str, bug: str) -> bool | None:
    """Return what another tool said, or None if it was not run."""
    key, index = KEYS[tool]
    row = store.known.get(f"{key}: {bug}")
    return None if row is None else bool(row if index is None else row[index])


def row_of(cells: list[Any]) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _versions(store: Store, bugs: list[dict[str, Any]]) -> list[str]:
    """Say with which code the rows were computed."""
    correct = [row for key, row in store.known.items() if key.startswith("correct ")]
    codes = Counter(row.get("code", "unknown") for row in [*bugs, *correct])
    if len(codes) == 1:
        (code,) = codes
        return [f"All rows are of one version of the code (fingerprint `{code}`)."]
    parts = ", ".join(f"{count} of `{code}`" for code, count in codes.most_common())
    return [f"Rows by version of the code (fingerprints): {parts}."]


def leaders(store: Store, chosen: Sequence[Mutant]) -> list[str]:
    """Return the table of what each other tool said of these bugs, where it was run."""
    known = [(mutant, judged(store, mutant)) for mutant in chosen]
    finder = {mutant.bug for mutant, row in known if row is not None and row["verdict"] == "bug"}
    lines = [row_of(["tool", "bugs caught", "of those it was run on", "of these noisewise debug"])]
    lines += ["|---|---|---|---|"]
    for tool in KEYS:
        said = {m.bug: caught_by(store, tool, m.bug) for m in chosen}
        run = [bug for bug, answer in said.items() if answer is not None]
        ours = sum(bug in finder for bug in run)
        lines.append(row_of([tool, sum(bool(said[bug]) for bug in run), len(run), ours]))
    return lines


def page(store: Store) -> str:
    """Return the tables, made of what the store holds."""
    known = [(mutant, judged(store, mutant)) for mutant in mutants()]
    done = [(mutant, row) for mutant, row in known if row is not None]
    caught = [mutant for mutant, row in done if row["verdict"] == "bug"]
    lines = [
        "# The contest of bugs: tables",
        "",
        "Written by `python -m benchmarks mutants`. A bug is checked at quick effort, and if that "
        "finds nothing at default effort, until a test finds something, so the findings of a bug "
        "may be the first of several. MLP with 484 parameters, and models of their own in the "
        "ninth round.",
        "",
        *_versions(store, [row for _, row in done]),
        "",
        "## One pass over all bugs",
        "",
        row_of(["round", "bugs", "run", "caught", "missed"]),
        "|---|---|---|---|---|",
    ]
    for label in ROUNDS:
        mine = [(m, row) for m, row in done if m.round == label]
        missed = [m.bug for m, row in mine if row["verdict"] != "bug"]
        count = len(mutants(label))
        lines.append(
            row_of([label, count, len(mine), len(mine) - len(missed), ", ".join(missed) or "none"])
        )
    lines.append(row_of(["**all**", len(known), len(done), len(caught), len(done) - len(caught)]))
    others = sum(f"jax-privacy: {mutant.bug}" in store.known for mutant, _ in known[::4])
    lines += ["", "## Other tools on the same trainings", ""]
    lines += [
        f"Of every fourth bug of the catalogue, {others} of {len(known[::4])} were run by all "
        "tools; [which ones](debugging-mutants.md#the-last-pass). The audits get 300 "
        "trainings with and 300 without one canary, of one step and of three, and hold them to the "
        "epsilon of sigma = 0.6 at a level of 99.9 %; jax-privacy's auditor judges such scores by "
        "its Gaussian bound. The tests of Opacus 1.6 are those of its own engine (a training "
        "without clipping and noise is plain, a long record moves the weights by C, noise has its "
        "length, seeds), asked of these trainings with their settings and tolerances.",
        "",
    ]
    lines += leaders(store, mutants())
    correct = [row for key, row in store.known.items() if key.startswith("correct ")]
    accused = [row for row in correct if row["verdict"] == "bug"]
    lines += [
        "",
        f"## Correct variants: {len(correct)} runs, {len(accused)} accused",
        "",
        f"Quick effort, {len(CORRECT)} variants; MLP with hard, soft and binary labels and with "
        "numbers, a CNN, a transformer, an MLP with dropout; another seed of data, weights and "
        "model in every run. Variants whose noisy gradient is hidden by signs or lengths must be "
        "`not judged`.",
        "",
        row_of(["variant", "runs", "private so far", "not judged", "accused"]),
        "|---|---|---|---|---|",
    ]
    for variant in CORRECT:
        rows = [row for row in correct if row["variant"] == variant.name]
        counts = [
            sum(row["verdict"] == verdict for row in rows)
            for verdict in ("private so far", "not judged", "bug")
        ]
        lines.append(row_of([variant.name, len(rows), *counts]))
    lines += ["", "## Bug by bug", "", row_of(["#", "bug", "what", "source", "findings"])]
    lines += ["|---|---|---|---|---|"]
    for mutant, row in known:
        found = "not run" if row is None else ", ".join(row["bugs"]) or "MISSED"
        lines.append(row_of([mutant.number, mutant.bug, mutant.what, mutant.source, found]))
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run what is not in the store yet and write the page."""
    name = os.environ.get("NOISEWISE_MUTANT_STORE")
    store = Store(Path(name) if name else None)
    end = time.monotonic() + float(os.environ.get("NOISEWISE_MUTANT_SECONDS", "inf"))
    which = os.environ.get("NOISEWISE_MUTANT_OTHERS")
    if which:
        run_others(store, which, end)
        for line in leaders(store, mutants(*([] if which.isdigit() else [which]))):
            print(line)
        return
    for mutant in mutants():
        if time.monotonic() > end:
            break
        if judged(store, mutant) is None:
            bug = mutant.bug
            store.get(f"first findings: {bug}", lambda bug=bug: first_findings(bug))
    for index in range(int(os.environ.get("NOISEWISE_MUTANT_RUNS", "300"))):
        if time.monotonic() > end:
            break
        judge_correct(store, index, "quick")
    PAGE.write_text(page(store), encoding="utf-8")
    print(f"  {PAGE}")


if __name__ == "__main__":
    main()
