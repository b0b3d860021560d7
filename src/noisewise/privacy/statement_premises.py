"""What every statement assumes, and what its texts must not contradict.

The premises follow from relation, unit and history. They are written among the assumptions and
required when a statement is read: one whose assumptions were emptied, or whose relation, unit or
history was exchanged without them, contradicts itself.
"""

from __future__ import annotations

import re

from noisewise.privacy.events import History, PoissonGaussian
from noisewise.privacy.relation import Relation

__all__ = ["premises", "sampler_of", "sampler_problem"]

_PROBABILITIES = re.compile(r"with probability ([0-9.e+-]+(?:, [0-9.e+-]+)*)")


def premises(relation: Relation, unit: str, history: History) -> tuple[str, ...]:
    """What must be true of the world for a statement of this kind to mean what it says."""
    said = [
        f"Protected is {unit} ({relation.sentence}); whoever has several is protected less.",
        "The releases listed are all that were made from these records; any other adds to them.",
    ]
    if _rates(history):
        said.append("Nobody who sees a release knows which records were drawn for it.")
    return tuple(said)


def sampler_of(history: History) -> str:
    """How records were chosen, as far as the history tells."""
    rates = _rates(history)
    if not rates:
        return "none: every record takes part in every release"
    return f"Poisson: each record independently, with probability {', '.join(rates)}"


def sampler_problem(sampler: str, history: History) -> str | None:
    """Return what a text about sampling says against the history, if it does."""
    if not any(True for _ in history):
        return None  # nothing was released yet: whatever the plan says of sampling is true
    rates = _rates(history)
    named = {rate for found in _PROBABILITIES.findall(sampler) for rate in found.split(", ")}
    if (named or sampler.startswith("none")) and named != set(rates):
        return (
            f"sampler says {sampler[:100]!r}, but the history has the sample rates "
            f"{', '.join(rates) or 'none'}"
        )
    return None


def _rates(history: History) -> list[str]:
    rates = {event.sample_rate for event in history if isinstance(event, PoissonGaussian)} - {1.0}
    return [f"{rate:.6g}" for rate in sorted(rates)]
