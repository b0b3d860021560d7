"""What is refused, by name, with the reason and the remedy; and what inherits a rule."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from noisewise import nn as nw
from noisewise.bounds import LayerRule, certify, register, registered, trace
from noisewise.errors import UnsupportedModelError

LOSS = nn.L1Loss()


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    torch.manual_seed(0)


def refusal(model: nn.Module, shape: tuple[int, ...] = (4,), loss: object = LOSS) -> str:
    with pytest.raises(UnsupportedModelError) as caught:
        certify(model, shape, 1.0, loss)
    return str(caught.value)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.BatchNorm1d(4), (4,)),
        (nn.BatchNorm2d(4), (4, 3, 3)),
        (nn.BatchNorm3d(4), (4, 3, 3, 3)),
        (nn.SyncBatchNorm(4), (4, 3, 3)),
    ],
)
def test_batch_norm_is_refused_by_name_and_path(layer: nn.Module, shape: tuple[int, ...]) -> None:
    model = nn.Sequential()
    model.add_module("features", nn.Sequential(nn.Identity(), layer))
    message = refusal(model, shape)
    assert type(layer).__name__ in message
    assert '"features.1"' in message
    assert "mixes the records" in message
    assert "GroupNorm" in message


@pytest.mark.parametrize(
    ("layer", "shape", "words"),
    [
        (nn.LSTM(4, 4), (3, 4), "recurrent"),
        (nn.MultiheadAttention(4, 1), (3, 4), "attention"),
        (nn.FractionalMaxPool2d(2, 2), (1, 4, 4), "random"),
        (nn.LazyLinear(3), (4,), "not initialised"),
        (nn.InstanceNorm1d(2, track_running_stats=True), (2, 4), "running statistics"),
        (nn.Embedding(5, 3, max_norm=1.0), (4,), "max_norm"),
        (nn.Embedding(5, 3, scale_grad_by_freq=True), (4,), "whole batch"),
        (nn.Softmax(), (4,), "dim"),
        (nn.Softmax(0), (4,), "batch"),
        (nn.CELU(-1.0), (4,), "alpha"),
        (nn.Softplus(-1.0), (4,), "beta"),
        (nn.LPPool1d(3, 2), (1, 4), "negative"),
        (nn.Upsample(scale_factor=2, mode="bicubic"), (1, 4, 4), "bicubic"),
        (nn.MaxPool1d(2, 1, 1, 3), (1, 2), "padding"),
        (nn.Conv1d(2, 2, 1), (2,), "axes|first axis|fails"),
        (nn.Flatten(0), (4,), "first axis"),
        (nn.Bilinear(2, 2, 2), (2,), "fails|no rule"),
        (nn.LocalResponseNorm(2), (4, 3, 3), "no rule"),
    ],
)
def test_a_layer_without_proof_is_refused(
    layer: nn.Module, shape: tuple[int, ...], words: str
) -> None:
    import re

    assert re.search(words, refusal(nn.Sequential(layer), shape))


def test_an_unknown_layer_is_told_its_nearest_relative_and_how_to_register() -> None:
    message = refusal(nn.Sequential(nn.LocalResponseNorm(2)), (4, 3, 3))
    assert "nearest supported layer" in message
    assert "register" in message


def test_a_subclass_that_changes_forward_is_not_trusted() -> None:
    class Doubled(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    message = refusal(nn.Sequential(Doubled(4, 4)))
    assert 'Doubled at "0"' in message


def test_a_subclass_that_changes_a_helper_is_not_trusted() -> None:
    class Sneaky(nn.Conv1d):
        def _conv_forward(self, *args: Tensor) -> Tensor:
            return 5 * super()._conv_forward(*args)

    with pytest.raises(UnsupportedModelError):
        certify(nn.Sequential(Sneaky(1, 1, 1)), (1, 4), 1.0, LOSS)


def test_a_subclass_that_only_adds_is_trusted() -> None:
    class Named(nn.Linear):
        colour = "blue"

        def paint(self) -> str:
            return self.colour

    assert certify(Named(4, 4), (4,), 1.0, LOSS).gradients["weight"] > 0


@pytest.mark.parametrize(
    "wrap",
    [
        parametrizations.weight_norm,
        parametrizations.spectral_norm,
        parametrizations.orthogonal,
        nn.utils.spectral_norm,
    ],
)
def test_reparametrised_layers_are_refused(wrap: object) -> None:
    with pytest.raises(UnsupportedModelError):
        certify(nn.Sequential(wrap(nn.Linear(4, 4))), (4,), 1.0, LOSS)


def test_a_forward_that_was_replaced_on_the_instance_is_refused() -> None:
    layer = nn.Linear(4, 4)
    layer.forward = lambda x: 5 * x
    assert "replaced" in refusal(nn.Sequential(layer))


def test_a_forward_hook_is_refused() -> None:
    layer = nn.Linear(4, 4)
    layer.register_forward_hook(lambda module, args, output: 100 * output)
    assert "hook" in refusal(nn.Sequential(layer))


def test_a_parameter_used_outside_of_a_layer_is_refused() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return x * (2 * self.gain)

    assert '"gain"' in refusal(Scaled())


def test_a_buffer_may_be_used_as_a_public_constant() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("middle", torch.full((4,), 0.5))
            self.layer = nn.Linear(4, 4, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x - self.middle)

    assert certify(Shifted(), (4,), 2.0, nn.L1Loss(reduction="sum")).gradients[
        "layer.weight"
    ] == pytest.approx(3.0 * 2.0)


def test_a_layer_called_with_more_than_its_rule_knows_is_refused() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = nw.ConvexMix()

        def forward(self, x: Tensor) -> Tensor:
            return self.mix(first=x, second=x)

    assert "other arguments" in refusal(Mixed())

    class Offsets(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag = nn.EmbeddingBag(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.bag(x, None)

    with pytest.raises(UnsupportedModelError, match="other arguments"):
        trace(Offsets(), (4,), torch.long)


def test_data_dependent_control_flow_is_refused() -> None:
    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    assert "symbolically" in refusal(Branching())


def test_a_wrong_input_shape_says_so() -> None:
    assert "input_shape" in refusal(nn.Linear(5, 2), (4,))


def test_a_user_s_layer_joins_by_registering_a_rule() -> None:
    class Triple(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            return 3 * x + self.shift

    before = dict(registered())
    try:

        @register(Triple)
        class TripleRule(LayerRule[Triple]):
            parameters = ("shift",)

            def lipschitz(self, call):
                return 3.0

            def output_norm(self, call):
                return 3.0 * call.norm + call.size**0.5 * abs(float(call.module.shift))

            def parameter_factors(self, call):
                return {"shift": call.size**0.5}

        found = certify(nn.Sequential(nn.Linear(4, 4), Triple()), (4,), 1.0, LOSS)
        assert found.gradients["1.shift"] == pytest.approx(1.0)
    finally:
        from noisewise.bounds import registry

        registry._RULES.clear()
        registry._RULES.update(before)


@pytest.mark.parametrize(
    "loss", [nn.MSELoss(), nn.BCELoss(), nn.PoissonNLLLoss(), lambda z, y: z.sum()]
)
def test_a_loss_without_constant_is_refused(loss: object) -> None:
    assert "loss" in refusal(nn.Linear(4, 4), (4,), loss)


def test_a_missing_loss_is_asked_for() -> None:
    with pytest.raises(TypeError, match="loss"):
        certify(nn.Linear(4, 4), (4,))


def test_tracing_leaves_the_model_and_the_generator_as_they_were() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    state = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    trace(model, (4,))
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert model.training
    assert all(p.grad is None for p in model.parameters())
