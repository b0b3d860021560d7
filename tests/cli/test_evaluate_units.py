"""`noisewise evaluate --unit`: whole units are protected, and never shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from noisewise.cli import app
from noisewise.privacy import Ledger, Statement, verify


@pytest.fixture
def predictions(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    p = generator.random(400)
    frame = pd.DataFrame(
        {
            "y": (generator.random(400) < p).astype(int),
            "p": p,
            "patient": [f"secret-{number}" for number in generator.integers(0, 90, 400)],
        }
    )
    path = tmp_path / "predictions.parquet"
    frame.to_parquet(path)
    return path


def run(path: Path, *more: str) -> Any:
    base = ["evaluate", str(path), "--label", "y", "--score", "p", "--epsilon", "2", "--bins", "64"]
    return CliRunner().invoke(app, [*base, *more])


def test_the_statement_names_the_unit_and_verifies(predictions: Path, tmp_path: Path) -> None:
    written = tmp_path / "statement.json"
    found = run(
        predictions, "--unit", "patient", "--max-per-unit", "3", "--statement", str(written)
    )
    assert found.exit_code == 0, found.output
    statement = Statement.from_json(written.read_text())
    assert statement.unit.startswith("one patient")
    assert "at most 3 rows of a unit count" in "\n".join(statement.assumptions)
    assert verify(statement).ok
    assert statement.epsilon <= 2
    assert "secret" not in found.output + written.read_text()


def test_json_has_the_unit(predictions: Path) -> None:
    found = run(predictions, "--unit", "patient", "--json")
    assert json.loads(found.stdout)["statement"]["unit"].startswith("one patient")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--unit", "nobody"), "not a column"),
        (("--max-per-unit", "3"), "no units="),
        (("--unit", "patient", "--max-per-unit", "0"), "max_per_unit"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(
    predictions: Path, options: tuple[str, ...], message: str
) -> None:
    found = run(predictions, *options)
    assert found.exit_code != 0
    assert message in found.output + str(found.exception)
    assert "secret" not in found.output


def test_missing_identifiers_are_refused_and_not_shown(predictions: Path) -> None:
    frame = pd.read_parquet(predictions)
    frame.loc[3, "patient"] = None
    frame.to_parquet(predictions)
    found = run(predictions, "--unit", "patient")
    assert found.exit_code != 0
    assert "missing identifiers" in found.output + str(found.exception)
    assert "secret" not in found.output + str(found.exception)


def test_no_identifier_is_in_a_report_a_ledger_or_a_log(
    predictions: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    report, ledger = tmp_path / "report.html", tmp_path / "l"
    Ledger.create(ledger, delta=1e-6, unit="one patient").close()
    caplog.set_level(0)
    options = ("--unit", "patient", "--report", str(report), "--ledger", str(ledger))
    found = run(predictions, *options)
    assert found.exit_code == 0, found.output
    names = set(pd.read_parquet(predictions)["patient"])
    assert all("secret" in name for name in names)
    seen = found.output + report.read_text() + ledger.read_text() + caplog.text
    assert "secret" not in seen
    assert "one patient" in report.read_text()


def test_a_file_that_names_patients_is_told_that_rows_are_not_people(tmp_path: Path) -> None:
    path = tmp_path / "visits.csv"
    lines = [f"{row // 10},{row % 2},0.{row % 9}" for row in range(200)]
    path.write_text("\n".join(["patient_id,y,p", *lines]))
    assert "rows are not people" in run(path).output
    of_units = run(path, "--unit", "patient_id").output
    assert "20 units expect" in of_units
    assert "not people" not in of_units
