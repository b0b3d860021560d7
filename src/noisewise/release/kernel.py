"""The one door: charge, measure, add noise once, and hand out value and statement together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from noisewise.privacy.randomness import Randomness, resolve
from noisewise.privacy.statement import Statement
from noisewise.release.account import Account
from noisewise.release.noise import Noise
from noisewise.release.parties import Parties
from noisewise.release.promise import Promise
from noisewise.release.query import Query
from noisewise.release.sealed import SealedAccount

__all__ = ["Release", "release"]


@dataclass(frozen=True, eq=False)
class Release:
    """A private value and the promise that comes with it.

    Unpacks as a pair: ``value, statement = release(...)``.

    Attributes
    ----------
    value : object
        What may be seen.
    promise : Promise
        What its statement is derived from.
    noise : Noise
        As it was added.
    """

    value: Any
    promise: Promise
    noise: Noise

    @cached_property
    def statement(self) -> Statement:
        """What was promised."""
        return self.promise.state()

    def __iter__(self) -> Iterator[Any]:
        return iter((self.value, self.statement))

    def seen_as(self, form: Callable[[Any], Any]) -> Release:
        """Return the release with a value that is computed from this one and what is public."""
        return replace(self, value=form(self.value))


def release(
    query: Query,
    noise: Noise,
    parties: Parties,
    account: Account,
    *,
    delta: float | None = 0.0,
    rng: Randomness | int | None = None,
) -> Release:
    """Release a query, once.

    In this order: the noise is compared with what one unit can do; the parties agree on who adds
    it; what will be promised is derived, and refused if it cannot be; the account is charged; only
    then is anything measured, and noise is added before anybody sees it. A refused charge draws no
    noise. A death after the charge leaves the charge.

    A release with seeded noise can be repeated, so an account that remembers is asked first
    whether there is room and then, with the value at hand, whether it is the same as before.

    Parameters
    ----------
    query : Query
        What is asked.
    noise : Noise
        Planned for at least the query's sensitivity.
    parties : Parties
        Who holds the records.
    account : Account
        What is charged.
    delta : float or None
        At which epsilon is stated. None: nothing is stated of this release alone, because its
        account speaks of many (a step of training).
    rng : None, int or Randomness
        Where noise comes from. None: a secure generator.

    Returns
    -------
    Release
        Its value is None if the account declined to repeat a release that it paid for before.

    Examples
    --------
    >>> from fractions import Fraction
    >>> from noisewise.privacy import Pure, Sensitivity
    >>> from noisewise.release import IntegerNoise, MemoryAccount, Query, ThisProcess, release
    >>> one = Sensitivity(1.0, "l1")
    >>> noise = IntegerNoise("laplace", Fraction(2), one, Pure(0.5), "discrete Laplace noise")
    >>> people = Query.of(len, one, "number of people")
    >>> found = release(people, noise, ThisProcess(["Ada", "Emmy"]), MemoryAccount(), rng=1)
    >>> isinstance(found.value, int), found.statement.epsilon
    (True, 0.5)
    """
    source = resolve(rng).for_release()
    query.require(noise)
    agreed = parties.agree(query, noise)
    event = agreed.noise.event
    said = f"{query.what}: {agreed.noise.description}" if query.what else agreed.noise.description
    history, words = account.stated(event, said)
    query.require_rows(history)
    promise = Promise(
        history=history,
        delta=delta or 0.0,
        mechanism=words,
        relation=query.relation,
        randomness=source.description,
        unit=query.unit,
        assumptions=(*query.assumptions, *agreed.assumptions, *agreed.noise.assumptions),
    )
    if delta is not None:
        promise.state()  # what cannot be promised is refused before it costs anything
    note = query.what or agreed.noise.description
    if isinstance(account, SealedAccount) and source.is_secure:
        kept = account.recalled(event)
        if kept is not None:  # paid for by this run before it was stopped
            return Release(kept, promise, agreed.noise)
    if account.compares(source):
        key = "" if source.is_secure else f"noise of {source.place}"
        parties.first(lambda: account.require_room(event, key))
        value = parties.noisy(
            query,
            agreed.noise,
            source,
            lambda found: account.approve(event, note, key, found),
        )
    else:
        parties.first(lambda: account.charge(event, note))
        value = parties.noisy(query, agreed.noise, source)
    return Release(value, promise, agreed.noise)
