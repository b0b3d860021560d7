"""A model's forward as torch.fx reads it, and what its nodes return on zeros.

Modules about which something is known are leaves; all others are looked into. Two runs with
different batch sizes show what keeps records apart and what does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from noisewise.bounds.layer import Shape
from noisewise.bounds.registry import is_known, rule_for
from noisewise.errors import UnsupportedModelError

__all__ = ["BATCHES", "Recorder", "Recording", "record"]

BATCHES = (2, 3)
_TOKENS = (nn.Embedding, nn.EmbeddingBag)
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


class _Root(nn.Module):
    """Lets a model that is itself a leaf be traced like any other."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Any:
        return self.model(x)


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if is_known(m):
            return True
        return m.__module__.startswith("torch.nn") and not isinstance(m, _CONTAINERS)


class Recorder(fx.Interpreter):
    """Runs the graph and keeps what every node received and returned."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.received: dict[fx.Node, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self.returned: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Run one node, and remember it."""
        self.received[n] = self.fetch_args_kwargs_from_env(n)
        self.returned[n] = super().run_node(n)
        return self.returned[n]


@dataclass(frozen=True)
class Recording:
    """The graph of a model's forward, and one run of it for each batch size."""

    root: nn.Module
    graph: fx.Graph
    first: Recorder
    second: Recorder

    @property
    def model(self) -> nn.Module:
        """The model that was recorded."""
        return self.root.get_submodule("model")

    def module(self, node: fx.Node) -> nn.Module:
        """Return the leaf that a node calls."""
        return self.root.get_submodule(str(node.target))


def record(model: nn.Module, shape: Shape, dtype: torch.dtype | None) -> Recording:
    """Trace a model and run it on zeros; random layers leave the generator as it was."""
    root = _Root(model)
    graph = _trace(root)
    for node in graph.nodes:
        if node.op == "call_module":
            rule_for(root.get_submodule(str(node.target)), path_of(node))
    dtype = _dtype(root, graph) if dtype is None else dtype
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    first, second = (_run(root, graph, (batch, *shape), dtype, device) for batch in BATCHES)
    return Recording(root, graph, first, second)


def _trace(root: _Root) -> fx.Graph:
    try:
        return _Tracer().trace(root)
    except UnsupportedModelError:
        raise
    except Exception as error:
        raise UnsupportedModelError(
            f"{type(root.model).__name__} has a forward that cannot be read symbolically "
            f"({_first_line(error)}). Data must not steer Python's if and for: build the model of "
            "modules, or register a rule for the module that does this."
        ) from error


def _run(
    root: _Root, graph: fx.Graph, size: Shape, dtype: torch.dtype, device: torch.device
) -> Recorder:
    recorder = Recorder(fx.GraphModule(root, graph))
    devices = [device] if device.type == "cuda" else []
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=devices):
            recorder.run(torch.zeros(size, dtype=dtype, device=device))
    except UnsupportedModelError:
        raise
    except Exception as error:
        raise UnsupportedModelError(
            f"{type(root.model).__name__} fails on a batch of {size[0]} records of shape "
            f"{size[1:]}: {_first_line(error)}. Check input_shape, which has no batch axis."
        ) from error
    return recorder


def _first_line(error: Exception) -> str:
    """Return what went wrong, without torch's account of its own internals."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def _dtype(root: _Root, graph: fx.Graph) -> torch.dtype:
    """Integers for a model that starts with an embedding, else the type of its parameters."""
    start = next(node for node in graph.nodes if node.op == "placeholder")
    for user in start.users:
        if user.op == "call_module" and isinstance(root.get_submodule(str(user.target)), _TOKENS):
            return torch.long
    floating = (p.dtype for p in root.parameters() if p.is_floating_point())
    return next(floating, torch.get_default_dtype())


def path_of(node: fx.Node) -> str:
    """Return the path of a module, or the name of a function call."""
    return strip(str(node.target)) if node.op == "call_module" else node.name


def caller_of(node: fx.Node) -> str:
    """Return which module's forward made the call, for error messages."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    if not stack:
        return ""
    path, kind = stack[-1]
    return f', in the forward of {getattr(kind, "__name__", kind)} at "{strip(str(path))}",'


def strip(target: str) -> str:
    """Return a path as the user knows it, without the root around the model."""
    return "(model)" if target == "model" else target.removeprefix("model.")


def ancestors(node: fx.Node) -> Iterator[fx.Node]:
    """Yield the attributes from which a constant is computed."""
    if node.op == "get_attr":
        yield node
    for source in node.all_input_nodes:
        yield from ancestors(source)


def attribute(root: nn.Module, target: str) -> Any:
    """Follow a dotted path."""
    value: Any = root
    for part in target.split("."):
        value = getattr(value, part)
    return value


def function_name(target: Any) -> str:
    """Return the name of a function or method."""
    return str(getattr(target, "__name__", target))
