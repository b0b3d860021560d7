"""The command `noisewise datasets`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from local_web import Web
from typer.testing import CliRunner

import noisewise.datasets as nd
from noisewise.cli.datasets import app
from noisewise.datasets import entries

runner = CliRunner()


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")


def test_the_list_has_every_dataset_on_one_line_of_80_columns(nowhere: Path) -> None:
    result = runner.invoke(app, [])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert max(map(len, lines)) <= 80
    for name in nd.list_datasets():
        (line,) = [line for line in lines if line.split()[:1] == [name]]
        assert str(nd.info(name).rows) in line
    assert "package" in next(line for line in lines if line.startswith("adult"))
    assert "scikit-learn" in next(line for line in lines if line.startswith("breast"))
    assert "to download" in next(line for line in lines if line.startswith("mnist"))


def test_the_list_as_json_has_licence_source_and_place(nowhere: Path) -> None:
    listed = json.loads(runner.invoke(app, ["--json"]).output)
    assert [entry["name"] for entry in listed] == list(nd.list_datasets())
    by_name = {entry["name"]: entry for entry in listed}
    assert by_name["adult"]["place"] == "package"
    assert by_name["adult"]["path"].endswith("adult.parquet")
    assert by_name["mnist"]["path"] is None
    assert all(entry["licence"] and entry["source"] for entry in listed)


@pytest.mark.parametrize("name", nd.list_datasets())
def test_show_fits_80_columns_and_tells_the_traps(name: str, nowhere: Path) -> None:
    result = runner.invoke(app, ["show", name])
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.splitlines())) <= 80
    flat = "".join(result.output.split())
    for note in nd.info(name).notes:
        assert "".join(note.split()) in flat
    if nd.info(name).kind == "table":
        assert "Publicschema" in flat
    shown = json.loads(runner.invoke(app, ["show", name, "--json"]).output)
    assert shown["sha256"] == nd.info(name).sha256
    if "schema" in shown:
        assert nd.Schema.from_json(json.dumps(shown["schema"])) == nd.schema_for(name)


def test_show_says_whether_the_file_is_verified(
    nowhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "verified" in runner.invoke(app, ["show", "adult"]).output
    (tmp_path / "adult.parquet").write_bytes(b"something else")
    monkeypatch.setenv("NOISEWISE_DATA", str(tmp_path))
    assert "is wrong" in runner.invoke(app, ["show", "adult"]).output


def test_path_prints_the_path_or_fails_with_the_way_out(nowhere: Path) -> None:
    result = runner.invoke(app, ["path", "adult"])
    assert result.exit_code == 0
    assert Path(result.output.strip()).is_file()
    result = runner.invoke(app, ["path", "mnist"])
    assert result.exit_code == 2
    assert "--download" in result.stderr
    assert result.stdout == ""


def test_path_downloads_when_asked(
    nowhere: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dataclasses

    from noisewise.datasets.parse import parse
    from noisewise.datasets.registry import RemoteFile, Source

    row = b"usual,proper,complete,1,convenient,convenient,nonprob,recommended,recommend\n"
    source = Source("nursery", (RemoteFile(web.serve("/nursery.data", row)),))
    content = nd.content_hash(parse("nursery", {"nursery.data": row}))
    changed = dataclasses.replace(nd.info("nursery"), sources=(source,), content=content)
    monkeypatch.setitem(entries.ENTRIES, "nursery", changed)
    result = runner.invoke(app, ["path", "nursery", "--download"])
    assert result.exit_code == 0, result.output
    assert result.stdout.strip().replace("\n", "") == str(nowhere / "nursery.parquet")


def test_an_unknown_name_fails_with_the_nearest(nowhere: Path) -> None:
    result = runner.invoke(app, ["show", "adlt"])
    assert result.exit_code == 2
    assert "did you mean 'adult'" in result.stderr
