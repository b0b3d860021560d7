"""`FunctionSharing`: each record as a pair of short keys, one for each of two servers.

Two servers: point keys, so a record costs about 16 bytes for each binary digit of the number of
cells, on both servers together twice that, and owners are offline afterwards. More than two:
no practical tree keys are known, so each party sends a short seed to all servers but one and
its masked histogram to that one; any servers but all of them together learn nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from noisewise import checks
from noisewise.ecdf.mechanisms import IntArray
from noisewise.federated.aggregator import AcrossParties, Noise
from noisewise.federated.domain import Domain, Records
from noisewise.federated.fss.checked import SOUNDNESS_BITS, generate_checked
from noisewise.federated.fss.comparison import generate_comparison
from noisewise.federated.fss.fine import ComparisonStore, FineDomain
from noisewise.federated.fss.hashing import Words
from noisewise.federated.fss.keys import Keys
from noisewise.federated.fss.point import generate_point
from noisewise.federated.fss.server import (
    CheckedStore,
    KeyStore,
    combine_shares,
    noisy_share,
    paired,
    proven,
)
from noisewise.federated.noise import SharedNoise
from noisewise.federated.questions import Question, with_noise
from noisewise.federated.results import Sums
from noisewise.federated.sharing import additive
from noisewise.federated.threat import ThreatModel
from noisewise.privacy import Randomness

__all__ = ["CHECKED", "UNCHECKED", "FunctionSharing"]

UNCHECKED = (
    "that an owner's key counts one record: a malicious owner can add any number to one cell and "
    "unpredictable numbers to others, which spoils the curve but says nothing about other owners' "
    "records"
)
CHECKED = (
    "that records are true: an owner chooses the cell of its record. That each key counts one "
    f"record of one cell is proven; a false key passes with probability below 2^-{SOUNDNESS_BITS} "
    "if both servers follow the protocol"
)


@dataclass(frozen=True)
class FunctionSharing(AcrossParties):
    """Aggregation by function secret sharing between servers that must not collude.

    Parameters
    ----------
    servers : int
        How many, at least 2.
    honest : int
        How many of them keep their share of the noise secret, at least; see
        :class:`~noisewise.federated.SharedNoise`.
    noiseless : bool
        For tests; see :func:`~noisewise.federated.without_noise`.
    compiled : bool, optional
        Whether to use AES instructions; by default if they are there.
    keys : {"point", "comparison"}
        "point" serves every question; "comparison" a distribution function at a few
        thresholds, which may be chosen after the keys were sent, to within
        (upper - lower) / 2^levels (see :mod:`noisewise.federated.fss.fine`).
    levels : int
        Binary digits of the fine grid of comparison keys.
    checked : bool
        Whether each point key proves that it counts one record; keys that do not are left out.
        Costs 32 bytes more a key, and about four times the servers' time for one question.

    Examples
    --------
    >>> from noisewise.federated import ecdf
    >>> phones = [np.array([value]) for value in (0.1, 0.5, 0.9)]
    >>> F = ecdf(phones, FunctionSharing(), bounds=(0, 1), bins=8, epsilon=1.0, seed=1)
    >>> F.statement().epsilon <= 1.0
    True
    """

    servers: int = 2
    honest: int = 1
    noiseless: bool = False
    compiled: bool | None = None
    keys: Literal["point", "comparison"] = "point"
    levels: int = 32
    checked: bool = False

    def __post_init__(self) -> None:
        if self.checked and (self.keys != "point" or self.servers != 2):
            raise ValueError(
                "checked=True goes with point keys and two servers: comparison keys have no proof, "
                "and tables among more servers are checked in a study (route 'vectors') only"
            )
        checks.choice("keys", self.keys, ("point", "comparison"))
        if self.keys == "comparison" and self.servers != 2:
            raise ValueError("comparison keys are for two servers")
        checks.integer("servers", self.servers, minimum=2, maximum=1 << 10)
        checks.integer("honest", self.honest, minimum=1, maximum=self.servers)

    @property
    def noise(self) -> SharedNoise:
        """Each server adds a share of its own."""
        return SharedNoise(self.servers, self.honest)

    @property
    def threat(self) -> ThreatModel:
        """Servers that follow the protocol and do not all collude."""
        return self._keys_threat() if self.servers == 2 else self._vectors_threat()

    def threat_for(self, parties: int, noise: SharedNoise) -> ThreatModel:
        """Return the threat model of :meth:`add_up`: parties share vectors, whatever the keys."""
        return self._vectors_threat()

    def _keys_threat(self) -> ThreatModel:
        return ThreatModel(
            protocol="function secret sharing between two servers (Boyle, Gilboa, Ishai 2016)"
            + (", every key checked by a sketch (Boneh et al. 2021)" if self.checked else ""),
            adversary="semi-honest: servers follow the protocol but remember everything",
            must_not_collude="the two servers with each other",
            server_sees="who contributed when and how many keys, and keys that look random to it; "
            "not the cell of any record",
            result_goes_to="the analyst, who adds up one noisy vector from each server",
            drop_outs="owners may leave once their keys are sent; keys that only one server got "
            "are left out; if a server stops there is no result",
            noise=self.noise.sentence,
            hardness="AES-128 with public keys behaves like a random permutation (lambda = 128)",
            not_promised=(
                CHECKED if self.checked else UNCHECKED,
                "a correct result if a server lies about its share",
            ),
            noiseless=self.noiseless,
        )

    def _vectors_threat(self) -> ThreatModel:
        two = self.servers == 2
        return ThreatModel(
            protocol=f"additive secret sharing between {self.servers} servers, seeds and one "
            "vector",
            adversary="semi-honest: servers follow the protocol but remember everything",
            must_not_collude="the two servers with each other"
            if two
            else f"all {self.servers} servers together (any {self.servers - 1} learn nothing)",
            server_sees="who contributed when, a seed or words that look random from each party, "
            "and the number of records if that is public; not the sums of any party",
            result_goes_to="the analyst, who adds up one noisy vector from each server",
            drop_outs="owners may leave once their shares are sent; shares that not all servers "
            "got are left out; if a server stops there is no result",
            noise=self.noise.sentence,
            hardness="AES-256 in counter mode is a pseudo-random stream",
            not_promised=(
                "that a party's vector is right: a malicious party can add any numbers, which "
                "spoils the curve but says nothing about other parties' records",
                "a correct result if a server lies about its share",
            ),
            noiseless=self.noiseless,
        )

    def add_up(self, vectors: Sequence[IntArray], noise: Noise, rng: Randomness) -> IntArray:
        """Share the parties' vectors between the servers, each of which adds a draw of noise.

        Keys for single records need :meth:`ask`, which knows the cells.
        """
        source, *own = rng.spawn(self.servers + 1)
        totals = self._share_vectors(vectors, source)
        return additive.combine(
            [
                total + additive.as_words(np.asarray(noise(mine), np.int64))
                for total, mine in zip(totals, own, strict=True)
            ]
        )

    def ask(self, question: Question, parties: Sequence[Records], rng: Randomness) -> Sums:
        """Run the whole protocol in this process, message by message."""
        with_noise(question, self.noise)  # refuses before anything is sent
        for party in parties:
            question.protects.require(party)
        source, *own = rng.spawn(self.servers + 1)
        domain = question.domain
        if self.keys == "comparison":
            histograms, records = self._comparison_shares(question, parties, source)
        elif self.servers == 2:
            histograms, records = self._key_shares(domain, parties, source)
        else:
            counts = [domain.count(party) for party in parties]
            histograms = self._share_vectors(counts, source)
            records = sum(len(party) for party in parties)
        shares = [
            noisy_share(
                question,
                histogram,
                self.noise,
                rng,
                noiseless=self.noiseless,
                in_field=self.checked,
            )
            for histogram, rng in zip(histograms, own, strict=True)
        ]
        return combine_shares(
            question,
            shares,
            self.noise,
            self.threat,
            records=records,
            randomness=f"each server: {own[0].description}",
            in_field=self.checked,
        )

    def _key_shares(
        self, domain: Domain, parties: Sequence[Records], source: Randomness
    ) -> tuple[list[Words], int]:
        name = source.bytes(16).hex()
        cells = [domain.place(party) for party in parties]
        stores: tuple[KeyStore, KeyStore]
        if self.checked:
            both = (CheckedStore(domain, 0, name), CheckedStore(domain, 1, name))
            names = self._send(both, cells, generate_checked, source)
            seed = source.bytes(32)  # drawn when all keys are there
            names = proven(*(s.proofs(names, seed, compiled=self.compiled) for s in both))
            stores = both
        else:
            stores = (KeyStore(domain, 0, name), KeyStore(domain, 1, name))
            names = self._send(stores, cells, generate_point, source)
        shares = [store.histogram_share(names, compiled=self.compiled) for store in stores]
        return shares, len(names)

    def _comparison_shares(
        self, question: Question, parties: Sequence[Records], source: Randomness
    ) -> tuple[list[Words], int]:
        domain = question.domain
        if domain.labelled or domain.closed != "above":
            raise ValueError(
                "comparison keys count records up to a threshold: use them for a distribution "
                "function, and keys='point' for everything else"
            )
        fine = FineDomain(domain.lower, domain.upper, self.levels)
        name = source.bytes(16).hex()
        stores = (ComparisonStore(fine, 0, name), ComparisonStore(fine, 1, name))
        cells = [fine.place(party.values) for party in parties]
        names = self._send(stores, cells, generate_comparison, source)
        points = domain.grid.thresholds
        shares = [store.counts_share(names, points, compiled=self.compiled) for store in stores]
        return shares, len(names)

    def _send(
        self,
        stores: tuple[KeyStore, KeyStore],
        cells: Sequence[NDArray[Any]],
        generate: Callable[..., tuple[Keys, Keys]],
        source: Randomness,
    ) -> list[bytes]:
        """Make every party's keys, hand them to the servers, return those that both hold."""
        for part in cells:
            if part.size:
                levels, tag = stores[0].domain.levels, stores[0].tag
                pair = generate(part, levels, tag, source, compiled=self.compiled)
                for store, keys in zip(stores, pair, strict=True):
                    store.accept(keys.to_bytes())
        return paired(stores[0].roster(), stores[1].roster())

    def _share_vectors(self, vectors: Sequence[IntArray], source: Randomness) -> list[Words]:
        if not vectors:
            raise ValueError("there are no parties: nothing to sum")
        totals = [np.zeros(vectors[0].shape, np.uint64) for _ in range(self.servers)]
        for vector in vectors:
            seeds, masked = additive.share_compactly(vector, self.servers, source)
            for total, seed in zip(totals, seeds, strict=False):
                total += additive.expand(seed, vector.size)
            totals[-1] += masked
        return totals
