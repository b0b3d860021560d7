"""What each tool says of training with known bugs, and how often correct training is accused.

Every tool sees the same trainings. Ours and the tests of *Finding private bugs* (Anonymous
2023) are two columns of one check. The audits get the scores of one canary with and without it;
jax-privacy's auditor judges exactly these scores too. What Opacus tests of its own engine is asked
of the same trainings (`opacus_tests`).
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch

from noisewise import debugging
from noisewise.auditing import Scores, Train, mutant_columns, records_like, two_worlds
from noisewise.cli.opacus_tests import failed_tests
from noisewise.debugging import check
from noisewise.debugging.mutants import CORRECT, PROGRAMS, Mutant, cases, with_bug, with_variant
from noisewise.privacy import PoissonGaussian, epsilon_of

__all__ = [
    "TOOLS",
    "Contest",
    "Store",
    "judge_correct",
    "judge_mutant",
    "version_of_the_code",
]

#: T1 to T4 of Anonymous (2023), under the names that they have here.
_PAPER = ("loss-and-clip", "loss-and-batch", "distance-and-clip", "law-of-noise")
_DELTA, _NOISE, _SIGNIFICANCE = 1e-5, 0.6, 0.001


@dataclass
class Store:
    """Results that are computed once and kept in a file, so that a long contest can be cut."""

    path: Path | None = None
    known: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is not None and self.path.exists():
            lines = self.path.read_text("utf-8").splitlines()
            self.known = dict(json.loads(line) for line in lines if line)

    def get(self, key: str, compute: Callable[[], Any]) -> Any:
        """Return a result, computing it if it is not there yet."""
        if key not in self.known:
            torch.manual_seed(0)
            self.known[key] = compute()
            if isinstance(self.known[key], dict):
                self.known[key]["code"] = version_of_the_code()
            if self.path is not None:
                with self.path.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps([key, self.known[key]]) + "\n")
        return self.known[key]


@cache
def version_of_the_code() -> str:
    """Return a fingerprint of the bug finder and its bugs, which every result is kept with."""
    folder = Path(debugging.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".py", ".csv"):
            digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _check(bug: str, effort: str) -> dict[str, Any]:
    subject = with_bug(bug)
    began = time.process_time()
    findings = check(
        subject.train,
        subject.case.model,
        subject.case.loss,
        example=subject.case.example,
        effort=effort,
        **subject.declared,
    )
    failed = [r.test for r in findings.results if r.status == "failed"]
    return {
        "verdict": findings.verdict,
        "bugs": findings.bugs,
        "failed": failed,
        "seconds": round(time.process_time() - began, 2),
    }


def _audits(bug: str) -> list[bool]:
    subject = with_bug(bug)
    case, train = subject.case, cast("Train", subject.train)
    return list(mutant_columns(train, case.model, case.loss, case.example))


def _canary_scores(bug: str, steps: int) -> Scores:
    subject = with_bug(bug)
    torch.manual_seed(0)
    model = subject.case.model()
    init = {name: value.detach().clone() for name, value in model.state_dict().items()}
    others = records_like(subject.case.example, 4)
    canary = records_like(subject.case.example, 1, scale=12)
    size = float(torch.stack([p.detach().norm() for p in model.parameters()]).norm())
    return two_worlds(
        cast("Train", subject.train),
        init=init,
        data=others,
        canary=canary,
        clip=0.2,
        noise_multiplier=_NOISE,
        repeats=300,
        lr=size / 20,
        steps=steps,
    )


def _jax_privacy(bug: str) -> bool:
    """Whether jax-privacy's auditor refutes the claim from the scores of one canary."""
    auditing = importlib.import_module("jax_privacy.auditing")
    caught = False
    for steps in (1, 3):
        claimed = epsilon_of(PoissonGaussian(_NOISE, 1.0, steps), delta=_DELTA)
        try:
            scores = _canary_scores(bug, steps)
        except ValueError:
            # Scores that are not finite, or a canary without effect.
            continue
        auditor = auditing.CanaryScoreAuditor(scores.inside, scores.outside)
        found = auditor.epsilon_from_gdp(_SIGNIFICANCE / 2, _DELTA)
        # Its Gaussian bound is large for scores that hardly differ; its direct one must agree
        # that they differ at all.
        differ = auditor.epsilon_clopper_pearson(_SIGNIFICANCE / 2, _DELTA) > 0
        caught = caught or bool(found > claimed and differ)
    return caught


def _opacus_tests(bug: str) -> list[str]:
    subject = with_bug(bug)
    return failed_tests(subject.case, subject.train)


@dataclass(frozen=True)
class Tool:
    """One column of the leader table."""

    name: str
    catches: Callable[[Store, str, str], bool]
    needs: str = ""

    @property
    def installed(self) -> bool:
        """Whether the tool can be run here."""
        return not self.needs or importlib.util.find_spec(self.needs) is not None


def _checked(store: Store, bug: str, effort: str) -> dict[str, Any]:
    found: dict[str, Any] = store.get(f"check {effort}: {bug}", lambda: _check(bug, effort))
    return found


def _paper(store: Store, bug: str, effort: str, tests: set[str]) -> bool:
    return bool(set(_checked(store, bug, effort)["failed"]) & tests)


