"""What statements of version 0.1 call by a name that promises too much.

They call integer noise on counts Laplace noise. Of one release that is true; composed with others
at a positive delta it costs more (docs/proofs/events.md#laplace). Such statements are known by the
words of their mechanism, which are no longer written.
"""

from __future__ import annotations

from noisewise.privacy.events import History, Laplace, Pure, as_history

__all__ = ["as_released", "in_words_of_today"]

_THEN = "discrete Laplace mechanism, exact sampling"
_TODAY = "Laplace mechanism on integers, exact sampling"


def as_released(history: History, mechanism: str) -> History:
    """Return the history of a statement with integer noise as what it is.

    A statement that was composed does not say which of its releases it was, so it may be any.
    """
    if _THEN not in mechanism:
        return history
    return as_history(
        Pure(1 / event.noise_multiplier * (1 + 1e-15), event.count)
        if isinstance(event, Laplace)
        else event
        for event in history
    )


def in_words_of_today(mechanism: str) -> str:
    """Return the description of what :func:`as_released` returns."""
    return mechanism.replace(_THEN, _TODAY)
