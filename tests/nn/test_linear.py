"""Constrained dense layers, and weight standardisation of dense layers."""

from __future__ import annotations

import copy
import io
import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

import noisewise as nw
from noisewise.bounds.norms import spectral_norm
from noisewise.nn.linear import FrobeniusLinear, SpectralLinear
from noisewise.nn.projections import PROJECTIONS
from noisewise.nn.standardised import StandardisedLinear


def exact(layer: nn.Linear) -> float:
    return float(torch.linalg.matrix_norm(layer.weight.detach().double(), 2))


@settings(max_examples=40, deadline=None)
@given(
    inputs=st.integers(1, 20),
    outputs=st.integers(1, 20),
    limit=st.sampled_from([0.1, 1.0, 5.0]),
    projection=st.sampled_from(PROJECTIONS),
    scale=st.sampled_from([1e-6, 1.0, 1e6, 1e30]),
    seed=st.integers(0, 10**6),
)
def test_whatever_the_weights_were_the_projected_layer_is_within_its_limit(
    inputs: int, outputs: int, limit: float, projection: str, scale: float, seed: int
) -> None:
    torch.manual_seed(seed)
    layer = SpectralLinear(inputs, outputs, limit=limit, projection=projection)
    assert exact(layer) <= layer.norm_bound().value <= limit
    with torch.no_grad():
        layer.weight.normal_().mul_(scale)
    bound = layer.project_()
    assert exact(layer) * (1 - 1e-13) <= bound.value <= limit
    assert layer.norm_bound() == bound
    assert float(spectral_norm(layer.weight)) <= limit
    if projection == "fix":
        assert bound.value >= 0.999 * limit


@pytest.mark.parametrize("projection", PROJECTIONS)
def test_a_training_run_stays_within_the_limit(projection: str) -> None:
    torch.manual_seed(0)
    layer = SpectralLinear(12, 8, limit=1.5, projection=projection)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.3)
    x, y = torch.randn(32, 12), torch.randn(32, 8)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.mse_loss(layer(x), y).backward()
        optimizer.step()
        layer.project_()
        assert exact(layer) <= layer.norm_bound().value <= 1.5
        assert float(spectral_norm(layer.weight, method="eigenvalue")) <= 1.5


@pytest.mark.parametrize("projection", PROJECTIONS)
def test_a_larger_layer_is_within_its_limit_by_a_fresh_certificate(projection: str) -> None:
    torch.manual_seed(0)
    layer = SpectralLinear(200, 150, projection=projection)
    for _ in range(4):
        with torch.no_grad():
            layer.weight.add_(torch.randn_like(layer.weight), alpha=0.02)
        layer.project_()
        assert float(spectral_norm(layer.weight)) <= 1.0
        assert exact(layer) >= 0.99


def test_initial_weights_are_orthogonal_on_the_limit() -> None:
    layer = SpectralLinear(30, 20, limit=2.0)
    values = torch.linalg.svdvals(layer.weight.detach().double())
    assert torch.allclose(values, torch.full_like(values, 2.0), rtol=1e-5)
    assert not bool(layer.bias.any())


def test_the_frobenius_layer_bounds_the_frobenius_norm() -> None:
    layer = FrobeniusLinear(6, 5, limit=0.7)
    with torch.no_grad():
        layer.weight.normal_()
    direction = layer.weight.detach() / layer.weight.detach().norm()
    bound = layer.project_()
    assert float(layer.weight.detach().double().norm()) <= bound.value <= 0.7
    assert bound.value >= 0.699
    assert torch.allclose(layer.weight / 0.7, direction, atol=1e-5)
    assert layer.norm_bound().method == "frobenius"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["weight", "bias"])
@pytest.mark.parametrize("kind", [SpectralLinear, FrobeniusLinear])
def test_parameters_that_are_not_finite_are_refused(
    kind: type[SpectralLinear] | type[FrobeniusLinear], name: str, bad: float
) -> None:
    layer = kind(3, 3)
    with torch.no_grad():
        getattr(layer, name).view(-1)[1] = bad
    with pytest.raises(ValueError, match="NaN or infinite"):
        layer.project_()


def test_bad_options_are_refused_at_construction() -> None:
    with pytest.raises(ValueError, match="limit must be > 0"):
        SpectralLinear(2, 2, limit=0.0)
    with pytest.raises(ValueError, match="projection must be one of"):
        SpectralLinear(2, 2, projection="power")


