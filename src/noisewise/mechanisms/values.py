"""How values of any kind go into a mechanism and come out.

A value may be a number, a NumPy array or a torch tensor; the result is of the
same kind. Checks run before anything is drawn, so bad input spends nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from noisewise import checks
from noisewise.errors import RelationError
from noisewise.privacy import ADD_REMOVE, Norm, Relation, Sensitivity

if TYPE_CHECKING:
    import torch

__all__ = ["integers", "reals", "sensitivity_in"]

#: Norms in which a bound is also a bound in the norm that is asked for.
_IMPLIED: dict[str, tuple[str, ...]] = {
    "l1": ("l1",),
    "l2": ("l2", "l1"),
    "linf": ("linf", "l2", "l1"),
}


def sensitivity_in(
    norm: Norm, sensitivity: float | Sensitivity, relation: Relation | str | None
) -> Sensitivity:
    """Return the sensitivity as a positive bound in `norm`, with its relation."""
    if isinstance(sensitivity, Sensitivity):
        if relation is not None and Relation.of(relation) != sensitivity.relation:
            raise RelationError(
                f"the sensitivity holds under {sensitivity.relation}, but relation={relation!r}"
            )
        if sensitivity.norm not in _IMPLIED[norm]:
            raise ValueError(f"sensitivity must be in the {norm} norm, got {sensitivity}")
        relation, sensitivity = sensitivity.relation, sensitivity.value
    hint = "a result that no record can change needs no mechanism"
    bound = checks.positive("sensitivity", sensitivity, hint=hint)
    return Sensitivity(bound, norm, ADD_REMOVE if relation is None else Relation.of(relation))


def reals(value: Any) -> tuple[NDArray[np.float64], Callable[[NDArray[Any]], Any]]:
    """Return `value` as a float64 array, and the way back to its own kind."""
    array, back = _array(value)
    if array.dtype.kind not in "fiu":
        raise TypeError(f"value must be made of real numbers, got dtype {array.dtype}")
    numbers = array.astype(np.float64)
    if array.dtype.itemsize > 8 or (
        array.dtype.kind in "iu" and array.size and np.abs(numbers).max() > 2.0**53
    ):
        raise ValueError(
            "value must be made of numbers that float64 holds exactly: whole numbers within "
            "+-2^53. Beyond that rounding would move it by more than its sensitivity; use "
            "discrete_laplace or discrete_gaussian for large counts"
        )
    if not np.isfinite(numbers).all():
        raise ValueError(
            "value must be finite, got NaN or infinity; bound what each record contributes first"
        )
    return numbers, back


def integers(value: Any) -> tuple[NDArray[np.int64], Callable[[NDArray[Any]], Any]]:
    """Return `value` as an int64 array, and the way back to its own kind."""
    array, back = _array(value)
    if array.dtype.kind not in "iu":
        raise TypeError(
            f"value must be made of integers, such as counts, got dtype {array.dtype}; "
            "use laplace or gaussian for real numbers"
        )
    if array.size and (int(array.max()) > 2**61 or int(array.min()) < -(2**61)):
        raise ValueError("value must lie within +-2^61, so that noise cannot overflow it")
    return array.astype(np.int64), back


def _array(value: Any) -> tuple[NDArray[Any], Callable[[NDArray[Any]], Any]]:
    """Return an array, and the way back: floats come out in their own precision.

    Whole numbers do not come out in theirs, in which a negative or a large noisy one would be
    taken for another.
    """
    if isinstance(value, (bool, str, bytes)) or value is None:
        raise TypeError(f"value must be a number, an array or a tensor, got {type(value).__name__}")
    array = checks.array("value", value)
    # Nothing is a tensor while nobody has imported torch; so neither do we.
    loaded = sys.modules.get("torch")
    if loaded is not None and isinstance(value, loaded.Tensor):
        device, kept = value.device, value.dtype if value.is_floating_point() else None

        def to_tensor(result: NDArray[Any]) -> torch.Tensor:
            import torch

            return torch.as_tensor(result, dtype=kept, device=device)

        return array, to_tensor
    if isinstance(value, np.ndarray):
        dtype = value.dtype if value.dtype.kind == "f" else None
        return array, lambda result: np.asarray(result, dtype)
    return array, lambda result: result.item() if np.ndim(result) == 0 else result
