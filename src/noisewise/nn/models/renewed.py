"""Networks whose cotangents are renewed behind every layer with weights, and how to train them.

Ordinary weights without limit, projection or temperature; what bounds a record is a
`RenewGradient` behind every layer (docs/proofs/layers.md#input). A convolution is followed by
ReLU, average pooling and a normalisation that really normalises; average pooling hands the
same cotangent to all pixels of a window, which keeps the sum over positions near its bound.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import torch
from torch import nn

from noisewise import checks
from noisewise.nn.gradient import RenewGradient
from noisewise.nn.input import BoundedInput
from noisewise.nn.models.base import image_shape
from noisewise.nn.normalisation import LipschitzGroupNorm
from noisewise.nn.pooling import ScaledAvgPool2d
from noisewise.nn.residual import LipschitzResidual

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from noisewise.training import Plan

__all__ = ["Recipe", "RenewedNet", "renewed_cifar", "renewed_fashion", "renewed_mnist"]


_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}
_POOLINGS: dict[str, Callable[[int], nn.Module]] = {
    "average": ScaledAvgPool2d,
    "max": nn.MaxPool2d,
}


@dataclass(frozen=True)
class Recipe:
    """How a model of this kind learns best, in public numbers.

    Parameters
    ----------
    conv_clip, dense_clip : float
        Lengths of renewed cotangents behind convolutions and dense layers. Where `exact` norms
        bound the convolutions, `conv_clip` may be None: their cotangents stay as they are.
    knee : float or None
        Records with a shorter loss gradient count for less.
    exact : float or None
        Clip exact norms of the convolutions' gradients at this length (`Factored`), which
        sees how positions cancel; None: `InputScaled` there, too.
    batch_size, epochs : float
        The expected batch, and how often every record is drawn.
    rate, end, momentum, average : float
        Of stochastic gradient descent, whose rate falls from `rate` to `rate` times `end`;
        of the exponential average of weights.
    """

    conv_clip: float | None = 0.15
    dense_clip: float = 0.3
    knee: float | None = 0.6
    exact: float | None = 0.03
    batch_size: float = 1024.0
    epochs: float = 3.0
    rate: float = 1.0
    end: float = 0.2
    momentum: float = 0.9
    average: float = 0.95

    def __post_init__(self) -> None:
        for name in ("dense_clip", "batch_size", "epochs", "rate"):
            checks.positive(name, getattr(self, name))
        for name in ("conv_clip", "knee", "exact"):
            if getattr(self, name) is not None:
                checks.positive(name, getattr(self, name))
        if self.conv_clip is None and self.exact is None:
            raise ValueError("convolutions need conv_clip, exact, or both")
        for name in ("end", "momentum", "average"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in [0, 1], got {getattr(self, name)!r}")


class RenewedNet(nn.Sequential):
    """Convolutions with pooling, then dense layers; cotangents renewed behind each.

    Parameters
    ----------
    input_shape : (channels, height, width)
    classes : int
    widths : sequence of int
        Channels of the convolutions of 3 x 3, each followed by a pooling of 2 x 2.
    dense : sequence of int
        Widths of the hidden dense layers.
    residual : bool
        A residual block, x + f(x), behind every pooling but the last.
    activation : {"relu", "tanh"}
    pooling : {"average", "max"}
    recipe : Recipe, optional

    Examples
    --------
    >>> model = RenewedNet((1, 8, 8), 3, widths=(4,), dense=(6,))
    >>> plan = model.recommended_plan(epsilon=2.0, records=10_000)
    >>> sorted(plan.gradients.rules)
    ['', 'conv1']
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        classes: int,
        widths: Sequence[int] = (16, 32, 64, 128),
        dense: Sequence[int] = (256,),
        *,
        residual: bool = False,
        activation: Literal["relu", "tanh"] = "relu",
        pooling: Literal["average", "max"] = "average",
        recipe: Recipe | None = None,
    ) -> None:
        shape = image_shape(input_shape)
        chosen = Recipe() if recipe is None else recipe
        if min(shape[1:]) < 2 ** len(widths):
            raise ValueError(
                f"{len(widths)} poolings leave nothing of images of {shape[1]} x {shape[2]} pixels"
            )
        act = _ACTIVATIONS[checks.choice("activation", activation, _ACTIVATIONS)]
        pool = _POOLINGS[checks.choice("pooling", pooling, _POOLINGS)]
        size = math.prod(shape)
        layers: dict[str, nn.Module] = {
            "input": BoundedInput(shape, math.sqrt(size), mode="normalise")
        }
        width, height, breadth = shape
        for number, wanted in enumerate(widths, start=1):
            following = checks.integer("widths", wanted, minimum=1)
            layers[f"conv{number}"] = _convolution(width, following)
            layers.update((f"renew{number}", layer) for layer in _renewed(chosen.conv_clip))
            if activation == "relu":  # before the mean of a window, which would hide its sign
                layers[f"act{number}"] = act()
            layers[f"pool{number}"] = pool(2)
            layers[f"norm{number}"] = _norm(following)
            if activation == "tanh":
                layers[f"act{number}"] = act()
            width, height, breadth = following, height // 2, breadth // 2
            if residual and number < len(widths):
                layers[f"block{number}"] = LipschitzResidual(
                    nn.Sequential(_convolution(width, width), *_renewed(chosen.conv_clip), act()),
                    mix="sum",
                )
                layers[f"norm_block{number}"] = _norm(width)
        layers["flatten"] = nn.Flatten()
        width *= height * breadth
        for number, wanted in enumerate(dense, start=1):
            following = checks.integer("dense", wanted, minimum=1)
            layers[f"dense{number}"] = nn.Linear(width, following, bias=False)
            layers[f"renew_dense{number}"] = RenewGradient(chosen.dense_clip)
            layers[f"act_dense{number}"] = act()
            width = following
        layers["head"] = nn.Linear(width, classes, bias=False)
        layers["renew_head"] = RenewGradient(chosen.dense_clip, gamma=1e-12)
        super().__init__(OrderedDict(layers))
        self.input_shape, self.recipe = shape, chosen
        first = layers.get("conv1")
        if isinstance(first, nn.Conv2d):
            _start_with_cosines(first)

    def recommended_plan(self, *, epsilon: float, records: int, **changes: Any) -> Plan:
        """Return a plan that trains this model well.

        Parameters
        ----------
        epsilon : float
        records : int
            The number of records, declared public.
        **changes
            Further settings of `noisewise.Plan`, which win.
        """
        from noisewise.gradients import Factored, InputScaled, PerLayer
        from noisewise.training import Plan

        recipe = self.recipe
        rules: dict[str, Any] = {"": InputScaled(knee=recipe.knee)}
        if recipe.exact is not None:
            for name, module in self.named_modules():
                if isinstance(module, nn.Conv2d):
                    rules[name] = Factored(recipe.exact)
        settings: dict[str, Any] = {
            "gradients": PerLayer(rules),
            "epochs": None if "steps" in changes else recipe.epochs,
            "batch_size": min(recipe.batch_size, records),
        }
        return Plan(epsilon=epsilon, records=records, **{**settings, **changes})

    def recommended_training(self, plan: Plan) -> dict[str, Any]:
        """Return loss, optimizer, scheduler and averaging for `noisewise.fit`.

        Examples
        --------
        >>> model = RenewedNet((1, 8, 8), 3, widths=(4,), dense=(6,))
        >>> plan = model.recommended_plan(epsilon=2.0, records=10_000)
        >>> sorted(model.recommended_training(plan))
        ['averaging', 'loss', 'optimizer', 'scheduler']
        """
        from noisewise.nn.losses import CrossEntropy
        from noisewise.training import Ema

        recipe, steps = self.recipe, plan.resolve().steps

        def falling(step: int) -> float:
            return 1 - (1 - recipe.end) * min(step / steps, 1.0)

        return {
            "loss": CrossEntropy(),
            "optimizer": lambda learnt: torch.optim.SGD(
                learnt, recipe.rate, momentum=recipe.momentum
            ),
            "scheduler": lambda made: torch.optim.lr_scheduler.LambdaLR(made, falling),
            "averaging": Ema(recipe.average),
        }


