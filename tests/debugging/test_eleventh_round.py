"""What the eleventh round of bugs and unusual trainings taught, each by the test that is for it.

Seeds are fixed; a check accuses correct code by chance with probability below 1e-4.
"""

from __future__ import annotations

import pytest

from noisewise.debugging import TESTS, check
from noisewise.debugging.mutants import CORRECT, with_bug, with_variant


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


def judged(subject, *tests):
    return check(
        subject.train,
        subject.case.model,
        subject.case.loss,
        example=subject.case.example,
        effort="quick",
        tests=("preflight", *tests) if tests else TESTS,
        **subject.declared,
    )


@pytest.mark.parametrize(
    ("bug", "tests", "finding"),
    [
        ("generator-state-in-checkpoint", ("contribution",), "noise-can-be-drawn-again"),
        ("noise-added-once-at-the-end", ("separation", "neighbours"), "noise-not-on-the-way"),
        slow(
            "schedule-by-records-seen",
            ("separation", "noise", "late-steps"),
            "step-size-depends-on-data",
        ),
    ],
)
def test_a_bug_that_was_missed_is_found_by_a_test_of_its_kind(bug, tests, finding):
    findings = judged(with_bug(bug), *tests)
    assert finding in findings.bugs, str(findings)


@pytest.mark.parametrize(
    ("name", "verdict", "why"),
    [
        ("second moments less the noise", "not judged", "divides by what it has seen"),
        slow("trained in a public subspace", "not judged", "in the same 24"),
        slow("along one public direction a step", "not judged", "along one direction"),
        slow("steps left out by a public coin", "not judged", "move nothing at all"),
        slow("gradients uphill of the last release", "private so far", ""),
    ],
)
def test_a_right_training_that_was_accused_is_not(name, verdict, why):
    (variant,) = (variant for variant in CORRECT if variant.name == name)
    findings = judged(with_variant(variant))
    assert findings.bugs == [], str(findings)
    assert findings.verdict == verdict
    assert any(why in reason for reason in [*findings.unanswered.values(), ""]), str(findings)
