"""Who is protected across parties: one record, a patient with all rows, a whole party or device.

A party bounds what it holds of a unit before anything leaves it: of more rows than may count, some
are chosen at random. Parties that have no common name for a unit cannot do so together, so a unit
that several of them know counts at each (docs/proofs/units.md#parties).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from noisewise import checks
from noisewise.ecdf.mechanisms import IntArray
from noisewise.errors import UnsoundError
from noisewise.federated.domain import Records
from noisewise.privacy import Randomness, Relation, unit_codes
from noisewise.release import (
    EACH_PARTY,
    ONE_ROW,
    Contribution,
    Units,
    as_units,
    bound_of,
    chosen_among_all,
    per_unit,
    rows_at_most,
)

__all__ = ["EACH_RECORD", "Protected", "canonical"]

KINDS = ("record", "identifier", "party", "device")
NAMES = {
    "record": "one record",
    "identifier": Units([]).name,
    "party": "one party with all its records",
    "device": "one device with all its records",
}


@dataclass(frozen=True)
class Protected:
    """The unit of a release across parties.

    Parameters
    ----------
    kind : {"record", "identifier", "party", "device"}
        "identifier": all rows with one identifier at a party (a patient at a hospital). "party",
        "device": all that one of them holds.
    name : str
        For the statement, "one patient"; by default the kind's own words.
    rows : int
        How many rows of a unit count at a party, at most; a public number.
    parties : int
        How many parties may hold rows of one unit.
    common : bool
        Whether identifiers are common to all parties, which choose the rows together.

    Examples
    --------
    >>> Protected("identifier", "one patient", rows=2, parties=3).contribution.rows
    6
    >>> Protected("party", rows=500).name
    'one party with all its records'
    """

    kind: Literal["record", "identifier", "party", "device"] = "record"
    name: str = ""
    rows: int = 1
    parties: int = 1
    common: bool = False

    def __post_init__(self) -> None:
        checks.choice("kind", self.kind, KINDS)
        object.__setattr__(self, "name", self.name or NAMES[self.kind])
        for field in ("rows", "parties"):
            checked = checks.integer(field, getattr(self, field), minimum=1, maximum=1 << 20)
            object.__setattr__(self, field, checked)
        plain = (self.name, self.rows, self.parties, self.common) == (NAMES["record"], 1, 1, False)
        if self.kind == "record" and not plain:
            raise ValueError(
                "what protects one record has no name, rows or parties; say whose rows are bounded "
                "together: kind='identifier', 'party' or 'device'"
            )
        if self.kind in ("party", "device") and (self.parties > 1 or self.common):
            raise ValueError(f"a {self.kind} is one party: leave out parties and common")

    @classmethod
    def of(cls, units: Any, max_per_unit: int, parties: int) -> Protected:
        """Read what a user says of the units of so many parties."""
        limit = rows_at_most(units, max_per_unit)
        if units is None:
            return EACH_RECORD
        if isinstance(units, str):
            checks.choice("units", units, ("party", "device"))
            return cls(units, rows=limit)  # type: ignore[arg-type]
        given = as_units(units)
        if given.rule == "weights":
            raise ValueError("rule='weights' cannot be had here, where whole rows are counted")
        held = parties if given.parties is None else min(parties, given.parties)
        held = 1 if given.common else held
        return cls("identifier", given.name, limit, held, given.common)

    @property
    def contribution(self) -> Contribution:
        """What one unit may add to counts."""
        if self.kind == "record":
            return ONE_ROW
        if self.kind == "identifier":
            told = Units([], self.name, "rows", None if self.common else self.parties, self.common)
            return bound_of(told, self.rows, max(1, self.parties))
        said: tuple[str, ...] = (
            f"all records of a {self.kind} are one unit: at most {self.rows} of them count, chosen "
            "at random",
            f"that a {self.kind} takes part is not hidden, only its records: all of them against "
            "none. Under add-remove one set of records against another is a change of two units",
        )
        if self.kind == "device":
            said += ("nobody has a second device; whoever has is protected less",)
        return Contribution(self.rows, unit=self.name, sentences=said)

    def check(self, relation: Relation) -> None:
        """Refuse what cannot be true."""
        if relation.count_is_public and self.contribution.rows > 1:
            raise UnsoundError(
                "a unit of several rows that is replaced changes the number of rows, which is "
                "public under replace-one: use relation='add-remove', or let one row of a unit at "
                "one party count"
            )

    def bounded(self, records: Records, rng: Randomness) -> Records:
        """Return the rows of a party that count: of each unit no more than may.

        The choice follows from the rows, whatever their order, and from `rng`.
        """
        if self.kind == "record":
            if records.codes is not None:
                raise ValueError(
                    "units were given, but what is asked protects single records: ask for units, "
                    "or leave them out"
                )
            return records
        if self.kind == "identifier" and records.codes is None:
            raise ValueError(
                f"protected is {self.name}, and it is not known which rows are one unit's: say "
                "which column holds its identifiers"
            )
        codes = np.zeros(len(records), np.int64) if self.kind != "identifier" else records.codes
        ordered = canonical(Records(records.values, records.positive, codes))
        assert ordered.codes is not None
        chooser = per_unit(Units([], rule="rows"), self.rows, rng)
        assert chooser is not None
        return ordered.only(chooser.chosen(ordered.codes), self)

    def require(self, records: Records) -> None:
        """Raise unless these records were bounded for this."""
        if (records.bounded_by or EACH_RECORD) != self or records.codes is not None:
            raise UnsoundError(
                f"protected is {self.name}, and these records were not bounded for it: with their "
                "rows as they are one unit may count any number of times. Use "
                "Protected.bounded(records, rng), as the curves of noisewise.federated do"
            )

    def at_parties(self, parties: Sequence[Records], units: Any, rng: Randomness) -> list[Records]:
        """Bound the rows of all parties in one process."""
        if self.kind != "identifier":
            return [self.bounded(party, own) for party, own in _each(parties, rng)]
        given = as_units(units)
        each = given.identifiers
        if not hasattr(each, "__len__") or len(each) != len(parties):
            raise ValueError(f"{EACH_PARTY}: here {len(parties)}")
        codes = [unit_codes(mine, len(party)) for mine, party in zip(each, parties, strict=True)]
        if self.common:
            chooser = per_unit(given, self.rows, rng, several=True)
            assert chooser is not None
            rows, _ = chosen_among_all(given, chooser)
            return [party.only(own, self) for party, own in zip(parties, rows, strict=True)]
        held = [
            Records(party.values, party.positive, own)
            for party, own in zip(parties, codes, strict=True)
        ]
        return [self.bounded(party, own) for party, own in _each(held, rng)]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Protected:
        """Return what :meth:`to_dict` described, checked."""
        if not isinstance(fields, Mapping) or set(fields) - set(cls.__dataclass_fields__):
            raise ValueError("not a unit of a question")
        if not isinstance(fields.get("common", False), bool):
            raise ValueError("common must be true or false")
        return cls(**fields)


EACH_RECORD = Protected()


def _each(parties: Sequence[Records], rng: Randomness) -> list[tuple[Records, Randomness]]:
    return list(zip(parties, rng.spawn(len(parties)), strict=True))


def canonical(records: Records) -> Records:
    """Return the same rows of the same units in an order that follows from them alone.

    A query has no order, and what a party sends must be the same to the bit if it is sent again.
    """
    assert records.codes is not None
    columns = [records.values.astype("<f8")]
    if records.positive is not None:
        columns.append(records.positive.astype("<f8"))
    order = np.lexsort((*reversed(columns), records.codes))
    table = np.column_stack(columns)[order]
    _, starts, counts = np.unique(records.codes[order], return_index=True, return_counts=True)
    contents = [
        hashlib.sha256(table[start : start + count].tobytes()).digest()
        for start, count in zip(starts.tolist(), counts.tolist(), strict=True)
    ]
    units = sorted(range(len(contents)), key=contents.__getitem__)
    rows = [order[starts[unit] : starts[unit] + counts[unit]] for unit in units]
    kept: IntArray = np.concatenate(rows) if rows else np.zeros(0, np.int64)
    codes = np.repeat(np.arange(len(units)), counts[units] if units else 0)
    positive = None if records.positive is None else records.positive[kept]
    return Records(records.values[kept], positive, codes.astype(np.int64))
