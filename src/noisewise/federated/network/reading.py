"""JSON from strangers: read strictly, and refused in words whatever it holds."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator
from typing import Any

from noisewise.federated.network.errors import NetworkError

__all__ = ["digest_in", "read_json", "readable"]

_DEEPEST = 32
_LONGEST_NUMBER = 40
_DIGEST = re.compile(r"[0-9a-f]{64}")


@contextlib.contextmanager
def readable(server: str) -> Iterator[None]:
    """Say in words that a server's answer is none, whatever reading it breaks.

    A server may lie, or not be one of ours: its answer must not end its reader by anything else.
    """
    try:
        yield
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        raise NetworkError(f"server {server!r} sent an answer that cannot be read") from error


def digest_in(value: Any) -> str:
    """Return 32 bytes in hexadecimal digits; ValueError if it is anything else."""
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        raise ValueError("not 64 hexadecimal digits")
    return value


def read_json(data: bytes) -> Any:
    """Return what JSON in UTF-8 says.

    Raises
    ------
    ValueError
        If it is no JSON, is nested deeper than anything that is sent here, names a key twice,
        holds a number that is not finite or needlessly long, or text that is no text.
    """
    try:
        found = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_object,
            parse_constant=_refuse,
            parse_float=_float,
            parse_int=_int,
        )
    except RecursionError:
        raise ValueError("this JSON is nested too deeply") from None
    _check(found)
    return found


def _check(found: Any) -> None:
    """Refuse deep nesting and lone surrogates, without recursion."""
    level, depth = [found], 0
    while level:
        if depth > _DEEPEST:
            raise ValueError("this JSON is nested too deeply")
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below += value.keys()
                below += value.values()
            elif isinstance(value, list):
                below += value
            elif isinstance(value, str):
                value.encode()  # a lone surrogate is a UnicodeEncodeError, which is a ValueError
        level, depth = below, depth + 1


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("this JSON names a key twice")
    return found


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


def _float(text: str) -> float:
    value = float(text) if len(text) <= _LONGEST_NUMBER else math.inf
    if not math.isfinite(value):
        raise ValueError("this JSON holds a number that is too long or too large")
    return value


def _int(text: str) -> int:
    if len(text) > _LONGEST_NUMBER:
        raise ValueError("this JSON holds a number that is too long or too large")
    return int(text)
