"""Weight standardisation as a public map from the raw to the effective weight.

Each output channel of the raw weight is centred and divided by its deviation (Qiao et al.,
2019). The gradient with respect to the *raw* weight has no useful bound: the Jacobian of the
map grows as one over the deviation (115 at a deviation of 0.01). So sensitivity and noise
belong to the gradient of the *effective* weight, which is that of a plain layer; the noisy
gradient is then pulled back through the map, a function of public weights only, which is
free post-processing:

1. differentiate to the effective weight and bound that gradient as for a plain layer;
2. add noise;
3. ``weight.grad = layer.pull_back(noisy)``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from noisewise import checks
from noisewise.bounds.norms import NormBound, conv_norm, spectral_norm

__all__ = ["StandardisedConv2d", "StandardisedLinear", "standardise"]


def standardise(weight: Tensor, gain: float = 1.0, epsilon: float = 1e-6) -> Tensor:
    """Centre each output channel and give it length `gain`.

    ``gain (w - mean) / sqrt(|w - mean|^2 + epsilon)``, so the l2 norm of each channel stays
    below the gain, whatever the raw weight.
    """
    flat = weight.flatten(1)
    centred = flat - flat.mean(1, keepdim=True)
    length = (centred.square().sum(1, keepdim=True) + epsilon).sqrt()
    return (gain * centred / length).reshape(weight.shape)


class _Standardised(nn.Module):
    weight: Tensor
    gain: float
    epsilon: float

    def _configure(self, gain: float, epsilon: float) -> None:
        self.gain = checks.positive("gain", gain)
        self.epsilon = checks.positive("epsilon", epsilon)

    def effective_weight(self) -> Tensor:
        """Return the weight that the layer applies, differentiable in the raw weight."""
        return standardise(self.weight, self.gain, self.epsilon)

    def pull_back(self, gradient: Tensor) -> Tensor:
        """Turn a gradient with respect to the effective weight into one of the raw weight.

        The vector-Jacobian product of `effective_weight`. Linear in the gradient, so noise
        added before passes through with it.
        """
        if gradient.shape != self.weight.shape:
            raise ValueError(
                f"the gradient must have the shape {tuple(self.weight.shape)} of the effective "
                f"weight, got {tuple(gradient.shape)}"
            )
        with torch.enable_grad():
            raw = self.weight.detach().requires_grad_()
            effective = standardise(raw, self.gain, self.epsilon)
            (pulled,) = torch.autograd.grad(effective, raw, gradient.to(effective))
        return pulled


class StandardisedLinear(_Standardised, nn.Linear):
    """A linear layer that applies the standardised form of its weight.

    Parameters
    ----------
    in_features, out_features, bias
        As of `torch.nn.Linear`.
    gain : float
        Length of each row of the effective weight.
    epsilon : float
        Added to the squared length of a centred row.

    Examples
    --------
    >>> layer = StandardisedLinear(8, 4)
    >>> layer.effective_weight().square().sum(1).max().item() <= 1.0 + 1e-6
    True
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        gain: float = 1.0,
        epsilon: float = 1e-6,
    ) -> None:
        super().__init__(in_features, out_features, bias=bias)
        self._configure(gain, epsilon)

    def forward(self, input: Tensor) -> Tensor:
        """Apply the effective weight."""
        return nn.functional.linear(input, self.effective_weight(), self.bias)

    def norm_bound(self) -> NormBound:
        """Return a proven upper bound on the norm of the effective weight."""
        return spectral_norm(self.effective_weight().detach())


class StandardisedConv2d(_Standardised, nn.Conv2d):
    """A 2-d convolution that applies the standardised form of its kernel.

    Parameters as of `torch.nn.Conv2d`, and those of `StandardisedLinear`.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] | str = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        *,
        gain: float = 1.0,
        epsilon: float = 1e-6,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias
        )
        self._configure(gain, epsilon)

    def forward(self, input: Tensor) -> Tensor:
        """Apply the effective kernel."""
        output: Tensor = self._conv_forward(input, self.effective_weight(), self.bias)
        return output

    def norm_bound(self) -> NormBound:
        """Return a proven upper bound on the norm of the effective convolution."""
        return conv_norm(
            self.effective_weight().detach(),
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
        )
