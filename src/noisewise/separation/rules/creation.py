"""New memory that takes only a shape from its operands, and copies that overwrite all of it."""

from __future__ import annotations

import torch
from torch import Tensor

from noisewise.separation.call import Call, Planes
from noisewise.separation.registry import rule

__all__ = ["created", "overwritten"]


@rule(
    "empty zeros ones full arange scalar_tensor eye linspace logspace rand randn randint randperm",
    "empty_like zeros_like ones_like full_like rand_like randn_like randint_like new_empty",
    "new_full new_zeros new_ones empty_strided new_empty_strided zero_ normal_ uniform_ random_",
    "exponential_ _efficientzerotensor tril_indices triu_indices lift_fresh empty_permuted",
    "hann_window hamming_window _dropout_mask geometric_ cauchy_ log_normal_ bartlett_window",
    "blackman_window kaiser_window range fft_fftfreq fft_rfftfreq",
)
def created(call: Call) -> list[Planes]:
    """Of the operand only the shape is taken; what was drawn is fresh for every entry.

    Other operands (the ends of ``linspace``, a largest number) give values to all entries.
    """
    call.skip("self")
    others = [t for t in call.tensors if t is not call["self"]]
    flat = [found.reshape(2, -1).amax(1) for t in others if (found := call.found(t)) is not None]
    if not flat:
        return [None] * len(call.results)
    total = torch.stack(flat).amax(0)
    return [total.reshape(2, *(1,) * result.dim()) for result in call.results]


@rule("bernoulli_")
def drawn(call: Call) -> list[Planes]:
    """In place: what was there is gone; the probabilities stay."""
    call.skip("self")
    probability = call["p"]
    shape = call.results[0].shape
    return [call.joined([probability], shape) if isinstance(probability, Tensor) else None]


@rule("copy_ fill_ copy fill")
def overwritten(call: Call) -> list[Planes]:
    """What was there is gone."""
    call.skip("self")
    value = call["src"] if "src" in call.arguments else call["value"]
    shape = call.results[0].shape
    return [call.joined([value], shape) if isinstance(value, Tensor) else None]
