"""MLP-Mixer (Tolstikhin et al., 2021) in the Lipschitz form of Béthune et al. (2024).

Patches are embedded by one convolution; each layer mixes positions, then channels, by a small
dense network without biases, joined to its input as a convex mix. The paper names the
architecture only; 93,184 parameters (Barczewski 2025, section 5.3.2) are those of the default here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from noisewise import checks
from noisewise.nn.models.base import LipschitzModel, image_shape, named
from noisewise.nn.models.options import ModelOptions, Options
from noisewise.nn.plain import Export, register_plain, traced
from noisewise.nn.residual import LipschitzResidual

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Mixer", "Transpose"]


class Transpose(nn.Module):
    """Swap the two axes of a record: channels and positions."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (batch, b, a) for (batch, a, b)."""
        return x.transpose(1, 2)


@register_plain(Transpose)
def _transpose(layer: Transpose, export: Export) -> nn.Module:
    return traced(lambda x: x.transpose(1, 2))


class Mixer(LipschitzModel):
    """Alternate dense networks over positions and over channels of image patches.

    Parameters
    ----------
    input_shape : (channels, height, width)
    classes : int
        Logits.
    patch : int
        Pixels a side of a patch; must divide the image.
    width : int
        Channels of a patch.
    token_width, channel_width : int
        Hidden widths of the two networks.
    depth : int
        Number of mixer layers.
    residual, coefficient, learn
        As of `ResNet`.
    **options
        See `Options`; without biases by default.

    Examples
    --------
    >>> sum(parameter.numel() for parameter in Mixer((3, 32, 32), 10).parameters())
    93184
    """

    def __init__(
        self,
        input_shape: Sequence[int] = (3, 32, 32),
        classes: int = 10,
        patch: int = 4,
        width: int = 64,
        token_width: int = 64,
        channel_width: int = 128,
        depth: int = 2,
        residual: str = "convex",
        coefficient: float = 0.5,
        learn: bool = False,
        **options: Unpack[ModelOptions],
    ) -> None:
        chosen, shape = Options.of(options, bias=False), image_shape(input_shape)
        chosen.refuse_standardised("Mixer")
        classes = checks.integer("classes", classes, minimum=1)
        patch = checks.integer("patch", patch, minimum=1)
        width = checks.integer("width", width, minimum=1)
        if shape[1] % patch or shape[2] % patch:
            raise ValueError(f"patch={patch} must divide the image, got {shape}")
        tokens = (shape[1] // patch) * (shape[2] // patch)
        token_width = checks.integer("token_width", token_width, minimum=1)
        channel_width = checks.integer("channel_width", channel_width, minimum=1)
        join: dict[str, Any] = {"mix": residual, "coefficient": coefficient, "learn": learn}
        groups: list[tuple[str, list[nn.Module]]] = [("input", [chosen.input(shape)])]
        groups.append(("embed", [chosen.conv(chosen.channels(shape), width, patch, patch)]))
        groups.append(("patches", [nn.Flatten(2)]))
        for number in range(1, checks.integer("depth", depth, minimum=1) + 1):
            mixing = _network(chosen, tokens, token_width)
            over_tokens = nn.Sequential(Transpose(), *mixing, Transpose())
            over_channels = nn.Sequential(*_network(chosen, width, channel_width))
            groups.append((f"tokens{number}", [LipschitzResidual(over_tokens, **join)]))
            groups.append((f"channels{number}", [LipschitzResidual(over_channels, **join)]))
        groups.append(("flatten", [nn.Flatten()]))
        groups.append(("head", [chosen.dense(width * tokens, classes)]))
        super().__init__(shape, named(groups), chosen)


def _network(options: Options, width: int, hidden: int) -> list[nn.Module]:
    return [
        options.positionwise(width, hidden),
        *options.norms(hidden),
        options.act(hidden),
        options.positionwise(hidden, width),
    ]
