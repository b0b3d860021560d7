"""What was promised, to whom, under which assumptions.

A :class:`Statement` derives its own epsilon from the history of releases that it
carries; there is no way to write one down by hand. It is frozen, serialises to
versioned JSON (schema: ``statement.schema.json`` beside this module), prints for
a terminal and as a Markdown card. Printed epsilons are rounded *up*.
"""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Protocol

import numpy as np

from noisewise import checks
from noisewise._version import __version__
from noisewise.errors import RelationError, StatementError, UnsoundError
from noisewise.privacy.accounting import ACCOUNTANTS, epsilon_of
from noisewise.privacy.events import (
    Event,
    History,
    as_history,
    event_from_dict,
)
from noisewise.privacy.first_version import as_released, in_words_of_today
from noisewise.privacy.relation import ADD_REMOVE, Relation
from noisewise.privacy.statement_form import (
    SCHEMA_VERSION,
    check_shape,
    digest,
    parse,
    shorten,
    statement_schema,
)
from noisewise.privacy.statement_premises import (
    premises,
    rows_of_units,
    rows_problem,
    sampler_of,
    sampler_problem,
)
from noisewise.privacy.statement_texts import describe, is_unsound, text_problem

__all__ = ["Preprocessing", "Statement", "digest", "round_up", "single_up", "statement_schema"]


