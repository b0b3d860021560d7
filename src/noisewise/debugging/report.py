"""A self-contained HTML page: findings, tests, and the figures of paper 002 for this code."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from noisewise.debugging.findings import Findings
from noisewise.debugging.statistics import LEVEL

__all__ = ["write"]

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;width:100%}td,th{padding:.35rem .6rem;text-align:left;
vertical-align:top;border-bottom:1px solid #ddd}.failed{color:#b00020;font-weight:600}
.passed{color:#1b7f3b}.skipped{color:#8a6d00}.explained{color:#00688b}
.bug{border-left:4px solid #b00020;padding:.2rem 1rem;margin:1rem 0;background:#fff5f5}
img{max-width:100%}code{background:#f3f3f3;padding:0 .2rem}
"""


def write(findings: Findings, path: Path) -> Path:
    """Write the page and return its path."""
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>DP training check</title>"
    ]
    parts.append(f"<style>{_STYLE}</style><h1>Check of a DP training</h1>")
    verdict = {
        "private so far": f"Private so far: {', '.join(findings.ran)} found no bug, no proof",
        "bug": f"{len(findings.bugs)} bug(s) found",
        "not judged": "Not judged: too little could be tested",
    }[findings.verdict]
    colour = {"private so far": "passed", "bug": "failed", "not judged": "skipped"}
    parts.append(f"<p class='{colour[findings.verdict]}'>{verdict}</p>")
    parts += [
        f"<p>{html.escape(aspect)}: {html.escape(why)}</p>"
        for aspect, why in findings.unanswered.items()
    ]
    for finding in findings.findings:
        evidence = "; ".join(f"{k}: {_short(v)}" for k, v in finding.evidence.items())
        adjusted = findings.adjusted(finding.p_value)
        level = f", p = {adjusted:.1e} after correction" if finding.p_value > 0 else ""
        parts.append(
            f"<div class='bug'><h3><code>{html.escape(finding.name)}</code></h3>"
            f"<p>{html.escape(finding.sentence)}</p><p><small>{finding.test}, component: "
            f"{html.escape(finding.component)}{level}. {html.escape(evidence)}</small></p></div>"
        )
    parts.append("<h2>Tests</h2><table><tr><th>test</th><th>result</th><th>what was seen</th></tr>")
    for result in findings.results:
        title = f"{html.escape(result.title)}: " if result.title != result.test else ""
        parts.append(
            f"<tr><td>{result.test}</td><td class='{result.status}'>{result.status}</td>"
            f"<td>{title}{html.escape(result.summary)}</td></tr>"
        )
    parts.append("</table>")
    parts += [f"<p>Note: {html.escape(note)}</p>" for note in findings.notes]
    picture = _figures(findings)
    if picture:
        parts.append("<h2>The paper's figures for this code</h2>")
        parts.append(f"<img alt='loss change and distances' src='data:image/png;base64,{picture}'>")
    parts.append(
        f"<p><small>{findings.runs} runs of the training on synthetic data, {findings.seconds:.1f} "
        f"s. {findings.comparisons} p-values, each at level {LEVEL:g}: correct code is accused by "
        f"chance with probability below {findings.false_alarm_probability:.0e}. A test that was "
        "skipped proves nothing, and no test proves the absence of all bugs.</small></p></html>"
    )
    path.write_text("\n".join(parts), encoding="utf-8")
    return path


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{k} {_short(v)}" for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(_short(v) for v in value[:8])
    return str(value)


def _figures(findings: Findings) -> str:
    figures = {r.test: r.figure for r in findings.results if r.figure}
    drawers: dict[str, Callable[[Any, Any], None]] = {
        "T1": _against_clip,
        "T2": _against_batch,
        "T3": _distances,
        "T4": _law,
    }
    drawn = [test for test in drawers if test in figures]
    if not drawn:
        return ""
    # A figure of its own, so that the user's pyplot state is left alone.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(drawn), 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(drawn), squeeze=False)[0]
    for axis, test in zip(axes, drawn, strict=True):
        drawers[test](axis, figures[test])
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def _against_clip(axis: Any, data: Any) -> None:
    axis.semilogx(data["clip"], data["change"], "o-", label="this code")
    axis.axhline(float(data["change"][-1]), color="grey", ls=":", label="no clipping would be flat")
    axis.set(title="T1: loss change against C", xlabel="clipping norm C", ylabel="change of loss")
    axis.legend(fontsize=8)


def _against_batch(axis: Any, data: Any) -> None:
    sizes = data["batch"]
    values = np.maximum(data["change"], 1e-12 * max(float(np.max(data["change"])), 1e-300))
    axis.loglog(sizes, values, "o-", label="this code")
    axis.loglog(sizes, values[0] / sizes, ":", color="green", label="per record: slope -1")
    axis.loglog(sizes, np.full(len(sizes), values[0]), ":", color="red", label="per batch: slope 0")
    axis.set(title="T2: loss change against B", xlabel="batch size B", ylabel="|change of loss|")
    axis.legend(fontsize=8)


def _distances(axis: Any, data: Any) -> None:
    axis.plot(data["clip"], data["distance"], "o-", label="this code")
    axis.plot(data["control_clip"], data["control"], "s--", color="grey", label="sigma = 0")
    expected = data["distance"][0] * data["clip"] / data["clip"][0]
    axis.plot(data["clip"], expected, ":", color="green", label="proportional to C")
    axis.set(
        title="T3: distance against C",
        xlabel="clipping norm C",
        ylabel="mean distance between seeds",
    )
    axis.legend(fontsize=8)


def _law(axis: Any, data: Any) -> None:
    values = data["standard"]
    axis.hist(values, bins=60, density=True, alpha=0.6, label="this code")
    grid = np.linspace(-4, 4, 200)
    axis.plot(grid, np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi), color="green", label="N(0, 1)")
    axis.set(title="T4: noise over lr C σ / B", xlabel="standardised noise", ylabel="density")
    axis.legend(fontsize=8)