def test_layers_can_be_copied_saved_loaded_and_cast() -> None:
    layer = SpectralLinear(4, 3, limit=2.0)
    twin = copy.deepcopy(layer)
    assert torch.equal(twin.weight, layer.weight)
    with torch.no_grad():
        twin.weight.mul_(10.0)
    assert twin.project_().value <= 2.0
    buffer = io.BytesIO()
    torch.save(layer.state_dict(), buffer)
    buffer.seek(0)
    other = SpectralLinear(4, 3, limit=2.0)
    other.load_state_dict(torch.load(buffer))
    assert torch.equal(other.weight, layer.weight)
    half = layer.to(torch.bfloat16)
    bound = half.project_()
    assert exact(half) <= bound.value <= 2.0
    assert set(layer.state_dict()) == {"weight", "bias"}
    assert "limit=2" in repr(layer)


# --- weight standardisation ---


@settings(max_examples=25, deadline=None)
@given(
    inputs=st.integers(2, 10),
    outputs=st.integers(1, 8),
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
)
def test_pulling_a_gradient_back_is_what_autograd_does(
    inputs: int, outputs: int, seed: int, scale: float
) -> None:
    torch.manual_seed(seed)
    layer = StandardisedLinear(inputs, outputs).double()
    with torch.no_grad():
        layer.weight.mul_(scale)
    x, y = torch.randn(5, inputs).double(), torch.randn(5, outputs).double()
    (layer(x) - y).square().sum().backward()
    effective = layer.effective_weight().detach().requires_grad_()
    loss = (nn.functional.linear(x, effective, layer.bias.detach()) - y).square().sum()
    (gradient,) = torch.autograd.grad(loss, effective)
    assert torch.allclose(layer.pull_back(gradient), layer.weight.grad, rtol=1e-9)


def test_the_effective_weight_is_centred_short_and_certified() -> None:
    torch.manual_seed(1)
    layer = StandardisedLinear(20, 6, gain=0.5)
    with torch.no_grad():
        layer.weight.mul_(1e4)
    effective = layer.effective_weight().detach().double()
    assert float(effective.mean(1).abs().max()) < 1e-6
    assert float(effective.norm(dim=1).max()) <= 0.5 * (1 + 1e-6)
    assert float(torch.linalg.matrix_norm(effective, 2)) <= layer.norm_bound().value
    x = torch.randn(7, 20)
    moved = layer(x) - layer(torch.zeros(7, 20))
    assert bool((moved.norm(dim=1) <= layer.norm_bound().value * x.norm(dim=1) * 1.00001).all())


def test_the_raw_gradient_has_no_bound_which_is_why_it_is_pulled_back() -> None:
    """A raw weight of small deviation stretches the effective gradient a hundredfold."""
    torch.manual_seed(2)
    layer = StandardisedLinear(9, 1)
    with torch.no_grad():
        layer.weight.mul_(0.003 / layer.weight.std())
    gradient = torch.randn(1, 9)
    assert float(layer.pull_back(gradient).norm()) > 30.0 * float(gradient.norm())
    with pytest.raises(ValueError, match="shape"):
        layer.pull_back(torch.zeros(9))


@pytest.mark.parametrize("p", [1, 2, math.inf])
def test_induced_norms_stay_within_the_limit_in_private_training(p: float) -> None:
    torch.manual_seed(0)
    layers = nw.nn
    model = nn.Sequential(
        layers.BoundedInput((5,), 3.0), layers.InducedLinear(5, 6, limit=0.8, p=p), nn.ReLU(),
        layers.InducedLinear(6, 2, limit=0.8, p=p),
    )  # fmt: skip
    x = torch.randn(80, 5)
    y = (x[:, 0] > 0).long()
    before = model[1].weight.detach().clone()
    plan = nw.Plan(
        gradients=nw.InputScaled(), epsilon=9.0, delta=1e-5, steps=8, batch_size=40, records=80,
        seed=0,
    )  # fmt: skip
    nw.fit(
        model, (x, y), plan, loss=layers.losses.CrossEntropy(), progress=False, metrics=False,
        optimizer=lambda p: torch.optim.SGD(p, 1.0),
    )  # fmt: skip
    assert not torch.equal(model[1].weight, before)
    for layer in (model[1], model[3]):
        assert float(torch.linalg.matrix_norm(layer.weight.detach().double(), ord=p)) <= 0.8
        assert layer.norm_bound().value <= 0.8
    with pytest.raises(ValueError, match="p must be"):
        layers.InducedLinear(3, 2, p=3)
