"""What a model keeps of the records that went through it.

After a run, with everything let go, no memory that depends on a record may still be alive: what
is, the model or something around it has kept (a running average, an attribute, a list, a cache),
and it would be released with the model.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from noisewise.separation import Finding
from noisewise.separation.proof import KEPT
from noisewise.separation.shadow import Shadow, storage_key

__all__ = ["kept_by"]


def kept_by(model: nn.Module, shadow: Shadow) -> list[Finding]:
    """What keeps records' values, though whoever ran the model keeps none."""
    with torch._C.DisableTorchFunction():
        if not _alive(shadow):
            return []
        gc.collect()  # graphs and outputs may hang in cycles
        alive = _alive(shadow)
        if not alive:
            return []
        places = {key: shadow.cells[key].place for key in alive}
        named = list(dict.fromkeys(_named(model, places)))
        what = "something outside the model (a closure, a global list or a cache)"
        return named or [Finding(what, next(iter(places.values())), KEPT)]


def _alive(shadow: Shadow) -> set[int]:
    return {
        key
        for key, cell in shadow.cells.items()
        if cell.planes is not None
        and cell.alive
        and bool(cell.planes.any())
        and key not in shadow.given
    }


def _named(model: nn.Module, alive: dict[int, str]) -> Iterator[Finding]:
    for path, module in model.named_modules():
        where = path or "(model)"
        for name, value in (*module._parameters.items(), *module._buffers.items()):
            if value is not None and (key := storage_key(value)) in alive and key is not None:
                yield Finding(f'"{path}.{name}"' if path else f'"{name}"', alive[key], KEPT)
        for name, value in vars(module).items():
            if name in ("_parameters", "_buffers", "_modules"):
                continue
            for key in map(storage_key, _inside(value, 3)):
                if key in alive and key is not None:
                    what = f'the attribute {name} of {type(module).__name__} at "{where}"'
                    yield Finding(what, alive[key], KEPT)
                    break


def _inside(value: Any, depth: int) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, (list, tuple, set)):
        for item in value:
            yield from _inside(item, depth - 1)
    elif depth and isinstance(value, dict):
        for item in value.values():
            yield from _inside(item, depth - 1)
