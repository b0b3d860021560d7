"""Running counts under continual observation (Barczewski 2025, Theorem 6.3.2).

A stream of items, each a whole number in [0, bound]; after every item the running sum is
released. Neighbouring streams differ in one item. The whole infinite sequence of releases is
epsilon-DP, not each release.

Long streams are cut into segments. An item is in one segment and touches only that segment's
noise, so every segment may spend the whole epsilon; a running count is the last release of the
segment before plus the noisy count within. Segments grow up to a limit, so that the error of
the sum of n items grows like sqrt(n / limit), far more slowly than the sum.

Saving. With a `path`, the position and the last released value are on disk *before* a value is
returned. A resumed counter continues there in a new segment with new noise. So no item is
ever measured twice, no noise is used twice, and the file holds nothing that was not
released: neither noise, nor key, nor true count. A file that was deleted, changed or put back
from an older copy is refused (:mod:`noisewise.ecdf.stream_state`); with a `ledger`, whoever
measures from a state that is not the last one pays again (:mod:`noisewise.release.stream`).

Sharing. Threads may share a counter: each call counts its items one after the other. A stream
that is saved has one counter at a time, in one process; a second one is refused.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np

from noisewise import checks
from noisewise.ecdf.budget import Budget
from noisewise.ecdf.mechanisms.protocol import FloatArray, IntArray
from noisewise.ecdf.stream_items import FirstOfUnit, checked_items
from noisewise.ecdf.stream_noise import KaryNoise, PathNoise
from noisewise.ecdf.stream_state import StreamState
from noisewise.ecdf.stream_toeplitz import ToeplitzSegment
from noisewise.ecdf.stream_tree import TreeSegment
from noisewise.errors import LedgerError
from noisewise.privacy import Event, Ledger, Pure, Randomness, Statement
from noisewise.privacy.events import event_from_dict
from noisewise.privacy.randomness import resolve
from noisewise.release import (
    NoiseSlots,
    Query,
    SegmentAccount,
    StreamAccount,
    ThisProcess,
    one_vocabulary,
    release,
)

__all__ = ["StreamingCounter"]

MECHANISMS = ("auto", "kary", "thesis", "sqrt")
# Lengths of the segments of an endless stream: first, growth, limit.
FIRST, GROWTH, LIMIT = 1 << 10, 16, 1 << 20
SQRT_LIMIT = 1 << 16


class _Segment(Protocol):
    """Noisy running counts of at most `length` items."""

    length: int
    slots: NoiseSlots

    def measure(self, items: IntArray, position: int) -> IntArray: ...

    def read(self, items: IntArray, position: int, noisy: IntArray) -> FloatArray: ...

    def variance_at(self, position: int) -> float: ...


class StreamingCounter:
    """Release a running count after every item of a stream, with one epsilon for all of it.

    Parameters
    ----------
    epsilon, delta : float
        The budget of the whole stream.
    horizon : int, optional
        Number of items that may come; None for an endless stream.
    mechanism : {"auto", "kary", "thesis", "sqrt"}
        "kary": tree with subtraction, Laplace noise. "thesis": Theorem 6.3.2. "sqrt": Toeplitz
        factorisation, Gaussian noise, needs delta > 0 and bound 1; each item costs time
        proportional to the segment, so it suits streams up to about 10^5 items or large
        batches. "auto": "sqrt" if delta > 0 (and bound is 1), else "kary".
    bound : int
        Items are whole numbers in [0, bound].
    max_per_unit : int, optional
        Protect units, whose identifiers come with the items: the first so many items of each
        count, others count 0. Not with a `path`: identifiers are kept in memory only.
    path : path, optional
        Where the state is kept; must not exist. See :meth:`resume`.
    ledger : Ledger or path, optional
        Charged before anything is measured. A stream with a `path` that is resumed where it was
        closed pays nothing more; one that was killed, copied or put back pays again, and the
        statement says so.
    seed : None, int or Randomness
        Where noise comes from. None: a secure generator.

    Examples
    --------
    >>> counter = StreamingCounter(epsilon=1.0, seed=1)
    >>> released = counter.extend([1, 0, 1, 1])
    >>> released.shape, counter.position
    ((4,), 4)
    """

    @one_vocabulary
    def __init__(
        self,
        *,
        epsilon: float,
        delta: float = 0.0,
        horizon: int | None = None,
        mechanism: str = "auto",
        bound: int = 1,
        max_per_unit: int | None = None,
        path: str | os.PathLike[str] | None = None,
        ledger: Ledger | str | os.PathLike[str] | None = None,
        seed: Randomness | int | None = None,
    ) -> None:
        self.budget = Budget(epsilon, delta)
        self.bound = checks.integer("bound", bound, minimum=1, maximum=1 << 31)
        self._first = FirstOfUnit(max_per_unit)
        checks.choice("mechanism", mechanism, MECHANISMS)
        if mechanism == "auto":
            mechanism = "sqrt" if delta > 0 and self.bound * self._first.times == 1 else "kary"
        if mechanism == "sqrt" and self.bound * self._first.times != 1:
            raise ValueError("mechanism 'sqrt' needs bound=1 and max_per_unit=1; use 'kary'")
        if mechanism == "sqrt" and delta == 0:
            raise ValueError("mechanism 'sqrt' adds Gaussian noise and needs delta > 0; use 'kary'")
        self.mechanism = mechanism
        self.horizon = None if horizon is None else checks.integer("horizon", horizon, minimum=1)
        self._rng = resolve(seed).for_release()
        self._noise = None if self._rng.is_secure else f"noise of {self._rng.place}"
        self._later = 0
        self._process = os.getpid()
        self._mutex = threading.RLock()
        self._closed = False
        self._position = 0
        self._base, self._base_variance = 0.0, 0.0
        self._value, self._variance = 0.0, 0.0
        self._segments = 0
        self._inside = 0
        self._segment: _Segment | None = None
        self._account = SegmentAccount(
            self._price, lambda: None if self._state is None else self._state.digest
        )
        self._description = ""
        self._name = secrets.token_hex(16)
        self._state: StreamState | None = None
        try:
            if path is not None:
                self._first.require_no_file()
                self._state = StreamState.begin(path)
            if ledger is not None:
                self._account.ledger = StreamAccount(
                    ledger, self._name, self.budget, self._first.unit, self._noise
                )
            self._save()
        except BaseException:
            self._shut()
            raise

    # -------------------------------------------------------------------- counting

    @property
    def position(self) -> int:
        """Number of items counted so far; feed the stream from here after a restart."""
        return self._position

    @property
    def value(self) -> float:
        """The last released running count."""
        return self._value

    @property
    def variance(self) -> float:
        """Variance of the noise of the last released running count."""
        return self._variance

    def update(self, item: int, unit: Any = None) -> float:
        """Count one item and release the running count; with `max_per_unit`, say whose it is."""
        unnamed = unit is None and self._first.limit is None
        return float(self.extend([item], None if unnamed else [unit])[-1])

    def extend(self, items: Iterable[int] | IntArray, units: Any = None) -> FloatArray:
        """Count items and release the running count after each; with `units`, whose they are."""
        self._check_mine()
        with self._mutex:
            self._check_mine()
            numbers = self._first.kept(self._checked(items), units)
            if numbers.size == 0:
                return np.zeros(0)
            before = (self._position, self._value, self._variance)
            try:
                released = self._count(numbers)
                self._save()
            except BaseException:
                # Not on disk or not finished, so not released, not even as `value`. Items may
                # have been counted that would come again: no more from this counter.
                self._position, self._value, self._variance = before
                self._shut()
                raise
            return released

    def _count(self, numbers: IntArray) -> FloatArray:
        released = []
        done = 0
        while done < numbers.size:
            segment = self._current()
            part = numbers[done : done + segment.length - self._inside]
            released.append(self._base + self._measured(segment, part))
            self._inside += part.size
            self._position += part.size
            self._value = float(released[-1][-1])
            self._variance = self._base_variance + segment.variance_at(self._inside)
            done += part.size
        return np.concatenate(released)

    def _measured(self, segment: _Segment, items: IntArray) -> FloatArray:
        start = self._inside
        planned, noise = segment.slots.planned, segment.slots.places(start, start + items.size)
        unit = self._first.unit
        query = Query.of(
            lambda held: segment.measure(held, start),
            planned,
            "",
            unit=unit,
            unit_rows=self._first.limit,
        )
        found = release(
            query, noise, ThisProcess(items), self._account, delta=None, rng=self._source
        )
        return segment.read(items, start, found.value)

    def _check_mine(self) -> None:
        if os.getpid() != self._process:
            raise LedgerError(
                "this counter was made by another process: a forked copy would use its noise a "
                "second time. Make one counter for each stream, after the fork."
            )
        if self._closed:
            raise LedgerError(
                "this counter is closed, by close() or because counting was interrupted; continue "
                "its file with StreamingCounter.resume, or start a new one for a new stream"
            )

    def _checked(self, items: Iterable[int] | IntArray) -> IntArray:
        numbers = checked_items(items, self.bound)
        if self.horizon is not None and self._position + numbers.size > self.horizon:
            raise ValueError(
                f"{numbers.size} more items exceed the horizon of {self.horizon}; "
                f"{self._position} were counted. Use horizon=None for an endless stream."
            )
        return numbers

    def _current(self) -> _Segment:
        if self._segment is None or self._inside == self._segment.length:
            self._base, self._base_variance = self._value, self._variance
            self._segment = self._start(self._next_length())
            self._segments += 1
            self._inside = 0
        return self._segment

    def _next_length(self) -> int:
        limit = SQRT_LIMIT if self.mechanism == "sqrt" else LIMIT
        if self.horizon is not None:
            return self.horizon - self._position
        growth: int = GROWTH ** min(self._segments, 16)
        return min(FIRST * growth, limit)

    def _start(self, length: int) -> _Segment:
        self._account.begin_segment()
        self._source = self._noise_of_segment()
        segment: _Segment
        if self.mechanism == "sqrt":
            segment = ToeplitzSegment(length, self.budget)
        else:
            kind = KaryNoise if self.mechanism == "kary" else PathNoise
            most = self.bound * self._first.times
            segment = TreeSegment(kind.of(length, self._epsilon, most), most)
        segment.slots.event = self._first.told(segment.slots.event)
        self._description = segment.slots.description
        return segment

    def _noise_of_segment(self) -> Randomness:
        """Return where the next segment draws from: elsewhere than all before, also of one seed."""
        if self._rng.is_secure or self._segments == self._later:
            return self._rng
        *_, later = self._rng.spawn(self._segments - self._later)
        self._later = self._segments
        return later

    @property
    def _epsilon(self) -> float:
        """What is spent; what one of several items costs is rounded up, so a hair less then."""
        return self.budget.epsilon * (1 - 2.0**-48 if self._first.times > 1 else 1)

    def _price(self, event: Event) -> Event:
        """Return what is charged for a segment, so that later ones are covered."""
        if self.mechanism == "sqrt":
            return event.with_room()
        return self._first.told(Pure(max(event.pure_epsilon(), self._epsilon)))

    # ---------------------------------------------------------------------- saving

    def _save(self) -> None:
        if self._state is None:
            return
        account = self._account
        self._state.save(
            {
                "epsilon": self.budget.epsilon,
                "delta": self.budget.delta,
                "horizon": self.horizon,
                "mechanism": self.mechanism,
                "bound": self.bound,
                "position": self._position,
                "segments": self._segments,
                "value": self._value,
                "variance": self._variance,
                "event": None if account.dearest is None else account.dearest.to_dict(),
                "name": self._name,
                "ledger": account.ledger is not None,
                "paid": None if account.paid is None else account.paid.to_dict(),
            }
        )

    @classmethod
    @one_vocabulary
    def resume(
        cls,
        path: str | os.PathLike[str],
        *,
        ledger: Ledger | str | os.PathLike[str] | None = None,
        seed: Randomness | int | None = None,
    ) -> StreamingCounter:
        """Continue a counter after its process ended; feed items from :attr:`position` on."""
        kept = StreamState(path, create=False)
        try:
            state = kept.load()
            counter = cls._from_state(state, seed)
            if ledger is None and state.get("ledger"):
                raise LedgerError("this stream is paid for by a ledger: give ledger=")
            if ledger is not None:
                counter._account.ledger = StreamAccount(
                    ledger, counter._name, counter.budget, noise=counter._noise
                )
        except (OSError, ValueError, TypeError, LookupError, RecursionError) as error:
            kept.close()
            raise LedgerError(f"cannot resume from {str(kept.path)!r}: {error}") from error
        except BaseException:
            kept.close()
            raise
        counter._state = kept
        return counter

    @classmethod
    def _from_state(cls, state: dict[str, Any], seed: Randomness | int | None) -> StreamingCounter:
        counter = cls(
            epsilon=state["epsilon"],
            delta=state["delta"],
            horizon=state["horizon"],
            mechanism=state["mechanism"],
            bound=state["bound"],
            seed=seed,
        )
        most = counter.horizon
        counter._position = checks.integer("position", state["position"], minimum=0, maximum=most)
        counter._segments = checks.integer("segments", state["segments"], minimum=0)
        counter._value = checks.finite("value", state["value"])
        counter._variance = checks.positive("variance", state["variance"], zero=True)
        if state["event"] is not None:
            counter._account.dearest = event_from_dict(state["event"])
        if state.get("name") is not None:  # states of version 0.1 have none
            counter._name = str(state["name"])
        if state.get("paid") is not None:
            counter._account.paid = event_from_dict(state["paid"])
        return counter

    def close(self) -> None:
        """Let another process resume; what threads are counting is finished before."""
        self._shut(whole=True)

    def _shut(self, whole: bool = False) -> None:
        """Count no more; after a `whole` run the next one may go on without paying."""
        if os.getpid() != self._process:
            return  # a forked copy has no part in lock and noise
        with self._mutex:
            whole = whole and not self._closed
            self._closed, self._segment = True, None
            try:
                if self._account.ledger is not None:
                    kept = self._state.digest if whole and self._state is not None else None
                    self._account.ledger.close(kept)
            finally:
                if self._state is not None:
                    self._state.close()

    def __enter__(self) -> StreamingCounter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise LedgerError("a counter cannot be copied: the copy would use its noise again")

    # --------------------------------------------------------------------- promise

    def statement(self) -> Statement:
        """Return what is promised for all releases, past and future."""
        planned = self._planned()
        return self._account.promise(
            planned,
            delta=self.budget.delta,
            mechanism=f"running count of a stream: {self._description}",
            randomness=self._rng.description,
            unit=self._first.unit,
            assumptions=(
                f"items are whole numbers in [0, {self.bound}], and each is fed once",
                "the number of items so far is public",
                *self._first.sentences,
                *self._premise(),
            ),
        ).state()

    def _premise(self) -> tuple[str, ...]:
        if self._state is None or self._account.ledger is not None:
            return ()
        return (
            "the file of the stream and what remembers it were never both put back from an older "
            "copy, nor continued twice in two places (a ledger= would count that)",
        )

    def _planned(self) -> Event | None:
        """Return the cost of a segment to come, if nothing was measured yet."""
        if self._account.dearest is not None and self._description:
            return None
        self._check_mine()
        with self._mutex:
            return self._current().slots.event
