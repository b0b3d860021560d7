"""Exactness over drawn shapes and options: lookups, normalisations, attention, recurrences, and
the estimators that need a Lipschitz model."""

import math

import pytest
import torch
from gradient_reference import bounded_reference, record_gradients
from hypothesis import given, settings, strategies as st
from model_examples import squared
from torch import nn

import noisewise as nw


class Wrapped(nn.Module):
    """A layer whose output may be a tuple, between nothing and a flattening."""

    def __init__(self, layer, call):
        super().__init__()
        self.layer, self.call = layer, call

    def forward(self, x):
        return self.call(self.layer, x).flatten(1)


def plain(layer, x):
    return layer(x)


def attend(layer, x):
    return layer(x, x, x, need_weights=False)[0]


def attend_across(layer, x):
    other = torch.tanh(x.flip(1)[:, : max(1, x.shape[1] - 1)])
    return layer(x, other, other + 0.5)[0]


def recur(layer, x):
    return layer(x)[0]


@st.composite
def layers(draw):
    """(model, batch) in float64."""
    records, size = draw(st.integers(1, 4)), st.integers(1, 5)
    length, width = draw(size), draw(size)
    kind = draw(
        st.sampled_from(
            ["embedding", "bag", "layer", "rms", "group", "instance", "attention", "rnn"]
        )
    )
    bias = draw(st.booleans())
    call = plain
    x = torch.randn(records, length, width, dtype=torch.float64)
    if kind in ("embedding", "bag"):
        vocabulary = draw(st.integers(2, 6))
        padding = draw(st.sampled_from([None, 0, -1]))
        x = torch.randint(vocabulary, (records, length))
        if kind == "embedding":
            layer = nn.Embedding(vocabulary, width, padding_idx=padding)
        else:
            mode = draw(st.sampled_from(["sum", "mean", "max"]))
            layer = nn.EmbeddingBag(vocabulary, width, mode=mode, padding_idx=padding)
    elif kind == "layer":
        shape = draw(st.sampled_from([(width,), (length, width)]))
        layer = nn.LayerNorm(shape, bias=bias)
    elif kind == "rms":
        layer = nn.RMSNorm(width, eps=1e-5)
    elif kind == "group":
        groups = draw(st.integers(1, 3))
        x = torch.randn(records, groups * width, length + 1, dtype=torch.float64)
        layer = nn.GroupNorm(groups, groups * width)
    elif kind == "instance":
        x = torch.randn(records, width, length + 1, dtype=torch.float64)
        layer = nn.InstanceNorm1d(width, affine=True)
    elif kind == "attention":
        heads = draw(st.integers(1, 2))
        x = torch.randn(records, length, heads * width, dtype=torch.float64)
        layer = nn.MultiheadAttention(heads * width, heads, bias=bias, batch_first=True)
        call = draw(st.sampled_from([attend, attend_across]))
    else:
        cls = draw(st.sampled_from([nn.RNN, nn.LSTM, nn.GRU]))
        layer = cls(
            width,
            draw(size),
            num_layers=draw(st.integers(1, 2)),
            bias=bias,
            bidirectional=draw(st.booleans()),
            batch_first=True,
        )
        call = recur
    model = Wrapped(layer, call).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model, x


@settings(max_examples=120, deadline=None)
@given(
    drawn=layers(), seed=st.integers(0, 99), per=st.sampled_from(["model", "layer", "parameter"])
)
def test_drawn_layers_are_exact(drawn, seed, per):
    torch.manual_seed(seed)
    model, x = drawn
    y = torch.randn(len(x), dtype=torch.float64)
    gradients = record_gradients(model, squared, x, y)
    result = nw.bounded_sum(model, squared, x, y, nw.Clipped(0.4, per=per))

    def clip(norm):
        return (0.4 / norm.clamp_min(1e-12)).clamp_max(1.0)

    expected = bounded_reference(gradients, [g.names for g in result.groups], clip)
    for name, value in expected.items():
        torch.testing.assert_close(result.gradients[name], value, rtol=1e-6, atol=1e-8)


