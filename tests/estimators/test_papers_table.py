"""The papers' table: the page shows the stored runs, and a stopped search goes on as it was."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "experiments"


@pytest.fixture
def table(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location("papers_table", FOLDER / "papers_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("tables", None)  # the experiments' module, which has a common name


def test_the_page_shows_what_the_stored_runs_say(table):
    page = table.PAGE.read_text()
    shown = page.split(table.BEGIN)[1].split(table.END)[0].strip()
    assert shown == table.markdown(table.done())


def test_every_table_has_the_same_search_for_every_method(table):
    fits, _ = table.collected(table.done())
    names, methods = table.shown(table.done())
    assert names
    for name in names:
        for method in methods:
            if (name, method) in fits:
                lines = [r for r in table.done() if (r["table"], r["method"]) == (name, method)]
                assert [r["kind"] for r in lines] == ["trial"] * 6 + ["fit"] * 10


def test_a_method_that_is_always_better_is_told_from_one_that_is_not(table):
    flat = {d: 0.8 + d / 1000 for d in range(10)}
    better = {d: value + 0.001 + d / 10000 for d, value in flat.items()}
    points, value = table.compared(better, flat)
    assert points == pytest.approx(0.145)
    assert value < 0.05
    mixed = {d: value + (0.01 if d % 2 else -0.01) for d, value in flat.items()}
    assert table.compared(mixed, flat)[1] > 0.05
    assert table.compared(flat, flat) == (0.0, 1.0)


def test_a_search_that_was_stopped_ends_as_one_that_was_not(table, monkeypatch, tmp_path):
    pytest.importorskip("optuna")
    asked = []

    def measured(name, method, setting, dealing, search):
        asked.append(setting)
        if len(asked) == stop:
            raise KeyboardInterrupt
        return 1.0 / (1.0 + abs(setting["learning_rate"] - 1.0)) + setting["width"] / 100

    monkeypatch.setattr(table, "measured", measured)
    stop = -1
    monkeypatch.setattr(table, "RUNS", tmp_path / "whole.jsonl")
    best = table.searched("nursery", "DP-SGD", 6)
    whole, stop = list(asked), 5
    asked.clear()
    monkeypatch.setattr(table, "RUNS", tmp_path / "stopped.jsonl")
    with pytest.raises(KeyboardInterrupt):
        table.searched("nursery", "DP-SGD", 6)
    stop = -1
    assert table.searched("nursery", "DP-SGD", 6) == best
    lines = (tmp_path / "stopped.jsonl").read_text().splitlines()
    assert [json.loads(line)["trial"] for line in lines] == whole
    with pytest.raises(RuntimeError, match="another search"):
        table.searched("nursery", "DP-SGD", 4)
