"""How records become shares, and shares become sums: one class for each route.

* "vectors": a party counts its own records and shares the vector of all cells modulo 2^64, as a
  seed of 32 bytes for all servers but the last and a masked vector for that one. Its size does
  not depend on the number of records. Any number of servers. Where the study says so, it is
  longer, proves that it counts at most as many records as a party may have, and sums lie in a
  field.
* "functions": a party makes a pair of point-function keys for each record and domain. The size
  grows with the records and hardly with the cells. Two servers. Where the study says so, keys
  prove that they count one record each, and sums lie in a field.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from noisewise.ecdf.mechanisms import IntArray
from noisewise.federated.domain import Domain, Records
from noisewise.federated.fss import (
    Challenge,
    CheckedKeys,
    PointKeys,
    accepted,
    generate_checked,
    generate_point,
    key_bytes,
)
from noisewise.federated.fss.wire import round_tag
from noisewise.federated.network.measurement import domains_of
from noisewise.federated.network.study import Study
from noisewise.federated.sharing import additive, bounded
from noisewise.federated.sharing.bounded import BoundedCounts, Point
from noisewise.federated.sharing.field import PRIME, Field, reduced

__all__ = ["FunctionRoute", "Route", "VectorRoute", "route_of"]

_BATCH_BYTES = 8 << 20


class Route(Protocol):
    """A way from records over shares to sums."""

    @property
    def domains(self) -> tuple[Domain, ...]:
        """What is shared: a histogram over each of these."""
        ...

    @property
    def description(self) -> str:
        """The protocol in words."""
        ...

    def make(self, records: Records) -> list[bytes]:
        """Return one share for each server; together they reveal the records."""
        ...

    def size(self, server: int, records: int | None) -> int:
        """Return the bytes of a share."""
        ...

    def check(self, server: int, data: bytes, records: int | None) -> str:
        """Return what the shares of all servers have in common; ValueError if it is no share."""
        ...

    def add(self, server: int, shares: Iterable[bytes]) -> list[IntArray]:
        """Return this server's share of the histogram of all contributions, by domain."""
        ...

    def words(self, server: int, data: bytes) -> int:
        """Return how many words a server publishes about a share, where shares are checked."""
        ...

    def work(self, server: int, data: bytes) -> int:
        """Return about how many cells a server evaluates for that."""
        ...

    def proofs(
        self,
        server: int,
        shares: Sequence[bytes],
        records: Sequence[int | None],
        parts: Sequence[bytes],
        about: str,
    ) -> list[Field]:
        """Return what a server publishes about each share, none of which is empty.

        Parameters
        ----------
        server : int
        shares : sequence of bytes
        records : sequence of int or None
            What each party has said of its number of records.
        parts : sequence of bytes
            What each server contributed to the challenge.
        about : str
            What fixes the contributions that are checked with it.
        """
        ...

    def passes(self, published: Sequence[Field], parts: Sequence[bytes], about: str) -> bool:
        """Whether a contribution is valid, by what all servers published about it."""
        ...


@dataclass(frozen=True)
class _OfStudy:
    study: Study

    @cached_property
    def domains(self) -> tuple[Domain, ...]:
        """What is shared."""
        return domains_of(self.study)


