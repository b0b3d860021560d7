"""Ready models: sizes, certificates that hold, projections, export."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from noisewise.bounds import Certificate, certify
from noisewise.nn import LayerCentering, losses
from noisewise.nn.models import (
    MLP,
    ConvNet,
    LipschitzModel,
    Mixer,
    Options,
    ResNet,
    Stage,
    benchmark_cnn,
    convnet_fashion,
    convnet_mnist,
    convnet_thesis,
    resnet,
    shallow_vgg,
    tempered_cnn,
    wide_resnet,
)

Make = Callable[[], LipschitzModel]
IMAGE = (3, 8, 8)


def tiny_convnet(**options: Any) -> ConvNet:
    stages = [Stage(4, pool=2), Stage(6, 4, stride=2, padding=1)]
    return ConvNet(IMAGE, 3, stages, dense=(4,), **options)


def tiny_resnet(**options: Any) -> ResNet:
    return ResNet(IMAGE, 3, blocks=(1, 2), widths=(4, 6), stem=4, **options)


def tiny_mixer(**options: Any) -> Mixer:
    return Mixer(IMAGE, 3, patch=4, width=6, token_width=6, channel_width=4, depth=1, **options)


TINY: dict[str, Make] = {
    "mlp": lambda: MLP(5, 3, hidden=(6, 4)),
    "mlp-linear": lambda: MLP(5, 3, hidden=(), input_norm=2.0),
    "mlp-relu-group": lambda: MLP(5, 3, hidden=(8,), activation="relu", norm="group", alpha=0.1),
    "mlp-limit": lambda: MLP(5, 3, hidden=(6, 6), limit=3.0, activation="tempered-sigmoid"),
    "convnet": tiny_convnet,
    "convnet-sphere": lambda: tiny_convnet(input_mode="normalise", input_norm=3.0, start="random"),
    "convnet-gray": lambda: tiny_convnet(colour="grayscale", pooling="average", activation="tanh"),
    "convnet-hsv": lambda: tiny_convnet(colour="hsv", pooling="max", activation="absolute"),
    "convnet-centre": lambda: tiny_convnet(norm="centre", activation="householder", limit=1.5),
    "convnet-standardised": lambda: tiny_convnet(weights="standardised", norm="group", alpha=0.2),
    "convnet-global": lambda: ConvNet(IMAGE, 3, [Stage(4), Stage(4)], global_pool=True, bias=False),
    "resnet": tiny_resnet,
    "resnet-sum": lambda: tiny_resnet(residual="sum", norm=None, activation="groupsort"),
    "resnet-learn": lambda: tiny_resnet(learn=True, coefficient=0.2, alpha=0.5, bias=False),
    "resnet-standardised": lambda: tiny_resnet(weights="standardised", input_norm=14.0),
    "mixer": tiny_mixer,
    "mixer-sum": lambda: tiny_mixer(residual="sum", bias=True, norm="group", activation="relu"),
}


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def prepared(make: Make, regime: str) -> LipschitzModel:
    """A model at its start, after noisy steps, or with weights far outside, brought back."""
    torch.manual_seed(0)
    model = make().double()
    for _ in range({"start": 0, "noisy": 3, "boundary": 1}[regime]):
        with torch.no_grad():
            for parameter in model.parameters():
                if regime == "boundary":
                    parameter.mul_(20.0)
                parameter.add_(0.2 * torch.randn_like(parameter))
        model.project_()
    return model


def gradient_norms(plain: nn.Module, loss: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Norm of each record's gradient of each parameter, by torch.func."""
    parameters = dict(plain.named_parameters())

    def one(parameters: dict[str, Tensor], record: Tensor, target: Tensor) -> Tensor:
        output = torch.func.functional_call(plain, parameters, (record[None],))
        return loss(output, target[None]).sum()

    gradients = torch.func.vmap(torch.func.grad(one), (None, 0, 0))(parameters, x, y)
    return {
        name: g.reshape(len(x), -1).square().sum(1).add(1e-300).sqrt()
        for name, g in gradients.items()
    }


