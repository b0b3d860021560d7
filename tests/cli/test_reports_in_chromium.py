"""The reports of ``train`` and ``evaluate`` as a real browser shows them.

A copy of each page gets a script that measures what was laid out; the page itself has none. The
browser may reach no network. Skipped, with the reason, where there is no Chromium.
"""

import json
import re
import shutil
import subprocess

import matplotlib.image
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from noisewise.cli import app
from noisewise.datasets import Numeric, Schema

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")

MEASURE = """<script>
addEventListener("load", () => {
  const visible = e => { const b = e.getBoundingClientRect(); return b.width > 0 && b.height > 0; };
  const page = document.documentElement;
  const measured = {
    images: [...document.images].map(i => [i.complete, i.naturalWidth, i.clientWidth, i.alt]),
    overflow: page.scrollWidth - page.clientWidth,
    headings: [...document.querySelectorAll("h1, h2")].filter(visible).map(h => h.textContent),
    tables: [...document.querySelectorAll("table")].filter(visible).map(t => t.rows.length),
    warnings: [...document.querySelectorAll(".warning")].filter(visible).map(w => w.textContent),
    fetched: performance.getEntriesByType("resource").map(r => r.name)
      .filter(name => !name.startsWith("data:")),
  };
  const place = document.createElement("pre");
  place.id = "measured";
  place.textContent = JSON.stringify(measured);
  document.body.append(place);
});
</script>"""


def browse(folder, *arguments):
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--hide-scrollbars", "--virtual-time-budget=10000",
        f"--user-data-dir={folder / 'profile'}", *arguments,
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def measured(path, width):
    page = path.read_text()
    copy = path.with_suffix(".measured.html")
    copy.write_text(page.replace("</body>", MEASURE + "</body>"))
    assert "</body>" in page
    shown = browse(path.parent, f"--window-size={width},1000", "--dump-dom", copy.as_uri())
    found = re.search(r'<pre id="measured">(.*?)</pre>', shown, re.DOTALL)
    assert found is not None, shown[-500:]
    return json.loads(
        found.group(1).replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">")
    )


def picture(path):
    image = path.with_suffix(".png")
    browse(path.parent, "--window-size=1000,3400", f"--screenshot={image}", path.as_uri())
    return matplotlib.image.imread(image)[..., :3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with both reports."""
    folder = tmp_path_factory.mktemp("reports")
    rng = np.random.default_rng(0)
    age = rng.integers(18, 90, 600)
    score = np.clip(age / 90 + rng.normal(0, 0.1, 600), 0, 1)
    paid = np.where(rng.random(600) < score, "yes", "no")
    pd.DataFrame({"age": age, "paid": paid}).to_csv(folder / "people.csv", index=False)
    pd.DataFrame({"y": paid == "yes", "p": score}).to_parquet(folder / "predictions.parquet")
    schema = Schema({"age": Numeric(18, 90)}, target="paid", classes=["no", "yes"], source="a form")
    (folder / "schema.json").write_text(schema.to_json())
    for arguments in (
        ["train", "people.csv", "--schema", "schema.json", "--epsilon", "2", "--steps", "20",
         "--seed", "1", "--compare", "--out", "out", "--report", "train.html"],
        ["evaluate", "predictions.parquet", "--label", "y", "--score", "p", "--epsilon", "4",
         "--bins", "128", "--seed", "1", "--report", "evaluate.html"],
    ):  # fmt: skip
        places = {"people.csv", "schema.json", "out", "predictions.parquet"}
        named = [str(folder / a) if a in places or a.endswith(".html") else a for a in arguments]
        result = CliRunner().invoke(app, named)
        assert result.exit_code == 0, result.output
    return folder


EXPECTED = {
    "train": ["Result", "Privacy over training", "Quality on held-out records"],
    "evaluate": ["Summary", "Ranking", "Calibration"],
}


@pytest.mark.parametrize("width", [1200, 600])
@pytest.mark.parametrize("name", EXPECTED)
def test_everything_is_shown_and_nothing_is_fetched(folder, name, width):
    seen = measured(folder / f"{name}.html", width)
    assert len(seen["images"]) == 5
    for complete, natural, shown, text in seen["images"]:
        assert complete
        assert natural > 100
        assert 100 < shown <= width
        assert text
    assert seen["overflow"] <= 0
    assert {*EXPECTED[name], "Privacy statement"} <= set(seen["headings"])
    assert min(seen["tables"]) >= 2
    assert seen["fetched"] == []


def test_the_training_page_warns_where_it_is_seen(folder):
    (warning,) = measured(folder / "train.html", 1200)["warnings"]
    assert "keep this page inside" in warning


@pytest.mark.parametrize("name", EXPECTED)
def test_the_page_is_not_blank(folder, name):
    pixels = picture(folder / f"{name}.html")
    dark = (pixels.max(-1) < 0.5).mean(axis=1)
    lines = (dark > 0).reshape(-1, 100).any(axis=1)  # text or drawing, by bands of 100 pixels
    assert lines[:25].all()
    coloured = (pixels.max(-1) - pixels.min(-1) > 0.2).sum()
    assert coloured > 5000  # curves, not only text
