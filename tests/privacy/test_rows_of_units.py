"""Releases that say how many rows of a unit count: epsilon follows from what one row costs."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from noisewise import ecdf
from noisewise.errors import StatementError
from noisewise.privacy import (
    Gaussian,
    Laplace,
    PoissonGaussian,
    PoissonRows,
    Pure,
    Statement,
    ZeroConcentrated,
    epsilon_of,
    verify,
)
from noisewise.privacy.events import Event, Selection
from noisewise.privacy.statement import digest
from noisewise.release import Units

WHOLE: dict[str, Event] = {
    "pure": Pure(1.0, 2),
    "zero-concentrated": ZeroConcentrated(0.3, 2),
    "gaussian": Gaussian(1.7, 2),
}
kinds = pytest.mark.parametrize("kind", WHOLE)


@kinds
@given(st.integers(1, 1 << 20), st.floats(1e-6, 1e3))
def test_what_is_told_by_rows_is_never_less_than_the_whole(
    kind: str, rows: int, size: float
) -> None:
    event = {"pure": Pure, "zero-concentrated": ZeroConcentrated, "gaussian": Gaussian}[kind](size)
    told = event.per_row(rows)
    assert told.rows == rows
    assert told.covers(event)
    costs, cost = told.whole, event.whole
    assert costs == pytest.approx(cost, rel=1e-15)
    assert costs <= cost if kind == "gaussian" else costs >= cost


@kinds
def test_epsilon_is_that_of_all_rows(kind: str) -> None:
    whole = WHOLE[kind]
    accountant = "rdp" if kind == "zero-concentrated" else "pld"
    wanted = epsilon_of(whole, delta=1e-6, accountant=accountant)
    for rows in (1, 3, 40):
        told = whole.per_row(rows)
        found = epsilon_of(told, delta=1e-6, accountant=accountant)
        assert found == pytest.approx(wanted, rel=1e-9)


def test_group_privacy_of_noise_on_counts_is_not_loose() -> None:
    """k equal rows move a count by k; the loss between Laplace distributions k apart is k/b."""
    scale, rows = 4.0, 3
    x = np.arange(-400, 401)
    log_mass = -np.abs(x) / scale
    moved = -np.abs(x - rows) / scale
    assert np.abs(log_mass - moved).max() == pytest.approx(Pure(1 / scale, rows=rows).whole)


def test_other_kinds_are_not_told_by_rows() -> None:
    with pytest.raises(ValueError, match="not told by the rows"):
        Laplace(1.0).per_row(3)


def test_rows_within_a_selection_are_a_field_too_and_have_no_analysis_under_replace_one() -> None:
    event = Selection(((PoissonRows(5.0, 0.1, 4, 10),),), "poisson", 0.0, 3.0)
    statement = Statement.derive(event, delta=1e-5, mechanism="a test", unit="one patient")
    assert statement.unit_rows == 4
    assert statement.sampler.startswith("Poisson: each row of a unit")
    assert Statement.from_json(statement.to_json()) == statement
    with pytest.raises(ValueError, match="replace-one"):
        epsilon_of(event, delta=1e-5, relation="replace-one")


# ---------------------------------------------------------------------------- files


def of_curve(rows: int = 3, **options: Any) -> Statement:
    rng = np.random.default_rng(0)
    units = Units(rng.integers(0, 40, 200), name="one patient")
    options = {"epsilon": 1.0, "bins": 16, "bounds": (0, 1), "seed": 1, **options}
    return ecdf.dp_ecdf(rng.random(200), units=units, max_per_unit=rows, **options).statement()


def rewritten(statement: Statement, **changes: Any) -> str:
    """The file of somebody who changes fields and knows how the digest is made."""
    content = json.loads(statement.to_json())
    del content["digest"]
    for name, change in changes.items():
        content[name] = change(content[name])
    return json.dumps({**content, "digest": digest(content)})


def with_rows(rows: int) -> Any:
    return lambda history: [{**event, "rows": rows} for event in history]


@pytest.mark.parametrize("options", [{}, {"delta": 1e-6}, {"epsilon": None, "rho": 0.1}])
def test_more_rows_in_the_same_noise_are_a_wrong_epsilon(options: dict[str, Any]) -> None:
    statement = of_curve(**options)
    assert verify(statement).ok
    text = rewritten(statement, history=with_rows(4), unit_rows=lambda _: 4)
    found = verify(text)
    assert not found.ok
    assert found.recomputed > 1.2 * statement.epsilon
    assert found.independent is None or found.independent > 1.2 * statement.epsilon
    with pytest.raises(StatementError, match="up to 3 rows of a unit"):  # as it says itself
        verify(rewritten(statement, history=with_rows(2), unit_rows=lambda _: 2))


def test_the_field_must_be_that_of_the_history() -> None:
    statement = of_curve()
    assert statement.unit_rows == 3
    for text in (
        rewritten(statement, unit_rows=lambda _: 2),
        rewritten(statement, history=with_rows(4)),
        rewritten(
            statement,
            history=lambda events: [{k: v for k, v in e.items() if k != "rows"} for e in events],
        ),
    ):
        with pytest.raises(StatementError, match="unit_rows"):
            verify(text)


def test_a_statement_about_records_has_no_such_field() -> None:
    x = np.random.default_rng(0).random(50)
    statement = ecdf.dp_ecdf(x, epsilon=1.0, bins=16, bounds=(0, 1), seed=1).statement()
    assert statement.unit_rows is None
    assert "rows" not in statement.to_json()
    assert math.isclose(statement.epsilon, of_curve().epsilon, rel_tol=1e-6)


def test_what_is_printed_of_the_bound_speaks_of_the_releases_that_have_one() -> None:
    curve = of_curve()
    assert "one patient; at most 3 of its rows count\n" in str(curve)
    training = Statement.derive(
        PoissonGaussian(2.0, 0.1, 10), delta=1e-6, mechanism="training", unit="one patient"
    )
    assert "of its rows count" not in str(training)
    both = Statement.compose([training, curve])
    assert both.unit_rows == 3
    assert "one patient; at most 3 of its rows count in releases that say so" in str(both)
    assert both.sampler.startswith("Poisson: each unit")
    assert verify(both).ok


def test_a_history_of_fewer_rows_contradicts_what_is_said_of_the_releases() -> None:
    """The same noise costs half if half the rows are said to count."""
    units = Units([0, 0, 0, 1], name="one patient")
    options: dict[str, Any] = {"bounds": (0, 1), "bins": 8, "epsilon": 1.0, "units": units}
    said = ecdf.dp_ecdf([0.1, 0.2, 0.3, 0.4], max_per_unit=2, **options).statement().to_dict()
    del said["digest"]
    (event,) = said["history"]
    for rows in ({"rows": 1}, {}):
        history = [{key: value for key, value in event.items() if key != "rows"} | rows]
        forged = said | {"history": history, "epsilon": event["epsilon"], "unit_rows": 1}
        if not rows:
            del forged["unit_rows"]
        with pytest.raises(StatementError, match="up to 2 rows of a unit"):
            Statement.from_json(json.dumps(forged | {"digest": digest(forged)}))
