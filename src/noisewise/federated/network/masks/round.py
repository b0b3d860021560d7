"""What server, parties and analyst of a masked round agree on, all of it from the study file.

One round releases one curve once. Every party adds 1/h of the noise of that very question to
its own sums, h = minimum_parties - colluding_parties, and masks them
(:mod:`noisewise.federated.masking`). What can be unmasked is the sum of at least minimum_parties
vectors, so at least h honest shares of noise are in it, and epsilon counts on those.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from noisewise.ecdf.mechanisms import IntArray
from noisewise.federated.domain import Records
from noisewise.federated.masked import MaskedAggregator
from noisewise.federated.masking import AggregationError, Session
from noisewise.federated.masking.session import Advertisement, Sign
from noisewise.federated.network.errors import RefusedError
from noisewise.federated.network.identity import Signer, is_vouched
from noisewise.federated.network.measurement import Measurement, curve_domain
from noisewise.federated.network.study import Study
from noisewise.federated.network.threat import rows_of
from noisewise.federated.noise import SharedMechanism
from noisewise.federated.questions import EcdfQuestion, HistogramQuestion, Question, RocQuestion
from noisewise.federated.threat import ThreatModel
from noisewise.privacy import Randomness
from noisewise.release import with_share

__all__ = ["RELEASE", "STAGES", "MaskedRound"]

#: The stages, numbered from 1.
STAGES = ("advertise", "share", "mask", "confirm", "reveal")
#: Name of the only release of a masked round.
RELEASE = "masked"

_ADVERTISEMENT_BYTES, _SIGNATURE_BYTES = 100, 64
_KEYS, _SURVIVORS = "masking keys", "survivors of a masked round"


@dataclass(frozen=True)
class MaskedRound:
    """One round of a study with route "masks"."""

    study: Study

    @cached_property
    def measurement(self) -> Measurement:
        """The question, with the whole epsilon of the round."""
        study = self.study
        (curve,) = study.curves
        kinds = {"ecdf": EcdfQuestion, "histogram": HistogramQuestion, "roc": RocQuestion}
        domain = curve_domain(study, curve)
        question = kinds[curve](
            domain, study.epsilon, study.delta, study.relation, protects=study.protects
        )
        return Measurement.of(study, question)

    @property
    def question(self) -> Question:
        """The question as it travels."""
        return self.measurement.question

    @cached_property
    def aggregator(self) -> MaskedAggregator:
        """The protocol as it runs in one process."""
        study = self.study
        return MaskedAggregator(
            threshold=study.minimum_parties,
            colluding=study.colluding,
            noiseless=study.noiseless_test,
            parties=len(study.parties),
            neighbours=study.neighbours,
        )

    @cached_property
    def session(self) -> Session:
        """The public parameters. A party takes part once in a round, with new keys."""
        name = hashlib.sha256(b"noisewise/masked-round/2/" + self.study.fingerprint.encode())
        sums = self.question.measure(np.zeros(self.question.domain.cells, np.int64)).size
        study = self.study
        return Session(
            name.digest(),
            len(study.parties),
            study.minimum_parties,
            sums + 1,
            study.colluding,
            study.neighbours == "few",
        )

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {member.name: number for number, member in enumerate(self.study.parties, 1)}

    def number_of(self, party: str) -> int:
        """Return a party's number, from 1, in the order of the study file."""
        return self._numbers[party]

    def name_of(self, number: int) -> str:
        """Return the name of a party."""
        return self.study.parties[number - 1].name

    # ------------------------------------------------------------------ noise

    def mechanism(self, arrived: int) -> SharedMechanism:
        """Return the noise of so many vectors: what was added, and what survives."""
        noise = self.aggregator.noise_for(len(self.study.parties), arrived)
        return noise.apply(self.question.planned)

    @property
    def surviving(self) -> SharedMechanism:
        """Noise of the honest among the fewest allowed parties, which is what is charged for."""
        return self.mechanism(self.study.minimum_parties)

    def vector(self, records: Records, rng: Randomness) -> IntArray:
        """Return a party's sums with its share of the noise, and its number of records.

        That number travels under the same masks, so that only the total is seen; 0 if the
        number of records is private.
        """
        records = self.study.protects.bounded(records, rng)
        if self.study.noiseless_test:
            sums = self.question.statistic(records)
        else:
            sums = with_share(self.question.query, self.surviving, records, rng)
        public = self.study.relation.count_is_public
        return np.append(sums, len(records) if public else 0)

    def threat(self, arrived: int | None = None) -> ThreatModel:
        """Return who must be trusted for what; without a result, as if the fewest arrived."""
        parties = len(self.study.parties)
        least = self.study.minimum_parties if arrived is None else arrived
        said = self.aggregator.threat_for(parties, self.aggregator.noise_for(parties, least))
        present = "" if arrived is None else f"; {arrived} of {parties} parties are in this result"
        (server,) = self.study.servers
        return replace(
            said,
            protocol=f"{said.protocol}, over TLS with signed requests",
            adversary=f"malicious server, helped by at most {self.study.colluding} parties: "
            "masking keys carry their party's signature, so it cannot put its own in their place; "
            "and it may lie about who dropped out, because parties reveal nothing before enough "
            "of them have signed the same list of survivors",
            result_goes_to=f"server {server.name}, and the registered analysts",
            drop_outs=said.drop_outs + present,
            hardness=f"{said.hardness}; Ed25519 and TLS keep their promises",
            rows=rows_of(self.study),
        )

    # ------------------------------------------------------------------- keys

    def seal_advertisement(self, message: Advertisement, signer: Signer) -> bytes:
        """Return an advertisement with its party's signature."""
        data = message.to_bytes()
        return data + signer.vouch(_KEYS, self.study.fingerprint, data)

    def open_advertisements(self, data: bytes) -> list[Advertisement]:
        """Return advertisements whose signatures are those of the parties they name.

        Raises
        ------
        AggregationError
            If one is malformed or not signed by its party.
        """
        width = _ADVERTISEMENT_BYTES + _SIGNATURE_BYTES
        if len(data) % width:
            raise AggregationError("a list of advertisements was cut")
        found = []
        for start in range(0, len(data), width):
            content = data[start : start + _ADVERTISEMENT_BYTES]
            message = Advertisement.from_bytes(content)
            number = self.session.check_party(message.sender)
            signature = data[start + _ADVERTISEMENT_BYTES : start + width]
            if not self._vouched(_KEYS, number, signature, content):
                raise AggregationError(
                    f"the masking keys of party {self.name_of(number)!r} do not carry its "
                    "signature: somebody may have put others in their place"
                )
            found.append(message)
        return found

    def sign(self, signer: Signer) -> Sign:
        """Return what signs lists of survivors in a party's name."""
        return lambda data: signer.vouch(_SURVIVORS, self.study.fingerprint, data)

    def roll(self, party: int, signature: bytes, data: bytes) -> bool:
        """Whether a party, by its number, signed a list of survivors."""
        return 1 <= party <= self.session.parties and self._vouched(
            _SURVIVORS, party, signature, data
        )

    def _vouched(self, purpose: str, number: int, signature: bytes, data: bytes) -> bool:
        name = self.name_of(number)
        return is_vouched(
            self.study.party_keys[name],
            signature,
            purpose=purpose,
            study=self.study.fingerprint,
            name=name,
            data=data,
        )

    def check_question(self, question: Question) -> None:
        """Refuse any other question than the study's, up to what is decided after the noise."""
        asked = Measurement.of(self.study, question)
        if asked.digest != self.measurement.digest:
            raise RefusedError(
                f"study {self.study.name!r} releases its curve once, with epsilon "
                f"{self.study.epsilon:g} and the default mechanism: ask for exactly that "
                f"(noisewise collect --epsilon {self.study.epsilon:g})",
                422,
                "other-question",
            )
