"""Defaults follow from public numbers, and the schemas of the seven tables from documentation."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

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


@pytest.mark.parametrize("gradients", ["clipped", "input-scaled", "propagated"])
def test_hidden_values_are_normalised_in_training_and_in_use(gradients):
    x = np.random.default_rng(0).uniform(-1, 1, size=(120, 3))
    y = (x[:, 0] > 0).astype(int)
    model = PrivateClassifier(
        epsilon=5.0, gradients=gradients, hidden_layer_sizes=(6,), steps=2, normalise=0.2,
        random_state=0,
    ).fit(x, y)  # fmt: skip
    (first, shift), (last, offset) = model.weights_
    hidden = x.astype(np.float32) @ first.T + shift
    hidden = hidden - hidden.mean(1, keepdims=True)
    hidden = hidden / np.maximum(hidden.std(1, keepdims=True), 0.2)
    scores = np.tanh(hidden) @ last.T + offset
    assert np.allclose(model._scores(x), model._temperature * scores, atol=1e-5)
    network = model._network(np.zeros((1, 3), np.float32), 2, 0, 120)
    assert any(type(layer).__name__ == "LipschitzGroupNorm" for layer in network)


def test_weights_are_held_to_the_limit_that_was_asked_for():
    x = np.random.default_rng(0).uniform(-1, 1, size=(200, 3))
    y = (x[:, 0] > 0).astype(int)
    norms = {}
    for projection in ("clip", "fix"):
        model = PrivateClassifier(
            epsilon=20.0, gradients="input-scaled", hidden_layer_sizes=(4,), steps=5,
            learning_rate=2.0, weight_limit=0.5, projection=projection, random_state=0,
        ).fit(x, y)  # fmt: skip
        norms[projection] = [np.linalg.norm(matrix, 2) for matrix, _ in model.weights_]
    assert max(norms["clip"]) <= 0.5 + 1e-6
    assert np.allclose(norms["fix"], 0.5, atol=2e-2)
    with pytest.raises(ValueError, match="projection"):
        PrivateClassifier(projection="round").fit(x, y)
    with pytest.raises(ValueError, match="weight_limit"):
        PrivateClassifier(weight_limit=0.0).fit(x, y)
