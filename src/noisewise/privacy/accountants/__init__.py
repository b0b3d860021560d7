"""The accountants: objects that turn a history into epsilon or delta, by name.

A new one is one class in one file of this folder, and one entry below.
"""

from noisewise.privacy.accountants.base import Accountant
from noisewise.privacy.accountants.pld import PrivacyLoss
from noisewise.privacy.accountants.rdp import Renyi
from noisewise.privacy.events import Event

__all__ = ["ACCOUNTANTS", "Accountant", "tightest"]

#: By name, the tightest first.
ACCOUNTANTS: dict[str, Accountant] = {each.name: each for each in (PrivacyLoss(), Renyi())}


def tightest(history: tuple[Event, ...]) -> str:
    """Return the name of the tightest accountant that can account for a history.

    Raises
    ------
    ValueError
        If none can.
    """
    for name, each in ACCOUNTANTS.items():
        if each.refusal(history) is None:
            return name
    kinds = ", ".join(sorted({event.kind for event in history}))
    raise ValueError(f"no accountant can account for these releases together: {kinds}")
