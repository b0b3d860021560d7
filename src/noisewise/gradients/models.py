"""Models as users bring them: how they are called, and what is refused by its type."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.lazy import LazyModuleMixin

from noisewise.errors import UnsupportedModelError
from noisewise.gradients.compiled import as_written

__all__ = ["Chance", "call_model", "check_modules", "undisturbed"]


def call_model(model: nn.Module, x: Any) -> Any:
    """A tensor is one input, a tuple or list several, a dict keyword arguments."""
    with as_written():
        if isinstance(x, dict):
            return model(**x)
        if isinstance(x, (tuple, list)):
            return model(*x)
        return model(x)


def check_modules(model: nn.Module) -> None:
    """Refuse what can be refused by its type."""
    for path, module in model.named_modules():
        kind, where = type(module).__name__, path or "(model)"
        if isinstance(module, _InstanceNorm):
            if not module.track_running_stats or not module.training:
                continue
            raise UnsupportedModelError(
                f'{kind} at "{where}" keeps running statistics, which are averages over other '
                "records. Set track_running_stats=False: noisewise.nn.fix(model) does this for you."
            )
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            channels = module.num_features
            raise UnsupportedModelError(
                f'{kind} at "{where}" mixes the records of a batch, so one record\'s gradient '
                "would depend on the others and no sensitivity exists. Replace it, for example "
                f"with GroupNorm({_groups(channels)}, {channels}): noisewise.nn.fix(model) does "
                "this for you. With frozen statistics (evaluation mode) it is accepted."
            )
        if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():  # type: ignore[misc]
            raise UnsupportedModelError(
                f'{kind} at "{where}" is not initialised yet. Run the model once on zeros first.'
            )
        wrapped = _wrapper(module)
        if wrapped:
            raise UnsupportedModelError(f'{kind} at "{where}" {wrapped}')


def _groups(channels: int) -> int:
    return next(g for g in (32, 16, 8, 4, 2, 1) if channels % g == 0)


def _wrapper(module: nn.Module) -> str:
    if isinstance(module, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
        return "is a compiled script, which cannot be put on a tape. Give the Python model."
    if isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        return (
            "averages gradients over workers before they are bounded. Give the model itself "
            "(wrapper.module); noisewise adds up the workers' bounded sums."
        )
    return ""


class Chance:
    """The state of the generators that programs share, to draw the same again.

    Those of torch, Python and numpy.
    """

    def __init__(self, device: torch.device) -> None:
        self._host = torch.random.get_rng_state()
        self._python, self._numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
        self._device = device if device.type == "cuda" else None
        self._state = None if self._device is None else torch.cuda.get_rng_state(self._device)

    def restore(self) -> None:
        """Draw from here on as before."""
        torch.random.set_rng_state(self._host)
        random.setstate(self._python)
        np.random.set_state(self._numpy)  # noqa: NPY002
        if self._state is not None:
            torch.cuda.set_rng_state(self._state, self._device)  # type: ignore[arg-type]

    @property
    def is_unseen(self) -> bool:
        """Whether Python or numpy have drawn since, which no tensor shows."""
        (_, keys, *rest), (_, now, *left) = self._numpy, np.random.get_state()  # noqa: NPY002
        return self._python != random.getstate() or rest != left or not np.array_equal(keys, now)


@contextlib.contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Leave random state, buffers and gradients as they are."""
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    gradients = {p: p.grad for p in model.parameters()}
    try:
        with torch.random.fork_rng(devices=list(devices)):
            yield
    finally:
        for parameter, gradient in gradients.items():
            parameter.grad = gradient
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                if name in buffers and buffer.shape == buffers[name].shape:
                    buffer.copy_(buffers[name])


def check_hooks(parameters: Mapping[str, nn.Parameter]) -> None:
    """Refuse hooks on gradients of parameters."""
    for name, parameter in parameters.items():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise UnsupportedModelError(
                f'the parameter "{name}" has a hook on its gradient. A gradient that is summed '
                "over records exists only with noise: change it in an optimizer hook instead, "
                "or remove the hook."
            )
