"""Multi-layer perceptrons for tables.

Barczewski and Ramon (2024), Table 4, give two layers and 140 to 2,120 parameters but no widths.
With 20 features (German Credit), 6 hidden units and 2 classes there are exactly 140.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import nn

from noisewise import checks
from noisewise.nn.models.base import LipschitzModel
from noisewise.nn.models.options import ModelOptions, Options

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["MLP"]


class MLP(LipschitzModel):
    """Dense layers with activations between them.

    Parameters
    ----------
    features : int
        Columns of the table.
    classes : int
        Logits.
    hidden : sequence of int
        Widths of the hidden layers; none makes a linear model.
    **options
        See `Options`.

    Examples
    --------
    >>> model = MLP(20, 2, hidden=(6,))
    >>> sum(parameter.numel() for parameter in model.parameters())
    140
    """

    def __init__(
        self,
        features: int,
        classes: int,
        hidden: Sequence[int] = (64,),
        **options: Unpack[ModelOptions],
    ) -> None:
        chosen = Options.of(options)
        chosen.refuse_standardised("MLP")
        width = checks.integer("features", features, minimum=1)
        classes = checks.integer("classes", classes, minimum=1)
        shape = (width,)
        layers: dict[str, nn.Module] = {"input": chosen.input(shape)}
        for number, wanted in enumerate(hidden, start=1):
            following = checks.integer("hidden", wanted, minimum=1)
            layers[f"dense{number}"] = chosen.dense(width, following)
            layers.update((f"norm{number}", norm) for norm in chosen.norms(following))
            layers[f"act{number}"] = chosen.act(following)
            width = following
        layers["head"] = chosen.dense(width, classes)
        super().__init__(shape, layers, chosen)