@dataclass(frozen=True)
class VectorRoute(_OfStudy):
    """Secret-shared histograms."""

    @property
    def description(self) -> str:
        """The protocol in words."""
        servers = len(self.study.servers)
        if self.study.checked:
            return (
                f"histograms secret-shared in a field among {servers} servers, checked by fully "
                "linear proofs (Boneh et al. 2019)"
            )
        return f"histograms secret-shared modulo 2^64 among {servers} servers"

    @cached_property
    def _kinds(self) -> list[BoundedCounts]:
        """What is proven of each histogram, where it is checked."""
        most = self.study.most_records
        assert most is not None
        return [BoundedCounts(domain.cells, most) for domain in self.domains]

    @cached_property
    def _size(self) -> int:
        """Words of a share."""
        if self.study.checked:
            return sum(kind.length for kind in self._kinds)
        return self.cells

    def _last(self, server: int) -> bool:
        return server == len(self.study.servers) - 1

    def _held(self, server: int, data: bytes) -> list[Field]:
        """Return the elements of a checked share, by domain."""
        elements = (
            np.frombuffer(data, "<u8").astype(np.uint64)
            if self._last(server)
            else bounded.expand(data, self._size)
        )
        return list(np.split(elements, np.cumsum([kind.length for kind in self._kinds])[:-1]))

    @cached_property
    def cells(self) -> int:
        """Length of the vector of all cells."""
        return sum(domain.cells for domain in self.domains)

    def make(self, records: Records) -> list[bytes]:
        """Return seeds, and the masked vector for the last server."""
        if self.study.checked:
            elements = [
                kind.encode(domain.count(records))
                for kind, domain in zip(self._kinds, self.domains, strict=True)
            ]
            seeds, masked = bounded.share(np.concatenate(elements), len(self.study.servers))
            return [*seeds, masked.astype("<u8").tobytes()]
        vector = np.concatenate([domain.count(records) for domain in self.domains])
        seeds, masked = additive.share_compactly(vector, len(self.study.servers))
        return [*seeds, masked.astype("<u8").tobytes()]

    def size(self, server: int, records: int | None) -> int:
        """Return 32 bytes, or 8 for each cell (more where cells are checked)."""
        return 8 * self._size if self._last(server) else additive.SEED_BYTES

    def check(self, server: int, data: bytes, records: int | None) -> str:
        """Any bytes of the right length are a share (in the field), with nothing in common."""
        if len(data) != self.size(server, records):
            raise ValueError(f"{len(data)} bytes instead of {self.size(server, records)}")
        words = np.frombuffer(data, "<u8")
        if self.study.checked and self._last(server) and int(words.max(initial=0)) >= PRIME:
            raise ValueError("a number is not in the field")
        return ""

    def add(self, server: int, shares: Iterable[bytes]) -> list[IntArray]:
        """Add up vectors modulo 2^64, or counts in the field."""
        if self.study.checked:
            totals = [np.zeros(domain.cells, np.uint64) for domain in self.domains]
            for data in shares:
                for total, kind, held in zip(
                    totals, self._kinds, self._held(server, data), strict=True
                ):
                    total[:] = reduced(total + kind.counts(held))
            return [additive.as_signed(total) for total in totals]
        total = np.zeros(self.cells, np.uint64)
        for data in shares:
            if self._last(server):
                total += np.frombuffer(data, "<u8").astype(np.uint64)
            else:
                total += additive.expand(data, self.cells)
        ends = np.cumsum([domain.cells for domain in self.domains])[:-1]
        return list(np.split(additive.as_signed(total), ends))

    def words(self, server: int, data: bytes) -> int:
        """Return one word for each block of digits, and one more, for each domain."""
        return sum(kind.published_words for kind in self._kinds)

    def work(self, server: int, data: bytes) -> int:
        """Return the elements of a share."""
        return self._size

    def _points(self, parts: Sequence[bytes], about: str) -> list[Point]:
        return [
            Point.agreed(parts, about.encode() + domain.digest, kind.blocks)
            for domain, kind in zip(self.domains, self._kinds, strict=True)
        ]

    def proofs(
        self,
        server: int,
        shares: Sequence[bytes],
        records: Sequence[int | None],
        parts: Sequence[bytes],
        about: str,
    ) -> list[Field]:
        """Return the values of each share's polynomials at a common point."""
        points = self._points(parts, about)
        public = self.study.relation.count_is_public
        return [
            np.concatenate(
                [
                    kind.published(
                        held, point, first=server == 0, records=count if public else None
                    )
                    for kind, held, point in zip(
                        self._kinds, self._held(server, data), points, strict=True
                    )
                ]
            )
            for data, count in zip(shares, records, strict=True)
        ]

    def passes(self, published: Sequence[Field], parts: Sequence[bytes], about: str) -> bool:
        """Whether all histograms count what they may."""
        ends = np.cumsum([kind.published_words for kind in self._kinds])
        if any(part.size != ends[-1] for part in published):
            raise ValueError("a proof has the wrong length")
        by_domain = zip(*(np.split(part, ends[:-1]) for part in published), strict=True)
        points = self._points(parts, about)
        return all(
            bounded.passes(found, point) for found, point in zip(by_domain, points, strict=True)
        )


