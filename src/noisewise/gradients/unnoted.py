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
        with torch._C.DisableTorchFunction():
            return backward(ctx, *cotangents)

    return run
