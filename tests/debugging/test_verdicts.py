"""Three verdicts: green only if every question that matters was answered."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from noisewise.debugging import (
    TESTS,
    VERDICTS,
    Findings,
    PrivacyBugError,
    TestResult,
    assert_private,
    check,
)
from noisewise.debugging.checking import REGISTRY
from noisewise.debugging.mutants import Training

EXAMPLE = (torch.zeros(3, 8), torch.tensor([0, 1, 3]))


def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def result(test, status, aspect="", optional=False):
    return TestResult(test, test, status, "why", aspect=aspect, optional=optional)


def findings(*results):
    return Findings((result("preflight", "passed"), *results), 10, 1.0)


def test_the_verdicts_have_the_exit_codes_that_are_promised():
    assert VERDICTS == {"private so far": 0, "bug": 1, "not judged": 3}


def test_a_question_without_an_answer_is_not_judged():
    answered = findings(
        result("noise", "passed", "noise"), result("contribution", "passed", "bound")
    )
    assert answered.verdict == "private so far"
    assert answered.exit_code == 0
    open_question = findings(
        result("noise", "passed", "noise"), result("contribution", "skipped", "bound")
    )
    assert open_question.verdict == "not judged"
    assert not open_question.ok
    assert open_question.exit_code == 3
    assert open_question.unanswered == {"bound": "why"}


def test_a_check_of_which_most_tests_were_skipped_is_never_green():
    ran = [result("noise", "passed", "noise")]
    skipped = [result(name, "skipped") for name in ("loss-and-clip", "loss-and-batch")]
    assert findings(*ran, *skipped).verdict == "not judged"
    assert findings(*ran, skipped[0]).verdict == "private so far"
    # Tests that have nothing to do unless the user names something do not count.
    idle = [result(name, "skipped", optional=True) for name in ("invariance", "claim")]
    assert findings(*ran, *idle).verdict == "private so far"
    assert findings().verdict == "not judged"


def test_every_test_of_the_registry_has_a_name_of_its_own_and_the_questions_are_covered():
    names = [test.name for test in REGISTRY]
    assert len(set(names)) == len(names)
    assert ("preflight", *names) == TESTS
    aspects = {test.aspect for test in REGISTRY if test.aspect}
    assert {test.name for test in REGISTRY if test.aspect} == {
        "noise",
        "contribution",
        "separation",
        "sampling",
        "freshness",
        "late-steps",
        "decisions",
        "whole-units",
    }
    assert len(aspects) == 8


def test_asserting_privacy_fails_on_what_could_not_be_judged_unless_allowed():
    full = Training(mlp, cross_entropy)

    def train(*, clip, noise_multiplier, batch_size, seed, data, init, lr):
        return full(
            clip=clip,
            noise_multiplier=noise_multiplier,
            batch_size=batch_size,
            seed=seed,
            data=data,
            init=init,
            steps=1,
            lr=lr,
        )

    arguments = {
        "example": EXAMPLE,
        "effort": "quick",
        "tests": ("preflight", "contribution", "late-steps", "decisions"),
    }
    with pytest.raises(PrivacyBugError, match="could not be judged") as caught:
        assert_private(train, mlp, cross_entropy, **arguments)
    assert caught.value.findings.verdict == "not judged"
    allowed = assert_private(train, mlp, cross_entropy, allow_not_judged=True, **arguments)
    assert allowed.verdict == "not judged"
    assert "late steps" in allowed.unanswered
    facts = json.loads(allowed.to_json())
    assert facts["verdict"] == "not judged"
    assert not facts["ok"]
    assert "late-steps" in facts["unseen"]
    broken = Training(mlp, cross_entropy, bug="no-clipping")
    with pytest.raises(PrivacyBugError, match="is not private"):
        assert_private(
            broken,
            mlp,
            cross_entropy,
            allow_not_judged=True,
            example=EXAMPLE,
            effort="quick",
            tests=("preflight", "contribution"),
        )


def test_what_is_green_says_which_tests_ran_and_what_remains_unseen(capsys):
    train = Training(mlp, cross_entropy)
    seen = check(
        train,
        mlp,
        cross_entropy,
        example=EXAMPLE,
        effort="quick",
        tests=("preflight", "contribution", "separation"),
    )
    assert seen.ok
    assert "records" in seen.unseen
    seen.table()
    printed = " ".join(capsys.readouterr().out.split())
    assert "Private so far. 3 of 3 tests ran (preflight, separation, contribution)" in printed
    assert "no proof" in printed