@dataclass(frozen=True)
class FunctionRoute(_OfStudy):
    """Point-function keys, one pair for each record and domain."""

    @property
    def description(self) -> str:
        """The protocol in words."""
        said = "function secret sharing: a pair of distributed point functions for each record"
        if self.study.checked:
            said += ", checked by a sketch (Boneh et al. 2021)"
        return said

    @property
    def _keys(self) -> type[PointKeys]:
        return CheckedKeys if self.study.checked else PointKeys

    @cached_property
    def _lengths(self) -> tuple[int, ...]:
        return tuple(key_bytes(self._keys.kind, domain.levels) for domain in self.domains)

    def _tag(self, domain: Domain) -> bytes:
        return round_tag(self.study.fingerprint, domain.digest)

    def make(self, records: Records) -> list[bytes]:
        """Return the keys of all records, domain after domain."""
        shares = [b"", b""]
        generate = generate_checked if self.study.checked else generate_point
        for domain in self.domains:
            pair = generate(domain.place(records), domain.levels, self._tag(domain))
            for server, keys in enumerate(pair):
                shares[server] += keys.to_bytes()
        return shares

    def size(self, server: int, records: int | None) -> int:
        """Return the bytes of all keys."""
        return sum(self._lengths) * (records or 0)

    def check(self, server: int, data: bytes, records: int | None) -> str:
        """Read every key; return the SHA-256 of what is equal in both keys of every pair.

        Keys whose public parts differ are not a pair, and their values would not cancel.
        """
        if records is None or len(data) != self.size(server, records):
            raise ValueError(f"{len(data)} bytes instead of {self.size(server, records)}")
        common = hashlib.sha256()
        if records:
            for domain, part in zip(self.domains, self._cut(data), strict=True):
                keys = self._keys.from_bytes(part, domain.levels, server, self._tag(domain))
                table = keys.table  # a copy of the bytes, of which only the root is secret
                table["server"], table["root"] = 0, 0
                common.update(table.tobytes())
        return common.hexdigest()

    def add(self, server: int, shares: Iterable[bytes]) -> list[IntArray]:
        """Evaluate all keys at all cells and add up."""
        totals = [np.zeros(domain.cells, np.uint64) for domain in self.domains]
        for batch in _batches(shares):
            columns = zip(*(self._cut(data) for data in batch), strict=True)
            for domain, total, parts in zip(self.domains, totals, columns, strict=True):
                keys = self._keys.from_bytes(
                    b"".join(parts), domain.levels, server, self._tag(domain)
                )
                total += keys.sum_over_domain()[: domain.cells]
                if self.study.checked:
                    total[:] = reduced(total)
        return [additive.as_signed(total) for total in totals]

    def challenges(self, parts: Sequence[bytes], about: str) -> list[Challenge]:
        """Return the random numbers of each domain.

        Parameters
        ----------
        parts : sequence of bytes
            What each server contributed.
        about : str
            What fixes the contributions that are checked with them.
        """
        return [
            Challenge.agreed(list(parts), about.encode() + d.digest, d.cells, d.levels)
            for d in self.domains
        ]

    def words(self, server: int, data: bytes) -> int:
        """Return three words for each key."""
        return 3 * len(self.domains) * (len(data) // sum(self._lengths))

    def work(self, server: int, data: bytes) -> int:
        """Return all cells, for each record."""
        cells = sum(1 << domain.levels for domain in self.domains)
        return cells * max(1, len(data) // sum(self._lengths))

    def passes(self, published: Sequence[Field], parts: Sequence[bytes], about: str) -> bool:
        """Whether each key counts one record."""
        first, second = (part.reshape(-1, 3) for part in published)
        return bool(accepted(first, second).all())

    def proofs(
        self,
        server: int,
        shares: Sequence[bytes],
        records: Sequence[int | None],
        parts: Sequence[bytes],
        about: str,
    ) -> list[Field]:
        """Return what a server publishes about each share, domain after domain; none is empty."""
        challenges = self.challenges(parts, about)
        columns = zip(*(self._cut(data) for data in shares), strict=True)
        keys_of = [len(data) // sum(self._lengths) for data in shares]
        ends = np.cumsum(keys_of)[:-1]
        found = []
        for domain, column, challenge in zip(self.domains, columns, challenges, strict=True):
            joined = b"".join(column)
            keys = CheckedKeys.from_bytes(joined, domain.levels, server, self._tag(domain))
            found.append(np.split(keys.proofs(challenge), ends))
        return [np.concatenate(rows).reshape(-1) for rows in zip(*found, strict=True)]

    def _cut(self, data: bytes) -> list[memoryview]:
        records = len(data) // sum(self._lengths)
        ends = np.cumsum([length * records for length in self._lengths]).tolist()
        view = memoryview(data)
        return [view[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def _batches(shares: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Group shares to a few megabytes, so that memory does not grow with their number."""
    batch: list[bytes] = []
    size = 0
    for data in shares:
        if not data:  # of a party without records, whose number is private
            continue
        batch.append(data)
        size += len(data)
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def route_of(study: Study) -> Route:
    """Return the route that a study has chosen."""
    return FunctionRoute(study) if study.route == "functions" else VectorRoute(study)
