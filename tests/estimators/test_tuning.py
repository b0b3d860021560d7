"""``tune=``: settings that are chosen privately, within the epsilon of the fit."""

import numpy as np
import pytest

from noisewise.estimators import PrivateClassifier, Tuning
from noisewise.privacy import Ledger, verify


def table(rows=1500):
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (rows, 3))
    return x, x[:, 0] > 0


def classifier(**changes):
    fields = {"epsilon": 2.0, "delta": 1e-5, "classes": [False, True], "steps": 20}
    return PrivateClassifier(**{**fields, "random_state": 1, **changes})


def test_the_epsilon_of_a_tuned_fit_covers_the_choice():
    rates = Tuning([{"learning_rate": 1e-7}, {"learning_rate": 2.0}], trials=6)
    model = classifier(tune=rates).fit(*table())
    assert model.statement_.epsilon <= 2.0
    assert model.statement_.history[0].kind == "selection"
    assert verify(model.statement_).ok
    assert model.best_params_["learning_rate"] in (1e-7, 2.0)
    assert model.score(*table()) > 0.85
    plain = classifier().fit(*table()).statement_.history[0]
    assert model.statement_.history[0].trials[0][0].noise_multiplier > plain.noise_multiplier


def test_combinations_steps_and_ledgers(tmp_path):
    grid = Tuning({"steps": [10, 20], "hidden_layer_sizes": [(), (4,)]}, trials=2)
    model = classifier(tune=grid, ledger=tmp_path / "ledger").fit(*table(600))
    assert len(model.statement_.history[0].trials) == 3
    assert model.n_iter_ == model.best_params_["steps"]
    with Ledger.open(tmp_path / "ledger") as book:
        assert len(book.charges) == 1
        assert book.spent(delta=1e-5) <= 2.0


@pytest.mark.parametrize(
    ("tune", "message"),
    [
        ([{"epsilon": 3.0}], "tune can change"),
        ({"classes": [[0, 1]]}, "tune can change"),
        ([3.0], "list of dicts"),
    ],
)
def test_what_decides_about_records_is_not_tuned(tune, message):
    with pytest.raises((ValueError, TypeError), match=message):
        classifier(tune=tune).fit(*table(50))


def test_a_distribution_over_costs_is_refused():
    optuna = pytest.importorskip("optuna")
    with pytest.raises(ValueError, match="paid before the first"):
        classifier(tune={"steps": optuna.distributions.IntDistribution(1, 9)}).fit(*table(50))
