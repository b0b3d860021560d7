"""From a history of releases to epsilon and back.

Events know their losses, the accountants of :mod:`noisewise.privacy.accountants` add them up:
by privacy loss distributions ("pld", the default, tight) or Renyi divergences ("rdp", looser, an
independent check). This module asks them, adds what is known in closed form, and searches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from dp_accounting.gaussian_mechanism import get_epsilon_gaussian

from noisewise import checks
from noisewise.privacy.accountants import ACCOUNTANTS, Accountant, tightest
from noisewise.privacy.events import (
    Event,
    History,
    PoissonGaussian,
    PoissonRows,
    as_history,
    require_relation,
    total_variation,
    with_count,
)
from noisewise.privacy.relation import Relation

__all__ = [
    "ACCOUNTANTS",
    "delta",
    "delta_of",
    "epsilon",
    "epsilon_of",
    "max_count",
    "max_steps",
    "noise_multiplier",
    "pure_epsilon",
    "tightest",
    "training_step",
]

#: Calibration stops when epsilon is within this fraction of its target.
CALIBRATION_TOLERANCE = 0.002

#: Beyond this many steps no training was ever run; asking for more is a slip.
LARGEST_COUNT = 10**9


def epsilon_of(
    history: Event | Iterable[Event],
    *,
    delta: float,
    relation: Relation | str = "add-remove",
    accountant: str = "pld",
) -> float:
    """Epsilon of a whole history at the given delta.

    Parameters
    ----------
    history : event or iterable of events
        What was released, see :mod:`noisewise.privacy.events`.
    delta : float
        In [0, 1). With delta 0 the pure epsilons add up, and any Gaussian noise
        makes the answer infinite.
    relation : {"add-remove", "replace-one"}
        Which datasets are neighbours.
    accountant : {"pld", "rdp"}
        How the losses are added up.

    Returns
    -------
    float
        An upper bound of the true epsilon, possibly ``inf``.

    Examples
    --------
    >>> from noisewise.privacy import Laplace, Pure
    >>> round(epsilon_of([Laplace(2.0), Pure(0.25, count=2)], delta=0.0), 9)
    1.0
    """
    events = as_history(history)
    relation = Relation.of(relation)
    delta = checks.probability("delta", delta, zero=True, one=False)
    chosen = _accountant(accountant)
    require_relation(events, relation)
    if not events:
        return 0.0
    if delta == 0.0:
        return pure_epsilon(events)
    variation = total_variation(events)
    if variation > 0.0:
        return with_variation(
            lambda left: _epsilon(events, left, relation, chosen), delta, variation
        )
    return _epsilon(events, delta, relation, chosen)


def with_variation(cost: Callable[[float], float], delta: float, variation: float) -> float:
    """Epsilon of releases that are within `variation` of ones whose epsilon is `cost(delta)`.

    If A and A' are within total variation v of B and B', and B is (e, d)-close to B', then A is
    (e, d + (1 + e^e) v)-close to A'. The search rises from the epsilon without v until
    (1 + e^e) v fits into delta beside it; answers are checked, not assumed.
    """
    reached = cost(delta)
    for _ in range(200):
        left = delta - (1 + math.exp(min(reached, 700.0))) * variation
        if left <= 0.0:
            return math.inf
        needed = cost(left)
        if needed <= reached:
            return reached
        reached = needed * (1 + 1e-9)
    return math.inf


def _epsilon(events: History, delta: float, relation: Relation, accountant: Accountant) -> float:
    precisions = [event.gaussian_precision() for event in events]
    known = [precision for precision in precisions if precision is not None]
    if len(known) == len(events):
        # The privacy loss of Gaussian noise is itself Gaussian, so several
        # releases are exactly one and the closed form of Balle and Wang applies.
        joint = 1.0 / math.sqrt(math.fsum(known))
        return float(get_epsilon_gaussian(joint, delta, tol=1e-14)) * (1 + 1e-9)
    _require(accountant, events, delta)
    return min(pure_epsilon(events), accountant.epsilon(events, delta, relation))


def delta_of(
    history: Event | Iterable[Event],
    *,
    epsilon: float,
    relation: Relation | str = "add-remove",
    accountant: str = "pld",
) -> float:
    """Smallest delta that this accountant proves for the history at `epsilon`."""
    events = as_history(history)
    relation = Relation.of(relation)
    epsilon = checks.positive("epsilon", epsilon, zero=True)
    chosen = _accountant(accountant)
    require_relation(events, relation)
    if not events or pure_epsilon(events) <= epsilon:
        return 0.0
    _require(chosen, events, None)
    extra = (1 + math.exp(min(epsilon, 700.0))) * total_variation(events)
    return min(1.0, chosen.delta(events, epsilon, relation) + extra)


def training_step(noise_multiplier: float, sample_rate: float, unit_rows: int | None) -> Event:
    """One step on records, or on rows of units that have up to `unit_rows` of them."""
    if unit_rows is None:
        return PoissonGaussian(noise_multiplier, sample_rate)
    return PoissonRows(noise_multiplier, sample_rate, unit_rows)


def epsilon(
    *,
    noise_multiplier: float,
    steps: int,
    delta: float,
    sample_rate: float = 1.0,
    unit_rows: int | None = None,
    accountant: str = "pld",
    relation: Relation | str = "add-remove",
) -> float:
    """Epsilon of `steps` steps of private training.

    Each step adds Gaussian noise of deviation `noise_multiplier` times the
    largest norm of one record's contribution to a sum over a Poisson sample.
    With `unit_rows` it is that of a unit with up to so many of these records.

    Examples
    --------
    >>> e = epsilon(noise_multiplier=1.0, sample_rate=0.01, steps=1000, delta=1e-5)
    >>> 1.82 < e < 1.84
    True
    """
    count = checks.integer("steps", steps, minimum=0, maximum=LARGEST_COUNT)
    event = training_step(noise_multiplier, sample_rate, unit_rows)
    history = [with_count(event, count)] if count else []
    return epsilon_of(history, delta=delta, relation=relation, accountant=accountant)


def delta(
    *,
    noise_multiplier: float,
    steps: int,
    epsilon: float,
    sample_rate: float = 1.0,
    unit_rows: int | None = None,
    accountant: str = "pld",
    relation: Relation | str = "add-remove",
) -> float:
    """Delta of `steps` steps of private training at a given epsilon."""
    count = checks.integer("steps", steps, minimum=0, maximum=LARGEST_COUNT)
    event = training_step(noise_multiplier, sample_rate, unit_rows)
    history = [with_count(event, count)] if count else []
    return delta_of(history, epsilon=epsilon, relation=relation, accountant=accountant)


def noise_multiplier(
    *,
    epsilon: float,
    delta: float,
    steps: int,
    sample_rate: float = 1.0,
    unit_rows: int | None = None,
    accountant: str = "pld",
    relation: Relation | str = "add-remove",
) -> float:
    """Noise multiplier for which training costs at most `epsilon`, barely.

    The epsilon of the multiplier returned is never above the target and within
    0.5 % of it.

    Raises
    ------
    ValueError
        If an argument is out of range, or no noise in [0.001, 1e7] fits.
    """
    target = checks.budget(epsilon)
    delta = checks.fraction("delta", delta)
    rate = checks.probability("sample_rate", sample_rate)
    count = checks.integer("steps", steps, minimum=1, maximum=LARGEST_COUNT)

    def cost(sigma: float) -> float:
        event = with_count(training_step(sigma, rate, unit_rows), count)
        return epsilon_of(event, delta=delta, relation=relation, accountant=accountant)

    return calibrate(cost, target, "noise multiplier")


def max_steps(
    *,
    noise_multiplier: float,
    epsilon: float,
    delta: float,
    sample_rate: float = 1.0,
    unit_rows: int | None = None,
    accountant: str = "pld",
    relation: Relation | str = "add-remove",
) -> int:
    """Largest number of steps whose epsilon does not exceed the target; may be 0."""
    event = training_step(noise_multiplier, sample_rate, unit_rows)
    return max_count(event, epsilon=epsilon, delta=delta, accountant=accountant, relation=relation)


def max_count(
    event: Event,
    *,
    epsilon: float,
    delta: float,
    spent: Iterable[Event] = (),
    accountant: str = "pld",
    relation: Relation | str = "add-remove",
) -> int:
    """How many more times `event` fits into the budget after `spent`."""
    target = checks.positive("epsilon", epsilon)
    delta = checks.probability("delta", delta, zero=True, one=False)
    before = as_history(spent)

    def fits(count: int) -> bool:
        history = (*before, with_count(event, count)) if count else before
        cost = epsilon_of(history, delta=delta, relation=relation, accountant=accountant)
        return cost <= target

    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high):
        low, high = high, high * 4
        if high > LARGEST_COUNT:
            return LARGEST_COUNT
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def pure_epsilon(history: Iterable[Event]) -> float:
    """Sum of the pure epsilons; infinite as soon as one release is not pure."""
    return math.fsum(event.pure_epsilon() for event in history)


def calibrate(
    cost: Callable[[float], float],
    target: float,
    name: str,
    low: float = 1e-3,
    high: float = 1e7,
) -> float:
    """Smallest argument of a decreasing `cost` with cost in [(1 - tol) target, target].

    Secant steps on the logarithms, where epsilon over noise is nearly straight,
    held inside a shrinking bracket; every answer is checked by `cost` itself.
    """
    guess = min(max(4.0 / target, 2 * low), high / 2)
    below: tuple[float, float] | None = None  # cost too high: noise too small
    above: tuple[float, float] | None = None  # cost within the target
    for _ in range(200):
        value = cost(guess)
        if value <= target:
            above = (guess, value)
            if value >= (1 - CALIBRATION_TOLERANCE) * target or guess <= low:
                return guess
        else:
            below = (guess, value)
            if guess >= high:
                break
        guess = _next_guess(below, above, target, low, high)
        if above is not None and below is not None and above[0] <= below[0] * (1 + 1e-9):
            # A flat or stepped cost: the tolerance cannot be met, the bound can.
            return above[0]
    if above is not None:
        return above[0]
    raise ValueError(
        f"no {name} up to {high:g} reaches epsilon {target:g}: ask for a larger epsilon, "
        "a larger delta or fewer steps"
    )


def _next_guess(
    below: tuple[float, float] | None,
    above: tuple[float, float] | None,
    target: float,
    low: float,
    high: float,
) -> float:
    if below is None:
        assert above is not None
        return max(low, above[0] / 2)
    if above is None:
        factor = 2.0 if math.isinf(below[1]) else min(10.0, max(1.3, below[1] / target))
        return min(high, below[0] * factor)
    left, right = math.log(below[0]), math.log(above[0])
    middle = (left + right) / 2
    aim = (1 - CALIBRATION_TOLERANCE / 2) * target
    if math.isfinite(below[1]) and above[1] > 0 and below[1] > above[1]:
        slope = (math.log(above[1]) - math.log(below[1])) / (right - left)
        secant = left + (math.log(aim) - math.log(below[1])) / slope
        margin = 0.02 * (right - left)
        middle = min(max(secant, left + margin), right - margin)
    return math.exp(middle)


def _accountant(name: str) -> Accountant:
    return ACCOUNTANTS[checks.choice("accountant", name, ACCOUNTANTS)]


def _require(accountant: Accountant, events: History, delta: float | None) -> None:
    if refusal := accountant.refusal(events, delta):
        raise ValueError(refusal)
