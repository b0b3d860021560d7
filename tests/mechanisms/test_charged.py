"""Every mechanism charges its ledger before it releases, and says what it charged."""

import numpy as np
import pytest

from noisewise import privacy
from noisewise.errors import BudgetExceededError, LedgerError
from noisewise.privacy import Ledger

PROBLEM = privacy.LogisticProblem(
    np.random.default_rng(0).normal(size=(50, 2)),
    np.random.default_rng(1).integers(0, 2, 50),
    regularisation=5.0,
)
MECHANISMS = {
    "gaussian": lambda **o: privacy.gaussian(3.0, sensitivity=1, epsilon=0.5, delta=1e-6, **o),
    "laplace": lambda **o: privacy.laplace(3.0, sensitivity=1, epsilon=0.5, **o),
    "discrete_laplace": lambda **o: privacy.discrete_laplace(3, sensitivity=1, epsilon=0.5, **o),
    "discrete_gaussian": lambda **o: privacy.discrete_gaussian(
        3, sensitivity=1, epsilon=0.5, delta=1e-6, **o
    ),
    "exponential": lambda **o: privacy.exponential([1.0, 2.0], sensitivity=1, epsilon=0.5, **o),
    "permute_and_flip": lambda **o: privacy.permute_and_flip(
        [1.0, 2.0], sensitivity=1, epsilon=0.5, **o
    ),
    "output_perturbation": lambda **o: privacy.output_perturbation(
        PROBLEM, epsilon=0.5, delta=1e-6, **o
    ),
}
every = pytest.mark.parametrize("name", MECHANISMS)


def book(path, epsilon, name):
    accountant = "rdp" if name == "discrete_gaussian" else "pld"
    return Ledger.create(path, epsilon=epsilon, delta=1e-6, accountant=accountant)


@every
def test_what_is_stated_is_what_was_charged(name, tmp_path):
    with book(tmp_path / "l", 2.0, name) as ledger:
        first = MECHANISMS[name](ledger=ledger)
        MECHANISMS[name](ledger=ledger)
        assert ledger.charges[0].event == first.statement.history[0]
        assert len(ledger.charges) == 2
        assert first.statement.epsilon < ledger.spent() <= 1.0


@every
def test_a_refused_budget_releases_nothing(name, tmp_path):
    with book(tmp_path / "l", 0.4, name) as ledger:
        for seed in (None, 1):
            with pytest.raises(BudgetExceededError):
                MECHANISMS[name](ledger=ledger, seed=seed)
        assert ledger.charges == ()


@every
def test_a_path_is_enough_and_a_seed_is_charged_once(name, tmp_path):
    path = tmp_path / "l"
    first, again = (MECHANISMS[name](ledger=path, seed=4) for _ in range(2))
    assert np.array_equal(first.value, again.value)
    with Ledger.open(path) as ledger:
        assert len(ledger.charges) == 1


def test_the_noise_of_a_seed_serves_one_value(tmp_path):
    privacy.laplace(3.0, sensitivity=1, epsilon=0.5, ledger=tmp_path / "l", seed=4)
    with pytest.raises(LedgerError, match="exact difference"):
        privacy.laplace(4.0, sensitivity=1, epsilon=0.5, ledger=tmp_path / "l", seed=4)


def test_older_words():
    old = privacy.laplace(3.0, sensitivity=1, epsilon=0.5, rng=4)
    new = privacy.laplace(3.0, sensitivity=1, epsilon=0.5, seed=4)
    assert old.value == new.value
    with pytest.raises(TypeError, match="one of them"):
        privacy.laplace(3.0, sensitivity=1, epsilon=0.5, seed=4, rng=4)
    with pytest.raises(TypeError, match="relation='replace-one'"):
        privacy.laplace(3.0, sensitivity=1, epsilon=0.5, neighbors="replace")
