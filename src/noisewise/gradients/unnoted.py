"""The library's own backward code, which is trusted and therefore not part of a run's path."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["unnoted"]


def unnoted(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator of an autograd function's backward: torch functions in it are not followed."""

    @functools.wraps(backward)
    def run(ctx: Any, *cotangents: Any) -> Any:
        # Before: where a forward pass is recomputed, this runs the user's code.
        saved = ctx.saved_tensors
        with torch._C.DisableTorchFunction():
            return backward(_Context(ctx, saved), *cotangents)

    return run


class _Context:
    """What an autograd function keeps, with its tensors at hand: they can be unpacked but once."""

    def __init__(self, ctx: Any, saved_tensors: tuple[Any, ...]) -> None:
        self._ctx, self.saved_tensors = ctx, saved_tensors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)
