"""Odd but harmless training is not accused; the same oddity with a mistake in it is."""

from __future__ import annotations

import re

import pytest
import torch
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
        ("mean of the weights from step 50 on", ("late-steps",)),
        ("largest half of the noisy gradient", ("separation", "noise")),
        ("rate falls with noisy lengths", ("separation",)),
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


def test_entries_that_the_records_choose_are_no_post_processing():
    """The same zeros, chosen before the noise: that is a bug, and not called harmless."""
    assert "noise" in str(seen(("noise",), bug="top-half-by-raw").bugs)


def returning(**more):
    inner = Training(CASE.model, CASE.loss)

    def train(*, clip, noise_multiplier, batch_size, seed, data, init, steps, lr):
        state = inner(
            clip=clip,
            noise_multiplier=noise_multiplier,
            batch_size=batch_size,
            seed=seed,
            data=data,
            init=init,
            steps=steps,
            lr=lr,
        )
        model = CASE.model()
        model.load_state_dict(state)
        loss = CASE.loss(model(data[0]), data[1]).item()
        coin = torch.Generator().manual_seed(seed)
        noisy = loss + noise_multiplier * torch.randn((), generator=coin).item()
        beside = {
            "steps": steps,
            "weights of the head": state["4.bias"],
            "loss on public records": CASE.loss(model(torch.ones(2, 8)), torch.arange(2)).item(),
            "noisy loss": noisy,
            "raw loss": loss,
            "history": {"losses": [0.0, loss]},
            "size": float(data[0].norm()),
        }
        return {**state, **{name: beside[name] for name in more["names"]}}

    return check(
        train,
        CASE.model,
        CASE.loss,
        example=CASE.example,
        effort="quick",
        tests=("preflight", "contribution"),
    )


@pytest.mark.parametrize("name", ["raw loss", "history", "size"])
def test_what_is_returned_beside_the_weights_needs_noise_too(name):
    findings = returning(names=[name])
    assert findings.bugs == ["released-beside-weights"], str(findings)
    assert name in findings.findings[0].sentence


def test_what_follows_from_the_weights_or_has_noise_of_its_own_may_be_returned_too():
    names = ["steps", "weights of the head", "loss on public records", "noisy loss"]
    assert returning(names=names).ok


def test_batches_beyond_the_usual_pieces_are_sums_of_their_records():
    findings = seen(("separation",), bug="large-batches-clipped-in-pairs")
    assert findings.bugs == ["records-interact"]
    assert "B = 259" in findings.findings[0].sentence


def test_a_weak_tie_between_records_shows_where_their_order_does_not_matter():
    findings = seen(("separation",), bug="logits-decorrelated-in-batch")
    assert findings.bugs == ["records-interact"]


def test_a_check_that_may_end_early_ends_at_its_first_finding():
    train = Training(CASE.model, CASE.loss, bug="no-clipping")
    findings = check(
        train, CASE.model, CASE.loss, example=CASE.example, effort="quick", fail_fast=True
    )
    assert findings.bugs == ["no-clipping"]
    assert findings.results[-1].test == "contribution"
    assert len(findings.results) < len(TESTS) / 2


@pytest.fixture
def noise_centred():
    """Rows of the noise alone are centred: one direction of every row is left without noise."""

    @mutation("noise-centred", "noise")
    def _(noise, at):
        return {n: z - z.mean(-1, keepdim=True) if z.ndim > 1 else z for n, z in noise.items()}

    yield "noise-centred"
    del HOOKS["noise-centred"]


def test_centred_rows_are_innocent_only_if_the_records_are_centred_too(noise_centred):
    case = cases()["CNN"]

    def found(**settings):
        train = Training(case.model, case.loss, **settings)
        tests = ("preflight", "noise", "freshness")
        return check(
            train, case.model, case.loss, example=case.example, effort="quick", tests=tests
        )

    centred = found(habit="rows of the noisy gradient centred")
    assert not centred.bugs
    assert any("the same 262 of 349 directions" in why for why in centred.unanswered.values())
    assert "noise-correlated" in found(bug=noise_centred).bugs


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
