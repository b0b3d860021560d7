"""All programs: importing this module registers them."""

from separation import (
    programs_backward,
    programs_forward,
    programs_innocent,
    programs_losses,
    programs_state,
)
from separation.program import INNOCENT, MIXING, Program

__all__ = ["INNOCENT", "MIXING", "Program"]

# The modules are imported for what they add.
_ = (programs_backward, programs_forward, programs_innocent, programs_losses, programs_state)
