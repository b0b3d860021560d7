"""What one of the servers does: keep keys that pass all checks, and answer with noisy shares.

Nothing here touches a network or a disk. A server process keeps the bytes of the keys, feeds
them to a :class:`KeyStore` (again after a restart) and sends what :func:`noisy_share` returns.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from noisewise import checks
from noisewise.federated.domain import Domain
from noisewise.federated.fss.checked import Challenge, CheckedKeys, accepted
from noisewise.federated.fss.hashing import Words
from noisewise.federated.fss.keys import Keys
from noisewise.federated.fss.point import PointKeys
from noisewise.federated.fss.wire import KeyFormatError, round_tag
from noisewise.federated.noise import SharedMechanism, SharedNoise
from noisewise.federated.questions import Question, with_noise
from noisewise.federated.results import Sums
from noisewise.federated.sharing import additive
from noisewise.federated.sharing.field import PRIME, Field, from_field, reduced
from noisewise.federated.threat import ThreatModel
from noisewise.privacy import Randomness
from noisewise.release import with_share

__all__ = ["CheckedStore", "KeyStore", "combine_shares", "noisy_share", "paired", "proven"]


class Cells(Protocol):
    """What a store must know of the cells that keys are about."""

    @property
    def levels(self) -> int:
        """Binary digits of a cell's number."""
        ...

    @property
    def digest(self) -> bytes:
        """What binds keys to these cells."""
        ...

    def place(self, records: Any) -> Any:
        """Return the cell of each record."""
        ...


class KeyStore:
    """The point keys that one server accepted in one round.

    Parameters
    ----------
    domain : Domain
        The cells that keys are about.
    server : int
        0 or 1.
    round_name : str
        Of the round; keys of other rounds are refused.

    Examples
    --------
    >>> from noisewise.federated.fss import generate_point
    >>> domain = Domain(0.0, 1.0, 4)
    >>> stores = [KeyStore(domain, server, "spring") for server in (0, 1)]
    >>> pair = generate_point([1, 3], domain.levels, stores[0].tag)
    >>> for store, keys in zip(stores, pair):
    ...     _ = store.accept(keys.to_bytes())
    >>> names = paired(stores[0].roster(), stores[1].roster())
    >>> sum(store.histogram_share(names) for store in stores).tolist()
    [0, 1, 0, 1]
    """

    keys: ClassVar[type[Keys]] = PointKeys

    def __init__(self, domain: Cells, server: int, round_name: str) -> None:
        self.domain = domain
        self.server = checks.integer("server", server, maximum=1)
        self.tag = round_tag(round_name, domain.digest)
        self._rows: dict[bytes, int] = {}
        self._digests: dict[bytes, bytes] = {}
        self._parts: list[Keys] = []
        self._seen: set[bytes] = set()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def accept(self, data: bytes | bytearray | memoryview) -> list[bytes]:
        """Check keys and keep all of them, or none.

        Returns
        -------
        list of bytes
            Their identifiers.

        Raises
        ------
        KeyFormatError
            If one of them is malformed, made for another server, round or domain, or was
            sent before, under its own identifier or another one.
        """
        keys = self.keys.from_bytes(data, self.domain.levels, self.server, self.tag)
        names, digests = keys.identifiers, keys.public_digests
        # The root seed is what a copy under a new identifier cannot change.
        roots = np.ascontiguousarray(keys.table["root"]).tobytes()
        seeds = [roots[start : start + 16] for start in range(0, len(roots), 16)]
        if len(set(names)) < len(names) or len(set(seeds)) < len(seeds):
            raise KeyFormatError("the same key is there twice in one message")
        for index, (name, seed) in enumerate(zip(names, seeds, strict=True)):
            if name in self._rows:
                raise KeyFormatError(f"key {index}: its identifier was used before (a replay?)")
            if seed in self._seen:
                raise KeyFormatError(f"key {index}: a copy of an earlier key under a new name")
        for offset, (name, digest) in enumerate(zip(names, digests, strict=True)):
            self._rows[name] = self._size + offset
            self._digests[name] = digest
        self._seen.update(seeds)
        self._parts.append(keys)
        self._size += len(keys)
        return names

    def roster(self) -> dict[bytes, bytes]:
        """Return the public digest of each key by its identifier, to compare with the other's."""
        return dict(self._digests)

    def histogram_share(self, names: Iterable[bytes], *, compiled: bool | None = None) -> Words:
        """Return this server's share of the histogram of some keys over the cells.

        Parameters
        ----------
        names : iterable of bytes
            Identifiers; both servers must take the same ones (see :func:`paired`).
        compiled : bool, optional
            See :meth:`PointKeys.sum_over_domain`.
        """
        total = np.zeros(1 << self.domain.levels, np.uint64)
        for part in self._select(list(names)):
            assert isinstance(part, PointKeys)
            total += part.sum_over_domain(compiled=compiled)
        return total[: self.domain.cells] if isinstance(self.domain, Domain) else total

    def _select(self, names: list[bytes]) -> Iterator[Keys]:
        """Return the keys of some records, in parts."""
        missing = [name for name in names if name not in self._rows]
        if missing:
            raise KeyFormatError(f"{len(missing)} of the keys asked for are not here")
        if len(set(names)) < len(names):
            raise KeyFormatError("a key is asked for twice; it would be counted twice")
        rows = np.sort(np.array([self._rows[name] for name in names], np.int64))
        start = 0
        for part in self._parts:
            mine = rows[(rows >= start) & (rows < start + len(part))] - start
            if mine.size:
                yield part[mine]
            start += len(part)


