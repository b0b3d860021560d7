"""A right training of which one stage is changed, and what a few tests say of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from noisewise.debugging import check
from noisewise.debugging.mutants import Training, cases


@dataclass(frozen=True)
class Changed(Training):
    """A right training of which one stage is changed by a function of its own."""

    stage: str = ""
    change: Any = None

    def _changed(self, stage, value, situation):
        value = super()._changed(stage, value, situation)
        return self.change(value, situation) if stage == self.stage else value


def judged(stage, change, *tests, effort="quick", case="MLP"):
    known = cases()[case]
    return check(
        Changed(known.model, known.loss, stage=stage, change=change),
        known.model,
        known.loss,
        example=known.example,
        effort=effort,
        tests=("preflight", *tests),
    )
