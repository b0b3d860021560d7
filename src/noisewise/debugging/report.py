"""A self-contained HTML page: findings, tests, and the figures of Anonymous (2023)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from noisewise.debugging.findings import Findings
from noisewise.debugging.statistics import LEVEL
from noisewise.reports import Page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["write"]

_NEXT = {
    "private so far": [
        "Write down what was not seen: it is listed below.",
        "Put the check into your tests: the fixture assert_private.",
        "Audit the claimed epsilon: noisewise audit.",
    ],
    "bug": [
        "Begin with the first finding: it is the likeliest cause of the others.",
        "Each name has a page with a broken and a repaired program: docs, Every finding.",
        "Until it is repaired, the printed epsilon of this training means nothing.",
    ],
    "not judged": [
        "Answer the questions below: each says what was missing.",
        "An adapter tells how to run code as it stands: docs, Any stack.",
    ],
}


def write(findings: Findings, path: Path) -> Path:
    """Write the page and return its path."""
    large, mood, sentence = {
        "private so far": (
            "private so far",
            "good",
            f"{', '.join(findings.ran)} found no bug. That is no proof.",
        ),
        "bug": (
            f"{len(findings.bugs)} bug{'s' if len(findings.bugs) > 1 else ''} found",
            "bad",
            f"The likeliest cause: {(findings.bugs or [''])[0]}.",
        ),
        "not judged": ("not judged", "unsure", "Too little could be tested."),
    }[findings.verdict]
    page = Page("Check of a DP training", "What the training does to synthetic records.")
    page.answer(
        ("Does it do what its epsilon promises?", large, sentence),
        (
            "How sure is this",
            f"{findings.runs} runs",
            [
                f"{findings.seconds:.1f} s, {findings.comparisons} p-values, each at level "
                f"{LEVEL:g}.",
                "Correct code is accused by chance with probability below "
                f"{findings.false_alarm_probability:.0e}."
                if findings.comparisons
                else "No statistical test was run.",
            ],
        ),
        mood=mood,  # type: ignore[arg-type]
        steps=_NEXT[findings.verdict],
    )
    if findings.findings:
        page.heading("Findings")
    for finding in findings.findings:
        evidence = "; ".join(f"{k}: {_short(v)}" for k, v in finding.evidence.items())
        adjusted = findings.adjusted(finding.p_value)
        level = f", p = {adjusted:.1e} after correction" if finding.p_value > 0 else ""
        page.finding(
            finding.name,
            finding.sentence,
            f"{finding.test}, component: {finding.component}{level}. {evidence}",
        )
    if findings.unanswered:
        page.heading("Questions without an answer")
        page.table(("question", "why"), findings.unanswered.items(), words=True)
    pictures = _figures(findings)
    if pictures:
        page.heading("What clipping and noise do").figures(*pictures)
    page.heading("Tests").table(
        ("test", "result", "what was seen"),
        [
            (
                result.test,
                result.status,
                (f"{result.title}: " if result.title != result.test else "") + result.summary,
            )
            for result in findings.results
        ],
        words=True,
        marked=1,
    )
    for note in findings.notes:
        page.paragraph(f"Note: {note}")
    page.paragraph(
        "A test that was skipped proves nothing, and no test proves the absence of all bugs."
    )
    return page.reproduce().write(path)


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{k} {_short(v)}" for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(_short(v) for v in value[:8])
    return str(value)


def _figures(findings: Findings) -> list[tuple[Figure, str]]:
    """Return a picture for each test that kept what it needs, with a caption."""
    figures = {r.test: r.figure for r in findings.results if r.figure}
    drawers: dict[str, tuple[Callable[[Any, Any], None], str]] = {
        "loss-and-clip": (
            _against_clip,
            "Does a smaller C shorten the step? Without clipping it would not",
        ),
        "loss-and-batch": (_against_batch, "Is every record clipped, or only their mean?"),
        "distance-and-clip": (_distances, "Does the noise grow with C?"),
        "law-of-noise": (_law, "Is the noise what it should be, in size and shape?"),
    }
    import matplotlib

    # Figures of their own, so that the user's pyplot state is left alone.
    from matplotlib.figure import Figure

    found = []
    with matplotlib.rc_context({"font.size": 13, "lines.linewidth": 2.5}):
        for test, (draw, caption) in drawers.items():
            if test in figures:
                figure = Figure(figsize=(5.6, 4.8), layout="constrained")
                draw(figure.subplots(), figures[test])
                found.append((figure, f"{test} of Anonymous (2023): {caption}"))
    return found


def _against_clip(axis: Any, data: Any) -> None:
    axis.semilogx(data["clip"], data["change"], "o-", label="this code")
    axis.axhline(float(data["change"][-1]), color="grey", ls=":", label="no clipping would be flat")
    axis.set(title="loss change against C", xlabel="clipping norm C", ylabel="change of loss")
    axis.legend(fontsize=11)


def _against_batch(axis: Any, data: Any) -> None:
    sizes = data["batch"]
    values = np.maximum(data["change"], 1e-12 * max(float(np.max(data["change"])), 1e-300))
    axis.loglog(sizes, values, "o-", label="this code")
    axis.loglog(sizes, values[0] / sizes, ":", color="green", label="per record: slope -1")
    axis.loglog(sizes, np.full(len(sizes), values[0]), ":", color="red", label="per batch: slope 0")
    axis.set(title="loss change against B", xlabel="batch size B", ylabel="|change of loss|")
    axis.legend(fontsize=11)


def _distances(axis: Any, data: Any) -> None:
    axis.plot(data["clip"], data["distance"], "o-", label="this code")
    axis.plot(data["control_clip"], data["control"], "s--", color="grey", label="sigma = 0")
    expected = data["distance"][0] * data["clip"] / data["clip"][0]
    axis.plot(data["clip"], expected, ":", color="green", label="proportional to C")
    axis.set(
        title="distance against C",
        xlabel="clipping norm C",
        ylabel="mean distance between seeds",
    )
    axis.legend(fontsize=11)


def _law(axis: Any, data: Any) -> None:
    values = data["standard"]
    axis.hist(values, bins=60, density=True, alpha=0.6, label="this code")
    grid = np.linspace(-4, 4, 200)
    axis.plot(grid, np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi), color="green", label="N(0, 1)")
    axis.set(title="noise over lr C σ / B", xlabel="standardised noise", ylabel="density")
    axis.legend(fontsize=11)
