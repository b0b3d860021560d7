"""Every curve of the registry: complete, documented, with the options that all take."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from tests.common.test_common_counting import anchor_exists

from noisewise import ecdf
from noisewise.ecdf import options
from noisewise.ecdf.registry import CURVES, curve

DOCS = Path(__file__).parents[2] / "docs"
#: What everything that releases takes.
COMMON = {"relation", "units", "max_per_unit", "ledger", "seed"}


def options_of(function: Any) -> set[str]:
    """Names of a function's options, also those that are handed on as a typed dictionary."""
    parameters = inspect.signature(function).parameters
    names = set(parameters)
    for parameter in parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            handed_on = str(parameter.annotation).removeprefix("Unpack[").removesuffix("]")
            names |= getattr(options, handed_on).__annotations__.keys()
    return names


def test_whatever_releases_is_registered() -> None:
    assert set(CURVES) == {n for n in ecdf.__all__ if n.startswith(("dp_", "private_"))}
    for name, about in CURVES.items():
        assert getattr(ecdf, name) is about.function


@pytest.mark.parametrize("name", CURVES)
def test_a_curve_takes_the_common_options(name: str) -> None:
    assert options_of(CURVES[name].function) >= COMMON


@pytest.mark.parametrize("name", CURVES)
def test_a_curve_is_proven_explained_and_has_an_example(name: str) -> None:
    about = CURVES[name]
    assert anchor_exists(about.proof)
    assert inspect.getdoc(about.function)
    # One of the functions of a file that give the same release shows it at work.
    assert ">>> " in (inspect.getdoc(inspect.getmodule(about.function)) or "") + "".join(
        inspect.getdoc(other.function) or ""
        for other in CURVES.values()
        if other.function.__module__ == about.function.__module__
    )


def table_of_curves() -> list[str]:
    """The table of docs/curves.md, from the registry."""
    rows = (
        f"| `{name}` | {about.answers} | [proof]({about.proof}) |" for name, about in CURVES.items()
    )
    return ["| function | the question that it answers | |", "|---|---|---|", *rows]


def test_the_documented_table_is_the_registry() -> None:
    table = "\n".join(table_of_curves())
    assert table in (DOCS / "curves.md").read_text("utf-8"), f"paste this:\n{table}"


def test_a_name_is_taken_once() -> None:
    def dp_ecdf() -> None: ...

    with pytest.raises(ValueError, match="there is a curve called"):
        curve(answers="", proof="")(dp_ecdf)
