"""Report pages: escaped text, pictures inside, reproducible."""

from __future__ import annotations

from pathlib import Path

import matplotlib

from noisewise.reports import Page

matplotlib.use("Agg")


def test_text_is_escaped_everywhere() -> None:
    page = Page("<b>", "<i>").heading("<u>").paragraph("<p1>").warning("<w>").code("<c>")
    text = page.table(("<h>",), [("<cell>",)]).to_html()
    for raw in ("<b>", "<i>", "<u>", "<p1>", "<w>", "<c>", "<h>", "<cell>"):
        assert raw not in text
        assert raw.replace("<", "&lt;").replace(">", "&gt;") in text


def test_figures_are_inside_and_equal_pages_are_equal(tmp_path: Path) -> None:
    import matplotlib.pyplot as plt

    def build() -> str:
        plt.rcParams["svg.hashsalt"] = "fixed"
        figure, axes = plt.subplots()
        axes.plot([0, 1])
        page = Page("title").figures((figure, "a line"))
        return page.write(tmp_path / "page.html").read_text()

    open_before = plt.get_fignums()
    first = build()
    assert 'alt="a line"' in first
    assert "data:image/svg+xml;base64," in first
    assert first == build()
    assert plt.get_fignums() == open_before
