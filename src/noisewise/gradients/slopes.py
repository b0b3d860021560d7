"""Derivatives that a model or a loss takes by itself, as penalties and physics need them.

``torch.autograd.grad(output.sum(), x, create_graph=True)`` walks back through layers on the tape.
Nothing arrives there on that walk, since no gradient of a parameter is asked for. But each layer's
way back uses its parameters once more, on cotangents instead of inputs. That is an operation like
any other, so it is put on the tape as one: in the batch's own backward pass both uses arrive, and
are joined before they are bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from noisewise.gradients.contractions.base import Target
from noisewise.gradients.tape import Tape
from noisewise.separation import Path, RefusedError, place

__all__ = ["is_differentiated", "slopes", "standing_for"]


def slopes(
    tape: Tape, path: Path | None, outputs: Any, inputs: Any, *args: Any, **kwargs: Any
) -> Any:
    """``torch.autograd.grad``, within a model or a loss."""
    if any(tape.target(t) is not None for t in pytree.tree_leaves(inputs)):
        raise RefusedError(
            f"the gradient by a parameter is computed inside the model or the loss, at {place()}: "
            "it adds up all records of the batch",
            "Differentiate by inputs only: torch.autograd.grad(output.sum(), x, create_graph=True) "
            "is followed.",
        )
    again = kwargs.get("create_graph", args[2] if len(args) > 2 else False)
    if again and tape.once:
        raise RefusedError(
            f"a derivative that is differentiated again is computed inside the model or the loss, "
            f"at {place()}, and {tape.once} can be differentiated only once",
            "Write the recurrent layer with torch.nn.LSTMCell, GRUCell or RNNCell and a loop.",
        )
    if again and path is not None and path.recomputes:
        raise RefusedError(
            f"a derivative that is differentiated again is computed inside the model or the loss, "
            f"at {place()}, and what recomputes its forward pass (torch.utils.checkpoint) can be "
            "differentiated only once",
            "Leave checkpointing out of what is differentiated.",
        )
    were = tape.slopes, tape.batched
    tape.slopes += 1
    tape.batched = bool(kwargs.get("is_grads_batched", args[5] if len(args) > 5 else False))
    try:
        return torch.autograd.grad(outputs, inputs, *args, **kwargs)
    finally:
        tape.slopes, tape.batched = were


def is_differentiated(tape: Tape) -> bool:
    """Whether what a layer's way back computes will be differentiated, too."""
    return tape.slopes > 0 and torch.is_grad_enabled()


def standing_for(tape: Tape, weight: Tensor, targets: Sequence[Target | None]) -> Tensor:
    """A weight's values, so that autograd visits what uses them, and goes no further."""
    leaf = weight.detach()
    if any(target is not None for target in targets):
        leaf.requires_grad_()
        tape.anchors.append(leaf)
    return leaf
