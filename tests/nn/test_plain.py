"""The plain form of a module computes the same, with classes of torch only."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

import noisewise.nn as lipschitz
from noisewise.errors import UnsupportedModelError
from noisewise.nn import plain
from noisewise.nn.plain import exportable, register_plain, to_plain, traced

Make = Callable[[], nn.Module]


class _TwoInputs(nn.Module):
    """Feeds a module of two inputs with halves of one."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x, x.flip(1))


EXAMPLES: dict[str, list[tuple[Make, tuple[int, ...]]]] = {
    "AbsoluteValue": [(lipschitz.AbsoluteValue, (4,))],
    "AdaptiveClipGradient": [(lambda: lipschitz.AdaptiveClipGradient(0.1), (4,))],
    "BoundedInput": [
        (lambda: lipschitz.BoundedInput(6, 1.5), (6,)),
        (lambda: lipschitz.BoundedInput((2, 3), 0.3, "normalise"), (2, 3)),
        *(
            (lambda c=c: lipschitz.BoundedInput((3, 4, 5), 0.7, colour=c), (3, 4, 5))
            for c in ("rgb", "hsv", "yiq", "yuv", "grayscale")
        ),
    ],
    "CReLU": [(lipschitz.CReLU, (3, 4))],
    "ClipGradient": [(lambda: lipschitz.ClipGradient(0.1), (4,))],
    "RenewGradient": [(lambda: lipschitz.RenewGradient(0.1), (4,))],
    "ConvexMix": [
        (lambda: _TwoInputs(lipschitz.ConvexMix(0.3)), (4,)),
        (lambda: _TwoInputs(lipschitz.ConvexMix(0.3, learn=True)), (4,)),
    ],
    "InducedLinear": [(lambda: lipschitz.InducedLinear(5, 3, limit=2.0), (5,))],
    "FrobeniusLinear": [(lambda: lipschitz.FrobeniusLinear(5, 3, limit=2.0), (5,))],
    "GroupSort": [
        (lambda: lipschitz.GroupSort(2), (6,)),
        (lambda: lipschitz.GroupSort(3), (6, 2, 3)),
    ],
    "HouseholderActivation": [
        (lambda: lipschitz.HouseholderActivation(6), (6,)),
        (lambda: lipschitz.HouseholderActivation(4), (4, 3, 2)),
    ],
    "LayerCentering": [
        (lipschitz.LayerCentering, (3, 4, 5)),
        (lambda: lipschitz.LayerCentering((1, 2)), (3, 4, 5)),
    ],
    "LipschitzGroupNorm": [
        (lambda: lipschitz.LipschitzGroupNorm(2, 6, 0.3), (6, 3, 2)),
        (lambda: lipschitz.LipschitzGroupNorm(3, 6, 0.3, affine=True), (6, 3, 2)),
        (lambda: lipschitz.LipschitzGroupNorm(3, 6, 2.0, affine=True), (6,)),
    ],
    "LipschitzLayerNorm": [
        (lambda: lipschitz.LipschitzLayerNorm(5, 0.3), (4, 5)),
        (lambda: lipschitz.LipschitzLayerNorm((4, 5), 0.3, affine=True), (3, 4, 5)),
    ],
    "LipschitzResidual": [
        (lambda: lipschitz.LipschitzResidual(nn.ReLU(), coefficient=0.2), (4,)),
        (lambda: lipschitz.LipschitzResidual(lipschitz.SpectralLinear(4, 4), learn=True), (4,)),
        (
            lambda: lipschitz.LipschitzResidual(
                lipschitz.SpectralLinear(4, 2), lipschitz.SpectralLinear(4, 2), mix="sum"
            ),
            (4,),
        ),
    ],
    "MaxMin": [(lipschitz.MaxMin, (6,)), (lipschitz.MaxMin, (4, 3, 2))],
    "ScaledAvgPool2d": [
        (lambda: lipschitz.ScaledAvgPool2d(2), (3, 6, 6)),
        (lambda: lipschitz.ScaledAvgPool2d((3, 2), 1, 1), (3, 6, 5)),
    ],
    "ScaledL2Pool2d": [
        (lambda: lipschitz.ScaledL2Pool2d(2), (3, 6, 6)),
        (lambda: lipschitz.ScaledL2Pool2d((3, 2), 2, 1), (3, 6, 5)),
    ],
    "Scattering2d": [
        (lambda: lipschitz.Scattering2d((6, 7), L=3), (1, 6, 7)),
        (lambda: lipschitz.Scattering2d((5, 6), L=2, channels=2, normalise=3), (2, 5, 6)),
    ],
    "SpectralConv1d": [(lambda: lipschitz.SpectralConv1d(3, 4, 3, 2), (3, 7))],
    "SpectralConv2d": [
        (lambda: lipschitz.SpectralConv2d(4, 6, 3, 2, 1, groups=2, limit=0.5), (4, 6, 5)),
        (lambda: lipschitz.SpectralConv2d(2, 3, 3, padding=1, padding_mode="circular"), (2, 5, 5)),
        (lambda: lipschitz.SpectralConv2d(2, 3, 3, padding="same", bias=False), (2, 5, 5)),
    ],
    "SpectralConv3d": [(lambda: lipschitz.SpectralConv3d(1, 2, 2), (1, 3, 3, 3))],
    "SpectralConvTranspose1d": [(lambda: lipschitz.SpectralConvTranspose1d(3, 2, 3, 2), (3, 4))],
    "SpectralConvTranspose2d": [
        (lambda: lipschitz.SpectralConvTranspose2d(2, 3, 3, 2, output_padding=1), (2, 4, 4))
    ],
    "SpectralConvTranspose3d": [(lambda: lipschitz.SpectralConvTranspose3d(1, 2, 2), (1, 2, 2, 2))],
    "SpectralLinear": [
        (lambda: lipschitz.SpectralLinear(5, 3), (5,)),
        (lambda: lipschitz.SpectralLinear(5, 3, bias=False), (4, 5)),
    ],
    "OrthogonalConv2d": [(lambda: lipschitz.OrthogonalConv2d(2, 3, 3), (2, 5, 5))],
    "StandardisedConv2d": [
        (lambda: lipschitz.StandardisedConv2d(2, 3, 3, 2, 1, gain=0.5), (2, 5, 5))
    ],
    "StandardisedLinear": [(lambda: lipschitz.StandardisedLinear(5, 3, bias=False), (5,))],
    "TemperedSigmoid": [(lambda: lipschitz.TemperedSigmoid(1.5, 3.0, 0.5), (4,))],
}
CASES = [
    pytest.param(make, shape, id=f"{name}-{number}")
    for name, examples in EXAMPLES.items()
    for number, (make, shape) in enumerate(examples)
]


