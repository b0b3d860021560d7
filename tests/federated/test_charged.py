"""What is asked across parties is charged to the analyst's ledger before anybody is asked."""

import numpy as np
import pytest

from noisewise import federated
from noisewise.errors import BudgetExceededError, LedgerError
from noisewise.privacy import Ledger, verify

GENERATOR = np.random.default_rng(0)
SCORES = [GENERATOR.random(size) for size in (40, 5, 60)]
BOTH = [(GENERATOR.random(part.size) < part, part) for part in SCORES]
AGGREGATORS = {
    "curator": federated.LocalAggregator(),
    "masks": federated.MaskedAggregator(),
    "servers": federated.FunctionSharing(),
    "four servers": federated.FunctionSharing(servers=4, honest=2),
}
CURVES = {
    "ecdf": lambda a, **o: federated.ecdf(SCORES, a, bounds=(0, 1), bins=16, epsilon=0.5, **o),
    "roc": lambda a, **o: federated.roc(BOTH, a, bins=16, epsilon=0.5, **o),
    "histogram": lambda a, **o: federated.histogram(
        SCORES, a, bins=8, range=(0, 1), epsilon=0.5, **o
    ),
    "hosmer-lemeshow": lambda a, **o: federated.hosmer_lemeshow(
        BOTH, a, bins=16, epsilon=0.5, draws=20, **o
    ),
}
curves = pytest.mark.parametrize("curve", CURVES)


@curves
@pytest.mark.parametrize("name", AGGREGATORS)
def test_the_statement_verifies_and_is_what_was_charged(curve, name, tmp_path):
    with Ledger.create(tmp_path / "l") as ledger:
        statement = CURVES[curve](AGGREGATORS[name], ledger=ledger).statement()
        assert verify(statement).ok
        assert statement.relation.name == "add-remove"
        assert sorted(map(repr, statement.history)) == sorted(map(repr, ledger.history))


@curves
def test_a_refused_budget_asks_nobody(curve, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        federated.LocalAggregator, "ask", lambda self, *arguments: asked.append(arguments)
    )
    # Of two questions either would fit, but not both.
    with Ledger.create(tmp_path / "l", epsilon=0.45) as ledger:
        with pytest.raises(BudgetExceededError):
            CURVES[curve](federated.LocalAggregator(), ledger=ledger)
        assert ledger.charges == ()
    assert asked == []


@curves
def test_a_seeded_question_is_free_again(curve, tmp_path):
    for _ in range(2):
        CURVES[curve](AGGREGATORS["servers"], ledger=tmp_path / "l", seed=3)
    with Ledger.open(tmp_path / "l") as ledger:
        assert ledger.spent() <= 0.5
    with pytest.raises(LedgerError, match="exact difference"):
        federated.ecdf(
            SCORES[:2], AGGREGATORS["servers"], bounds=(0, 1), bins=16, epsilon=0.5,
            ledger=tmp_path / "l", seed=3,
        )  # fmt: skip


def test_a_test_without_noise_releases_and_charges_nothing(tmp_path):
    quiet = federated.without_noise(federated.LocalAggregator())
    curve = CURVES["roc"](quiet, ledger=tmp_path / "l")
    assert curve.fpr.size
    with Ledger.open(tmp_path / "l") as ledger:
        assert ledger.charges == ()
    with pytest.raises(ValueError, match="NOT SOUND"):
        curve.statement()
