"""What the tenth round of bugs and unusual trainings taught, each by the test that is for it.

Seeds are fixed; a check accuses correct code by chance with probability below 1e-4.
"""

from __future__ import annotations

import numpy as np
import pytest

from noisewise.debugging import TESTS, check
from noisewise.debugging.mutants import CORRECT, with_bug, with_variant
from noisewise.debugging.sensitivity import _sum_in_a_ball


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


def judged(subject, *tests, effort="quick"):
    return check(
        subject.train,
        subject.case.model,
        subject.case.loss,
        example=subject.case.example,
        effort=effort,
        tests=("preflight", *tests) if tests else TESTS,
        **subject.declared,
    )


@pytest.mark.parametrize(
    ("bug", "tests", "finding", "effort"),
    [
        ("noise-of-fixed-length", ("noise",), "noise-correlated", "quick"),
        slow("noise-standardised", ("noise",), "noise-correlated", "quick"),
        slow("noise-skipped-if-small", ("noise",), "noise-too-small", "quick"),
        ("seed-plus-step", ("freshness",), "noise-same-for-every-seed", "quick"),
        (
            "ends-at-loss-that-is-no-number",
            ("separation", "broken-records"),
            "non-finite-record",
            "quick",
        ),
        slow(
            "rate-follows-number-of-records",
            ("separation", "sampling"),
            "divisor-depends-on-dataset-size",
            "default",
        ),
    ],
)
def test_a_bug_that_was_missed_is_found_by_a_test_of_its_kind(bug, tests, finding, effort):
    findings = judged(with_bug(bug), *tests, effort=effort)
    assert finding in findings.bugs, str(findings)


@pytest.mark.parametrize(
    ("name", "verdict", "why"),
    [
        ("sum limited before its noise", "not judged", "limited to a ball before its noise"),
        slow("noisy gradient rounded by chance", "not judged", "rounded to few digits"),
        slow("average with a decay that grows", "not judged", "mixes the steps"),
        slow("singular values limited after each step", "private so far", ""),
        slow("weighted by agreement with the last release", "private so far", ""),
        slow("head learns faster", "private so far", ""),
    ],
)
def test_a_right_training_that_was_accused_is_not(name, verdict, why):
    (variant,) = (variant for variant in CORRECT if variant.name == name)
    findings = judged(with_variant(variant))
    assert findings.bugs == [], str(findings)
    assert findings.verdict == verdict
    assert any(why in reason for reason in [*findings.unanswered.values(), ""]), str(findings)


def test_only_shortening_to_one_length_is_the_nearest_point_of_a_ball():
    rng = np.random.default_rng(0)
    sums = [rng.normal(size=30) * size for size in (0.1, 0.5, 1.0, 2.0)]

    def pairs(change):
        return [
            (0.3, size, s, change(s, size) / size)
            for size, s in zip((2, 4, 7, 16), sums, strict=True)
        ]

    def limited(s, size):
        return s * min(1.0, 2.0 / np.linalg.norm(s))

    def normalised(s, size):
        return s * 2.0 / np.linalg.norm(s)

    def by_size(s, size):
        return s * min(1.0, 0.5 * size / np.linalg.norm(s))

    assert _sum_in_a_ball(pairs(limited))
    assert not _sum_in_a_ball(pairs(normalised))
    assert not _sum_in_a_ball(pairs(by_size))
    assert not _sum_in_a_ball(pairs(lambda s, size: s))
