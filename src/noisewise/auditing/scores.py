"""Scores of canaries that were in the data and of canaries that were not.

A :class:`Scores` carries, beside the numbers, what decides which bounds are valid
on them: whether they are independent, whether fair coins chosen by the auditor put
the canaries in, what the adversary was allowed to see and which datasets were
compared.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from noisewise import checks
from noisewise.privacy import ADD_REMOVE, Relation

__all__ = ["DESIGNS", "OBSERVED", "Scores"]

#: What one score was computed from.
#: batch: one step whose batch the auditor chose, so that sampling plays no part.
#: step: one step that drew its own batch.
#: run: everything that is released.
OBSERVED = ("batch", "step", "run")

#: How the scores depend on each other.
#: independent: each comes from its own run, or from its own noise by construction.
#: orthogonal: canaries of one step that do not meet if the mechanism is what it claims.
#: one-run: canaries of one training, which may influence each other.
DESIGNS = ("independent", "orthogonal", "one-run")


@dataclass(frozen=True)
class Scores:
    """Scores of canaries; larger must mean "more likely in the data".

    Parameters
    ----------
    inside, outside : array-like of float
        Scores of canaries that were in the data, and that were not.
    design : {"independent", "orthogonal", "one-run"}
        How the scores depend on each other, see :data:`DESIGNS`.
    coins : bool
        Whether each canary was put in by its own fair coin. One-run bounds need it.
    midpoint : float, optional
        A threshold fixed before any score was seen, e.g. half of a canary's
        contribution. It sharpens the bounds that look at all thresholds.
    relation : {"add-remove", "replace-one"}
        What differs between "in" and "out": nothing in the canary's place, or
        another record.
    observed : {"batch", "step", "run"}
        What one score was computed from; see
        :data:`OBSERVED`.
    threat_model : str
        What the adversary sees, in words.
    rows : int
        Rows of one canary: more than one are a unit, of which a claim about single records says
        nothing.
    assumptions : tuple of str
        What the attack took for granted.

    Examples
    --------
    >>> Scores([1.0, 2.0], [0.0, 0.5, 1.0]).counts
    (2, 3)
    """

    inside: NDArray[np.float64]
    outside: NDArray[np.float64]
    design: str = "independent"
    coins: bool = False
    midpoint: float | None = None
    relation: Relation = ADD_REMOVE
    observed: str = "run"
    threat_model: str = "an adversary who sees the score of a chosen record"
    assumptions: tuple[str, ...] = field(default=())
    rows: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "inside", _checked("inside", self.inside))
        object.__setattr__(self, "outside", _checked("outside", self.outside))
        object.__setattr__(self, "relation", Relation.of(self.relation))
        checks.choice("design", self.design, DESIGNS)
        checks.choice("observed", self.observed, OBSERVED)
        object.__setattr__(self, "rows", checks.integer("rows", self.rows, minimum=1))
        if self.midpoint is not None:
            object.__setattr__(self, "midpoint", checks.finite("midpoint", self.midpoint))

    @property
    def counts(self) -> tuple[int, int]:
        """Number of canaries in and out."""
        return self.inside.size, self.outside.size

    def perfect(self) -> Scores:
        """Scores of an attack that never errs, for as many canaries.

        What a bound makes of them is the largest epsilon it could have certified.
        """
        middle = 0.0 if self.midpoint is None else self.midpoint
        return Scores(
            middle + 1.0 + np.arange(self.inside.size) / self.inside.size,
            middle - 2.0 + np.arange(self.outside.size) / self.outside.size,
            design=self.design,
            coins=self.coins,
            midpoint=self.midpoint,
            relation=self.relation,
            observed=self.observed,
            rows=self.rows,
        )

    @classmethod
    def read(cls, path: str | Path, **options: Any) -> Scores:
        """Read scores from a file.

        An ``.npz`` file holds two arrays called ``inside`` and ``outside``. A
        ``.csv`` file has a header with the columns ``score`` and ``inside`` (1 for
        canaries in the data, 0 for the others). `options` go to the constructor.
        """
        place = Path(path)
        if not place.is_file():
            raise ValueError(f"no file of scores at {place}")
        if place.suffix == ".npz":
            with np.load(place, allow_pickle=False) as arrays:
                missing = {"inside", "outside"} - set(arrays.files)
                if missing:
                    raise ValueError(
                        f"{place} must hold arrays called 'inside' and 'outside', "
                        f"it holds {sorted(arrays.files)}"
                    )
                return cls(arrays["inside"], arrays["outside"], **options)
        if place.suffix == ".csv":
            inside, outside = _read_csv(place)
            return cls(np.asarray(inside), np.asarray(outside), **options)
        raise ValueError(f"scores are read from .csv or .npz files, got {place.name!r}")


def _read_csv(place: Path) -> tuple[list[float], list[float]]:
    inside: list[float] = []
    outside: list[float] = []
    with place.open(newline="", encoding="utf-8") as stream:
        rows = csv.DictReader(stream)
        names = rows.fieldnames or []
        if not {"score", "inside"} <= set(names):
            raise ValueError(f"{place} must have columns 'score' and 'inside', it has {names}")
        for number, row in enumerate(rows, start=2):
            membership = (row["inside"] or "").strip().lower()
            if membership not in {"0", "1", "true", "false"}:
                raise ValueError(
                    f"{place}, line {number}: 'inside' must be 1 or 0, got {row['inside']!r}"
                )
            try:
                score = float(row["score"])
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"{place}, line {number}: 'score' must be a number, got {row['score']!r}"
                ) from error
            (inside if membership in {"1", "true"} else outside).append(score)
    return inside, outside


def _checked(name: str, values: ArrayLike) -> NDArray[np.float64]:
    # A copy, because the caller may go on to change its own array.
    array = np.array(values, dtype=np.float64, copy=True)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(
            f"{name} must be a non-empty list of scores, got shape {array.shape}; "
            "an audit needs canaries both in and out of the data"
        )
    bad = int((~np.isfinite(array)).sum())
    if bad:
        raise ValueError(
            f"{name} must be finite, got {bad} NaN or infinite scores of {array.size}; "
            "a training that diverged has to be repeated or scored otherwise"
        )
    array.setflags(write=False)
    return array