def _renewed(clip: float | None) -> list[nn.Module]:
    return [] if clip is None else [RenewGradient(clip)]


def _convolution(inputs: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)


def _norm(width: int) -> LipschitzGroupNorm:
    return LipschitzGroupNorm(math.gcd(4, width), width, alpha=0.1)


def _start_with_cosines(first: nn.Conv2d) -> None:
    """Start the first filters as those of the cosine transform, smooth and public."""
    position = (torch.arange(3) + 0.5) * torch.pi / 3
    waves = (position * torch.arange(3)[:, None]).cos()
    filters = torch.stack([torch.outer(u, v) for u in waves for v in waves])
    filters = filters / filters.flatten(1).norm(dim=1)[:, None, None]
    with torch.no_grad():
        length = first.weight.flatten(1).norm(dim=1).mean()
        count = min(len(filters), len(first.weight))
        each = length / math.sqrt(first.in_channels)
        first.weight[:count] = filters[:count, None] * each


class RenewedOptions(TypedDict, total=False):
    """What may be asked of a ready network of this kind."""

    residual: bool
    activation: Literal["relu", "tanh"]
    pooling: Literal["average", "max"]
    recipe: Recipe | None


#: What had the best accuracy on held-back records of Fashion-MNIST (experiments/renewed.py):
#: exact norms of convolutions, whose cotangents stay as they are, and renewed ones of dense layers.
_BEST: RenewedOptions = {
    "activation": "tanh",
    "pooling": "max",
    "recipe": Recipe(
        conv_clip=None, exact=0.1, dense_clip=0.1, knee=None, rate=5.0, end=1.0, epochs=3.0
    ),
}


def renewed_mnist(**options: Unpack[RenewedOptions]) -> RenewedNet:
    """Return 16 and 32 filters and 64 hidden, for MNIST."""
    settings: RenewedOptions = {**_BEST, **options}
    return RenewedNet((1, 28, 28), 10, (16, 32), (64,), **settings)


def renewed_fashion(**options: Unpack[RenewedOptions]) -> RenewedNet:
    """Return the layout of `convnet_fashion` (16, 32, 64 and 128 filters, 256 hidden)."""
    settings: RenewedOptions = {**_BEST, **options}
    return RenewedNet((1, 28, 28), 10, (16, 32, 64, 128), (256,), **settings)


def renewed_cifar(**options: Unpack[RenewedOptions]) -> RenewedNet:
    """Return 32, 64 and 128 filters and 128 hidden, for CIFAR-10."""
    settings: RenewedOptions = {**_BEST, **options}
    return RenewedNet((3, 32, 32), 10, (32, 64, 128), (128,), **settings)
