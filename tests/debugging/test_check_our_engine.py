"""Our own engine under our own bug finder: nothing is found, and a planted bug is."""

from __future__ import annotations

import pytest
import torch
from benchmarks._our_engine import ESTIMATORS, engine_training
from torch.nn.functional import cross_entropy

from noisewise.debugging import TESTS, check
from noisewise.release.tensors import TensorNoise

EXAMPLE = (torch.zeros(3, 8), torch.tensor([0, 1, 3]))


def findings_of(name, effort, tests=TESTS):
    build, _ = ESTIMATORS[name]
    return check(
        engine_training(name), build, cross_entropy, example=EXAMPLE, effort=effort, tests=tests
    )


@pytest.mark.slow
def test_records_that_are_dropped_instead_of_clipped_raise_no_alarm():
    """At the first clipping norms that are tried, no record contributes anything."""
    findings = findings_of(
        "Clipped, global",
        "quick",
        ("preflight", "noise", "contribution", "separation", "loss-and-batch"),
    )
    assert findings.ok, str(findings)
    assert "dropped, not clipped" in findings.skipped["loss-and-batch"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_of_ours_passes(name):
    findings = findings_of(name, "default")
    assert findings.ok, str(findings)
    assert {
        "noise",
        "contribution",
        "separation",
        "sampling",
        "freshness",
        "second-step",
        "broken-records",
        "late-steps",
        "decisions",
    } <= set(findings.ran)


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["global", "per-layer"])
def test_other_allocations_of_noise_pass(noise):
    train = engine_training("Clipped, per layer", noise)
    build, _ = ESTIMATORS["Clipped, per layer"]
    findings = check(train, build, cross_entropy, example=EXAMPLE)
    assert findings.ok, str(findings)


@pytest.mark.slow
def test_a_bug_planted_in_the_engine_is_found(monkeypatch):
    right = TensorNoise.applied

    def divided_twice(self, exact, rng):
        smaller = [deviation / self.divisor for deviation in self.deviations]
        object.__setattr__(self, "deviations", smaller)
        return right(self, exact, rng)

    monkeypatch.setattr(TensorNoise, "applied", divided_twice)
    assert "noise-divided-by-batch-twice" in findings_of("Clipped", "default").bugs
