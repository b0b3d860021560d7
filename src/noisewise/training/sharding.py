"""Parameters that FSDP2 or tensor parallelism keep in parts: telling, gathering, cutting."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from noisewise.errors import UnsupportedModelError

__all__ = [
    "ParallelWeights",
    "are_parallel",
    "is_sharded",
    "local_part",
    "sharded_modules",
    "whole_tensor",
]

#: Where the hooks are written that turn inputs and outputs of parallel layers into parts.
_HOOKS_OF = "torch.distributed.tensor."


def is_sharded(tensor: Any) -> bool:
    """Whether a tensor is a DTensor, of which this process holds a part."""
    return isinstance(tensor, Tensor) and hasattr(tensor, "full_tensor")


def whole_tensor(tensor: Tensor) -> Tensor:
    """The whole tensor; all processes must ask for it."""
    if not is_sharded(tensor):
        return tensor
    whole: Tensor = tensor.full_tensor()  # type: ignore[attr-defined]
    return whole


def local_part(whole: Tensor, like: Any) -> Tensor:
    """Cut this process's part of a whole tensor, placed as another one is."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh, placements = like.device_mesh, like.placements
    shape, offset = compute_local_shape_and_global_offset(like.shape, mesh, placements)
    window = tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))
    part = whole[window].contiguous().to(like.device)
    placed: Tensor = DTensor.from_local(
        part, mesh, placements, run_check=False, shape=like.shape, stride=like.stride()
    )
    return placed


def sharded_modules(model: nn.Module) -> list[Any]:
    """Modules on which ``fully_shard`` was called, outermost first."""
    if not torch.distributed.is_available():
        return []
    try:
        from torch.distributed.fsdp import FSDPModule
    except ImportError:  # torch before 2.6
        return []
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def are_parallel(model: nn.Module) -> bool:
    """Whether weights are in parts by tensor parallelism alone, without ``fully_shard``."""
    return not sharded_modules(model) and any(map(is_sharded, model.parameters()))


class ParallelWeights:
    """The weights of a model whose layers tensor parallelism has divided among processes.

    For a step they are put together, and the hooks that divide inputs and outputs rest: each
    process then runs the model as it was before ``parallelize_module``, on records of its own, so
    that a record's gradient is whole where it is measured. Between steps only parts are held.

    Parameters
    ----------
    model : Module
    workers : int
        Processes of the team, which must be those that hold the parts.
    """

    def __init__(self, model: nn.Module, workers: int) -> None:
        self._model = model
        self._wholes: dict[int, tuple[Tensor, nn.Parameter]] = {}
        self._places: list[tuple[nn.Module, str, int]] = []
        for path, module in model.named_modules():
            for name, parameter in module._parameters.items():
                if parameter is None or not is_sharded(parameter):
                    continue
                _check_placed(f"{path}.{name}".lstrip("."), parameter, workers)
                self._places.append((module, name, id(parameter)))
                if id(parameter) not in self._wholes:
                    whole = torch.empty(
                        parameter.shape, dtype=parameter.dtype, device=parameter.device
                    )
                    held = nn.Parameter(whole, parameter.requires_grad)
                    self._wholes[id(parameter)] = parameter, held
        self._let_go()

    @contextlib.contextmanager
    def gathered(self) -> Iterator[None]:
        """Put the weights together for a while; all processes must do so."""
        for parts, whole in self._wholes.values():
            storage = whole.untyped_storage()
            storage.resize_(whole.numel() * whole.element_size())
            with torch.no_grad():
                whole.copy_(whole_tensor(parts.detach()))
        for module, name, key in self._places:
            module._parameters[name] = self._wholes[key][1]
        try:
            with _resting_hooks(self._model):
                yield
        finally:
            for module, name, key in self._places:
                module._parameters[name] = self._wholes[key][0]  # type: ignore[assignment]
            self._let_go()

    def _let_go(self) -> None:
        for _, whole in self._wholes.values():
            whole.untyped_storage().resize_(0)


def _check_placed(name: str, parameter: Any, workers: int) -> None:
    """Every process of the team holds a part or a copy, and nobody else does."""
    placements = parameter.placements
    if any(placed.is_partial() for placed in placements):
        raise UnsupportedModelError(
            f'the parameter "{name}" is a sum of what several processes hold (Partial), and only '
            "that sum could be trained. Place it by Shard or Replicate."
        )
    if parameter.device_mesh.size() != workers:
        raise UnsupportedModelError(
            f'the parameter "{name}" is spread over {parameter.device_mesh.size()} processes, and '
            f"{workers} train: others would hold weights that nobody compares. Give the layers a "
            "mesh of all processes, of one dimension or several."
        )


@contextlib.contextmanager
def _resting_hooks(model: nn.Module) -> Iterator[None]:
    """Take the hooks of parallel layers off for a while."""
    held: list[tuple[dict[int, Any], dict[int, Any]]] = []
    for module in model.modules():
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            ours = [key for key, hook in hooks.items() if _divides(hook)]
            if ours:
                held.append((hooks, dict(hooks)))
                for key in ours:
                    del hooks[key]
    try:
        yield
    finally:
        for hooks, before in held:
            after = {**before, **hooks}  # in their old order
            hooks.clear()
            hooks.update(after)


def _divides(hook: Any) -> bool:
    return (getattr(hook, "__module__", None) or "").startswith(_HOOKS_OF)
