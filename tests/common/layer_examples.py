"""One or more configurations for every layer type that has a rule.

Among the examples of a type every quantity must come close to its bound, so that a rule
that is wrong by ten percent is found out. Where no input can come that close, the example
says how close is possible, and why.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from common.measuring import Example
from noisewise import nn as nw

Examples = dict[type[nn.Module], list[Example]]


def sine(*shape: int) -> Tensor:
    """Largest along the middle: what a box kernel amplifies most."""
    result = torch.ones((), dtype=torch.float64)
    for size in shape:
        line = torch.sin(math.pi * (torch.arange(size, dtype=torch.float64) + 1) / (size + 1))
        result = result[..., None] * line
    return result


class Negated(nn.Module):
    """Mix of x and -x: as far apart as two tensors of the same norm can be."""

    def __init__(self, mix: nn.Module) -> None:
        super().__init__()
        self.mix = mix

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x, -x)


class Same(Negated):
    def forward(self, x: Tensor) -> Tensor:
        return self.mix(x, x)


def entrywise(make, *, size: int = 3, norm: float = 1.0, hint: float | None = None, **known):
    """An activation: one example for its growth, and one at the entry where it is steepest."""
    hints = (lambda module: []) if hint is None else (lambda module: [torch.full((size,), hint)])
    return Example(make, (size,), norm, known, hints)


def scalar(make, value: float, norm: float, **known):
    return Example(make, (1,), norm, known, lambda module: [torch.tensor([value])])


def spike_per_channel(channels: int, size: int):
    """Groups whose whole variance sits in one channel, with mean zero there."""

    def hints(module: nn.Module) -> list[Tensor]:
        x = torch.zeros(channels, size, dtype=torch.float64)
        x[0, 0], x[0, 1] = 1.0, -1.0
        y = torch.randn(channels, size, dtype=torch.float64)
        tiny = 1e-6 * torch.randn(channels, size, dtype=torch.float64)
        return [1e3 * x, 1e3 * y, tiny, tiny - tiny.mean()]

    return hints


def convolution(make, shape, twin=lambda model: model, **known):
    def hints(module: nn.Module) -> list[Tensor]:
        return [sine(*shape), -sine(*shape)]

    return Example(make, shape, 1.0, known, hints, twin=twin)


def bag(mode: str, **known):
    return Example(
        lambda: nn.EmbeddingBag(5, 3, mode=mode), (4,), 1.0, {"lipschitz": None, **known}, tokens=5
    )


def plain_linear(model: nn.Module) -> nn.Module:
    """The plain layer with the effective weight."""
    twin = nn.Linear(model.in_features, model.out_features).double()
    twin.load_state_dict({"weight": model.effective_weight().detach(), "bias": model.bias})
    return twin


def plain_convolution(model: nn.Module) -> nn.Module:
    twin = nn.Conv2d(
        model.in_channels, model.out_channels, model.kernel_size, model.stride, model.padding,
        padding_mode=model.padding_mode,
    ).double()  # fmt: skip
    twin.load_state_dict({"weight": model.effective_weight().detach(), "bias": model.bias})
    return twin


EXAMPLES: Examples = {
    nn.Linear: [
        Example(lambda: nn.Linear(4, 3), (4,)),
        Example(lambda: nn.Linear(4, 3, bias=False), (2, 4), 2.0),
        Example(lambda: nn.Linear(2, 3), (2, 3, 2), 1.0),
    ],
    nn.Identity: [Example(nn.Identity, (3,))],
    nn.Conv1d: [
        convolution(lambda: nn.Conv1d(1, 2, 3, padding=1), (1, 9)),
        convolution(
            lambda: nn.Conv1d(2, 2, 4, stride=2, padding=3, padding_mode="circular"), (2, 8)
        ),
        convolution(lambda: nn.Conv1d(2, 4, 3, dilation=2, groups=2, padding="same"), (2, 9)),
        convolution(lambda: nn.Conv1d(1, 2, 3, padding=2, padding_mode="reflect"), (1, 6)),
        convolution(lambda: nn.Conv1d(1, 2, 3, padding=2, padding_mode="replicate"), (1, 6)),
    ],
    nn.Conv2d: [
        convolution(lambda: nn.Conv2d(1, 2, 3, padding=1, bias=False), (1, 7, 7)),
        convolution(lambda: nn.Conv2d(2, 2, (2, 3), stride=(2, 1), padding=(0, 1)), (2, 4, 5)),
        convolution(
            lambda: nn.Conv2d(1, 1, 2, padding=1, padding_mode="reflect", bias=False), (1, 4, 4)
        ),
    ],
    nn.Conv3d: [
        convolution(lambda: nn.Conv3d(1, 2, 2, stride=2), (1, 4, 4, 2)),
        convolution(lambda: nn.Conv3d(1, 1, (3, 1, 1), padding="same"), (1, 5, 2, 2)),
    ],
    nn.ConvTranspose1d: [
        convolution(lambda: nn.ConvTranspose1d(1, 1, 3, stride=1, padding=1), (1, 9)),
        convolution(lambda: nn.ConvTranspose1d(1, 2, 3, stride=2, bias=False), (1, 4)),
        convolution(
            lambda: nn.ConvTranspose1d(2, 2, 3, stride=2, padding=1, output_padding=1), (2, 5)
        ),
    ],
    nn.ConvTranspose2d: [
        convolution(lambda: nn.ConvTranspose2d(1, 2, 2, stride=2, bias=False), (1, 2, 2)),
        convolution(lambda: nn.ConvTranspose2d(2, 2, 2, stride=2, padding=1, groups=2), (2, 2, 2)),
    ],
    nn.ConvTranspose3d: [
        convolution(lambda: nn.ConvTranspose3d(1, 1, 2, stride=2), (1, 1, 2, 2)),
        convolution(lambda: nn.ConvTranspose3d(1, 1, 2, bias=False), (1, 1, 1, 2)),
    ],
    nn.MaxPool1d: [
        Example(lambda: nn.MaxPool1d(3, 1), (1, 7)),
        Example(lambda: nn.MaxPool1d(3, 2, 1, 1, ceil_mode=True), (2, 6)),
        Example(lambda: nn.MaxPool1d(2, 2, 0, 2), (1, 9)),
    ],
    nn.MaxPool2d: [
        Example(lambda: nn.MaxPool2d(3, 2, 1), (1, 5, 5)),
        Example(lambda: nn.MaxPool2d((2, 3), (1, 3)), (2, 4, 6)),
        Example(lambda: nn.MaxPool2d(2), (1, 4, 4)),
    ],
    nn.MaxPool3d: [Example(lambda: nn.MaxPool3d(2, 1), (1, 3, 3, 3))],
    nn.AdaptiveMaxPool1d: [
        Example(
            lambda: nn.AdaptiveMaxPool1d(3),
            (1, 5),
            hints=lambda m: [torch.tensor([0.0, 1, 0, 0, 0])],
        )
    ],
    nn.AdaptiveMaxPool2d: [
        Example(lambda: nn.AdaptiveMaxPool2d((2, 3)), (1, 4, 4), hints=lambda m: [torch.eye(16)[5]])
    ],
    nn.AdaptiveMaxPool3d: [Example(lambda: nn.AdaptiveMaxPool3d(1), (2, 2, 2, 2))],
    nn.AvgPool1d: [
        Example(lambda: nn.AvgPool1d(3, 2, 1), (1, 7)),
        Example(lambda: nn.AvgPool1d(3, 3, 1, ceil_mode=True, count_include_pad=False), (1, 8)),
    ],
    nn.AvgPool2d: [
        Example(lambda: nn.AvgPool2d(3, 3, 1, count_include_pad=False), (1, 6, 6)),
        Example(lambda: nn.AvgPool2d(2, 1), (2, 4, 4)),
        Example(lambda: nn.AvgPool2d(3, 2, ceil_mode=True), (1, 6, 6)),
        Example(lambda: nn.AvgPool2d(2, divisor_override=3), (1, 4, 4)),
    ],
    nn.AvgPool3d: [Example(lambda: nn.AvgPool3d(2, 1, 1), (1, 2, 2, 3))],
    nn.AdaptiveAvgPool1d: [Example(lambda: nn.AdaptiveAvgPool1d(3), (2, 7))],
    nn.AdaptiveAvgPool2d: [
        Example(lambda: nn.AdaptiveAvgPool2d(1), (2, 3, 3)),
        Example(lambda: nn.AdaptiveAvgPool2d((2, 3)), (1, 5, 4)),
    ],
    nn.AdaptiveAvgPool3d: [Example(lambda: nn.AdaptiveAvgPool3d((1, 2, 2)), (1, 2, 3, 2))],
    nn.LPPool1d: [
        Example(lambda: nn.LPPool1d(2, 3, 1), (1, 6)),
        Example(lambda: nn.LPPool1d(1, 2), (1, 6)),
        Example(lambda: nn.LPPool1d(4, 3, 2, ceil_mode=True), (1, 6)),
    ],
    nn.LPPool2d: [Example(lambda: nn.LPPool2d(2, 2, 1), (1, 3, 3))],
    nn.LPPool3d: [Example(lambda: nn.LPPool3d(2, 2), (1, 2, 2, 2))],
    # --- activations -----------------------------------------------------------------
    nn.ReLU: [entrywise(nn.ReLU)],
    nn.LeakyReLU: [entrywise(nn.LeakyReLU), entrywise(lambda: nn.LeakyReLU(1.5))],
    nn.RReLU: [entrywise(nn.RReLU), entrywise(lambda: nn.RReLU(1.5, 1.5))],
    nn.ELU: [entrywise(nn.ELU), entrywise(lambda: nn.ELU(2.0), norm=0.05)],
    nn.CELU: [entrywise(lambda: nn.CELU(0.5))],
    nn.SELU: [entrywise(nn.SELU, norm=0.02)],
    nn.Tanh: [entrywise(nn.Tanh), entrywise(nn.Tanh, norm=5.0)],
    nn.Softsign: [entrywise(nn.Softsign), entrywise(nn.Softsign, norm=5.0)],
    nn.Sigmoid: [entrywise(nn.Sigmoid), entrywise(nn.Sigmoid, norm=50.0)],
    nn.Hardsigmoid: [entrywise(nn.Hardsigmoid), entrywise(nn.Hardsigmoid, norm=10.0)],
    nn.LogSigmoid: [entrywise(nn.LogSigmoid, norm=0.01), scalar(nn.LogSigmoid, -20.0, 20.0)],
    nn.Softplus: [
        entrywise(lambda: nn.Softplus(2.0), norm=0.01),
        scalar(lambda: nn.Softplus(0.5), 30.0, 30.0),
    ],
    nn.GELU: [
        scalar(nn.GELU, math.sqrt(2), 6.0),
        scalar(lambda: nn.GELU("tanh"), 1.4185, 6.0),
    ],
    nn.SiLU: [scalar(nn.SiLU, 2.39936, 6.0)],
    nn.Mish: [scalar(nn.Mish, 1.49057, 6.0)],
    nn.Hardswish: [scalar(nn.Hardswish, 2.999, 6.0)],
    nn.Hardtanh: [
        entrywise(nn.Hardtanh),
        entrywise(lambda: nn.Hardtanh(0.5, 2.0), norm=0.3, hint=0.51),
        entrywise(lambda: nn.Hardtanh(-3.0, 1.0), norm=9.0),
    ],
    nn.ReLU6: [entrywise(nn.ReLU6), entrywise(nn.ReLU6, norm=20.0)],
    nn.Hardshrink: [entrywise(lambda: nn.Hardshrink(0.1))],
    nn.Softshrink: [scalar(lambda: nn.Softshrink(0.1), 9.0, 9.0)],
    nn.Tanhshrink: [scalar(nn.Tanhshrink, 30.0, 30.0)],
    nn.Threshold: [
        entrywise(lambda: nn.Threshold(0.1, 2.0), norm=0.1),
        entrywise(lambda: nn.Threshold(0.1, 0.2), norm=9.0),
    ],
    nn.PReLU: [entrywise(nn.PReLU), Example(lambda: nn.PReLU(2), (2, 3), 2.0)],
    nn.Softmax: [
        Example(lambda: nn.Softmax(-1), (2,), 1.0),
        Example(lambda: nn.Softmax(1), (3, 2), 60.0),
    ],
    nn.Softmin: [
        Example(lambda: nn.Softmin(-1), (2,), 1.0),
        Example(lambda: nn.Softmin(-1), (2,), 60.0),
    ],
    nn.Softmax2d: [
        Example(nn.Softmax2d, (2, 1, 2), 0.1),
        Example(nn.Softmax2d, (2, 1, 1), 60.0, hints=lambda m: [torch.tensor([60.0, -60.0])]),
    ],
    # A far logit makes p a vertex; the output then is sqrt(n) X at most, reached by a spike.
    nn.LogSoftmax: [
        Example(lambda: nn.LogSoftmax(-1), (4,), 100.0, hints=lambda m: [torch.eye(4)[0] * 100]),
        Example(lambda: nn.LogSoftmax(1), (4, 2), 0.01),
    ],
    nn.GLU: [
        Example(nn.GLU, (2,), 2.0, {"output": 0.0, "lipschitz": 0.8}),
        Example(
            nn.GLU,
            (2,),
            80.0,
            hints=lambda m: [torch.tensor([79.7, 6.0]), torch.tensor([80.0, 0.0])],
        ),
        Example(
            nn.GLU,
            (2,),
            4.0,
            {"output": 0.0},
            hints=lambda m: [torch.tensor([3.9, b / 10]) for b in range(12)],
        ),
    ],
    # --- normalisation -------------------------------------------------------------------
    nn.GroupNorm: [
        Example(lambda: nn.GroupNorm(2, 4), (4, 3), 1e-3, hints=spike_per_channel(4, 3)),
        Example(
            lambda: nn.GroupNorm(2, 4), (4, 3), 5e3, {"lipschitz": 0.0}, spike_per_channel(4, 3)
        ),
    ],
    nn.LayerNorm: [
        Example(
            lambda: nn.LayerNorm(4),
            (4,),
            1e-3,
            hints=lambda m: [
                torch.tensor([1.0, -1, 1, -1]) * 1e-7,
                torch.tensor([3.0, -1, -1, -1]),
            ],
        ),
        Example(
            lambda: nn.LayerNorm((2, 2), eps=1.0),
            (3, 2, 2),
            0.1,
            hints=lambda m: [torch.tensor([[3.0, -1, -1, -1]] * 3)],
        ),
    ],
    nn.RMSNorm: [
        Example(lambda: nn.RMSNorm(3, eps=1.0), (2, 3), 0.1),
        Example(
            lambda: nn.RMSNorm(3, eps=1e-2),
            (3,),
            50.0,
            hints=lambda m: [torch.eye(3)[0] * 50, torch.eye(3)[0] * 1e-5],
        ),
    ],
    nn.InstanceNorm1d: [
        Example(
            lambda: nn.InstanceNorm1d(2, affine=True),
            (2, 4),
            1e-3,
            hints=lambda m: [
                torch.tensor([[1.0, -1, 1, -1], [0, 0, 0, 0]]),
                torch.tensor([1.0, -1] * 4) * 1e-7,
            ],
        )
    ],
    nn.InstanceNorm2d: [
        Example(lambda: nn.InstanceNorm2d(1, eps=0.1, affine=True), (1, 2, 2), 0.1)
    ],
    nn.InstanceNorm3d: [Example(lambda: nn.InstanceNorm3d(1, eps=0.1), (1, 2, 2, 1), 0.1)],
    # --- dropout -------------------------------------------------------------------------
    nn.Dropout: [Example(lambda: nn.Dropout(0.4), (6,))],
    nn.Dropout1d: [
        Example(
            lambda: nn.Dropout1d(0.4),
            (6, 2),
            hints=lambda m: list(torch.eye(6)[:, :, None].expand(6, 6, 2)),
        )
    ],
    nn.Dropout2d: [
        Example(
            lambda: nn.Dropout2d(0.4),
            (6, 1, 2),
            hints=lambda m: list(torch.eye(6)[:, :, None, None].expand(6, 6, 1, 2)),
        )
    ],
    nn.Dropout3d: [
        Example(
            lambda: nn.Dropout3d(0.4),
            (6, 1, 1, 2),
            hints=lambda m: list(torch.eye(6)[:, :, None, None, None].expand(6, 6, 1, 1, 2)),
        )
    ],
    nn.AlphaDropout: [
        # All entries dropped, or all kept, at once: rare for many entries, so there are few.
        Example(lambda: nn.AlphaDropout(0.1), (2,), 50.0),
        Example(lambda: nn.AlphaDropout(0.9), (2,), 0.01),
    ],
    nn.FeatureAlphaDropout: [
        Example(lambda: nn.FeatureAlphaDropout(0.1), (1, 3), 50.0),
        Example(lambda: nn.FeatureAlphaDropout(0.95), (1, 2), 0.01),
    ],
    # --- embeddings ----------------------------------------------------------------------
    nn.Embedding: [Example(lambda: nn.Embedding(5, 3), (4,), tokens=5, known={"lipschitz": None})],
    nn.EmbeddingBag: [
        bag("sum"),
        bag("mean"),
        # Columns of the table may have their largest entries in rows that are not looked up.
        bag("max", output=None),
    ],
    # --- shapes --------------------------------------------------------------------------
    nn.Flatten: [Example(nn.Flatten, (2, 3))],
    nn.Unflatten: [Example(lambda: nn.Unflatten(1, (2, 3)), (6,))],
    nn.PixelShuffle: [Example(lambda: nn.PixelShuffle(2), (4, 2, 2))],
    nn.PixelUnshuffle: [Example(lambda: nn.PixelUnshuffle(2), (1, 4, 4))],
    nn.ChannelShuffle: [Example(lambda: nn.ChannelShuffle(2), (4, 2, 2))],
    nn.ZeroPad1d: [Example(lambda: nn.ZeroPad1d(2), (1, 3))],
    nn.ZeroPad2d: [
        Example(lambda: nn.ZeroPad2d((1, 0, 2, -1)), (1, 3, 3), hints=lambda m: [torch.eye(9)[4]])
    ],
    nn.ZeroPad3d: [Example(lambda: nn.ZeroPad3d(1), (1, 2, 1, 2))],
    nn.ConstantPad1d: [Example(lambda: nn.ConstantPad1d((1, 2), 3.0), (2, 3))],
    nn.ConstantPad2d: [Example(lambda: nn.ConstantPad2d((1, -1, 0, 2), -2.0), (2, 3, 3))],
    nn.ConstantPad3d: [Example(lambda: nn.ConstantPad3d(1, 0.5), (1, 2, 1, 2))],
    nn.ReflectionPad1d: [
        Example(lambda: nn.ReflectionPad1d(2), (1, 4), hints=lambda m: [torch.eye(4)[1]])
    ],
    nn.ReflectionPad2d: [
        Example(
            lambda: nn.ReflectionPad2d((1, 1, 2, 0)), (1, 3, 3), hints=lambda m: list(torch.eye(9))
        )
    ],
    nn.ReflectionPad3d: [
        Example(lambda: nn.ReflectionPad3d(1), (1, 2, 2, 2), hints=lambda m: list(torch.eye(8)))
    ],
    nn.ReplicationPad1d: [Example(lambda: nn.ReplicationPad1d((3, 1)), (2, 3))],
    nn.ReplicationPad2d: [Example(lambda: nn.ReplicationPad2d(2), (1, 3, 3))],
    nn.ReplicationPad3d: [Example(lambda: nn.ReplicationPad3d(1), (1, 2, 2, 2))],
    nn.CircularPad1d: [
        Example(lambda: nn.CircularPad1d((2, 1)), (1, 3), hints=lambda m: list(torch.eye(3)))
    ],
    nn.CircularPad2d: [
        Example(lambda: nn.CircularPad2d(1), (1, 3, 2), hints=lambda m: list(torch.eye(6)))
    ],
    nn.CircularPad3d: [Example(lambda: nn.CircularPad3d(1), (1, 2, 2, 2))],
    nn.Upsample: [
        Example(lambda: nn.Upsample(scale_factor=2), (1, 3, 2)),
        Example(lambda: nn.Upsample(size=5), (1, 3), hints=lambda m: [torch.eye(3)[0]]),
        Example(
            lambda: nn.Upsample(scale_factor=(2, 1.5), mode="bilinear", align_corners=True),
            (1, 3, 4),
        ),
        Example(lambda: nn.Upsample(scale_factor=2.5, mode="linear"), (1, 4)),
    ],
    # --- noisewise's own -----------------------------------------------------------------
    nw.BoundedInput: [
        Example(
            lambda: nw.BoundedInput((4,), 0.7), (4,), 1.0, hints=lambda m: [torch.full((4,), 0.1)]
        ),
        # On a sphere the slope is that of a record whose length counts as zero.
        Example(lambda: nw.BoundedInput((4,), 0.7, "normalise"), (4,), 1.0, {"lipschitz": 0.0}),
        Example(
            lambda: nw.BoundedInput((3, 2, 1), 99.0, colour="yiq"), (3, 2, 1), 1.0, {"output": 0.0}
        ),
        Example(
            lambda: nw.BoundedInput((3, 2, 1), 0.5, colour="grayscale"),
            (3, 2, 1),
            9.0,
            {"lipschitz": 0.0},
        ),
        Example(
            lambda: nw.BoundedInput((3, 2, 1), 0.5, colour="hsv"),
            (3, 2, 1),
            9.0,
            {"lipschitz": None},
        ),
    ],
    nw.GroupSort: [Example(lambda: nw.GroupSort(3), (6, 2))],
    nw.MaxMin: [Example(nw.MaxMin, (4, 2))],
    nw.CReLU: [Example(nw.CReLU, (3, 2))],
    nw.AbsoluteValue: [Example(nw.AbsoluteValue, (4,))],
    nw.HouseholderActivation: [
        Example(
            lambda: nw.HouseholderActivation(2),
            (2, 3),
            1.0,
            hints=lambda m: [
                torch.tensor([[-1.0, 1, 1], [1, 1, -1]]),
                torch.tensor([[1.0, 0, 0], [-1.0, 0, 0]]),
                torch.tensor([[-1.0, 0, 0], [1.0, 0, 0]]),
            ],
        ),
    ],
    nw.TemperedSigmoid: [
        entrywise(lambda: nw.TemperedSigmoid(2.0, 3.0, 0.5), norm=0.05),
        entrywise(lambda: nw.TemperedSigmoid(2.0, 3.0, 1.5), norm=50.0),
        entrywise(nw.TemperedSigmoid, norm=0.05),
    ],
    nw.LipschitzGroupNorm: [
        Example(
            lambda: nw.LipschitzGroupNorm(2, 4, 0.5, affine=True),
            (4, 3),
            1.0,
            hints=spike_per_channel(4, 3),
        ),
        Example(
            lambda: nw.LipschitzGroupNorm(2, 4, 0.5, affine=True),
            (4, 3),
            5e3,
            {"lipschitz": 0.0},
            spike_per_channel(4, 3),
        ),
        Example(lambda: nw.LipschitzGroupNorm(1, 4), (4, 2), 1.0, hints=spike_per_channel(4, 2)),
    ],
    nw.LipschitzLayerNorm: [
        Example(
            lambda: nw.LipschitzLayerNorm(4, 2.0, affine=True),
            (4,),
            1.0,
            hints=lambda m: [torch.tensor([3.0, -1, -1, -1])],
        ),
        Example(lambda: nw.LipschitzLayerNorm(2, 0.5), (3, 2), 50.0, {"lipschitz": 0.0}),
    ],
    nw.LayerCentering: [
        Example(nw.LayerCentering, (4,)),
        Example(lambda: nw.LayerCentering((1,)), (2, 4)),
    ],
    nw.ScaledAvgPool2d: [
        Example(lambda: nw.ScaledAvgPool2d(2), (1, 4, 4)),
        Example(lambda: nw.ScaledAvgPool2d(3, 2, 1), (1, 5, 5)),
    ],
    nw.ScaledL2Pool2d: [
        Example(lambda: nw.ScaledL2Pool2d(2), (1, 4, 4)),
        Example(lambda: nw.ScaledL2Pool2d(3, 2, 1), (1, 5, 5)),
    ],
    nw.Scattering2d: [
        # The mirrored border is not all at work at once, so half of the bound is what there is.
        Example(
            lambda: nw.Scattering2d((6, 6), J=1, L=1, order=0),
            (1, 6, 6),
            1.0,
            {"output": 0.5, "lipschitz": 0.5},
        ),
        Example(lambda: nw.Scattering2d((6, 5), J=2, L=2), (1, 6, 5), 1.0),
        Example(lambda: nw.Scattering2d((5, 5), L=1, normalise=1, alpha=0.1), (1, 5, 5), 1.0),
    ],
    nw.ConvexMix: [
        Example(
            lambda: Negated(nw.ConvexMix(0.3, learn=True)),
            (3,),
            1.0,
            {"output": 0.0, "lipschitz": 0.0},
        ),
        Example(lambda: Same(nw.ConvexMix(0.3)), (3,)),
    ],
    nw.ClipGradient: [Example(lambda: nw.ClipGradient(0.3), (3,))],
    nw.AdaptiveClipGradient: [Example(lambda: nw.AdaptiveClipGradient(0.3), (1,))],
    nw.RenewGradient: [
        Example(lambda: nw.RenewGradient(0.3), (3,)),
        Example(lambda: nw.RenewGradient(4.0), (3,)),
    ],
    nw.StandardisedLinear: [
        Example(lambda: nw.StandardisedLinear(4, 3), (4,), twin=plain_linear),
    ],
    nw.OrthogonalConv2d: [
        convolution(
            lambda: nw.OrthogonalConv2d(1, 2, 3, padding_mode="circular"),
            (1, 4, 4),
            twin=plain_convolution,
        ),
    ],
    nw.StandardisedConv2d: [
        convolution(lambda: nw.StandardisedConv2d(1, 2, 2, 2), (1, 4, 4), twin=plain_convolution),
    ],
    nw.LipschitzResidual: [
        # Branch and shortcut cannot both be followed at once by one direction of every input.
        Example(lambda: nw.LipschitzResidual(nn.ReLU(), mix="sum"), (3,)),
        Example(
            lambda: nw.LipschitzResidual(nw.SpectralLinear(3, 3), learn=True, coefficient=0.2),
            (3,),
            known={"output": 0.6, "lipschitz": 0.6, "raw": 0.6},
        ),
    ],
    nw.SpectralConv1d: [
        convolution(lambda: nw.SpectralConv1d(2, 2, 3, padding=1, limit=2.0), (2, 8))
    ],
    nw.SpectralConv2d: [
        convolution(lambda: nw.SpectralConv2d(1, 2, 2, stride=2, limit=0.5), (1, 4, 4)),
        convolution(lambda: nw.SpectralConv2d(2, 1, 3, padding=1, groups=1), (2, 4, 4)),
    ],
    nw.SpectralConv3d: [convolution(lambda: nw.SpectralConv3d(1, 1, 2, stride=2), (1, 2, 2, 2))],
    nw.SpectralConvTranspose1d: [
        convolution(lambda: nw.SpectralConvTranspose1d(1, 1, 2, stride=2), (1, 4))
    ],
    nw.SpectralConvTranspose2d: [
        convolution(lambda: nw.SpectralConvTranspose2d(1, 1, 2, stride=2), (1, 2, 2))
    ],
    nw.SpectralConvTranspose3d: [
        convolution(lambda: nw.SpectralConvTranspose3d(1, 1, 2, stride=2), (1, 1, 2, 2))
    ],
    nw.SpectralLinear: [Example(lambda: nw.SpectralLinear(4, 3, limit=1.5), (4,))],
    nw.InducedLinear: [
        Example(lambda p=p: nw.InducedLinear(4, 3, limit=0.5, p=p), (4,)) for p in (1, 2, math.inf)
    ],
    nw.FrobeniusLinear: [Example(lambda: nw.FrobeniusLinear(4, 3, limit=0.5), (4,))],
}
