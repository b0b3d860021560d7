"""The reports of all commands as a real browser shows them.

A copy of each page gets a script that measures what was laid out, at the widths of a phone, a
tablet and a desk; moves the slider and presses keys. The browser may reach no network. Skipped,
with the reason, where there is no Chromium.
"""

import html
import json
import re
import shutil
import subprocess

import matplotlib.image
import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from noisewise import federated
from noisewise.auditing import NoiseModel, audit
from noisewise.cli import app
from noisewise.cli.audit_report import write_report as write_audit
from noisewise.cli.collect_report import write_report as write_collection
from noisewise.cli.evaluation_report import write_measures
from noisewise.datasets import Numeric, Schema
from noisewise.debugging import check
from noisewise.debugging.mutants import Training, cases
from noisewise.ecdf import private_confusion, private_regression_errors

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome", "google-chrome"))),
    None,
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
WIDTHS = (360, 768, 1280)

#: Frames of three widths, each of which measures the page that it shows.
FRAMES = """<!doctype html><meta charset="utf-8"><body>
<script>
const page = PAGE, all = {};
const visible = e => { const b = e.getBoundingClientRect(); return b.width > 0 && b.height > 0; };
function measure(view, width) {
  const doc = view.document, root = doc.documentElement;
  const slider = doc.querySelector("input[type=range]"), chart = doc.querySelector("svg.chart");
  const said = () => slider && slider.closest(".slider").querySelector("output").textContent;
  const found = {
    images: [...doc.images].map(i => [i.complete, i.naturalWidth, i.clientWidth, i.alt]),
    charts: [...doc.querySelectorAll("svg.chart")].map(c => [c.clientWidth, c.ariaLabel]),
    overflow: root.scrollWidth - root.clientWidth,
    headings: [...doc.querySelectorAll("h1, h2")].filter(visible).map(h => h.textContent),
    first: [...doc.querySelectorAll(".answer h2")].map(h => h.getBoundingClientRect().top),
    tables: [...doc.querySelectorAll("table")].filter(visible).map(t => t.rows.length),
    warnings: [...doc.querySelectorAll(".warning")].filter(visible).map(w => w.textContent),
    fetched: view.performance.getEntriesByType("resource").map(r => r.name)
      .filter(name => !name.startsWith("data:")),
    focusable: doc.querySelectorAll("[tabindex='0'], input").length,
    before: said(), ink: view.getComputedStyle(doc.body).color,
  };
  if (slider) {
    slider.value = slider.max; slider.dispatchEvent(new view.Event("input"));
    found.after = said();
  }
  if (chart) {
    const told = chart.closest("figure").querySelector("output");
    chart.dispatchEvent(new view.KeyboardEvent("keydown", { key: "Home" }));
    found.home = told.textContent;
    chart.dispatchEvent(new view.KeyboardEvent("keydown", { key: "ArrowRight" }));
    found.right = told.textContent;
    const box = chart.getBoundingClientRect();
    chart.dispatchEvent(new view.PointerEvent("pointermove", { clientX: box.right }));
    found.hovered = told.textContent;
  }
  all[width] = found;
  if (Object.keys(all).length === 3) {
    const place = document.createElement("pre");
    place.id = "measured"; place.textContent = JSON.stringify(all); document.body.append(place);
  }
}
for (const width of [360, 768, 1280]) {
  const frame = document.createElement("iframe");
  frame.style.cssText = `width:${width}px;height:900px;border:0;display:block`;
  frame.onload = () => measure(frame.contentWindow, width);
  frame.srcdoc = page;
  document.body.append(frame);
}
</script>"""


