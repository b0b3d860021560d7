"""Models as users bring them: how they are called, and what is refused by its type."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.lazy import LazyModuleMixin

from noisewise.separation import RefusedError, defined_at

__all__ = ["call_model", "check_gradients", "check_hooks", "check_modules", "undisturbed"]


def call_model(model: nn.Module, x: Any) -> Any:
    """A tensor is one input, a tuple or list several, a dict keyword arguments."""
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
            raise RefusedError(
                f'{kind} at "{where}" keeps running statistics, which are averages over other '
                "records",
                "Set track_running_stats=False: noisewise.nn.fix(model) does this for you.",
            )
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            channels = module.num_features
            raise RefusedError(
                f'{kind} at "{where}" mixes the records of a batch, so one record\'s gradient '
                "would depend on the others and no sensitivity exists",
                f"Replace it, for example with GroupNorm({_groups(channels)}, {channels}): "
                "noisewise.nn.fix(model) does "
                "this for you. With frozen statistics (evaluation mode) it is accepted.",
            )
        if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():  # type: ignore[misc]
            raise RefusedError(
                f'{kind} at "{where}" is not initialised yet', "Run the model once on zeros first."
            )
        wrapped = _wrapper(module)
        if wrapped:
            raise RefusedError(f'{kind} at "{where}" {wrapped[0]}', wrapped[1])


def _groups(channels: int) -> int:
    return next(g for g in (32, 16, 8, 4, 2, 1) if channels % g == 0)


def _wrapper(module: nn.Module) -> tuple[str, str] | None:
    if isinstance(module, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
        return "is a compiled script, which cannot be put on a tape", "Give the Python model."
    if isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        return (
            "averages gradients over workers before they are bounded",
            "Give the model itself (wrapper.module); noisewise adds up the workers' bounded sums.",
        )
    return None


def check_hooks(parameters: Mapping[str, nn.Parameter]) -> None:
    """Refuse parameters whose gradient somebody wants to see or change."""
    for name, parameter in parameters.items():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise RefusedError(
                f'the parameter "{name}" has a hook on its gradient. A gradient that is summed '
                "over records exists only with noise",
                "Change it in an optimizer hook instead, or remove the hook.",
                defined_at(
                    *(parameter._backward_hooks or {}).values(),
                    *(parameter._post_accumulate_grad_hooks or {}).values(),
                ),
            )


def check_gradients(
    model: nn.Module,
    owned: Iterable[dict[str, nn.Parameter | None]],
    before: Container[int],
    line_of: Callable[[nn.Parameter], str],
) -> None:
    """Refuse gradients that bypassed the tape, in what every module owns; `before` had one."""
    for own in owned:
        for parameter in own.values():
            if parameter is None or parameter.grad is None or id(parameter) in before:
                continue
            parameter.grad = None
            names = (n for n, p in model.named_parameters() if p is parameter)
            raise RefusedError(
                f'the parameter "{next(names, "of a module that was removed")}" received a '
                "gradient outside the tape, so its records "
                "could not be bounded: it is used by code that runs outside the model's "
                "forward, or by an operation of its own kind",
                "Use it inside a torch module; "
                "instead of an assignment such as h[mask] = p write "
                "h = torch.where(mask.unsqueeze(-1), p, h).",
                line_of(parameter),
            )


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
