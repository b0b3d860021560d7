"""`noisewise evaluate` and `contribute` read databases and folders, without an export."""

import json
import sqlite3

import numpy as np
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from noisewise.cli.contribute import read_records
from noisewise.cli.evaluate import evaluate
from noisewise.ecdf.sources.pushed import ROW_BY_ROW
from noisewise.errors import NoisewiseError
from noisewise.federated.network.outbox import digest_of

duckdb = pytest.importorskip("duckdb")
pytest.importorskip("ibis")

app = typer.Typer()
app.command()(evaluate)


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    p = rng.beta(1, 3, 3000)
    y = (rng.random(3000) < p).astype(int)
    return pd.DataFrame({"y": y, "p": p, "text": np.where(y == 1, "yes", "no"), "ok": y == 1})


@pytest.fixture(scope="module")
def places(frame, tmp_path_factory):
    """The same records as a file, a folder, and two databases."""
    folder = tmp_path_factory.mktemp("places")
    frame.to_parquet(folder / "one.parquet")
    (folder / "parts" / "2024").mkdir(parents=True)
    frame[:1000].to_parquet(folder / "parts" / "a.parquet")
    frame[1000:].to_parquet(folder / "parts" / "2024" / "b.parquet")
    with duckdb.connect(str(folder / "scores.db")) as connection:
        connection.execute("create table predictions as select * from frame")
    connection = sqlite3.connect(folder / "scores.sqlite")
    frame.to_sql("predictions", connection, index=False)
    connection.close()
    return folder


def run(*options):
    return CliRunner().invoke(
        app, [*map(str, options), "--epsilon", "1", "--bins", "128", "--seed", "1", "--json"]
    )


def without_rows(report):
    """A report but for the sentence about rows of a query, and the digest over it."""
    statement = {k: v for k, v in report["statement"].items() if k != "digest"}
    statement["assumptions"] = [s for s in statement["assumptions"] if s != ROW_BY_ROW]
    return {**report, "statement": statement}


def test_databases_and_folders_give_the_report_of_the_file(places):
    columns = ["--label", "y", "--score", "p"]
    told = json.loads(run(places / "one.parquet", *columns).stdout)
    query = ["--query", "select y, p from predictions"]
    for where in (
        [f"duckdb:///{places / 'scores.db'}", *query],
        [f"duckdb:///{places / 'scores.db'}", "--table", "predictions", *columns],
        [f"sqlite:///{places / 'scores.sqlite'}", *query],
        [places / "parts", *columns],
        [places / "parts", "--query", "select y, p from data"],
        [places / "one.parquet", "--query", "select y, p from data order by p"],
    ):
        result = run(*where)
        assert result.exit_code == 0, result.output
        found = json.loads(result.stdout)
        assert ROW_BY_ROW in found["statement"]["assumptions"]
        assert without_rows(found) == without_rows(told), where


def test_the_positive_label_is_read_in_the_type_of_its_column(places):
    told = json.loads(run(places / "one.parquet", "--label", "y", "--score", "p").stdout)
    for label, positive in (("text", "yes"), ("ok", "true"), ("y", "1")):
        query = f"select {label}, p from predictions"
        result = run(f"duckdb:///{places / 'scores.db'}", "--query", query, "--pos-label", positive)
        assert json.loads(result.stdout)["auc"] == told["auc"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["duckdb:///nowhere.db", "--query", "select 1"], "no database at"),
        (["duckdb:///{places}/scores.db"], "which query, or which table"),
        (["duckdb:///{places}/scores.db", "--query", "select 1", "--table", "t"], "not both"),
        (["duckdb:///{places}/scores.db", "--query", "selec y"], "could not take this query"),
        (["duckdb:///{places}/scores.db", "--table", "nothing"], "could not find table"),
        (["duckdb:///{places}/scores.db", "--table", "predictions"], "say which columns"),
        (["duckdb:///{places}/scores.db", "--query", "select y, p, ok from predictions"], "select"),
        (["{places}/parts", "--show-true", "--label", "y", "--score", "p"], "need every record"),
        (["{places}/parts", "--label", "y", "--score", "x"], "'x' is not a column"),
        (["{places}/one.parquet"], "give --label and --score"),
        (["{places}/parts", "--query", "select y, 'high' as p from data"], "must hold numbers"),
        (["{places}/parts", "--query", "   "], "could not take this query"),
        (["duckdb:///{places}/scores.db", "--query", ""], "one SELECT"),
    ],
)
def test_what_cannot_be_read_is_said(places, options, says):
    result = run(*[option.format(places=places) for option in options])
    assert result.exit_code != 0
    assert isinstance(result.exception, (SystemExit, NoisewiseError, ValueError))  # no traceback
    assert says in str(result.exception)


def test_a_password_in_an_address_is_not_repeated():
    result = run("postgres://reader:hush@localhost:1/data", "--query", "select 1")
    assert result.exit_code != 0
    assert "hush" not in str(result.exception) + result.output


