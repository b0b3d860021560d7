"""What the eighth frozen round missed or accused at its first run, each by the test it led to."""

from __future__ import annotations

import numpy as np
import pytest

from noisewise.debugging import check
from noisewise.debugging.mutants import Training, cases
from noisewise.debugging.statistics import LEVEL, coincidences


def judged(case="MLP", tests=(), effort="quick", **settings):
    known = cases()[case]
    train = Training(known.model, known.loss, **settings)
    return check(
        train,
        known.model,
        known.loss,
        example=known.example,
        effort=effort,
        tests=("preflight", *tests),
    )


@pytest.mark.parametrize(
    ("bug", "test", "finding"),
    [
        ("number-of-records-returned", "contribution", "released-beside-weights"),
        ("norm-underflows-in-half-precision", "contribution", "norm-underflows"),
        ("slices-of-a-noise-table", "freshness", "noise-numbers-recur"),
        ("noise-for-a-random-half", "noise", "noise-not-gaussian"),
        ("four-batches-one-noise", "noise", "noise-once-for-several-batches"),
    ],
)
def test_a_bug_that_was_missed_is_found_by_a_test_of_its_kind(bug, test, finding):
    assert finding in judged(tests=(test,), bug=bug).bugs


@pytest.mark.slow
def test_noise_that_ends_after_250_steps_is_found_at_a_far_step():
    findings = judged(
        tests=("noise", "late-steps"), effort="default", bug="noise-ends-with-the-budget"
    )
    assert findings.bugs == ["noise-stops"]


@pytest.mark.parametrize("case", ["MLP, soft labels", "MLP, regression", "MLP, binary"])
def test_a_short_gradient_is_found_for_every_kind_of_target(case):
    """Squares that vanish in half precision show in no other record."""
    findings = judged(case, ("contribution",), bug="norm-underflows-in-half-precision")
    assert findings.bugs == ["norm-underflows"]


@pytest.mark.parametrize(
    ("habit", "case", "why"),
    [
        ("weights rounded to bfloat16 after each step", "MLP", "few digits"),
        ("tensors take turns", "MLP", "by turns"),
        ("tensors take turns", "CNN", "by turns"),
        ("noisy matrices made orthogonal", "MLP", "the length of 0.weight"),
        ("a step for every two batches", "MLP", "count batches"),
    ],
)
def test_what_hides_the_step_is_named_and_not_judged(habit, case, why):
    findings = judged(case, ("separation", "contribution", "noise", "freshness"), habit=habit)
    assert findings.verdict == "not judged"
    assert any(why in reason for reason in findings.unanswered.values()), findings.unanswered


def test_steps_that_would_leave_the_set_of_weights_are_made_shorter():
    findings = judged(tests=("separation", "contribution", "noise"), habit="weights kept in a box")
    assert findings.bugs == []
    assert any("border of a set" in note for note in findings.notes)


def test_numbers_that_come_again_are_told_from_fresh_ones():
    """Of 1,452 numbers from a table of 4,096 many come twice; of fresh ones none do.

    A twentieth or less may be so close by chance, where p < 1e-7 speaks for more than 3 %.
    """
    chance = np.random.default_rng(5)
    table = np.abs(chance.standard_normal(4096))
    share, p_value = coincidences(table[chance.integers(0, 4096, 1452)], 0.01)
    assert share > 0.1
    assert p_value < LEVEL
    share, p_value = coincidences(np.abs(chance.standard_normal(1452)), 0.01)
    assert share < 0.03
    assert p_value > LEVEL
