"""Which torch functions are understood, and by whom.

A handler gets the tape and the call as it was made. It returns the function's result and
arranges that the parameters' gradients go to the tape instead of to ``.grad``. It raises
`UnsupportedUseError` for a call that it cannot take apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from noisewise.gradients.contractions.base import Target
from noisewise.gradients.contractions.derived import Derived
from noisewise.gradients.layout import Layout
from noisewise.gradients.tape import Tape

__all__ = [
    "HANDLERS",
    "ConstantUseError",
    "UnsupportedUseError",
    "derive",
    "handles",
    "layout_of_use",
    "place",
]

Handler = Callable[[Tape, Any, tuple[Any, ...], dict[str, Any]], Any]
HANDLERS: dict[Any, Handler] = {}


class ConstantUseError(Exception):
    """A use that meets no record: its result is part of a weight."""


class UnsupportedUseError(Exception):
    """A use of a parameter that no handler takes apart."""


def handles(*functions: Any) -> Callable[[Handler], Handler]:
    """Decorator: the handler of these torch functions."""

    def remember(handler: Handler) -> Handler:
        def handle(tape: Tape, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            try:
                return handler(tape, function, args, kwargs)
            except ConstantUseError:
                return derive(tape, function, args, kwargs)

        for function in functions:
            HANDLERS[function] = handle
        return handler

    return remember


def place(tape: Tape, what: str, *targets: Target | None) -> str:
    """Name a call for messages and for telling calls apart."""
    names = ", ".join(target.name for target in targets if target is not None)
    path = tape.stack[-1] if tape.stack else ""
    return f'{what} at "{path or "(model)"}" ({names})'


def layout_of_use(
    tape: Tape, what: str, x: Any, features: int, *parameters: Tensor | None
) -> Layout:
    """Where the records sit in the operand that parameters meet.

    Raises
    ------
    ConstantUseError
        If there are none.
    UnsupportedUseError
        If a weight is neither a parameter nor computed from some in a way that is known, yet has
        a gradient: it would be lost.
    """
    targets = [tape.target(parameter) for parameter in parameters]
    for parameter, target in zip(parameters, targets, strict=True):
        if parameter is not None and target is None and parameter.requires_grad:
            raise UnsupportedUseError
    if isinstance(x, Tensor):
        if tape.target(x) is not None and not tape.is_constant(x):
            raise UnsupportedUseError
        if tape.is_constant(x):
            raise ConstantUseError
    found = tape.layout(place(tape, what, *targets), x, features, tape.bases(*targets))
    if found.constant:
        raise ConstantUseError
    return found


def derive(tape: Tape, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a function of parameters and constants alone, and track what it returns.

    What is returned is cut off from the parameters: the batch's own backward pass must not
    walk (and free) the graph through which records' gradients are pulled back later.
    """
    bases: dict[str, Tensor] = {}

    def original(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) in tape.targets:
            bases[tape.targets[id(value)].name] = value
        elif id(value) in tape.derived:
            bases.update(tape.derived[id(value)].bases)
            return tape.derived[id(value)].tensor
        elif value.requires_grad:
            raise UnsupportedUseError
        return value

    def tracked(value: Any) -> Any:
        if isinstance(value, Tensor) and not torch.is_grad_enabled():
            return value.detach()  # cut off on purpose, or inside a function of its own
        if not isinstance(value, Tensor) or not value.requires_grad or id(value) in tape.targets:
            return value
        label = f"{' + '.join(bases)} [computed {len(tape.derived)}]"
        leaf = value.detach().requires_grad_()
        target = Target(label, tuple(value.shape))
        tape.derived[id(leaf)] = Derived(value, target, dict(bases), leaf)
        return leaf

    args, kwargs = pytree.tree_map(original, (args, kwargs))
    return pytree.tree_map(tracked, function(*args, **kwargs))


def tensors_in(values: Any) -> list[Tensor]:
    """Return all tensors in nested lists, tuples and dicts."""
    if isinstance(values, Tensor):
        return [values]
    if isinstance(values, (list, tuple)):
        return [tensor for value in values for tensor in tensors_in(value)]
    if isinstance(values, dict):
        return [tensor for value in values.values() for tensor in tensors_in(value)]
    return []
