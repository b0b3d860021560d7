"""Everything that can be seen of a result: attributes, methods, frames, warnings, exceptions.

For tests of non-interference: with the noisy sums fixed, all records may change, and what is seen
must be equal to the bit.
"""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any

import numpy as np

import noisewise.release
from noisewise import ecdf

__all__ = ["assert_same", "attempt", "observe"]

#: Arguments for methods that need some.
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "quantile": ([0.0, 0.1, 0.5, 1.0],),
    "score_quantile": ([0.1, 0.5, 0.9],),
    "quantiles": ([0.1, 0.5, 0.9],),
    "evaluate": ([-1.0, 0.0, 0.3, 1.0],),
    "__call__": ([-1.0, 0.0, 0.3, 1.0],),
    "sample": (5, 0),
    "range_count": (0, 2),
    "tpr_at": ([0.1, 0.5],),
    "at": (0.5,),
    "at_interval": (0.5,),
    "noise_of_sum": ("count", 2, 0.9),
    "noise_of_sizes": ("count", 2, 0.9),
    "sentence_of": ("one patient",),
    "statement": (),
    "to_frame": (0.9,),
}
#: They draw pictures of what the other methods return, or count more of a stream.
SKIPPED = {"plot", "update", "extend", "resume", "close", "of"}


def observe(value: Any, depth: int = 0) -> Any:
    """Everything that can be seen of a value, in a form that is equal only if all bits are."""
    if value is None or isinstance(value, (bool, int, str, bytes, Fraction)):
        return value
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        return (str(array.dtype), array.shape, array.tobytes())
    if isinstance(value, (list, tuple)):
        return [observe(item, depth + 1) for item in value]
    if isinstance(value, Mapping):
        return {str(key): observe(item, depth + 1) for key, item in value.items()}
    if hasattr(value, "to_numpy") and hasattr(value, "columns"):
        return {column: observe(value[column].to_numpy()) for column in value.columns}
    if not type(value).__module__.startswith("noisewise") or depth > 6:
        return repr(value)
    seen: dict[str, Any] = {"type": type(value).__name__}
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            seen[field.name] = observe(getattr(value, field.name), depth + 1)
    if depth <= 3 and not made_before_records(value):
        seen.update(methods(value, depth))
    return seen


def made_before_records(value: Any) -> bool:
    """Grids, budgets and mechanisms: their fields are compared, their methods answer for them."""
    public = (ecdf.Budget, ecdf.Grid, ecdf.Mechanism, noisewise.release.Contribution)
    return isinstance(value, public) or type(value).__module__.startswith(
        "noisewise.ecdf.mechanisms"
    )


def methods(value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    for name in dir(type(value)):
        member = inspect.getattr_static(type(value), name)
        if name == "__repr__" and member is object.__repr__:
            continue  # an address in memory
        if name in SKIPPED or (name.startswith("_") and name not in ("__repr__", "__call__")):
            continue
        if isinstance(member, (classmethod, staticmethod, type)):
            continue
        called = inspect.isfunction(member)
        yield name, attempt(lambda n=name, c=called: look(value, n, c), depth)


def look(value: Any, name: str, called: bool) -> Any:
    found = getattr(value, name)
    if not called:
        return found
    needed = [
        argument
        for argument in inspect.signature(found).parameters.values()
        if argument.default is argument.empty
        and argument.kind in (argument.POSITIONAL_ONLY, argument.POSITIONAL_OR_KEYWORD)
    ]
    if needed:
        assert name in ARGUMENTS, f"say in ARGUMENTS how {type(value).__name__}.{name} is called"
    return found(*ARGUMENTS.get(name, ()))


def attempt(action: Callable[[], Any], depth: int = 0) -> Any:
    """What an action returns or raises, with its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            seen = observe(action(), depth + 1)
        except AssertionError:
            raise
        except Exception as error:
            seen = ("raised", type(error).__name__, str(error))
    return (seen, [(item.category.__name__, str(item.message)) for item in caught])


def assert_same(one: Any, other: Any, where: str) -> None:
    if isinstance(one, dict) and isinstance(other, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            assert_same(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        assert len(one) == len(other), where
        for place, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_same(a, b, f"{where}[{place}]")
    else:
        assert one == other, where
