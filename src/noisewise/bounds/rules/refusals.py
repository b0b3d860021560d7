"""Layers that can have no rule, with the reason and the way out."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.modules.pooling import _MaxUnpoolNd
from torch.nn.modules.rnn import RNNBase

from noisewise.bounds.registry import refuse_type

__all__: list[str] = []

refuse_type(
    RNNBase,
    "multiplies by its recurrent weights at every step, so its Jacobian has no useful bound.",
    "Use a convolution over time (Conv1d), or estimate with noisewise.Clipped, which needs no "
    "bounds.",
)
for _attention in (
    nn.MultiheadAttention,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
    nn.TransformerEncoder,
    nn.TransformerDecoder,
    nn.Transformer,
):
    refuse_type(
        _attention,
        "uses dot-product attention, which is not Lipschitz.",
        "Estimate with noisewise.Clipped, which needs no bounds.",
    )
for _random_pool in (nn.FractionalMaxPool2d, nn.FractionalMaxPool3d):
    refuse_type(
        _random_pool,
        "draws its windows at random, so their overlap is not known.",
        "Use MaxPool2d or MaxPool3d.",
    )
refuse_type(
    _MaxUnpoolNd,
    "needs the indices of another layer and may write one place twice.",
    "Use ConvTranspose2d or Upsample.",
)
refuse_type(
    nn.modules.adaptive.AdaptiveLogSoftmaxWithLoss,
    "computes its loss by itself, over clusters of a batch.",
    "Use Linear and CrossEntropyLoss.",
)
# Registered late: every lazy layer is a subclass, and would be judged by its final type.
refuse_type(
    LazyModuleMixin,  # type: ignore[arg-type]
    "is not initialised yet, so its shapes are unknown.",
    "Run the model once on zeros before you certify it.",
)
