"""Canaries in a training function: one step seen in full, or a whole run seen by its losses.

The training function has the signature that :mod:`noisewise.debugging` uses, so one
adapter serves both. Nothing is known of its inside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from noisewise import checks
from noisewise.auditing.scores import Scores
from noisewise.privacy import ADD_REMOVE

__all__ = ["Data", "State", "Train", "membership", "one_run_losses", "two_worlds"]

Array = NDArray[np.float64]
Data = tuple[Tensor, Tensor]
State = Mapping[str, Tensor]


class Train(Protocol):
    """A training program: hyper-parameters, data and a start in, weights out."""

    def __call__(
        self,
        *,
        clip: float,
        noise_multiplier: float,
        batch_size: int,
        seed: int,
        data: Data,
        init: State,
        steps: int,
        lr: float,
    ) -> State:
        """Return the weights after `steps` steps from `init`."""
        ...


def two_worlds(
    train: Train,
    *,
    init: State,
    data: Data,
    canary: Data,
    clip: float,
    noise_multiplier: float,
    repeats: int = 500,
    lr: float = 1.0,
    steps: int = 1,
    seed: int = 0,
) -> Scores:
    """Scores of one step, many times with a canary among the data and many times without.

    The batch is all of the data, so sampling plays no part. The direction to look
    along is the difference that the canary makes to a step without noise, whatever
    the cause: clipping that is too loose, a batch maximum, a divisor that moves. Each
    score comes from its own run, so that every bound is valid on them.

    Parameters
    ----------
    train : Train
        Plain gradient descent; it must accept ``noise_multiplier=0``.
    init : state dict
    data : (inputs, targets)
        The other records.
    canary : (inputs, targets)
        One record, with its leading dimension of 1.
    clip, noise_multiplier, lr : float
        Handed to `train`.
    repeats : int
        Runs in each world.
    steps : int
        Steps of each run. With more than one, `lr` should be so small that gradients hardly
        change, else the direction of the canary is lost on the way.
    """
    count = checks.integer("repeats", repeats, minimum=1)
    length = checks.integer("steps", steps, minimum=1)
    clip = checks.positive("clip", clip)
    lr = checks.positive("lr", lr)
    with_canary = (torch.cat([data[0], canary[0]]), torch.cat([data[1], canary[1]]))

    def total(records: Data, noise: float, run: int) -> Tensor:
        # The auditor knows how many records were handed over and undoes the division.
        size = len(records[0])
        after = train(
            clip=clip,
            noise_multiplier=noise,
            batch_size=size,
            seed=run,
            data=records,
            init={name: value.clone() for name, value in init.items()},
            steps=length,
            lr=lr,
        )
        return _difference(init, after) * (size / lr)

    shift = total(with_canary, 0.0, seed) - total(data, 0.0, seed)
    far = float(shift.norm())
    if not math.isfinite(far):
        raise ValueError("a step without noise gives weights that are not finite; lower `lr`")
    if far == 0.0:
        raise ValueError(
            "the canary does not change a step without noise, so nothing can be learnt from it: "
            "choose a record with a large gradient at `init`"
        )
    direction = shift / far
    base = float(total(data, 0.0, seed) @ direction)

    def scores(records: Data, first: int) -> Array:
        values = [
            float(total(records, noise_multiplier, seed + first + run) @ direction)
            for run in range(count)
        ]
        return (np.asarray(values) - base) / clip

    return Scores(
        scores(with_canary, 1),
        scores(data, 1 + count),
        midpoint=far / clip / 2,
        relation=ADD_REMOVE,
        observed="batch" if length == 1 else "run",
        threat_model="an adversary who chooses a record, knows all others and sees the weights "
        + ("after a step" if length == 1 else f"after {length} steps on all of the data"),
        assumptions=("the same seed is never used twice, and seeds give independent noise",),
        rows=len(canary[0]),
    )


def one_run_losses(
    train: Train,
    *,
    init: State,
    model_fn: Callable[[], nn.Module],
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    data: Data,
    canaries: Data,
    settings: Mapping[str, Any],
    seed: int = 0,
) -> Scores:
    """Scores of all canaries from a single training, by how far their losses fell.

    Parameters
    ----------
    train : Train
    init : state dict
    model_fn : callable
        Returns a model that accepts the state dicts.
    loss_fn : callable
        ``(output, target) -> per-record losses``.
    data : (inputs, targets)
        Records that are always in; may be empty.
    canaries : (inputs, targets)
        Records of which each is put in by its own fair coin. Mislabelled or otherwise
        unusual records are remembered best.
    settings : mapping
        The other arguments of `train`: clip, noise_multiplier, batch_size, steps, lr.
    """
    coins = np.random.default_rng(seed).random(len(canaries[0])) < 0.5
    chosen = torch.from_numpy(coins)
    records = tuple(torch.cat([a, b[chosen]]) for a, b in zip(data, canaries, strict=True))
    after = train(data=(records[0], records[1]), init=_copy(init), seed=seed, **settings)
    before = _losses(model_fn, loss_fn, init, canaries)
    scores = before - _losses(model_fn, loss_fn, after, canaries)
    return Scores(
        scores[coins],
        scores[~coins],
        design="one-run",
        coins=True,
        relation=ADD_REMOVE,
        observed="run",
        threat_model="an adversary who chooses records and sees the losses of the final model",
    )


def membership(
    train: Train,
    *,
    init: State,
    model_fn: Callable[[], nn.Module],
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    data: Data,
    canary: Data,
    settings: Mapping[str, Any],
    repeats: int = 100,
    score: str = "loss",
    seed: int = 0,
) -> Scores:
    """Scores of one record from many trainings with it and many without.

    Parameters
    ----------
    train, init, model_fn, loss_fn, data, settings, seed
        As for :func:`one_run_losses`.
    canary : (inputs, targets)
        One record, with its leading dimension of 1.
    repeats : int
        Trainings in each world.
    score : {"loss", "likelihood-ratio"}
        "loss": minus the loss of the record. "likelihood-ratio": a third of the
        trainings fit a normal law of the loss in each world, and the others are scored by
        the ratio of the two (Carlini et al., 2022), which also finds records whose
        loss becomes less spread rather than smaller.
    """
    count = checks.integer("repeats", repeats, minimum=6)
    checks.choice("score", score, ("loss", "likelihood-ratio"))
    with_canary = (torch.cat([data[0], canary[0]]), torch.cat([data[1], canary[1]]))

    def losses(records: Data, first: int) -> Array:
        found = []
        for run in range(count):
            after = train(data=records, init=_copy(init), seed=seed + first + run, **settings)
            found.append(float(_losses(model_fn, loss_fn, after, canary)[0]))
        return -np.asarray(found)

    inside, outside = losses(with_canary, 0), losses(data, count)
    if score == "likelihood-ratio":
        inside, outside = _likelihood_ratios(inside, outside, count // 3)
    return Scores(
        inside,
        outside,
        relation=ADD_REMOVE,
        observed="run",
        threat_model="an adversary who chooses a record, knows all others and sees its loss "
        "under the final model",
        assumptions=("the same seed is never used twice, and seeds give independent noise",),
        rows=len(canary[0]),
    )


def _likelihood_ratios(inside: Array, outside: Array, fitted: int) -> tuple[Array, Array]:
    laws = [(part[:fitted].mean(), part[:fitted].std() + 1e-12) for part in (inside, outside)]

    def ratio(values: Array) -> Array:
        (m, s), (n, t) = laws
        return np.asarray(
            -0.5 * ((values - m) / s) ** 2 - np.log(s) + 0.5 * ((values - n) / t) ** 2 + np.log(t)
        )

    return ratio(inside[fitted:]), ratio(outside[fitted:])


def _difference(before: State, after: State) -> Tensor:
    parts = [
        (before[name].to(torch.float64) - after[name].to(torch.float64)).flatten()
        for name in before
        if before[name].is_floating_point()
    ]
    return torch.cat(parts)


def _losses(
    model_fn: Callable[[], nn.Module],
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    state: State,
    records: Data,
) -> Array:
    model = model_fn()
    model.load_state_dict(dict(state))
    model.eval()
    with torch.no_grad():
        losses = loss_fn(model(records[0]), records[1])
    if losses.shape[:1] != records[0].shape[:1]:
        raise ValueError(
            f"loss_fn must return one loss per record, got shape {tuple(losses.shape)} for "
            f"{len(records[0])} records: use reduction='none'"
        )
    return losses.to("cpu", torch.float64).reshape(len(records[0]), -1).sum(1).numpy()


def _copy(state: State) -> State:
    return {name: value.clone() for name, value in state.items()}
