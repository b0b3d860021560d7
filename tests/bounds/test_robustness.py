"""Certified radii: no attack succeeds inside, and outside some do."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

import noisewise as nw
from noisewise.bounds import robustness
from noisewise.nn import (
    BoundedInput,
    ClipGradient,
    GroupSort,
    LipschitzGroupNorm,
    ScaledAvgPool2d,
    SpectralConv2d,
    SpectralLinear,
)


def dense(seed=0, classes=4):
    torch.manual_seed(seed)
    return nn.Sequential(
        BoundedInput((6,), 4.0),
        SpectralLinear(6, 16),
        GroupSort(2),
        ClipGradient(0.01),
        SpectralLinear(16, 8),
        GroupSort(2),
        nn.Linear(8, classes),
    )


def pictures(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        BoundedInput((1, 8, 8), 8.0),
        SpectralConv2d(1, 8, 3, 1, 1),
        GroupSort(2),
        ScaledAvgPool2d(2),
        LipschitzGroupNorm(2, 8, alpha=0.5),
        nn.Flatten(),
        SpectralLinear(128, 16),
        nn.ReLU(),
        nn.Linear(16, 3),
    )


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second, self.head = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(x + self.second(torch.tanh(self.first(x))))


CASES = [
    pytest.param(dense(), (6,), 4, id="dense"),
    pytest.param(pictures(), (1, 8, 8), 3, id="pictures"),
    pytest.param(Residual(), (5,), 3, id="residual, plain layers"),
]


def attack(model, x, y, radius, steps=60, restarts=3):
    """Projected gradient ascent on the best wrong logit's lead; whether the class ever changed."""
    broken = torch.zeros(len(x), dtype=torch.bool)
    scale = radius.view(-1, *[1] * (x.dim() - 1))
    for start in range(restarts):
        torch.manual_seed(start)
        move = torch.randn_like(x)
        move = move / move.flatten(1).norm(dim=1).view_as(scale) * scale
        for _ in range(steps):
            move.requires_grad_(True)
            # ClipGradient changes gradients, not the function: attack through plain identities.
            output = functional.log_softmax(model(x + move), 1)
            own = output.gather(1, y[:, None])
            lead = output.scatter(1, y[:, None], -math.inf).max(1).values - own[:, 0]
            (slope,) = torch.autograd.grad(lead.sum(), move)
            with torch.no_grad():
                broken |= lead > 0
                step = slope / slope.flatten(1).norm(dim=1).clamp_min(1e-30).view_as(scale)
                move = move + 0.2 * scale * step
                length = move.flatten(1).norm(dim=1).view_as(scale)
                move = move * (scale / length.clamp_min(1e-30)).clamp(max=1.0)
    return broken


def records(shape, model, count=200):
    torch.manual_seed(7)
    x = torch.randn(count, *shape)
    return x, model(x).argmax(1)


@pytest.mark.parametrize(("model", "shape", "classes"), CASES)
def test_no_attack_succeeds_inside_the_radius(model, shape, classes):
    model.eval()
    x, y = records(shape, model)
    radius = nw.certified_radius(model, x, y)
    assert (radius > 0).float().mean() > 0.9
    assert not attack(model, x, y, 0.9999 * radius.float()).any()
    assert not attack(model.double(), x.double(), y, radius).any()
    model.float()


@pytest.mark.parametrize(("model", "shape", "classes"), CASES[:1] + CASES[2:])
def test_the_attack_would_find_radii_that_are_too_large(model, shape, classes):
    x, y = records(shape, model)
    radius = nw.certified_radius(model, x, y)
    assert attack(model, x, y, 8.0 * radius.float()).any()


def test_the_radius_of_a_linear_model_is_exact():
    torch.manual_seed(0)
    model = nn.Linear(5, 3).double()
    x = torch.randn(50, 5, dtype=torch.float64)
    y = model(x).argmax(1)
    radius = nw.certified_radius(model, x, y)
    weight, output = model.weight.detach(), model(x).detach()
    for i in range(50):
        gaps = [
            (output[i, y[i]] - output[i, j]) / (weight[y[i]] - weight[j]).norm()
            for j in range(3)
            if j != y[i]
        ]
        assert float(radius[i]) <= min(map(float, gaps))
        assert float(radius[i]) >= 0.98 * float(min(gaps)) - 1e-3
    assert not attack(model, x, y, radius).any()
    assert attack(model, x, y, 1.05 * radius + 2e-3).double().mean() > 0.9


