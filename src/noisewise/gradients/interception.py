"""How a model's own forward is put on the tape, without changing the model.

While a batch is open, the forward of every module that owns parameters runs under a torch
function mode. Calls that involve a learnt parameter go to the handler of that function; all
others pass. So it does not matter in which module, style or order a model is written. A
function of parameters alone gives a computed weight; what no handler understands makes the
module it happened in a case for torch.func.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Container
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from noisewise.errors import NoisewiseError
from noisewise.gradients.contractions.base import Target
from noisewise.gradients.detours import Detour
from noisewise.gradients.operations import (
    HANDLERS,
    UnsupportedUseError,
    is_plain_recurrent,
    run_recurrent,
)
from noisewise.gradients.operations.elementwise import repeated
from noisewise.gradients.operations.registry import derive, place, tensors_in
from noisewise.gradients.slopes import slopes
from noisewise.gradients.tape import Tape
from noisewise.gradients.wiring import NotApartError, Wiring
from noisewise.separation import GENERAL, Path, RefusedError

__all__ = [
    "FallbackWarning",
    "Following",
    "Interception",
    "NeedsFallbackError",
    "not_understood",
]


_SLOPES = torch.autograd.grad
#: What decides how a recurrent layer is run.
_SETTINGS = "training batch_first num_layers bidirectional dropout proj_size bias mode nonlinearity"


class FallbackWarning(UserWarning):
    """A module is differentiated record by record, which costs time and memory."""


class NeedsFallbackError(Detour):
    """The module at `path` uses a parameter in an unknown way."""

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
        owner = self.owner
        tape, path = owner.tape, owner.path
        if types and path is not None:
            path.require_plain(types)
        way: int | None = None
        if path is not None and (path.digest in path.drawing or path.learning):
            way = path.begin_draw()
        try:
            if func is _SLOPES:
                result = slopes(tape, path, *args, **kwargs)
            elif not _touches(tape, args) and not (
                kwargs and _touches(tape, tuple(kwargs.values()))
            ):
                result = GENERAL.get(func, func)(*args, **kwargs)
            else:
                result = owner.handle(func, args, kwargs)
        except (Detour, NoisewiseError):
            raise
        except Exception as error:
            if path is not None:
                path.fail(func, args, kwargs, error)
            raise
        if path is not None:
            if way is not None:
                path.end_draw(way)
            path.note(func, args, kwargs, result)
        return result


class _Poison(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, why: NotApartError) -> Tensor:
        ctx.why = why
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        raise ctx.why


class Following(TorchFunctionMode):
    """Notes the path where the tape takes no part: in hooks and in backward code."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        path = self.path
        if types:
            path.require_plain(types)
        draws = path.digest in path.drawing or path.learning
        way = path.begin_draw() if draws else None
        try:
            result = GENERAL.get(func, func)(*args, **(kwargs or {}))
        except (Detour, NoisewiseError):
            raise
        except Exception as error:
            path.fail(func, args, kwargs, error)
            raise
        if way is not None:
            path.end_draw(way)
        path.note(func, args, kwargs, result)
        return result


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
    wiring : Wiring

    Attributes
    ----------
    tape : Tape
        Of the run under way.
    path : Path or None
        Follows the run under way.
    """

    tape: Tape

    def __init__(self, model: nn.Module, wiring: Wiring) -> None:
        self.model = model
        self.path: Path | None = None
        self.mode = _Mode(self)
        #: Whether modules record, and whether the mode is on already.
        self.running = self.active = False
        self.bypassed = 0
        self.fallbacks: dict[str, str] = {}
        self.looped: set[str] = set()
        self.warned: set[str] = set()
        #: What is replaced now: modules, and their forward on the tape by the one of their own.
        self._attached: list[nn.Module] = []
        self._forwards: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}
        self._modules = list(model.named_modules())
        self._buffers = [module._buffers for module in model.modules()]
        self._constants = wiring.constants | frozenset(wiring.targets) | {id(None)}
        self.owners = {
            id(p): module
            for module in model.modules()
            for p in module.parameters(recurse=False)
            if id(p) in wiring.targets
        }

    def versions(self) -> list[tuple[Tensor | None, int]]:
        """The buffers as they are now, and how often they were written."""
        held = [b for buffers in self._buffers if buffers for b in buffers.values()]
        return [(b, 0 if b is None or b.is_inference() else b._version) for b in held]

    def known(self) -> Container[int]:
        """Identities of the model's parameters and buffers as they are now."""
        held = [b for buffers in self._buffers if buffers for b in buffers.values()]
        if all(id(b) in self._constants for b in held):
            return self._constants
        return self._constants | set(map(id, held))

    # -- attaching ----------------------------------------------------------------------

    def attach(self) -> None:
        """Replace the forward of all modules that matter, on the instances."""
        owning = {id(module) for module in self.owners.values()}
        for path, module in self._modules:
            if path and id(module) not in owning and path not in self.fallbacks:
                continue
            if "forward" in vars(module):
                raise RefusedError(
                    f'{type(module).__name__} at "{path or "(model)"}" already has a replaced '
                    "forward: is the model private already, or was it patched by another library",
                    "Detach that first.",
                )
            own = module.forward
            known = self._forwards.get(path)
            if known is None or known[0] != own:
                known = self._forwards[path] = own, self._wrapped(path, module, own)
            # Past nn.Module, which looks for parameters in whatever is assigned.
            vars(module)["forward"] = known[1]
            self._attached.append(module)

    def detach(self) -> None:
        """Give the modules their own forward back."""
        for module in self._attached:
            vars(module).pop("forward", None)
        self._attached.clear()

    def _wrapped(
        self, path: str, module: nn.Module, original: Callable[..., Any]
    ) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            if not self.running or self.bypassed:
                return original(*args, **kwargs)
            tape = self.tape
            tape.stack.append(path)
            entered = not self.active
            self.active = True
            try:
                if path in self.fallbacks:
                    result = self._by_record(path, module, args, kwargs)
                    self._name(result)
                    return result
                if is_plain_recurrent(module) and self._learns(module):
                    return self._recur(path, module, _positional(args, kwargs))
                if entered:
                    with self.mode:
                        return original(*args, **kwargs)
                return original(*args, **kwargs)
            finally:
                self.active = not entered
                if tape.stack:
                    tape.stack.pop()

        return forward

    def _recur(self, path: str, module: nn.Module, args: tuple[Any, ...]) -> Any:
        """Run a recurrent layer, which the library writes out itself: as one call of the path."""
        with torch._C.DisableTorchFunction():
            result = run_recurrent(self.tape, path, module, args)
        if self.path is not None:
            flat = pytree.tree_leaves(result)
            settings = {name: getattr(module, name, None) for name in _SETTINGS.split()}
            weights = (*args, *module._parameters.values())
            self.path.record(type(module), weights, {"path": path, **settings}, flat)
        return result

    def _name(self, values: Any) -> None:
        """Let the path know tensors that the library itself has made."""
        if self.path is not None:
            for tensor in tensors_in(values):
                self.path.name(tensor)

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
        except NotApartError as refusal:
            # Without its frames, in which records are.
            why = NotApartError(refusal.what, refusal.repair, refusal.where)
            return self._poisoned(func, args, kwargs, why)
        except UnsupportedUseError:
            path = tape.stack[-1] if tape.stack else ""
            raise NeedsFallbackError(path, getattr(func, "__name__", str(func))) from None
        if tape.derived:
            self._find_effective(result)
        return result

    def _poisoned(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], why: NotApartError
    ) -> Any:
        """A result that mixes records may be computed, but no gradient may come back from it."""

        def cut(value: Any) -> Any:
            return value.detach() if self.tape.target(value) is not None else value

        result = func(*pytree.tree_map(cut, args), **pytree.tree_map(cut, kwargs))

        def poison(value: Any) -> Any:
            if not isinstance(value, Tensor) or not value.is_floating_point():
                return value
            leaf = value.detach().requires_grad_()
            self.tape.anchors.append(leaf)
            return _Poison.apply(leaf, why)  # type: ignore[no-untyped-call]

        return pytree.tree_map(poison, result)

    def _unknown(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function of parameters alone is a computed weight; metadata passes."""
        if all(self.tape.is_constant(t) for t in tensors_in((args, kwargs))):
            return derive(self.tape, func, args, kwargs)
        if self.tape.are_public(tensors_in((args, kwargs)), getattr(func, "__name__", "")):
            return derive(self.tape, func, args, kwargs)
        result = func(*args, **kwargs)
        if any(t.requires_grad for t in tensors_in(result)):
            raise UnsupportedUseError
        return result

    def _find_effective(self, result: Any) -> None:
        """Mark a computed weight that its layer knows how to pull back."""
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
        names = [tape.targets[id(p)].name for p in module.parameters() if id(p) in tape.targets]
        axes = [
            self._axis(f"{what} input {i}", v, names) if isinstance(v, Tensor) and v.dim() else None
            for i, v in enumerate(leaves)
        ]
        mapped = [v.movedim(a, 0) for v, a in zip(leaves, axes, strict=True) if a is not None]
        if not mapped:
            raise RefusedError(
                f'{type(module).__name__} at "{path}" uses its parameters in a way that is not '
                "understood, and gets no batch from which its records could be told apart",
                "Use the parameters in layers of torch.nn, or register an operation.",
            )

        def one(parameters: dict[str, Tensor], *records: Tensor) -> Any:
            self._name((parameters, records))
            rest = iter(records)
            filled = [
                v if axis is None else next(rest).unsqueeze(axis)
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
                    if tape.watch is None:
                        raise
                    self.looped.add(path)
            outputs = [
                one({name: c[i] for name, c in copies.items()}, *(m[i] for m in mapped))
                for i in range(tape.rows)
            ]
            return pytree.tree_map(_stacked, *outputs)
        finally:
            self.bypassed -= 1

    def _axis(self, what: str, value: Tensor, names: list[str]) -> int | None:
        """The axis along which a module is given its records, None for what all of them share."""
        tape = self.tape
        layout = tape.layout(what, value, 0, names)
        if layout.constant:
            return None
        if layout.axis < 0 or layout.order is not None or value.shape[layout.axis] != tape.rows:
            raise RefusedError(
                f"{what} uses a parameter in a way that is not taken apart, on records that are "
                "merged with other axes",
                "Give the module (batch, ...), or write it with layers of torch.nn. Experts that "
                "gather their tokens from the whole batch cannot be taken apart: apply every "
                "expert to all tokens and weigh the results by the gate, or let every token take "
                "its expert's weights, in transformers by "
                'model.set_experts_implementation("batched_mm").',
            )
        return layout.axis

    def warn(self) -> None:
        """Name the modules that are differentiated record by record, and what that costs."""
        for path, function in self.fallbacks.items():
            if path in self.warned:
                continue
            self.warned.add(path)
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


def _stacked(*parts: Any) -> Any:
    """Results of single records as a batch; flags and numbers must not differ."""
    if isinstance(parts[0], Tensor):
        return torch.stack(parts)
    if parts[0] is None or isinstance(parts[0], (bool, int, str)):
        return parts[0]
    raise RefusedError(
        f"a module that is differentiated record by record returns a {type(parts[0]).__name__}, "
        "which cannot be put together again",
        "Let it return tensors (use_cache=False for transformers).",
    )


def _positional(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    return (*args, *kwargs.values()) if kwargs else args


def not_understood(model: nn.Module, need: NeedsFallbackError) -> RefusedError:
    """Say which use of a parameter no handler takes apart."""
    module = model.get_submodule(need.path)
    return RefusedError(
        f'{type(module).__name__} at "{need.path or "(model)"}" uses a parameter in '
        f"{need.function}(), which is not taken apart",
        "Use noisewise.Clipped, which can "
        "differentiate it record by record, or write it with layers of torch.nn.",
    )