def records(shape: tuple[int, ...]) -> Tensor:
    """Random records of all sizes, constants, a spike, alternating signs."""
    generator = torch.Generator().manual_seed(1)
    size = math.prod(shape)
    rows = torch.randn(6, size, dtype=torch.float64, generator=generator)
    rows[1] *= 1e-3
    rows[2] *= 1e3
    rows[3] = rows[3].abs()
    forms = torch.zeros(4, size, dtype=torch.float64)
    forms[0], forms[1, size // 2], forms[2, ::2], forms[2, 1::2] = 1.0, 10.0, 1.0, -1.0
    return torch.cat([rows, forms]).reshape(-1, *shape)


def worst(
    plain: nn.Module, loss: nn.Module, shape: tuple[int, ...], steps: int = 3
) -> dict[str, float]:
    """Largest norms over given records and over some improved by gradient ascent."""
    x = records(shape)
    y = torch.arange(len(x)) % 3
    found: dict[str, float] = {}
    for step in range(steps):
        x = x.detach().requires_grad_()
        norms = gradient_norms(plain, loss, x, y)
        for name, values in norms.items():
            found[name] = max(found.get(name, 0.0), float(values.detach().max()))
        output = plain(x).detach().flatten(1).norm(dim=1)
        found["output"] = max(found.get("output", 0.0), float(output.max()))
        total = torch.stack(list(norms.values())).sum()
        (ascent,) = torch.autograd.grad(total, x)
        ascent = torch.nan_to_num(ascent.flatten(1))
        size = x.detach().flatten(1).norm(dim=1, keepdim=True).clamp_min(1e-3)
        direction = ascent / ascent.norm(dim=1, keepdim=True).clamp_min(1e-300)
        moved = x.detach().flatten(1) + 0.3 * size * direction
        # The targets that are hardest for the present outputs.
        y = plain(x).detach().argmin(1) if step % 2 else y
        x = moved.reshape(x.shape)
    return found


def check(model: LipschitzModel, loss: nn.Module) -> tuple[Certificate, dict[str, float]]:
    """Measure the plain form, whose weights are the effective ones, against the certificate."""
    certificate = model.certify(loss)
    found = worst(model.to_plain(), loss, model.input_shape)
    assert found.pop("output") <= certificate.output_norm * (1 + 1e-9)
    bounds = certificate.sensitivities()
    assert found.keys() == bounds.keys()
    for name, value in found.items():
        assert value <= bounds[name] * (1 + 1e-9), name
    return certificate, found


# Every model after noisy steps; at the start and on the boundary those that differ there.
REGIMES = [(name, "noisy") for name in TINY] + [
    (name, regime)
    for name in ("mlp-limit", "convnet", "convnet-standardised", "resnet-learn", "mixer")
    for regime in ("start", "boundary")
]
# The other models in the other regimes take another minute.
REGIMES += [
    pytest.param(name, regime, marks=pytest.mark.slow)
    for name in TINY
    for regime in ("start", "boundary")
    if (name, regime) not in REGIMES
]


@pytest.mark.parametrize(("name", "regime"), REGIMES)
def test_no_record_exceeds_the_certificate(name: str, regime: str) -> None:
    check(prepared(TINY[name], regime), losses.CrossEntropy(temperature=8.0))


def test_the_measurement_would_notice_a_bound_that_is_too_small() -> None:
    model = prepared(TINY["mlp-linear"], "start")
    certificate, found = check(model, losses.MulticlassHinge(form="max"))
    bound = certificate.sensitivities()["head.weight"]
    assert found["head.weight"] > 0.99 * bound


@pytest.mark.parametrize(("name", "regime"), REGIMES)
def test_slopes_stay_below_the_certified_lipschitz_constant(name: str, regime: str) -> None:
    model = prepared(TINY[name], regime)
    bound, body = model.lipschitz(), model[1:]
    bounded = model.input(records(model.input_shape)[[0, 2, 6]])
    for record in bounded.detach():
        jacobian = torch.func.jacrev(lambda x: body(x[None])[0])(record)
        slope = float(torch.linalg.matrix_norm(jacobian.detach().flatten(1), 2))
        assert slope <= bound * (1 + 1e-9)


@pytest.mark.parametrize(
    "name",
    ["mlp", "convnet", "convnet-sphere", "convnet-gray", "convnet-global", "resnet", "mixer"],
)
def test_projected_models_with_limit_one_are_1_lipschitz(name: str) -> None:
    model = prepared(TINY[name], "boundary")
    layers = [layer for layer in model.modules() if hasattr(layer, "norm_bound")]
    assert all(layer.norm_bound().value <= layer.limit == 1.0 for layer in layers)
    assert 0.5 < model.lipschitz() <= 1.0 + 1e-5


def test_without_projection_the_limit_is_broken_and_the_certificate_says_so() -> None:
    model = prepared(TINY["mlp"], "start")
    with torch.no_grad():
        model.dense1.weight.mul_(3.0)
    assert model.lipschitz() > 2.0
    report = model.project_()
    assert model.lipschitz() <= 1.0 + 1e-6
    assert "dense1" in report.boundary
    assert {layer.name for layer in report} == {"dense1", "dense2", "head"}


@pytest.mark.parametrize("name", TINY)
def test_logits_have_one_row_per_record_and_do_not_depend_on_other_records(name: str) -> None:
    torch.manual_seed(0)
    model = TINY[name]().eval()
    x = records(model.input_shape).float()
    together = model(x)
    assert together.shape == (len(x), 3)
    alone = torch.cat([model(record[None]) for record in x])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", TINY)
def test_plain_model_is_identical_and_its_weights_can_be_saved_and_loaded(
    name: str, tmp_path: Path
) -> None:
    model, other = prepared(TINY[name], "noisy").float().eval(), TINY[name]().eval()
    x = records(model.input_shape).float()
    exported = model.to_plain()
    assert all(type(part).__module__.startswith("torch.") for part in exported.modules())
    torch.testing.assert_close(exported(x), model(x), rtol=0, atol=1e-6)
    assert exported.state_dict().keys() == model.state_dict().keys()
    torch.save(exported.state_dict(), tmp_path / "plain.pt")
    torch.save(model.state_dict(), tmp_path / "model.pt")
    again = other.to_plain()
    again.load_state_dict(torch.load(tmp_path / "plain.pt", weights_only=True))
    torch.testing.assert_close(again(x), model(x), rtol=0, atol=1e-6)
    other.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    torch.testing.assert_close(other(x), model(x), rtol=0, atol=1e-6)
    assert other.lipschitz() == pytest.approx(model.lipschitz(), rel=1e-9)


PRINTED: dict[str, tuple[Make, int]] = {
    "Barczewski and Ramon (2024), tables, smallest": (lambda: MLP(20, 2, hidden=(6,)), 140),
    "Barczewski and Ramon (2024), MNIST": (convnet_mnist, 83_154),
    "Barczewski and Ramon (2024), Fashion-MNIST": (convnet_fashion, 132_746),
    "Barczewski and Ramon (2024), CIFAR-10": (shallow_vgg, 131_466),
    "Barczewski (2025), MNIST": (convnet_thesis, 1_625_866),
    "Barczewski (2025), Mixer": (Mixer, 93_184),
    "utility measurements": (tempered_cnn, 18_842),
    "step benchmarks": (benchmark_cnn, 356_810),
}


@pytest.mark.parametrize("name", PRINTED)
def test_number_of_parameters_is_the_one_printed_and_the_model_is_certified(name: str) -> None:
    make, printed = PRINTED[name]
    torch.manual_seed(0)
    model = make()
    assert count(model) == printed
    certificate = model.certify(losses.CrossEntropy(temperature=16.0))
    assert certificate.enforced
    assert math.isfinite(certificate.total)
    assert model.lipschitz() <= 1.0 + 1e-5
    x = torch.rand(2, *model.input_shape)
    torch.testing.assert_close(model.to_plain()(x), model(x), rtol=0, atol=1e-6)


def wide_resnet_parameters(depth: int, widening: int) -> int:
    """Convolutions with biases, no affine normalisation, one dense layer; by the definition."""
    blocks, total, width = (depth - 4) // 6, 3 * 16 * 9 + 16, 16
    for following in (16 * widening, 32 * widening, 64 * widening):
        for _ in range(blocks):
            total += (width + following) * following * 9 + 2 * following
            if width != following:
                total += width * following + following
            width = following
    return total + 10 * width + 10


def test_wide_resnets_have_the_parameters_of_their_definition() -> None:
    assert wide_resnet_parameters(16, 4) == 2_747_530
    # What Barczewski (2025) prints for 16-4 is the number of 40-4.
    assert wide_resnet_parameters(40, 4) == 8_944_266
    # Widening one: the first stage keeps its width and needs no shortcut layer.
    assert count(wide_resnet(10, 1)) == wide_resnet_parameters(10, 1)


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "parameters"), [(16, 2_747_530), (40, 8_944_266)])
def test_wide_resnets_of_the_paper_are_built_and_certified(depth: int, parameters: int) -> None:
    torch.manual_seed(0)
    model = wide_resnet(depth, 4)
    assert count(model) == parameters
    assert math.isfinite(model.certify(losses.CrossEntropy(temperature=16.0)).total)
    assert model.lipschitz() <= 1.0 + 1e-4
    x = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(model.to_plain()(x), model(x), rtol=0, atol=1e-6)


