"""How a program is refused: what, where in the user's code, why, and what to do about it."""

from __future__ import annotations

import re

from noisewise.errors import UnsupportedModelError
from noisewise.separation.origin import calling_line, place

__all__ = ["RefusedError", "is_line"]

_LINE = re.compile(r":\d+$")


def is_line(place: str) -> bool:
    """Whether a place is a line of a file, and not a module or a part of the backward pass."""
    return _LINE.search(place) is not None


class RefusedError(UnsupportedModelError):
    """A program that is not trained. No other error is raised for one, so none lacks a part.

    Parameters
    ----------
    what : str
        The operation or the part of the program, and the reason; without a full stop.
    repair : str
        What to do about it.
    where : str, optional
        File and line; if it is not given, the line of the user's that runs now.

    Attributes
    ----------
    what, repair, where : str
    """

    def __init__(self, what: str, repair: str, where: str = "") -> None:
        where = where or place()
        if not is_line(where):  # nobody's line: in the backward pass, or before any run
            where = calling_line()
        self.what, self.repair, self.where = what, repair, where
        shown = what if where in what else f"{what} (at {where})"
        super().__init__(f"{shown}. {repair}")