def noisy(model: nn.Module, seed: int = 0) -> nn.Module:
    """Weights as after a few noisy steps, so that no part of the layer is at its neutral start."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def inputs(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """Random records, and one of zeros."""
    x = torch.randn(5, *shape, generator=torch.Generator().manual_seed(seed))
    x[-1] = 0.0
    return x


def assert_only_torch(module: nn.Module) -> None:
    for name, part in module.named_modules():
        assert type(part).__module__.startswith("torch."), f"{name}: {type(part)}"


def test_every_exported_layer_has_a_plain_form_and_an_example() -> None:
    layers = {
        name
        for name in lipschitz.__all__
        if isinstance(getattr(lipschitz, name), type)
        and issubclass(getattr(lipschitz, name), nn.Module)
    }
    # Features are computed once, beforehand: what is exported is the model behind them.
    layers -= {"PatchFeatures"}
    without = {name for name in layers if getattr(lipschitz, name) not in exportable()}
    assert not without, f"no plain form: {without}"
    assert layers == set(EXAMPLES)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("make", "shape"), CASES)
def test_plain_layer_gives_identical_outputs_and_gradients(
    make: Make, shape: tuple[int, ...], training: bool
) -> None:
    model = noisy(nn.Sequential(make())).train(training)
    exported = to_plain(model)
    x, again = inputs(shape).requires_grad_(), inputs(shape).requires_grad_()
    expected, found = model(x), exported(again)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    expected.square().sum().backward()
    found.square().sum().backward()
    limited = (lipschitz.AdaptiveClipGradient, lipschitz.ClipGradient, lipschitz.RenewGradient)
    if not isinstance(model[0], limited):
        torch.testing.assert_close(again.grad, x.grad, rtol=1e-5, atol=1e-5)
    # A limit on gradients is nothing to a model that only predicts.
    used = {name for name in model.state_dict() if not name.endswith("log_clip")}
    assert set(exported.state_dict()) == used
    assert all(part.training is training for part in exported.modules())
    learnt = {name for name, p in model.named_parameters() if p.requires_grad} & used
    assert {name for name, p in exported.named_parameters() if p.requires_grad} == learnt


@pytest.mark.parametrize(("make", "shape"), CASES)
def test_plain_layer_uses_classes_of_torch_and_double_precision_follows(
    make: Make, shape: tuple[int, ...]
) -> None:
    model = noisy(nn.Sequential(make())).double()
    exported = to_plain(model, dtype=torch.float64)
    if not isinstance(model[0], _TwoInputs):
        assert_only_torch(exported)
    x = inputs(shape).double()
    torch.testing.assert_close(exported(x), model(x), rtol=0, atol=1e-13)


@settings(max_examples=40, deadline=None)
@given(
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
    kernel=st.integers(1, 3),
    groups=st.sampled_from([1, 2]),
    bias=st.booleans(),
    mode=st.sampled_from(["zeros", "circular"]),
    standardised=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_plain_convolution_keeps_every_setting(
    stride: int, padding: int, dilation: int, kernel: int, groups: int, bias: bool, mode: str,
    standardised: bool, seed: int,
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    common = (2, 4, kernel, stride, padding, dilation, groups, bias)
    layer: nn.Module
    if standardised:
        layer = lipschitz.StandardisedConv2d(*common, gain=0.7)
    else:
        layer = lipschitz.SpectralConv2d(*common, padding_mode=mode)
    x = torch.randn(2, 2, 7, 6)
    exported = to_plain(noisy(layer, seed))
    assert type(exported) is nn.Conv2d
    torch.testing.assert_close(exported(x), layer(x), rtol=0, atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    size=st.floats(1e-30, 1e30),
    norm=st.floats(1e-3, 1e3),
    mode=st.sampled_from(["clip", "normalise"]),
    broken=st.sampled_from([0.0, float("nan"), float("inf"), float("-inf")]),
)
def test_plain_input_bounds_records_of_any_size_and_zeroes_broken_ones(
    seed: int, size: float, norm: float, mode: str, broken: float
) -> None:
    layer = lipschitz.BoundedInput((2, 3), norm, mode)
    x = size * torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(seed))
    x[1, 0, 1] = broken
    found = to_plain(layer)(x)
    assert torch.equal(found, layer(x))
    assert float(found.flatten(1).norm(dim=1).max()) <= norm * (1 + 1e-6)


def network() -> nn.Sequential:
    block = nn.Sequential(
        lipschitz.StandardisedConv2d(4, 4, 3, padding=1), lipschitz.HouseholderActivation(4)
    )
    return nn.Sequential(
        lipschitz.BoundedInput((3, 8, 8), 2.0, colour="yuv"),
        lipschitz.SpectralConv2d(3, 4, 3, padding=1),
        lipschitz.LipschitzGroupNorm(2, 4, 0.1, affine=True),
        lipschitz.MaxMin(),
        lipschitz.ScaledL2Pool2d(2),
        lipschitz.LipschitzResidual(block, coefficient=0.3, learn=True),
        nn.Flatten(),
        nn.Dropout(0.5),
        lipschitz.SpectralLinear(64, 6),
        lipschitz.GroupSort(3),
        lipschitz.TemperedSigmoid(),
    )


def test_plain_network_loads_where_noisewise_does_not_exist(tmp_path: Path) -> None:
    model = noisy(network()).eval()
    x = inputs((3, 8, 8))
    torch.save(to_plain(model), tmp_path / "model.pt")
    torch.save({"x": x, "y": model(x).detach()}, tmp_path / "data.pt")
    script = (
        "import sys; sys.modules['noisewise'] = None\n"
        "import torch\n"
        f"model = torch.load({str(tmp_path / 'model.pt')!r}, weights_only=False)\n"
        f"data = torch.load({str(tmp_path / 'data.pt')!r}, weights_only=True)\n"
        "assert (model(data['x']) - data['y']).abs().max() <= 1e-6\n"
        "scripted = torch.jit.script(model)\n"
        "assert (scripted(data['x']) - data['y']).abs().max() <= 1e-6\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_plain_weights_go_through_a_file_of_weights_only(tmp_path: Path) -> None:
    model, other = noisy(network()).eval(), network().eval()
    x = inputs((3, 8, 8))
    torch.save(to_plain(model).state_dict(), tmp_path / "weights.pt")
    exported = to_plain(other)
    exported.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    torch.testing.assert_close(exported(x), model(x), rtol=0, atol=1e-6)


def test_plain_network_owns_its_weights() -> None:
    model = network().eval()
    exported, x = to_plain(model), inputs((3, 8, 8))
    before = model(x)
    noisy(exported)
    assert torch.equal(model(x), before)
    assert not torch.allclose(exported(x), before)


def test_plain_network_has_per_record_gradients() -> None:
    exported = to_plain(network().eval())
    parameters = dict(exported.named_parameters())

    def loss(parameters: dict[str, Tensor], record: Tensor) -> Tensor:
        return torch.func.functional_call(exported, parameters, (record[None],)).square().sum()

    x = inputs((3, 8, 8))
    together = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
    for number, record in enumerate(x):
        alone = torch.autograd.grad(loss(parameters, record), list(parameters.values()))
        for name, gradient in zip(parameters, alone, strict=True):
            torch.testing.assert_close(together[name][number], gradient, rtol=1e-4, atol=1e-6)


def test_tied_layers_and_weights_stay_tied() -> None:
    shared, other = lipschitz.SpectralLinear(4, 4), lipschitz.SpectralLinear(4, 4)
    other.weight = shared.weight
    exported = to_plain(nn.Sequential(shared, lipschitz.MaxMin(), shared, other))
    assert exported[0] is exported[2]
    assert exported[3] is not exported[0]
    assert exported[3].weight is exported[0].weight
    assert exported[3].bias is not exported[0].bias


class _Own(nn.Module):
    """A container of the user's, with a parameter and a tied child of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = lipschitz.SpectralLinear(4, 4)
        self.again = self.first
        self.layers = nn.ModuleList([lipschitz.MaxMin(), lipschitz.SpectralLinear(4, 2)])
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        x = self.again(self.first(x))
        for layer in self.layers:
            x = layer(x)
        return self.scale * x


