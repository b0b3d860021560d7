"""How many records a piece has: fixed before training, from public numbers alone.

Batches of Poisson sampling vary in size, pieces do not, so the last piece of a batch is filled up
with rows that are computed for nothing. Small pieces waste few rows but pay the price of a call
more often. The best size is the one with the least expected work; it depends on the expected size
of a batch and on what one record costs the model beside the price of calling it.
"""

from __future__ import annotations

import contextlib
import math
import sys
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from noisewise.gradients.compiled import as_written
from noisewise.gradients.models import call_model, undisturbed
from noisewise.separation import MOST_RECORDS

__all__ = ["PIECE", "Cost", "cost_of_a_call", "piece_size", "saves_memory"]

#: Records of a piece where nothing is known of the batches to come. A constant, since a number
#: taken from a batch would tell model, loss and kernels how many records it has.
PIECE = 32

# What a processor does in the time that Python needs for one operation, how many of them a private
# step has for each that the model calls, and what it costs to add up the sums of another piece, by
# parameter: measured, and they only steer a choice.
_WORK = 4e5
_CALLS_OF_A_STEP = 40.0
_ADDING = 100.0
_QUANTILES = (-2.33, -1.64, -1.28, -0.84, -0.52, -0.25, 0.0, 0.25, 0.52, 0.84, 1.28, 1.64, 2.33)


def piece_size(expected: float, price: float, halved: bool) -> int:
    """Return the number of records of a piece.

    Parameters
    ----------
    expected : float
        Expected number of records of a batch.
    price : float
        Of calling the model, in records.
    halved : bool
        Whether at most half of a batch is to be processed at a time, for its memory.
    """
    spread = math.sqrt(max(expected, 1.0))
    sizes = [max(1.0, expected + z * spread) for z in _QUANTILES]
    whole = expected + 2.0 * spread + 1
    best, least = 1, math.inf
    for pieces in range(2 if halved and expected >= 64 else 1, 65):
        size = _whole_lines(max(1, math.ceil(whole / pieces)))
        work = sum(math.ceil(n / size) for n in sizes) * (size + price)
        if size <= MOST_RECORDS and work < least:
            best, least = size, work
    return best


def _whole_lines(size: int) -> int:
    """Round up where it costs little: kernels compute what is left of a line in another way."""
    line = 16 if size > 64 else 8 if size > 16 else 1
    return -(-size // line) * line


class Cost(NamedTuple):
    """What a model costs, from one call on a made-up record.

    Attributes
    ----------
    price : float
        Of calling it and of adding up what comes of it, in records.
    activations : int
        Numbers that a call writes for one record.
    """

    price: float
    activations: int


def cost_of_a_call(model: nn.Module, x: Any) -> Cost:
    """What calling a model costs beside one record, from one call on a made-up record."""
    with undisturbed(model), torch.no_grad(), contextlib.suppress(Exception):
        one = pytree.tree_map(
            lambda v: v.new_zeros((1, *v.shape[1:])) if isinstance(v, Tensor) else v, x
        )
        counter = FlopCounterMode(display=False)
        calls = _Calls()  # type: ignore[no-untyped-call]
        with counter, calls, as_written():
            call_model(model, one)
        entries = sum(t.numel() for t in pytree.tree_leaves(one) if isinstance(t, Tensor))
        work = 3.0 * counter.get_total_flops() + entries
        adding = _ADDING * sum(p.numel() for p in model.parameters() if p.requires_grad)
        price = (_CALLS_OF_A_STEP * calls.count * _WORK + adding) / work
        return Cost(price, calls.written)
    return Cost(8.0, sys.maxsize)


def saves_memory(activations: int, parameters: int, expected: float) -> bool:
    """Whether half a batch at a time needs less memory than a whole one.

    It saves half of the activations, and as much again of factors that wait for other layers; but
    sums of several pieces are kept in float64.
    """
    return activations * expected > 2 * parameters


class _Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    count = written = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.count += 1
        result = func(*args, **(kwargs or {}))
        for part in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(part, Tensor) and part._base is None:
                self.written += part.numel()
        return result
