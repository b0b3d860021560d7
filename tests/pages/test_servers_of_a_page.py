"""The commands of the page on three hospitals, with real servers, as one program."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from noisewise import federated

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "tutorials" / "hospitals.md").read_text("utf-8")
NUMBER = r"(\d+(?:\.\d+)?)"
ROWS = {
    "area": rf"│ AUC +│ {NUMBER} +│",
    "interval": rf"│ AUC, 95 % interval │ {NUMBER} to {NUMBER} +│",
    "positives": rf"│ positives +│ {NUMBER} +│",
    "negatives": rf"│ negatives +│ {NUMBER} +│",
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def hospitals():
    """The records that the page makes."""
    names = {}
    exec(compile(blocks("python")[0], "hospitals.md", "exec"), names)
    return names["hospitals"]


def check(printed: str, hospitals) -> None:
    """Each printed number is where noise of this size can have put it.

    A count is off by more than 12 deviations of its noise with probability below 1e-6; twelve
    half-widths of a 95 % interval are more than 20 deviations of the area.
    """
    sick, score = (np.concatenate(part) for part in zip(*hospitals, strict=True))
    noise = federated.roc(hospitals, federated.FunctionSharing(), epsilon=1.0, bins=1024, seed=0)
    deviation = float(np.sqrt(noise.release.variance[1][-1]))
    found = {name: re.search(row, printed) for name, row in ROWS.items()}
    assert all(found.values()), printed
    area = float(found["area"][1])
    low, high = map(float, found["interval"].groups())
    assert low < area < high < low + 0.4
    assert abs(roc_auc_score(sick, score) - area) < 12 * (high - low) / 2
    assert abs(float(found["positives"][1]) - sick.sum()) < 12 * deviation
    assert abs(float(found["negatives"][1]) - (~sick).sum()) < 12 * deviation


def test_the_printed_result_is_one_of_the_page_s_own_hospitals(hospitals) -> None:
    """Whether the interval holds the area is no question of luck: the page is printed already."""
    (printed,) = blocks("text")
    check(printed, hospitals)
    low, high = map(float, re.search(ROWS["interval"], printed).groups())
    sick, score = (np.concatenate(part) for part in zip(*hospitals, strict=True))
    assert low <= roc_auc_score(sick, score) <= high


@pytest.mark.slow
def test_the_commands_of_three_hospitals_give_one_report(hospitals, tmp_path, monkeypatch) -> None:
    pytest.importorskip("aiohttp")
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks("python")[-1], "hospitals.md", "exec"), {"hospitals": hospitals})
    (program,) = blocks("bash")
    program = program.replace("noisewise ", f'"{sys.executable}" -m noisewise ')
    # Whatever happens, no server is left behind.
    program = "trap 'kill $(jobs -p) 2> /dev/null' EXIT\n" + program
    done = subprocess.run(
        ["bash", "-ec", program],
        cwd=tmp_path, capture_output=True, text=True, timeout=600,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    check(done.stdout, hospitals)
    assert "Privacy statement" in (tmp_path / "joint.html").read_text("utf-8")
