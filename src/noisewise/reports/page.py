"""The page of every report: the answer first, then pictures, tables, the statement.

One file that needs no network: style and script (which reads only what is in the page) are inside.
"""

from __future__ import annotations

import base64
import html
import io
import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from noisewise.privacy import Statement, round_up
from noisewise.reports.chart import Chart

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Page", "command_line", "promised", "seeded"]

Mood = Literal["good", "unsure", "bad"]
Card = tuple[str, str, str | Sequence[str]]
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


class Page:
    """Build a page from top to bottom, then write it.

    Parameters
    ----------
    title : str
    lead : str
        A line under the title.

    Examples
    --------
    >>> page = Page("Report").heading("Numbers").table(("name", "value"), [("n", "5")])
    >>> page.to_html().startswith("<!doctype html>")
    True
    """

    def __init__(self, title: str, lead: str = "") -> None:
        self.title = title
        self._parts = [f"<h1>{html.escape(title)}</h1>"]
        self._moving = False
        if lead:
            self._parts.append(f'<p class="lead">{html.escape(lead)}</p>')

    def answer(self, *cards: Card, steps: Sequence[str], mood: Mood = "good") -> Page:
        """Say what a reader came for: cards of a question, a large answer and a sentence or more.

        The first card has the colour of `mood`; `steps` are what to do next.
        """
        cells = []
        for number, (question, large, more) in enumerate(cards):
            sentences = [more] if isinstance(more, str) else more
            text = "".join(f"<p>{html.escape(one)}</p>" for one in sentences if one)
            kind = f' class="{mood}"' if number == 0 else ""
            cells.append(
                f"<section{kind}><h2>{html.escape(question)}</h2>"
                f'<p class="big">{html.escape(large)}</p>{text}</section>'
            )
        items = "".join(f"<li>{html.escape(step)}</li>" for step in steps)
        cells.append(f"<section><h2>What to do next</h2><ol>{items}</ol></section>")
        self._parts.append(f'<div class="answer">{"".join(cells)}</div>')
        return self

    def heading(self, text: str) -> Page:
        """Begin a section."""
        self._parts.append(f"<h2>{html.escape(text)}</h2>")
        return self

    def paragraph(self, text: str) -> Page:
        """Add text."""
        self._parts.append(f"<p>{html.escape(text)}</p>")
        return self

    def warning(self, text: str) -> Page:
        """Add text that must be seen."""
        self._parts.append(f'<p class="warning" role="alert">{html.escape(text)}</p>')
        return self

    def finding(self, name: str, sentence: str, evidence: str) -> Page:
        """Add a fault that was found, with what shows it."""
        self._parts.append(
            f'<section class="finding"><h3><code>{html.escape(name)}</code></h3>'
            f"<p>{html.escape(sentence)}</p><p><small>{html.escape(evidence)}</small></p></section>"
        )
        return self

    def code(self, text: str) -> Page:
        """Add text as it is."""
        self._parts.append(f"<pre>{html.escape(text)}</pre>")
        return self

    def table(
        self,
        header: Sequence[str],
        rows: Iterable[Sequence[Any]],
        *,
        words: bool = False,
        marked: int | None = None,
    ) -> Page:
        """Add a table: of numbers, or of `words`; the column `marked` has its words as colours."""
        rows = list(rows)
        head = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in header)

        def cell(place: int, value: Any) -> str:
            text = html.escape(str(value))
            return f'<td class="{text}">{text}</td>' if place == marked else f"<td>{text}</td>"

        body = "".join(
            "<tr>" + "".join(cell(place, value) for place, value in enumerate(row)) + "</tr>"
            for row in rows
        )
        kind = ' class="words"' if words else ""
        named = ", ".join(filter(None, header)) or ", ".join(str(row[0]) for row in rows)
        label = html.escape(f"Table: {named}")
        self._parts.append(
            f'<div class="wide" tabindex="0" role="region" aria-label="{label}">'
            f"<table{kind}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )
        return self

    def charts(self, *charts: tuple[Chart, str]) -> Page:
        """Add charts side by side, each with a caption; values are shown under the pointer."""
        self._moving = True
        cells = "".join(chart.figure(caption) for chart, caption in charts)
        self._parts.append(f'<div class="row">{cells}</div>')
        return self

    def figures(self, *figures: tuple[Figure, str]) -> Page:
        """Add pictures side by side, each with a caption, and close them."""
        cells = []
        for figure, caption in figures:
            # The frame is the page's own, light or dark.
            figure.patch.set_alpha(0.0)
            for axes in figure.axes:
                axes.patch.set_alpha(0.0)
            buffer = io.StringIO()
            # The date would make equal reports differ.
            figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
            if "matplotlib.pyplot" in sys.modules:  # else nobody keeps it open
                sys.modules["matplotlib.pyplot"].close(figure)
            text = html.escape(caption)
            light = buffer.getvalue()
            cells.append(
                '<figure><picture><source media="(prefers-color-scheme: dark)" '
                f'srcset="{_data(_darkened(light))}"><img alt="{text}" src="{_data(light)}">'
                f"</picture><figcaption>{text}</figcaption></figure>"
            )
        self._parts.append(f'<div class="row">{"".join(cells)}</div>')
        return self

    def statement(self, statement: Statement) -> Page:
        """Add the privacy statement, and how to check it."""
        self.heading("Privacy statement")
        lines = str(statement).splitlines()
        kinds = ["point" if line.startswith("    - ") else "field" for line in lines]
        self._parts.append(
            "<pre>"
            + "".join(
                f'<span class="{kind}">{html.escape(line)}\n</span>'
                for kind, line in zip(kinds, lines, strict=True)
            )
            + "</pre>"
        )
        return self.paragraph(
            "Anybody can derive this epsilon again from the JSON form of the statement: "
            "noisewise verify statement.json"
        )

    def reproduce(self, command: str = "") -> Page:
        """Add the command that made this page, if it was made by one."""
        command = command or command_line()
        if command:
            self.heading("How this page was made").code(command)
        return self

    def to_html(self) -> str:
        """Return the whole page."""
        script = f"<script>{_inside('script.js')}</script>" if self._moving else ""
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{html.escape(self.title)}</title><style>{_inside('style.css')}</style></head>\n"
            "<body><main>" + "\n".join(self._parts) + f"</main>{script}</body></html>\n"
        )

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to a file and return its path."""
        target = Path(path)
        target.write_text(self.to_html(), "utf-8")
        return target


def promised(statement: Statement) -> tuple[str, str, list[str]]:
    """Return the card that says what a statement promises."""
    delta = f" at delta {statement.delta:g}" if statement.delta else ""
    meaning = (
        "Whatever anybody does with this result, it tells at most that much about any one of them."
    )
    change = statement.relation.sentence.removeprefix("one record ")
    if seeded(statement):
        meaning = (
            "This was a trial: its noise came from a seed, and whoever knows the seed can take it "
            "away. Do not publish it."
        )
    return (
        "What is promised",
        f"epsilon {round_up(statement.epsilon)}{delta}",
        [
            f"Protects {statement.unit}, {change}.",
            meaning,
        ],
    )


def seeded(statement: Statement) -> bool:
    """Whether the noise of a statement can be drawn again by whoever knows a number."""
    return "NOT secret" in statement.randomness


def command_line() -> str:
    """Return the noisewise command that is running, folders left out; empty if none is."""
    if Path(sys.argv[0]).stem != "noisewise":
        return ""
    shown = [Path(part).name if os.path.isabs(part) else part for part in sys.argv[1:]]
    return shlex.join(["noisewise", *shown])


def _inside(name: str) -> str:
    return files("noisewise.reports").joinpath(name).read_text("utf-8")


def _data(svg: str) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def _darkened(svg: str) -> str:
    """Turn black on nothing into light on nothing; colours stay."""
    svg = svg.replace("#000000", "#e8edf1").replace("#ffffff", "#12181d")
    return svg.replace("<svg ", '<svg fill="#e8edf1" ', 1)
