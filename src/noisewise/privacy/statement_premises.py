"""What every statement assumes, and what its texts must not contradict.

The premises follow from relation, unit and history. They are written among the assumptions and
required when a statement is read: one whose assumptions were emptied, or whose relation, unit or
history was exchanged without them, contradicts itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from noisewise.privacy.events import History
from noisewise.privacy.relation import Relation

__all__ = [
    "POISSON_SAMPLING",
    "WHOLE_UNITS",
    "premises",
    "rows_of_units",
    "rows_problem",
    "sampler_of",
    "sampler_problem",
]

_CALLER = "promised by the caller, who drew the batches: "
_ALL = (
    "none: every record takes part in every release",
    "none: accounted as if every record took part in every step",
)
_POISSON = "Poisson: each record independently, with probability "
#: The same for units: all rows of one together, or each row of one by itself.
POISSON_SAMPLING = {
    "record": _POISSON,
    "unit": "Poisson: each unit independently with its rows, with probability ",
    "row": "Poisson: each row of a unit independently, with probability ",
}
#: What every bound on the rows of a unit rests on.
WHOLE_UNITS = "all rows of a unit carry its identifier, and those of no other unit do"
#: The bounds in what curves, parties and streams say.
_BOUND = re.compile(
    r"^at most ([0-9]{1,15}) rows? of a unit count: |so one unit counts up to ([0-9]{1,15}) rows$"
    r"|are one unit: at most ([0-9]{1,15}) of them count"
    r"|^of each unit the first ([0-9]{1,15}) items"
)
_NUMBERS = re.compile(r"[0-9.e+-]+(?:, [0-9.e+-]+)*")


def premises(relation: Relation, unit: str, history: History) -> tuple[str, ...]:
    """What must be true of the world for a statement of this kind to mean what it says."""
    change = relation.sentence_of(unit)
    said = [
        f"Protected is {unit} ({change}); whoever has several is protected less.",
        "The releases listed are all that were made from these records; any other adds to them.",
    ]
    if _rates(history):
        said.append("Nobody who sees a release knows which records were drawn for it.")
    return tuple(said)


def sampler_of(history: History, unit: str) -> str:
    """How records were chosen, as far as the history and its unit tell."""
    whole = "record" if unit == "one record" else "unit"
    found: dict[str, set[float]] = {}
    for part in (part for event in history for part in event.parts):
        if part.secret_rates:
            kind = "row" if getattr(part, "rows", None) else whole
            found.setdefault(kind, set()).update(part.secret_rates)
    said = [POISSON_SAMPLING[kind] + _listed(rates) for kind, rates in found.items()]
    return "; ".join(said) or _ALL[0]


def rows_of_units(history: History) -> int | None:
    """How many rows of a unit count at most, over all releases that have such a bound."""
    parts = (part for event in history for part in event.parts)
    bounds = [rows for part in parts if (rows := getattr(part, "rows", None))]
    return max(bounds) if bounds else None


def rows_named(texts: Iterable[str]) -> int:
    """Return the largest bound on the rows of a unit in what the library says of releases."""
    found = (match for text in texts for match in _BOUND.findall(text))
    return max((int(number) for numbers in found for number in numbers if number), default=0)


def rows_problem(unit: str, history: History, texts: Iterable[str] = ()) -> str | None:
    """Return why a history of rows of units says nothing of this unit, if so.

    A history that was exchanged for one of fewer rows, in which the same noise costs less,
    contradicts what is said of the releases.

    A record is one row. Under which change of the data several rows come or go together is not
    known if nobody says what they are the rows of.
    """
    told, named = rows_of_units(history), rows_named(texts)
    if history and named > (told or 0):
        return (
            f"the texts say that up to {named} rows of a unit count, but the history is of "
            f"{told or 'no such'} rows"
        )
    if unit != "one record" or told is None:
        return None
    return (
        "the history says what rows of a unit cost together, but the unit is 'one record', which "
        "is one row: say what is protected, e.g. unit='one patient'"
    )


def sampler_problem(sampler: str, history: History, unit: str) -> str | None:
    """Return why a text about sampling does not follow from the history, if so.

    It is not searched for contradictions: it must be a text that the library writes, for exactly
    the rates of the history, and of rows where they are rows. Statements that were composed have
    several, with a semicolon between.
    """
    named: set[str] = set()
    drawn: set[str] = set()
    everybody = False
    parts = sampler.split("; ")
    if len(set(parts)) < len(parts):
        return f"sampler says {sampler[:100]!r}, some of it twice"
    for part in parts:
        text = part.removeprefix(_CALLER)
        kind = next(
            (kind for kind, words in POISSON_SAMPLING.items() if text.startswith(words)), None
        )
        numbers = text.removeprefix(POISSON_SAMPLING[kind]) if kind else ""
        if text in _ALL:
            everybody = True
        elif kind and _NUMBERS.fullmatch(numbers):
            named.update(numbers.split(", "))
            drawn.add(kind)
        else:
            return f"sampler says {part[:100]!r}, which no analysis of the history is about"
    if problem := _drawn_problem(drawn, history, unit):
        return f"sampler says {sampler[:100]!r}, but {problem}"
    rates = set(_rates(history))
    others = any(not event.secret_rates for event in history)
    # If nothing was released yet, whatever the plan says of sampling is true.
    if history and (named != rates or (everybody and not others)):
        return (
            f"sampler says {sampler[:100]!r}, but the history has the sample rates "
            f"{', '.join(sorted(rates)) or 'none'}"
        )
    return None


def _drawn_problem(drawn: set[str], history: History, unit: str) -> str | None:
    """Return why what is drawn is not what the history is about, if so."""
    if unit == "one record" and drawn - {"record"}:
        return "the unit is 'one record'"
    parts = [part for event in history for part in event.parts if part.secret_rates]
    rows = {bool(getattr(part, "rows", None)) for part in parts}
    if history and rows != {kind == "row" for kind in drawn}:
        return "the history has another kind of sampling"
    return None


def _rates(history: History) -> list[str]:
    rates = {rate for event in history for rate in event.secret_rates}
    return [f"{rate:.6g}" for rate in sorted(rates)]


def _listed(rates: Iterable[float]) -> str:
    return ", ".join(f"{rate:.6g}" for rate in sorted(rates))