def test_resnet_20_is_1_lipschitz() -> None:
    model = resnet(20)
    assert count(model) == 271_690
    assert model.lipschitz() <= 1.0 + 1e-5


def test_models_are_built_in_several_sizes() -> None:
    small, large = MLP(5, 2, hidden=(2,)), MLP(5, 2, hidden=(64, 32, 16))
    assert count(small) == 5 * 2 + 2 + 2 * 2 + 2
    assert count(large) == 5 * 64 + 64 + 64 * 32 + 32 + 32 * 16 + 16 + 16 * 2 + 2
    for width in (2, 8):
        assert benchmark_cnn(width)(torch.rand(1, 3, 32, 32)).shape == (1, 10)
    for size in (8, 12):
        model = Mixer((1, size, size), 4, patch=4, width=4, token_width=2, channel_width=2)
        assert model(torch.rand(2, 1, size, size)).shape == (2, 4)
        model = ResNet((1, size, size), 4, blocks=(1, 1), widths=(2, 4), stem=2)
        assert model(torch.rand(2, 1, size, size)).shape == (2, 4)


@settings(max_examples=15, deadline=None)
@given(
    inputs=st.integers(1, 4),
    outputs=st.integers(1, 24),
    kernel=st.integers(1, 5),
    stride=st.integers(1, 2),
    seed=st.integers(0, 2**16),
)
def test_convolutions_start_as_isometries_where_that_is_possible(
    inputs: int, outputs: int, kernel: int, stride: int, seed: int
) -> None:
    torch.manual_seed(seed)
    layer = Options(limit=2.0).conv(inputs, outputs, kernel, stride, (kernel - 1) // 2)
    assert float(layer.norm_bound()) <= 2.0
    x = torch.randn(3, inputs, 8, 8)
    output = layer(x).detach()
    ratio = output.flatten(1).norm(dim=1) / x.flatten(1).norm(dim=1)
    assert float(ratio.max()) <= 2.0 * (1 + 1e-5)
    every_pixel_is_read = kernel >= stride and output.shape[-1] * stride == 8
    if every_pixel_is_read and outputs >= inputs * stride**2:
        # Up to a factor: certificates of small kernels lie some percent above their norm.
        assert float(ratio.min()) >= 0.9 * 2.0
        torch.testing.assert_close(ratio, ratio[:1].expand(3), rtol=1e-4, atol=0)


def test_isometric_start_passes_on_more_of_the_gradient_than_a_random_one() -> None:
    shares = {}
    for start in ("isometry", "random"):
        torch.manual_seed(0)
        model = tiny_resnet(norm=None, bias=False, start=start)
        x = torch.randn(6, *IMAGE)
        table = model.certify(losses.CrossEntropy()).tightness(x, torch.arange(6) % 3)
        shares[start] = float(table["median_ratio"].iloc[0])
    assert shares["isometry"] > 2 * shares["random"]


def test_certificate_of_the_model_is_that_of_certify() -> None:
    model, loss = tiny_convnet(), losses.CrossEntropy()
    assert model.certify(loss).to_dict() == certify(model, IMAGE, loss=loss).to_dict()
    assert model.certify(loss, loss_clip=0.01).total < model.certify(loss).total


def test_options_reach_the_layers() -> None:
    model = MLP(5, 3, hidden=(6,), norm="group", groups=4, alpha=0.3, projection="bjorck")
    assert (model.norm1.num_groups, model.norm1.alpha) == (2, 0.3)
    assert model.dense1.projection == model.head.projection == "bjorck"
    assert isinstance(MLP(5, 3, norm="centre").norm1, LayerCentering)
    assert isinstance(MLP(5, 3, hidden=(7,), activation=lambda width: nn.ELU()).act1, nn.ELU)
    assert all(layer.bias is None for layer in tiny_convnet(bias=False) if hasattr(layer, "bias"))
    assert model.input.norm == 1.0


@pytest.mark.parametrize(("inputs", "outputs"), [(3, 32), (32, 32), (32, 8)])
def test_standardised_convolutions_start_near_the_limit(inputs: int, outputs: int) -> None:
    torch.manual_seed(0)
    layer = Options(weights="standardised", limit=2.0).conv(inputs, outputs, 3, padding=1)
    assert 0.6 * 2.0 <= float(layer.norm_bound()) <= 1.4 * 2.0


def test_every_stage_of_a_resnet_but_the_first_halves_the_image() -> None:
    certificate = tiny_resnet().certify(losses.CrossEntropy())
    shapes = {layer.path: layer.output_shape for layer in certificate.layers}
    assert shapes["stage1.mix"] == (4, 8, 8)
    assert shapes["stage2_2.mix"] == (6, 4, 4)


def test_a_part_of_a_model_is_a_chain_of_the_same_layers() -> None:
    model = tiny_convnet()
    part = model[1:3]
    assert type(part) is nn.Sequential
    assert part[0] is model[1] is model.conv1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MLP(5, 3, activation="swish"), r"activation must be one of .*'maxmin'"),
        (lambda: MLP(5, 3, colour_space="rgb"), r"unknown option 'colour_space'.*colour"),
        (lambda: MLP(5, 3, hidden=(7,)), r"even.*got 7"),
        (lambda: MLP(5, 3, limit=0.0), "limit must be > 0"),
        (lambda: MLP(5, 3, limit=float("nan")), "limit must be a number"),
        (lambda: MLP(5, 3, norm="batch"), "norm must be one of 'group', 'centre'"),
        (lambda: MLP(5, 3, input_mode="scale"), "mode must be one of"),
        (lambda: MLP(5, 3, input_norm=-1.0), "norm must be > 0"),
        (lambda: MLP(5, 3, weights="standardised"), "2-d convolutions"),
        (lambda: MLP(5, 0), "classes must be a whole number >= 1"),
        (lambda: MLP(2.5, 2), "features must be a whole number"),
        (lambda: MLP(5, 3, projection="svd"), "projection must be one of"),
        (lambda: ConvNet((8, 8), 3, [Stage(4)]), r"\(channels, height, width\)"),
        (lambda: ConvNet((1, 4, 4), 3, [Stage(4, 7, padding=0)]), "stage 1.*window of 7.*4 pixels"),
        (lambda: ConvNet((1, 4, 4), 3, [Stage(4, pool=8)]), "pooling of stage 1"),
        (lambda: ConvNet((1, 4, 6), 3, [Stage(4)], global_pool=True), "square"),
        (lambda: Stage(0), "width"),
        (lambda: tiny_convnet(pooling="median"), "pooling must be one of 'l2', 'average', 'max'"),
        (lambda: tiny_convnet(start="zero"), "start must be one of"),
        (lambda: ConvNet((1, 8, 8), 3, [Stage(4)], colour="yuv"), "colour"),
        (lambda: tiny_resnet(residual="product"), "mix must be one of"),
        (lambda: ResNet(IMAGE, 3, blocks=(1,), widths=(4, 8)), "as many blocks as widths"),
        (lambda: ResNet((3, 8, 6), 3), "square"),
        (lambda: resnet(21), r"6n \+ 2"),
        (lambda: wide_resnet(20), r"6n \+ 4"),
        (lambda: Mixer((3, 8, 8), 3, patch=3), "patch=3 must divide"),
        (lambda: tiny_mixer(weights="standardised"), "Mixer has none"),
    ],
)
def test_wrong_settings_are_refused_with_the_way_out(make: Make, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_project_refuses_weights_that_are_not_finite() -> None:
    model = tiny_convnet()
    with torch.no_grad():
        model.conv2.weight[0, 0, 0, 0] = float("nan")
    before = model.dense1.weight.detach().clone()
    with pytest.raises(ValueError, match=r"conv2\.weight"):
        model.project_()
    assert torch.equal(model.dense1.weight, before)
