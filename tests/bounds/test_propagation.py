"""Propagation against closed forms: chains, residual sums, tied weights, improvements."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from noisewise import nn as nw
from noisewise.bounds import Improvements, certify, loss_rule_for, per_record, propagate, trace
from noisewise.bounds.losses import constants
from noisewise.errors import UnsupportedModelError

PLAIN = Improvements.none()
RELATIVE = 1e-9


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    torch.manual_seed(0)


def dense(*sizes: int, between: type[nn.Module] = nn.ReLU, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for number, (width, height) in enumerate(pairwise(sizes)):
        layers += ([between()] if number else []) + [nn.Linear(width, height)]
    return nn.Sequential(*layers).double()


def norm(matrix: Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix.detach(), 2))


def test_a_dense_chain_follows_the_algorithm_step_by_step() -> None:
    model = dense(4, 5, 3)
    first, last = model[0], model[2]
    hidden = norm(first.weight) * 2.0 + float(first.bias.norm())
    outgoing = norm(last.weight) * hidden + float(last.bias.norm())
    certificate = certify(model, (4,), 2.0, nn.CrossEntropyLoss(), improvements=PLAIN)
    assert certificate.output_norm == pytest.approx(outgoing, rel=RELATIVE)
    expected = {
        "0.weight": 2.0 * math.sqrt(2) * norm(last.weight),
        "0.bias": math.sqrt(2) * norm(last.weight),
        "2.weight": hidden * math.sqrt(2),
        "2.bias": math.sqrt(2),
    }
    assert certificate.sensitivities() == pytest.approx(expected, rel=RELATIVE)
    assert all(
        certificate.gradients[name] >= value * (1 - 1e-15) for name, value in expected.items()
    )
    assert certificate.total == pytest.approx(math.hypot(*expected.values()), rel=RELATIVE)


def test_a_residual_sum_adds_norms_and_slopes() -> None:
    block = nw.LipschitzResidual(nn.Linear(3, 3, bias=False), mix="sum").double()
    found = propagate(trace(block, (3,)), 2.0, 1.0, improvements=PLAIN)
    gain = 1 + norm(block.branch.weight)
    assert found.output_norm == pytest.approx(2.0 * gain, rel=RELATIVE)
    assert found.input_cotangent == pytest.approx(gain, rel=RELATIVE)


def test_a_convex_mix_keeps_a_one_lipschitz_chain_one_lipschitz() -> None:
    blocks = [nw.LipschitzResidual(nw.SpectralLinear(4, 4), coefficient=0.3) for _ in range(6)]
    found = propagate(trace(nn.Sequential(*blocks).double(), (4,)), 1.0, 1.0, improvements=PLAIN)
    assert found.input_cotangent == pytest.approx(1.0, rel=1e-3)
    assert found.output_norm == pytest.approx(1.0, rel=1e-3)


def test_a_layer_that_is_used_twice_gets_the_sum_over_its_uses() -> None:
    layer = nn.Linear(3, 3, bias=False).double()
    model = nn.Sequential(layer, nn.ReLU(), layer)
    certificate = certify(model, (3,), 1.0, nn.L1Loss(), improvements=PLAIN)
    constant, size = 1 / math.sqrt(3), norm(layer.weight)
    assert list(certificate.gradients) == ["0.weight"]
    assert certificate.gradients["0.weight"] == pytest.approx(2 * constant * size, rel=RELATIVE)


def test_a_weight_that_two_modules_share_gets_the_sum_over_both() -> None:
    first, second = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
    second.weight = first.weight
    tied = certify(
        nn.Sequential(first, nn.Tanh(), second), (3,), 1.0, nn.L1Loss(), improvements=PLAIN
    )
    layers = [layer.gradients["0.weight"] for layer in tied.layers if layer.gradients]
    assert len(layers) == 2
    assert tied.gradients["0.weight"] == pytest.approx(sum(layers), rel=RELATIVE)


def test_frozen_parameters_have_no_sensitivity_and_unused_ones_zero() -> None:
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)
            self.used.bias.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    found = certify(Partly(), (2,), 1.0, nn.L1Loss()).sensitivities()
    assert "used.bias" not in found
    assert found["unused.weight"] == found["unused.bias"] == 0.0


def test_a_loss_clip_limits_every_cotangent() -> None:
    model = dense(4, 5, 3)
    clipped = certify(model, (4,), 2.0, nn.CrossEntropyLoss(), loss_clip=0.1)
    assert clipped.gradients["2.bias"] == 0.1
    plain = certify(model, (4,), 2.0, nn.CrossEntropyLoss())
    assert clipped.gradients["0.weight"] < plain.gradients["0.weight"]


# --- improvements ---------------------------------------------------------------------------


def only(**chosen: bool) -> Improvements:
    return Improvements(
        **{**dict.fromkeys(("polytope", "centred", "bounded_logits", "balancing"), False), **chosen}
    )


def into_hidden(model: nn.Module, width: int, use: Improvements, size: float = 1.0) -> float:
    """Bound on the cotangent that leaves the last layer."""
    return (
        certify(model, (width,), size, nn.CrossEntropyLoss(), improvements=use).layers[-1].passed[0]
    )


def test_the_polytope_bound_is_the_widest_gap_between_rows() -> None:
    model = nn.Sequential(nn.Identity(), nn.Linear(8, 10)).double()
    gap = float(torch.cdist(model[1].weight, model[1].weight).max())
    assert into_hidden(model, 8, only(polytope=True)) == pytest.approx(gap, rel=RELATIVE)


def test_the_polytope_bound_is_reached() -> None:
    # p -> e_j and y = k for the two rows farthest apart.
    torch.manual_seed(0)
    layer = nn.Linear(8, 10, bias=True).double()
    distances = torch.cdist(layer.weight, layer.weight)
    j, k = divmod(int(distances.argmax()), 10)
    with torch.no_grad():
        layer.bias.zero_()
        layer.bias[j] = 60.0
    x = torch.zeros(1, 8, dtype=torch.float64, requires_grad=True)
    loss = nn.functional.cross_entropy(layer(x), torch.tensor([k]))
    (gradient,) = torch.autograd.grad(loss, x)
    bound = into_hidden(nn.Sequential(nn.Identity(), layer), 8, only(polytope=True), 1e-9)
    assert float(gradient.norm()) == pytest.approx(bound, rel=1e-9)
    assert float(gradient.norm()) <= bound


def test_a_common_component_of_the_last_layer_costs_nothing_after_centring() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(8, 10, bias=False).double()
    with torch.no_grad():
        layer.weight.add_(3.0 * torch.randn(8))
    model = nn.Sequential(nn.Identity(), layer)
    centred = layer.weight - layer.weight.mean(0)
    expected = math.sqrt(2) * norm(centred)
    assert into_hidden(model, 8, only(centred=True)) == pytest.approx(expected, rel=RELATIVE)
    assert into_hidden(model, 8, PLAIN) > 3 * expected


def test_small_logits_have_a_small_constant() -> None:
    model = nn.Linear(8, 10, bias=False).double()
    with torch.no_grad():
        model.weight.div_(norm(model.weight) / 0.1)
    use = only(bounded_logits=True)
    constant = certify(model, (8,), 1.0, nn.CrossEntropyLoss(), improvements=use).loss_lipschitz
    assert constant == pytest.approx(0.967, abs=0.001)
    assert constants.cross_entropy(10, 1.0) == pytest.approx(1.12, abs=0.005)
    assert constants.cross_entropy(10) == pytest.approx(math.sqrt(2), rel=1e-15)


@settings(max_examples=60, deadline=None)
@given(classes=st.integers(2, 20), radius=st.floats(0.01, 8.0), seed=st.integers(0, 10**6))
def test_the_bounded_logit_constant_holds(classes: int, radius: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(200, classes, generator=generator, dtype=torch.float64)
    z[:100] = torch.where(z[:100] > z[:100].median(dim=1, keepdim=True).values, 1.0, -0.2)
    z = radius * z / z.norm(dim=1, keepdim=True)
    miss = torch.softmax(z, 1)
    miss[:, 0] -= 1.0
    assert float(miss.norm(dim=1).max()) <= constants.cross_entropy(classes, radius)
    assert float(-miss[:, 0].min()) <= constants.cross_entropy_simplex(classes, radius)


def test_balancing_undoes_scales_that_cancel() -> None:
    torch.manual_seed(0)
    model = dense(6, 16, 4)
    scales = torch.logspace(-1.5, 1.5, 16, dtype=torch.float64)
    with torch.no_grad():
        model[0].weight.mul_(scales[:, None])
        model[0].bias.zero_()
        model[2].weight.div_(scales[None, :])
    graph = trace(model, (6,))
    plain = propagate(graph, 1.0, 1.0, improvements=PLAIN)
    balanced = propagate(graph, 1.0, 1.0, improvements=only(balancing=True))
    assert balanced.input_cotangent < plain.input_cotangent / 3
    assert balanced.output_norm < plain.output_norm / 3


@pytest.mark.parametrize("between", [nn.ReLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.GELU])
@pytest.mark.parametrize("positions", [(), (3,)])
def test_balanced_bounds_hold(between: type[nn.Module], positions: tuple[int, ...]) -> None:
    for seed in range(5):
        model = dense(4, 6, 5, 3, between=between, seed=seed)
        with torch.no_grad():
            for layer in model[::2]:
                layer.weight.mul_(torch.exp(1.5 * torch.randn(len(layer.weight)))[:, None])
        graph = trace(model, (*positions, 4))
        found = propagate(graph, 1.0, 1.0, improvements=only(balancing=True))
        x = torch.randn(1, *positions, 4, dtype=torch.float64)
        x = (x / x.norm()).requires_grad_()
        output = model(x)
        rows = [torch.autograd.grad(e, x, retain_graph=True)[0].flatten() for e in output.flatten()]
        assert norm(torch.stack(rows)) <= found.input_cotangent * (1 + RELATIVE)
        assert float(output.norm()) <= found.output_norm * (1 + RELATIVE)


@pytest.mark.parametrize("name", ["polytope", "centred", "bounded_logits", "balancing"])
def test_no_improvement_ever_makes_a_bound_larger(name: str) -> None:
    for seed in range(5):
        model = dense(4, 6, 5, 3, seed=seed)
        plain = certify(model, (4,), 0.7, nn.CrossEntropyLoss(), improvements=PLAIN)
        better = certify(model, (4,), 0.7, nn.CrossEntropyLoss(), improvements=only(**{name: True}))
        assert all(better.gradients[key] <= value for key, value in plain.gradients.items())


def test_the_polytope_bound_is_not_used_where_logits_go_elsewhere() -> None:
    class Twofold(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            z = self.head(x)
            return z + torch.tanh(z)

    model = Twofold().double()
    use, plain = only(polytope=True, centred=True), PLAIN
    loss = nn.CrossEntropyLoss()
    assert (
        certify(model, (4,), 1.0, loss, improvements=use).gradients
        == certify(model, (4,), 1.0, loss, improvements=plain).gradients
    )


def test_hinge_gradients_lie_in_the_polytope_too() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(5, 4).double()
    for form in ("pairwise", "max"):
        loss = nw.losses.MulticlassHinge(1.0, form)
        bound = certify(nn.Sequential(nn.Identity(), layer), (5,), 1.0, loss).layers[-1].passed[0]
        for seed in range(50):
            x = torch.randn(
                1, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
            )
            x = (x / x.norm()).requires_grad_()
            (g,) = torch.autograd.grad(
                per_record(loss)(layer(x), torch.tensor([seed % 4])).sum(), x
            )
            assert float(g.norm()) <= bound * (1 + RELATIVE)


# --- input norms -------------------------------------------------------------------------------


def test_a_leading_bounded_input_needs_no_promise() -> None:
    model = nn.Sequential(nw.BoundedInput((4,), 0.5), nn.Linear(4, 3, bias=False))
    certificate = certify(model, (4,), loss=nn.L1Loss(reduction="sum"))
    assert certificate.enforced
    assert certificate.gradients["1.weight"] == pytest.approx(0.5 * math.sqrt(3))
    # A smaller promise must not shrink what the model lets through.
    promised = certify(model, (4,), 0.1, nn.L1Loss(reduction="sum"))
    assert promised.gradients == certificate.gradients


def test_a_model_that_bounds_its_input_otherwise_needs_no_promise_either() -> None:
    model = nn.Sequential(nn.Tanh(), nn.Linear(4, 3, bias=False)).double()
    certificate = certify(model, (4,), loss=nn.L1Loss(reduction="sum"))
    assert certificate.enforced
    x = torch.full((1, 4), 50.0, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(model(x).sum(), model[1].weight)
    assert float(gradient.norm()) <= certificate.gradients["1.weight"] * (1 + RELATIVE)


def test_without_bounded_input_the_norm_is_one_by_default_and_a_promise() -> None:
    certificate = certify(nn.Linear(4, 3), (4,), loss=nn.L1Loss(reduction="sum"))
    assert not certificate.enforced
    assert certificate.input_norm == 1.0
    assert "promised" in str(certificate)


def test_an_unbounded_input_is_refused_with_the_remedy() -> None:
    graph = trace(nn.Linear(4, 3), (4,))
    with pytest.raises(UnsupportedModelError, match="BoundedInput"):
        propagate(graph, math.inf, loss_rule_for(nn.L1Loss()))


def test_weights_that_are_not_finite_are_refused() -> None:
    model = nn.Linear(4, 3)
    with torch.no_grad():
        model.weight[0, 0] = math.nan
    with pytest.raises(ValueError, match=r"finite|NaN"):
        certify(model, (4,), 1.0, nn.L1Loss())


def test_repeating_a_propagation_sees_the_new_weights() -> None:
    model = nn.Linear(4, 3, bias=False).double()
    graph = trace(model, (4,))
    before = propagate(graph, 1.0, 1.0).output_norm
    with torch.no_grad():
        model.weight.mul_(2.0)
    assert propagate(graph, 1.0, 1.0).output_norm == pytest.approx(2 * before, rel=1e-9)
