"""Odd but harmless training is not accused; the same oddity with a mistake in it is."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from noisewise.cli import app
from noisewise.debugging import TESTS, check
from noisewise.debugging.mutants import CORRECT, Training, cases
from noisewise.debugging.mutants.hooks import HOOKS, mutation

CASE = cases()["MLP"]
ODD = {v.settings["habit"]: v for v in CORRECT if "habit" in v.settings}


def seen(tests, *, declared=None, **settings):
    train = Training(CASE.model, CASE.loss, **settings)
    return check(
        train,
        CASE.model,
        CASE.loss,
        example=CASE.example,
        effort="quick",
        tests=("preflight", *tests),
        **(declared or {}),
    )


def test_users_see_names_of_tests():
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", name) for name in TESTS)


def test_late_steps_of_noise_that_no_seed_repeats_are_judged():
    """The spread of the weights grows by the same at every step, or noise has stopped.

    No seed fixes this noise. That it is absent after step 10 shows by more than ten standard
    errors at step 70; whether step 12 is accused before, by another name, is left to chance.
    """
    wrong = seen(("noise", "late-steps"), habit="noise of the operating system", bug="noise-stops")
    assert len(wrong.bugs) == 1
    assert set(wrong.bugs) <= {"noise-stops", "noise-decays"}


@pytest.mark.parametrize(
    ("habit", "tests"),
    [
        ("lookahead", ("late-steps",)),
        ("public gradient added", ("separation", "contribution")),
        ("a step for every two batches", ("separation",)),
        ("cosine schedule over the whole run", ("late-steps",)),
    ],
)
def test_what_cannot_be_read_is_not_judged(habit, tests):
    assert not ODD[habit].judged
    findings = seen(tests, habit=habit)
    assert findings.verdict == "not judged", str(findings)
    assert findings.unanswered


@pytest.fixture
def noise_pulled_back():
    """Lookahead's arithmetic for the noise alone: records are not pulled back with it."""

    @mutation("noise-pulled-back", "noise")
    def _(noise, at):
        past = at.memory.setdefault("past", [])
        if at.step % 5 == 4:
            noise = {n: 0.5 * z - 0.5 * sum(p[n] for p in past) for n, z in noise.items()}
            past.clear()
        else:
            past.append(noise)
        return noise

    yield "noise-pulled-back"
    del HOOKS["noise-pulled-back"]


@pytest.mark.slow
def test_noise_that_is_pulled_back_without_the_records_is_a_bug(noise_pulled_back):
    findings = seen(("late-steps",), bug=noise_pulled_back)
    assert "noise-repeats-every-step" in findings.bugs, str(findings)


def test_what_records_add_at_tiny_clipping_norms_is_no_public_gradient():
    assert "wrong-norm" in seen(("separation", "contribution"), bug="raw-mixed-in").bugs


def test_gradients_at_older_weights_are_harmless_and_noted():
    findings = seen(("separation", "second-step"), habit="gradients at older weights")
    assert findings.ok, str(findings)
    assert any("older weights" in note for note in findings.notes)


def test_a_number_of_batches_that_is_rounded_down_is_found():
    findings = seen(("separation", "sampling"), bug="rate-from-whole-batches")
    assert findings.bugs == ["sampling-rate-wrong"]


def test_correlated_noise_is_accused_unless_it_is_declared():
    tests = ("noise", "freshness", "late-steps")
    declared = seen(tests, habit="correlated noise", declared={"correlated_noise": True})
    assert declared.verdict == "not judged"
    assert "late steps" in declared.unanswered
    assert seen(tests, habit="correlated noise").bugs


@pytest.mark.slow
@pytest.mark.parametrize("variant", ODD.values(), ids=lambda variant: variant.name)
def test_no_odd_habit_is_accused_at_default_effort(variant):
    findings = check(
        Training(CASE.model, CASE.loss, **variant.settings),
        CASE.model,
        CASE.loss,
        example=CASE.example,
        **variant.declared,
    )
    assert findings.verdict == ("private so far" if variant.judged else "not judged"), str(findings)


def test_whatever_fails_in_the_users_code_is_no_verdict(tmp_path, monkeypatch):
    """Exit code 1 says that a bug was found, so that an error must not end with it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "def build():\n    return nn.Linear(4, 2)\n"
        "def own(*, clip):\n    pass\n"
        "def broken():\n    raise RuntimeError('no data here')\n"
    )
    for model, said in (("mine.py:build", "nw_adapter.py"), ("mine.py:broken", "no data here")):
        arguments = ["debug", "--train", "mine.py:own", "--model", model]
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code != 3
        assert not isinstance(done.exception, SystemExit), "a verdict was given"
        assert said in str(done.exception)
