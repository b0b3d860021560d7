"""Look at a table before any privacy is spent: what its schema does to it, what will not work.

Everything here is exact and therefore not private. It is shown to whoever holds the records, on
their machine; nothing of it goes into a model, a statement or a report. A set-up that can only
waste the budget is refused. Whether it was refused depends on the records, so a refusal is no
result: it is not to be published, and who automates training on records that they may not see
switches the look off.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from noisewise.datasets.cells import SchemaError
from noisewise.datasets.columns import Drop
from noisewise.datasets.identifiers import holds_codes_again, looks_like_unit
from noisewise.datasets.reading import read_cells, read_table
from noisewise.datasets.schema import Schema
from noisewise.working import tell

__all__ = [
    "LOOKED",
    "Look",
    "PreflightError",
    "PreflightWarning",
    "look_at",
    "look_at_budget",
    "look_at_columns",
    "look_at_names",
    "look_at_names_alone",
    "look_at_numbers",
    "look_at_rows",
    "look_at_target",
]

#: Share of cells from which a column is worth a word, and from which it is worthless.
_MANY = 0.05
_FIFTH = 0.2
_ALL = 0.95
#: What is wrong with cells that are not known: of a list, and of a date.
_UNKNOWN = (
    "are not in its list of values and all count as one value, 'other': are they misspelt, or is "
    "the list too short?",
    "cannot be read as a day and count as missing. If days are written in several ways, list "
    'them: format = ["%d.%m.%Y", "%Y-%m-%d"]',
)
#: Below this, rows times epsilon buys little, and below that nothing.
_FEW = 1000.0
_NONE = 100.0
#: An attacker may be surer than 99.99 % whether somebody is among the records.
_EMPTY = 10.0
_NOT_PRIVATE = "A local look at the records, NOT private: keep these exact counts to yourself."


#: Said of every training that was looked at before, whatever was seen.
LOOKED = (
    "Whoever holds the records looked at them before training and would not have trained a model "
    "that is of no use; that there is a model at all is not covered."
)


class PreflightWarning(UserWarning):
    """Something that may disappoint, seen by a local look at the records."""


class PreflightError(SchemaError):
    """A set-up that could only waste the budget. Nothing was spent."""


@dataclass
class Look:
    """What was seen.

    Attributes
    ----------
    facts : list of str
        Lines of a table.
    warnings : list of str
        What may disappoint.
    stops : list of str
        What cannot work, with what to do.
    """

    facts: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    stops: list[str] = field(default_factory=list)

    def __add__(self, other: Look) -> Look:
        return Look(
            self.facts + other.facts, self.warnings + other.warnings, self.stops + other.stops
        )

    def __str__(self) -> str:
        lines = [_NOT_PRIVATE, *(f"  {fact}" for fact in self.facts)]
        lines += [f"Warning: {warning}" for warning in self.warnings]
        lines += [f"STOP: {stop}" for stop in self.stops]
        return "\n".join(lines)

    def require(self) -> None:
        """Raise if this could only waste the budget."""
        if self.stops:
            raise PreflightError(
                "this set-up would waste the privacy budget; nothing was spent.\n"
                + "\n".join(f"  - {stop}" for stop in self.stops)
                + "\n(This refusal comes from a look at the records, so it is not private: keep it "
                "to yourself. preflight=False, or --no-preflight, goes on all the same.)"
            )

    def tell(self, aloud: bool) -> None:
        """Print it, or warn of what may disappoint; raise what cannot work."""
        if aloud:
            tell(str(Look(self.facts, self.warnings)))
        self.require()  # says the rest
        if not aloud:
            for text in self.warnings:
                warnings.warn(f"{text} (a local look, not private)", PreflightWarning, stacklevel=7)


def look_at(path: str | Path, schema: Schema) -> Look:
    """Look at a file."""
    raw = read_cells(path, schema.file)
    found = Look([f"{len(raw):,} rows in {Path(path).name}"])
    absent = [name for name, column in schema.columns.items()
              if not isinstance(column, Drop) and name not in raw.columns]  # fmt: skip
    if schema.target is not None and schema.target not in raw.columns:
        absent.append(schema.target)
    if schema.unit is not None and schema.unit not in {*raw.columns, *absent}:
        absent.append(schema.unit)
    if absent:
        found.stops.append(
            f"the table has no column {', '.join(map(repr, absent))}; it has "
            + ", ".join(map(repr, raw.columns))
        )
    surplus = set(raw.columns) - set(schema.columns) - {schema.target, schema.unit}
    if surplus:
        found.warnings.append(f"not in the schema and not used: {', '.join(sorted(surplus))}")
    if absent:
        return found
    frame = read_table(path, schema)
    if schema.target is not None and len(frame) < len(raw):
        found.warnings.append(
            "rows without a readable target are left out: "
            f"{len(raw) - len(frame):,} of {len(raw):,}"
        )
        if len(raw) and not len(frame):
            found.stops.append(_unreadable_target(schema))
            return found
    found += look_at_rows(frame, schema) + look_at_columns(frame, schema)
    found += _look_at_cells(read_table(path, schema, keep_unlabelled=True), raw, schema)
    if schema.target is not None and schema.target in frame.columns:
        found += look_at_target(frame[schema.target], schema.classes, schema.target_range)
    return found


def _unreadable_target(schema: Schema) -> str:
    said = "the range and [file] decimal must fit it"
    if schema.classes is not None:
        said = "the schema must list the words that the file uses: "
        said += 'yes = ["ja"], no = ["nein"]' if len(schema.classes) == 2 else "values = [...]"
    return f"no cell of the target {schema.target!r} can be read as the schema says: {said}"


def _look_at_cells(frame: pd.DataFrame, raw: pd.DataFrame, schema: Schema) -> Look:
    """Count cells that hold something, but no number; and find columns that say nothing."""
    found = Look()
    for name, column in schema.columns.items():
        if isinstance(column, Drop):
            continue
        if frame[name].nunique(dropna=False) == 1:
            found.warnings.append(
                f"{name} says the same in every row, so nothing can be learnt from it: leave it "
                'out with kind = "drop"'
            )
        if column.kind != "numeric":
            continue
        unreadable = float((raw[name].notna() & frame[name].isna()).mean())
        if unreadable >= _MANY:
            found.warnings.append(
                f"{unreadable:.0%} of the cells of {name} hold something that is not a number and "
                "count as missing: notes, another decimal sign, or signs such as '<'?"
            )
    return found


def look_at_rows(frame: pd.DataFrame, schema: Schema | None, of_units: bool = False) -> Look:
    """Look for rows that are not people, unless units were given, and for copies."""
    found = Look()
    if not len(frame):
        found.stops.append("there are no rows to learn from")
        return found
    unit = None if schema is None else schema.unit
    if unit is not None and unit in frame.columns:
        different = int(frame[unit].nunique(dropna=False))
        if different < len(frame):
            found.facts.append(
                f"the rows belong to {different:,} units (different values of {unit})"
            )
    elif schema is not None and not of_units:
        declared = {n for n, column in schema.columns.items() if column.kind == "identifier"}
        for name in frame.columns:
            known = name in schema.columns or name == schema.target
            if name in declared or (not known and looks_like_unit(name)):
                distinct = frame[name].nunique(dropna=False)
                if 1 < distinct < len(frame):
                    found.warnings.append(
                        f"{name!r} names {distinct:,} different ones in {len(frame):,} rows: rows "
                        "are not people. The promise then is for one row, not for one person; "
                        f'say unit = "{name}" in the schema'
                    )
            elif not known and holds_codes_again(frame[name]):
                found.warnings.append(
                    f"{name!r} holds codes that come again. If they say whose a row is, rows are "
                    f'not people: say unit = "{name}" in the schema'
                )
    try:
        copies = int(frame.duplicated().sum())
    except TypeError:
        copies = 0
    if copies:
        found.facts.append(f"copies of another row: {copies:,} ({copies / len(frame):.1%})")
    return found


def look_at_names(frame: Any) -> Look:
    """Look for columns of a table without a schema that say whose a row is."""
    found = Look()
    for name in filter(looks_like_unit, getattr(frame, "columns", ())):
        distinct = frame[name].nunique()
        if 1 < distinct < len(frame):
            found.warnings.append(
                f"{name!r} names {distinct:,} different ones in {len(frame):,} rows: rows are not "
                "people. The promise then is for one row, not for one person; say whose rows they "
                "are (units= in Python, --unit COLUMN on the command line)"
            )
    return found


def look_at_names_alone(names: Iterable[str]) -> Look:
    """Look for columns of a table that an engine holds: nothing of its rows is read for this."""
    found = Look()
    for name in filter(looks_like_unit, names):
        found.warnings.append(
            f"{name!r} seems to say whose a row is. If it names somebody twice, rows are not "
            "people: the promise is for one row, not for one person, unless you say "
            f"--unit {name}"
        )
    return found


def look_at_columns(frame: pd.DataFrame, schema: Schema) -> Look:
    """Count what the schema clamps, does not know or finds missing."""
    found = Look()
    rows = max(1, len(frame))
    useless: list[str] = []
    codes: list[str] = []
    for column in schema.check(frame).columns:
        clamped, unknown, missing = (
            count / rows for count in (column.clamped, column.unknown, column.missing)
        )
        if max(clamped, unknown, missing) >= _MANY:
            found.facts.append(
                f"{column.name}: {clamped:.0%} clamped, {unknown:.0%} unknown, "
                f"{missing:.0%} missing"
            )
        if missing >= _ALL:
            useless.append(f"{column.name} (empty)")
        elif clamped >= _ALL * (1 - missing) and clamped:
            useless.append(f"{column.name} (all outside its range: another unit?)")
        elif unknown >= _ALL * (1 - missing) and unknown:
            useless.append(f"{column.name} (no value is in its list: misspelt, or codes?)")
        elif unknown >= _MANY:
            what = _UNKNOWN[column.kind == "date"]
            found.warnings.append(f"{unknown:.0%} of the cells of {column.name} {what}")
        elif clamped >= _FIFTH:
            found.warnings.append(
                f"{clamped:.0%} of the cells of {column.name} lie outside its range and are moved "
                "to its ends: is it the range of another unit?"
            )
        codes += [column.name] * bool(clamped and column.kind == "numeric")
    if codes:
        found.facts.append(
            f"some values lie outside their range and are moved to its end: {', '.join(codes)}. If "
            'they are codes for missing values, say so in the schema: [file] missing = ["-999"]'
        )
    used = sum(not isinstance(column, Drop) for column in schema.columns.values())
    if useless and len(useless) == used:
        found.stops.append(
            "no column carries any information: " + "; ".join(useless) + ". Correct the ranges and "
            "categories from public knowledge"
        )
    elif useless:
        found.warnings.append("these columns carry no information: " + "; ".join(useless))
    return found


def look_at_numbers(values: Any, bound: float) -> Look:
    """Count numbers beyond the bound at which they are clamped."""
    found = Look()
    outside = float(np.mean(np.abs(values) > bound)) if np.size(values) else 0.0
    if outside:
        found.facts.append(f"{outside:.1%} of the numbers lie beyond +-{bound:g} and are clamped")
    what = (
        f"{outside:.0%} of the numbers lie beyond +-{bound:g} and are clamped: X is in its natural "
        "units. Give a schema with public ranges (schema='table.toml'), scale by public constants, "
        "or raise input_bound"
    )
    if outside >= 0.5:
        found.stops.append(what)
    elif outside >= _MANY:
        found.warnings.append(what)
    return found


def look_at_target(target: Any, classes: Iterable[Any] | None, span: Any = None) -> Look:
    """Look at the balance of the classes, or at the share of targets outside their range."""
    found = Look()
    values = pd.Series(np.asarray(target))
    if not len(values):
        return found
    if classes is None:
        if span is None:
            return found
        numbers = pd.to_numeric(values, errors="coerce")
        outside = float(((numbers < span.low) | (numbers > span.high)).mean())
        found.facts.append(f"target: {outside:.1%} outside {span.low:g} to {span.high:g}")
        if outside >= _ALL:
            found.stops.append(
                f"{outside:.0%} of the targets lie outside their public range {span.low:g} to "
                f"{span.high:g}, so that all look alike: correct target_range (another unit?)"
            )
        elif outside >= _MANY:
            found.warnings.append(f"{outside:.0%} of the targets are clamped to their range")
        return found
    listed = list(classes)
    shares = [float((values == one).mean()) for one in listed]
    shown = ", ".join(f"{one} {share:.1%}" for one, share in zip(listed, shares, strict=True))
    found.facts.append(f"classes: {shown}")
    present = [one for one, share in zip(listed, shares, strict=True) if share]
    if len(present) < 2:
        only = f"only {present[0]!r}" if present else "none of them"
        found.stops.append(
            f"of the classes {listed} there is {only}: nothing can be learnt. Is the target "
            "another column, or does the schema write its classes in other words?"
        )
    elif min(share for share in shares if share) < 0.1:
        found.warnings.append(
            "the classes are far from balanced: accuracy says little here; look at "
            + ("the AUC and the recall" if len(listed) == 2 else "how often each class is found")
            + " (noisewise evaluate)"
        )
    return found


def look_at_budget(
    rows: int,
    epsilon: float,
    delta: float = 0.0,
    what: str = "rows",
    result: str = "models begin to be useful",
) -> Look:
    """Compare the number of rows, or of units if these are protected, with epsilon and delta."""
    found = Look()
    if epsilon > _EMPTY:
        found.warnings.append(
            f"epsilon {epsilon:g} promises next to nothing: up to about 1 the promise is strong, "
            f"and above {_EMPTY:g} little is left of it"
        )
    product = rows * epsilon
    if product < _FEW:
        expect = "nothing" if product < _NONE else "little"
        found.warnings.append(
            f"at epsilon {epsilon:g} with {rows:,} {what} expect {expect}: {what} times epsilon is "
            f"{product:,.0f}, and {result} from about {_FEW:,.0f} on"
        )
    if rows and delta > 1 / rows:
        found.warnings.append(
            f"delta {delta:g} is more than one over the {rows:,} {what}: publishing a few of them "
            f"as they are would keep such a promise. Take {1 / (10 * rows):.0e} or less"
        )
    return found