# -- estimators that need a Lipschitz model -------------------------------------------------


@st.composite
def bounded_models(draw):
    records, width = draw(st.integers(1, 5)), draw(st.integers(2, 5))
    bias = draw(st.booleans())
    if draw(st.booleans()):
        shape = (width,)
        body = [nn.Linear(width, 4, bias=bias), nn.Tanh(), nn.Linear(4, 3)]
    else:
        shape = (2, 5, 5)
        convolution = nn.Conv2d(
            2, 4, draw(st.integers(1, 3)), stride=draw(st.integers(1, 2)), bias=bias,
            padding=draw(st.integers(0, 1)), groups=draw(st.integers(1, 2)),
        )  # fmt: skip
        with torch.no_grad():
            flat = convolution(torch.zeros(1, *shape)).numel()
        body = [convolution, nn.ReLU(), nn.Flatten(), nn.Linear(flat, 3)]
    model = nn.Sequential(nw.nn.BoundedInput(shape, 2.0), *body).double()
    return model, torch.randn(records, *shape, dtype=torch.float64), torch.randint(3, (records,))


def loss_factors(model, x, y, clip):
    """By how much each record's cotangent at the logits is shortened."""
    output = model(x).detach().requires_grad_()
    nn.functional.cross_entropy(output, y, reduction="sum").backward()
    return (clip / output.grad.norm(dim=1)).clamp_max(1.0)


def input_norms(model, x):
    """Per layer: norm of the unfolded input, with a one per position for the bias."""
    found, hooks = {}, []

    def watch(name):
        def look(layer, inputs):
            (value,) = inputs
            squares, positions = value.flatten(1).square().sum(1), 1
            if isinstance(layer, nn.Conv2d):
                windows = nn.functional.unfold(
                    value, layer.kernel_size, padding=layer.padding, stride=layer.stride
                )
                squares, positions = windows.flatten(1).square().sum(1), windows.shape[2]
            ones = positions if layer.bias is not None else 0
            found[name] = (squares + ones).sqrt()

        return look

    for name, layer in model.named_modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            hooks.append(layer.register_forward_pre_hook(watch(name)))
    with torch.no_grad():
        model(x)
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.parametrize("loss_clip", [None, 0.2])
@settings(max_examples=20, deadline=None)
@given(drawn=bounded_models(), seed=st.integers(0, 99))
def test_propagated_and_input_scaled_are_exact(loss_clip, drawn, seed):
    torch.manual_seed(seed)
    model, x, y = drawn
    gradients = record_gradients(model, nn.CrossEntropyLoss(reduction="none"), x, y)
    factors = torch.ones(len(x)) if loss_clip is None else loss_factors(model, x, y, loss_clip)
    loss = nn.CrossEntropyLoss()
    result = nw.bounded_sum(model, loss, x, y, nw.Propagated(loss_clip=loss_clip))
    for name, value in gradients.items():
        expected = torch.einsum("b,b...->...", factors.double(), value)
        torch.testing.assert_close(result.gradients[name], expected, rtol=1e-5, atol=1e-7)
    norms = input_norms(model, x)
    scaled = nw.bounded_sum(model, loss, x, y, nw.InputScaled(loss_clip=loss_clip))
    for group in scaled.groups:
        for name in group.names:
            weights = factors.double() / norms[group.name]
            expected = torch.einsum("b,b...->...", weights, gradients[name])
            torch.testing.assert_close(group.gradients[name], expected, rtol=1e-5, atol=1e-7)
        limit = loss_clip if loss_clip is not None else math.inf
        if group.name == scaled.groups[-1].name:
            assert group.sensitivity <= 1.001 * min(limit, math.sqrt(2)) * (1 + 1e-9)