def test_a_party_contributes_from_a_database_what_it_would_from_a_file(places):
    file = read_records(places / "one.parquet", "p", "text", "yes")
    for where, how in (
        (f"duckdb:///{places / 'scores.db'}", {"table": "predictions"}),
        (
            f"sqlite:///{places / 'scores.sqlite'}",
            {"query": "select * from predictions order by p"},
        ),
        (places / "parts", {}),
    ):
        records = read_records(where, "p", "text", "yes", **how)
        assert len(records) == len(file)
        assert digest_of(records) == digest_of(file)
    alone = read_records(places / "parts", "p", None, None)
    assert alone.positive is None
    assert np.array_equal(np.sort(alone.values), np.sort(file.values))
    with pytest.raises(ValueError, match="NaN or missing"):
        read_records(
            places / "parts",
            "p",
            None,
            None,
            query="select case when p < 0.5 then null else p end p from data",
        )
    changed = read_records(places / "parts", "p", "text", "no")
    assert digest_of(changed) != digest_of(file)


# -------------------------------------------------------------------------------------- units


@pytest.fixture(scope="module")
def visited(frame, tmp_path_factory):
    """The same rows, with whose they are: as a file, a folder, and two databases."""
    folder = tmp_path_factory.mktemp("visited")
    whose = [f"Ada-{number}" for number in np.random.default_rng(1).integers(0, 900, len(frame))]
    told = frame[["y", "p"]].assign(patient=whose)
    told.to_parquet(folder / "one.parquet")
    (folder / "parts").mkdir()
    told[:1000].to_parquet(folder / "parts" / "a.parquet")
    told[1000:].to_parquet(folder / "parts" / "b.parquet")
    with duckdb.connect(str(folder / "scores.db")) as connection:
        connection.execute("create table predictions as select * from told")
        connection.execute("create table holes as select *, nullif(patient, patient) q from told")
    connection = sqlite3.connect(folder / "scores.sqlite")
    told.to_sql("predictions", connection, index=False)
    connection.close()
    return folder


def test_units_of_databases_and_folders_give_the_report_of_the_file(visited):
    columns = ["--label", "y", "--score", "p"]
    unit = ["--unit", "patient", "--max-per-unit", "2"]
    told = json.loads(run(visited / "one.parquet", *columns, *unit).stdout)
    assert told["statement"]["unit"].startswith("one patient")
    assert told["statement"]["unit_rows"] == 2
    for where in (
        [f"duckdb:///{visited / 'scores.db'}", "--query", "select y, p, patient from predictions"],
        [f"sqlite:///{visited / 'scores.sqlite'}", "--table", "predictions", *columns],
        [visited / "parts", *columns],
        [visited / "one.parquet", "--query", "select patient, y, p from data order by p"],
    ):
        result = run(*where, *unit)
        assert result.exit_code == 0, result.output
        found = json.loads(result.stdout)
        assert ROW_BY_ROW in found["statement"]["assumptions"]
        found["statement"]["assumptions"].remove(ROW_BY_ROW)
        found["statement"]["digest"] = told["statement"]["digest"]
        assert found == told, where
        assert "Ada-" not in result.output


@pytest.mark.parametrize(
    ("where", "table"), [("scores.db", "predictions"), ("one.parquet", "data")]
)
def test_a_column_that_names_people_is_pointed_out_in_engines_too(visited, where, table):
    """By its name alone: no row is read for it, and the answer stays the same."""
    place = f"duckdb:///{visited / where}" if where.endswith(".db") else visited / where
    query = f"select y, p, patient as patient_id from {table}"
    options = [place, "--query", query, "--label", "y", "--score", "p"]
    told, silent = run(*options), run(*options, "--no-preflight")
    assert "rows are not people" in told.stderr
    assert "--unit patient_id" in told.stderr
    assert "not people" not in silent.stderr + run(*options, "--unit", "patient_id").stderr
    assert told.stdout == silent.stdout


def test_missing_units_of_a_database_are_refused(visited):
    where = [f"duckdb:///{visited / 'scores.db'}", "--table", "holes", "--label", "y", "--score"]
    result = run(*where, "p", "--unit", "q")
    assert result.exit_code != 0
    assert "missing identifiers" in str(result.exception)
    assert "'nobody' is not a column" in str(run(*where, "p", "--unit", "nobody").exception)


def test_a_party_contributes_units_from_a_database_as_from_a_file(visited):
    file = read_records(visited / "one.parquet", "p", "y", None, unit="patient")
    for where, how in (
        (f"duckdb:///{visited / 'scores.db'}", {"table": "predictions"}),
        (
            f"sqlite:///{visited / 'scores.sqlite'}",
            {"query": "select * from predictions order by p"},
        ),
        (visited / "parts", {}),
    ):
        records = read_records(where, "p", "y", None, unit="patient", **how)
        assert sorted(np.bincount(records.codes)) == sorted(np.bincount(file.codes))
        # Rows came in another order; whose they are came with them.
        assert set(grouped(records)) == set(grouped(file))
    with pytest.raises(ValueError, match="missing identifiers"):
        read_records(f"duckdb:///{visited / 'scores.db'}", "p", "y", None, table="holes", unit="q")


def grouped(records):
    """The rows of each unit, in an order of their own."""
    for code in range(records.codes.max() + 1):
        mine = records.codes == code
        yield tuple(sorted(zip(records.values[mine], records.positive[mine], strict=True)))
