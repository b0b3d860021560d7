"""Models and functions that went through torch.compile run as they were written.

A compiled graph hides which operation meets which parameter, so what runs while records are on
their way is the Python that was compiled. Compiled code elsewhere (evaluation, say) stays compiled.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
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
        return contextlib.nullcontext()
    stance: contextlib.AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance
