"""The one door: charge, measure, add noise once, and hand out value and statement together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from noisewise.privacy import History, Randomness, Statement
from noisewise.privacy.randomness import resolve
from noisewise.release.account import Account, Remembering
from noisewise.release.noise import Noise
from noisewise.release.parties import Parties
from noisewise.release.promise import Promise
from noisewise.release.query import Query

__all__ = ["Release", "received", "release"]


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
    said = _said(query, agreed.noise)
    history, words = account.stated(event, said)
    assumed = (*agreed.assumptions, *agreed.noise.assumptions)
    promise = _promise(query, history, words, delta or 0.0, source.description, assumed)
    if delta is not None:
        promise.state()  # what cannot be promised is refused before it costs anything
    note = query.what or agreed.noise.description
    if _remembers(type(account)):
        assert isinstance(account, Remembering)
        kept = account.recalled(event, source)
        if kept is not None:  # made before a death, and paid for
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


def received(
    query: Query, noise: Noise, *, delta: float, randomness: str, assumptions: tuple[str, ...] = ()
) -> Promise:
    """Return what is promised of a release that other processes made, each by this kernel.

    Whoever adds up what servers or parties sent charges nothing, draws nothing and sees no record;
    what is said of the sum follows from the same query and noise as if it had been made here.

    Parameters
    ----------
    query : Query
        What was asked.
    noise : Noise
        All that survives in the sum.
    delta : float
        At which epsilon is stated.
    randomness : str
        Where the noise came from.
    assumptions : tuple of str
        Who must be trusted for what.
    """
    query.require(noise)
    said = (*noise.assumptions, *assumptions)
    return _promise(query, (noise.event,), _said(query, noise), delta, randomness, said)


@lru_cache
def _remembers(kind: type) -> bool:
    """Whether accounts of this type kept values; asked at every step of a training."""
    return issubclass(kind, Remembering)


def _said(query: Query, noise: Noise) -> str:
    return f"{query.what}: {noise.description}" if query.what else noise.description


def _promise(
    query: Query,
    history: History,
    mechanism: str,
    delta: float,
    randomness: str,
    assumptions: tuple[str, ...],
) -> Promise:
    query.require_rows(history)
    return Promise(
        history=history,
        delta=delta,
        mechanism=mechanism,
        relation=query.relation,
        randomness=randomness,
        unit=query.unit,
        assumptions=(*query.assumptions, *assumptions),
    )
