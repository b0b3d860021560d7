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
released: neither noise, nor key, nor true count.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from filelock import FileLock, Timeout

from noisewise.ecdf.budget import Budget
from noisewise.ecdf.mechanisms.protocol import FloatArray, IntArray
from noisewise.ecdf.promise import event_of
from noisewise.ecdf.stream_noise import KaryNoise, PathNoise
from noisewise.ecdf.stream_toeplitz import ToeplitzSegment
from noisewise.errors import LedgerError
from noisewise.privacy import _validate
from noisewise.privacy._durable import replace_file
from noisewise.privacy.events import (
    Event,
    Gaussian,
    Pure,
    ZeroConcentrated,
    event_from_dict,
    event_to_dict,
)
from noisewise.privacy.randomness import Randomness, resolve
from noisewise.privacy.statement import Statement

__all__ = ["StreamingCounter"]

MECHANISMS = ("auto", "kary", "thesis", "sqrt")
_FORMAT, _VERSION = "noisewise-streaming-counter", 1
# Lengths of the segments of an endless stream: first, growth, limit.
FIRST, GROWTH, LIMIT = 1 << 10, 16, 1 << 20
SQRT_LIMIT = 1 << 16


class _Segment(Protocol):
    """Noisy running counts of at most `length` items."""

    length: int

    def add(self, items: IntArray) -> FloatArray: ...

    def variance_at(self, position: int) -> float: ...


