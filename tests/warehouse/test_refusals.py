"""Bad columns are refused before anything is charged, and no message shows a private value."""

import numpy as np
import pyarrow as pa
import pytest

import noisewise as nw
from noisewise.ecdf.sources import pushed
from noisewise.ecdf.sources.placement import Placement
from noisewise.federated import LocalAggregator
from noisewise.privacy.ledger import Ledger

duckdb = pytest.importorskip("duckdb")
pl = pytest.importorskip("polars")

SECRET = 0.123456789
FORMS = {
    "duckdb": lambda table: duckdb.connect().from_arrow(table),
    "polars lazy": lambda table: pl.from_arrow(table).lazy(),
    "polars": pl.from_arrow,
    "pyarrow": lambda table: table,
    "pandas": lambda table: table.to_pandas(),
}


def released(ledger):
    with Ledger.open(ledger) as book:
        return len(book.entries)


@pytest.fixture
def ledger(tmp_path):
    path = tmp_path / "budget.ledger"
    Ledger.create(path, epsilon=10.0, delta=1e-6).close()
    return path


GOOD = {"y": [0, 1, 1], "p": [0.25, 0.5, SECRET]}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        ({**GOOD, "p": [0.25, None, SECRET]}, {}, "'p' holds NaN or missing"),
        ({**GOOD, "p": [0.25, float("nan"), SECRET]}, {}, "'p' holds NaN or missing"),
        ({**GOOD, "y": [0, None, 1]}, {}, "'y' holds missing labels"),
        ({**GOOD, "y": [0.0, float("nan"), 1.0]}, {}, "'y' holds missing labels"),
        ({**GOOD, "y": [0, -1, 1]}, {}, "holds other labels"),
        ({**GOOD, "y": [0, 7, 1]}, {}, "holds other labels"),
        ({**GOOD, "p": ["0.25", "x", str(SECRET)]}, {}, "'p' must hold numbers"),
        ({**GOOD, "y": ["yes", "no", "no"]}, {}, "which label is positive"),
        ({**GOOD, "y": ["yes", "no", "no"]}, {"pos_label": 1}, "no record would be positive"),
        (GOOD, {"pos_label": "yes"}, "no record would be positive"),
        ({"y": [0, 1, 1], "score": [0.1, 0.2, SECRET]}, {}, "'p' is not a column"),
    ],
)
def test_bad_columns_cost_nothing_and_show_nothing(form, columns, options, says, ledger):
    table = FORMS[form](pa.table(columns))
    for release in (
        nw.ecdf.dp_roc_auc_score,
        nw.ecdf.private_evaluation,
        nw.ecdf.dp_hosmer_lemeshow,
        nw.ecdf.dp_calibration_curve,
    ):
        with pytest.raises((ValueError, TypeError), match=says) as refused:
            release("y", "p", data=table, epsilon=1.0, ledger=ledger, **options)
        assert "123456" not in str(refused.value)
    assert released(ledger) == 0


@pytest.mark.parametrize("form", FORMS)
def test_predictions_outside_of_zero_and_one_are_refused(form, ledger):
    table = FORMS[form](pa.table({**GOOD, "p": [0.25, 1.5, SECRET]}))
    for options in ({}, {"method": "thesis", "cuts": [0.5]}, {"method": "statistic"}):
        with pytest.raises(ValueError, match="probabilities"):
            nw.ecdf.dp_hosmer_lemeshow("y", "p", data=table, epsilon=1.0, ledger=ledger, **options)
    for strategy in ("uniform", "quantile"):
        with pytest.raises(ValueError, match="probabilities"):
            nw.ecdf.dp_calibration_curve(
                "y", "p", data=table, epsilon=1.0, ledger=ledger, strategy=strategy
            )
    assert released(ledger) == 0


