"""The registry of counting strategies: how each is made, and what people are told of it.

A new strategy is one file of this folder that ends with :func:`register`. `plan` finds it here, the
words of ``mechanism=`` and the table of ``docs/curves-measured.md`` are made from it, and
``tests/common/test_common_counting.py`` asks for its proof and its case by brute force.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from noisewise.ecdf.budget import Budget
from noisewise.ecdf.mechanisms.protocol import Change, Mechanism, Setting

__all__ = ["COUNTING", "Counting", "Objective", "Wanted", "register"]

Objective = Literal["mean", "max"]


class Wanted(NamedTuple):
    """What a plan asks for besides setting and budget; see `plan`."""

    objective: Objective = "mean"
    change: Change | None = None
    base: int = 2


Make = Callable[[Setting, Budget, Wanted], Mechanism]


def _nothing(setting: Setting, budget: Budget, wanted: Wanted) -> Iterable[Mechanism]:
    return ()


@dataclass(frozen=True)
class Counting:
    """One counting strategy.

    Parameters
    ----------
    name : str
        The word for it.
    told : str
        What it does and when it is best, in one sentence.
    proof : str
        Where its sensitivity is proven: page and anchor of the documentation.
    make : callable
        The strategy with the noise that a budget allows; a ValueError says what it cannot do.
    candidates : callable
        What "auto" may take of it in a setting; nothing by default.
    has_base : bool
        Whether the number of children of a node can be asked for.
    """

    name: str
    told: str
    proof: str
    make: Make
    candidates: Callable[[Setting, Budget, Wanted], Iterable[Mechanism]] = _nothing
    has_base: bool = False


#: Every counting strategy by its word.
COUNTING: dict[str, Counting] = {}


def register(strategy: Counting) -> None:
    """Enter a strategy into the registry."""
    if strategy.name in COUNTING or strategy.name == "auto":
        raise ValueError(f"there is a counting strategy called {strategy.name!r}")
    COUNTING[strategy.name] = strategy
