"""A check, step by step, of what is only vouched for: records apart without a proof.

The losses of half a piece are compared with those of the whole, with the same parameters and
without chance. This is evidence, not a proof: mixing that shows only for other values, or only in
the backward pass, is not seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from noisewise.gradients.calm import Calm
from noisewise.gradients.compiled import as_written
from noisewise.gradients.models import call_model
from noisewise.separation import RefusedError

__all__ = ["compare_halves"]


def compare_halves(
    model: nn.Module, losses_of: Callable[[Any, Any], Tensor], x: Any, y: Any
) -> None:
    """Raise if a record's loss changes with the records around it."""
    rows = next(t.shape[0] for t in pytree.tree_leaves(x) if isinstance(t, Tensor))
    if rows < 2:
        return
    half = rows // 2
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    try:
        with torch.no_grad(), as_written(), Calm():  # type: ignore[no-untyped-call]
            whole = losses_of(call_model(model, x), y)
            parts = [
                losses_of(call_model(model, _cut(x, a, b)), _cut(y, a, b))
                for a, b in ((0, half), (half, rows))
            ]
    except Exception:
        return  # records on which the program fails are the step's own affair
    finally:
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])
    apart = torch.cat(parts)
    finite = torch.isfinite(whole) & torch.isfinite(apart)
    gap = torch.where(finite, (whole - apart).abs(), torch.zeros_like(whole))
    if bool((gap > 1e-3 * (1 + whole.abs().nan_to_num(0.0, 0.0, 0.0))).any()):
        raise RefusedError(
            "the plan says assume_apart=True, but the loss of some record changes with the records "
            "around it, so the assumption is false and no step is taken. Nothing was charged",
            "noisewise.prove_apart(model, loss, x, y) names the operation.",
        )


def _cut(values: Any, start: int, stop: int) -> Any:
    return pytree.tree_map(lambda t: t[start:stop] if isinstance(t, Tensor) else t, values)
