"""What is checked of a model before any record is used.

Layers that mix records are refused by name. Then the model runs on made-up batches of two
sizes, and on other records: every use of a parameter must see records along its first axis,
or a constant; the first records' outputs must not change with the number of records around
them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.lazy import LazyModuleMixin
from torch.utils import _pytree as pytree

from noisewise.errors import UnsupportedModelError
from noisewise.gradients.interception import Interception, NeedsFallbackError

__all__ = ["call_model", "check_modules", "probe"]

_SIZES = (3, 5)


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
            if not module.track_running_stats:
                continue
            raise UnsupportedModelError(
                f'{kind} at "{where}" keeps running statistics, which are averages over other '
                "records. Set track_running_stats=False: noisewise.nn.fix(model) does this for you."
            )
        if isinstance(module, _BatchNorm):
            channels = module.num_features
            raise UnsupportedModelError(
                f'{kind} at "{where}" mixes the records of a batch, so one record\'s gradient '
                "would depend on the others and no sensitivity exists. Replace it, for example "
                f"with GroupNorm({_groups(channels)}, {channels}): noisewise.nn.fix(model) does "
                "this for you."
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
    if type(module).__name__ == "OptimizedModule":
        return (
            "was compiled with torch.compile, which hides its operations from the tape. Give the "
            "model itself (compiled._orig_mod); the engine's kernels are not compiled."
        )
    if isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        return (
            "averages gradients over workers before they are bounded. Give the model itself "
            "(wrapper.module); noisewise adds up the workers' bounded sums."
        )
    return ""


def made_up(x: Any, rows: int, generator: torch.Generator) -> Any:
    """A batch of random records with the shapes and types of x."""

    def leaf(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        shape = (rows, *value.shape[1:])
        if value.is_floating_point() or value.is_complex():
            return torch.randn(shape, generator=generator).to(value.device, value.dtype)
        if value.dtype == torch.bool:
            return torch.zeros(shape, dtype=torch.bool, device=value.device)
        drawn = torch.randint(0, 2, shape, generator=generator)
        return drawn.to(value.device, value.dtype)

    return pytree.tree_map(leaf, x)


@contextlib.contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    """Random state, buffers and dropout as before; dropout is off inside."""
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    dropping = [m for m in model.modules() if isinstance(m, _DropoutNd) and m.training]
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    try:
        for module in dropping:
            module.training = False
        with torch.random.fork_rng(devices=list(devices)):
            yield
    finally:
        for module in dropping:
            module.training = True
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                if name in buffers:
                    buffer.copy_(buffers[name])


def probe(interception: Interception, x: Any, views: int, fallback: bool) -> None:
    """Learn which calls see records, and refuse a model that mixes them.

    Parameters
    ----------
    x : Tensor, tuple or dict
        Gives shapes and types; no value is read.
    fallback : bool
        Whether a module that is not understood may be differentiated record by record.
    """
    tape, model = interception.tape, interception.model
    with _undisturbed(model):
        while True:
            tape.calls.seen.clear()
            tape.calls.probing = True
            try:
                outputs = [_run(interception, x, size, views, 20) for size in _SIZES]
                _run(interception, x, _SIZES[1], views, 21)
                break
            except NeedsFallbackError as need:
                if not fallback or need.path in interception.fallbacks:
                    raise UnsupportedModelError(_not_understood(model, need)) from None
                interception.fallbacks[need.path] = need.function
            finally:
                tape.calls.probing = False
                interception.detach()
        tape.calls.check()
        _compare(model, *outputs)
    interception.warn()


def _run(interception: Interception, x: Any, size: int, views: int, seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    batch = made_up(x, max(_SIZES) * views, generator)
    batch = pytree.tree_map(lambda t: t[: size * views] if isinstance(t, Tensor) else t, batch)
    tape = interception.tape
    interception.attach()
    try:
        with torch.enable_grad(), tape.batch(size * views, views, None, (), {}):
            try:
                output = call_model(interception.model, batch)
                return pytree.tree_map(lambda t: t.detach() if isinstance(t, Tensor) else t, output)
            except (NeedsFallbackError, UnsupportedModelError):
                raise
            except Exception as error:
                raise UnsupportedModelError(
                    f"the model fails on a made-up batch of {size * views} records with the shapes "
                    f"of this one: {type(error).__name__}: {str(error).strip().splitlines()[0]}. "
                    "It must accept any number of records."
                ) from error
    finally:
        interception.detach()


def _compare(model: nn.Module, small: Any, large: Any) -> None:
    pairs = zip(pytree.tree_leaves(small), pytree.tree_leaves(large), strict=True)
    for a, b in pairs:
        if not isinstance(a, Tensor) or not isinstance(b, Tensor) or not a.is_floating_point():
            continue
        same_tail = a.dim() > 0 and a.shape[1:] == b.shape[1:] and b.shape[0] > a.shape[0]
        if not same_tail:
            raise UnsupportedModelError(
                f"{type(model).__name__} returns shape {tuple(a.shape)} for {_SIZES[0]} records "
                f"and {tuple(b.shape)} for {_SIZES[1]}: the first axis of its output must count "
                "records."
            )
        scale = b.abs().nan_to_num(0.0, 0.0, 0.0).max() if b.numel() else 0.0
        if not torch.allclose(
            a, b[: a.shape[0]], rtol=1e-3, atol=1e-4 * float(scale) + 1e-12, equal_nan=True
        ):
            raise UnsupportedModelError(
                f"{type(model).__name__} gives a record another output when other records are in "
                "the batch, so it mixes records and no sensitivity exists. Look for statistics "
                "over the batch axis, attention over the batch, or a softmax or normalisation over "
                "axis 0. noisewise.nn.fix(model) replaces batch normalisation."
            )


def _not_understood(model: nn.Module, need: NeedsFallbackError) -> str:
    module = model.get_submodule(need.path)
    return (
        f'{type(module).__name__} at "{need.path or "(model)"}" uses a parameter in '
        f"{need.function}(), which is not taken apart. Use noisewise.Clipped, which can "
        "differentiate it record by record, or write it with layers of torch.nn."
    )
