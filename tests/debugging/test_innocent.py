"""Training that is correct in an unusual way, and failures that the check itself would cause."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from noisewise.debugging import check
from noisewise.debugging.mutants import Training, cases

EXAMPLE = (torch.zeros(3, 8), torch.tensor([0, 1, 3]))


def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def with_dropout():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.4), nn.Linear(16, 4))


def quick(train, model=mlp, **declared):
    return check(train, model, cross_entropy, example=EXAMPLE, effort="quick", **declared)


def test_global_clipping_of_gradients_that_are_all_longer_than_the_limit():
    """It was accused once: nothing moved, so `steps` was taken for ignored and left out."""
    asked = []
    inner = Training(mlp, cross_entropy, rule="drop")

    def train(*, clip, noise_multiplier, batch_size, seed, data, init, steps, lr):
        asked.append(steps)
        return inner(
            clip=clip,
            noise_multiplier=noise_multiplier,
            batch_size=batch_size,
            seed=seed,
            data=data,
            init=init,
            steps=steps,
            lr=lr,
        )

    findings = quick(
        train, tests=("preflight", "contribution", "separation", "freshness", "late-steps")
    )
    assert findings.ok, str(findings)
    assert "steps-ignored" not in findings.bugs
    assert max(asked) > 10


def test_an_argument_that_seems_unused_is_still_handed_over():
    """The learning rate is ignored, but code that needs it must not fail for its absence."""
    inner = Training(mlp, cross_entropy)

    def train(*, clip, noise_multiplier, batch_size, seed, data, init, steps, lr):
        given = {"clip": clip, "noise_multiplier": noise_multiplier, "batch_size": batch_size}
        return inner(seed=seed, data=data, init=init, steps=steps, lr=0.0 * lr + 0.1, **given)

    findings = quick(train, tests=("preflight", "contribution"))
    assert "lr-ignored" in findings.bugs
    assert "single-record-fails" not in findings.bugs


def test_a_refused_noise_multiplier_of_zero_is_not_held_against_the_training():
    inner = Training(mlp, cross_entropy)

    def train(**arguments):
        if arguments["noise_multiplier"] <= 0:
            raise ValueError("noise_multiplier must be positive")
        return inner(**arguments)

    findings = quick(train, tests=("preflight", "noise", "contribution", "separation"))
    assert findings.ok, str(findings)
    assert any("refused" in note for note in findings.notes)


def test_a_clipping_norm_that_only_the_check_would_choose_may_be_refused():
    inner = Training(mlp, cross_entropy)

    def train(**arguments):
        if arguments["clip"] < 1e-7:
            raise ValueError("clip is too small")
        return inner(**arguments)

    assert quick(train, tests=("preflight", "contribution", "separation")).ok


def test_training_that_seeds_nothing_is_seeded_from_outside():
    """Each run drew the same numbers once, which looked like constant noise."""

    def train(*, clip, noise_multiplier, batch_size, data, init, steps, lr):
        model = mlp()
        model.load_state_dict(init)
        parameters = list(model.parameters())
        x, y = data
        for _ in range(steps):
            total = [torch.zeros_like(p) for p in parameters]
            for i in torch.nonzero(torch.rand(len(x)) < batch_size / len(x)).flatten():
                loss = cross_entropy(model(x[i : i + 1]), y[i : i + 1])
                gradients = torch.autograd.grad(loss, parameters)
                norm = torch.stack([g.norm() for g in gradients]).norm()
                factor = min(1.0, clip / float(norm)) if torch.isfinite(norm) else 0.0
                for t, g in zip(total, gradients, strict=True):
                    t.add_(torch.nan_to_num(g, 0.0, 0.0, 0.0), alpha=factor)
            with torch.no_grad():
                for p, t in zip(parameters, total, strict=True):
                    p -= lr * (t + noise_multiplier * clip * torch.randn_like(p)) / batch_size
        return model.state_dict()

    findings = quick(
        train, tests=("preflight", "noise", "separation", "sampling", "freshness", "decisions")
    )
    assert findings.ok, str(findings)
    assert {"sampling", "decisions"} <= set(findings.ran)


@pytest.mark.parametrize(
    ("bug", "test"),
    [
        ("clip-after-mean", "separation"),
        pytest.param("half-sigma", "noise", marks=pytest.mark.slow),
        ("factor-1.3", "contribution"),
        pytest.param("shuffle", "sampling", marks=pytest.mark.slow),
        ("noise-stops", "late-steps"),
    ],
)
def test_bugs_are_found_behind_dropout(bug, test):
    train = Training(with_dropout, cross_entropy, training_mode=True, bug=bug)
    findings = quick(train, with_dropout, tests=("preflight", test))
    assert findings.verdict == "bug", str(findings)


def test_dropout_whose_seed_nobody_controls_is_averaged_out():
    source = torch.Generator()
    source.seed()
    inner = Training(mlp, cross_entropy)

    def train(**arguments):
        x, y = arguments.pop("data")
        keep = (torch.rand(x.shape, generator=source) > 0.3).to(x)
        return inner(data=(x * keep / 0.7, y), **arguments)

    tests = ("preflight", "noise", "contribution", "separation", "freshness", "decisions")
    right = quick(train, tests=tests)
    assert right.ok, str(right)
    assert "averages" in next(r.summary for r in right.results if r.test == "separation")
    # Who is in a batch cannot be seen then, and that is said.
    whole = quick(train, tests=("preflight", "contribution", "sampling"))
    assert whole.verdict == "not judged"
    assert "seed" in whole.unanswered["the sampling"]


def test_what_is_observed_is_judged_where_signs_hide_the_step():
    def observe(result):
        return {n.removeprefix("released."): r for n, r in result.items() if "released." in n}

    tests = ("preflight", "noise", "contribution", "separation")
    for bug, verdict in ((None, "private so far"), ("half-sigma", "bug"), ("no-clipping", "bug")):
        train = Training(mlp, cross_entropy, post="sign", show_release=True, bug=bug)
        assert quick(train, observe=observe, tests=tests).verdict == verdict


def test_post_processing_does_not_hide_decisions_on_the_data():
    train = Training(mlp, cross_entropy, post="normalised", bug="early-stopping")
    findings = check(
        train,
        mlp,
        cross_entropy,
        example=EXAMPLE,
        effort="default",
        tests=("preflight", "decisions"),
    )
    assert findings.bugs == ["training-stops-on-data"], str(findings)


def test_a_model_with_few_parameters_has_its_batches_judged_by_replacement():
    def tiny():
        return nn.Linear(3, 2)

    example = (torch.zeros(3, 3), torch.tensor([0, 1, 1]))
    for bug in (None, "shuffle"):
        train = Training(tiny, cross_entropy, bug=bug)
        findings = check(
            train,
            tiny,
            cross_entropy,
            example=example,
            effort="quick",
            tests=("preflight", "separation", "sampling"),
        )
        assert findings.ok == (bug is None), str(findings)
        assert "replacing" in findings.results[-1].summary


def test_numbers_of_the_cases_are_finite():
    for case in cases().values():
        loss = case.loss(case.model()(case.example[0]), case.example[1])
        assert math.isfinite(loss.item())


def test_weights_that_are_not_trained_yet_are_no_part_of_the_noise():
    """It was accused once: 17 of 385 weights moved, and zeros were counted as quiet noise."""
    case = cases()["MLP, binary"]
    train = Training(case.model, case.loss, habit="layers unfrozen in time, protected")
    tests = ("preflight", "separation", "contribution", "noise")
    findings = check(
        train, case.model, case.loss, example=case.example, effort="quick", seed=319, tests=tests
    )
    assert findings.bugs == []
    noise = next(result for result in findings.results if result.test == "noise")
    base = float(noise.summary.split("base ")[1].split(",")[0])
    # 136 numbers: the deviation is known to 6 %, and five of these are one in a million.
    assert base == pytest.approx(1.0, abs=0.3)
