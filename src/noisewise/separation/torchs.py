"""Whether a function is torch's own, and still does what it did.

A path names the functions of torch that a program calls; what they do inside happens below it. So
a function counts as torch's only if all its Python code is: code that others have wrapped in it, or
put in the place of a function that it looks up by name when it runs, is somebody else's.
"""

from __future__ import annotations

import dis
import functools
import os
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from noisewise.separation.origin import is_ours, is_torchs

__all__ = ["Own", "own"]

#: What a name stands for in one of torch's namespaces: names, the name, and the value.
_Meaning = tuple[Mapping[str, Any], str, Any]
_OF_TENSORS: Mapping[str, Any] = vars(Tensor)
_STANDARD = os.path.dirname(os.__file__) + os.sep
_MODULES = (types.ModuleType, type(torch.ops))
_NATIVE = (types.BuiltinFunctionType, types.MethodWrapperType)
_DESCRIPTORS = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)


class Own:
    """One of torch's functions.

    Attributes
    ----------
    meanings : tuple
        Functions that it and those that it calls look up by name.
    times : int
        How often these were exchanged for others of torch's.
    """

    __slots__ = ("meanings", "times")

    def __init__(self, meanings: tuple[_Meaning, ...], times: int) -> None:
        self.meanings, self.times = meanings, times

    @property
    def holds(self) -> bool:
        """Whether all names still stand for the same."""
        return all(names.get(name) is value for names, name, value in self.meanings)


_KNOWN: dict[Any, Own] = {}


def own(function: Any) -> Own | None:
    """What is known of a function of torch; None if code of others is in it."""
    found = _KNOWN.get(function)
    if found is not None:
        for names, name, value in found.meanings:
            if names.get(name) is not value:
                break
        else:
            return found
    times = 0 if found is None else found.times + 1
    meanings: dict[tuple[int, str], _Meaning] = {}
    if not _is_own(function, meanings, set()):
        return None
    found = _KNOWN[function] = Own(tuple(meanings.values()), times)
    return found


def _is_own(function: Any, meanings: dict[tuple[int, str], _Meaning], seen: set[int]) -> bool:
    """Whether all Python code of a callable is torch's; notes what it looks up."""
    if id(function) in seen:
        return True
    seen.add(id(function))
    if isinstance(function, types.FunctionType):
        return _is_own_code(function, meanings, seen)
    if isinstance(function, _NATIVE):
        owner = function.__self__
        if isinstance(owner, property):
            return all(
                _is_own(part, meanings, seen)
                for part in (owner.fget, owner.fset, owner.fdel)
                if part is not None
            )
        kind = getattr(owner, "__objclass__", owner)
        name = kind.__name__ if isinstance(kind, types.ModuleType) else _module_of(kind)
        return _is_named(name) or _is_named(str(function.__module__))
    if isinstance(function, _DESCRIPTORS):
        return _is_named(_module_of(function.__objclass__))
    if isinstance(function, types.MethodType):
        return _is_own(function.__func__, meanings, seen)
    # Operations themselves (torch.ops), types of torch.
    return _is_named(_module_of(function))


def _is_standard(value: Any) -> bool:
    """Whether something is of Python's library."""
    module = getattr(value, "__module__", None) or type(value).__module__
    if str(module).partition(".")[0] not in sys.stdlib_module_names:
        return False
    if isinstance(value, types.FunctionType):
        return value.__code__.co_filename.startswith(_STANDARD)
    return not isinstance(value, (types.MethodType, functools.partial))


def _module_of(value: Any) -> str:
    kind = value if isinstance(value, type) else type(value)
    return str(kind.__module__)


def _is_named(module: str) -> bool:
    root = module.partition(".")[0]
    return root in ("torch", "builtins", "noisewise")


def _is_own_code(
    function: types.FunctionType, meanings: dict[tuple[int, str], _Meaning], seen: set[int]
) -> bool:
    code, names = function.__code__, function.__globals__
    if not (is_torchs(code.co_filename) or is_ours(code.co_filename)):
        return False
    namespace = sys.modules.get(str(names.get("__name__")))
    if namespace is None or vars(namespace) is not names:
        return False
    for part in _held(function):
        if isinstance(part, (types.FunctionType, types.MethodType)) and not _is_own(
            part, meanings, seen
        ):
            return False
    if names["__name__"] == "torch.overrides" or is_ours(code.co_filename):
        return True  # it only hands a call on
    for space, name in _looked_up(code, names):
        value = space.get(name)
        if value is not None:
            if not (callable(value) or isinstance(value, types.ModuleType)):
                continue  # settings
            if callable(value) and not (_is_standard(value) or _is_own(value, meanings, seen)):
                return False
        meanings[id(space), name] = space, name, value
    return True


def _held(function: types.FunctionType) -> Iterator[Any]:
    """What a function has with it beside names."""
    yield vars(function).get("__wrapped__")
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # nothing in it yet
            continue


def _looked_up(
    code: types.CodeType, names: Mapping[str, Any]
) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Names that code looks up when it runs, and where: globals, in torch's modules, of tensors."""
    value: Any = None
    module: Any = None
    for step in dis.get_instructions(code):
        name = step.argval
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield names, name
            value = names.get(name)
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            if isinstance(value, _MODULES):
                if _is_named(value.__name__):
                    yield vars(value), name
                value = vars(value).get(name)
            else:
                yield _OF_TENSORS, name
        elif step.opname == "IMPORT_NAME":
            module = sys.modules.get(name)
        elif step.opname == "IMPORT_FROM" and module is not None:
            yield vars(module), name
        else:
            value = None
        if isinstance(name, types.CodeType):
            yield from _looked_up(name, names)
