"""Suprema without closed form are enclosed from above.

Where |f'| is largest, f'' vanishes, so the nearest point of a grid of spacing h is at most
(h/2)^2/2 sup |f'''| lower. Beyond |x| = 12 the slopes of all these functions are within 1e-4
of 0 or 1: their distance from max(x, 0) decays like x e^-|x|.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from noisewise.bounds.rules import activation

SPACING = 2e-6
THIRD = 3.0  # above sup |f'''| of all four, see the test of that
CASES = [
    (nn.GELU("tanh"), activation.GELU_TANH_SLOPE),
    (nn.SiLU(), activation.SILU_SLOPE),
    (nn.Mish(), activation.MISH_SLOPE),
]


def steepest(function: nn.Module) -> float:
    largest = 0.0
    for low in range(-12, 12):
        grid = torch.arange(low, low + 1 + SPACING, SPACING, dtype=torch.float64).requires_grad_()
        (slope,) = torch.autograd.grad(function(grid).sum(), grid)
        largest = max(largest, float(slope.abs().max()))
    return largest


@pytest.mark.parametrize(("function", "constant"), CASES)
def test_the_steepest_slope_is_enclosed_and_tight(function: nn.Module, constant: float) -> None:
    largest = steepest(function)
    assert largest + SPACING**2 / 8 * THIRD <= constant
    assert constant <= largest * (1 + 1e-6)


@pytest.mark.parametrize("function", [nn.GELU(), *(case[0] for case in CASES)])
def test_the_third_derivative_is_as_small_as_assumed(function: nn.Module) -> None:
    grid = torch.linspace(-12, 12, 240_001, dtype=torch.float64).requires_grad_()
    (first,) = torch.autograd.grad(function(grid).sum(), grid, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), grid)
    assert float(second.diff().abs().max()) / (24 / 240_000) < 0.9 * THIRD


def test_gelu_is_steepest_at_the_root_of_two() -> None:
    # f'' = (2 - x^2) phi(x), so the root of two is the only candidate besides its negative.
    x = torch.tensor(math.sqrt(2.0), dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(nn.functional.gelu(x), x)
    assert float(slope) == pytest.approx(activation.GELU_SLOPE, rel=1e-13)
    assert float(slope) <= activation.GELU_SLOPE
    assert steepest(nn.GELU()) <= activation.GELU_SLOPE


def test_the_constants_agree_with_the_notes_to_their_last_digit() -> None:
    assert 1.1289 < activation.GELU_SLOPE < 1.1290
    assert 1.0998 < activation.SILU_SLOPE < 1.0999
    assert 1.0884 < activation.MISH_SLOPE < 1.0886
    assert 1.7580 < activation.SELU_SLOPE < 1.7582
