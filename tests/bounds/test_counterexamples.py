"""Ways to get bounds wrong that concern layers and losses (docs/proofs/published.md).

Each test shows the wrong rule failing by the size stated there, and ours
holding on the very same counterexample.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.func import jacrev
from torch.nn import functional

from noisewise import nn as nw
from noisewise.bounds import Improvements, certify, per_record, propagate, trace
from noisewise.bounds.norms import conv_norm, spectral_norm

PLAIN = Improvements.none()


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    torch.manual_seed(0)


def bounds(model: nn.Module, shape: tuple[int, ...], norm: float = 1.0):
    return propagate(trace(model.double(), shape), norm, 1.0, improvements=PLAIN)


def box(size: int = 3) -> Tensor:
    """A box kernel of Frobenius (and reshaped spectral) norm one."""
    return torch.full((1, 1, size, size), 1.0 / size, dtype=torch.float64)


def box_convolution(bias: bool = False) -> nn.Conv2d:
    layer = nn.Conv2d(1, 1, 3, padding=1, bias=bias).double()
    with torch.no_grad():
        layer.weight.copy_(box())
    return layer


def test_a_convolution_grows_a_norm_by_more_than_the_norm_of_its_kernel() -> None:
    layer, x = box_convolution(), torch.ones(1, 1, 32, 32, dtype=torch.float64)
    gain = float(layer(x).norm() / x.norm())
    literal = float(spectral_norm(layer.weight.reshape(1, -1)))
    assert literal == pytest.approx(1.0)
    assert gain == pytest.approx(2.90, abs=0.01)
    assert gain <= bounds(layer, (1, 32, 32)).output_norm <= 3.0 + 1e-9


def test_the_error_compounds_with_every_convolution() -> None:
    model = nn.Sequential(*(box_convolution() for _ in range(3)))
    x = torch.ones(1, 1, 32, 32, dtype=torch.float64)
    gain = float(model(x).norm() / x.norm())
    assert gain > 20  # the literal rule claims 1
    assert gain <= bounds(model, (1, 32, 32)).output_norm


def test_the_bias_of_a_convolution_counts_at_every_position() -> None:
    layer = box_convolution(bias=True)
    with torch.no_grad():
        layer.bias.fill_(1.0)
    zero = torch.zeros(1, 1, 32, 32, dtype=torch.float64)
    output = layer(zero)
    cotangent = torch.full_like(output, 1 / 32)
    (gradient,) = torch.autograd.grad(output, layer.bias, cotangent)
    assert float(gradient) == pytest.approx(32.0)  # the literal rule claims 1
    found = bounds(layer, (1, 32, 32), norm=1e-12)
    assert found.gradients["bias"] == 32.0
    assert 32.0 <= found.output_norm < 32.01  # the literal rule claims 0


def test_a_sigmoid_of_small_inputs_is_not_small() -> None:
    x = torch.full((1, 100), 1e-3, dtype=torch.float64)
    actual = float(torch.sigmoid(x).norm())
    literal = 0.5 * float(x.norm())
    assert literal == pytest.approx(0.005)
    assert actual == pytest.approx(5.0, abs=0.01)
    assert actual <= bounds(nn.Sigmoid(), (100,), 0.01).output_norm < 5.01


def test_a_layer_s_own_norm_does_not_shrink_its_own_gradient() -> None:
    layer = nn.Linear(2, 2, bias=False).double()
    with torch.no_grad():
        layer.weight.copy_(0.1 * torch.eye(2))
    x = torch.tensor([[200.0, 0.0]], dtype=torch.float64)
    loss = functional.cross_entropy(layer(x), torch.tensor([1]))
    (gradient,) = torch.autograd.grad(loss, layer.weight)
    actual = float(gradient.norm() / x.norm())
    literal = math.sqrt(2) * 0.1  # the product starts at the layer itself
    assert actual / literal == pytest.approx(10.0, rel=0.01)
    ours = certify(layer, (2,), 200.0, nn.CrossEntropyLoss()).gradients["weight"] / 200.0
    assert actual <= ours * (1 + 1e-12)


def test_a_layer_without_parameters_may_stretch() -> None:
    x = torch.randn(8, dtype=torch.float64) * 1e-3
    layer = nw.LipschitzGroupNorm(1, 8, alpha=0.1)
    jacobian = jacrev(lambda v: layer(v[None])[0])(x)
    stretch = float(torch.linalg.matrix_norm(jacobian, 2))
    assert stretch == pytest.approx(10.0)  # the literal rule claims 1
    assert stretch <= bounds(layer, (8,)).input_cotangent * (1 + 1e-12)


def test_residual_branches_add_and_do_not_multiply() -> None:
    class Grow(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 0.25 * x

    model = nn.Sequential(*(Grow() for _ in range(8)))
    x = torch.ones(1, 1, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(model(x).sum(), x)
    assert pytest.approx(1.5e-5, rel=0.02) == 0.25**8  # what the product of branches claims
    assert float(slope) == pytest.approx(5.96, abs=0.01)
    found = bounds(model, (1,))
    assert float(slope) <= found.input_cotangent * (1 + 1e-12)
    assert float(slope) <= found.output_norm * (1 + 1e-12)


@pytest.mark.parametrize(("steps", "share"), [(1, 0.71), (5, 0.93), (10, 0.96), (50, 0.996)])
def test_power_iteration_stays_below_the_norm(steps: int, share: float) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(512, 512, dtype=torch.float64)
    vector = torch.randn(512, dtype=torch.float64)
    for _ in range(steps):
        image = functional.normalize(matrix @ vector, dim=0)
        vector = matrix.T @ image
        guess = float(vector.norm())
    true = float(torch.linalg.matrix_norm(matrix, 2))
    assert guess / true == pytest.approx(share, abs=0.05)
    assert guess < true <= spectral_norm(matrix).value


def test_power_iteration_never_finds_what_its_start_is_orthogonal_to() -> None:
    matrix = torch.diag(torch.tensor([5.0, 1.0], dtype=torch.float64))
    vector = torch.tensor([0.0, 1.0], dtype=torch.float64)
    for _ in range(100):
        vector = matrix.T @ (matrix @ vector)
        vector /= vector.norm()
    assert float((matrix @ vector).norm()) == 1.0
    layer = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        layer.weight.copy_(matrix)
    assert bounds(layer, (2,)).input_cotangent >= 5.0


def loss_gradient(loss: object, z: Tensor, target: Tensor) -> float:
    z = z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(per_record(loss)(z, target).sum(), z)
    return float(gradient.norm())


def test_a_summed_hinge_has_constant_sqrt_of_the_classes() -> None:
    loss = nw.losses.MulticlassHinge(1.0, "one-vs-all")
    z = torch.zeros(1, 10, dtype=torch.float64)
    actual = loss_gradient(loss, z, torch.tensor([3]))
    assert actual == pytest.approx(3.16, abs=0.01)  # the paper's table says 1
    layer = nn.Linear(1, 10, bias=False)
    assert certify(layer, (1,), 1.0, loss).loss_lipschitz >= actual * (1 - 1e-12)


def test_a_cosine_loss_without_floor_has_no_constant() -> None:
    z = torch.zeros(1, 10, dtype=torch.float64)
    z[0, 0] = 1e-3
    target = torch.tensor([3])

    def bare(v: Tensor) -> Tensor:
        return -(v[0, 3] / v.norm())

    v = z.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(bare(v), v)
    assert float(gradient.norm()) == pytest.approx(1000.0)
    floored = nw.losses.CosineSimilarity(0.5)
    assert loss_gradient(floored, z, target) <= 2.0
    assert certify(nn.Linear(1, 10), (1,), 1.0, floored).loss_lipschitz == pytest.approx(2.0)


@pytest.mark.parametrize(("reduction", "holds"), [("sum", True), ("mean", False)])
def test_clipping_needs_losses_that_are_summed(reduction: str, holds: bool) -> None:
    torch.manual_seed(0)
    clip, batch = 0.1, 64
    x = functional.normalize(torch.randn(batch, 5), dim=1)
    weight = torch.randn(3, 5)
    y = torch.randint(0, 3, (batch,))
    replaced, relabelled = x.clone(), y.clone()
    replaced[0], relabelled[0] = -x[0], (y[0] + 1) % 3

    def gradient(records: Tensor, labels: Tensor) -> Tensor:
        leaf = weight.clone().requires_grad_()
        output = nw.ClipGradient(clip)(records @ leaf.T)
        functional.cross_entropy(output, labels, reduction=reduction).backward()
        return leaf.grad if reduction == "sum" else leaf.grad * batch

    moved = float((gradient(x, y) - gradient(replaced, relabelled)).norm())
    allowed = 2 * clip
    assert (moved <= allowed) == holds
    assert holds or moved / allowed == pytest.approx(3.8, abs=0.1)


def test_clipping_the_whole_batch_makes_records_depend_on_each_other() -> None:
    torch.manual_seed(0)
    cotangent = torch.randn(64, 3)

    def whole(g: Tensor) -> Tensor:
        return g * min(1.0, 0.1 / float(g.norm()))

    assert not torch.allclose(whole(cotangent)[0], whole(cotangent[:1])[0])
    x = torch.zeros(64, 3, requires_grad=True)
    (nw.ClipGradient(0.1)(x) * cotangent).sum().backward()
    alone = torch.zeros(1, 3, requires_grad=True)
    (nw.ClipGradient(0.1)(alone) * cotangent[:1]).sum().backward()
    assert torch.equal(x.grad[:1], alone.grad)


def test_clip_gradient_bounds_each_record_whatever_the_batch() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 3, bias=False), nw.ClipGradient(0.1)).double()
    x = torch.randn(64, 5, dtype=torch.float64)
    x = x / x.norm(dim=1, keepdim=True)
    y = torch.randint(0, 3, (64,))

    def total(records: Tensor, labels: Tensor) -> Tensor:
        loss = functional.cross_entropy(model(records), labels, reduction="sum")
        return torch.autograd.grad(loss, model[0].weight)[0]

    moved = float((total(x, y) - total(x[:-1], y[:-1])).norm())
    bound = certify(model, (5,), 1.0, nn.CrossEntropyLoss()).gradients["0.weight"]
    assert moved <= bound == pytest.approx(0.1)


def test_a_record_with_an_infinite_cotangent_contributes_nothing() -> None:
    x = torch.zeros(2, 3, requires_grad=True)
    (nw.ClipGradient(1.0)(x) * torch.tensor([[math.inf], [2.0]])).sum().backward()
    assert torch.equal(x.grad[0], torch.zeros(3))
    assert float(x.grad[1].norm()) == pytest.approx(1.0, rel=1e-5)


def test_the_raw_weight_of_a_standardised_layer_has_no_useful_bound() -> None:
    torch.manual_seed(0)
    raw = 0.01 * torch.randn(10, dtype=torch.float64)

    def standard(v: Tensor) -> Tensor:
        return (v - v.mean()) / v.std(unbiased=False)

    stretch = float(torch.linalg.matrix_norm(jacrev(standard)(raw), 2))
    assert stretch > 50
    with pytest.raises(ValueError, match="ParametrizedLinear"):
        certify(
            torch.nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), (3,), 1.0, nn.L1Loss()
        )


def test_the_effective_weight_of_a_standardised_layer_is_bounded() -> None:
    torch.manual_seed(0)
    layer = nw.StandardisedLinear(6, 3).double()
    with torch.no_grad():
        layer.weight.mul_(1e-3)
    x = torch.randn(1, 6, dtype=torch.float64)
    x = x / x.norm()
    effective = layer.effective_weight().detach().requires_grad_()
    output = functional.linear(x, effective, layer.bias)
    loss = functional.cross_entropy(output, torch.tensor([0]))
    (gradient,) = torch.autograd.grad(loss, effective)
    raw = layer.pull_back(gradient)
    bound = certify(layer, (6,), 1.0, nn.CrossEntropyLoss()).gradients["weight"]
    assert float(gradient.norm()) <= bound < float(raw.norm())


def test_a_kernel_stored_normalised_must_not_be_normalised_again() -> None:
    x = torch.ones(1, 1, 32, 32, dtype=torch.float64)
    cotangent = torch.full_like(x, 1 / 32)
    gradient = torch.nn.grad.conv2d_weight(x, (1, 1, 3, 3), cotangent, padding=1)
    coefficient = 32 / (3 * 32 - 2)
    claimed = coefficient * 3
    actual = float(gradient.norm() / x.norm())
    assert actual / claimed == pytest.approx(2.8, abs=0.1)
    layer = box_convolution()
    assert actual <= bounds(layer, (1, 32, 32)).gradients["weight"] <= 3.0 + 1e-9


def test_centring_never_reaches_across_records() -> None:
    x = torch.randn(4, 6, 8, dtype=torch.float64)
    moved = x.clone()
    moved[3] += 100.0

    def wrong(v: Tensor) -> Tensor:
        return v - v.mean(dim=(0, 1), keepdim=True)

    assert float((wrong(moved) - wrong(x))[0].norm()) > 100
    for layer in (nw.LayerCentering(), nw.LayerCentering((0,))):
        assert torch.equal(layer(moved)[0], layer(x)[0])


def test_the_average_factor_of_a_convolution_is_not_an_upper_bound() -> None:
    size, length = 3, 32
    half = (size - 1) / 2
    coefficient = length / (size * length - half * (half + 1))
    kernel = box(size) * coefficient  # claimed to be 1-Lipschitz
    x = torch.ones(1, 1, length, length, dtype=torch.float64, requires_grad=False)
    for _ in range(50):  # power iteration, a lower bound of the norm
        y = functional.conv2d(x, kernel, padding=1)
        x = functional.conv_transpose2d(y, kernel, padding=1)
        x = x / x.norm()
    true = float(functional.conv2d(x, kernel, padding=1).norm())
    assert true == pytest.approx(1.02, abs=0.01)
    assert true <= conv_norm(kernel, padding=1, input_size=(length, length)).value


def test_a_bias_on_an_image_is_counted_at_every_position() -> None:
    layer = nn.Conv2d(2, 2, 1).double()
    found = bounds(layer, (2, 6, 5))
    assert found.gradients["bias"] == pytest.approx(math.sqrt(30))
