"""The library's own autograd functions: trusted, and so not part of a run's path."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from noisewise.separation import RefusedError, place

__all__ = ["OwnFunction", "unnoted"]


class OwnFunction(torch.autograd.Function):
    """An operation on the tape."""

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Dual numbers meet a parameter: their second half would miss the tape."""
        raise RefusedError(
            f"a derivative by dual numbers, at {place()}, goes through a layer that learns",
            "Call torch.autograd.grad(output.sum(), x, create_graph=True) instead, or "
            "torch.autograd.functional.jvp with create_graph=True.",
        )


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
