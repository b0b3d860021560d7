"""Models and functions that went through torch.compile run as they were written.

A compiled graph hides which operation meets which parameter, so what runs while records are on
their way is the Python that was compiled. Compiled code elsewhere (evaluation, say) stays compiled.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

__all__ = ["CompiledWarning", "as_written", "uncompiled"]


class CompiledWarning(UserWarning):
    """A compiled model is trained as it was written, without its compiled code."""


def uncompiled(model: nn.Module) -> nn.Module:
    """The model that was compiled; any other as it is."""
    found = model
    while type(found).__name__ == "OptimizedModule":
        found = found._orig_mod  # type: ignore[assignment]
    if found is not model or any(_is_compiled(module) for module in found.modules()):
        warnings.warn(
            "the model went through torch.compile. Private steps run it as it was written: a "
            "compiled graph would hide its operations from the proof that records stay apart. "
            "Results are the same; evaluation by the compiled model is as fast as ever, and its "
            "weights are those that are trained.",
            CompiledWarning,
            stacklevel=3,
        )
    return found


def _is_compiled(module: nn.Module) -> bool:
    in_place = getattr(module, "_compiled_call_impl", None) is not None
    return in_place or type(module).__name__ == "OptimizedModule"


def as_written() -> contextlib.AbstractContextManager[Any]:
    """Let compiled functions run the Python that they were made of."""
    if "torch._dynamo" not in sys.modules:  # nothing was compiled
        return _NOTHING
    take = _stances()
    if take is None:
        stance: contextlib.AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
        return stance
    return _Eager(*take)


_NOTHING: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()


@functools.cache
def _stances() -> tuple[Callable[[Any], Any], Any] | None:
    """What sets the compiler's stance, and the one that is wanted; None where torch has no such."""
    try:
        from torch._dynamo.eval_frame import DynamoStance, _set_stance
    except ImportError:
        return None
    return _set_stance, DynamoStance("force_eager")


class _Eager:
    """What `torch.compiler.set_stance` does, entered at every step, in a third of its time."""

    __slots__ = ("_before", "_take", "_wanted")

    def __init__(self, take: Callable[[Any], Any], wanted: Any) -> None:
        self._take, self._wanted = take, wanted

    def __enter__(self) -> None:
        self._before = self._take(self._wanted)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._take(self._before)
