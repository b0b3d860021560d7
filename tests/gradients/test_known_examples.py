"""Two analytic examples of the bias of clipping, computed by the engine itself."""

import math

import pytest
import torch
from torch import nn

import noisewise as nw
from noisewise.gradients import GradientEngine


def regression(slope, intercept):
    model = nn.Linear(1, 1).double()
    with torch.no_grad():
        model.weight.fill_(slope)
        model.bias.fill_(intercept)
    return model


def mean_clipped_gradient(slope, intercept, points=4000):
    """Barczewski and Ramon (2024), appendix E: y = e, P(9) = 0.1, P(-1) = 0.9, x uniform, C = 1."""
    x = ((torch.arange(points, dtype=torch.float64) + 0.5) / points).unsqueeze(1)
    sums = []
    for error in (9.0, -1.0):
        y = torch.full_like(x, error)
        engine = GradientEngine(regression(slope, intercept), nn.MSELoss(), nw.Clipped(1.0))
        gradients = engine.sum(x, y).gradients
        sums.append(torch.stack([gradients["weight"].sum(), gradients["bias"].sum()]) / points)
    return 0.1 * sums[0] + 0.9 * sums[1]


def test_the_clipped_gradient_at_the_optimum_is_as_the_paper_says():
    length = float(torch.linalg.vector_norm(mean_clipped_gradient(0.0, 0.0)))
    closed_form = 0.8 * math.hypot(math.sqrt(2) - 1, math.asinh(1))
    assert length == pytest.approx(closed_form, abs=1e-6)
    assert round(length, 4) == 0.7791


def test_the_clipped_gradient_vanishes_where_the_papers_signs_are_turned():
    assert float(mean_clipped_gradient(-0.01765, -0.94221).abs().max()) < 1e-4
    assert float(mean_clipped_gradient(0.01765, 0.94221).abs().max()) > 0.3  # as printed


def shifts(at, centres, clip=1.0):
    """Sum of clipped gradients of (x - a)^2 / 2, with x the only parameter."""
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(at)

    def half_square(output, target):
        return 0.5 * (output.squeeze(1) - target).square()

    x = torch.ones(len(centres), 1)
    result = nw.bounded_sum(model, half_square, x, torch.tensor(centres), nw.Clipped(clip))
    return float(result.gradients["weight"])


def test_chen_wu_hong_first_example():
    """Chen, Wu and Hong (2020), a = (-3, -3, 9): the optimum is 1, clipped to 1 it is -2.5."""
    assert sum(1.0 - a for a in (-3.0, -3.0, 9.0)) == 0
    assert shifts(1.0, [-3.0, -3.0, 9.0]) == pytest.approx(1.0)
    assert shifts(-2.5, [-3.0, -3.0, 9.0]) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("at", [-2.0, -0.7, 0.0, 1.3, 2.0])
def test_chen_wu_hong_second_example(at):
    """a = (-3, 3): every point between -2 and 2 looks like an optimum."""
    assert shifts(at, [-3.0, 3.0]) == pytest.approx(0.0, abs=1e-6)


def test_global_clipping_drops_instead_of_shortening():
    """The same three points: only those closer than the threshold count."""
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(1.0)

    def half_square(output, target):
        return 0.5 * (output.squeeze(1) - target).square()

    y = torch.tensor([-3.0, -3.0, 9.0])
    rule = nw.Clipped(5.0, rule="global")
    result = nw.bounded_sum(model, half_square, torch.ones(3, 1), y, rule)
    assert float(result.gradients["weight"]) == pytest.approx(8.0)
