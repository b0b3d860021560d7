"""Audits in which whole units come and go: ours holds, and one that bounds rows is refuted."""

from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

import noisewise as nw
from noisewise.auditing import NoiseModel, audit
from noisewise.training.errors import StepError

ROWS = 6


def run_of(units, **changes):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(20, 4)
    y = torch.randint(2, (20,))
    plan = nw.Plan(
        gradients=nw.Clipped(0.5), noise_multiplier=1.0, delta=1e-5, steps=1, sampling="full",
        batch_size=10, records=10, seed=3, **changes
    )  # fmt: skip
    ids = np.arange(20) // 2 if units else None
    return nw.make_private(model, optimizer, nn.CrossEntropyLoss(), (x, y), plan, units=ids), (x, y)


def canary():
    """Six rows of one person, all pulling the same way."""
    return torch.full((ROWS, 4), 20.0), torch.zeros(ROWS, dtype=torch.long)


def claim():
    event = nw.privacy.PoissonGaussian(1.0, 1.0, 1)
    return nw.privacy.Statement.derive(event, delta=1e-5, mechanism="one step", unit="one patient")


def audited(run, data, **options):
    # A correct run is refuted with probability at most 1e-6.
    return audit(run, claimed=claim(), data=data, canary=canary(), repeats=150,
                 confidence=1 - 1e-6, **options)  # fmt: skip


def test_a_whole_unit_is_within_the_claim_and_the_audit_is_not_blind():
    run, data = run_of(units=True)
    found = audited(run, data, units=np.arange(20) // 2)
    assert found.passed
    # Few steps at so high a confidence show a quarter of it; a blind audit would show nothing.
    assert found.epsilon_lower_bound > 0.2 * claim().epsilon


def test_bounding_rows_instead_of_units_is_refuted():
    run, data = run_of(units=True)
    engine = run._engine
    honest = engine.sum
    # Grouping that is wrong: every row is taken for a unit of its own.
    engine.sum = lambda x, y, units: honest(x, y, torch.arange(len(units)))
    found = audited(run, data, units=np.arange(20) // 2)
    assert not found.passed
    assert found.epsilon_lower_bound > 2 * claim().epsilon


@pytest.mark.slow
def test_units_split_over_two_sums_are_refuted():
    run, data = run_of(units=True)
    engine = run._engine
    honest = engine.sum

    def split(x, y, units):
        half = torch.arange(len(units)) % 2
        return honest(x, y, units * 2 + half) if len(units) else honest(x, y, units)

    engine.sum = split
    assert not audited(run, data, units=np.arange(20) // 2).passed


def test_runs_with_units_and_without_are_not_confused():
    run, data = run_of(units=True)
    with pytest.raises(ValueError, match="whole units"):
        audited(run, data)
    plain, data = run_of(units=False)
    with pytest.raises(ValueError, match="single records"):
        audited(plain, data, units=np.arange(20) // 2)
    rows, data = run_of(units=True, unit_rule="rows", unit_rows=3)
    with pytest.raises(ValueError, match="give a canary of 3 rows"):
        audited(rows, data, units=np.arange(20) // 2)


# ------------------------------------------------------------------- rows of a unit, one by one

K = 3


def of_rows(claimed, *, broken=False, repeats=150, **changes):
    """An audit of a run that bounds rows, by a unit whose K rows are all drawn."""
    run, data = run_of(units=True, unit_rule="rows", unit_rows=K, **changes)
    if broken:
        engine, honest = run._engine, run._engine.sum

        def twice(x, y, units=None):
            """Every row is added a second time."""
            return honest(torch.cat([x, x]), torch.cat([y, y]), units)

        engine.sum = twice
    x, y = canary()
    return audit(run, claimed=claimed, data=data, units=np.arange(20) // 2, canary=(x[:K], y[:K]),
                 repeats=repeats, confidence=1 - 1e-6)  # fmt: skip


@cache
def right_of_rows():
    """The audit of the right run, once for all tests that look at it."""
    return of_rows(claim_of_rows())


def claim_of_rows(rows=K, rate=1.0, steps=1):
    event = nw.privacy.PoissonRows(1.0, rate, rows, steps)
    return nw.privacy.Statement.derive(event, delta=1e-5, mechanism="steps", unit="one patient")


def test_a_unit_whose_rows_are_bounded_one_by_one_is_within_the_claim_for_all_of_them():
    found = right_of_rows()
    assert found.passed
    # Not blind: well above what a claim for one row would allow.
    assert 0.5 * claim_of_rows().epsilon < found.epsilon_lower_bound
    assert found.epsilon_lower_bound > claim().epsilon


@pytest.mark.parametrize(
    ("rows", "repeats"), [(1, 60), pytest.param(K - 1, 400, marks=pytest.mark.slow)]
)
def test_a_claim_for_fewer_rows_than_a_unit_has_is_refuted(rows, repeats):
    assert not of_rows(claim_of_rows(rows), repeats=repeats).passed


def test_rows_that_count_twice_are_refuted():
    found = of_rows(claim_of_rows(), broken=True)
    assert not found.passed
    assert found.epsilon_lower_bound > 1.1 * claim_of_rows().epsilon


def test_sampled_rows_are_judged_by_the_mixture_that_is_claimed():
    """All rows are in the batch; how seldom that is, the claim says, and the audit believes it."""
    honest = of_rows(claim_of_rows(rate=0.1, steps=4))
    assert honest.passed
    assert 0 < honest.epsilon_lower_bound < right_of_rows().epsilon_lower_bound


@pytest.mark.slow
def test_sampled_rows_that_count_twice_are_refuted():
    assert not of_rows(claim_of_rows(rate=0.1, steps=4), broken=True).passed


@pytest.mark.parametrize("rate", [0.05, pytest.param(0.3, marks=pytest.mark.slow)])
def test_the_audits_epsilon_of_known_noise_is_just_below_the_accountants(rate):
    model = NoiseModel(rate, 30, rows=K)
    exact = nw.privacy.epsilon_of(nw.privacy.PoissonRows(4.0, rate, K, 30), delta=1e-5)
    assert 0.93 * exact < model.epsilon(4.0, 1e-5) <= exact


def test_batches_of_the_auditor_are_not_held_against_a_claim_that_counts_on_sampling():
    """A claim of two kinds has no noise model, and its sampling would be forgotten."""
    history = [nw.privacy.PoissonRows(1.0, 0.05, K, 2), nw.privacy.Pure(0.1)]
    claimed = nw.privacy.Statement.derive(
        history, delta=1e-5, mechanism="steps", unit="one patient"
    )
    with pytest.raises(ValueError, match="counts on secret sampling"):
        of_rows(claimed)


def test_a_callers_batch_brings_no_more_rows_of_a_unit_than_were_paid_for():
    run, (x, y) = run_of(units=True, unit_rule="rows", unit_rows=2)
    with pytest.raises(StepError, match="more than 2 rows") as caught:
        run.step(x[:3], y[:3], units=["Ada Lovelace"] * 3)
    assert "Ada" not in str(caught.value)
    with pytest.raises(StepError, match="which of its rows"):
        run.step(x[:3], y[:3])
    assert run.steps_taken == 0
    run.step(x[:3], y[:3], units=["Ada Lovelace", "Ada Lovelace", "Emmy"])
    said = str(run.statement())
    assert "The caller drew batches and promises that no row, of the at most 2 of its unit" in said