def test_a_constant_that_is_too_small_is_found_out(monkeypatch):
    model = nn.Linear(5, 3)
    x, y = records((5,), model)
    right = robustness.Head.gaps
    monkeypatch.setattr(robustness.Head, "gaps", lambda self: 0.8 * right(self))
    assert attack(model, x, y, nw.certified_radius(model, x, y).float()).any()


def test_clipped_gradients_do_not_count_as_a_lipschitz_constant():
    clipped = nn.Sequential(nn.Linear(4, 4), ClipGradient(1e-6), nn.Linear(4, 3))
    plain = nn.Sequential(clipped[0], nn.Identity(), clipped[2])
    x, y = records((4,), plain)
    assert torch.equal(nw.certified_radius(clipped, x, y), nw.certified_radius(plain, x, y))


def test_wrong_answers_have_no_radius_and_accuracy_falls_with_it():
    model = dense()
    x, y = records((6,), model)
    wrong = (y + 1) % 4
    assert not nw.certified_radius(model, x, wrong).any()
    shares = [nw.robust_accuracy(model, x, y, radius=r) for r in (0.0, 0.01, 0.1, 10.0)]
    assert shares[0] > 0.95
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] == 0.0


def test_two_classes_by_the_sign_of_one_number():
    model = nn.Linear(3, 1)
    x, _ = records((3,), nn.Linear(3, 2))
    y = (model(x)[:, 0] > 0).long()
    radius = nw.certified_radius(model, x, y)
    exact = model(x)[:, 0].abs() / model.weight.norm()
    assert (radius <= exact + 1e-9).all()
    assert (radius >= 0.97 * exact - 1e-3).all()


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (BoundedInput((6,), 1.0, mode="normalise"), "blows up short inputs"),
        (nn.Hardshrink(0.3), "jumps"),
        (nn.Threshold(0.1, 20.0), "jumps"),
    ],
)
def test_what_is_not_lipschitz_in_the_input_is_refused(layer, message):
    model = nn.Sequential(layer, nn.Linear(6, 3))
    with pytest.raises(nw.UnsupportedModelError, match=message):
        nw.certified_radius(model, torch.randn(2, 6), torch.tensor([0, 1]))


def test_hues_jump():
    model = nn.Sequential(
        BoundedInput((3, 4, 4), 5.0, colour="hsv"), nn.Flatten(), nn.Linear(48, 2)
    )
    with pytest.raises(nw.UnsupportedModelError, match="hues"):
        nw.certified_radius(model, torch.rand(2, 3, 4, 4), torch.tensor([0, 1]))


def test_colours_count():
    model = nn.Sequential(
        BoundedInput((3, 4, 4), 7.0, colour="yiq"), nn.Flatten(), nn.Linear(48, 2)
    )
    x = torch.rand(20, 3, 4, 4)
    y = model(x).argmax(1)
    assert not attack(model, x, y, 0.9999 * nw.certified_radius(model, x, y).float()).any()


def test_bad_arguments_are_named():
    model = nn.Linear(2, 3)
    with pytest.raises(TypeError, match="floating-point"):
        nw.certified_radius(model, torch.zeros(2, 2, dtype=torch.long), torch.zeros(2).long())
    with pytest.raises(ValueError, match="one class"):
        nw.certified_radius(model, torch.zeros(2, 2), torch.zeros(2))
    with pytest.raises(ValueError, match="from 0 to 2"):
        nw.certified_radius(model, torch.zeros(1, 2), torch.tensor([3]))
    with pytest.raises(ValueError, match="radius must be"):
        nw.robust_accuracy(model, torch.zeros(1, 2), torch.tensor([0]), radius=-1.0)
    huge = nw.certified_radius(model, torch.full((1, 2), 1e30), torch.tensor([0]))
    assert float(huge) == 0.0
