"""Constrained convolutions against the dense matrix of the layer itself."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.optimize import minimize
from torch import Tensor, nn

from noisewise.bounds.norms import conv_norm
from noisewise.bounds.norms.convolution import riesz_grid
from noisewise.bounds.norms.geometry import space_to_depth
from noisewise.errors import UnsupportedModelError
from noisewise.nn.conv import (
    SpectralConv1d,
    SpectralConv2d,
    SpectralConv3d,
    SpectralConvTranspose1d,
    SpectralConvTranspose2d,
    SpectralConvTranspose3d,
    clip_kernel_singular_values,
)
from noisewise.nn.projections import PROJECTIONS
from noisewise.nn.standardised import StandardisedConv2d

PLAIN = {1: SpectralConv1d, 2: SpectralConv2d, 3: SpectralConv3d}
TRANSPOSED = {
    1: SpectralConvTranspose1d,
    2: SpectralConvTranspose2d,
    3: SpectralConvTranspose3d,
}


def exact(layer: nn.Module, channels: int, size: list[int]) -> float:
    """Norm of the linear part, from its action on every basis vector."""
    twin = copy.deepcopy(layer).double()
    basis = torch.eye(channels * math.prod(size), dtype=torch.float64)
    with torch.no_grad():
        images = twin(basis.reshape(-1, channels, *size))
        origin = twin(torch.zeros(1, channels, *size, dtype=torch.float64))
    return float(torch.linalg.matrix_norm((images - origin).flatten(1), 2))


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 3),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    groups=st.integers(1, 2),
    mode=st.sampled_from(["zeros", "circular", "reflect", "replicate"]),
    transposed=st.booleans(),
    projection=st.sampled_from(PROJECTIONS),
    limit=st.sampled_from([0.2, 1.0, 3.0]),
    seed=st.integers(0, 10**6),
)
def test_whatever_the_kernel_was_the_projected_layer_is_within_its_limit(
    count: int,
    kernel: int,
    stride: int,
    dilation: int,
    groups: int,
    mode: str,
    transposed: bool,
    projection: str,
    limit: float,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    options: dict[str, Any] = {"limit": limit, "projection": projection}
    if not transposed:
        options["padding_mode"] = mode
    kind = (TRANSPOSED if transposed else PLAIN)[count]
    padding = 0 if transposed else 1
    layer = kind(2, 4, kernel, stride, padding, dilation, groups, True, **options)
    size = [5, 4, 4][:count] if count > 1 else [9]
    size = [max(entry, dilation * (kernel - 1) + 1) for entry in size]
    assert exact(layer, 2, size) * (1 - 1e-12) <= layer.norm_bound().value <= limit
    with torch.no_grad():
        layer.weight.normal_().mul_(4.0)
    bound = layer.project_()
    assert exact(layer, 2, size) * (1 - 1e-12) <= bound.value <= limit
    assert layer.norm_bound() == bound
    fresh = conv_norm(
        layer.weight,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        transposed=transposed,
        padding_mode=layer.padding_mode,
    )
    assert float(fresh) <= limit


@pytest.mark.parametrize("projection", PROJECTIONS)
def test_a_training_run_stays_within_the_limit(projection: str) -> None:
    torch.manual_seed(0)
    layer = SpectralConv2d(2, 4, 3, 1, 1, limit=0.8, projection=projection)
    optimizer = torch.optim.SGD(layer.parameters(), lr=2.0)
    x, y = torch.randn(4, 2, 6, 6), torch.randn(4, 4, 6, 6)
    for _ in range(12):
        optimizer.zero_grad()
        nn.functional.mse_loss(layer(x), y).backward()
        optimizer.step()
        layer.project_()
        assert exact(layer, 2, [6, 6]) <= layer.norm_bound().value <= 0.8


def plane_norm(weight: Tensor, steps: list[int], points: int = 40) -> float:
    deep = space_to_depth(weight.detach().double(), steps)
    symbols = torch.fft.fft2(deep, s=(points, points)).permute(2, 3, 0, 1)
    return float(torch.linalg.svdvals(symbols)[..., 0].max())


@pytest.mark.parametrize("stride", [1, 2])
def test_clipping_symbols_moves_a_kernel_less_than_rescaling_it(stride: int) -> None:
    """A kernel with one loud frequency: the others should keep their strength."""
    torch.manual_seed(3)
    weight = 0.1 * torch.randn(6, 6, 3, 3)
    weight += (
        0.4 * torch.ones(3, 3) * torch.outer(torch.eye(6)[0], torch.eye(6)[1])[..., None, None]
    )
    before = weight.clone()
    steps = [stride, stride]
    limit = 0.5 * plane_norm(weight, steps)
    clip_kernel_singular_values(weight, limit, steps=steps, iterations=60)
    assert plane_norm(weight, steps) <= limit * 1.02
    radial = before * limit / plane_norm(before, steps)
    assert float((weight - before).norm()) < 0.9 * float((radial - before).norm())


@pytest.mark.parametrize("seed", range(4))
def test_clipping_symbols_finds_the_nearest_kernel(seed: int) -> None:
    """One channel, four taps: the same projection by a general-purpose solver."""
    torch.manual_seed(seed)
    original = torch.randn(1, 1, 4, dtype=torch.float64)
    (points,), correction = riesz_grid([4])
    limit = 0.6 * float(torch.fft.fft(original.flatten(), points).abs().max())
    level = limit / (correction * 1.006)
    target = original.flatten().numpy()
    symbol = np.exp(2j * np.pi * np.outer(np.arange(points), np.arange(4)) / points)
    solved = minimize(
        lambda w: ((w - target) ** 2).sum(),
        0.1 * target,
        constraints={"type": "ineq", "fun": lambda w: level**2 - np.abs(symbol @ w) ** 2},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    weight = original.clone()
    clip_kernel_singular_values(weight, limit, steps=[1], iterations=3000)
    assert solved.success
    assert np.allclose(weight.flatten().numpy(), solved.x, atol=2e-3)


def test_a_feasible_kernel_is_not_touched_by_clipping() -> None:
    layer = SpectralConv2d(3, 3, 3, projection="singular-values")
    with torch.no_grad():
        layer.weight.mul_(0.5)
    before = layer.weight.detach().clone()
    layer.project_()
    assert torch.equal(layer.weight, before)


def test_fix_and_bjorck_use_the_whole_limit() -> None:
    for projection in ("fix", "bjorck"):
        layer = SpectralConv2d(4, 8, 3, 2, 1, limit=1.5, projection=projection)
        with torch.no_grad():
            layer.weight.normal_()
        assert 1.499 <= layer.project_().value <= 1.5
        assert plane_norm(layer.weight, [2, 2]) >= 1.5 / 1.10


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_parameters_that_are_not_finite_are_refused(name: str) -> None:
    layer = SpectralConv2d(2, 2, 3)
    with torch.no_grad():
        getattr(layer, name).view(-1)[0] = math.nan
    with pytest.raises(ValueError, match="NaN or infinite"):
        layer.project_()


def test_bad_options_are_refused_at_construction() -> None:
    with pytest.raises(ValueError, match="limit must be > 0"):
        SpectralConv2d(2, 2, 3, limit=-1.0)
    with pytest.raises(ValueError, match="projection must be one of"):
        SpectralConv2d(2, 2, 3, projection="power")
    with pytest.raises((ValueError, UnsupportedModelError)):
        SpectralConv2d(2, 2, 3, padding_mode="symmetric")


def test_extreme_kernels_are_projected() -> None:
    for size in (1e-38, 1e30):
        layer = SpectralConv2d(2, 3, 3)
        with torch.no_grad():
            layer.weight.fill_(size)
        assert layer.project_().value <= 1.0
        assert bool(torch.isfinite(layer.weight).all())


def test_the_kernel_is_a_plain_parameter_that_shares_names_with_torch() -> None:
    layer = SpectralConv2d(2, 4, 3, padding=1)
    plain = nn.Conv2d(2, 4, 3, padding=1)
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(2, 2, 5, 5)
    assert torch.equal(plain(x), layer(x))
    assert isinstance(layer, nn.Conv2d)


def test_a_norm_of_the_reshaped_kernel_alone_would_not_do() -> None:
    """Twin: clip by the reshaped kernel, as torch's spectral_norm does, and leave the ball."""
    layer = SpectralConv2d(1, 1, 3, padding=1)
    with torch.no_grad():
        layer.weight.fill_(1.0 / 3.0)  # the reshaped kernel has norm one
    assert exact(layer, 1, [10, 10]) > 2.7
    assert layer.project_().value <= 1.0
    assert exact(layer, 1, [10, 10]) <= 1.0


def test_a_standardised_convolution_is_bounded_by_its_effective_kernel() -> None:
    torch.manual_seed(4)
    layer = StandardisedConv2d(3, 4, 3, 2, 1, gain=0.7)
    with torch.no_grad():
        layer.weight.mul_(1e-2)
    norm = exact(layer, 3, [6, 6])
    assert norm * (1 - 1e-6) <= layer.norm_bound().value
    plain = nn.functional.conv2d(
        torch.ones(1, 3, 6, 6), layer.effective_weight(), layer.bias, stride=2, padding=1
    )
    assert torch.equal(layer(torch.ones(1, 3, 6, 6)), plain)


def test_noise_on_the_effective_gradient_comes_back_as_the_pulled_back_noise() -> None:
    torch.manual_seed(5)
    layer = StandardisedConv2d(2, 3, 3).double()
    gradient, noise = torch.randn(2, *layer.weight.shape).double()
    both = layer.pull_back(gradient + noise)
    assert torch.allclose(both, layer.pull_back(gradient) + layer.pull_back(noise), atol=1e-10)
