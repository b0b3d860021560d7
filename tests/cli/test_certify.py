"""The certify command: tables, JSON, pictures, and errors that say what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from noisewise.cli.certify import certify, load_model, parse_shape

MODEL = """
from torch import nn
def build():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 10))
def mixing():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4))
def nothing():
    return 5
def broken():
    raise RuntimeError("out of order")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


def run(*arguments: str):
    app = typer.Typer()
    app.command()(certify)
    return CliRunner().invoke(app, list(arguments))


def test_the_table_names_every_layer(file: Path) -> None:
    result = run(f"{file}:build", "--input", "1,8,8", "--norm", "1")
    assert result.exit_code == 0
    assert "Conv2d" in result.output
    assert "total" in result.output


def test_the_json_holds_the_sensitivities(file: Path) -> None:
    result = run(f"{file}:build", "--input", "1,8,8", "--norm", "2", "--json")
    found = json.loads(result.stdout)
    assert found["relation"] == "add-remove"
    assert set(found["sensitivities"]) == {"0.weight", "0.bias", "3.weight", "3.bias"}
    assert found["input_norm"] == 2.0
    assert found["sensitivities"]["3.bias"] <= 2**0.5 * (1 + 1e-9)


def test_a_picture_is_written(file: Path, tmp_path: Path) -> None:
    picture = tmp_path / "bounds.png"
    result = run(f"{file}:build", "--input", "1,8,8", "--plot", str(picture))
    assert result.exit_code == 0
    assert picture.stat().st_size > 1000


def test_a_model_that_mixes_records_is_refused_with_the_reason(file: Path) -> None:
    result = run(f"{file}:mixing", "--input", "1,8,8")
    assert result.exit_code == 1
    assert "mixes the records" in result.output


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("model.py", "file.py:name"),
        ("absent.py:build", "no file"),
        ("{file}:absent", "it has broken, build"),
        ("{file}:nothing", "torch module"),
        ("{file}:broken", "out of order"),
    ],
)
def test_a_model_that_cannot_be_loaded_says_why(file: Path, reference: str, words: str) -> None:
    with pytest.raises(typer.BadParameter, match=words):
        load_model(reference.format(file=file))


def test_shapes_are_read_and_checked() -> None:
    assert parse_shape("3,32,32") == parse_shape("3x32x32") == (3, 32, 32)
    for wrong in ("3,a", "0,4", ""):
        with pytest.raises(typer.BadParameter):
            parse_shape(wrong)


def test_an_unknown_loss_is_refused(file: Path) -> None:
    assert run(f"{file}:build", "--input", "1,8,8", "--loss", "magic").exit_code != 0
