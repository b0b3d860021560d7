"""Whether several workers hold what they should: one copy each, or parts that do not overlap.

Units of several rows are divided as units: a unit of which two workers hold rows would be bounded
twice. Where each was given the whole, each takes every W-th unit, and they compare records and who
they belong to; where each was given a part, they compare digests of the units' identifiers.

A record that two workers hold counts twice in a step, and the printed sensitivity would be half of
the true one. So before anything is charged the workers compare keyed digests of their records
(:mod:`noisewise.training.digests`) under a key that worker 0 draws for this comparison alone: of
all records in order where each was given the whole, of each record where each was given a part.
Rows that are equal but belong to different people look like one that is held twice; identifiers,
such as row numbers of the undivided dataset, tell them apart.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from noisewise.privacy import identifiers_of
from noisewise.training.digests import (
    Digests,
    changing,
    identifier_digests,
    layout_of,
    record_digests,
    unit_digests,
    unit_kinds,
)
from noisewise.training.errors import StepError
from noisewise.training.records import Records

__all__ = [
    "Exchange",
    "compare_copies",
    "compare_parts",
    "compare_unit_copies",
    "compare_unit_parts",
]

_IDENTIFIERS = "Distributed(identifiers=...)"


class Exchange(Protocol):
    """What a comparison needs of the workers."""

    worker: int
    workers: int

    def agree(self, flag: bool) -> bool:
        """Whether the flag is set on any worker."""
        ...

    def each(self, tensor: Tensor) -> list[Tensor]:
        """Every worker's tensor, all of one shape."""
        ...

    def from_worker(self, worker: int, tensor: Tensor) -> Tensor:
        """Return that worker's tensor; the others give one of the same shape."""
        ...


def compare_copies(team: Exchange, records: Records | None, identifiers: Any) -> str:
    """Raise unless all workers hold the same records in the same order.

    Returns
    -------
    str
        What the statement must say about it.
    """
    key, found = _begin(team, records, identifiers)
    if found is None:
        return ""
    if _differ(team, found.tobytes()):
        # Only now, for a better word: the sum of all digests does not depend on the order.
        shuffled = not _differ(team, np.sum(found, dtype=np.uint64).tobytes())
        what = "the same records in different orders" if shuffled else "different records"
        random = records is not None and changing(records, key, found) and identifiers is None
        if team.agree(random):
            raise _changes()
        raise StepError(
            f"the workers were given {what}. Each draws from every {team.workers}th record of its "
            "copy, so a record would belong to several workers and count more than once. Give all "
            "the same dataset, read or shuffled with one seed; or, if these are parts that do not "
            "overlap, say so with team=Distributed(data='shard'). Nothing was charged."
        )
    return _said(team, identifiers)


def compare_parts(
    team: Exchange, records: Records | None, identifiers: Any, declared: int | None
) -> str:
    """Raise unless no two workers hold the same record, and no part is missing.

    Parameters
    ----------
    team : Exchange
    records : Records, optional
    identifiers : sequence, optional
    declared : int, optional
        The number of records that was declared public.
    """
    key, found = _begin(team, records, identifiers)
    if found is None:
        return ""
    if identifiers is None and records is not None and team.agree(changing(records, key, found)):
        raise _changes()
    counts = [int(count) for count in team.each(torch.tensor([len(found)]))]
    if not all(counts):
        raise StepError(
            f"worker {counts.index(0)} was given no record: a part of the data is missing. Give "
            "every worker its part, or start fewer workers. Nothing was charged."
        )
    if team.agree(_overlaps(team, found, counts)):
        wrong = (
            "the same identifier was given to two workers, or twice to one"
            if identifiers is not None
            else "the same record was given to two workers"
        )
        raise StepError(
            f"{wrong}; it would count more than once in a step. Cut one dataset into parts that do "
            "not overlap (the same shuffling on every worker, then every W-th record), or give "
            "all of it to every worker and let noisewise divide it (data='whole'). If rows of "
            "different people are equal, tell them apart by their numbers in the undivided "
            f"dataset: {_IDENTIFIERS}. Nothing was charged."
        )
    # A declared number may be a public approximation, but no part can be missing from it.
    if declared is not None and 2 * abs(sum(counts) - declared) >= min(counts):
        raise StepError(
            f"{declared} records were declared, but the workers together hold far fewer or more: a "
            "part is missing, or one too many was given. Nothing was charged."
        )
    if identifiers is not None:
        return _said(team, identifiers)
    return (
        f"The caller divided the records among {team.workers} workers. Before training no two of "
        "them held equal rows; rows of one record that were changed on the way would not have been "
        "recognised."
    )


def compare_unit_copies(team: Exchange, codes: Tensor) -> None:
    """Raise unless all workers say the same of whose rows the records are."""
    if _differ(team, codes.numpy().tobytes()):
        raise StepError(
            "the workers were given units that differ: a row is one unit's for one of them and "
            "another's for the next, so that a unit would be divided among them. Give all the "
            "same identifiers in the order of the rows. Nothing was charged."
        )


