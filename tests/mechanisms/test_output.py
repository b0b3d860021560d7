import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st

from noisewise import privacy
from noisewise.datasets import Numeric, Schema
from noisewise.errors import UnsoundError
from noisewise.privacy import LogisticProblem, output_perturbation


def data(records, features, seed):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(records, features))
    return rows, (rows[:, 0] + rng.normal(size=records) > 0).astype(int)


def minimiser(rows, labels, **options):
    return LogisticProblem(rows, labels, **options).solve(1e-9)


@settings(max_examples=40)
@given(
    st.integers(1, 30),
    st.integers(1, 4),
    st.integers(0, 10**6),
    st.floats(0.05, 20),
    st.floats(0.1, 5),
    st.booleans(),
)
def test_one_record_moves_the_minimiser_by_at_most_the_sensitivity(
    records, features, seed, regularisation, norm_bound, intercept
):
    rows, labels = data(records, features, seed)
    options = dict(regularisation=regularisation, norm_bound=norm_bound, intercept=intercept)
    with_all = minimiser(rows, labels, **options)
    problem = LogisticProblem(rows, labels, **options)
    limit = problem.lipschitz / regularisation
    for left_out in range(min(records, 5)):
        kept = np.arange(records) != left_out
        if not kept.any():
            continue
        moved = np.linalg.norm(with_all - minimiser(rows[kept], labels[kept], **options))
        assert moved <= limit * (1 + 1e-6)
    replaced = rows.copy()
    replaced[0] = -1e6 * replaced[0]
    moved = np.linalg.norm(with_all - minimiser(replaced, labels, **options))
    assert moved <= 2 * limit * (1 + 1e-6)


class LinearProblem:
    """Losses -x.t, whose minimiser is sum(x) / lambda: it moves by exactly |x| / lambda."""

    lipschitz, strong_convexity = 1.0, 5.0

    def __init__(self, rows):
        self.rows = rows

    def solve(self, tolerance):
        return self.rows.sum(axis=0) / self.strong_convexity


def test_linear_losses_reach_the_bound_so_it_cannot_be_smaller():
    rows = np.eye(3)
    moved = LinearProblem(rows).solve(0) - LinearProblem(rows[1:]).solve(0)
    assert np.linalg.norm(moved) == pytest.approx(1.0 / 5.0)


def test_rows_beyond_the_bound_count_as_if_scaled_down():
    rows, labels = data(50, 3, 0)
    far = minimiser(rows * 1e6, labels, regularisation=1.0)
    near = minimiser(rows / np.linalg.norm(rows, axis=1, keepdims=True), labels, regularisation=1.0)
    assert far == pytest.approx(near, rel=1e-6)


def test_the_solver_agrees_with_scikit_learn():
    from sklearn.linear_model import LogisticRegression

    rows, labels = data(300, 4, 1)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    ours = minimiser(rows, labels, regularisation=2.0, intercept=False)
    theirs = LogisticRegression(C=0.5, fit_intercept=False, tol=1e-10, max_iter=10_000)
    assert ours == pytest.approx(theirs.fit(rows, labels).coef_[0], abs=1e-5)


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_the_noise_matches_the_sensitivity_of_the_relation(relation):
    """Deviation of 5,000 numbers within 6 % of the formula: chance of failure below 1e-6."""
    problem = LinearProblem(np.eye(5000))
    release = output_perturbation(problem, epsilon=1, delta=1e-5, relation=relation, rng=6)
    noise = release.value - problem.solve(0)
    factor = 1 if relation == "add-remove" else 2
    expected = privacy.gaussian_deviation(1, 1e-5) * factor / 5.0
    assert noise.std() == pytest.approx(expected, rel=0.06)


def test_the_statement_says_what_was_assumed():
    rows, labels = data(20, 2, 3)
    release = output_perturbation(
        LogisticProblem(rows, labels, regularisation=5.0), epsilon=1.0, delta=1e-6
    )
    assert release.statement.epsilon <= 1.0
    assert "output perturbation" in release.statement.mechanism
    assert any("Lipschitz" in sentence for sentence in release.statement.assumptions)
    assert privacy.verify(release.statement).ok


def test_bad_input_is_refused_before_anything_is_spent():
    rows, labels = data(10, 2, 4)
    with pytest.raises(ValueError, match="labels must be 0 or 1"):
        LogisticProblem(rows, labels + 1, regularisation=1.0)
    with pytest.raises(ValueError, match="finite"):
        LogisticProblem(rows * np.nan, labels, regularisation=1.0)
    with pytest.raises(ValueError, match="regularisation"):
        LogisticProblem(rows, labels, regularisation=0.0)
    with pytest.raises(ValueError, match="shapes"):
        LogisticProblem(rows[:5], labels, regularisation=1.0)
    problem = LogisticProblem(rows, labels, regularisation=1.0)
    for wrong in ({"epsilon": 0}, {"delta": 0}, {"tolerance": 0}, {"relation": "x"}):
        with pytest.raises(ValueError):
            output_perturbation(problem, **{"epsilon": 1.0, "delta": 1e-5} | wrong)


def test_a_schema_taken_from_the_data_gets_no_epsilon():
    frame = pd.DataFrame({"age": [30.0, 41.0, 77.0], "paid": ["no", "yes", "yes"]})
    schema = Schema.from_data(frame, "paid", study=True)
    features, _ = schema.encode(frame, unit_norm=True)
    problem = LogisticProblem(features, schema.encode_target(frame), regularisation=1.0)
    with pytest.raises(UnsoundError, match="no epsilon"):
        output_perturbation(problem, epsilon=1.0, delta=1e-5, preprocessing=schema)
    public = Schema({"age": Numeric(0, 120)}, target="paid", classes=["no", "yes"])
    release = output_perturbation(problem, epsilon=1.0, delta=1e-5, preprocessing=public)
    assert set(public.assumptions) <= set(release.statement.assumptions)
