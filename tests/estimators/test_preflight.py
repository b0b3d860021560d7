"""A look at the records before anything is spent: local, switched off by a word, never released."""

import warnings

import numpy as np
import pandas as pd
import pytest

from noisewise.datasets import Categorical, Identifier, Numeric, Schema
from noisewise.datasets.preflight import LOOKED, PreflightError, PreflightWarning
from noisewise.estimators import PrivateClassifier, PrivateRegressor
from noisewise.privacy import Ledger


def people(rows=600):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"age": rng.integers(18, 90, rows), "job": rng.choice(["clerk", "smith"], rows)}
    )
    return frame, np.where(frame["age"] > 50, "yes", "no")


def schema(**changes):
    columns = {"age": Numeric(18, 90), "job": Categorical(["clerk", "smith"])} | changes
    return Schema(columns, target="paid", classes=["no", "yes"], source="a form")


def refused(model, x, y, tmp_path):
    """Return why a fit was refused; nothing was charged."""
    path = tmp_path / "untouched.ledger"
    Ledger.create(path, delta=1e-5).close()
    model.set_params(ledger=path, delta=1e-5, steps=3)
    with pytest.raises(PreflightError) as error:
        model.fit(x, y)
    with Ledger.open(path) as ledger:
        assert ledger.charges == ()
    model.set_params(preflight=False, ledger=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PreflightWarning)
        model.fit(x, y)  # what was refused is possible
    return str(error.value)


def test_a_table_in_another_unit_is_refused_before_it_costs(tmp_path):
    x, y = people()
    model = PrivateClassifier(schema=schema(age=Numeric(1900, 2020), job=Categorical(["a", "b"])))
    text = refused(model, x, y, tmp_path)
    assert "another unit" in text
    assert "not private" in text


def test_natural_units_without_a_schema_are_refused(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.uniform(1e3, 1e5, (500, 3))
    text = refused(PrivateClassifier(classes=[0, 1]), x, (x[:, 0] > 5e4).astype(int), tmp_path)
    assert "natural units" in text


def test_one_class_of_two_is_refused(tmp_path):
    x, _ = people()
    text = refused(PrivateClassifier(schema=schema()), x, np.full(len(x), "no"), tmp_path)
    assert "only 'no'" in text


def test_a_regression_without_a_range_is_refused(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (500, 3))
    text = refused(PrivateRegressor(), x, 1000 * x[:, 0], tmp_path)
    assert "target_range=(lowest, highest)" in text


def test_a_range_of_the_target_in_another_unit_is_refused(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (500, 3))
    text = refused(PrivateRegressor(target_range=(0, 1)), x, 1000 + x[:, 0], tmp_path)
    assert "another unit" in text


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (PrivateClassifier(0.1, schema=schema(), steps=3), "expect nothing"),
        (PrivateClassifier(1.0, schema=schema(), steps=3), "expect little"),
        (PrivateClassifier(2.0, 0.5, schema=schema(), steps=3), "delta 0.5 is more than one over"),
        (
            PrivateClassifier(2.0, schema=schema(job=Identifier()), steps=3),
            "rows are not people",
        ),
        (
            PrivateClassifier(2.0, schema=schema(job=Categorical(["x", "y"])), steps=3),
            "carry no information: job",
        ),
    ],
)
def test_what_may_disappoint_is_a_warning(model, said):
    x, y = people()
    with pytest.warns(PreflightWarning, match=said):
        model.fit(x, y)


def test_few_of_one_class_are_a_warning():
    x, y = people()
    y = np.where(np.arange(len(y)) < 20, "yes", "no")
    with pytest.warns(PreflightWarning, match="accuracy says little"):
        PrivateClassifier(2.0, schema=schema(), steps=3).fit(x, y)


def test_nothing_that_was_seen_is_in_the_statement_or_the_model():
    x, y = people()
    other = x.assign(job="unheard-of", age=np.where(x["age"] > 50, x["age"] * 40, x["age"]))
    texts = []
    for frame in (x, other):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = PrivateClassifier(2.0, schema=schema(), steps=3, random_state=0)
            model.fit(frame, y)
        assert LOOKED in model.statement_.assumptions
        kept = [s for s in model.statement_.assumptions if not s.startswith("This statement")]
        texts.append((kept, sorted(vars(model))))
    assert texts[0] == texts[1]
    assert not any(word in str(texts) for word in ("clamped, ", "% unknown", "STOP", "Warning:"))


def test_the_statement_speaks_of_the_look_only_if_there_was_one():
    x, y = people()
    model = PrivateClassifier(2.0, schema=schema(), steps=3, preflight=False).fit(x, y)
    assert LOOKED not in model.statement_.assumptions


def test_without_a_schema_a_column_that_names_patients_is_a_warning_unless_units_are_given():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"age": rng.normal(size=300), "patient_id": np.arange(300) // 30})
    y = (table["age"] > 0).astype(int)
    with pytest.warns(PreflightWarning, match="rows are not people"):
        PrivateClassifier(epsilon=1.0, steps=2, random_state=0).fit(table, y)
    with pytest.warns(PreflightWarning, match="10 units expect") as told:
        PrivateClassifier(epsilon=1.0, steps=2, random_state=0).fit(
            table, y, units=table["patient_id"]
        )
    assert not any("not people" in str(warning.message) for warning in told)
