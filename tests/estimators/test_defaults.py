"""Defaults follow from public numbers, and the schemas of the seven tables from documentation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noisewise.datasets import Categorical, Ordinal, schema_for
from noisewise.estimators import PrivateClassifier, PrivateRegressor


@given(st.integers(1, 10**7), st.floats(0.01, 100))
def test_the_learning_rate_grows_with_rows_and_epsilon_within_limits(rows, epsilon):
    rate = PrivateClassifier(epsilon)._rate(rows)
    assert 0.25 <= rate <= 4.0
    assert PrivateClassifier(epsilon)._rate(8 * rows) == pytest.approx(min(4.0, 4 * rate)) or (
        rate == 0.25
    )
    assert PrivateClassifier(4 * epsilon)._rate(rows) == pytest.approx(
        PrivateClassifier(epsilon)._rate(4 * rows)
    )


def test_a_given_rate_is_used_as_it_is():
    assert PrivateClassifier(learning_rate=0.3)._rate(10**6) == 0.3
    assert PrivateRegressor(learning_rate=0.3)._rate(10**6) == 0.3
    assert PrivateClassifier(features="scattering")._rate(60_000) == 2.0


def test_what_follows_from_the_number_of_rows_is_said_in_the_statement():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 2)), np.arange(60) % 2
    sentence = "Hidden layers and learning rate follow from epsilon and the number of records"
    model = PrivateClassifier(steps=5, classes=[0, 1]).fit(x, y)
    assert sentence in str(model.statement_)
    fixed = PrivateClassifier(
        steps=5, classes=[0, 1], hidden_layer_sizes=(), learning_rate=1.0
    ).fit(x, y)
    assert sentence not in str(fixed.statement_)


def test_repayment_is_a_code_and_savings_and_employment_are_ordered():
    cards = schema_for("default_credit").columns
    repayment = [name for name in cards if name.startswith("PAY_") and "AMT" not in name]
    assert len(repayment) == 6
    for name in repayment:
        assert isinstance(cards[name], Categorical)
        assert set(cards[name].values) == set(range(-2, 10))
    german = schema_for("german_credit").columns
    assert isinstance(german["Attribute6"], Ordinal)
    assert isinstance(german["Attribute7"], Ordinal)
