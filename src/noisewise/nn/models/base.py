"""What a ready model can do beyond `forward`: project, certify, export."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from noisewise import checks
from noisewise.bounds import Certificate, Improvements, certify, propagate, trace
from noisewise.nn.models.options import Options
from noisewise.nn.plain import to_plain
from noisewise.nn.projections import ProjectionReport, project

__all__ = ["LipschitzModel", "named", "size_after"]


class LipschitzModel(nn.Sequential):
    """A chain of named layers: ``input`` bounds the records, ``head`` gives the logits.

    The logits are raw. In a network of Lipschitz constant one they are at most as long as the
    records, so train with ``losses.CrossEntropy(temperature=t)``, which stretches them at no
    price, and predict with ``softmax(t * logits)``.

    Attributes
    ----------
    input_shape : tuple of int
        Shape of one record.
    options : Options
        The settings it was built with.
    """

    def __init__(
        self, input_shape: Sequence[int], layers: Mapping[str, nn.Module], options: Options
    ) -> None:
        super().__init__(OrderedDict(layers))
        self.input_shape = tuple(int(size) for size in input_shape)
        self.options = options

    def __getitem__(self, idx: Any) -> Any:
        # A part of a model is a chain of layers, not a model of the same family.
        if isinstance(idx, slice):
            return nn.Sequential(OrderedDict(list(self._modules.items())[idx]))
        return super().__getitem__(idx)

    def project_(self) -> ProjectionReport:
        """Bring every constrained layer back within its limit; call after each step."""
        return project(self)

    def certify(
        self,
        loss: Any,
        *,
        loss_clip: float | None = None,
        improvements: Improvements | None = None,
    ) -> Certificate:
        """Return `noisewise.certify` for this model; its input bound needs no promise."""
        return certify(
            self, self.input_shape, loss=loss, loss_clip=loss_clip, improvements=improvements
        )

    def lipschitz(self) -> float:
        """Certified bound on the model's Lipschitz constant, with the weights it has now.

        With respect to the record as ``input`` leaves it; that layer itself has constant one
        in mode ``clip`` without a change of colours.
        """
        channels = self.options.channels(self.input_shape)
        body = trace(self[1:], (channels, *self.input_shape[1:]))
        use = Improvements(polytope=False, centred=False, bounded_logits=False)
        norm = self.options.input_norm
        return propagate(body, norm, 1.0, improvements=use).input_cotangent

    def to_plain(self) -> nn.Module:
        """Return an ordinary torch module with the same outputs, free of noisewise."""
        return to_plain(self)


def named(groups: Iterable[tuple[str, Sequence[nn.Module]]]) -> dict[str, nn.Module]:
    """Give layers their names: the group's, with a number where a group has several."""
    layers: dict[str, nn.Module] = {}
    for name, modules in groups:
        for number, module in enumerate(modules, start=1):
            layers[name if len(modules) == 1 else f"{name}_{number}"] = module
    return layers


def size_after(size: int, window: int, stride: int, padding: int, where: str) -> int:
    """Return the side of an image after a window has passed over it, or say what does not fit."""
    if size + 2 * padding < window:
        raise ValueError(
            f"{where} has a window of {window} but its images have only {size} pixels a side. Use "
            "larger images, fewer poolings or smaller windows."
        )
    return (size + 2 * padding - window) // stride + 1


def image_shape(input_shape: Sequence[int]) -> tuple[int, int, int]:
    """Check the shape of an image, channels first."""
    shape = tuple(checks.integer("input_shape", size, minimum=1) for size in input_shape)
    if len(shape) != 3:
        raise ValueError(f"input_shape must be (channels, height, width), got {input_shape!r}")
    return shape
