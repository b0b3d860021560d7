"""One vocabulary: `relation=`, `seed=`, `ledger=` wherever something is released."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from noisewise.privacy import require_same_order

__all__ = ["one_vocabulary"]

P = ParamSpec("P")
R = TypeVar("R")


def one_vocabulary(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function that takes `relation` and `seed` answer to the words of version 0.1.

    `rng=` is another word for `seed=`. `neighbors=` is refused: what it left unsaid meant another
    relation then than it does now. Columns of pandas whose rows stand in another order than
    their units are refused.
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
        if kwargs.get("units") is not None:
            for rows in args[:2]:
                require_same_order(rows, kwargs["units"])
        return function(*args, **kwargs)

    return translated