def test_containers_of_the_user_keep_their_class_and_get_plain_layers() -> None:
    model = noisy(_Own())
    exported, x = to_plain(model), inputs((4,))
    assert type(exported) is _Own
    assert type(exported.first) is nn.Linear
    assert exported.first is exported.again
    assert torch.equal(exported(x), model(x))
    assert type(model.first) is lipschitz.SpectralLinear
    assert exported.scale is not model.scale


class _Unknown(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / 3


def test_unknown_layer_is_refused_by_name_and_path_until_registered() -> None:
    model = nn.Sequential(nn.ReLU(), nn.Sequential(_Unknown()))
    with pytest.raises(UnsupportedModelError, match=r'_Unknown at "1\.0".*register_plain'):
        to_plain(model)
    register_plain(_Unknown)(lambda layer, export: traced(lambda x: x / 3))
    try:
        x = inputs((4,))
        exported = to_plain(model)
        assert_only_torch(exported)
        assert torch.equal(exported(x), model(x))
    finally:
        plain.export._EXPORTERS.pop(_Unknown)


def test_unknown_child_of_a_residual_is_named_by_its_whole_path() -> None:
    model = nn.Sequential(lipschitz.LipschitzResidual(nn.Sequential(nn.ReLU(), _Unknown())))
    with pytest.raises(UnsupportedModelError, match=r'"0\.branch\.1"'):
        to_plain(model)


class _Changed(lipschitz.SpectralLinear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_subclass_that_changes_a_layer_is_not_taken_for_the_layer() -> None:
    with pytest.raises(UnsupportedModelError, match="_Changed"):
        to_plain(nn.Sequential(_Changed(4, 4)))


def test_hooks_and_parametrisations_are_not_lost_in_silence() -> None:
    layer = lipschitz.SpectralLinear(4, 4)
    layer.register_forward_hook(lambda module, args, output: 2 * output)
    with pytest.raises(UnsupportedModelError, match="hook"):
        to_plain(nn.Sequential(layer))


def test_layers_of_torch_are_copied_with_their_state() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.3)).eval()
    model(torch.randn(3, 4))
    exported = to_plain(model)
    for name, value in model.state_dict().items():
        assert torch.equal(exported.state_dict()[name], value)
    assert exported[0].weight is not model[0].weight


def test_plain_form_can_be_copied_and_exported_again() -> None:
    exported, x = to_plain(network().eval()), inputs((3, 8, 8))
    assert torch.equal(copy.deepcopy(exported)(x), exported(x))
