"""Every counting strategy of the registry: complete, documented, and true to its promise."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from noisewise.ecdf.budget import Budget
from noisewise.ecdf.mechanisms import MECHANISMS, plan
from noisewise.ecdf.mechanisms.registry import COUNTING, Counting, register
from noisewise.ecdf.mechanisms.selection import STRATEGY_FILES

DOCS = Path(__file__).parents[2] / "docs"
BUDGETS = (Budget(1.0), Budget(0.7, 1e-6), Budget.concentrated(0.3))


def anchor_exists(proof: str) -> bool:
    page, _, anchor = proof.partition("#")
    return bool(anchor) and f"{{#{anchor}}}" in (DOCS / page).read_text("utf-8")


@pytest.mark.parametrize("name", COUNTING)
def test_a_strategy_says_where_it_is_proven(name: str) -> None:
    assert anchor_exists(COUNTING[name].proof)


def test_every_file_with_a_strategy_is_read() -> None:
    folder = Path(STRATEGY_FILES[0].__file__).parent
    registering = {p.stem for p in folder.glob("*.py") if "register(" in p.read_text("utf-8")}
    named = {module.__name__.rpartition(".")[2] for module in STRATEGY_FILES}
    assert registering - {"registry"} == named


def table_of_strategies() -> list[str]:
    """The table of docs/curves-measured.md, from the registry."""
    return [
        "| `mechanism=` | what it does | proof |",
        "|---|---|---|",
        *(f"| `{c.name}` | {c.told} | [proof]({c.proof}) |" for c in COUNTING.values()),
    ]


def test_the_documented_table_is_the_registry() -> None:
    page = (DOCS / "curves-measured.md").read_text("utf-8")
    table = "\n".join(table_of_strategies())
    assert table in page, f"paste this:\n{table}"


def test_the_words_are_those_of_the_registry() -> None:
    assert set(MECHANISMS) == {"auto", *COUNTING}
    with pytest.raises(ValueError, match="mechanism"):
        plan(8, "add-remove", Budget(1.0), mechanism="nonsense")


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_no_strategy_that_can_be_asked_for_beats_what_auto_takes(
    budget: Budget, relation: str
) -> None:
    for bins, objective in itertools.product((3, 64, 1024), ("mean", "max")):
        taken = plan(bins, relation, budget, objective=objective)
        for name in COUNTING:
            try:
                other = plan(bins, relation, budget, mechanism=name, objective=objective)
            except ValueError:  # what it cannot do: shown by tests/ecdf/test_all_pairs.py
                continue
            mine, its = (
                (taken.mean_variance, other.mean_variance)
                if objective == "mean"
                else (taken.max_variance, other.max_variance)
            )
            # A strategy that the registry offers for a handful of bins only may win there.
            assert mine <= its * (1 + 1e-9) or (name == "histogram" and bins == 3)


def test_a_name_is_taken_once() -> None:
    for taken in ("kary", "auto"):
        with pytest.raises(ValueError, match="there is a counting strategy called"):
            register(Counting(taken, "", "", COUNTING["kary"].make))
