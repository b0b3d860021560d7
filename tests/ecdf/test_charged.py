"""Every curve is charged before it exists, says what was charged, or is refused without a trace."""

import subprocess
import sys

import numpy as np
import pytest

from noisewise import ecdf
from noisewise.analysis.calibration import private_reliability
from noisewise.ecdf.grid import Grid
from noisewise.ecdf.registry import CURVES
from noisewise.errors import BudgetExceededError, LedgerError, RelationError
from noisewise.privacy import Ledger, Randomness, verify

GENERATOR = np.random.default_rng(0)
P = GENERATOR.random(300)
Y = (GENERATOR.random(300) < P).astype(int)


def on_values(function, *rest, **fixed):
    return lambda p=P, **options: function(p, *rest, **fixed, **options)


def on_scores(function, **fixed):
    return lambda p=P, **options: function(Y, p, **fixed, **options)


def counted(**fixed):
    def run(p=P, relation="replace-one", **options):
        counter = ecdf.StreamingCounter(**fixed, **options)
        counter.extend((p > 0.5).astype(int))
        return counter

    return run


E = {"epsilon": 0.5}
CASES = {
    "dp_ecdf": on_values(ecdf.dp_ecdf, bounds=(0, 1), bins=32, **E),
    "dp_ecdf, gaussian": on_values(ecdf.dp_ecdf, bounds=(0, 1), bins=32, delta=1e-6, **E),
    "dp_ecdf, adaptive": on_values(
        ecdf.dp_ecdf, bounds=(0, 1), bins=2048, mechanism="adaptive", **E
    ),
    "dp_quantile": on_values(ecdf.dp_quantile, [0.2, 0.7], bounds=(0, 1), **E),
    "dp_median": on_values(ecdf.dp_median, bounds=(0, 1), interval=0.9, **E),
    "private_histogram": on_values(ecdf.private_histogram, 16, (0, 1), **E),
    "dp_histogram": on_values(ecdf.dp_histogram, 16, (0, 1), **E),
    "private_roc": on_scores(ecdf.private_roc, bins=32, **E),
    "dp_roc_curve": on_scores(ecdf.dp_roc_curve, bins=32, **E),
    "dp_roc_auc_score": on_scores(ecdf.dp_roc_auc_score, bins=32, **E),
    "dp_precision_recall_curve": on_scores(ecdf.dp_precision_recall_curve, bins=32, **E),
    "dp_average_precision_score": on_scores(ecdf.dp_average_precision_score, bins=32, **E),
    "dp_det_curve": on_scores(ecdf.dp_det_curve, bins=32, **E),
    "private_calibration": on_scores(ecdf.private_calibration, **E),
    "private_calibration, quantile": on_scores(
        ecdf.private_calibration, strategy="quantile", bins=32, **E
    ),
    "dp_calibration_curve": on_scores(ecdf.dp_calibration_curve, **E),
    "dp_expected_calibration_error": on_scores(ecdf.dp_expected_calibration_error, **E),
    **{
        f"dp_hosmer_lemeshow, {method}": on_scores(
            ecdf.dp_hosmer_lemeshow, bins=32, draws=20, method=method, **E
        )
        for method in ("residual", "thesis", "statistic")
    },
    "private_evaluation": on_scores(ecdf.private_evaluation, bins=32, **E),
    "private_confusion": on_scores(
        lambda y, p, **options: ecdf.private_confusion(
            y, (p > 0.5).astype(int), classes=[0, 1], **options
        ),
        **E,
    ),
    "private_regression_errors": on_scores(ecdf.private_regression_errors, bounds=(0, 1), **E),
    "private_reliability": lambda p=P, **options: private_reliability(
        np.column_stack([1 - p, p]), Y, **E, **options
    ),
    "StreamingCounter": counted(**E),
    "StreamingCounter, gaussian": counted(delta=1e-6, **E),
}
STREAMS = [name for name in CASES if name.startswith("Streaming")]
every = pytest.mark.parametrize("name", CASES)


def test_every_releasing_name_has_a_case():
    names = {name.split(",")[0] for name in CASES}
    assert {*CURVES, "StreamingCounter"} <= names


def book(path, name, relation="add-remove", epsilon=None):
    if name in STREAMS:
        from noisewise.release.stream import STREAM_UNIT

        return Ledger.create(
            path, epsilon=epsilon, delta=1e-6, relation="replace-one", unit=STREAM_UNIT
        )
    return Ledger.create(path, epsilon=epsilon, delta=1e-6, relation=relation)


