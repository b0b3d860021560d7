"""`MaskedAggregator`: parties send vectors under masks that cancel in the sum.

Every party computes the sums of its own records, adds its share of the noise, and masks the
result (:mod:`noisewise.federated.masking`). One server learns the noisy total and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from noisewise import checks
from noisewise.ecdf.mechanisms import IntArray
from noisewise.federated.aggregator import AcrossParties, Noise
from noisewise.federated.domain import Records
from noisewise.federated.masking import (
    AggregationError,
    Confirmation,
    MaskedVector,
    MaskingClient,
    MaskingServer,
    Revelation,
    Session,
    make_roll,
)
from noisewise.federated.masking.neighbours import FAILURE_BITS, TRIES_BITS, plan_neighbours
from noisewise.federated.masking.session import (
    Advertisement,
    SealedShares,
    check_threshold,
    least_threshold,
)
from noisewise.federated.noise import SharedNoise
from noisewise.federated.questions import Question, with_noise
from noisewise.federated.results import Sums
from noisewise.federated.sharing.additive import Words, as_signed
from noisewise.federated.threat import ThreatModel
from noisewise.privacy import Randomness
from noisewise.release import Agreed, with_share

__all__ = ["STAGES", "MaskedAggregator", "run_round"]

STAGES = ("advertise", "share", "mask", "confirm", "reveal")


def run_round(
    session: Session,
    vectors: Mapping[int, IntArray],
    rng: Randomness,
    absent: Mapping[int, str] | None = None,
) -> tuple[Words, list[int]]:
    """Run one aggregation in this process, all messages as bytes.

    Parameters
    ----------
    session : Session
    vectors : mapping
        From a party's number to its vector.
    rng : Randomness
        Each party gets a generator of its own.
    absent : mapping, optional
        Parties that stop, and the stage that they do not take part in any more.

    Returns
    -------
    total : array of uint64
        The sum over those whose vectors arrived.
    arrived : list of int
        Who they are.

    Raises
    ------
    AggregationError
        If too few parties are left.
    """
    leaves = {party: _stage(stage) for party, stage in (absent or {}).items()}
    numbers = sorted(vectors)
    source, *others = rng.spawn(len(numbers) + 1)
    sources = dict(zip(numbers, others, strict=True))
    signs, roll = make_roll(numbers, source)
    clients = {
        number: MaskingClient(number, session, sources[number], sign=signs[number], roll=roll)
        for number in numbers
    }
    server = MaskingServer(session, roll)

    def present(stage: str) -> list[int]:
        return [n for n in numbers if leaves.get(n, len(STAGES)) > STAGES.index(stage)]

    for number in present("advertise"):
        server.take_advertisement(Advertisement.from_bytes(clients[number].advertise().to_bytes()))
    everybody = [m.to_bytes() for m in server.advertisements()]
    for number in present("share"):
        sealed = clients[number].share(Advertisement.from_bytes(data) for data in everybody)
        server.take_shares(number, [SealedShares.from_bytes(m.to_bytes()) for m in sealed])
    inboxes = {n: [m.to_bytes() for m in server.inbox(n)] for n in present("share")}
    shared = server.shared()
    for number in present("mask"):
        inbox = [SealedShares.from_bytes(data) for data in inboxes[number]]
        sent = clients[number].mask(inbox, vectors[number], shared).to_bytes()
        server.take_vector(MaskedVector.from_bytes(sent, session))
    arrived = server.arrived()
    for number in present("confirm"):
        confirmed = clients[number].confirm(arrived, server.vouchers(number)).to_bytes()
        server.take_confirmation(Confirmation.from_bytes(confirmed))
    signed = [m.to_bytes() for m in server.confirmations()]
    for number in present("reveal"):
        listed = [Confirmation.from_bytes(data) for data in signed]
        revealed = clients[number].reveal(listed).to_bytes()
        server.take_revelation(Revelation.from_bytes(revealed))
    return server.total(), arrived


def _stage(stage: str) -> int:
    return STAGES.index(checks.choice("stage", stage, STAGES))


@dataclass(frozen=True)
class MaskedAggregator(AcrossParties):
    """Secure aggregation with pairwise masks and recovery of drop-outs.

    Parameters
    ----------
    threshold : int, optional
        How many parties must stay to the end: more than half of all parties and `colluding`
        together. By default two thirds of them, or as many as `colluding` needs.
    colluding : int
        How many parties, at most, tell the server or the analyst everything they know, or do what
        a lying server wants. Epsilon counts on the noise of `threshold` - `colluding` parties.
    neighbours : {"all", "few"}
        With whom a party shares keys. "few" (Bell et al. 2020) is for hundreds of parties and more:
        less work, and promises that hold but for a probability of 2^-40.
    noiseless : bool
        For tests; see :func:`~noisewise.federated.without_noise`.
    absent : mapping, optional
        For simulations: parties (from 1) that stop, and the stage at which they do
        ("advertise", "share", "mask", "confirm", "reveal").

    Examples
    --------
    >>> from noisewise.federated import ecdf
    >>> hospitals = [np.array([0.2, 0.4]), np.array([0.9]), np.array([0.5, 0.6])]
    >>> F = ecdf(hospitals, MaskedAggregator(), bounds=(0, 1), bins=8, epsilon=1.0, seed=1)
    >>> F.statement().epsilon <= 1.0
    True
    """

    threshold: int | None = None
    colluding: int = 0
    noiseless: bool = False
    absent: Mapping[int, str] = field(default_factory=dict)
    parties: int | None = None
    neighbours: Literal["all", "few"] = "all"

    def __post_init__(self) -> None:
        checks.integer("colluding", self.colluding)
        checks.choice("neighbours", self.neighbours, ("all", "few"))
        for stage in self.absent.values():
            _stage(stage)

    def threshold_for(self, parties: int) -> int:
        """Return how many of so many parties must stay."""
        if self.threshold is not None:
            return self.threshold
        return max(2 * parties // 3 + 1, least_threshold(parties, self.colluding))

    def noise_for(self, parties: int, arrived: int | None = None) -> SharedNoise:
        """Return who adds noise: each party whose vector arrived (all of them), 1/honest of it."""
        threshold = self.threshold_for(parties)
        check_threshold(parties, threshold, self.colluding)
        if self.neighbours == "few":
            plan_neighbours(parties, threshold, self.colluding)  # refuses before anything is sent
        return SharedNoise(parties if arrived is None else arrived, threshold - self.colluding)

    @property
    def noise(self) -> SharedNoise:
        """The least noise: that of exactly the threshold of parties (see `noise_for`)."""
        return self.noise_for(self._known(), self.threshold_for(self._known()))

    @property
    def threat(self) -> ThreatModel:
        """For the number of parties given to the constructor; `ask` knows the real one."""
        return self.threat_for(self._known(), self.noise)

    def threat_for(self, parties: int, noise: SharedNoise) -> ThreatModel:
        """Return the sentences for so many parties."""
        threshold = self.threshold_for(parties)
        with_few, but_for, not_by_order = "", "", ""
        if self.neighbours == "few":
            few = plan_neighbours(parties, threshold, self.colluding)
            with_few = f", each with {few.neighbours} neighbours (Bell et al. 2020)"
            but_for = (
                f". But for a probability of 2^-{FAILURE_BITS}, as long as helpers are chosen "
                "before the parties' keys are advertised and fewer than "
                f"2^{TRIES_BITS} orders of the parties are tried before one is taken"
            )
            not_by_order = (
                ", if who stops has nothing to do with the order of the parties (but for a "
                f"probability of 2^-{FAILURE_BITS})"
            )
        return ThreatModel(
            protocol=f"masked secure aggregation of {parties} parties (Bonawitz et al. 2017)"
            + with_few,
            adversary=f"malicious server, helped by at most {self.colluding} parties: it may lie "
            "about who dropped out, because parties reveal nothing before enough of them have "
            "signed the same list of survivors; keys are advertised over authenticated channels",
            must_not_collude=f"the server with more than {self.colluding} parties: epsilon allows "
            f"for that many, and with {2 * threshold - parties} or more a lying server could open "
            "single vectors" + but_for,
            server_sees="who takes part, masked vectors that look random, and the noisy total",
            result_goes_to="the server, and whoever it tells",
            drop_outs=f"up to {parties - threshold} parties may stop at any stage{not_by_order}; "
            "whose vector did not arrive is not counted; below the threshold there is no result",
            noise=noise.sentence,
            hardness="X25519 key agreement, HKDF-SHA256, AES-GCM and AES-256 in counter mode"
            + (", scrypt" if with_few else ""),
            not_promised=(
                "that a party's vector is right: a malicious party can add any numbers",
                "a result: server or parties can end the round without one",
            ),
            noiseless=self.noiseless,
        )

    def agree(self, data: Any, noise: Any) -> Agreed:
        """Return how the parties release a curve of noisewise.ecdf: none of them drops out."""
        if self.absent:
            raise AggregationError("simulated drop-outs would not be seen by this caller")
        return super().agree(data, noise)

    def add_up(self, vectors: Sequence[IntArray], noise: Noise, rng: Randomness) -> IntArray:
        """Every party adds a draw of noise to its vector and masks it."""
        source, *own = rng.spawn(len(vectors) + 1)
        noisy = {
            index + 1: np.asarray(vector + noise(mine), np.int64)
            for index, (vector, mine) in enumerate(zip(vectors, own, strict=True))
        }
        session = self._session(len(vectors), len(vectors[0]), source)
        total, _ = run_round(session, noisy, source)
        return as_signed(total)

    def ask(self, question: Question, parties: Sequence[Records], rng: Randomness) -> Sums:
        """Run the whole protocol in this process, message by message."""
        size = len(parties)
        planned = with_noise(question, self.noise_for(size))  # a share is the same for any arrived
        source, *own = rng.spawn(size + 1)
        public = question.relation.count_is_public
        vectors = {}
        for index, (party, mine) in enumerate(zip(parties, own, strict=True)):
            if self.noiseless:
                vector = question.statistic(party)
            else:
                vector = with_share(question.query, planned, party, mine)
            # The number of records travels under the same masks, so only the total is seen.
            vectors[index + 1] = np.append(vector, len(party) if public else 0)
        session = self._session(size, vectors[1].size, source)
        total, arrived = run_round(session, vectors, source, self.absent)
        sums = as_signed(total)
        noise = self.noise_for(size, len(arrived))
        return Sums(
            noisy=sums[:-1],
            mechanism=noise.apply(question.planned),
            threat=self.threat_for(size, noise),
            randomness=f"each party: {own[0].description}",
            records=int(sums[-1]) if public else None,
        )

    def _session(self, parties: int, size: int, rng: Randomness) -> Session:
        if parties < 2:
            raise ValueError("masks need at least two parties")
        return Session(
            rng.bytes(16),
            parties,
            self.threshold_for(parties),
            size,
            self.colluding,
            self.neighbours == "few",
        )

    def _known(self) -> int:
        if self.parties is None:
            raise ValueError(
                "the number of parties is known only when they are asked; give "
                "MaskedAggregator(parties=...) to see its threat model before"
            )
        return self.parties
