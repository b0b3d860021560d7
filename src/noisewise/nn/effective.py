"""Rules of layers that map a raw parameter to the weight they apply.

The bounds are those of the plain layer with the effective weight, and so is the gradient bound:
it is the gradient of the effective weight that is bounded and gets noise
(docs/proofs/layers.md#effective); the layer's ``pull_back`` then takes it to the raw parameter,
free of charge.
"""
# ruff: noqa: D102 (the methods are documented once, on LayerRule)

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from noisewise.bounds import Call, register
from noisewise.bounds.rules import ConvolutionRule, LinearRule
from noisewise.nn.orthogonal import OrthogonalConv2d
from noisewise.nn.standardised import StandardisedConv2d, StandardisedLinear

__all__ = ["OrthogonalConvolutionRule", "StandardisedConvolutionRule", "StandardisedLinearRule"]


@register(StandardisedLinear)
class StandardisedLinearRule(LinearRule):
    """A dense layer with the standardised weight."""

    effective = ("weight",)

    def matrix(self, call: Call[nn.Linear]) -> Tensor:
        assert isinstance(call.module, StandardisedLinear)
        return call.module.effective_weight().detach()


@register(StandardisedConv2d)
class StandardisedConvolutionRule(ConvolutionRule):
    """A convolution with the standardised kernel."""

    effective = ("weight",)

    def kernel(self, call: Call[_ConvNd]) -> Tensor:
        assert isinstance(call.module, StandardisedConv2d)
        return call.module.effective_weight().detach()


@register(OrthogonalConv2d)
class OrthogonalConvolutionRule(ConvolutionRule):
    """A convolution with an orthogonal kernel, whose norm its autocorrelation certifies."""

    effective = ("weight",)

    def kernel(self, call: Call[_ConvNd]) -> Tensor:
        assert isinstance(call.module, OrthogonalConv2d)
        return call.module.effective_weight().detach()

    def operator_norm(self, call: Call[_ConvNd]) -> float:
        module = call.module
        assert isinstance(module, OrthogonalConv2d)
        return call.norms.of(("orthogonal", id(module)), lambda: module.norm_bound().value)
