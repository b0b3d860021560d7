"""The evaluate command: reports, statements, ledger, errors that say what to do."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from noisewise.cli.evaluate import evaluate
from noisewise.errors import BudgetExceededError, RelationError
from noisewise.privacy import Ledger, Statement, verify

app = typer.Typer()
app.command()(evaluate)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    p = rng.beta(1, 3, 4000)
    y = (rng.random(4000) < p).astype(int)
    return pd.DataFrame({"y": y, "p": p, "text": np.where(y == 1, "yes", "no")})


def run(path: Path, *options: str):  # type: ignore[no-untyped-def]
    given = [str(path), "--epsilon", "1", "--bins", "128", *options]
    if "--label" not in options:
        given += ["--label", "y"]
    if "--score" not in options:
        given += ["--score", "p"]
    return CliRunner().invoke(app, given)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_both_formats_give_a_report_and_a_statement_that_verifies(
    frame: pd.DataFrame, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / f"predictions.{kind}"
    frame.to_csv(path) if kind == "csv" else frame.to_parquet(path)
    report, promise = tmp_path / "eval.html", tmp_path / "statement.json"
    result = run(path, "--report", str(report), "--statement", str(promise), "--seed", "1")
    assert result.exit_code == 0, result.output
    assert verify(promise).ok
    assert Statement.from_json(promise.read_text()).epsilon <= 1
    page = report.read_text()
    # One file: nothing to fetch; pictures inside, light and dark; no true curve.
    assert "default-src 'none'" in page
    assert not re.search(r"""(src|href)=["']http""", page)
    assert page.count("data:image/svg+xml;base64,") == 2 * 3
    assert "NOT PRIVATE" not in page
    HTMLParser().feed(page)
    assert "AUC" in result.output


def test_json_output_has_the_numbers_and_the_statement(frame: pd.DataFrame, tmp_path: Path) -> None:
    path = tmp_path / "predictions.parquet"
    frame.to_parquet(path)
    result = run(path, "--label", "text", "--pos-label", "yes", "--json")
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    low, high = content["auc_interval"]
    assert low < content["auc"] < high
    assert verify(json.dumps(content["statement"])).ok
    assert "operating system" in content["statement"]["randomness"]


def test_true_curves_come_with_a_warning(frame: pd.DataFrame, tmp_path: Path) -> None:
    path, report = tmp_path / "predictions.parquet", tmp_path / "eval.html"
    frame.to_parquet(path)
    result = run(path, "--report", str(report), "--show-true")
    assert result.exit_code == 0, result.output
    assert "NOT PRIVATE" in report.read_text()
    assert "NOT PRIVATE" in result.stderr


def test_the_ledger_is_charged_and_its_limit_stops_the_release(
    frame: pd.DataFrame, tmp_path: Path
) -> None:
    path, book, report = (
        tmp_path / name for name in ("predictions.parquet", "a.ledger", "eval.html")
    )
    frame.to_parquet(path)
    with Ledger.create(book, epsilon=1.5):
        pass
    assert run(path, "--ledger", str(book)).exit_code == 0
    with Ledger.open(book) as ledger:
        assert ledger.spent() == pytest.approx(1.0, abs=1e-6)
    second = run(path, "--ledger", str(book), "--report", str(report))
    assert isinstance(second.exception, BudgetExceededError)
    assert not report.exists()
    assert "AUC" not in second.output
    with Ledger.open(book) as ledger:  # all of it or nothing
        assert ledger.spent() == pytest.approx(1.0, abs=1e-6)
    wrong = run(path, "--ledger", str(book), "--relation", "replace-one")
    assert isinstance(wrong.exception, RelationError)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--label", "missing"), "not a column"),
        (("--score", "text"), "must hold numbers"),
        (("--label", "text"), "--pos-label"),
        (("--pos-label", "yes"), "not a number"),
        (("--lower", "1", "--upper", "0"), "increase"),
        (("--report", "/nowhere/at/all.html"), "no folder"),
        (("--relation", "friends"), "relation"),
    ],
)
def test_mistakes_are_explained(
    frame: pd.DataFrame, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    path = tmp_path / "predictions.parquet"
    frame.head(50).to_parquet(path)
    result = run(path, *options)
    assert result.exit_code != 0
    assert message in str(result.exception)


def test_files_that_cannot_be_read_are_named(frame: pd.DataFrame, tmp_path: Path) -> None:
    assert "no file" in str(run(tmp_path / "none.csv").exception)
    odd = tmp_path / "data.xlsx"
    odd.write_text("x")
    assert ".parquet" in str(run(odd).exception)
    empty = tmp_path / "empty.csv"
    empty.write_text("")
    assert "cannot read" in str(run(empty).exception)
    broken = tmp_path / "broken.parquet"
    broken.write_text("not parquet")
    assert "cannot read" in str(run(broken).exception)
    holes = frame.head(20).copy()
    holes.loc[3, "p"] = np.nan
    holes.to_parquet(tmp_path / "holes.parquet")
    assert "missing values" in str(run(tmp_path / "holes.parquet").exception)


def test_a_regression_that_the_noise_hides_is_told_from_one_that_is_good(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = rng.uniform(0, 10, 3000)
    path, page = tmp_path / "numbers.csv", tmp_path / "page.html"
    pd.DataFrame({"y": y, "good": y + rng.normal(0, 0.5, 3000), "bad": rng.permutation(y)}).to_csv(
        path, index=False
    )

    def told(column: str) -> str:
        given = [
            str(path), "--label", "y", "--score", column, "--regression", "--lower", "0",
            "--upper", "10", "--epsilon", "1", "--seed", "1", "--report", str(page),
        ]  # fmt: skip
        found = CliRunner().invoke(app, given, env={"COLUMNS": "200"})
        assert found.exit_code == 0, found.output
        return found.output

    assert "holds 0" not in told("good")
    assert re.search(r"R² +│ 0\.\d+ \(0\.\d+ to", told("good"))
    assert "The true value lies between 0." in page.read_text()
    assert "The interval of R² holds 0" in told("bad")
    assert "The interval of R² holds 0" in page.read_text()
