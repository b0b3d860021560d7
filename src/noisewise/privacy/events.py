"""What was done to the data: the private releases that an accountant adds up.

An event is one kind of release and how often it happened. A *history* is a
tuple of events; it is all that is needed to derive epsilon, so it is what a
ledger stores and what a statement carries.

Two conventions, one per class, never mixed:

* :class:`PoissonGaussian` is a noisy *sum over records*. Its noise multiplier is
  the noise deviation divided by the largest norm of **one record's contribution**.
  Under replace-one the sum moves by up to twice that, and the accountant knows it.
* :class:`Gaussian` and :class:`Laplace` release *any function*. Their noise
  multiplier is the noise scale divided by the function's **sensitivity under the
  relation of the history**.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

from noisewise.privacy import _validate

__all__ = [
    "Event",
    "Gaussian",
    "History",
    "Laplace",
    "PoissonGaussian",
    "Pure",
    "ZeroConcentrated",
    "as_history",
    "event_from_dict",
    "event_to_dict",
    "simplify",
    "split_noise",
    "total_variation",
    "with_count",
]

_NO_NOISE = "without noise there is no privacy"


@dataclass(frozen=True)
class _Counted:
    """What all events share: how many times the release happened."""

    kind: ClassVar[str]

    def _check_count(self, count: Any) -> None:
        object.__setattr__(self, "count", _validate.integer("count", count, minimum=1))


@dataclass(frozen=True)
class PoissonGaussian(_Counted):
    """A sum over a Poisson sample of the records, plus Gaussian noise.

    Parameters
    ----------
    noise_multiplier : float
        Noise deviation over the largest l2 norm of one record's contribution.
    sample_rate : float
        Probability with which each record enters the sum, independently; 1 is
        the full batch.
    count : int
        Number of such steps.
    """

    noise_multiplier: float
    sample_rate: float = 1.0
    count: int = 1
    kind: ClassVar[str] = "poisson-gaussian"

    def __post_init__(self) -> None:
        _freeze(self, "noise_multiplier", _validate.positive, self.noise_multiplier, hint=_NO_NOISE)
        _freeze(self, "sample_rate", _validate.probability, self.sample_rate)
        self._check_count(self.count)


@dataclass(frozen=True)
class Gaussian(_Counted):
    """A function of the data plus Gaussian noise.

    Parameters
    ----------
    noise_multiplier : float
        Noise deviation over the function's l2 sensitivity under the relation.
    count : int
        Number of such releases.
    variation : float
        Total variation distance between the release and one with real Gaussian noise,
        for noise on a fine grid. Each release then costs (1 + e^epsilon) times as much
        in delta, whatever else it is composed with.
    """

    noise_multiplier: float
    count: int = 1
    variation: float = 0.0
    kind: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        _freeze(self, "noise_multiplier", _validate.positive, self.noise_multiplier, hint=_NO_NOISE)
        _freeze(self, "variation", _validate.probability, self.variation, zero=True, one=False)
        self._check_count(self.count)


@dataclass(frozen=True)
class Laplace(_Counted):
    """A function of the data plus Laplace noise, continuous or discrete.

    Parameters
    ----------
    noise_multiplier : float
        Noise scale over the function's l1 sensitivity under the relation.
    count : int
        Number of such releases.
    """

    noise_multiplier: float
    count: int = 1
    kind: ClassVar[str] = "laplace"

    def __post_init__(self) -> None:
        _freeze(self, "noise_multiplier", _validate.positive, self.noise_multiplier, hint=_NO_NOISE)
        self._check_count(self.count)


@dataclass(frozen=True)
class Pure(_Counted):
    """Any release that is epsilon-DP with delta 0, e.g. the exponential mechanism."""

    epsilon: float
    count: int = 1
    kind: ClassVar[str] = "pure"

    def __post_init__(self) -> None:
        _freeze(self, "epsilon", _validate.positive, self.epsilon)
        self._check_count(self.count)


@dataclass(frozen=True)
class ZeroConcentrated(_Counted):
    """Any release that is rho-zCDP, e.g. the discrete Gaussian on a vector of counts."""

    rho: float
    count: int = 1
    kind: ClassVar[str] = "zero-concentrated"

    def __post_init__(self) -> None:
        _freeze(self, "rho", _validate.positive, self.rho)
        self._check_count(self.count)


Event = PoissonGaussian | Gaussian | Laplace | Pure | ZeroConcentrated
History = tuple[Event, ...]

_KINDS: dict[str, type[Any]] = {
    event.kind: event for event in (PoissonGaussian, Gaussian, Laplace, Pure, ZeroConcentrated)
}


def as_history(events: Event | Iterable[Event]) -> History:
    """Return one event, or an iterable of them, as a history with like events merged."""
    if isinstance(events, _Counted):
        return (events,)
    given = tuple(events)
    for event in given:
        if not isinstance(event, _Counted):
            raise TypeError(f"a history holds events such as PoissonGaussian, got {event!r}")
    return simplify(given)


def simplify(history: Iterable[Event]) -> History:
    """Merge events that differ only in their count, keeping the order of first appearance."""
    counts: dict[Event, int] = {}
    for event in history:
        once = with_count(event, 1)
        counts[once] = counts.get(once, 0) + event.count
    return tuple(with_count(once, count) for once, count in counts.items())


def with_count(event: Event, count: int) -> Event:
    """Return the same kind of release, done `count` times."""
    return replace(event, count=count)


def total_variation(history: Iterable[Event]) -> float:
    """How far, in total variation, all releases together are from those accounted for."""
    return math.fsum(e.count * e.variation for e in history if isinstance(e, Gaussian))


def event_to_dict(event: Event) -> dict[str, Any]:
    """Return `event` as plain values for JSON."""
    return {"kind": event.kind, **asdict(event)}


def event_from_dict(fields: Mapping[str, Any]) -> Event:
    """Return the event that :func:`event_to_dict` described."""
    values = dict(fields)
    kind = values.pop("kind", None)
    if kind not in _KINDS:
        raise ValueError(f"kind must be one of {', '.join(_KINDS)}, got {kind!r}")
    try:
        event: Event = _KINDS[kind](**values)
    except TypeError as error:
        raise ValueError(f"an event of kind {kind!r} has wrong fields: {error}") from error
    return event


def split_noise(sensitivities: Iterable[float], deviations: Iterable[float]) -> float:
    """Noise multiplier of one step that noises several groups differently.

    Groups k of sensitivity D_k and noise deviation s_k, all computed from one
    batch, are one Gaussian mechanism of multiplier sigma with
    1/sigma^2 = sum_k D_k^2 / s_k^2. (Releasing each group with deviation
    sigma * D_k and accounting for sigma alone understates epsilon: with K
    groups the true multiplier is sigma / sqrt(K).)

    Examples
    --------
    >>> round(split_noise([1.0, 1.0, 1.0, 1.0], [2.0, 2.0, 2.0, 2.0]), 12)
    1.0
    """
    pairs = list(zip(sensitivities, deviations, strict=True))
    if not pairs:
        raise ValueError("sensitivities must hold at least one group, got none")
    total = 0.0
    for sensitivity, deviation in pairs:
        bound = _validate.positive("sensitivity", sensitivity, zero=True)
        noise = _validate.positive("deviation", deviation, hint=_NO_NOISE)
        total += (bound / noise) ** 2
    if total == 0.0:
        raise ValueError("all sensitivities are 0: nothing depends on the data, nothing to account")
    return 1.0 / math.sqrt(total)


def _freeze(event: Any, name: str, check: Any, value: Any, **options: Any) -> None:
    object.__setattr__(event, name, check(name, value, **options))
