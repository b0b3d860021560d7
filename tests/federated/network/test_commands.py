"""The commands of an administrator, a party and an analyst."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import time

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("aiohttp")

import typer
from typer.testing import CliRunner

from federated.network import children
from federated.network.harness import Federation, context
from noisewise.cli.collect import collect
from noisewise.cli.contribute import contribute
from noisewise.errors import NoisewiseError
from noisewise.privacy.statement import Statement

app = typer.Typer()
app.command()(contribute)
app.command()(collect)


def run(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture(scope="module", params=["with noise", "without"])
def federation(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("commands")
    made = Federation.create(
        folder, np.random.default_rng(2), records=300, epsilon=8.0, patience=60.0, seconds=15.0,
        curves=["roc", "ecdf", "histogram", "hosmer-lemeshow"], bins=16,
        noiseless_test=request.param == "without",
    )  # fmt: skip
    with made:
        for name, records in made.data.items():
            frame = pd.DataFrame(
                {"p": records.values, "y": np.where(records.positive, "yes", "no")}
            )
            frame.to_csv(folder / f"{name}.csv", index=False)
            give = ["contribute", "--data", folder / f"{name}.csv", "--column", "p", "--label", "y"]
            if name == "south" and importlib.util.find_spec("duckdb"):  # through an engine
                give += ["--query", "select y, p from data"]
            said = run(*give, "--pos-label", "yes", "--config", made.trial.config(name))
            assert "not needed any more" in said.output
            assert ("taken for granted" in said.output) == ("--query" in give)
        yield made


@pytest.mark.parametrize("curve", ["roc", "ecdf", "histogram", "hosmer-lemeshow"])
def test_collect_writes_numbers_table_picture_report_and_statement(federation, tmp_path, curve):
    written = {
        "--report": tmp_path / "r.html", "--plot": tmp_path / "p.png",
        "--table": tmp_path / "t.csv", "--statement": tmp_path / "s.json",
    }  # fmt: skip
    words = ["collect", "--config", federation.trial.config("analyst"), "--curve", curve]
    said = run(*words, *(word for pair in written.items() for word in pair))
    assert written["--plot"].stat().st_size > 5000
    assert len(pd.read_csv(written["--table"])) >= 2
    page = written["--report"].read_text()
    if federation.study.noiseless_test:
        assert not written["--statement"].exists()
        assert "NOT PRIVATE" in said.output
        assert "NOT PRIVATE" in page
        assert "epsilon 1" not in said.output + page
        assert "differentially" not in page
        return
    statement = Statement.from_json(written["--statement"].read_text())
    assert statement.epsilon <= 1.0
    # However parties made their rows: nobody else can see that.
    assert any("made a row from one record alone" in one for one in statement.assumptions)
    assert "epsilon 1" in said.output
    assert "must not collude" in page
    again = json.loads(run(*words, "--json").output)
    assert Statement.from_dict(again["statement"]) == statement


def test_collect_gives_the_true_numbers_if_there_is_no_noise(federation):
    words = ["collect", "--config", federation.trial.config("analyst"), "--json", "--curve"]
    positives = sum(int(part.positive.sum()) for part in federation.data.values())
    records = sum(len(part) for part in federation.data.values())
    output = run(*words, "roc").output
    found = json.loads(output[output.index("{") :])
    if federation.study.noiseless_test:
        assert (found["positives"], found["negatives"]) == (positives, records - positives)
        assert found["statement"] is None
    else:
        assert abs(found["positives"] - positives) < 300


def test_progress_shows_who_came_and_what_is_spent(federation):
    words = ["collect", "--config", federation.trial.config("analyst"), "--progress"]
    found = json.loads(run(*words).output)
    assert set(found) == set(federation.trial.servers)
    for state in found.values():
        assert (state["complete"], state["absent"]) == (3, [])


def test_what_is_wrong_is_said_before_anything_is_sent(federation, tmp_path):
    folder, party = federation.trial.folder, federation.trial.config("north")
    analyst = federation.trial.config("analyst")
    give = ["contribute", "--config", party, "--column", "p"]
    with pytest.raises(ValueError, match="needs labels"):
        run(*give, "--data", folder / "north.csv")
    with pytest.raises(ValueError, match="no file at"):
        run(*give, "--data", folder / "nothing.csv")
    with pytest.raises(ValueError, match="not a column"):
        run(*give, "--data", folder / "north.csv", "--label", "z")
    with pytest.raises(NoisewiseError, match="is not a party"):
        run("contribute", "--config", analyst, "--column", "p", "--label", "y", "--pos-label",
            "yes", "--data", folder / "north.csv")  # fmt: skip
    with pytest.raises(NoisewiseError, match="is not an analyst"):
        run("collect", "--config", party)
    with pytest.raises(ValueError, match="has no curve 'rock'"):
        run("collect", "--config", analyst, "--curve", "rock")
    with pytest.raises(ValueError, match="no folder at"):
        run("collect", "--config", analyst, "--plot", tmp_path / "no" / "x.png")
    with pytest.raises(NoisewiseError, match="no configuration file"):
        run("collect", "--config", folder / "nothing.toml")


def test_serve_runs_until_it_is_told_to_stop(tmp_path):
    made = Federation.create(tmp_path, np.random.default_rng(0))
    config = str(made.trial.config("alpha"))
    process = context().Process(target=children.command, args=("serve", "--config", config))
    process.start()
    state = tmp_path / "alpha-state" / "budget.ledger"
    for _ in range(400):
        if state.exists():
            break
        time.sleep(0.05)
    time.sleep(0.3)
    os.kill(process.pid, signal.SIGTERM)
    process.join(20)
    assert process.exitcode == 0
