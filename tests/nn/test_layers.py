"""What the Lipschitz layers compute, besides obeying their bounds (tests/common)."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn
from torch.func import grad, vmap

from noisewise import nn as nw


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    torch.manual_seed(0)


@settings(max_examples=40, deadline=None)
@given(groups=st.integers(1, 4), size=st.integers(2, 4), seed=st.integers(0, 10**6))
def test_group_sort_permutes_within_groups(groups: int, size: int, seed: int) -> None:
    x = torch.randn(3, groups * size, 2, generator=torch.Generator().manual_seed(seed))
    y = nw.GroupSort(size)(x)
    for start in range(0, groups * size, size):
        expected = x[:, start : start + size].sort(dim=1).values
        assert torch.equal(y[:, start : start + size], expected)
    assert y.norm() == pytest.approx(float(x.norm()), rel=1e-6)


def test_max_min_is_group_sort_of_two_in_the_other_order() -> None:
    x = torch.randn(4, 6, 3)
    swapped = nw.GroupSort(2)(x).reshape(4, 3, 2, 3).flip(2).reshape(4, 6, 3)
    assert torch.equal(nw.MaxMin()(x), swapped)


def test_a_householder_activation_starts_as_max_min_and_keeps_norms() -> None:
    x = torch.randn(50, 6, 2, dtype=torch.float64)
    layer = nw.HouseholderActivation(6).double()
    assert torch.allclose(layer(x), nw.MaxMin()(x), atol=1e-6)  # the angle is a float32
    with torch.no_grad():
        layer.angle.uniform_(-math.pi, math.pi)
    assert torch.allclose(layer(x).flatten(1).norm(dim=1), x.flatten(1).norm(dim=1))


def test_a_householder_activation_is_continuous_across_its_line() -> None:
    layer = nw.HouseholderActivation(2).double()
    with torch.no_grad():
        layer.angle.fill_(0.9)
    line = torch.tensor([[math.cos(0.45), math.sin(0.45)]], dtype=torch.float64)
    step = 1e-9 * torch.tensor([[math.sin(0.45), -math.cos(0.45)]], dtype=torch.float64)
    assert torch.allclose(layer(line + step), layer(line - step), atol=1e-8)


def test_wrong_channel_numbers_are_refused() -> None:
    for layer in (nw.GroupSort(2), nw.MaxMin(), nw.HouseholderActivation(4)):
        with pytest.raises(ValueError, match="channels"):
            layer(torch.zeros(1, 3))


def test_the_default_tempered_sigmoid_is_the_hyperbolic_tangent() -> None:
    x = torch.linspace(-3, 3, 50, dtype=torch.float64)
    assert torch.allclose(nw.TemperedSigmoid()(x), torch.tanh(x))


@pytest.mark.parametrize("affine", [False, True])
def test_group_norm_agrees_with_torch_where_the_deviation_is_large(affine: bool) -> None:
    x = 100 * torch.randn(3, 4, 5, dtype=torch.float64)
    ours = nw.LipschitzGroupNorm(2, 4, alpha=0.5, affine=affine).double()
    theirs = nn.GroupNorm(2, 4, eps=0.0, affine=affine).double()
    assert torch.allclose(ours(x), theirs(x))
    assert torch.allclose(
        nw.LipschitzLayerNorm(5, 0.5)(x), nn.functional.layer_norm(x, (5,), eps=0.0)
    )


def test_constant_groups_have_finite_gradients() -> None:
    for layer in (nw.LipschitzGroupNorm(1, 4), nw.LipschitzLayerNorm(4), nw.ScaledL2Pool2d(2)):
        shape = (2, 4, 4, 4)
        x = torch.zeros(shape, requires_grad=True)
        layer(x).sum().backward()
        assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize(
    "layer",
    [
        nw.LipschitzGroupNorm(1, 3),
        nw.LayerCentering(),
        nw.LayerCentering((1,)),
        nw.LipschitzLayerNorm(5),
    ],
)
def test_no_normalisation_reaches_across_records(layer: nn.Module) -> None:
    x = torch.randn(4, 3, 5)
    other = x.clone()
    other[1:] += 100.0
    assert torch.equal(layer(x)[0], layer(other)[0])


def test_pooling_keeps_the_norm_where_windows_do_not_overlap() -> None:
    x = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    assert float(nw.ScaledL2Pool2d(3)(x).norm()) == pytest.approx(float(x.norm()))
    patches = x[..., ::2, ::2].repeat_interleave(2, -1).repeat_interleave(2, -2)
    assert float(nw.ScaledAvgPool2d(2)(patches).norm()) == pytest.approx(float(patches.norm()))


def test_a_convex_mix_learns_and_starts_at_its_coefficient() -> None:
    block = nw.LipschitzResidual(nn.Linear(3, 3), coefficient=0.25, learn=True)
    assert block.mix.coefficient == pytest.approx(0.25)
    block(torch.randn(2, 3)).sum().backward()
    assert block.mix.raw.grad is not None
    assert not list(nw.LipschitzResidual(nn.Identity()).parameters())
    with pytest.raises(ValueError, match="coefficient"):
        nw.LipschitzResidual(nn.Identity(), coefficient=1.0)


@settings(max_examples=30, deadline=None)
@given(clip=st.floats(1e-3, 10.0), seed=st.integers(0, 10**6))
def test_clip_gradient_clips_each_record_by_itself(clip: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    cotangent = 5 * torch.randn(6, 2, 3, generator=generator)
    x = torch.zeros(6, 2, 3, requires_grad=True)
    y = nw.ClipGradient(clip)(x)
    assert torch.equal(y, x)
    y.backward(cotangent)
    norms = cotangent.flatten(1).norm(dim=1)
    expected = cotangent * (clip / norms).clamp_max(1.0)[:, None, None]
    assert torch.allclose(x.grad, expected, rtol=1e-5)
    assert float(x.grad.double().flatten(1).norm(dim=1).max()) <= clip


def test_clip_gradient_works_under_torch_func() -> None:
    layer = nw.ClipGradient(0.5)
    found = vmap(grad(lambda x: 9 * layer(x[None]).sum()))(torch.zeros(4, 3))
    assert torch.allclose(found.norm(dim=1), torch.full((4,), 0.5), rtol=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nw.BoundedInput((2,), -1.0), lambda: nw.BoundedInput((2,), 1.0, "squash"),
        lambda: nw.GroupSort(1), lambda: nw.ClipGradient(0.0),
        lambda: nw.TemperedSigmoid(scale=-1.0),
        lambda: nw.LipschitzGroupNorm(3, 4), lambda: nw.LipschitzGroupNorm(1, 4, alpha=0.0),
        lambda: nw.HouseholderActivation(3), lambda: nw.ScaledAvgPool2d(0),
        lambda: nw.losses.CrossEntropy(0.0), lambda: nw.losses.MeanSquared(1.0, 0.0),
        lambda: nw.losses.KantorovichRubinstein(1.5), lambda: nw.losses.CosineSimilarity(0.0),
        lambda: nw.losses.CrossEntropy(weight=[-1.0]), lambda: nw.losses.Huber(reduction="some"),
    ],
)  # fmt: skip
def test_wrong_settings_are_refused(make: object) -> None:
    with pytest.raises(ValueError):
        make()
