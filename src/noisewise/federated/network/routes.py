"""How records become shares, and shares become sums: one class for each route.

* "vectors": a party counts its own records and shares the vector of all cells modulo 2^64, as a
  seed of 32 bytes for all servers but the last and a masked vector for that one. Its size does
  not depend on the number of records. Any number of servers.
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

from noisewise.ecdf.mechanisms.protocol import IntArray
from noisewise.federated.domain import Domain, Records
from noisewise.federated.fss import (
    Challenge,
    CheckedKeys,
    PointKeys,
    generate_checked,
    generate_point,
    key_bytes,
)
from noisewise.federated.fss.wire import round_tag
from noisewise.federated.network.measurement import domains_of
from noisewise.federated.network.study import Study
from noisewise.federated.sharing import additive
from noisewise.federated.sharing.field import Field, reduced

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
        return f"histograms secret-shared modulo 2^64 among {servers} servers"

    @cached_property
    def cells(self) -> int:
        """Length of the vector of all cells."""
        return sum(domain.cells for domain in self.domains)

    def make(self, records: Records) -> list[bytes]:
        """Return seeds, and the masked vector for the last server."""
        vector = np.concatenate([domain.count(records) for domain in self.domains])
        seeds, masked = additive.share_compactly(vector, len(self.study.servers))
        return [*seeds, masked.astype("<u8").tobytes()]

    def size(self, server: int, records: int | None) -> int:
        """Return 32 bytes, or 8 for each cell."""
        last = server == len(self.study.servers) - 1
        return 8 * self.cells if last else additive.SEED_BYTES

    def check(self, server: int, data: bytes, records: int | None) -> str:
        """Any bytes of the right length are a share, and they have nothing in common."""
        if len(data) != self.size(server, records):
            raise ValueError(f"{len(data)} bytes instead of {self.size(server, records)}")
        return ""

    def add(self, server: int, shares: Iterable[bytes]) -> list[IntArray]:
        """Add up vectors modulo 2^64."""
        total = np.zeros(self.cells, np.uint64)
        last = server == len(self.study.servers) - 1
        for data in shares:
            if last:
                total += np.frombuffer(data, "<u8").astype(np.uint64)
            else:
                total += additive.expand(data, self.cells)
        ends = np.cumsum([domain.cells for domain in self.domains])[:-1]
        return list(np.split(additive.as_signed(total), ends))


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

    def proofs(
        self, server: int, shares: Sequence[bytes], challenges: Sequence[Challenge]
    ) -> list[Field]:
        """Return what a server publishes about each share, domain after domain; none is empty."""
        columns = zip(*(self._cut(data) for data in shares), strict=True)
        records = [len(data) // sum(self._lengths) for data in shares]
        ends = np.cumsum(records)[:-1]
        found = []
        for domain, parts, challenge in zip(self.domains, columns, challenges, strict=True):
            joined = b"".join(parts)
            keys = CheckedKeys.from_bytes(joined, domain.levels, server, self._tag(domain))
            found.append(np.split(keys.proofs(challenge), ends))
        return [np.concatenate(parts) for parts in zip(*found, strict=True)]

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
