"""Ways out of a run that are taken on purpose: not errors of the user's, and shown to nobody."""

from __future__ import annotations

__all__ = ["Detour", "PiecesDifferError", "PlacesMatterError", "RecordsFailError"]


class Detour(Exception):  # noqa: N818
    """The run has to be made again in another way."""


class PlacesMatterError(Detour):
    """Slots are not shown to be treated alike: from now on, records have slots of their own."""


class PiecesDifferError(Detour):
    """The program did something else to one piece of a batch than to another.

    `settled` if it had done the same to all such pieces of a batch before.
    """

    def __init__(self, settled: bool = False) -> None:
        super().__init__()
        self.settled = settled


class RecordsFailError(Detour):
    """The program raised, on records alone perhaps; `shown` is what the user may see of it.

    `own` says where, if code of the user's raised by itself, not within an operation of torch;
    `alone` that it did not raise on made-up records.
    """

    def __init__(self, shown: Exception, own: str = "", alone: bool = False) -> None:
        super().__init__(str(shown))
        self.shown, self.own, self.alone = shown, own, alone
