"""Our own engine as a training function, one per estimator, for the bug finder and the auditor."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from noisewise.gradients import Clipped, Factored, InputScaled, Propagated, bounded_sum
from noisewise.nn import BoundedInput
from noisewise.training import Plan, make_private

# A plan needs noise; this much is below the last bit of every weight.
SILENT = 1e-9


def network() -> nn.Module:
    layers = [nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)]
    return nn.Sequential(*layers)


def bounded_network() -> nn.Module:
    return nn.Sequential(BoundedInput((8,), 2.0, mode="clip"), *network())


def layers_of(model: nn.Module) -> int:
    return sum(isinstance(layer, nn.Linear) for layer in model.modules())


def clipped(rule: str) -> Callable[..., object]:
    return lambda clip, model, data: Clipped(clip, rule=rule)


def per_layer(clip: float, model: nn.Module, data: object) -> object:
    return Clipped(clip / math.sqrt(layers_of(model)), per="layer")


def factored(clip: float, model: nn.Module, data: object) -> object:
    return Factored(clip / math.sqrt(layers_of(model)))


def lipschitz(kind: type) -> Callable[..., object]:
    """The estimators without a clipping norm: the loss is clipped so that all bounds make C."""

    def estimator(clip: float, model: nn.Module, data: tuple[Tensor, Tensor]) -> object:
        small = 1e-3
        groups = bounded_sum(
            model, nn.CrossEntropyLoss(), data[0][:1], data[1][:1], kind(loss_clip=small)
        ).groups
        whole = math.sqrt(sum(group.sensitivity**2 for group in groups))
        return kind(loss_clip=clip * small / whole)

    return estimator


ESTIMATORS: dict[str, tuple[Callable[[], nn.Module], Callable[..., object]]] = {
    "Clipped": (network, clipped("clip")),
    "Clipped, automatic": (network, clipped("automatic")),
    "Clipped, global": (network, clipped("global")),
    "Clipped, per layer": (network, per_layer),
    "Factored": (network, factored),
    "InputScaled": (bounded_network, lipschitz(InputScaled)),
    "Propagated": (bounded_network, lipschitz(Propagated)),
}


def engine_training(name: str, noise: str = "optimal") -> Callable[..., dict[str, Tensor]]:
    """Return a training function that uses `make_private` and its loader."""
    build, choose = ESTIMATORS[name]

    def train(*, clip, noise_multiplier, batch_size, seed, data, init, steps, lr):
        model = build()
        model.load_state_dict(init)
        plan = Plan(
            gradients=choose(clip, model, data),
            noise_multiplier=max(noise_multiplier, SILENT),
            delta=1e-5,
            steps=steps,
            batch_size=batch_size,
            sample_rate=batch_size / len(data[0]),
            noise=noise,
            seed=seed,
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        with make_private(model, optimizer, nn.CrossEntropyLoss(), data, plan) as run:
            for x, y in run.loader:
                run.step(x, y)
        return model.state_dict()

    return train
