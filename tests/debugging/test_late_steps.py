"""Late steps and decisions on the data: what looks right at the first step, and is not.

Seeds are fixed. Every accusation by chance has probability below 1e-7 (see `statistics`).
"""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from noisewise.debugging import check
from noisewise.debugging.bench import DEFAULT
from noisewise.debugging.mutants import Training

EXAMPLE = (torch.zeros(3, 8), torch.tensor([0, 1, 3]))
LATE = ("preflight", "separation", "late-steps")
DECIDED = ("preflight", "decisions")


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


def mlp():
    return nn.Sequential(
        nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)
    )


def findings_of(settings, tests, effort="quick", **declared):
    train = Training(mlp, cross_entropy, **settings)
    return check(train, mlp, cross_entropy, example=EXAMPLE, effort=effort, tests=tests, **declared)


@pytest.mark.parametrize(
    ("bug", "name"),
    [
        ("noise-stops", "noise-stops"),
        ("clipping-stops", "clipping-stops"),
        ("sigma-decays", "noise-decays"),
        slow("noise-only-in-warm-up", "noise-decays"),
        ("no-noise-on-last-batch", "noise-differs-between-steps"),
        slow("noise-pool", "noise-repeats-every-step"),
        slow("sampler-restarts-each-epoch", "batches-repeat"),
        slow("noise-replayed-on-resume", "noise-repeats-every-step"),
        slow("noise-comes-again-after-128-steps", "noise-repeats-every-step"),
        slow("unfrozen-layers-not-protected", "clipping-stops"),
    ],
)
def test_what_changes_after_the_first_step_is_found_and_named(bug, name):
    more = ("noise-pool", "sampler-restarts-each-epoch", "noise-replayed-on-resume", "noise-comes")
    effort = "default" if bug.startswith(more) else "quick"
    findings = findings_of({"bug": bug}, LATE, effort)
    assert findings.bugs == [name], str(findings)
    if name == "clipping-stops":
        # Two causes fit: both are named, with the experiment that tells.
        sentence = findings.findings[0].sentence
        assert "clipping is switched off or loosened" in sentence
        assert "gradients of earlier steps are used again" in sentence
        assert "Train on one record" in sentence


@pytest.mark.parametrize(
    ("bug", "name"),
    [
        ("early-stopping", "training-stops-on-data"),
        slow("best-checkpoint", "training-stops-on-data"),
        ("plateau-schedule", "step-size-depends-on-data"),
        ("small-batches-skipped", "step-depends-on-batch"),
    ],
)
def test_decisions_on_the_data_are_provoked_and_named(bug, name):
    findings = findings_of({"bug": bug}, DECIDED, "default")
    assert findings.bugs == [name], str(findings)


def falling(step):
    return 0.97**step


def test_a_declared_schedule_of_sigma_is_innocent_and_an_undeclared_one_is_not():
    settings = {"noise_schedule": falling}
    assert findings_of(settings, LATE, noise_schedule=falling).ok
    assert findings_of(settings, LATE).bugs == ["noise-decays"]


@pytest.mark.slow
def test_less_noise_than_was_declared_is_a_bug():
    settings = {"noise_schedule": falling}
    slower = findings_of(settings, LATE, noise_schedule=lambda step: 0.99**step)
    assert slower.bugs == ["noise-decays"]
    assert "declared" in slower.findings[0].sentence


def test_a_learning_rate_that_changes_is_no_change_of_noise():
    findings = findings_of({"lr_schedule": lambda step: 0.9**step}, LATE)
    assert findings.ok, str(findings)


@pytest.mark.slow
def test_hundreds_of_steps_are_looked_at_by_default():
    findings = findings_of({}, LATE, "default")
    assert findings.ok
    assert ", ".join(map(str, DEFAULT.late_steps)) in findings.results[-1].summary


@pytest.mark.slow
@pytest.mark.parametrize("bug", ["noise-pool", "reseed-each-step"])
def test_a_warm_up_of_the_learning_rate_hides_no_repeated_noise(bug):
    """Neither a warm-up nor an average of weights makes steps alike; only the first is judged."""
    findings = findings_of({"bug": bug, "warmup": 4}, LATE)
    assert findings.bugs == ["noise-repeats-every-step"], str(findings)


@pytest.mark.parametrize(
    ("bug", "test", "name"),
    [
        ("antithetic-noise", "freshness", "noise-numbers-recur"),
        slow("noise-in-bfloat16", "freshness", "noise-numbers-recur"),
        ("noise-rolled-each-step", "freshness", "noise-repeats-every-step"),
        ("incomplete-micro-batch-dropped", "separation", "records-interact"),
        slow("near-duplicates-removed", "separation", "records-interact"),
        ("outliers-removed", "separation", "records-interact"),
    ],
)
def test_copies_of_noise_and_records_that_are_left_out_are_found(bug, test, name):
    findings = findings_of({"bug": bug}, ("preflight", "separation", test))
    assert name in findings.bugs, str(findings)
    assert right(test).ok


@cache
def right(test):
    """Return what is said of the same training without a bug, once for all bugs of a test."""
    return findings_of({}, ("preflight", "separation", test))
