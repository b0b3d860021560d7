"""Orthogonal convolutions that mix space: all singular values, the certificate, and privacy."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import noisewise as nw
from noisewise.bounds.norms import autocorrelation_bound, conv_norm
from noisewise.gradients import GradientEngine
from noisewise.nn import BoundedInput, MaxMin, OrthogonalConv2d, losses
from noisewise.nn.orthogonal import orthogonal_kernel


def operator(layer: nn.Module, channels: int, side: int) -> Tensor:
    """The dense matrix of a layer without bias, in float64."""
    basis = torch.eye(channels * side * side, dtype=torch.float64)
    return layer.double()(basis.view(-1, channels, side, side)).detach().flatten(1).T


@pytest.mark.parametrize(
    ("inputs", "outputs", "kernel"),
    [(1, 2, 3), (2, 2, 3), (3, 5, 3), (5, 2, 3), (4, 4, 5), (2, 3, 1)],
)
def test_all_singular_values_are_one(inputs: int, outputs: int, kernel: int) -> None:
    torch.manual_seed(0)
    layer = OrthogonalConv2d(inputs, outputs, kernel, bias=False, padding_mode="circular")
    with torch.no_grad():
        layer.weight.mul_(3.0)  # whatever noise made of the raw weight
    found = torch.linalg.svdvals(operator(layer, inputs, 6))
    count = 36 * min(inputs, outputs)
    torch.testing.assert_close(found[:count], torch.ones(count, dtype=torch.float64))
    # On the zeros beyond the border none is larger.
    layer.padding_mode = "zeros"
    assert float(torch.linalg.svdvals(operator(layer, inputs, 6))[0]) <= 1 + 1e-12
    assert 1 - 1e-12 <= layer.norm_bound().value <= 1 + 1e-10


def test_pixels_are_mixed() -> None:
    torch.manual_seed(0)
    energy = orthogonal_kernel(torch.randn(8, 8, 3, 3)).square().sum((0, 1))
    assert float(energy.max() / energy.sum()) < 0.5
    assert bool((energy > 0.005 * energy.sum()).all())


def test_the_autocorrelation_bounds_every_kernel() -> None:
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        shape = (1 + seed % 4, 1 + seed % 3, 1 + seed % 3, 1 + (seed // 2) % 3)
        kernel = torch.randn(shape, generator=generator, dtype=torch.float64)
        layer = nn.Conv2d(*shape[1::-1], shape[2:], padding=2, bias=False).double()
        layer.weight.data = kernel
        largest = float(torch.linalg.svdvals(operator(layer, shape[1], 7))[0])
        assert largest <= autocorrelation_bound(kernel).value


def test_the_certificate_is_tighter_than_that_of_a_grid() -> None:
    torch.manual_seed(1)
    kernel = orthogonal_kernel(torch.randn(4, 4, 3, 3))
    assert autocorrelation_bound(kernel).value < 1 + 1e-5 < conv_norm(kernel, padding=1).value
    assert math.isnan(autocorrelation_bound(kernel * math.nan).value)


def test_a_kernel_that_is_a_tenth_too_long_is_certified_as_such() -> None:
    torch.manual_seed(1)
    kernel = 1.1 * orthogonal_kernel(torch.randn(4, 4, 3, 3).double())
    assert autocorrelation_bound(kernel).value == pytest.approx(1.1, rel=1e-9)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        BoundedInput((2, 6, 6), 2.0), OrthogonalConv2d(2, 4, 3, bias=False), MaxMin(),
        OrthogonalConv2d(4, 4, 3, bias=False), MaxMin(), nn.Flatten(), nn.Linear(144, 3),
    )  # fmt: skip


def test_noise_belongs_to_the_effective_kernel_and_is_pulled_back() -> None:
    layer = OrthogonalConv2d(2, 3, 3).double()
    weight = layer.weight.detach().requires_grad_()
    gradient = torch.randn(3, 2, 3, 3, dtype=torch.float64)
    (expected,) = torch.autograd.grad(orthogonal_kernel(weight), weight, gradient)
    torch.testing.assert_close(layer.pull_back(gradient), expected)
    with pytest.raises(ValueError, match="shape"):
        layer.pull_back(gradient[0])


@pytest.mark.parametrize("rule", [nw.InputScaled(), nw.Propagated(loss_clip=0.2), nw.Clipped(0.1)])
def test_removing_a_record_moves_the_sum_by_at_most_the_sensitivity(rule: object) -> None:
    x, y = torch.randn(5, 2, 6, 6), torch.randint(3, (5,))
    x[0] *= 1e6
    engine = GradientEngine(network(), losses.CrossEntropy(), rule, chunk=5)
    whole, less = engine.sum(x, y), engine.sum(x[1:], y[1:])
    for a, b in zip(whole.groups, less.groups, strict=True):
        moved = math.sqrt(
            sum(float((a.gradients[n] - b.gradients[n]).square().sum()) for n in a.names)
        )
        assert 0 < moved <= a.sensitivity


def test_it_learns_with_privacy_and_stays_orthogonal() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, 6, 6, generator=generator)
    model = network()
    before = model[1].effective_weight().detach()
    plan = nw.Plan(
        gradients=nw.InputScaled(),
        epsilon=4.0,
        delta=1e-5,
        steps=3,
        batch_size=20,
        records=60,
        seed=0,
    )
    nw.fit(
        model, (x, (x[:, 0].mean((1, 2)) > 0).long()), plan, loss=losses.CrossEntropy(),
        optimizer=lambda p: torch.optim.SGD(p, 0.5), progress=False, metrics=False,
    )  # fmt: skip
    assert not torch.allclose(model[1].effective_weight(), before)
    assert model[1].norm_bound().value < 1 + 1e-5


def test_what_would_not_be_orthogonal_is_refused() -> None:
    with pytest.raises(ValueError, match="repeat pixels"):
        OrthogonalConv2d(2, 2, 3, padding_mode="reflect")
    with pytest.raises(ValueError, match="odd kernel"):
        OrthogonalConv2d(2, 2, 2, padding_mode="circular")
    with pytest.raises(TypeError, match="one number"):
        OrthogonalConv2d(2, 2, (3, 1))  # type: ignore[arg-type]
