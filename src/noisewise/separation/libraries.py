"""Well-known libraries that branch on records' values where they need not.

Hugging Face's models look at a whole batch's mask to see whether it masks anything, and take a
shortcut if not; while a graph is being captured they take the general way, whatever the values.
Watched and ordinary private runs take that way too, so that no record steers the others' kernels.
Functions that were compiled by TorchScript keep constants where nobody sees them; their Python
originals run instead. Distributions and one-hot vectors are made without a check of the values,
so that one bad value does not stop the run.
"""

from __future__ import annotations

import math
import sys
import threading
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.nn import functional

from noisewise.separation.shadow import broadcast_shapes

__all__ = ["GENERAL", "general_ways"]

#: Module and the predicate in it that asks whether values may be looked at.
_PREDICATES = (("transformers.utils.import_utils", "is_cuda_stream_capturing"),)


#: Beside the models, not on them: they are copied and saved by their owners.
_FOUND: WeakKeyDictionary[nn.Module, list[tuple[Any, str, Any]]] = WeakKeyDictionary()


#: What stands aside now, and for how many runs: threads train side by side, and none of them may
#: give a library its own way back while another one is in the middle.
_REPLACED: dict[tuple[Any, str], tuple[int, Any]] = {}
_LOCK = threading.Lock()


def _yes() -> bool:
    return True


def _one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    """One-hot vectors without a look at the smallest and the largest label."""
    if num_classes < 0:
        return functional.one_hot(tensor)  # as many classes as labels: nothing can be done
    classes = torch.arange(num_classes, device=tensor.device)
    return (tensor.unsqueeze(-1) == classes).to(torch.long)


def _gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """The same, of which a negative variance makes no number: such a record counts nothing."""
    if isinstance(var, Tensor) and var.shape == input.shape[:-1]:
        var = var.unsqueeze(-1)
    if (
        not isinstance(var, Tensor)
        or reduction != "none"
        or broadcast_shapes(var.shape, input.shape) != input.shape
    ):
        return functional.gaussian_nll_loss(input, target, var, full, eps, reduction)
    positive = var.clone()
    with torch.no_grad():
        positive.clamp_(min=eps)
    losses = 0.5 * (torch.log(positive) + (input - target) ** 2 / positive)
    if full:
        losses = losses + 0.5 * math.log(2 * math.pi)
    return torch.where(var < 0, torch.nan, losses)


#: Torch functions that look at values to check them, and the same without.
GENERAL: dict[Any, Any] = {
    functional.one_hot: _one_hot,
    functional.gaussian_nll_loss: _gaussian_nll_loss,
}


def _scripted(model: nn.Module) -> list[tuple[Any, str, Any]]:
    """Compiled functions in the modules that a model's classes come from, with their originals."""
    found = []
    for name in {type(module).__module__ for module in model.modules()}:
        namespace = sys.modules.get(name)
        if namespace is None or name.startswith("torch."):
            continue
        for key, value in vars(namespace).items():
            if isinstance(value, torch.jit.ScriptFunction):
                original = getattr(value, "_torchdynamo_inline", None)
                if original is not None:
                    found.append((namespace, key, original))
    return found


class general_ways:  # noqa: N801 - a context, entered at every step: no generator
    """Let known libraries take their general way, if they are loaded at all."""

    __slots__ = ("_wanted",)

    def __init__(self, model: nn.Module) -> None:
        scripted = _FOUND.get(model)
        if scripted is None:
            scripted = _FOUND[model] = _scripted(model)
        # Distributions check their parameters and arguments, value by value.
        self._wanted = [*scripted, (Distribution, "_validate_args", False)]
        for name, predicate in _PREDICATES:
            module = sys.modules.get(name)
            if module is not None and hasattr(module, predicate):
                self._wanted.append((module, predicate, _yes))

    def __enter__(self) -> None:
        with _LOCK:
            for owner, name, general in self._wanted:
                users, original = _REPLACED.get((owner, name)) or (0, getattr(owner, name))
                setattr(owner, name, general)
                _REPLACED[owner, name] = users + 1, original

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        with _LOCK:
            for owner, name, _ in self._wanted:
                users, original = _REPLACED.pop((owner, name))
                if users == 1:
                    setattr(owner, name, original)
                else:
                    _REPLACED[owner, name] = users - 1, original
