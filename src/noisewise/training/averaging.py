"""Averages of the weights over steps: public post-processing of noisy weights, free of charge.

``Ema`` is the exponential moving average of De et al. (2022), whose decay begins small so that
early weights are soon forgotten; ``Polyak`` is the plain mean from a given part of training on.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from noisewise import checks

__all__ = ["Averager", "Averaging", "Ema", "Polyak", "averaging_of"]


class Averaging(Protocol):
    """How much of the average the weights of a step become."""

    def weight(self, step: int, steps: int, averaged: int) -> float | None:
        """Share of the new weights in (0, 1], or None to leave them out."""
        ...


@dataclass(frozen=True)
class Ema:
    """Exponential moving average.

    Parameters
    ----------
    decay : float
        In [0, 1): what remains of the average after a step.
    warmup : bool
        Use min(decay, (1 + t) / (10 + t)) at step t, as De et al. do.
    """

    decay: float = 0.99
    warmup: bool = True

    def __post_init__(self) -> None:
        checks.probability("decay", self.decay, zero=True, one=False)

    def weight(self, step: int, steps: int, averaged: int) -> float | None:
        """1 - decay, and 1 for the first weights."""
        if not averaged:
            return 1.0
        early = (1 + averaged) / (10 + averaged)
        return 1.0 - (min(self.decay, early) if self.warmup else self.decay)


@dataclass(frozen=True)
class Polyak:
    """Mean of the weights after every step, from the fraction `start` of training on."""

    start: float = 0.5

    def __post_init__(self) -> None:
        checks.probability("start", self.start, zero=True, one=False)

    def weight(self, step: int, steps: int, averaged: int) -> float | None:
        """1/(number of averaged weights)."""
        if step < self.start * steps:
            return None
        return 1.0 / (averaged + 1)


def averaging_of(value: Averaging | str | None) -> Averaging | None:
    """Return the averaging that is meant: None, "ema", "polyak" or an object."""
    if value is None or not isinstance(value, str):
        return value
    checks.choice("averaging", value, ("ema", "polyak"))
    return Ema() if value == "ema" else Polyak()


class Averager:
    """The running average of a model's floating-point parameters and buffers."""

    def __init__(self, model: nn.Module, averaging: Averaging) -> None:
        self.averaging = averaging
        self.count = 0
        self.weights: dict[str, Tensor] = {}
        self._model = model

    def update(self, step: int, steps: int) -> None:
        """Take in the weights after the step with that number."""
        share = self.averaging.weight(step, steps, self.count)
        if share is None:
            return
        with torch.no_grad():
            for name, tensor in self._model.state_dict().items():
                if not tensor.is_floating_point():
                    self.weights[name] = tensor.clone()
                elif name in self.weights:
                    self.weights[name].lerp_(tensor, share)
                else:
                    self.weights[name] = tensor.detach().clone()
        self.count += 1

    def model(self) -> nn.Module:
        """Return a copy of the model with the averaged weights (the last ones if there are none).

        Constrained layers are projected: a mean of weights within a limit is within it up to
        rounding, and the projection removes the rounding.
        """
        from noisewise.nn import project

        averaged = copy.deepcopy(self._model)
        if self.weights:
            averaged.load_state_dict(self.weights)
            project(averaged)
        return averaged
