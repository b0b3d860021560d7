"""Statements of version 0.1: not believed, but read and derived again (docs/stability.md)."""

import json
import re
from pathlib import Path

import pytest

from noisewise.errors import StatementError
from noisewise.privacy import Laplace, Statement, first_version

#: Written by version 0.1.
OLD = """\
{
  "format": "noisewise-privacy-statement",
  "version": 1,
  "epsilon": 2.2443416571724604,
  "delta": 1e-05,
  "relation": "add-remove",
  "unit": "one patient",
  "mechanism": "DP-SGD",
  "noise_multiplier": null,
  "sample_rate": null,
  "steps": 1001,
  "history": [
    {
      "kind": "poisson-gaussian",
      "noise_multiplier": 1.0,
      "sample_rate": 0.01,
      "count": 1000
    },
    {
      "kind": "laplace",
      "noise_multiplier": 2.0,
      "count": 1
    }
  ],
  "accountant": "pld",
  "sampler": "Poisson: each record independently, with probability 0.01",
  "randomness": "not stated",
  "assumptions": [
    "the number of records is public"
  ],
  "versions": {
    "noisewise": "0.1.0",
    "dp-accounting": "0.6.0",
    "python": "3.11.7"
  },
  "digest": "cac92ff522d5f6e232422ac0699d489cdef29a30834c7aa1d2eae85c52f06057"
}
"""
PAGE = Path(__file__).resolve().parents[2] / "docs" / "stability.md"


def test_a_statement_of_version_0_1_is_refused_with_the_way_out() -> None:
    with pytest.raises(StatementError, match=r"version must be 2, got 1.*derive it again"):
        Statement.from_json(OLD)


def test_the_page_shows_how_it_is_derived_again(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("statement.json").write_text(OLD)
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(program, "docs/stability.md", "exec"), names)
    statement = names["again"]("statement.json")
    assert isinstance(statement, Statement)
    old = json.loads(OLD)
    assert statement.epsilon == pytest.approx(old["epsilon"], rel=1e-3)
    assert (statement.unit, statement.delta) == (old["unit"], old["delta"])
    written = json.loads(statement.to_json())
    assert set(old["assumptions"]) < set(written["assumptions"])  # with its premises now
    assert Statement.from_json(statement.to_json()) == statement


def test_the_page_names_the_words_by_which_old_counts_are_known() -> None:
    words = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert first_version._THEN in words
    counts = [Laplace(1.0, 10)]
    told = {"delta": 0.01, "unit": "one record", "mechanism": first_version._THEN}
    old = Statement.derive(counts, **told)
    new = Statement.derive(counts, **{**told, "mechanism": "Laplace noise"})
    assert old.epsilon > new.epsilon  # as the page says
    assert first_version._THEN not in old.mechanism