@every
@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_the_statement_verifies_and_is_what_was_charged(name, relation, tmp_path):
    with book(tmp_path / "l", name, relation) as ledger:
        statement = CASES[name](ledger=ledger, relation=relation).statement()
        assert verify(statement).ok
        # A Gaussian stream pays a hair more, for segments of other lengths.
        assert statement.epsilon <= 0.5 * (1 + (1e-4 if name in STREAMS else 1e-6))
        assert statement.relation == ledger.relation
        assert sorted(map(repr, statement.history)) == sorted(map(repr, ledger.history))


@every
def test_a_refused_budget_releases_nothing_reads_nothing_and_draws_no_noise(
    name, tmp_path, monkeypatch
):
    drawn = []
    original = Randomness._draw
    monkeypatch.setattr(
        Randomness, "_draw", lambda self, size: drawn.append(size) or original(self, size)
    )
    with book(tmp_path / "l", name, epsilon=0.4) as ledger:
        with pytest.raises(BudgetExceededError):
            CASES[name](ledger=ledger)
        assert ledger.charges == ()
    assert drawn == []


@pytest.mark.parametrize(
    "name", ["private_evaluation", "private_calibration, quantile", "dp_hosmer_lemeshow, residual"]
)
def test_of_two_releases_both_are_charged_or_none(name, tmp_path):
    # There is room for either of them, but not for both.
    with Ledger.create(tmp_path / "l", epsilon=0.45) as ledger:
        with pytest.raises(BudgetExceededError):
            CASES[name](ledger=ledger)
        assert ledger.charges == ()


def test_a_ledger_adds_up_what_different_curves_cost(tmp_path):
    path = tmp_path / "hospital.ledger"
    for name in ("dp_ecdf", "dp_roc_curve", "dp_histogram", "dp_calibration_curve"):
        CASES[name](ledger=path)
    with Ledger.open(path) as ledger:
        assert len(ledger.charges) == 4
        assert 1.999 < ledger.spent() <= 2.0
        assert {charge.note.split(" ")[0] for charge in ledger.charges} == {
            "empirical", "ROC", "histogram", "calibration",
        }  # fmt: skip


def test_a_ledger_of_another_relation_is_refused(tmp_path):
    with (
        Ledger.create(tmp_path / "l", relation="replace-one") as ledger,
        pytest.raises(RelationError),
    ):
        CASES["dp_roc_curve"](ledger=ledger)


@pytest.mark.parametrize("name", ["dp_ecdf", "dp_roc_curve", "private_evaluation"])
def test_the_same_seeded_question_is_free_and_gives_the_same_bits(name, tmp_path):
    path = tmp_path / "l"
    first, again = (CASES[name](ledger=path, seed=5) for _ in range(2))
    assert first.statement() == again.statement()
    if name == "dp_roc_curve":
        assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    with Ledger.open(path) as ledger:
        charges = len(ledger.charges)
    assert charges == len(first.statement().history)
    with pytest.raises(LedgerError, match="exact difference"):
        CASES[name](np.append(P[1:], 0.5), ledger=path, seed=5)
    with Ledger.open(path) as ledger:
        assert len(ledger.charges) == charges


KILLED = """
import os, sys
import numpy as np
from noisewise.ecdf import Grid, dp_ecdf

Grid.count = lambda self, x: os._exit(9)
dp_ecdf(np.arange(10.0), bounds=(0, 10), bins=8, epsilon=0.5, ledger=sys.argv[1])
"""


def test_a_death_between_charge_and_value_leaves_the_charge(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "l")], check=False)
    assert done.returncode == 9
    with Ledger.open(tmp_path / "l") as ledger:
        assert 0.49 < ledger.spent() <= 0.5


def test_nothing_is_counted_before_the_charge(tmp_path, monkeypatch):
    """The twin of the death: a curve that counted first would be seen here."""
    charged = []
    with Ledger.create(tmp_path / "l") as ledger:
        count = Grid.count

        def watched(self, x):
            charged.append(len(ledger.charges))
            return count(self, x)

        monkeypatch.setattr(Grid, "count", watched)
        CASES["dp_ecdf"](ledger=ledger)
        CASES["dp_roc_curve"](ledger=ledger)
    assert charged == [1, 2, 2]


def test_results_unpack_as_those_of_scikit_learn():
    fpr, tpr, thresholds = CASES["dp_roc_curve"]()
    assert fpr.size == tpr.size == thresholds.size
    curve = CASES["dp_precision_recall_curve"]()
    assert isinstance(curve, tuple)
    assert curve.precision is curve[0]
    area = CASES["dp_roc_auc_score"]()
    assert isinstance(area, float)
    assert 0 <= area + 0.0 <= 1


def test_older_words_are_explained():
    with pytest.raises(TypeError, match="relation='replace-one'"):
        CASES["dp_ecdf"](neighbors="replace")
    with pytest.raises(TypeError, match="relation='replace-one'"):
        CASES["dp_roc_auc_score"](neighbors="replace")
