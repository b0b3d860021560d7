"""Ways in which mainstream models use parameters: none of them falls back, all are exact."""

from __future__ import annotations

import warnings

import pytest
import torch
from gradient_reference import bounded_reference, record_gradients
from torch import nn
from torch.nn import functional

import noisewise as nw
from noisewise.gradients import FallbackWarning
from noisewise.gradients.contractions.base import Target
from noisewise.gradients.contractions.convolution import Convolution, ConvolutionContraction

RECORDS = 5


class Use(nn.Module):
    """Parameters of some shapes and a function of them and the input."""

    def __init__(self, function, **shapes):
        super().__init__()
        self.function = function
        for name, shape in shapes.items():
            setattr(self, name, nn.Parameter(torch.randn(shape) / 2))

    def forward(self, x):
        return self.function(self, x)


class Cells(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cell, self.head = kind(4, 6), nn.Linear(6, 1)

    def forward(self, x):
        state = None
        for part in x.unbind(1):
            state = self.cell(part, state)
        return self.head(state[0] if isinstance(state, tuple) else state)


class Decoder(nn.Module):
    """A cell whose input is the same for all records, and whose state comes from the record."""

    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(2, 4)

    def forward(self, x):
        state = x[:, 0], x[:, 1].detach()
        for _ in range(2):
            state = self.cell(torch.ones(x.shape[0], 2), state)
        return state[0]


class Windows(nn.Module):
    """Attention within windows, with learnt relative positions and a mask per window."""

    def __init__(self, width=4, windows=3, length=4):
        super().__init__()
        self.windows, self.length, self.width = windows, length, width
        self.bias = nn.Parameter(torch.randn(7, 1))
        self.mix = nn.Linear(width, width)
        places = torch.arange(length)
        self.register_buffer("index", places[:, None] - places[None] + length - 1)

    def forward(self, x):
        records = x.shape[0]
        h = self.mix(x).reshape(records * self.windows, 1, self.length, self.width)
        bias = self.bias[self.index.view(-1)].view(self.length, self.length, 1)
        bias = bias.permute(2, 0, 1).unsqueeze(0)
        mask = torch.zeros(self.windows, self.length, self.length)
        mask[-1, 0, 1:] = -100.0
        mask = mask.unsqueeze(1).repeat(records, 1, 1, 1)
        out = functional.scaled_dot_product_attention(h, h, h, attn_mask=bias + mask)
        return out.reshape(records, -1)


def picked(m, x):
    kind = (x.sum((1, 2)) > 0).long()
    return m.table[kind, 1 - kind] * x[:, 0] + m.row[kind - 1].unsqueeze(1)


torch.manual_seed(0)
USES = {
    "einsum, weight last": (Use(lambda m, x: torch.einsum("btd,ed->bte", x, m.w), w=(3, 4)), 3),
    "einsum, turned": (Use(lambda m, x: torch.einsum("btd,de->bte", x, m.w), w=(4, 3)), 3),
    "einsum, heads out": (
        Use(lambda m, x: torch.einsum("btd,dhe->bhte", x, m.w).flatten(1), w=(4, 2, 3)),
        3,
    ),
    "einsum, heads in": (
        Use(
            lambda m, x: torch.einsum(
                "...hd,hde->...he", x.unsqueeze(2).expand(-1, -1, 2, -1), m.w
            ),
            w=(2, 4, 3),
        ),
        3,
    ),
    "einsum, weight first": (Use(lambda m, x: torch.einsum("ij,bjk->bik", m.w, x), w=(2, 3)), 3),
    "einsum, implicit": (Use(lambda m, x: torch.einsum("btd,de", x, m.w), w=(4, 2)), 3),
    "einsum, mixed order": (
        Use(lambda m, x: torch.einsum("btd,dte->be", x, m.w), w=(4, 3, 2)),
        3,
    ),
    "matmul from the left": (Use(lambda m, x: m.w @ x, w=(2, 3)), 3),
    "matmul with a vector": (Use(lambda m, x: x @ m.w, w=(4,)), 3),
    "addmm": (
        Use(lambda m, x: torch.addmm(m.b, x.reshape(-1, 4), m.w).view(-1, 3, 2), w=(4, 2), b=(2,)),
        3,
    ),
    "matrix both ways": (Use(lambda m, x: torch.tanh(x @ m.w) @ m.w.t(), w=(4, 3)), 3),
    "bilinear": (
        Use(lambda m, x: functional.bilinear(x[:, 0], x[:, 1], m.w, m.b), w=(3, 4, 4), b=(3,)),
        3,
    ),
    "bilinear at positions": (Use(lambda m, x: functional.bilinear(x, x, m.w), w=(2, 4, 4)), 3),
    "a number through exp": (Use(lambda m, x: x * m.w.exp(), w=()), 3),
    "a number through clamp": (Use(lambda m, x: torch.clamp(x, max=m.w), w=()), 3),
    "a number as a power": (Use(lambda m, x: x.abs().float_power(m.w).float(), w=()), 3),
    "a number through softplus": (Use(lambda m, x: functional.softplus(m.w) * x, w=()), 3),
    "a number in logaddexp": (Use(lambda m, x: torch.logaddexp(x, m.w), w=()), 3),
    "entries by number": (Use(picked, table=(2, 2, 4), row=(2,)), 3),
    "windows": (Windows(), 12),
    "cell with constant input": (Decoder(), 3),
    "LSTM cell": (Cells(nn.LSTMCell), 3),
    "GRU cell": (Cells(nn.GRUCell), 3),
    "RNN cell": (Cells(nn.RNNCell), 3),
}


def squared(output, target):
    return ((output.flatten(1) - target[:, None]) ** 2).sum(1)


def strictly(*args, **kwargs):
    """No fallback."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        return nw.bounded_sum(*args, **kwargs)


@pytest.mark.parametrize("name", sorted(USES))
def test_it_is_taken_apart_and_exact(name):
    model, length = USES[name]
    torch.manual_seed(1)
    x, y = torch.randn(RECORDS, length, 4), torch.randn(RECORDS)
    gradients = record_gradients(model, squared, x, y)
    norms = torch.stack([g.reshape(len(g), -1).norm(dim=1) for g in gradients.values()]).norm(dim=0)
    clip = 1.037 * float(norms.median())
    for chunk, per in ((RECORDS, "model"), (2, "parameter")):
        result = strictly(model, squared, x, y, nw.Clipped(clip, per=per), chunk=chunk)
        expected = bounded_reference(
            gradients,
            [g.names for g in result.groups],
            lambda n: (clip / n.clamp_min(1e-12)).clamp_max(1.0),
        )
        for key, value in expected.items():
            error = torch.linalg.vector_norm(result.gradients[key] - value)
            assert error <= 1e-5 * max(float(value.norm()), clip), (key, per, chunk)


@pytest.mark.parametrize("name", sorted(USES))
def test_a_record_moves_the_sum_by_at_most_the_sensitivity(name):
    model, length = USES[name]
    torch.manual_seed(2)
    x, y = torch.randn(RECORDS, length, 4), torch.randn(RECORDS)
    x[0] *= 100.0
    whole = strictly(model, squared, x, y, nw.Clipped(0.1), chunk=RECORDS)
    rest = strictly(model, squared, x[1:], y[1:], nw.Clipped(0.1), chunk=RECORDS)
    moved = [whole.gradients[n].double() - rest.gradients[n] for n in whole.gradients]
    length = torch.cat([part.flatten() for part in moved]).norm()
    assert float(length) <= whole.groups[0].sensitivity
    assert float(length) >= 1e-3  # the record is there


def test_an_index_beyond_the_table_does_not_end_the_run():
    # That it was drawn would be told by the error.
    model = Use(lambda m, x: m.table[x[:, 0, 0].long()], table=(3, 4))
    x = torch.zeros(4, 1, 4)
    x[2] = 10.0
    assert strictly(model, squared, x, torch.zeros(4), nw.Clipped(1.0)).records == 4


def test_an_axis_of_one_entry_that_stands_for_many_falls_back_and_is_exact():
    torch.manual_seed(0)
    model = Use(lambda m, x: torch.einsum("btd,de->bte", x, m.w), w=(1, 2))
    x, y = torch.randn(RECORDS, 3, 4), torch.randn(RECORDS)
    with pytest.warns(FallbackWarning):
        result = nw.bounded_sum(model, squared, x, y, nw.Clipped(1e6))
    expected = record_gradients(model, squared, x, y)["w"].sum(0)
    torch.testing.assert_close(result.gradients["w"], expected)


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize(
    ("groups", "stride", "dilation"), [(1, 1, 1), (4, 1, 1), (8, 1, 1), (1, 2, 1), (2, 1, 2)]
)
def test_large_images_by_groups_are_the_same_gradients(groups, stride, dilation, views):
    # Records as groups of torch's kernel, beside the product with windows.
    generator = torch.Generator().manual_seed(0)
    model = nn.Conv2d(8, 16, 3, stride, dilation, dilation, groups)
    pixels = 32 * stride
    x = torch.randn(3 * views, 8, pixels, pixels, generator=generator)
    output = model(x)
    cotangent = torch.randn(output.shape, generator=generator)
    settings = Convolution(
        (3, 3), (stride, stride), (dilation, dilation), (dilation, dilation), groups
    )
    weight = Target("weight", tuple(model.weight.shape))
    for format in (torch.contiguous_format, torch.channels_last):
        inputs, arrived = (t.contiguous(memory_format=format) for t in (x, cotangent))
        use = ConvolutionContraction(inputs, arrived, settings, views, weight, None)
        assert use._by_groups()
        found = torch.cat([part for _, _, part in use.gradients_once(0, 3)])
        torch.testing.assert_close(found, use._gradients(0, 3), rtol=1e-4, atol=1e-3)
        for record, gradient in enumerate(found):
            model.zero_grad()
            rows = slice(record * views, (record + 1) * views)
            model(x[rows]).backward(cotangent[rows])
            expected = model.weight.grad.flatten()
            torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("per", ["model", "layer"])
def test_large_images_are_bounded_exactly(per):
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
        *(nn.Flatten(), nn.Linear(8, 3)),
    )
    x, y = torch.randn(RECORDS, 8, 32, 32), torch.randint(3, (RECORDS,))
    clip = 0.02
    gradients = record_gradients(model, functional.cross_entropy, x, y)
    result = strictly(model, functional.cross_entropy, x, y, nw.Clipped(clip, per=per))
    expected = bounded_reference(
        gradients,
        [g.names for g in result.groups],
        lambda n: (clip / n.clamp_min(1e-12)).clamp_max(1.0),
    )
    for key, value in expected.items():
        torch.testing.assert_close(result.gradients[key], value, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("pixels", "kernel", "stride", "padding", "dilation", "times"),
    [(2, 7, 1, 3, 1, 1), (9, 3, 2, 1, 1, 2), (8, 3, 3, 0, 1, 1), (11, 3, 2, 2, 2, 1)],
)
@pytest.mark.parametrize("dimensions", [1, 2])
def test_channels_with_kernels_of_their_own(
    dimensions, pixels, kernel, stride, padding, dilation, times
):
    # Images moved along their cotangents, beside torch's own gradient of one record.
    generator = torch.Generator().manual_seed(0)
    channels, records = 6, 70
    layer = (nn.Conv1d, nn.Conv2d)[dimensions - 1]
    model = layer(channels, times * channels, kernel, stride, padding, dilation, groups=channels)
    x = torch.randn(records, channels, *[pixels] * dimensions, generator=generator)
    cotangent = torch.randn(model(x).shape, generator=generator)
    settings = Convolution(
        *((size,) * dimensions for size in (kernel, stride, padding, dilation)), channels
    )
    weight = Target("weight", tuple(model.weight.shape))
    use = ConvolutionContraction(x, cotangent, settings, 1, weight, None)
    assert use._by_channels()
    for found in (
        torch.cat([part for _, _, part in use.gradients_once(0, records)]),
        use.condensed().instantiate(0, records)["weight"].flatten(1),
    ):
        for record in (0, 1, 69):
            model.zero_grad()
            model(x[record : record + 1]).backward(cotangent[record : record + 1])
            expected = model.weight.grad.flatten()
            torch.testing.assert_close(found[record], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("per", ["model", "layer"])
def test_channels_with_kernels_of_their_own_are_bounded_exactly(per):
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(8, 8, 5, padding=2, groups=8), nn.ReLU(), nn.Conv2d(8, 4, 1)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)),
    )
    x, y = torch.randn(RECORDS, 8, 6, 6), torch.randint(3, (RECORDS,))
    clip = 0.02
    gradients = record_gradients(model, functional.cross_entropy, x, y)
    result = strictly(model, functional.cross_entropy, x, y, nw.Clipped(clip, per=per))
    expected = bounded_reference(
        gradients,
        [g.names for g in result.groups],
        lambda n: (clip / n.clamp_min(1e-12)).clamp_max(1.0),
    )
    for key, value in expected.items():
        torch.testing.assert_close(result.gradients[key], value, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("pixels", [3, 8, 32])
@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("value", [1e30, float("inf"), float("nan")])
def test_no_record_beside_another_reaches_its_gradient(groups, value, pixels):
    # Blocked kernels fill lanes up with neighbours: to the bit, nothing of one may be in another.
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 8, pixels, pixels, generator=generator)
    cotangent = torch.randn(5, 8, pixels, pixels, generator=generator)
    settings = Convolution((3, 3), (1, 1), (1, 1), (1, 1), groups)
    weight = Target("weight", (8, 8 // groups, 3, 3))

    def gradients(x, cotangent):
        use = ConvolutionContraction(x, cotangent, settings, 1, weight, None)
        assert use._by_groups() == (pixels >= 8)
        assert use._by_channels() == (groups == 8)
        return torch.cat([part for _, _, part in use.gradients_once(0, 5)])

    before = gradients(x, cotangent)
    strange = x.clone(), cotangent.clone()
    for tensor in strange:
        tensor[2] = value
    after = gradients(*strange)
    others = [0, 1, 3, 4]
    assert torch.equal(before[others], after[others])
    assert not torch.equal(before[2], after[2])
