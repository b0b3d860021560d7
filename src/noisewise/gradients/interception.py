"""How a model's own forward is put on the tape, without changing the model.

While a batch is open, the forward of every module that owns parameters runs under a torch
function mode. Calls that involve a learnt parameter go to the handler of that function; all
others pass. So it does not matter in which module, style or order a model is written. A
function of parameters alone gives a computed weight; what no handler understands makes the
module it happened in a case for torch.func.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from noisewise.errors import UnsupportedModelError
from noisewise.gradients.contractions.base import Target
from noisewise.gradients.operations import HANDLERS, RECURRENT, UnsupportedUseError, run_recurrent
from noisewise.gradients.operations.elementwise import repeated
from noisewise.gradients.operations.registry import derive, place, tensors_in
from noisewise.gradients.tape import Tape

__all__ = ["FallbackWarning", "Interception", "NeedsFallbackError"]


class FallbackWarning(UserWarning):
    """A module is differentiated record by record, which costs time and memory."""


class NeedsFallbackError(Exception):
    """Raised in a probe: the module at `path` uses a parameter in an unknown way."""

    def __init__(self, path: str, function: str) -> None:
        super().__init__(path)
        self.path, self.function = path, function


class _Mode(TorchFunctionMode):
    def __init__(self, owner: Interception) -> None:
        super().__init__()
        self.owner = owner

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        tape = self.owner.tape
        if not _touches(tape, args) and not (kwargs and _touches(tape, tuple(kwargs.values()))):
            return func(*args, **kwargs)
        return self.owner.handle(func, args, kwargs)


def _touches(tape: Tape, values: Any) -> bool:
    """Whether a learnt parameter, or something computed from some, is among the arguments."""
    targets, derived = tape.targets, tape.derived
    for value in values:
        if isinstance(value, Tensor):
            if id(value) in targets or id(value) in derived:
                return True
        elif isinstance(value, (list, tuple)) and _touches(tape, value):
            return True
    return False


class Interception:
    """The modules of a model whose forward is on the tape.

    Parameters
    ----------
    model : Module
    tape : Tape
    """

    def __init__(self, model: nn.Module, tape: Tape) -> None:
        self.model, self.tape = model, tape
        self.mode = _Mode(self)
        self.active = False
        self.bypassed = 0
        self.fallbacks: dict[str, str] = {}
        self.looped: set[str] = set()
        self.originals: dict[str, Callable[..., Any]] = {}
        self.owners = {
            id(p): module
            for module in model.modules()
            for p in module.parameters(recurse=False)
            if id(p) in tape.targets
        }

    # -- attaching ----------------------------------------------------------------------

    def attach(self) -> None:
        """Replace the forward of all modules that matter, on the instances."""
        owning = {id(module) for module in self.owners.values()}
        for path, module in self.model.named_modules():
            if path and id(module) not in owning and path not in self.fallbacks:
                continue
            if "forward" in vars(module):
                raise UnsupportedModelError(
                    f'{type(module).__name__} at "{path or "(model)"}" already has a replaced '
                    "forward: is the model private already, or was it patched by another library? "
                    "Detach that first."
                )
            self.originals[path] = module.forward
            module.forward = self._wrapped(path, module, module.forward)

    def detach(self) -> None:
        """Give the modules their own forward back."""
        for path in self.originals:
            module = self.model.get_submodule(path)
            vars(module).pop("forward", None)
        self.originals.clear()

    def _wrapped(
        self, path: str, module: nn.Module, original: Callable[..., Any]
    ) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            if not self.tape.open or self.bypassed:
                return original(*args, **kwargs)
            self.tape.stack.append(path)
            entered = not self.active
            self.active = True
            try:
                if path in self.fallbacks:
                    return self._by_record(path, module, args, kwargs)
                if isinstance(module, RECURRENT) and self._learns(module):
                    return run_recurrent(self.tape, path, module, _positional(args, kwargs))
                if entered:
                    with self.mode:
                        return original(*args, **kwargs)
                return original(*args, **kwargs)
            finally:
                self.active = not entered
                if self.tape.stack:
                    self.tape.stack.pop()

        return forward

    def _learns(self, module: nn.Module) -> bool:
        return any(id(p) in self.tape.targets for p in module.parameters())

    # -- calls --------------------------------------------------------------------------

    def handle(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one call that involves a parameter."""
        tape = self.tape
        handler = HANDLERS.get(func)
        try:
            if handler is not None:
                result = handler(tape, func, args, kwargs)
            else:
                result = self._unknown(func, args, kwargs)
        except UnsupportedUseError:
            path = tape.stack[-1] if tape.stack else ""
            raise NeedsFallbackError(path, getattr(func, "__name__", str(func))) from None
        if tape.derived:
            self._find_effective(result)
        return result

    def _unknown(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function of parameters alone is a computed weight; metadata passes."""
        if all(self.tape.is_constant(t) for t in tensors_in((args, kwargs))):
            return derive(self.tape, func, args, kwargs)
        result = func(*args, **kwargs)
        if any(t.requires_grad for t in tensors_in(result)):
            raise UnsupportedUseError
        return result

    def _find_effective(self, result: Any) -> None:
        """Mark a computed weight that its layer knows how to pull back (U19)."""
        for tensor in tensors_in(result):
            found = self.tape.derived.get(id(tensor))
            if found is None or found.effective or len(found.bases) != 1:
                continue
            ((name, base),) = found.bases.items()
            owner = self.owners.get(id(base))
            if hasattr(owner, "pull_back") and tensor.shape == base.shape:
                target = Target(name, tuple(base.shape))
                self.tape.derived[id(tensor)] = replace(found, target=target, effective=True)

    # -- torch.func ---------------------------------------------------------------------

    def _by_record(
        self, path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a module once per record, each with a copy of its parameters (torch.func)."""
        tape = self.tape
        copies = {
            name: repeated(tape, p, tape.targets[id(p)])
            for name, p in module.named_parameters(remove_duplicate=True)
            if id(p) in tape.targets
        }
        leaves, spec = pytree.tree_flatten((args, kwargs))
        what = place(tape, f"{type(module).__name__}, by record,")
        axes = [
            0
            if isinstance(v, Tensor)
            and v.dim()
            and tape.calls.batched(f"{what} input {i}", v.shape[0], tape.rows)
            else None
            for i, v in enumerate(leaves)
        ]
        mapped = [v for v, axis in zip(leaves, axes, strict=True) if axis == 0]
        if not mapped:
            raise UnsupportedModelError(
                f'{type(module).__name__} at "{path}" uses its parameters in a way that is not '
                "understood, and gets no batch from which its records could be told apart. Use "
                "the parameters in layers of torch.nn, or register an operation."
            )

        def one(parameters: dict[str, Tensor], *records: Tensor) -> Any:
            rest = iter(records)
            filled = [
                next(rest).unsqueeze(0) if axis == 0 else v
                for v, axis in zip(leaves, axes, strict=True)
            ]
            inner_args, inner_kwargs = pytree.tree_unflatten(filled, spec)
            output = functional_call(module, parameters, inner_args, inner_kwargs)
            return pytree.tree_map(lambda t: t.squeeze(0) if isinstance(t, Tensor) else t, output)

        self.bypassed += 1
        try:
            if path not in self.looped:
                try:
                    return vmap(one, randomness="different")(copies, *mapped)
                except (RuntimeError, ValueError, NotImplementedError, TypeError):
                    if not tape.calls.probing:
                        raise
                    self.looped.add(path)
            outputs = [
                one({name: c[i] for name, c in copies.items()}, *(m[i] for m in mapped))
                for i in range(tape.rows)
            ]
            return pytree.tree_map(lambda *parts: torch.stack(parts), *outputs)
        finally:
            self.bypassed -= 1

    def warn(self) -> None:
        """Name the modules that are differentiated record by record, and what that costs."""
        for path, function in self.fallbacks.items():
            module = self.model.get_submodule(path)
            entries = sum(p.numel() for p in module.parameters() if id(p) in self.tape.targets)
            how = "one record after another" if path in self.looped else "with torch.func"
            warnings.warn(
                f'{type(module).__name__} at "{path or "(model)"}" uses a parameter in '
                f"{function}(), which is not taken apart. Its gradients are computed {how}: exact, "
                f"but a copy of its {entries:,} parameters exists for every record of a physical "
                "batch. Use smaller chunks, or write it with layers of torch.nn.",
                FallbackWarning,
                stacklevel=4,
            )


def _positional(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    return (*args, *kwargs.values()) if kwargs else args