class _TreeSegment:
    """A segment with integer noise that was drawn when it began."""

    def __init__(self, noise: KaryNoise | PathNoise, rng: Randomness) -> None:
        self.length = noise.length
        self._noise = noise.draw(rng)
        self._variance = noise.variance()
        self._position = 0
        self._sum = 0

    def add(self, items: IntArray) -> FloatArray:
        sums = self._sum + np.cumsum(items)
        end = self._position + items.size
        released = sums + self._noise[self._position : end]
        # What was used is forgotten, so that nothing can use it again.
        self._noise[self._position : end] = 0
        self._position, self._sum = end, int(sums[-1])
        return released.astype(np.float64)

    def variance_at(self, position: int) -> float:
        return float(self._variance[position - 1])


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
    path : path, optional
        Where the state is kept; must not exist. See :meth:`resume`.
    rng : None, int or Randomness
        Where noise comes from. None: a secure generator.

    Examples
    --------
    >>> counter = StreamingCounter(epsilon=1.0, rng=1)
    >>> released = counter.extend([1, 0, 1, 1])
    >>> released.shape, counter.position
    ((4,), 4)
    """

    def __init__(
        self,
        *,
        epsilon: float,
        delta: float = 0.0,
        horizon: int | None = None,
        mechanism: str = "auto",
        bound: int = 1,
        path: str | os.PathLike[str] | None = None,
        rng: Randomness | int | None = None,
    ) -> None:
        self.budget = Budget(epsilon, delta)
        self.bound = _validate.integer("bound", bound, minimum=1, maximum=1 << 31)
        _validate.choice("mechanism", mechanism, MECHANISMS)
        if mechanism == "auto":
            mechanism = "sqrt" if delta > 0 and self.bound == 1 else "kary"
        if mechanism == "sqrt" and self.bound != 1:
            raise ValueError(f"mechanism 'sqrt' needs bound=1, got {bound!r}; use 'kary'")
        if mechanism == "sqrt" and delta == 0:
            raise ValueError("mechanism 'sqrt' adds Gaussian noise and needs delta > 0; use 'kary'")
        self.mechanism = mechanism
        self.horizon = None if horizon is None else _validate.integer("horizon", horizon, minimum=1)
        self._rng = resolve(rng)
        self._process = os.getpid()
        self._position = 0
        self._base, self._base_variance = 0.0, 0.0
        self._value, self._variance = 0.0, 0.0
        self._segments = 0
        self._inside = 0
        self._segment: _Segment | None = None
        self._description = ""
        self._event: Event | None = None
        self._path = None if path is None else Path(path)
        self._lock: FileLock | None = None
        if self._path is not None:
            self._lock = _acquire(self._path)
            if self._path.exists():
                self._lock.release()
                raise LedgerError(
                    f"{str(self._path)!r} exists: continue it with StreamingCounter.resume, so "
                    "that no item is counted twice; start a new one only for a new stream"
                )
            self._save()

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

    def update(self, item: int) -> float:
        """Count one item and release the running count."""
        return float(self.extend([item])[-1])

    def extend(self, items: Iterable[int] | IntArray) -> FloatArray:
        """Count items and release the running count after each of them."""
        if os.getpid() != self._process:
            raise LedgerError(
                "this counter was made by another process: a forked copy would use its noise a "
                "second time. Make one counter for each stream, after the fork."
            )
        numbers = self._checked(items)
        if numbers.size == 0:
            return np.zeros(0)
        released = []
        done = 0
        before = (self._value, self._variance)
        while done < numbers.size:
            segment = self._current()
            part = numbers[done : done + segment.length - self._inside]
            released.append(self._base + segment.add(part))
            self._inside += part.size
            self._position += part.size
            self._value = float(released[-1][-1])
            self._variance = self._base_variance + segment.variance_at(self._inside)
            done += part.size
        try:
            self._save()
        except BaseException:
            # Not on disk, so not released, not even as `value`; resume from the file.
            self._value, self._variance = before
            self.close()
            raise
        return np.concatenate(released)

    def _checked(self, items: Iterable[int] | IntArray) -> IntArray:
        numbers = np.asarray(items if isinstance(items, np.ndarray) else list(items))
        if numbers.size == 0:
            return np.zeros(0, np.int64)
        if numbers.dtype.kind not in "biu" or numbers.ndim != 1:
            raise TypeError(f"items must be whole numbers, got dtype {numbers.dtype}")
        if int(numbers.min()) < 0 or int(numbers.max()) > self.bound:
            raise ValueError(
                f"items must lie in [0, {self.bound}], got {int(numbers.min())} to "
                f"{int(numbers.max())}: clip them, or give a larger bound"
            )
        if self.horizon is not None and self._position + numbers.size > self.horizon:
            raise ValueError(
                f"{numbers.size} more items exceed the horizon of {self.horizon}; "
                f"{self._position} were counted. Use horizon=None for an endless stream."
            )
        return numbers.astype(np.int64)

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
        if self.mechanism == "sqrt":
            segment = ToeplitzSegment(length, self.budget, self._rng)
            self._note(event_of(segment.mechanism, self.budget))
            self._description = segment.mechanism.description
            return segment
        kind = KaryNoise if self.mechanism == "kary" else PathNoise
        noise: KaryNoise | PathNoise = kind.of(length, self.budget.epsilon, self.bound)
        self._note(Pure(float(noise.epsilon(self.bound))))
        self._description = noise.description
        return _TreeSegment(noise, self._rng)

    def _note(self, event: Event) -> None:
        """Keep the dearest segment's event: an item pays for one segment only."""
        old = self._event
        if isinstance(event, Pure) and isinstance(old, Pure):
            event = max(event, old, key=lambda each: each.epsilon)
        elif isinstance(event, Gaussian) and isinstance(old, Gaussian):
            event = min(event, old, key=lambda each: each.noise_multiplier)
        elif isinstance(event, ZeroConcentrated) and isinstance(old, ZeroConcentrated):
            event = max(event, old, key=lambda each: each.rho)
        self._event = event

    # ---------------------------------------------------------------------- saving

    def _save(self) -> None:
        if self._path is None:
            return
        state = {
            "format": _FORMAT,
            "version": _VERSION,
            "epsilon": self.budget.epsilon,
            "delta": self.budget.delta,
            "horizon": self.horizon,
            "mechanism": self.mechanism,
            "bound": self.bound,
            "position": self._position,
            "segments": self._segments,
            "value": self._value,
            "variance": self._variance,
            "event": None if self._event is None else event_to_dict(self._event),
        }
        replace_file(self._path, json.dumps(state).encode())

    @classmethod
    def resume(
        cls, path: str | os.PathLike[str], *, rng: Randomness | int | None = None
    ) -> StreamingCounter:
        """Continue a counter after its process ended; feed items from :attr:`position` on."""
        target = Path(path)
        lock = _acquire(target)
        try:
            state = json.loads(target.read_text("utf-8"))
            if state.get("format") != _FORMAT or state.get("version") != _VERSION:
                raise LedgerError(f"{str(target)!r} is not the state of a streaming counter")
            counter = cls(
                epsilon=state["epsilon"],
                delta=state["delta"],
                horizon=state["horizon"],
                mechanism=state["mechanism"],
                bound=state["bound"],
                rng=rng,
            )
        except (OSError, ValueError, KeyError) as error:
            lock.release()
            raise LedgerError(f"cannot resume from {str(target)!r}: {error}") from error
        except BaseException:
            lock.release()
            raise
        counter._path, counter._lock = target, lock
        counter._position, counter._segments = state["position"], state["segments"]
        counter._value, counter._variance = state["value"], state["variance"]
        counter._event = None if state["event"] is None else event_from_dict(state["event"])
        return counter

    def close(self) -> None:
        """Let another process resume."""
        self._segment, self._process = None, -1
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> StreamingCounter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise LedgerError("a counter cannot be copied: the copy would use its noise again")

    # --------------------------------------------------------------------- promise

    def statement(self) -> Statement:
        """Return what is promised for all releases, past and future."""
        if self._event is None or not self._description:
            self._current()
        assert self._event is not None
        return Statement.derive(
            self._event,
            accountant="rdp" if isinstance(self._event, ZeroConcentrated) else "pld",
            delta=self.budget.delta,
            mechanism=f"running count of a stream: {self._description}",
            relation="replace-one",
            unit="one item of the stream, at its time step",
            randomness=self._rng.description,
            assumptions=(
                f"items are whole numbers in [0, {self.bound}], and each is fed once",
                "the number of items so far is public",
            ),
        )


def _acquire(path: Path) -> FileLock:
    lock = FileLock(str(path) + ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise LedgerError(f"{str(path)!r} is in use by another counter") from error
    return lock
