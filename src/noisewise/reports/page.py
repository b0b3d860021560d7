"""A self-contained HTML page: text, tables and pictures in one file, no network, no scripts."""

from __future__ import annotations

import base64
import html
import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Page"]

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, "Segoe UI", sans-serif; color: #1b1f24; background: #fff;
  max-width: 60rem; margin: 2rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.7rem; margin-bottom: .2rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
p.lead { color: #555; margin-top: 0; }
table { border-collapse: collapse; margin: .8rem 0; font-variant-numeric: tabular-nums;
  display: block; overflow-x: auto; }
th, td { padding: .25rem .8rem; border-bottom: 1px solid #ddd; text-align: right; }
th:first-child, td:first-child { text-align: left; } th { font-weight: 600; }
.row { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fill, minmax(min(26rem, 100%), 1fr)); }
figure { margin: .5rem 0; }
figure img { width: 100%; height: auto; } figcaption { color: #555; font-size: .9rem; }
.warning { border-left: 5px solid #c62828; background: #fdecea; padding: .7rem 1rem; }
pre { background: #f6f8fa; padding: .8rem 1rem; overflow-x: auto; font-size: .85rem;
  white-space: pre-wrap; }
"""


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
        if lead:
            self._parts.append(f'<p class="lead">{html.escape(lead)}</p>')

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

    def code(self, text: str) -> Page:
        """Add text as it is."""
        self._parts.append(f"<pre>{html.escape(text)}</pre>")
        return self

    def table(self, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> Page:
        """Add a table."""
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>"
            for row in rows
        )
        self._parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
        return self

    def figures(self, *figures: tuple[Figure, str]) -> Page:
        """Add pictures side by side, each with a caption, and close them."""
        import matplotlib.pyplot as plt

        cells = []
        for figure, caption in figures:
            buffer = io.BytesIO()
            # The date would make equal reports differ.
            figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None})
            plt.close(figure)
            data = base64.b64encode(buffer.getvalue()).decode()
            text = html.escape(caption)
            image = f'<img alt="{text}" src="data:image/svg+xml;base64,{data}">'
            cells.append(f"<figure>{image}<figcaption>{text}</figcaption></figure>")
        self._parts.append(f'<div class="row">{"".join(cells)}</div>')
        return self

    def to_html(self) -> str:
        """Return the whole page."""
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{html.escape(self.title)}</title><style>{_STYLE}</style></head>\n<body>"
            + "\n".join(self._parts)
            + "</body></html>\n"
        )

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to a file and return its path."""
        target = Path(path)
        target.write_text(self.to_html(), "utf-8")
        return target
