"""What is said of a release: everything that its statement is derived from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from noisewise.errors import UnsoundError
from noisewise.privacy import History, Relation, Statement, tightest

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Promise", "StatedArray", "StatedNumber", "StatedTuple", "compose"]


@dataclass(frozen=True)
class Promise:
    """A statement before its epsilon is derived.

    Parameters
    ----------
    history : tuple of events
        What was charged.
    delta : float
    mechanism : str
        What was done, in words.
    relation : Relation
    randomness : str
        Where the noise came from.
    unit : str
    accountant : {"pld", "rdp"}, optional
        By default the tightest that has an answer.
    sampler : str, optional
    assumptions : tuple of str
    """

    history: History
    delta: float
    mechanism: str
    relation: Relation
    randomness: str
    unit: str = "one record"
    accountant: str | None = None
    sampler: str | None = None
    assumptions: tuple[str, ...] = ()

    def state(self, delta: float | None = None) -> Statement:
        """Derive the statement, at another delta if that is asked for.

        Raises
        ------
        UnsoundError
            If no finite epsilon follows, or an assumption is known to be false.
        """
        return Statement.derive(
            self.history,
            delta=self.delta if delta is None else delta,
            mechanism=self.mechanism,
            relation=self.relation,
            accountant=self.accountant or tightest(self.history),
            unit=self.unit,
            sampler=self.sampler,
            randomness=self.randomness,
            assumptions=self.assumptions,
        )


def compose(parts: Iterable[Statement], delta: float | None = None) -> Statement:
    """Return one statement for several releases, by an accountant that knows all of them."""
    parts = list(parts)
    history = tuple(event for part in parts for event in part.history)
    return Statement.compose(parts, delta=delta, accountant=tightest(history))


class _Stated:
    """A result that knows what was promised for it."""

    _state: Callable[[], Statement] | None

    def statement(self) -> Statement:
        """Return what was promised."""
        state: Callable[[], Statement] | None = getattr(self, "_state", None)
        if state is None:
            raise UnsoundError(
                "this result was changed after it was released, so nothing is known to be promised "
                "for it: ask the one that the function returned"
            )
        return state()


class StatedTuple(_Stated):
    """Beside a named tuple: results that unpack like those of scikit-learn, with a statement.

    Examples
    --------
    >>> from typing import NamedTuple
    >>> class _Point(NamedTuple):
    ...     x: float
    ...     y: float
    >>> class Point(StatedTuple, _Point):
    ...     "A private point."
    """

    @classmethod
    def stated(cls, values: Iterable[Any], state: Callable[[], Statement]) -> Self:
        """Return the tuple of these values with that statement."""
        made: Self = cls._make(values)  # type: ignore[attr-defined]
        made._state = state
        return made


class StatedNumber(_Stated, float):
    """A number with a statement.

    Examples
    --------
    >>> StatedNumber.stated(0.5, lambda: None) + 1
    1.5
    """

    @classmethod
    def stated(cls, value: float, state: Callable[[], Statement]) -> StatedNumber:
        """Return this value with that statement."""
        made = cls(value)
        made._state = state
        return made


class StatedArray(_Stated, np.ndarray[Any, np.dtype[np.float64]]):
    """An array with a statement; what is computed from it is an array without one."""

    def __array_finalize__(self, source: Any) -> None:
        """Forget the statement of what this was made of."""
        self._state = None

    def __array_wrap__(self, result: Any, context: Any = None, return_scalar: bool = False) -> Any:
        """Return plain numbers from arithmetic."""
        plain = np.asarray(result)
        return plain[()] if return_scalar or plain.ndim == 0 else plain
