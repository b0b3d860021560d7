"""What a check found: one sentence per bug, the evidence, and what could not be tested."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from noisewise.debugging.statistics import LEVEL, family_bound

__all__ = ["VERDICTS", "Finding", "Findings", "TestResult"]

#: The three verdicts, with the exit code of a command that ends with them.
VERDICTS = {"private so far": 0, "bug": 1, "not judged": 3}
_LIMITS = {
    "records": "synthetic records only: a bug that needs a special record may stay hidden",
    "outside": "what happens before `data` is handed over and after the weights are returned",
}


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
    #: The question that must be answered before a training is called private so far.
    aspect: str = ""
    #: Whether the test has nothing to do unless the user names an option or a claim.
    optional: bool = False

    @property
    def skipped(self) -> bool:
        """Whether the test could not run."""
        return self.status == "skipped"

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
    def verdict(self) -> str:
        """One of `VERDICTS`.

        ``bug`` if a defect was found. ``not judged`` if a question that matters could not be
        answered, or most tests could not run. Only otherwise ``private so far``.
        """
        if self.findings:
            return "bug"
        return "not judged" if self.unanswered or self._mostly_skipped else "private so far"

    @property
    def ok(self) -> bool:
        """Whether the verdict is ``private so far``."""
        return self.verdict == "private so far"

    @property
    def exit_code(self) -> int:
        """What a command should end with: 0 private so far, 1 bug, 3 not judged."""
        return VERDICTS[self.verdict]

    @property
    def unanswered(self) -> dict[str, str]:
        """Questions that matter and could not be answered, and why."""
        return {r.aspect: r.summary for r in self.results if r.status == "skipped" and r.aspect}

    @property
    def unseen(self) -> dict[str, str]:
        """What remains unseen even if nothing was found: tests that did not run, and limits."""
        return {**self.skipped, **_LIMITS}

    @property
    def _mostly_skipped(self) -> bool:
        # Tests of an option or a claim are out of place where there is none.
        tests = [
            r for r in self.results if r.test != "preflight" and not (r.optional and r.skipped)
        ]
        skipped = sum(result.status == "skipped" for result in tests)
        return not tests or 2 * skipped > len(tests)

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
        if self.verdict == "private so far":
            console.print(
                f"[bold green]Private so far.[/] {len(self.ran)} of {len(self.results)} tests ran "
                f"({', '.join(self.ran)}); no bug was found, which is no proof. Unseen: "
                f"{', '.join(self.skipped) or 'nothing'} (skipped), and what synthetic records "
                "cannot show."
            )
        if self.verdict == "not judged":
            console.print(
                f"[bold yellow]Not judged.[/] Only {len(self.ran)} of {len(self.results)} tests "
                "ran, and that is too little."
            )
            for why in dict.fromkeys(self.unanswered.values()):
                aspects = [aspect for aspect, reason in self.unanswered.items() if reason == why]
                console.print(f"  [yellow]{escape(', '.join(aspects))}[/]: {escape(why)}")
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
            "verdict": self.verdict,
            "ok": self.ok,
            "unanswered": self.unanswered,
            "unseen": self.unseen,
            "bugs": self.bugs,
            "skipped": self.skipped,
            "notes": self.notes,
            "false_alarm_probability": self.false_alarm_probability,
            "results": results,
        }
        return json.dumps(facts, default=plain, indent=2)

    def __str__(self) -> str:
        if self.ok:
            return f"private so far: {len(self.ran)} tests ran ({len(self.skipped)} skipped)"
        if not self.findings:
            reasons = dict.fromkeys(self.unanswered.values())
            why = "; ".join(
                ", ".join(a for a, reason in self.unanswered.items() if reason == why) + f": {why}"
                for why in reasons
            )
            return f"not judged: {why or f'only {len(self.ran)} tests ran'}"
        return "\n".join(str(finding) for finding in self.findings)
