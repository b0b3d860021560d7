"""The command ``noisewise train``."""

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from noisewise.cli import app
from noisewise.datasets import Categorical, Numeric, Schema
from noisewise.estimators import load_estimator

SCHEMA = Schema(
    {"age": Numeric(18, 90), "job": Categorical(["clerk", "farmer"])},
    target="paid",
    classes=["no", "yes"],
    source="a form",
)


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"age": rng.integers(18, 90, 800), "job": rng.choice(["clerk", "farmer"], 800)}
    )
    frame["paid"] = np.where(frame["age"] > 50, "yes", "no")
    frame.to_parquet(tmp_path / "people.parquet")
    (tmp_path / "schema.json").write_text(SCHEMA.to_json())
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(app, ["train", *map(str, arguments)])


def test_a_file_becomes_a_model_a_statement_a_ledger_and_a_page(folder):
    result = run(
        folder / "people.parquet", "--schema", folder / "schema.json", "--epsilon", 2,
        "--steps", 30, "--gradients", "factored", "--seed", 1, "--compare",
        "--out", folder / "out", "--report", folder / "run.html",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    names = {path.name for path in (folder / "out").iterdir()}
    assert {"estimator.json", "weights.safetensors", "statement.json", "ledger.jsonl"} <= names
    statement = json.loads((folder / "out" / "statement.json").read_text())
    assert statement["epsilon"] <= 2
    assert load_estimator(folder / "out").classes_.tolist() == ["no", "yes"]
    page = (folder / "run.html").read_text()
    for part in ("Privacy statement", "Confusion matrix", "Reliability", "signal to noise"):
        assert part in page
    assert "not private" in result.output
    assert "://" not in page.replace("http://www.w3.org", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.csv", "--epsilon", "1"], "no file"),
        (["unheard-of", "--epsilon", "1"], "unheard-of"),
        (["adult", "--epsilon", "1", "--hidden", "many"], "--hidden"),
        (["adult", "--epsilon", "1", "--test", "2"], "--test"),
        (["adult", "--epsilon", "1", "--report", "/nowhere/x.html"], "no folder"),
    ],
)
def test_wrong_arguments_are_told(arguments, message):
    result = run(*arguments)
    assert result.exit_code != 0
    assert message in str(result.exception) + result.output


def test_a_file_needs_a_schema(folder):
    result = run(folder / "people.parquet", "--epsilon", 1)
    assert "--schema" in str(result.exception)
