"""One vocabulary: `relation=`, `seed=`, `ledger=` wherever something is released."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

__all__ = ["one_vocabulary"]

P = ParamSpec("P")
R = TypeVar("R")


def one_vocabulary(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function that takes `relation` and `seed` answer to the words of version 0.1.

    `rng=` is another word for `seed=`. `neighbors=` is refused: what it left unsaid meant another
    relation then than it does now.
    """

    @functools.wraps(function)
    def translated(*args: P.args, **kwargs: P.kwargs) -> R:
        if "neighbors" in kwargs:
            raise TypeError(
                f"{function.__qualname__} has no argument neighbors any more: write "
                "relation='replace-one' (for neighbors='replace', the default of version 0.1: the "
                "number of records is public) or relation='add-remove', which is the default now"
            )
        if "rng" in kwargs:
            if kwargs.get("seed") is not None:
                raise TypeError("rng and seed are two words for one thing: give one of them")
            kwargs["seed"] = kwargs.pop("rng")
        return function(*args, **kwargs)

    return translated