@pytest.mark.parametrize("form", FORMS)
def test_an_empty_table_has_noise_and_no_curve_if_its_size_is_public(form, ledger):
    table = FORMS[form](pa.table({"p": pa.array([], pa.float64()), "y": pa.array([], pa.int64())}))
    curve = nw.ecdf.dp_ecdf("p", data=table, bounds=(0, 1), epsilon=1.0, bins=16, seed=1)
    nothing = nw.ecdf.dp_ecdf(np.zeros(0), bounds=(0, 1), epsilon=1.0, bins=16, seed=1)
    assert np.array_equal(curve.noisy_counts, nothing.noisy_counts)
    options = {"data": table, "epsilon": 1.0, "relation": "replace-one", "ledger": ledger}
    with pytest.raises(ValueError, match="empty"):
        nw.ecdf.dp_ecdf("p", bounds=(0, 1), **options)
    with pytest.raises(ValueError, match="empty"):
        nw.ecdf.dp_roc_curve("y", "p", **options)
    with pytest.raises(ValueError, match="empty"):
        nw.ecdf.dp_calibration_curve("y", "p", **options)
    assert released(ledger) == 0


def test_a_message_of_the_engine_is_not_passed_on():
    connection = duckdb.connect()
    connection.execute(f"create table t as select '{SECRET}x' as p")
    table = connection.sql("select cast(p as double) as p from t")
    with pytest.raises(ValueError, match="could not answer") as refused:
        nw.ecdf.dp_ecdf("p", data=table, bounds=(0, 1), epsilon=1.0)
    text, error = "", refused.value
    while error is not None:
        text, error = text + str(error), error.__cause__ or error.__context__
    assert "123456" not in text


def test_an_engine_that_places_values_wrongly_is_refused_and_costs_nothing(monkeypatch, ledger):
    x = np.arange(0.0, 120.0)  # many of them edges of 1,000 bins in (0, 120)
    table = duckdb.connect().from_arrow(pa.table({"x": x}))
    options = {"bounds": (0, 120), "bins": 1000, "epsilon": 1.0, "ledger": ledger}
    wrong = Placement("scaled", np.append(0.0, np.arange(1, 1001) / 1000 * 120), "above")
    monkeypatch.setattr(Placement, "of", classmethod(lambda cls, grid, negated=False: wrong))
    with pytest.raises(ValueError, match="IEEE 754"):
        nw.ecdf.dp_ecdf("x", data=table, **options)
    assert released(ledger) == 0


def test_a_release_sends_one_query_whose_answer_has_a_row_for_each_group(monkeypatch):
    sent = []
    answer = pushed.PushedDown._answer

    def watched(self, query, placement, names=()):
        sent.append(len(query.collect(backend="pyarrow")))
        return answer(self, query, placement, names)

    monkeypatch.setattr(pushed.PushedDown, "_answer", watched)
    table = duckdb.connect().sql("select random() p, (random() < 0.3)::int y from range(100000)")
    nw.ecdf.dp_roc_curve("y", "p", data=table, epsilon=1.0, bins=64)
    assert sent == [128]
    nw.ecdf.dp_ecdf("p", data=table, bounds=(0, 1), epsilon=1.0, bins=32)
    assert sent == [128, 32]


def test_what_is_no_table_is_refused_by_its_type():
    with pytest.raises(TypeError, match="got list"):
        nw.ecdf.dp_ecdf("x", data=[1, 2], bounds=(0, 1), epsilon=1.0)
    with pytest.raises(TypeError, match="by name, got ndarray"):
        nw.ecdf.dp_ecdf(np.ones(3), data=pa.table(GOOD), bounds=(0, 1), epsilon=1.0)
    with pytest.raises(TypeError, match="stream"):
        nw.ecdf.dp_ecdf("p", data=pa.table(GOOD).to_reader(), bounds=(0, 1), epsilon=1.0)
    with pytest.raises(ValueError, match="contribute"):
        nw.ecdf.dp_ecdf(
            "p",
            data=pa.table(GOOD),
            bounds=(0, 1),
            epsilon=1.0,
            aggregator=LocalAggregator(),
        )
