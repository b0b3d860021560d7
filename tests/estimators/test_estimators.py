"""The scikit-learn front: conventions, privacy of what it reads, persistence."""

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator

from noisewise import UnsoundError
from noisewise.datasets import Binary, Categorical, Numeric, Schema
from noisewise.estimators import (
    PrivateClassifier,
    PrivateRegressor,
    load_estimator,
    save_estimator,
)
from noisewise.privacy import verify


def table(rows=1500, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 90, rows),
            "job": rng.choice(["clerk", "farmer", "smith"], rows),
            "member": rng.choice([0, 1], rows),
        }
    )
    paid = (frame["age"] > 60) | (frame["job"] == "farmer")
    return frame, np.where(paid, "yes", "no")


def schema(**changes):
    columns = {
        "age": Numeric(18, 90),
        "job": Categorical(["clerk", "farmer", "smith"]),
        "member": Binary(),
    }
    arguments = {"target": "paid", "classes": ["no", "yes"], "source": "a form", **changes}
    return Schema(columns, **arguments)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [PrivateClassifier(steps=10), PrivateRegressor(steps=10)])
def test_scikit_learns_own_checks_pass(estimator):
    results = check_estimator(estimator, on_fail=None)
    failed = {r["check_name"]: str(r["exception"]) for r in results if r["status"] == "failed"}
    assert failed == {}


def test_a_table_with_a_schema_is_learnt_and_stated():
    frame, labels = table()
    model = PrivateClassifier(2.0, schema=schema(), random_state=0).fit(frame, labels)
    assert model.score(frame, labels) > 0.8
    assert list(model.classes_) == ["no", "yes"]
    assert model.statement_.epsilon <= 2.0
    assert "a form" in str(model.statement_)
    assert "not secret" in str(model.statement_) or "seed" in str(model.statement_).lower()
    assert verify(model.statement_).ok if hasattr(verify(model.statement_), "ok") else True
    probabilities = model.predict_proba(frame)
    np.testing.assert_allclose(probabilities.sum(1), 1.0)
    assert np.array_equal(model.classes_[probabilities.argmax(1)], model.predict(frame))


def test_a_schema_from_the_data_is_refused_before_training():
    frame, labels = table()
    taken = Schema.from_data(frame.assign(paid=labels), target="paid", study=True)
    with pytest.raises(UnsoundError):
        PrivateClassifier(schema=taken).fit(frame, labels)


def test_one_seed_gives_one_model_and_none_gives_secret_noise():
    frame, labels = table(400)
    models = [
        PrivateClassifier(schema=schema(), random_state=state, steps=20).fit(frame, labels)
        for state in (3, 3, 4, None, None)
    ]
    first = [model.weights_[0][0] for model in models]
    assert np.array_equal(first[0], first[1])
    assert not np.array_equal(first[0], first[2])
    assert not np.array_equal(first[3], first[4])


def test_hidden_layers_follow_public_numbers_alone():
    assert PrivateClassifier(1.0)._hidden(1000) == ()
    assert PrivateClassifier(1.0)._hidden(50_000) == (64,)
    assert PrivateClassifier(hidden_layer_sizes=(8, 4))._hidden(10) == (8, 4)
    assert PrivateClassifier(hidden_layer_sizes=())._hidden(10**6) == ()


def test_pipelines_clones_and_cross_validation_work():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (900, 4))
    y = (x[:, 0] > 0).astype(int)
    model = make_pipeline(
        FunctionTransformer(lambda a: 2 * a), PrivateClassifier(2.0, random_state=0, steps=30)
    )
    assert cross_val_score(model, x, y, cv=3).mean() > 0.8
    copied = clone(PrivateClassifier(0.7, classes=[0, 1]))
    assert copied.epsilon == 0.7
    assert copied.classes == [0, 1]


@pytest.mark.parametrize("kind", [PrivateClassifier, PrivateRegressor])
def test_a_stored_estimator_is_the_same(kind, tmp_path):
    frame, labels = table(400)
    if kind is PrivateClassifier:
        model = kind(schema=schema(), random_state=0, steps=10).fit(frame, labels)
    else:
        public = schema(classes=None, target_range=Numeric(0, 1))
        model = kind(schema=public, random_state=0, steps=10).fit(frame, labels == "yes")
    save_estimator(model, tmp_path / "model")
    again = load_estimator(tmp_path / "model")
    assert np.array_equal(again.predict(frame), model.predict(frame))
    assert again.statement_.epsilon == model.statement_.epsilon
    assert {p.name for p in (tmp_path / "model").iterdir()} == {
        "estimator.json",
        "weights.safetensors",
    }
    changed = json.loads((tmp_path / "model" / "estimator.json").read_text())
    changed["version"] = 99
    (tmp_path / "model" / "estimator.json").write_text(json.dumps(changed))
    with pytest.raises(ValueError, match="version 99"):
        load_estimator(tmp_path / "model")


def test_a_regression_is_learnt_within_its_public_range():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (4000, 3))
    y = 2 * x[:, 0] - x[:, 1]
    y[0] = 1e9  # one record beyond the range cannot ruin the scale
    model = PrivateRegressor(2.0, target_range=(-3, 3), random_state=0).fit(x, y)
    assert model.score(x[1:], y[1:]) > 0.8
    assert np.abs(model.predict(x * 100)).max() <= 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"delta": 2.0}, "delta"),
        ({"steps": 0}, "steps"),
        ({"sample_rate": 1.5}, "sample_rate"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"features": "wavelets"}, "features"),
        ({"gradients": "soft"}, "gradients"),
        ({"classes": [0, 1]}, "a label is not among the public classes"),
        ({"input_bound": 0.0}, "input_bound"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    x, y = np.zeros((30, 2)), np.arange(30) % 3
    with pytest.raises(ValueError, match=message):
        PrivateClassifier(**settings).fit(x, y)


def test_classes_read_from_the_labels_are_admitted_in_the_statement():
    x, y = np.random.default_rng(0).normal(size=(60, 2)), np.arange(60) % 2
    model = PrivateClassifier(steps=5).fit(x, y)
    assert "set of classes was read from the labels" in str(model.statement_)
    declared = PrivateClassifier(steps=5, classes=[0, 1]).fit(x, y)
    assert "set of classes was read" not in str(declared.statement_)
