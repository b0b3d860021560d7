"""Audits in which whole units come and go: ours holds, and one that bounds rows is refuted."""

import numpy as np
import pytest
import torch
from torch import nn

import noisewise as nw
from noisewise.auditing import audit

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
    with pytest.raises(ValueError, match="only rows that its own loader chose"):
        audited(rows, data, units=np.arange(20) // 2)
