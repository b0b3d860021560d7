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
from noisewise.separation import Path

__all__ = ["no_values", "without_values"]

_SHOWN = (NoisewiseError, Detour, MemoryError, torch.OutOfMemoryError)


def no_values(path: Path, what: str, function: Callable[..., Any], *args: Any, **kw: Any) -> None:
    """Call what cannot be run again; an error ends here, and only its kind and place are told."""
    where = kind = own = ""
    try:
        function(*args, **kw)
    except _SHOWN:
        raise
    except Exception as error:
        kind, where = type(error).__name__, _where(error)
        own = "" if path.explains(error) else f"{kind} at {where}"
        if not own and not any(letter.isdigit() for letter in str(error)):
            raise RecordsFailError(error, own) from None  # torch's own text, without a number
    if kind:
        shown = ValueError(
            f"{what} failed with {kind} at {where}; the message is withheld, since it may show a "
            "private value. Run it on made-up records, without noisewise, to see it. Nothing was "
            "released."
        )
        raise RecordsFailError(shown, own)


def without_values(path: Path, what: str, function: Callable[..., Any], *private: Any) -> Any:
    """Call a function of private values; an error that it raises does not show them."""
    kind = own = ""
    try:
        return function(*private)
    except _SHOWN:
        raise
    except Exception as error:  # the error and its context end here, they may quote a record
        kind = type(error).__name__
        own = "" if path.explains(error) else f"{kind} at {_where(error)}"
    way = path.failing  # of the records, not of the made-up ones that follow
    try:
        function(*pytree.tree_map(_made_up, private))
    except _SHOWN:
        raise
    except Exception as error:  # of zeros alone: it may be shown, if no record fares better
        raise RecordsFailError(error, own) from None
    finally:
        path.failing = way
    shown = ValueError(
        f"{what} failed with {kind} on the records of a batch, though not on made-up ones of the "
        "same shape; the message is withheld, since it may show a private value. Check the data "
        "before training: class labels from 0 to the number of classes - 1, tokens within the "
        "vocabulary, targets in the range of the loss. Nothing was released."
    )
    raise RecordsFailError(shown, own, alone=True)


def _where(error: Exception) -> str:
    trace = traceback.extract_tb(error.__traceback__)[-1]
    return f"{trace.filename}:{trace.lineno}"


def _made_up(value: Any) -> Any:
    """Zeros of the same shape, of which the result is thrown away."""
    return torch.zeros_like(value) if isinstance(value, Tensor) else value