TOOLS = (
    Tool("noisewise debug", lambda s, b, e: bool(_checked(s, b, e)["verdict"] == "bug")),
    Tool("Anonymous (2023), T1 to T4", lambda s, b, e: _paper(s, b, e, set(_PAPER))),
    Tool("Anonymous (2023), T1 to T3", lambda s, b, e: _paper(s, b, e, set(_PAPER[:3]))),
    Tool(
        "noisewise audit, gradient canary",
        lambda s, b, e: bool(s.get(f"audit: {b}", lambda: _audits(b))[0]),
    ),
    Tool(
        "jax-privacy auditing, gradient canary",
        lambda s, b, e: bool(s.get(f"jax-privacy: {b}", lambda: _jax_privacy(b))),
        "jax_privacy",
    ),
    Tool(
        "noisewise audit, black box",
        lambda s, b, e: bool(s.get(f"audit: {b}", lambda: _audits(b))[1]),
    ),
    Tool(
        "tests of Opacus 1.6, asked of this training",
        lambda s, b, e: bool(s.get(f"opacus tests: {b}", lambda: _opacus_tests(b))),
    ),
)


def judge_mutant(
    store: Store, mutant: Mutant, effort: str, tools: tuple[Tool, ...]
) -> dict[str, Any]:
    """Return what the tools say of one bug."""
    caught = {tool.name: tool.catches(store, mutant.bug, effort) for tool in tools}
    return {"caught": caught, **_checked(store, mutant.bug, effort)}


def judge_correct(store: Store, index: int, effort: str) -> dict[str, Any]:
    """Check one correct variant on one model with seeds of its own."""

    def compute() -> dict[str, Any]:
        names = [name for name in cases() if name != "MLP with dropout"]
        variant = CORRECT[index % len(CORRECT)]
        turn = index // len(CORRECT)
        # The larger models cost more; every fifth round takes one of them.
        name = variant.case or (names[4 + turn % 2] if turn % 5 == 4 else names[turn % 4])
        subject = with_variant(variant, name)
        findings = check(
            subject.train,
            subject.case.model,
            subject.case.loss,
            example=subject.case.example,
            effort=effort,
            seed=100 + index,
            **subject.declared,
        )
        return {
            "variant": variant.name,
            "model": "its own" if variant.name in PROGRAMS else name,
            "verdict": findings.verdict,
            "bugs": findings.bugs,
            "expected": "private so far" if variant.judged else "not judged",
        }

    found: dict[str, Any] = store.get(f"correct {effort} {index}", compute)
    return found


@dataclass
class Contest:
    """All results, and the tables that are made of them."""

    effort: str
    tools: tuple[Tool, ...]
    bugs: list[tuple[Mutant, dict[str, Any]]] = field(default_factory=list)
    correct: list[dict[str, Any]] = field(default_factory=list)

    def leaders(self) -> list[tuple[str, str, str]]:
        """Return tool, bugs caught, and why it was not run if it was not."""
        rows = []
        for tool in TOOLS:
            if tool not in self.tools:
                why = "not installed here" if not tool.installed else "not asked for"
                rows.append((tool.name, "", why))
                continue
            caught = sum(row["caught"][tool.name] for _, row in self.bugs)
            rows.append((tool.name, f"{caught} of {len(self.bugs)}", ""))
        return rows

    @property
    def alarms(self) -> list[dict[str, Any]]:
        """Correct trainings that were accused."""
        return [row for row in self.correct if row["verdict"] == "bug"]

    def markdown(self) -> str:
        """Return the tables as Markdown."""
        lines = ["| tool | bugs caught | |", "|---|---|---|"]
        lines += [f"| {name} | {count} | {why} |" for name, count, why in self.leaders()]
        lines += ["", "| round | bugs | caught by noisewise debug | missed |", "|---|---|---|---|"]
        for label in dict.fromkeys(mutant.round for mutant, _ in self.bugs):
            mine = [(m, row) for m, row in self.bugs if m.round == label]
            missed = [m.bug for m, row in mine if row["verdict"] != "bug"]
            lines.append(
                f"| {label} | {len(mine)} | {len(mine) - len(missed)} | "
                f"{', '.join(missed) or 'none'} |"
            )
        lines += ["", "| # | bug | what | source | other tools that see it | findings |"]
        lines += ["|---|---|---|---|---|---|"]
        for mutant, row in self.bugs:
            others = [tool.name for tool in self.tools[1:] if row["caught"].get(tool.name)]
            lines.append(
                f"| {mutant.number} | {mutant.bug} | {mutant.what} | {mutant.source} | "
                f"{', '.join(others)} | {', '.join(row['bugs']) or 'MISSED'} |"
            )
        if self.correct:
            lines += [
                "",
                f"Correct variants: {len(self.correct)} runs, {len(self.alarms)} accused.",
            ]
            lines += ["", "| variant | runs | private so far | not judged | accused |"]
            lines += ["|---|---|---|---|---|"]
            for variant in CORRECT:
                rows = [row for row in self.correct if row["variant"] == variant.name]
                count = {v: sum(r["verdict"] == v for r in rows) for v in _COLUMNS}
                cells = " | ".join(str(count[v]) for v in _COLUMNS)
                lines.append(f"| {variant.name} | {len(rows)} | {cells} |")
        return "\n".join(lines) + "\n"


_COLUMNS = ("private so far", "not judged", "bug")
