"""Ways out of a run that are taken on purpose: not errors of the user's, and shown to nobody."""

from __future__ import annotations

__all__ = ["Detour", "PlacesMatterError"]


class Detour(Exception):  # noqa: N818
    """The run has to be made again in another way."""


class PlacesMatterError(Detour):
    """Slots are not shown to be treated alike: from now on, records have slots of their own."""