def compare_unit_parts(team: Exchange, units: Any, declared: int | None) -> str:
    """Raise unless no two workers hold rows of one unit.

    Parameters
    ----------
    team : Exchange
    units : sequence
        The identifier of each row of this worker. What leaves it are keyed digests.
    declared : int, optional
        The number of units that was declared public.
    """
    key, kinds = _key(team), [""]

    def read() -> Digests:
        names = identifiers_of(units)
        kinds[0] = unit_kinds(names)
        return unit_digests(names, key)

    found = _together(team, read)
    counts = [int(count) for count in team.each(torch.tensor([len(found)]))]
    if not all(counts):
        raise StepError(
            f"worker {counts.index(0)} was given no unit: a part of the data is missing. Give "
            "every worker its part, or start fewer workers. Nothing was charged."
        )
    if _differ(team, kinds[0].encode()):
        raise StepError(
            "the workers' units have identifiers of different kinds, such as numbers here and text "
            "there; one person's might differ, and the unit would count twice in a step. Read them "
            "in the same way on all workers, for example all as text. Nothing was charged."
        )
    if team.agree(_overlaps(team, found, counts)):
        raise StepError(
            "two workers were given rows of the same unit; each would bound what it holds, and the "
            "unit would count twice in a step. Give all rows of a unit to one worker, or all of "
            "the data to every worker and let noisewise divide the units (data='whole'). Nothing "
            "was charged."
        )
    if declared is not None and 2 * abs(sum(counts) - declared) >= min(counts):
        raise StepError(
            f"{declared} units were declared, but the workers together hold far fewer or more: a "
            "part is missing, or one too many was given. Nothing was charged."
        )
    return (
        f"The caller divided the units among {team.workers} workers. Before training no two of "
        "them held rows with the same identifier."
    )


def _said(team: Exchange, identifiers: Any) -> str:
    if identifiers is None:
        return ""
    return (
        f"The {team.workers} workers' records were told apart by identifiers that the caller gave, "
        "not by their content."
    )


def _begin(
    team: Exchange, records: Records | None, identifiers: Any
) -> tuple[bytes, Digests | None]:
    """Agree on a key, and return digests under it if there are records."""
    key = _key(team)
    layout = f"{layout_of(records)}, {identifiers is not None}"
    if _differ(team, layout.encode()):
        raise StepError(
            "the workers were given records of different kinds, types or shapes, or only some were "
            "given data or identifiers; equal records could not be recognised. Prepare the data "
            "in the same way on all workers. Nothing was charged."
        )
    if records is None:
        return key, None
    if identifiers is not None:
        found = _together(team, lambda: _of_identifiers(identifiers, len(records), key))
    else:
        found = _together(team, lambda: record_digests(records, key))
    return key, found


def _key(team: Exchange) -> bytes:
    """Draw a key for this comparison alone, the same for all workers."""
    own = torch.frombuffer(bytearray(secrets.token_bytes(32)), dtype=torch.uint8)
    return team.from_worker(0, own).numpy().tobytes()


def _together(team: Exchange, read: Callable[[], Digests]) -> Digests:
    """Let every worker read its records; if one cannot, all stop."""
    failure: Exception | None = None
    found = np.empty(0, dtype=np.uint64)
    try:
        found = read()
    except Exception as error:
        failure = error
    if team.agree(failure is not None):
        if failure is None:
            raise StepError("another worker could not read its records, see there")
        if type(failure) is TypeError and "units" not in str(failure):
            raise StepError(
                f"{failure}. Tell records apart by {_IDENTIFIERS}, one number or word per record, "
                "such as its row in the undivided dataset or the name of its file."
            ) from None
        raise failure
    return found


def _of_identifiers(identifiers: Any, count: int, key: bytes) -> Digests:
    found = identifier_digests(identifiers, key)
    if len(found) != count:
        raise StepError(
            f"identifiers name every record that a worker was given: {count} are needed, got "
            f"{len(found)}"
        )
    if len(np.unique(found)) != count:
        raise StepError(
            "two records of a worker were given the same identifier; give every record its own, "
            "such as its row in the undivided dataset"
        )
    return found


def _differ(team: Exchange, content: bytes) -> bool:
    """Whether the workers' contents differ; only a hash of them is exchanged."""
    own = hashlib.blake2b(content, digest_size=32).digest()
    held = torch.frombuffer(bytearray(own), dtype=torch.uint8)
    return any(not torch.equal(held, other) for other in team.each(held))


def _overlaps(team: Exchange, found: Digests, counts: Sequence[int]) -> bool:
    """Whether any of this worker's digests is one of another worker's."""
    overlap = False
    for worker, count in enumerate(counts):
        own = found if worker == team.worker else np.empty(count, dtype=np.uint64)
        sent = team.from_worker(worker, torch.from_numpy(own.view(np.int64).copy()))
        if worker != team.worker:
            overlap |= bool(np.isin(found, sent.numpy().view(np.uint64)).any())
    return overlap


def _changes() -> StepError:
    return StepError(
        "records of the dataset read differently each time (random augmentation inside it?), so "
        "the workers' records cannot be compared. Move the augmentation to "
        f"make_private(augmentation=...), or tell records apart by {_IDENTIFIERS}, one number or "
        "word per record. Nothing was charged."
    )
