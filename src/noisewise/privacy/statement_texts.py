"""What a text of a statement must be: something that a reader can see, and sees as it is.

Characters that show nothing, or change how others are shown, could make a field look filled that
is empty, or hide a word from a check that a reader would see. They are refused, not removed.
What was released is put into words here, too.
"""

from __future__ import annotations

import unicodedata
from typing import Any

from noisewise.privacy.events import Event, event_from_dict

__all__ = ["NOT_SOUND", "describe", "is_unsound", "text_problem"]

#: An assumption that begins so is known to be false; no epsilon is stated under it.
NOT_SOUND = "NOT SOUND"

#: Letters and signs that are shown as nothing at all.
_BLANK = frozenset("\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\u034f") | frozenset(
    chr(code) for first, last in ((0xFE00, 0xFE0F), (0xE0100, 0xE01EF), (0x180B, 0x180F))
    for code in range(first, last + 1)
)  # fmt: skip


def text_problem(text: str) -> str | None:
    """Return why a text cannot be part of a statement, if so."""
    for character in text:
        # Control, format, surrogate, private and unassigned characters; separators of lines.
        kind = unicodedata.category(character)
        if kind[0] == "C" or kind in ("Zl", "Zp") or character in _BLANK:
            return f"holds U+{ord(character):04X}, which is not shown as a character"
    if not any(character.isalnum() for character in text):
        return "says nothing"
    return None


def is_unsound(text: str) -> bool:
    """Whether a text says that no guarantee holds, however it is spaced or spelt."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    letters = "".join(character for character in folded if character.isalnum())
    return letters.startswith(NOT_SOUND.replace(" ", "").casefold())


def describe(event: Event) -> str:
    """Return what was released, how often, and with which numbers."""
    fields = event.to_dict()
    kind, count = fields.pop("kind"), fields.pop("count")
    shown = {name: value for name, value in fields.items() if name != "variation" or value}
    numbers = ", ".join(
        f"{name.replace('_', ' ')} {_shown(value)}" for name, value in shown.items()
    )
    return f"{count:,} x {kind} ({numbers})"


def _shown(value: Any) -> str:
    if isinstance(value, list):  # of histories, each of which a record may go through
        histories = (" + ".join(describe(event_from_dict(e)) for e in each) for each in value)
        return f"[{' or '.join(histories)}]"
    return value if isinstance(value, str) else f"{value:.6g}"
