"""The model as a graph of layers that rules exist for.

The model's forward is traced once with torch.fx; each module with a rule is a leaf, all
others are looked into. The graph is then run on zeros with two different batch sizes to
learn the shapes: whatever does not keep the batch as its first axis, or computes with the
batch size, would make one record's result depend on the others, and is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from noisewise.bounds import functions as read_functions
from noisewise.bounds.layer import Call, LayerRule, NormMemory, Shape, Signal, own_parameters
from noisewise.bounds.recording import (
    BATCHES,
    Recorder,
    ancestors,
    attribute,
    caller_of,
    function_name,
    path_of,
    record,
    strip,
)
from noisewise.bounds.registry import hooks_of, lookup, rule_for
from noisewise.bounds.rules.linear import IdentityRule
from noisewise.errors import UnsupportedModelError

__all__ = ["Graph", "Node", "trace"]

_IN_PLACE = frozenset({"relu_", "add_", "sub_", "mul_", "div_", "clamp_"})
_IN_PLACE_FUNCTIONS = frozenset({"iadd", "isub", "imul", "itruediv", "relu_"})


@dataclass(frozen=True)
class Node:
    """One use of a layer or function. `inputs` are positions of earlier nodes."""

    path: str
    kind: str
    rule: LayerRule[Any]
    module: Any
    inputs: tuple[int, ...]
    shape: Shape
    parameters: dict[str, str]

    def call(self, signals: tuple[Signal, ...], norms: NormMemory) -> Call[Any]:
        """Return the use of the layer on inputs of known norms."""
        return Call(self.module, self.path, signals, self.shape, norms)


@dataclass(frozen=True)
class Graph:
    """A traced model: node 0 is the input, the last one gives the output.

    `parameters` are the names of all that learn, also of those that forward never uses.
    """

    nodes: tuple[Node, ...]
    parameters: tuple[str, ...]
    #: What was read: run in place of the model, it does what `nodes` speak of.
    program: fx.GraphModule
    #: Tensors from which rules took constants, as they were then.
    constants: tuple[tuple[Tensor, Tensor], ...] = ()

    @property
    def input_shape(self) -> Shape:
        """Shape of a record."""
        return self.nodes[0].shape

    def is_current(self) -> bool:
        """Whether layers and constants are still those that were read."""
        layers = (node for node in self.nodes if isinstance(node.module, nn.Module))
        return all(torch.equal(tensor, held) for tensor, held in self.constants) and all(
            lookup(type(node.module)) is node.rule and not hooks_of(node.module) for node in layers
        )

    def is_like(self, other: Graph) -> bool:
        """Whether both were read of one program."""
        return len(self.nodes) == len(other.nodes) and all(
            (one.path, one.kind, one.inputs, one.shape, one.parameters, type(one.rule))
            == (two.path, two.kind, two.inputs, two.shape, two.parameters, type(two.rule))
            and (one.module is two.module or _same(_settings(one.module), _settings(two.module)))
            and _same(vars(one.rule), vars(two.rule))
            for one, two in zip(self.nodes, other.nodes, strict=True)
        )

    def users(self, index: int) -> list[int]:
        """Nodes that read node `index`, once for every time they read it."""
        return [
            position
            for position, node in enumerate(self.nodes)
            for source in node.inputs
            if source == index
        ]


def trace(model: nn.Module, input_shape: Shape, dtype: torch.dtype | None = None) -> Graph:
    """Read a model as a graph of ruled layers.

    Parameters
    ----------
    model : Module
        Its forward takes one batch, records along the first axis.
    input_shape : tuple of int
        Shape of one record, without the batch axis.
    dtype : torch.dtype, optional
        Type of the input; by default integers for a model that starts with an
        embedding, otherwise the type of the parameters.

    Raises
    ------
    UnsupportedModelError
        If some part has no rule, or could mix records.
    """
    return _Builder(model, tuple(input_shape), dtype).build()


class _Builder:
    def __init__(self, model: nn.Module, shape: Shape, dtype: torch.dtype | None) -> None:
        self.model, self.shape = model, shape
        self.recording = record(model, shape, dtype)
        self.canonical = {id(value): name for name, value in model.named_parameters()}
        self.trainable = {id(value) for value in model.parameters() if value.requires_grad}
        self.nodes: list[Node] = []
        self.position: dict[fx.Node, int] = {}
        self.constants: dict[int, tuple[Tensor, Tensor]] = {}

    def build(self) -> Graph:
        for node in self.recording.graph.nodes:
            self._add(node, self.recording.first, self.recording.second)
        learnt = tuple(name for name, value in self.model.named_parameters() if value.requires_grad)
        recording, constants = self.recording, tuple(self.constants.values())
        program = fx.GraphModule(recording.root, recording.graph)
        return Graph(tuple(self.nodes), learnt, program, constants)

    def _add(self, node: fx.Node, first: Recorder, second: Recorder) -> None:
        if node.op == "placeholder":
            self._append(node, Node("input", "input", IdentityRule(), None, (), self.shape, {}))
            return
        if node.op == "output":
            self._check_output(node)
            return
        sources = [
            self.position[source] for source in _tensor_inputs(node) if source in self.position
        ]
        if not sources:
            return
        values = (first.returned[node], second.returned[node])
        if not _is_tensor(values[0]):
            return
        path = path_of(node)
        rule, module, kind = self._reading(node, first, second)
        own = {}
        if node.op == "call_module":
            own = {
                name: self.canonical[id(value)]
                for name, value in own_parameters(module).items()
                if id(value) in self.trainable
            }
        if isinstance(values[0], (tuple, list)):
            shape = self.nodes[sources[0]].shape
        else:
            shape = self._record_shape(path, kind, values)
        read = Node(path, kind, rule, module, tuple(sources), shape, own)
        self._check_in_place(node, read)
        self._append(node, read)

    def _append(self, node: fx.Node, read: Node) -> None:
        self.position[node] = len(self.nodes)
        self.nodes.append(read)

    def _reading(
        self, node: fx.Node, first: Recorder, second: Recorder
    ) -> tuple[LayerRule[Any], Any, str]:
        path = path_of(node)
        if node.op == "call_module":
            module = self.recording.module(node)
            rule = rule_for(module, path)
            of_record = [argument for argument in node.args if argument in self.position]
            if node.kwargs or len(of_record) != len(node.args) or len(of_record) != rule.inputs:
                raise UnsupportedModelError(
                    f'{type(module).__name__} at "{path}" is called with other arguments than the '
                    f"{rule.inputs} tensor(s) of a record that its rule knows of. Give constants "
                    "to its constructor, and nothing else to its forward."
                )
            return rule, module, type(module).__name__
        name = node.target if isinstance(node.target, str) else function_name(node.target)
        handler = read_functions.functions().get(node.target)
        if handler is None:
            raise UnsupportedModelError(
                f'{name} at "{path}"{caller_of(node)} has no rule. Use the module of the same '
                "meaning if there is one, or put the computation into a module and register a "
                "rule for it (noisewise.bounds.register)."
            )
        arguments = [self._public(node, recorder, path, name) for recorder in (first, second)]
        if not handler.reshapes and not _same(*arguments):
            raise UnsupportedModelError(
                f'{name} at "{path}" computes with the size of the batch, so one record\'s '
                "contribution would depend on how many others there are. Use a constant."
            )
        args, kwargs = arguments[0]
        if isinstance(first.received[node][0][0], tuple | list) and name == "getitem":
            return IdentityRule(), None, name
        self._check_axes(args, path, name)
        try:
            reading = handler.read(*args, **kwargs)
        except UnsupportedModelError as error:
            raise UnsupportedModelError(f'at "{path}": {error}') from error
        except TypeError as error:
            raise UnsupportedModelError(
                f'{name} at "{path}" is called in a form that has no rule ({error}). Use the '
                "module of the same meaning."
            ) from error
        if isinstance(reading, LayerRule):
            return reading, None, name
        return rule_for(reading, path), reading, name

    def _public(
        self, node: fx.Node, recorder: Recorder, path: str, name: str
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments with records' tensors as signals and constants as they are."""

        def convert(argument: Any) -> Any:
            if isinstance(argument, fx.Node):
                if argument in self.position:
                    return Signal(self.nodes[self.position[argument]].shape, float("inf"))
                value = recorder.returned[argument]
                self._check_constant(argument, path, name)
                return value
            return argument

        args = fx.node.map_aggregate(node.args, convert)
        kwargs = fx.node.map_aggregate(node.kwargs, convert)
        return tuple(args), dict(kwargs)

    def _check_constant(self, source: fx.Node, path: str, name: str) -> None:
        for origin in ancestors(source):
            tensor = attribute(self.recording.root, str(origin.target))
            if isinstance(tensor, Tensor):
                self.constants.setdefault(id(tensor), (tensor, tensor.detach().clone()))
            if isinstance(tensor, nn.Parameter) and tensor.requires_grad:
                raise UnsupportedModelError(
                    f'{name} at "{path}" uses the parameter "{strip(str(origin.target))}" '
                    "directly, so its gradient has no bound. Put both into a module and register "
                    "a rule for it (noisewise.bounds.register)."
                )

    def _check_axes(self, args: tuple[Any, ...], path: str, name: str) -> None:
        """Tensors of different numbers of axes would be aligned across records."""
        flat = list(_flatten(args))
        axes = {len(argument.shape) for argument in flat if isinstance(argument, Signal)}
        constants = [argument for argument in flat if isinstance(argument, Tensor)]
        crossed = any(
            constant.dim() > max(axes) and constant.shape[0] != 1 for constant in constants
        ) or any(constant.dim() > max(axes) + 1 for constant in constants)
        if len(axes) > 1 or crossed:
            raise UnsupportedModelError(
                f'{name} at "{path}" combines tensors whose axes do not correspond, so records '
                "would mix. Give all tensors the same number of axes."
            )

    @staticmethod
    def _record_shape(path: str, kind: str, values: tuple[Tensor, Tensor]) -> Shape:
        shapes = [tuple(value.shape) for value in values]
        kept = all(
            len(shape) > 0 and shape[0] == batch
            for shape, batch in zip(shapes, BATCHES, strict=True)
        )
        if not kept or shapes[0][1:] != shapes[1][1:]:
            raise UnsupportedModelError(
                f'{kind} at "{path}" does not keep the batch as its first axis (shape '
                f"{shapes[0]} for {BATCHES[0]} records), so records would mix. Leave the first "
                "axis alone, for example x.flatten(1)."
            )
        return shapes[0][1:]

    def _check_in_place(self, node: fx.Node, read: Node) -> None:
        """Refuse to overwrite a tensor that has another reader, directly or through a view."""
        name = node.target if isinstance(node.target, str) else function_name(node.target)
        overwrites = (
            (node.op == "call_method" and name in _IN_PLACE)
            or (node.op == "call_function" and name in _IN_PLACE_FUNCTIONS)
            or getattr(read.module, "inplace", False) is True
        )
        source = node.all_input_nodes[0]
        while overwrites:
            if len(source.users) > 1:
                raise UnsupportedModelError(
                    f'{read.kind} at "{read.path}" overwrites a tensor that is read elsewhere too. '
                    "Use the form that returns a new tensor (inplace=False)."
                )
            view = self.nodes[self.position[source]]
            if not isinstance(view.rule, IdentityRule) or not source.all_input_nodes:
                return
            source = source.all_input_nodes[0]

    def _check_output(self, node: fx.Node) -> None:
        result = node.args[0]
        if not isinstance(result, fx.Node) or result not in self.position:
            raise UnsupportedModelError(
                f"{type(self.model).__name__} must return one tensor that depends on its "
                "input; several outputs or none have no rule."
            )
        last = self.position[result]
        if last != len(self.nodes) - 1:
            path = self.nodes[last].path
            self.nodes.append(
                Node(path, "output", IdentityRule(), None, (last,), self.nodes[last].shape, {})
            )


def _tensor_inputs(node: fx.Node) -> Iterator[fx.Node]:
    """Argument nodes in order, repeated if they are passed twice."""
    found: list[fx.Node] = []
    fx.node.map_arg((node.args, node.kwargs), lambda argument: found.append(argument))
    yield from found


def _is_tensor(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return bool(value) and not isinstance(value, torch.Size) and _is_tensor(value[0])
    return isinstance(value, Tensor)


def _flatten(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for part in value:
            yield from _flatten(part)
    else:
        yield value


def _settings(module: Any) -> dict[str, Any]:
    """Return what a module was made with, also one that stands for a function."""
    return {"type": type(module), **(vars(module) if isinstance(module, nn.Module) else {})}


def _same(one: Any, other: Any) -> bool:
    """Whether the public arguments of both runs agree."""
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return isinstance(one, Tensor) and isinstance(other, Tensor) and torch.equal(one, other)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return bool(one == other)
