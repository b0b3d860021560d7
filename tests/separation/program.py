"""What a program of this folder is: a model, a loss and a batch that mix records, or do not.

Programs were written without knowledge of the rules that judge them. ``brute_force.py`` shows by
values that those said to mix do, and that the innocent ones do not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

RECORDS, WIDTH, HIDDEN, CLASSES, STEPS, VOCABULARY = 6, 16, 8, 3, 5, 40

Case = tuple[nn.Module, Any, Any, Any]


@dataclass(frozen=True)
class Program:
    """One program.

    Attributes
    ----------
    name : str
        Unique.
    build : callable
        Gives model, loss, x, y, the same each time from one seed.
    what : str
        What mixes records; of an innocent program, what looks as if.
    by_values : bool
        Whether values can show that it mixes. Where a factor is exactly zero they cannot.
    disarmed : bool
        Mixes by itself, but an engine may run it so that it does not: with batches of one public
        size, or with every record's use of a parameter by itself. Then the engine's sums tell.
    hard : bool
        Innocent, but telling so needs more than following data: it may be refused.
    """

    name: str
    build: Callable[[], Case]
    what: str
    by_values: bool = True
    disarmed: bool = False
    hard: bool = False

    def case(self, seed: int = 0) -> Case:
        """Build it from a seed."""
        torch.manual_seed(seed)
        return self.build()


MIXING: dict[str, Program] = {}
INNOCENT: dict[str, Program] = {}


def mixing(name: str, what: str, **options: Any) -> Callable[[Any], Any]:
    """Add a program that mixes records."""

    def add(build: Any) -> Any:
        assert name not in MIXING, name
        MIXING[name] = Program(name, build, what, **options)
        return build

    return add


def innocent(name: str, what: str, **options: Any) -> Callable[[Any], Any]:
    """Add a program that keeps records apart."""

    def add(build: Any) -> Any:
        assert name not in INNOCENT, name
        INNOCENT[name] = Program(name, build, what, **options)
        return build

    return add


# ------------------------------------------------------------------ material
def cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """One loss per record."""
    return functional.cross_entropy(output, target, reduction="none")


def rows() -> torch.Tensor:
    """A table."""
    return torch.randn(RECORDS, WIDTH)


def sequences() -> torch.Tensor:
    """A few vectors per record."""
    return torch.randn(RECORDS, STEPS, WIDTH)


def words() -> torch.Tensor:
    """Token numbers."""
    return torch.randint(1, VOCABULARY, (RECORDS, STEPS))


def labels() -> torch.Tensor:
    """Of classes; all occur."""
    return torch.arange(RECORDS) % CLASSES


class Between(nn.Module):
    """Linear, what a program does to the hidden rows, linear."""

    def __init__(self, between: Callable[..., torch.Tensor] | None = None) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, CLASSES)
        self.between = between

    def forward(self, x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        hidden = self.a(x)
        if self.between is not None:
            hidden = self.between(self, hidden, *more)
        return self.b(hidden)


class OverTime(nn.Module):
    """The same over sequences (B, T, hidden), averaged over time at the end."""

    def __init__(self, between: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, CLASSES)
        self.between = between

    def forward(self, x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        return self.b(self.between(self, self.a(x), *more).mean(1))


def between(function: Callable[..., torch.Tensor], *more: torch.Tensor) -> Case:
    """A table through `Between`."""
    x = rows()
    return Between(function), cross_entropy, (x, *more) if more else x, labels()


def over_time(function: Callable[..., torch.Tensor], *more: torch.Tensor) -> Case:
    """Sequences through `OverTime`."""
    x = sequences()
    return OverTime(function), cross_entropy, (x, *more) if more else x, labels()


def with_loss(loss: Any) -> Case:
    """A plain model under a loss."""
    return Between(), loss, rows(), labels()
