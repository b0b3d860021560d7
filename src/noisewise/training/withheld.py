"""Exceptions of models and losses, without the values of records in their text.

"Target 7 is out of bounds" tells a private label to whoever reads a log. What was raised on a
batch is therefore tried once more on a batch of zeros with the same shapes and types: a text that
is the same there does not depend on any record and is shown as it is; any other is withheld.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from noisewise.errors import NoisewiseError
from noisewise.training.errors import StepError
from noisewise.training.records import map_tensors

__all__ = ["withheld", "zeros_like"]

Result = TypeVar("Result")


def withheld(action: Callable[[], Result], stand_in: Callable[[], object], where: str) -> Result:
    """Return what the action returns; if it fails, show no text that depends on the records.

    Parameters
    ----------
    action : callable
    stand_in : callable
        The same with zeros in place of the records.
    where : str
        For the message: where to look.
    """
    try:
        return action()
    except (NoisewiseError, torch.OutOfMemoryError):
        raise  # texts of our own show no value, and memory is counted in bytes
    except Exception as error:
        failure = error
    if _fails_alike(stand_in, failure):
        raise failure
    # Outside the clause above, so that the withheld text is not the context of this one.
    raise StepError(
        f"{where} raised {type(failure).__name__} on a batch, but not, or with another text, on "
        "zeros of the same shapes and types. The text could show a value of a private record, such "
        "as a label that is not among the classes or an index out of range, so it is withheld. "
        "Look for it with records that you may see. Nothing was charged for this batch."
    )


def zeros_like(value: Any) -> Any:
    """Return a batch of the same shapes and types that holds nothing of this one."""
    return map_tensors(value, torch.zeros_like)


def _fails_alike(stand_in: Callable[[], object], failure: Exception) -> bool:
    try:
        stand_in()
    except Exception as error:
        return type(error) is type(failure) and str(error) == str(failure)
    return False