def browse(folder, *arguments):
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--hide-scrollbars", "--virtual-time-budget=10000", "--window-size=1400,1000",
        f"--user-data-dir={folder / 'profile'}", *arguments,
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a report of each kind."""
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
    case = cases()["MLP"]
    train = Training(case.model, case.loss, bug="half-sigma")
    tests = (
        "preflight",
        "contribution",
        "noise",
        "loss-and-clip",
        "loss-and-batch",
        "distance-and-clip",
        "law-of-noise",
    )
    options = {"example": case.example, "effort": "quick", "tests": tests}
    check(train, case.model, case.loss, **options).report(folder / "debug.html")
    write_audit(audited(), folder / "audit.html", source="step")
    true, told = (np.digitize(part, (30, 60)) for part in (age, age + rng.normal(0, 8, 600)))
    found = private_confusion(true, told, classes=(0, 1, 2), epsilon=1.0, seed=1)
    write_measures(found, folder / "classes.html", source="people.csv")
    guess = age + rng.normal(0, 8, 600)
    errors = private_regression_errors(age, guess, bounds=(18, 90), epsilon=2.0, seed=1)
    write_measures(errors, folder / "number.html", source="people.csv")
    collected(folder, paid == "yes", score)
    return folder


def audited():
    def step(gradients, *, seed):
        norms = gradients.norm(dim=1, keepdim=True).clamp_min(1e-12)
        total = (gradients * (1 / norms).clamp(max=1)).sum(0)
        return total + 0.5 * torch.randn(total.shape, generator=torch.Generator().manual_seed(seed))

    attack = {"attack": "gradient-canaries", "clip": 1.0, "canaries": 200}
    return audit(step, claimed=2.0, delta=1e-5, noise=NoiseModel(), **attack)


def collected(folder, y, score):
    network = pytest.importorskip("noisewise.federated.network.trial", exc_type=ImportError)
    from noisewise.federated.network.collection import Taken
    from noisewise.federated.network.settings import ClientSettings

    trial = network.make_trial(folder / "trial", bins=128)
    settings = ClientSettings.read(trial.config("analyst"))
    parts = [(y[part::3], score[part::3]) for part in range(3)]
    curve = federated.roc(parts, federated.FunctionSharing(), epsilon=2.0, bins=128)
    rows = [("AUC", f"{curve.auc:.4f}"), ("positives", "300"), ("negatives", "300")]
    taken = [Taken("roc", 3, 3, None)]
    promise = curve.statement()
    write_collection(curve, "roc", rows, promise, taken, settings, folder / "collect.html")


EXPECTED = {
    "train": ["Result", "Privacy over training", "Quality on held-out records"],
    "evaluate": ["Ranking", "Calibration", "All numbers"],
    "classes": ["Class by class", "All numbers"],
    "number": ["Errors", "All numbers"],
    "debug": ["Findings", "Tests", "What clipping and noise do"],
    "audit": ["What the attacker sees", "How it was measured"],
    "collect": ["The curve", "Releases", "Fingerprint of the study"],
}
PICTURES = {
    "train": 3, "evaluate": 3, "classes": 1, "number": 1, "debug": 4, "audit": 2, "collect": 0,
}  # fmt: skip
CHARTS = {"train": 2, "evaluate": 2, "collect": 1}


@pytest.fixture(scope="module", params=EXPECTED)
def seen(request, folder):
    """What the browser measured of one report, by width."""
    page = (folder / f"{request.param}.html").read_text()
    frames = folder / f"{request.param}.frames.html"
    quoted = json.dumps(page).replace("</", "<\\/")
    frames.write_text(FRAMES.replace("PAGE", quoted, 1))
    shown = browse(folder, "--dump-dom", frames.as_uri())
    found = re.search(r'<pre id="measured">(.*?)</pre>', shown, re.DOTALL)
    assert found is not None, shown[-500:]
    return request.param, json.loads(html.unescape(found.group(1)))


def test_everything_is_shown_at_three_widths_and_nothing_is_fetched(seen):
    name, by_width = seen
    for width in WIDTHS:
        found = by_width[str(width)]
        assert len(found["images"]) == PICTURES[name]
        for complete, natural, shown, text in found["images"]:
            assert complete
            assert natural > 100
            assert 100 < shown <= width
            assert text
        assert len(found["charts"]) == CHARTS.get(name, 0)
        assert all(250 < shown <= width and text for shown, text in found["charts"])
        assert found["overflow"] <= 0
        assert set(EXPECTED[name]) <= set(found["headings"])
        assert found["tables"]
        assert found["fetched"] == []
        assert found["focusable"] >= len(found["tables"]) + CHARTS.get(name, 0)


def test_the_answer_comes_first(seen):
    _, by_width = seen
    for width in WIDTHS:
        found = by_width[str(width)]
        title, *answers = found["headings"]
        assert answers[2] == "What to do next"
        assert found["first"][0] < 400
    assert title


def test_values_are_told_by_pointer_and_keys_and_the_slider_moves(seen):
    name, by_width = seen
    found = by_width["768"]
    if CHARTS.get(name, 0):
        assert found["home"] != found["right"] != found["hovered"]
        assert re.search(r"\d", found["home"])
    if name in ("evaluate", "collect"):
        assert "of 100 positives" in found["before"]
        assert "finds 100 of 100 positives" in found["after"]


def test_the_training_page_warns_where_it_is_seen(folder, seen):
    name, by_width = seen
    warnings = by_width["360"]["warnings"]
    assert len(warnings) == (name == "train")
    if name == "train":
        assert "keep this page to yourself" in warnings[0]


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_is_not_blank_in_light_and_in_dark(folder, dark):
    image = folder / f"evaluate-{dark}.png"
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    page = folder / "evaluate.html"
    browse(folder, scheme, "--window-size=1000,2600", f"--screenshot={image}", page.as_uri())
    pixels = matplotlib.image.imread(image)[..., :3]
    assert (np.median(pixels) < 0.3) == dark
    paper = np.median(pixels.reshape(-1, 3), axis=0)
    ink = (np.abs(pixels - paper).max(-1) > 0.4).mean(axis=1)
    lines = (ink > 0).reshape(-1, 100).any(axis=1)  # text or drawing, by bands of 100 pixels
    assert lines[:20].all()
    coloured = (pixels.max(-1) - pixels.min(-1) > 0.2).sum()
    assert coloured > 3000  # curves, not only text


#: Pages of A4 or letter; with one picture a page they were two to three times as many.
PAGES = {
    "train": 6, "evaluate": 5, "classes": 2, "number": 2, "debug": 4, "audit": 2, "collect": 3,
}  # fmt: skip


@pytest.mark.parametrize("name", PAGES)
def test_on_paper_pictures_stand_side_by_side(folder, name):
    paper = folder / f"{name}.pdf"
    page = (folder / f"{name}.html").as_uri()
    browse(folder, f"--print-to-pdf={paper}", "--no-pdf-header-footer", page)
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", paper.read_bytes())) <= PAGES[name]