class Preprocessing(Protocol):
    """What a statement must know of the way in which records became numbers."""

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Sentences for the statement."""
        ...

    def require_sound(self) -> None:
        """Raise `UnsoundError` if the private records themselves were consulted."""
        ...


@dataclass(frozen=True)
class Statement:
    """A privacy guarantee with everything needed to derive it again.

    Build one with :meth:`derive`; read one with :meth:`from_json`.

    Attributes
    ----------
    epsilon, delta : float
        The guarantee. `epsilon` is an upper bound, derived from `history`.
    relation : Relation
        Which datasets are neighbours.
    unit : str
        What one record stands for ("one record", "one patient").
    mechanism : str
        What was done, in words.
    history : tuple of events
        Every private release, with its noise and how often it happened.
    accountant : {"pld", "rdp"}
        How the losses were added up.
    sampler : str
        How records were chosen for each release.
    randomness : str
        Where the noise came from.
    assumptions : tuple of str
        What must hold for the guarantee to be true and cannot be checked here, beside the
        `premises` that every statement has.
    versions : mapping
        Software that derived the numbers.

    Examples
    --------
    >>> from noisewise.privacy import PoissonGaussian
    >>> s = Statement.derive(PoissonGaussian(1.0, 0.01, 1000), delta=1e-5, mechanism="DP-SGD")
    >>> Statement.from_json(s.to_json()) == s
    True
    """

    epsilon: float
    delta: float
    relation: Relation
    unit: str
    mechanism: str
    history: History
    accountant: str
    sampler: str
    randomness: str
    assumptions: tuple[str, ...]
    versions: Mapping[str, str] = field(hash=False)

    @classmethod
    def derive(
        cls,
        history: Event | Iterable[Event],
        *,
        delta: float,
        mechanism: str,
        relation: Relation | str = ADD_REMOVE,
        accountant: str = "pld",
        unit: str = "one record",
        sampler: str | None = None,
        randomness: str = "not stated",
        assumptions: Iterable[str] = (),
    ) -> Statement:
        """Derive epsilon from the history and state it.

        Raises
        ------
        UnsoundError
            If no finite epsilon follows from the history, or an assumption is known
            to be false (it begins with "NOT SOUND").
        """
        events = as_released(as_history(history), mechanism)
        mechanism = in_words_of_today(mechanism)
        relation = Relation.of(relation)
        sentences = tuple(dict.fromkeys(assumptions))
        for sentence in (*sentences, mechanism):
            if is_unsound(sentence):
                raise UnsoundError(f"no epsilon can be stated: {sentence}")
        epsilon = epsilon_of(events, delta=delta, relation=relation, accountant=accountant)
        if math.isinf(epsilon):
            raise UnsoundError(
                f"no finite epsilon follows from this history at delta {delta:g}: "
                "ask for a larger delta, or add more noise"
            )
        sampler = sampler_of(events, unit) if sampler is None else sampler
        for problem in (sampler_problem(sampler, events, unit), rows_problem(unit, events)):
            if problem is not None:
                raise ValueError(problem)
        for text in (unit, mechanism, sampler, randomness, *sentences):
            if problem := text_problem(text):
                raise ValueError(
                    "unit, mechanism, sampler, randomness, assumptions must say something in plain "
                    f"characters; one {problem}"
                )
        return cls(
            epsilon=epsilon,
            delta=float(delta),
            relation=relation,
            unit=unit,
            mechanism=mechanism,
            history=events,
            accountant=accountant,
            sampler=sampler,
            randomness=randomness,
            assumptions=sentences,
            versions=_versions(),
        )

    @classmethod
    def compose(
        cls, statements: Iterable[Statement], *, delta: float | None = None, accountant: str = "pld"
    ) -> Statement:
        """One statement for several releases from the same data.

        Parameters
        ----------
        statements : iterable of Statement
            All under one relation and for one unit.
        delta : float, optional
            Default: the sum of the deltas, which is what simple composition gives.
        accountant : {"pld", "rdp"}
        """
        parts = list(statements)
        if not parts:
            raise ValueError("statements must hold at least one statement, got none")
        for other in parts[1:]:
            if (other.relation, other.unit) != (parts[0].relation, parts[0].unit):
                raise RelationError(
                    "statements under different relations or units cannot be composed: "
                    f"{parts[0].relation}/{parts[0].unit} and {other.relation}/{other.unit}"
                )
        return cls.derive(
            [event for p in parts for event in as_released(p.history, p.mechanism)],
            delta=math.fsum(part.delta for part in parts) if delta is None else delta,
            mechanism="; ".join(dict.fromkeys(in_words_of_today(p.mechanism) for p in parts)),
            relation=parts[0].relation,
            accountant=accountant,
            unit=parts[0].unit,
            # Parts may be composed themselves: what two of them have in common is said once.
            sampler="; ".join(dict.fromkeys(s for p in parts for s in p.sampler.split("; "))),
            randomness="; ".join(dict.fromkeys(part.randomness for part in parts)),
            assumptions=[sentence for part in parts for sentence in part.assumptions],
        )

    @property
    def noise_multiplier(self) -> float | None:
        """Noise multiplier, if the history has a single kind of release with one."""
        return self._single("noise_multiplier")

    @property
    def sample_rate(self) -> float | None:
        """Sampling probability, if the history has a single kind of release with one."""
        return self._single("sample_rate")

    @property
    def unit_rows(self) -> int | None:
        """How many rows of a unit count at most, if epsilon was derived from such a bound."""
        return rows_of_units(self.history)

    @property
    def steps(self) -> int:
        """Number of private releases."""
        return sum(event.count for event in self.history)

    @property
    def premises(self) -> tuple[str, ...]:
        """What every statement of this relation, unit and kind of releases assumes."""
        return premises(self.relation, self.unit, self.history)

    def to_dict(self) -> dict[str, Any]:
        """Return the statement as plain values, with its digest."""
        content = self._content()
        return {**content, "digest": digest(content)}

    def _content(self) -> dict[str, Any]:
        content: dict[str, Any] = {
            "format": "noisewise-privacy-statement",
            "version": SCHEMA_VERSION,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "relation": self.relation.name,
            "unit": self.unit,
            "mechanism": self.mechanism,
            "noise_multiplier": self.noise_multiplier,
            "sample_rate": self.sample_rate,
            "steps": self.steps,
            "history": [event.to_dict() for event in self.history],
            "accountant": self.accountant,
            "sampler": self.sampler,
            "randomness": self.randomness,
            "assumptions": [*self.premises, *self.assumptions],
            "versions": dict(self.versions),
        }
        if self.unit_rows is not None:
            content["unit_rows"] = self.unit_rows
        return content

    def to_json(self, *, indent: int | None = 2) -> str:
        """Return the statement as JSON; see :func:`statement_schema`."""
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Statement:
        """Read a statement back.

        Raises
        ------
        StatementError
            If the text is not a statement, or any field was changed since it was
            written. Whether its epsilon is *right* is for
            :func:`noisewise.privacy.verify` to say.
        """
        return cls.from_dict(parse(text))

    @classmethod
    def from_dict(cls, fields: Any) -> Statement:
        """Read a statement from the plain values of :meth:`to_dict`."""
        check_shape(fields)
        content = {name: value for name, value in fields.items() if name != "digest"}
        if _digest(content) != fields["digest"]:
            raise StatementError(
                "the digest does not match: a field of this statement was changed after it was "
                "derived. Ask its author for the original file."
            )
        try:
            relation = Relation.of(fields["relation"])
            history = as_history(event_from_dict(event) for event in fields["history"])
            common = premises(relation, fields["unit"], history)
            statement = cls(
                epsilon=checks.positive("epsilon", fields["epsilon"], zero=True),
                delta=checks.probability("delta", fields["delta"], zero=True, one=False),
                relation=relation,
                unit=fields["unit"],
                mechanism=fields["mechanism"],
                history=history,
                accountant=checks.choice("accountant", fields["accountant"], ACCOUNTANTS),
                sampler=fields["sampler"],
                randomness=fields["randomness"],
                assumptions=tuple(fields["assumptions"][len(common) :]),
                versions=dict(fields["versions"]),
            )
        except (TypeError, ValueError, RecursionError) as error:
            raise StatementError(f"not a valid statement: {shorten(str(error))}") from error
        statement._check_consistent(content)
        return statement

    def _check_consistent(self, content: Mapping[str, Any]) -> None:
        """Refuse a file that says anything but what this statement would be written as."""
        written = self._content()
        if set(written) != set(content):
            raise StatementError(
                "unit_rows is there without a history of rows of units, or the other way round"
            )
        for name, value in written.items():
            if _digest({name: value}) != _digest({name: content[name]}):
                raise StatementError(
                    f"{name} is {shorten(content[name])}, which contradicts the other fields; they "
                    f"make it {shorten(value)}"
                )
        for sentence in (*self.assumptions, self.mechanism, self.randomness, self.unit):
            if is_unsound(sentence):
                raise StatementError(f"no epsilon can be stated: {shorten(sentence)}")
        for problem in (
            sampler_problem(self.sampler, self.history, self.unit),
            rows_problem(self.unit, self.history, self.assumptions),
        ):
            if problem is not None:
                raise StatementError(problem)

    def __str__(self) -> str:
        lines = [
            f"Privacy statement: epsilon {round_up(self.epsilon)}, delta {self.delta:g}",
            *(f"  {name:<12} {value}" for name, value in self._rows()),
            "  assumptions",
            *(f"    - {sentence}" for sentence in (*self.premises, *self.assumptions)),
        ]
        return "\n".join(lines)

    def card(self) -> str:
        """Return the statement as Markdown, for a model card."""
        rows = [
            ("epsilon", round_up(self.epsilon)),
            ("delta", f"{self.delta:g}"),
            *self._rows(),
        ]
        table = "\n".join(f"| {name} | {value.replace('|', '/')} |" for name, value in rows)
        assumptions = "\n".join(f"- {said}" for said in (*self.premises, *self.assumptions))
        return (
            "## Differential privacy\n\n"
            f"Whatever anyone does with this result, it reveals at most (epsilon = "
            f"{round_up(self.epsilon)}, delta = {self.delta:g}) about {self.unit}.\n\n"
            f"| | |\n|---|---|\n{table}\n\n"
            f"It holds under these assumptions:\n\n{assumptions}\n\n"
            f"Digest `{self.to_dict()['digest']}`; check it with `noisewise verify`.\n"
        )

    def _rows(self) -> list[tuple[str, str]]:
        noise = "; ".join(describe(event) for event in self.history) or "nothing was released"
        most = self.unit_rows
        parts = [part for event in self.history for part in event.parts]
        bounded = all(getattr(part, "rows", None) for part in parts)
        where = "" if bounded else " in releases that say so"
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return [
            ("relation", f"{self.relation} ({self.relation.sentence_of(self.unit, named=True)})"),
            ("unit", self.unit + (f"; at most {most} of its rows count{where}" if most else "")),
            ("mechanism", self.mechanism),
            ("releases", noise),
            ("sampler", self.sampler),
            ("accountant", self.accountant),
            ("randomness", self.randomness),
            ("software", versions),
        ]

    def _single(self, name: str) -> float | None:
        value: float | None = None
        if len(self.history) == 1:
            value = getattr(self.history[0], name, None)
        return value


def _digest(content: Mapping[str, Any]) -> str:
    try:
        return digest(content)
    except (ValueError, RecursionError) as error:  # e.g. half a surrogate pair
        raise StatementError("not a statement: a text in it is not Unicode") from error


def round_up(value: float, digits: int = 4) -> str:
    """Write a number with few digits, never smaller than it is.

    Examples
    --------
    >>> round_up(1.82824364), round_up(2.0), round_up(0.0)
    ('1.829', '2', '0')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) < 1e-290:  # too small to be scaled; up by more than the digits cut off
        return f"{value + abs(value) * 10.0 ** (1 - digits) + 5e-324:.{digits}g}"
    scale = 10.0 ** (digits - 1 - math.floor(math.log10(abs(value))))
    # The nudge keeps 0.1 + 0.2 from becoming 0.3001; it is far below one unit in the last place.
    rounded = math.ceil(value * scale * (1 - 1e-13)) / scale
    return f"{rounded:.{digits}g}"


def single_up(value: float) -> float:
    """Return the least number of single precision that is not smaller.

    Loggers keep float32, whose rounding would let an epsilon become smaller.

    Examples
    --------
    >>> single_up(0.5), single_up(0.7)
    (0.5, 0.7000000476837158)
    """
    nearest = np.float32(value)
    up = nearest if float(nearest) >= value else np.nextafter(nearest, np.float32(np.inf))
    return float(up)


def _versions() -> dict[str, str]:
    return {
        "noisewise": __version__,
        "dp-accounting": metadata.version("dp-accounting"),
        "python": platform.python_version(),
    }
