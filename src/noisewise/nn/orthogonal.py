"""Convolutions that are orthogonal by construction and mix neighbouring pixels.

A kernel of one tap that is orthogonal keeps norms but sees one pixel. The explicit block
construction of Li et al. (2019) mixes space as well: if P is the
orthogonal projector on some channels, ``P + z (I - P)``, which moves the other channels by
one pixel, is orthogonal at every frequency, and so are products of such factors with an
isometry of the channels. Projectors and isometry come from the raw weight by Cayley's
transform, which is smooth everywhere.

The raw weight is mapped to the kernel that is applied, so noise belongs to the gradient of that
kernel and is pulled back, as for standardised weights (docs/proofs/layers.md#effective).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from noisewise.bounds.norms import NormBound, autocorrelation_bound

__all__ = ["OrthogonalConv2d", "orthogonal_kernel"]


def _isometry(matrix: Tensor) -> Tensor:
    """Orthonormal columns from any tall matrix (U above W): Cayley's transform of U - U' + W'W."""
    columns = matrix.shape[1]
    upper, lower = matrix[:columns], matrix[columns:]
    identity = torch.eye(columns, dtype=matrix.dtype, device=matrix.device)
    skew = upper - upper.T + lower.T @ lower
    inverse = torch.linalg.solve(identity + skew, identity)
    return torch.cat([(identity - skew) @ inverse, -2.0 * lower @ inverse])


def _move(kernel: Tensor, projector: Tensor, axis: int) -> Tensor:
    """Multiply by P + z (I - P): one tap more along an axis."""
    kept = torch.einsum("ij,jabc->iabc", projector, kernel)
    pad = [0, 0, 0, 1] if axis == 2 else [0, 1, 0, 0]
    back = [0, 0, 1, 0] if axis == 2 else [1, 0, 0, 0]
    padded = nn.functional.pad
    return padded(kept, pad) + padded(kernel - kept, back)


def orthogonal_kernel(weight: Tensor) -> Tensor:
    """Return the orthogonal kernel of a raw one, of the same shape (outputs, inputs, k, k).

    With circular padding and stride one it keeps every norm if there are at least as many outputs
    as inputs, and its transpose does otherwise. Computed in float64.
    """
    raw = weight.double()
    turned = raw.shape[0] < raw.shape[1]
    raw = raw.transpose(0, 1) if turned else raw
    outputs, inputs, side, _ = raw.shape
    slices = raw.flatten(2)
    kernel = _isometry(slices[:, :, -1])[:, :, None, None]
    rank = min(inputs, max(1, outputs // 2))
    for number in range(2 * (side - 1)):
        basis = _isometry(slices[:, :rank, number])
        kernel = _move(kernel, basis @ basis.T, 2 + number % 2)
    if turned:
        kernel = kernel.transpose(0, 1).flip(2, 3)
    return kernel.to(weight.dtype)


class OrthogonalConv2d(nn.Conv2d):
    """A 2-d convolution with an orthogonal kernel that mixes space: norm one by construction.

    With ``padding_mode="circular"`` all singular values are one; with zeros beyond the border none
    is larger. Its norm is certified from the autocorrelation of the kernel, which
    is tight (1 + 1e-5 or so) and cheap.

    Parameters
    ----------
    in_channels, out_channels, kernel_size, padding, bias, padding_mode
        As of `torch.nn.Conv2d`; the kernel is square, the default padding keeps the size of
        images for odd kernels.

    Examples
    --------
    >>> layer = OrthogonalConv2d(3, 8, 3, padding_mode="circular", bias=False)
    >>> x = torch.randn(2, 3, 6, 6)
    >>> bool(torch.isclose(layer(x).norm(), x.norm(), rtol=1e-4))
    True
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        padding: int | None = None,
        bias: bool = True,
        *,
        padding_mode: Literal["zeros", "circular"] = "zeros",
    ) -> None:
        if not isinstance(kernel_size, int):
            raise TypeError(f"kernel_size must be one number, got {kernel_size!r}")
        if padding_mode not in ("zeros", "circular"):
            raise ValueError(
                f"padding_mode must be 'zeros' or 'circular', got {padding_mode!r}: other ways "
                "repeat pixels, so that norms grow"
            )
        border = (kernel_size - 1) // 2 if padding is None else padding
        if padding_mode == "circular" and 2 * border != kernel_size - 1:
            raise ValueError(
                f"circular padding keeps norms if images keep their size, which a kernel of "
                f"{kernel_size} with padding {border} does not: use an odd kernel and its default"
            )
        super().__init__(
            in_channels, out_channels, kernel_size, 1, border, bias=bias, padding_mode=padding_mode
        )

    def reset_parameters(self) -> None:
        """Draw a raw weight; the bias starts at zero."""
        with torch.no_grad():
            self.weight.normal_(0.0, min(self.weight.shape[:2]) ** -0.5)
            if self.bias is not None:
                self.bias.zero_()

    def effective_weight(self) -> Tensor:
        """Return the kernel that the layer applies, differentiable in the raw weight."""
        return orthogonal_kernel(self.weight)

    def pull_back(self, gradient: Tensor) -> Tensor:
        """Turn a gradient with respect to the effective kernel into one of the raw weight."""
        if gradient.shape != self.weight.shape:
            raise ValueError(
                f"the gradient must have the shape {tuple(self.weight.shape)} of the effective "
                f"weight, got {tuple(gradient.shape)}"
            )
        with torch.enable_grad():
            raw = self.weight.detach().requires_grad_()
            effective = orthogonal_kernel(raw)
            (pulled,) = torch.autograd.grad(effective, raw, gradient.to(effective))
        return pulled

    def forward(self, input: Tensor) -> Tensor:
        """Apply the effective kernel."""
        output: Tensor = self._conv_forward(input, self.effective_weight(), self.bias)
        return output

    def norm_bound(self) -> NormBound:
        """Return a proven upper bound on the norm, for images of any size."""
        return autocorrelation_bound(self.effective_weight().detach())
