"""White-box canaries: gradients that the auditor chooses, one direction each.

K canaries have gradients along K different coordinates, larger than the clipping
norm, so that each contributes exactly its largest allowed share to its own
coordinate and nothing to the others. The score of a canary is the noisy sum along
its coordinate, in units of the clipping norm: 1 plus noise if the canary was in, noise
alone if not. This is the worst case of a Gaussian mechanism, so audits are nearly
tight (Nasr et al., 2023; Steinke, Nasr and Jagielski, 2023).
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from scipy.special import ndtr
from torch import Tensor

from noisewise import checks
from noisewise.auditing.scores import Scores
from noisewise.privacy import ADD_REMOVE, Relation

__all__ = [
    "PrivateSum",
    "crowd_canaries",
    "gradient_canaries",
    "run_canaries",
    "stepwise_canaries",
]

_INDEPENDENT = (
    "canaries along different coordinates do not influence each other, as claimed (each record "
    "bounded on its own, independent noise in each coordinate)"
)


class PrivateSum(Protocol):
    """One private step of a mechanism, seen as a function of per-record gradients."""

    def __call__(self, gradients: Tensor, *, seed: int) -> Tensor:
        """Return the noisy sum, shape (dimension,), of raw gradients (records, dimension).

        The result may be scaled by a public constant as long as it is always the
        same, whatever the number of records. There may be no records at all.
        """
        ...


def gradient_canaries(
    mechanism: PrivateSum,
    *,
    clip: float,
    canaries: int = 1000,
    repeats: int = 40,
    magnitude: float = 10.0,
    relation: Relation | str = ADD_REMOVE,
    unit_rows: int = 1,
    seed: int = 0,
) -> Scores:
    """Scores of canaries in batches that the auditor chose.

    Parameters
    ----------
    mechanism : PrivateSum
        Must use every record it is given: sampling is left out, and enters the bound
        through the claimed rate (:class:`~noisewise.auditing.NoiseModel`).
    clip : float
        Largest norm of one record's contribution, as claimed.
    canaries : int
        Number of coordinates, one canary each.
    repeats : int
        Number of steps, each with fresh coins and a new seed.
    magnitude : float
        Norm of a canary's raw gradient in units of `clip`; above 1, so that the bound
        itself is tested.
    relation : {"add-remove", "replace-one"}
        Under replace-one an outside canary contributes the opposite gradient.
    unit_rows : int
        Rows of one canary: above 1 the canary is a unit (a patient with that many rows), all of
        its rows have the same gradient, and the mechanism is called with ``units=``, one number
        a row. A bound per row lets such a canary contribute several times the clip.
    seed : int
        Seeds the coins and, increasing by one, the steps.
    """
    rows = checks.integer("unit_rows", unit_rows, minimum=1)
    clip = checks.positive("clip", clip)
    count = checks.integer("canaries", canaries, minimum=1)
    magnitude = checks.positive("magnitude", magnitude)
    relation = Relation.of(relation)
    coins = np.random.default_rng(seed)
    directions = magnitude * clip * torch.eye(count)
    inside: list[np.ndarray] = []
    outside: list[np.ndarray] = []
    for repeat in range(checks.integer("repeats", repeats, minimum=1)):
        bits = coins.random(count) < 0.5
        chosen = torch.from_numpy(bits)
        gradients = directions[chosen]
        if relation.count_is_public:
            gradients = torch.where(chosen[:, None], directions, -directions)
        scores = _scores(mechanism, gradients, clip, count, seed + repeat, rows)
        inside.append(scores[bits])
        outside.append(scores[~bits])
    return Scores(
        np.concatenate(inside),
        np.concatenate(outside),
        design="orthogonal" if count > 1 else "independent",
        coins=True,
        midpoint=0.0 if relation.count_is_public else 0.5,
        relation=relation,
        observed="batch",
        threat_model="an adversary who chooses "
        + ("a record's gradient" if rows == 1 else f"the gradients of a unit of {rows} rows")
        + ", knows the rest of the batch and sees the noisy sum of a step",
        assumptions=(_INDEPENDENT,) if count > 1 else (),
        rows=rows,
    )


def crowd_canaries(
    mechanism: PrivateSum,
    *,
    clip: float,
    crowd: int = 63,
    loud: bool = False,
    magnitude: float = 100.0,
    repeats: int = 500,
    seed: int = 0,
) -> Scores:
    """Scores of one canary in a crowd: against clipping of the batch, and against medians.

    Orthogonal canaries are taken as independent, which a bound that depends on the batch breaks.
    Here every score has a step of its own, and nothing is assumed about others. A crowd of records
    surrounds one canary, in a direction of its own. A *silent* crowd has
    no gradients: where the mean of the batch is clipped, the canary gets the share of everybody.
    A *loud* crowd has gradients far longer than the clip, half of them opposite to the others:
    where the clip follows a median or another statistic of the batch, it follows the crowd, and
    the canary is as long. With a bound on each record the canary contributes the clip in both.

    Parameters
    ----------
    mechanism : PrivateSum
        Must use every record it is given.
    clip : float
        Largest norm of one record's contribution, as claimed.
    crowd : int
        Number of other records.
    loud : bool
        Whether their gradients are long instead of zero.
    magnitude : float
        Norm of raw gradients in units of `clip`.
    repeats : int
        Steps with the canary, and as many without.
    seed : int
        Seed of the first step; each further one has the next.
    """
    clip = checks.positive("clip", clip)
    count = checks.integer("crowd", crowd, minimum=1)
    length = checks.positive("magnitude", magnitude) * clip
    others = torch.zeros(count, 2)
    if loud:
        others[::2, 0], others[1::2, 0] = length, -length
    canary = torch.tensor([[0.0, length]])
    times = checks.integer("repeats", repeats, minimum=1)
    worlds = []
    for world, gradients in enumerate((torch.cat([others, canary]), others)):
        first = seed + world * times
        worlds.append(
            [float(_scores(mechanism, gradients, clip, 2, first + i)[1]) for i in range(times)]
        )
    return Scores(
        np.asarray(worlds[0]),
        np.asarray(worlds[1]),
        midpoint=0.5,
        relation=ADD_REMOVE,
        observed="batch",
        threat_model="an adversary who chooses the gradients of a batch and sees the noisy sum of "
        "a step",
    )


def stepwise_canaries(
    mechanism: PrivateSum,
    *,
    clip: float,
    canaries: int = 1000,
    steps: int = 100,
    noise_multiplier: float | None = None,
    magnitude: float = 10.0,
    relation: Relation | str = ADD_REMOVE,
    seed: int = 0,
) -> Scores:
    """Scores of every step of two trainings, one with all canaries and one without.

    The mechanism draws its own batches from the records it is given, so the sampler
    is audited too. The adversary sees every step, but not the batches.

    Parameters
    ----------
    mechanism : PrivateSum
        Draws a batch from the records it is given and returns its noisy sum.
    clip, canaries, magnitude, relation, seed
        As for :func:`gradient_canaries`.
    steps : int
        Number of steps of each training.
    noise_multiplier : float, optional
        As claimed. It fixes, before any score is seen, the threshold at which a sampled
        canary stands out most; only the sharpness of the bound depends on it.
    """
    clip = checks.positive("clip", clip)
    count = checks.integer("canaries", canaries, minimum=1)
    length = checks.integer("steps", steps, minimum=1)
    relation = Relation.of(relation)
    present = checks.positive("magnitude", magnitude) * clip * torch.eye(count)
    absent = -present if relation.count_is_public else present[:0]
    inside = [_scores(mechanism, present, clip, count, seed + 2 * t) for t in range(length)]
    outside = [_scores(mechanism, absent, clip, count, seed + 2 * t + 1) for t in range(length)]
    return Scores(
        np.concatenate(inside),
        np.concatenate(outside),
        design="orthogonal",
        midpoint=None if noise_multiplier is None else _standing_out(noise_multiplier),
        relation=relation,
        observed="step",
        threat_model="an adversary who chooses a record's gradient and sees the noisy sum of "
        "every step, but not the batches",
        assumptions=(_INDEPENDENT,),
    )


def run_canaries(
    mechanism: PrivateSum,
    *,
    clip: float,
    noise_multiplier: float,
    sample_rate: float,
    steps: int = 100,
    canaries: int = 2000,
    repeats: int = 10,
    magnitude: float = 10.0,
    relation: Relation | str = ADD_REMOVE,
    seed: int = 0,
) -> Scores:
    """Scores of whole trainings: every canary's steps put together into one number.

    As for :func:`stepwise_canaries` the mechanism draws its own batches and the
    adversary sees every step, but not the batches. The score of a canary is the
    logarithm of the likelihood ratio of all steps along its coordinate, at the claimed
    noise and sampling rate: the strongest test there is of whether it took part, so the
    scores are compared with the trade-off curve of the whole training, and far fewer are
    needed than if every step is judged by itself.

    Parameters
    ----------
    mechanism, clip, magnitude, relation, seed
        As for :func:`stepwise_canaries`.
    noise_multiplier, sample_rate : float
        As claimed. If the mechanism does something else the scores lose some of their
        sharpness, the bound stays valid.
    steps : int
        Number of steps of a training.
    canaries : int
        Coordinates of one training.
    repeats : int
        Pairs of trainings, one with all canaries and one without.
    """
    clip = checks.positive("clip", clip)
    noise = checks.positive("noise_multiplier", noise_multiplier)
    rate = checks.probability("sample_rate", sample_rate)
    count = checks.integer("canaries", canaries, minimum=1)
    length = checks.integer("steps", steps, minimum=1)
    relation = Relation.of(relation)
    present = checks.positive("magnitude", magnitude) * clip * torch.eye(count)
    absent = -present if relation.count_is_public else present[:0]

    def training(gradients: Tensor, first: int) -> np.ndarray:
        total = np.zeros(count)
        for step in range(length):
            seen = _scores(mechanism, gradients, clip, count, first + step)
            total += _log_odds(seen, noise, rate)
            if relation.count_is_public:
                total -= _log_odds(-seen, noise, rate)
        return total

    pairs = range(checks.integer("repeats", repeats, minimum=1))
    starts = [seed + 2 * length * pair for pair in pairs]
    return Scores(
        np.concatenate([training(present, start) for start in starts]),
        np.concatenate([training(absent, start + length) for start in starts]),
        design="orthogonal" if count > 1 else "independent",
        midpoint=0.0,
        relation=relation,
        observed="run",
        threat_model="an adversary who chooses a record's gradient and sees the noisy sum of "
        "every step, but not the batches",
        assumptions=(_INDEPENDENT,) if count > 1 else (),
    )


def _log_odds(seen: np.ndarray, noise: float, rate: float) -> np.ndarray:
    """Log of the density of (1-q) N(0, s^2) + q N(1, s^2) over that of N(0, s^2)."""
    shifted = (2.0 * seen - 1.0) / (2.0 * noise**2) + np.log(rate)
    if rate == 1.0:
        return np.asarray(shifted)
    return np.asarray(np.logaddexp(np.log1p(-rate), shifted))


def _standing_out(noise_multiplier: float) -> float:
    """Threshold at which the excess of canaries is largest against its own fluctuation.

    Rates of N(1, sigma^2) and N(0, sigma^2) above t: the excess is proportional to their
    difference, its deviation to the root of the binomial variance without canaries.
    """
    noise = checks.positive("noise_multiplier", noise_multiplier)
    grid = np.linspace(0.0, 1.0 + 5.0 * noise, 2001)
    without, present = ndtr(-grid / noise), ndtr((1.0 - grid) / noise)
    return float(grid[int(np.argmax((present - without) / np.sqrt(without * (1 - without))))])


def _scores(
    mechanism: PrivateSum, gradients: Tensor, clip: float, count: int, seed: int, rows: int = 1
) -> np.ndarray:
    if rows == 1:
        result = mechanism(gradients, seed=seed)
    else:
        # Every row of a unit; the mechanism must be told which rows belong together.
        units = torch.arange(len(gradients)).repeat_interleave(rows)
        by_unit: Any = mechanism
        result = by_unit(gradients.repeat_interleave(rows, 0), units=units, seed=seed)
    if tuple(result.shape) != (count,):
        raise ValueError(
            f"the mechanism must return one sum of shape ({count},) for gradients of shape "
            f"{tuple(gradients.shape)}, got {tuple(result.shape)}"
        )
    return result.detach().to("cpu", torch.float64).numpy() / clip
