"""The registry of curves: every function that answers a question about records in one release.

A new curve is one function with ``@curve(...)`` in a file of its own. The table of
``docs/curves.md`` is made from the registry, and ``tests/common/test_common_curves.py`` asks of
every member that it takes the common options and says where its sensitivity is proven; that it is
charged first and shows nothing but noisy sums is asked in ``tests/ecdf``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

__all__ = ["CURVES", "AboutCurve", "curve"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class AboutCurve:
    """What people are told of a curve.

    Parameters
    ----------
    function : callable
        What makes it.
    answers : str
        The question that it answers, in one sentence.
    proof : str
        Where its sensitivity is proven: page and anchor of the documentation.
    """

    function: Callable[..., Any]
    answers: str
    proof: str


#: Every curve by the name of its function.
CURVES: dict[str, AboutCurve] = {}


def curve(*, answers: str, proof: str) -> Callable[[_Function], _Function]:
    """Enter a function into the registry, with what :class:`AboutCurve` holds."""

    def enter(function: _Function) -> _Function:
        if function.__name__ in CURVES:
            raise ValueError(f"there is a curve called {function.__name__!r}")
        CURVES[function.__name__] = AboutCurve(function, answers, proof)
        return function

    return enter