class CheckedStore(KeyStore):
    """The checked point keys that one server accepted in one round, and one challenge for each."""

    keys: ClassVar[type[Keys]] = CheckedKeys

    def __init__(self, domain: Domain, server: int, round_name: str) -> None:
        super().__init__(domain, server, round_name)
        self._cells = domain.cells
        self._challenged: dict[bytes, bytes] = {}

    def proofs(
        self, names: Iterable[bytes], seed: bytes, *, compiled: bool | None = None
    ) -> dict[bytes, Field]:
        """Return what this server publishes about some keys.

        Parameters
        ----------
        names : iterable of bytes
        seed : bytes
            Of the challenge, unknown to the owners when they sent their keys.
        compiled : bool, optional
            See :meth:`PointKeys.sum_over_domain`.

        Raises
        ------
        KeyFormatError
            If a key was challenged with another seed before: both together show its cell.
        """
        wanted = list(names)
        if any(self._challenged.get(name, seed) != seed for name in wanted):
            raise KeyFormatError(
                "a key is challenged once: two challenges together would show its cell"
            )
        challenge = Challenge(seed, self._cells, self.domain.levels)
        self._challenged.update(dict.fromkeys(wanted, seed))
        found: dict[bytes, Field] = {}
        for part in self._select(wanted):
            assert isinstance(part, CheckedKeys)
            rows = part.proofs(challenge, compiled=compiled)
            found.update(zip(part.identifiers, rows, strict=True))
        return found

    def histogram_share(self, names: Iterable[bytes], *, compiled: bool | None = None) -> Words:
        """Return this server's share of the histogram of some keys, in the field."""
        total = np.zeros(1 << self.domain.levels, np.uint64)
        for part in self._select(list(names)):
            assert isinstance(part, CheckedKeys)
            total = reduced(total + part.sum_over_domain(compiled=compiled))
        return total[: self._cells]


def proven(first: Mapping[bytes, Field], second: Mapping[bytes, Field]) -> list[bytes]:
    """Return the identifiers of keys that count one record, sorted, by both servers' proofs."""
    names = sorted(first.keys() & second.keys())
    if not names:
        return []
    passed = accepted(*(np.stack([side[name] for name in names]) for side in (first, second)))
    return [name for name, good in zip(names, passed, strict=True) if good]


def paired(first: Mapping[bytes, bytes], second: Mapping[bytes, bytes]) -> list[bytes]:
    """Return the identifiers of keys that both servers hold and that belong together, sorted.

    Keys that only one server got, or whose public parts differ, are left out by both: a key
    without its twin would turn the whole histogram into noise.
    """
    return sorted(
        name
        for name, digest in first.items()
        if name in second and hmac.compare_digest(digest, second[name])
    )


def noisy_share(
    question: Question,
    histogram_share: Words,
    noise: SharedNoise,
    rng: Randomness,
    *,
    noiseless: bool = False,
    in_field: bool = False,
) -> Words:
    """Return one server's share of the noisy sums: its measurements plus its own noise.

    Parameters
    ----------
    question : Question
    histogram_share : array of uint64
        Over the cells of the question's domain.
    noise : SharedNoise
        Who adds how much.
    rng : Randomness
        This server's own; a secure one, that nobody else has.
    noiseless : bool
        For tests only; the threat model must then say so too.
    in_field : bool
        Whether the share comes from checked keys, so that it and what is sent lie in the field.
    """
    if in_field:
        query = question.query_in_field
        if noiseless:
            sums = query.measure(histogram_share)
        else:
            planned = with_noise(question, noise)
            sums = with_share(query, planned, histogram_share, rng, modulus=PRIME)
        return np.asarray(sums, np.int64).view(np.uint64)
    share = additive.as_signed(histogram_share)
    if share.shape != (question.domain.cells,):
        raise ValueError(f"expected {question.domain.cells} cells, got shape {share.shape}")
    if noiseless:
        return additive.as_words(question.measure(share))
    planned = with_noise(question, noise)
    return additive.as_words(with_share(question.query_of_cells, planned, share, rng))


def combine_shares(
    question: Question,
    shares: Sequence[Words],
    noise: SharedNoise,
    threat: ThreatModel,
    *,
    records: int | None,
    randomness: str,
    in_field: bool = False,
) -> Sums:
    """Add up the servers' shares: what the analyst does.

    Parameters
    ----------
    question : Question
    shares : sequence of arrays
        One from each server, all of them.
    noise, threat
        Of the protocol.
    records : int or None
        The public number of records, None if it is private.
    randomness : str
        Where the servers' noise came from.
    in_field : bool
        Whether the shares lie in the field.
    """
    mechanism: SharedMechanism = noise.apply(question.planned)
    if len(shares) != noise.contributors:
        raise ValueError(
            f"{noise.contributors} servers share the sums, got {len(shares)} shares: without "
            "all of them there is no result"
        )
    public = records if question.relation.count_is_public else None
    if in_field:
        sums = np.zeros(shares[0].shape, np.uint64)
        for share in shares:
            sums = reduced(sums + share)
        return Sums(from_field(sums), mechanism, threat, randomness, public)
    return Sums(additive.combine(shares), mechanism, threat, randomness, public)
