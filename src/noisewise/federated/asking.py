"""Parties that an aggregator asks, as those of a release."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from noisewise.ecdf import Mechanism
from noisewise.federated.aggregator import AcrossParties, Aggregator
from noisewise.federated.domain import Records
from noisewise.federated.noise import SharedMechanism
from noisewise.federated.questions import Question
from noisewise.federated.results import Sums
from noisewise.privacy import Event, Randomness
from noisewise.release import Account, Agreed, Approval, Query, release

__all__ = ["Asked", "answered", "event_across"]


@dataclass(eq=False)
class Asked:
    """Parties and the aggregator that asks them one question.

    Parameters
    ----------
    aggregator : Aggregator
    question : Question
    records : sequence of Records
        One for each party.
    sums : Sums or None
        What came of it, with the parties that were there to the end.
    """

    aggregator: Aggregator
    question: Question
    records: Sequence[Records]
    sums: Sums | None = None

    def agree(self, query: Query, noise: Any) -> Agreed:
        """Count on the noise that survives the worst allowed collusion."""
        return Agreed(_across(self.aggregator, len(self.records), noise))

    def first(self, act: Callable[[], object]) -> None:
        """Act: the account is the analyst's."""
        act()

    def noisy(
        self, query: Query, noise: Any, rng: Randomness, approve: Approval | None = None
    ) -> Any:
        """Let the aggregator ask; every contributor adds its share of the noise."""
        found = self.aggregator.ask(self.question, self.records, rng)
        if approve is None or approve(found.noisy):
            self.sums = found
        return None if self.sums is None else found.noisy


def answered(
    question: Question,
    aggregator: Aggregator,
    records: Sequence[Records],
    account: Account,
    rng: Randomness,
) -> Any:
    """Ask, and return the curve; charged before anybody is asked.

    A test without noise releases nothing, so nothing is charged and nothing can be stated.
    """
    if aggregator.noiseless:
        return question.answer(aggregator.ask(question, records, rng))
    asked = Asked(aggregator, question, records)
    release(question.query, question.planned, asked, account, delta=question.delta, rng=rng)
    assert asked.sums is not None
    return question.answer(asked.sums)


def event_across(question: Question, aggregator: Aggregator, parties: int) -> Event:
    """What a question costs if it is asked so."""
    return _across(aggregator, parties, question.planned).event


def _across(aggregator: Aggregator, parties: int, planned: Mechanism) -> SharedMechanism:
    if isinstance(aggregator, AcrossParties):
        return aggregator.noise_for(parties).apply(planned)
    return aggregator.noise.apply(planned)
