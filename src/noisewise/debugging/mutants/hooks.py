"""How a mistake is planted: a small function that changes what one stage of training hands on.

``@mutation("name", stage)`` registers it. A stage is one of `STAGES`; the function gets what the
stage made and the `Situation` of the step, and returns what is used instead. One mistake may
change several stages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from noisewise.debugging.mutants.bounding import Gradients
from noisewise.debugging.trainer import Data

__all__ = ["HOOKS", "PHYSICAL", "STAGES", "Situation", "mutated", "mutation"]

#: Size of the pieces into which a batch is cut, unless told otherwise.
PHYSICAL = 4

#: Stage: what its function changes.
STAGES = {
    "data": "the records, before training starts: (x, y)",
    "batch": "numbers of the records of this step; None leaves the step out",
    "inputs": "the records of this batch: (x, y)",
    "records": "gradients of the records, stacked",
    "clip": "the clipping norm of this step",
    "bounded": "a function that bounds and adds up the gradients",
    "total": "the sum of bounded gradients",
    "noise": "the noise of this step, per tensor",
    "divisor": "what sum and noise are divided by",
    "update": "the noisy gradient that the optimizer gets; None leaves the step out",
    "lr": "the learning rate of this step",
    "after": "the weights after this step, changed in place; True ends training",
    "result": "the weights that are returned",
}


@dataclass
class Situation:
    """What a mistake may look at: the settings, this step, and a memory of its own."""

    model: nn.Module
    loss_fn: Callable[[Tensor, Tensor], Tensor]
    data: Data
    clip: float
    sigma: float
    batch_size: int
    lr: float
    seed: int
    steps: int
    weights: Gradients
    chance: torch.Generator
    draw: torch.Generator
    step: int = 0
    batch: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    records: Gradients = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Number of records."""
        return len(self.data[0])

    @property
    def epoch_steps(self) -> int:
        """Steps of one epoch."""
        return max(1, -(-self.total // self.batch_size))

    def loss(self, batch: Tensor | None = None) -> float:
        """Return the mean loss of the records, or of a batch of them."""
        x, y = self.data if batch is None else (self.data[0][batch], self.data[1][batch])
        if len(x) == 0:
            return 0.0
        with torch.no_grad():
            return float(self.loss_fn(self.model(x), y).mean())

    def norms(self) -> Tensor:
        """Return the norms of the gradients of this batch's records."""
        parts = [r.flatten(1).norm(dim=1) for r in self.records.values()]
        norms: Tensor = torch.stack(parts).norm(dim=0)
        return norms


Hook: TypeAlias = Callable[[Any, Situation], Any]
HOOKS: dict[str, dict[str, Hook]] = {}


def mutation(name: str, stage: str) -> Callable[[Hook], Hook]:
    """Register a function as the mistake `name` at a stage."""
    if stage not in STAGES:
        raise ValueError(f"there is no stage {stage}; stages are {', '.join(STAGES)}")

    def register(hook: Hook) -> Hook:
        if stage in HOOKS.setdefault(name, {}):
            raise ValueError(f"{name} changes {stage} twice")
        HOOKS[name][stage] = hook
        return hook

    return register


def mutated(bug: str | None, stage: str, value: Any, situation: Situation) -> Any:
    """Return what a stage hands on, changed if the bug is at this stage."""
    hook = HOOKS.get(bug or "", {}).get(stage)
    return value if hook is None else hook(value, situation)
