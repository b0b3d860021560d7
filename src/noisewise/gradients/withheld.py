"""Errors that do not show a record.

A label that is out of range makes torch raise ``Target 7 is out of bounds``: an exception is
read by people, stored in logs and sent to trackers, so it must not quote private values. What
fails on made-up numbers of the same shape is a mistake in the program, and its own message is
shown. What fails on the records alone is a matter of these records (`gradients/failing.py`).
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from noisewise.errors import NoisewiseError
from noisewise.gradients.detours import Detour, RecordsFailError

__all__ = ["no_values", "without_values"]

_SHOWN = (NoisewiseError, Detour, MemoryError, torch.OutOfMemoryError)


def no_values(what: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Call what cannot be run again; an error ends here, and only its kind and place are told."""
    where = kind = ""
    try:
        function(*args, **kwargs)
    except _SHOWN:
        raise
    except Exception as error:
        if not any(letter.isdigit() for letter in str(error)):
            raise RecordsFailError(error) from None  # a fixed text, which quotes no number
        trace = traceback.extract_tb(error.__traceback__)[-1]
        kind, where = type(error).__name__, f"{trace.filename}:{trace.lineno}"
    if kind:
        shown = ValueError(
            f"{what} failed with {kind} at {where}; the message is withheld, since it may show a "
            "private value. Run it on made-up records, without noisewise, to see it. Nothing was "
            "released."
        )
        raise RecordsFailError(shown)


def without_values(function: Callable[..., Any], *private: Any, what: str) -> Any:
    """Call a function of private values; an error that it raises does not show them."""
    kind = ""
    try:
        return function(*private)
    except _SHOWN:
        raise
    except Exception as error:  # the error and its context end here, they may quote a record
        kind = type(error).__name__
    shown: Exception
    try:
        function(*pytree.tree_map(_made_up, private))
    except _SHOWN:
        raise
    except Exception as error:  # of zeros alone: it may be shown, if no record fares better
        raise RecordsFailError(error) from None
    shown = ValueError(
        f"{what} failed with {kind} on the records of a batch, though not on made-up ones of the "
        "same shape; the message is withheld, since it may show a private value. Check the data "
        "before training: class labels from 0 to the number of classes - 1, tokens within the "
        "vocabulary, targets in the range of the loss. Nothing was released."
    )
    raise RecordsFailError(shown)


def _made_up(value: Any) -> Any:
    """Zeros of the same shape, of which the result is thrown away."""
    return torch.zeros_like(value) if isinstance(value, Tensor) else value
