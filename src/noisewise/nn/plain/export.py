"""Export: a model of noisewise layers as an ordinary torch module.

A trained model is public and needs none of the machinery that trained it. `to_plain` walks a
module and returns a copy in which every noisewise layer is replaced by the torch layer that
computes the same (``SpectralConv2d`` by ``Conv2d``; reparametrised layers by the layer with
their effective weight), or, where torch has none, by a `torch.fx.GraphModule` of torch
functions. Both carry their own code, so the result can be pickled, compiled and loaded where
noisewise is not installed. Names of submodules and parameters stay what they were.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from noisewise.errors import UnsupportedModelError

__all__ = ["Export", "exportable", "register_plain", "to_plain", "traced"]

Exporter = Callable[[Any, "Export"], nn.Module]

_EXPORTERS: dict[type[nn.Module], Exporter] = {}


def to_plain(module: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
    """Return an ordinary torch module with the same outputs and its own copy of the weights.

    Layers of torch are copied. Modules of your own that hold other layers are copied with
    their layers replaced, and keep their class. Tied layers and weights stay tied, except
    that an effective weight is a new one. `ClipGradient` becomes the identity, and input
    checks that only raise errors are dropped.

    Parameters
    ----------
    module : Module
        Left as it is.
    dtype : torch.dtype, optional
        Type in which the model computes, by default that of its weights; some layers have
        constants of rounding that depend on it.

    Raises
    ------
    UnsupportedModelError
        If a layer is neither torch's nor noisewise's; see `register_plain`.

    Examples
    --------
    >>> from noisewise.nn import MaxMin, SpectralLinear
    >>> plain = to_plain(nn.Sequential(SpectralLinear(4, 4), MaxMin()))
    >>> type(plain[0])
    <class 'torch.nn.modules.linear.Linear'>
    """
    if dtype is None:
        floating = (p.dtype for p in module.parameters() if p.is_floating_point())
        dtype = next(floating, torch.get_default_dtype())
    return Export(dtype).module(module)


def register_plain(*module_types: type[nn.Module]) -> Callable[[Exporter], Exporter]:
    """Decorate a function ``(layer, export) -> torch module`` that exports these layer types.

    Examples
    --------
    >>> class Halve(nn.Module):
    ...     def forward(self, x):
    ...         return x / 2
    >>> @register_plain(Halve)
    ... def halve(layer, export):
    ...     return traced(lambda x: x / 2)
    """

    def remember(exporter: Exporter) -> Exporter:
        for module_type in module_types:
            _EXPORTERS[module_type] = exporter
        return exporter

    return remember


def exportable() -> frozenset[type[nn.Module]]:
    """Every layer type with an exporter of its own."""
    return frozenset(_EXPORTERS)


class Export:
    """One walk over a model: remembers what was exported, so that ties survive.

    Attributes
    ----------
    numbers : torch.finfo
        Of the type in which the model computes, for the constants of rounding.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.numbers = torch.finfo(dtype)
        self.path = ""
        self._done: dict[int, nn.Module] = {}
        self._copied: dict[int, Any] = {}

    def module(self, module: nn.Module) -> nn.Module:
        """Export a module and all that it holds."""
        if id(module) not in self._done:
            plain = self._export(module)
            plain.training = module.training
            self._done[id(module)] = plain
        return self._done[id(module)]

    def children(self, module: nn.Module) -> dict[str, nn.Module]:
        """Export the direct children by name."""
        here, exported = self.path, {}
        for name, child in module._modules.items():
            if child is not None:
                self.path = f"{here}.{name}" if here else name
                exported[name] = self.module(child)
        self.path = here
        return exported

    def tensor(self, tensor: Tensor | None) -> Any:
        """Copy a parameter or buffer, once, however many layers share it."""
        return copy.deepcopy(tensor, self._copied)

    def _export(self, module: nn.Module) -> nn.Module:
        kind = type(module)
        if kind in _EXPORTERS:
            self._refuse_changes(module)
            return _EXPORTERS[kind](module, self)
        ours = kind.__module__.split(".")[0] == "noisewise"
        if isinstance(module, nn.Sequential) and kind.forward is nn.Sequential.forward:
            plain = nn.Sequential()
            for name, child in self.children(module).items():
                plain.add_module(name, child)
            return plain
        leaf = next(module.children(), None) is None
        if ours or (leaf and not kind.__module__.startswith("torch.")):
            why = "belongs to noisewise" if ours else "is neither a layer of torch nor of noisewise"
            raise UnsupportedModelError(
                f'{kind.__name__} at "{self.path or "(model)"}" {why}, and has no plain form. '
                "Decorate a function that builds its torch equivalent with "
                f"@noisewise.nn.register_plain({kind.__name__})."
            )
        for name, child in self.children(module).items():
            self._copied[id(module._modules[name])] = child  # the copy takes these instead
        return copy.deepcopy(module, self._copied)

    def _refuse_changes(self, module: nn.Module) -> None:
        hooks = (module._forward_hooks, module._forward_pre_hooks)
        if "forward" in vars(module) or any(hooks) or nn.utils.parametrize.is_parametrized(module):
            raise UnsupportedModelError(
                f'{type(module).__name__} at "{self.path or "(model)"}" carries a hook, a '
                "parametrisation or a forward of its own, which the plain form would lose. Remove "
                "it before the export."
            )


class _Keep(fx.Tracer):
    """Trace one layer's function; modules that it calls stay modules, buffers attributes."""

    proxy_buffer_attributes = True

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


class _Holder(nn.Module):
    """What a traced function may use: submodules, parameters and buffers by name."""

    def __init__(self, function: Callable[..., Tensor], parts: dict[str, Any]) -> None:
        super().__init__()
        self.function, self.parts = function, tuple(parts)
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)


class _Unary(_Holder):
    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, **{name: getattr(self, name) for name in self.parts})


class _Binary(_Holder):
    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        parts = {name: getattr(self, name) for name in self.parts}
        return self.function(first, second, **parts)


def traced(function: Callable[..., Tensor], inputs: int = 1, **parts: Any) -> fx.GraphModule:
    """Turn a function of tensors into a module of torch functions only.

    `parts` are modules, parameters and buffers that the function takes by name; they become
    attributes of the module under these names.
    """
    holder = (_Unary if inputs == 1 else _Binary)(function, parts)
    graph = _Keep().trace(holder)
    # A pickle would refer to the tracer's class and to annotations: nothing of ours may stay.
    graph._tracer_cls = None
    for node in graph.nodes:
        node.type = None
    return fx.GraphModule({name: getattr(holder, name) for name in parts}, graph, "Plain")
