"""Our own engine as a training function, one per estimator, for the bug finder and the auditor."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from noisewise.gradients import (
    BatchMaxScaled,
    Clipped,
    Factored,
    InputScaled,
    Propagated,
    bounded_sum,
)
from noisewise.nn import BoundedInput
from noisewise.training import Plan, make_private

Data = tuple[Tensor, Tensor]
Choice = Callable[[float, nn.Module, Data], Any]

# A plan needs noise; this much is below the last bit of every weight.
SILENT = 1e-9


def network() -> nn.Module:
    layers = [nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)]
    return nn.Sequential(*layers)


def bounded_network() -> nn.Module:
    return nn.Sequential(BoundedInput((8,), 2.0, mode="clip"), *network())


def layers_of(model: nn.Module) -> int:
    return sum(isinstance(layer, nn.Linear) for layer in model.modules())


def clipped(rule: str) -> Choice:
    return lambda clip, model, data: Clipped(clip, rule=rule)


def per_layer(clip: float, model: nn.Module, data: Data) -> Any:
    return Clipped(clip / math.sqrt(layers_of(model)), per="layer")


def factored(clip: float, model: nn.Module, data: Data) -> Any:
    return Factored(clip / math.sqrt(layers_of(model)))


def lipschitz(kind: type) -> Choice:
    """The estimators without a clipping norm; `unit` makes their sensitivity C."""
    return lambda clip, model, data: kind()


def loss_clipped(kind: type) -> Choice:
    """The same with a clip of the loss, chosen so that all bounds together make C.

    Sensitivities are proportional to a loss clip as long as it is far below the Lipschitz
    constant of the loss, where records no longer reach it.
    """

    def estimator(clip: float, model: nn.Module, data: Data) -> Any:
        small = 1e-3
        return kind(loss_clip=clip * small / sensitivity(model, kind(loss_clip=small), data))

    return estimator


def sensitivity(model: nn.Module, estimator: Any, data: Data) -> float:
    """What one record can do to the whole sum, all layers together, at these weights."""
    groups = bounded_sum(model, nn.CrossEntropyLoss(), data[0][:1], data[1][:1], estimator).groups
    return math.sqrt(sum(group.sensitivity**2 for group in groups))


ESTIMATORS: dict[str, tuple[Callable[[], nn.Module], Choice]] = {
    "Clipped": (network, clipped("clip")),
    "Clipped, automatic": (network, clipped("automatic")),
    "Clipped, global": (network, clipped("global")),
    "Clipped, per layer": (network, per_layer),
    "Factored": (network, factored),
    "InputScaled": (bounded_network, lipschitz(InputScaled)),
    "Propagated": (bounded_network, lipschitz(Propagated)),
}

# With a clip of the loss; the second has no setting where its sensitivity is any given C.
LOSS_CLIPPED: dict[str, tuple[Callable[[], nn.Module], Choice]] = {
    "Propagated, loss clipped": (bounded_network, loss_clipped(Propagated)),
    "InputScaled, loss clipped": (bounded_network, loss_clipped(InputScaled)),
}

# The rule of Barczewski (2025) as our engine runs it, for study only: it states no epsilon.
STUDIED: dict[str, tuple[Callable[[], nn.Module], Choice]] = {
    "BatchMaxScaled": (bounded_network, lambda clip, model, data: BatchMaxScaled(study=True)),
}


def engine_training(name: str, noise: str = "optimal") -> Callable[..., dict[str, Tensor]]:
    """Return a training function that uses `make_private` and its loader."""
    build, choose = {**ESTIMATORS, **LOSS_CLIPPED, **STUDIED}[name]

    def train(
        *,
        clip: float,
        noise_multiplier: float,
        batch_size: int,
        seed: int,
        data: Data,
        init: dict[str, Tensor],
        steps: int,
        lr: float,
    ) -> dict[str, Tensor]:
        model = build()
        model.load_state_dict(init)
        estimator = choose(clip, model, data)
        plan = Plan(
            gradients=estimator,
            noise_multiplier=max(noise_multiplier, SILENT),
            delta=1e-5,
            steps=steps,
            batch_size=batch_size,
            sample_rate=batch_size / len(data[0]),
            noise=noise,
            seed=seed,
        )
        unit = 1.0
        if name in ("InputScaled", "Propagated", "BatchMaxScaled"):
            # A change of units: what is released is the sum times C over its sensitivity, a
            # public factor, so that one record contributes at most C and noise is sigma C.
            unit = clip / sensitivity(model, estimator, data)
        optimizer = torch.optim.SGD(model.parameters(), lr=lr * unit)
        with make_private(model, optimizer, nn.CrossEntropyLoss(), data, plan) as run:
            for x, y in run.loader:
                run.step(x, y)
        return model.state_dict()

    return train
