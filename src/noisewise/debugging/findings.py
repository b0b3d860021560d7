"""What a check found: one sentence per bug, the evidence, and what could not be tested."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from noisewise.debugging.statistics import LEVEL, family_bound

__all__ = ["Finding", "Findings", "TestResult"]


@dataclass(frozen=True)
class Finding:
    """One defect: a short name, the faulty component, a sentence, the numbers behind it."""

    name: str
    test: str
    component: str
    sentence: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    p_value: float = 0.0

    def __str__(self) -> str:
        return f"{self.name} [{self.test}, {self.component}]: {self.sentence}"


@dataclass(frozen=True)
class TestResult:
    """What one test did. `status` is ``passed``, ``failed``, ``skipped`` or ``explained``.

    A test of the paper is *explained* when it raised an alarm for a reason that a sharper
    test has shown to be harmless; the summary then says which.
    """

    test: str
    title: str
    status: str
    summary: str
    p_values: tuple[float, ...] = ()
    findings: tuple[Finding, ...] = ()
    figure: Mapping[str, Any] = field(default_factory=dict)

    # Tells pytest that this is no test class, in spite of its name.
    __test__ = False


@dataclass(frozen=True)
class Findings:
    """The result of :func:`noisewise.debugging.check`.

    Attributes
    ----------
    results
        One entry per test, in the order in which they ran.
    runs
        How often the training was called.
    seconds
        How long all of it took.
    notes
        Facts about the training that were noticed and are harmless, such as momentum.
    """

    results: tuple[TestResult, ...]
    runs: int
    seconds: float
    notes: tuple[str, ...] = ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All defects; the first is the likeliest root cause."""
        found: dict[str, Finding] = {}
        for result in self.results:
            for finding in result.findings:
                found.setdefault(finding.name, finding)
        return tuple(found.values())

    @property
    def ok(self) -> bool:
        """Whether no test found a defect. Skipped tests are listed in `skipped`."""
        return not self.findings

    @property
    def bugs(self) -> list[str]:
        """Short names of the defects."""
        return [finding.name for finding in self.findings]

    @property
    def ran(self) -> list[str]:
        """Tests that ran."""
        return [result.test for result in self.results if result.status != "skipped"]

    @property
    def skipped(self) -> dict[str, str]:
        """Tests that could not run, and why."""
        return {r.test: r.summary for r in self.results if r.status == "skipped"}

    @property
    def comparisons(self) -> int:
        """How many p-values were computed, which the correction for many tests needs."""
        return sum(len(result.p_values) for result in self.results)

    @property
    def false_alarm_probability(self) -> float:
        """Bound on the probability that correct code is accused by chance."""
        return family_bound(self.comparisons)

    def adjusted(self, p_value: float) -> float:
        """Return a p-value multiplied by the number of comparisons (Bonferroni)."""
        return min(1.0, p_value * max(1, self.comparisons))

    def caught_by(self, prefix: str) -> bool:
        """Whether a test whose name starts with `prefix` found a defect."""
        return any(r.status == "failed" and r.test.startswith(prefix) for r in self.results)

    def table(self, console: Console | None = None) -> None:
        """Print the findings and the tests."""
        console = console or Console(highlight=False)
        grid = Table(title="Tests", title_justify="left", pad_edge=False)
        grid.add_column("test", no_wrap=True)
        grid.add_column("result", no_wrap=True)
        grid.add_column("what was seen", overflow="fold")
        colours = {"passed": "green", "failed": "bold red", "explained": "cyan"}
        before = ""
        for result in self.results:
            colour = colours.get(result.status, "yellow")
            again = result.status == "skipped" and result.summary == before
            before = result.summary
            seen = f"{result.title}: " if result.title != result.test else ""
            seen += "for the same reason" if again else result.summary
            grid.add_row(result.test, f"[{colour}]{result.status}[/]", escape(seen))
        console.print(grid)
        for note in self.notes:
            console.print(f"[cyan]note[/] {escape(note)}")
        if self.ok:
            style = "yellow" if len(self.skipped) > len(self.ran) else "green"
            console.print(
                f"[bold {style}]No bug found.[/] {len(self.ran)} of {len(self.results)} tests ran; "
                "those that were skipped prove nothing."
            )
        for finding in self.findings:
            console.print(
                f"[bold red]{escape(finding.name)}[/] ({finding.test}, "
                f"{escape(finding.component)})\n  {escape(finding.sentence)}"
            )
        console.print(
            f"[dim]{self.runs} runs, {self.seconds:.1f} s, {self.comparisons} p-values at level "
            f"{LEVEL:g}: correct code is accused with probability below "
            f"{self.false_alarm_probability:.0e}[/]"
        )

    def report(self, path: str | Path) -> Path:
        """Write a self-contained HTML page with the paper's figures for this code."""
        from noisewise.debugging.report import write

        return write(self, Path(path))

    def to_json(self) -> str:
        """Return everything as JSON, for other tools."""

        def plain(value: Any) -> Any:
            return value.tolist() if hasattr(value, "tolist") else str(value)

        results = [
            {
                "test": r.test,
                "status": r.status,
                "summary": r.summary,
                "smallest_p_value": min(r.p_values, default=None),
                "findings": [vars(f) for f in r.findings],
            }
            for r in self.results
        ]
        facts = {
            "ok": self.ok,
            "bugs": self.bugs,
            "skipped": self.skipped,
            "notes": self.notes,
            "false_alarm_probability": self.false_alarm_probability,
            "results": results,
        }
        return json.dumps(facts, default=plain, indent=2)

    def __str__(self) -> str:
        if self.ok:
            return f"no bug found by {len(self.ran)} tests ({len(self.skipped)} skipped)"
        return "\n".join(str(finding) for finding in self.findings)


def worst(p_values: Sequence[float]) -> float:
    """Return the smallest p-value, 1 if there is none."""
    return min(p_values, default=1.0)
