"""Report pages: escaped text, pictures inside, reproducible."""

from __future__ import annotations

import json
import re
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from noisewise.cli.curve_charts import roc_chart
from noisewise.ecdf import private_roc
from noisewise.privacy import Gaussian, Statement
from noisewise.privacy.randomness import Randomness
from noisewise.reports import Chart, Page, command_line, promised
from noisewise.reports.page import seeded

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


def test_a_chart_shows_its_lines_to_those_who_do_not_see_it() -> None:
    chart = Chart("<x>", "<y>", "rises <fast>", y_range=(0.0, 1.0))
    text = chart.line("</script><b>", [0, 1, 2], [0.0, 0.5, float("nan")]).figure("<caption>")
    assert 'aria-label="rises &lt;fast&gt;"' in text
    assert 'tabindex="0"' in text
    assert "</script><b>" not in text
    data = json.loads(re.search(r'class="data">(.*?)</script>', text)[1])  # type: ignore[index]
    assert data["lines"][0]["y"] == [0.0, 0.5]


def test_the_slider_reads_released_numbers_only() -> None:
    rng = np.random.default_rng(0)
    y = rng.random(500) < 0.4
    roc = private_roc(y, rng.beta(2 + y, 3), epsilon=1.0, bins=64, seed=1)
    text = roc_chart(roc).figure("ROC")
    data = json.loads(re.search(r'class="data">(.*?)</script>', text)[1])  # type: ignore[index]
    shown = data["slider"]
    np.testing.assert_allclose(shown["thresholds"], roc.thresholds[1:], rtol=1e-5)
    np.testing.assert_allclose(shown["found"], np.clip(roc.tpr[1:], 0, 1), rtol=1e-5)
    np.testing.assert_allclose(shown["accused"], np.clip(roc.fpr[1:], 0, 1), rtol=1e-5)
    assert shown["positives"] == max(float(roc.release.positives), 0.0)
    assert set(shown) == {"thresholds", "found", "accused", "positives", "negatives"}


def test_the_script_neither_loads_nor_sends() -> None:
    chart = Chart("x", "y", "a line").line("line", [0, 1], [0, 1])
    text = Page("title").charts((chart, "a line")).to_html()
    assert "default-src 'none'" in text
    for word in ("fetch(", "XMLHttp", "import(", "http://", "https://", "eval(", "innerHTML"):
        assert word not in text


def test_a_trial_with_a_seed_is_not_called_private() -> None:
    told = {"delta": 1e-5, "mechanism": "noise", "unit": "one patient"}
    secret = Statement.derive(Gaussian(1.0), randomness=Randomness.secure().description, **told)
    trial = Statement.derive(Gaussian(1.0), randomness=Randomness.seeded(1).description, **told)
    assert not seeded(secret)
    assert "tells at most that much" in " ".join(promised(secret)[2])
    assert "Do not publish it" in " ".join(promised(trial)[2])
    assert "tells at most" not in " ".join(promised(trial)[2])


def test_a_page_without_charts_has_no_script() -> None:
    assert "<script" not in Page("title").paragraph("text").to_html()


def test_the_command_is_shown_without_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/bin/noisewise", "evaluate", "/home/anna/p.csv", "--epsilon"])
    assert command_line() == "noisewise evaluate p.csv --epsilon"
    monkeypatch.setattr("sys.argv", ["/bin/pytest", "x"])
    assert command_line() == ""
