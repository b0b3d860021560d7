"""Two quick audits of any training function: by one canary's gradient, and by losses alone.

Both use synthetic records and the calling convention of `noisewise.debugging`, so that the
same code can be looked at by both. They answer what an audit notices of a bug that the
bug finder would name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import torch
from torch import Tensor, nn

from noisewise.auditing.attacks import Train
from noisewise.auditing.attacks.training import Data
from noisewise.auditing.auditor import audit
from noisewise.auditing.noise_model import NoiseModel
from noisewise.auditing.result import AuditResult
from noisewise.privacy import PoissonGaussian, epsilon_of

__all__ = ["Screening", "mutant_columns", "records_like", "screen"]

Loss = Callable[[Tensor, Tensor], Tensor]

DELTA = 1e-5
#: Never 1: a factor that is missing or squared would not show.
_NOISE, _STEPS = 0.6, 3
# One run certifies an epsilon of three or four at most, so the claim has to be small.
_LARGE_NOISE, _LONG = 80.0, 150


@dataclass(frozen=True)
class Screening:
    """What two audits say of one training function; None where it could not be attacked."""

    canary: tuple[AuditResult | None, ...]
    black_box: AuditResult | None

    @property
    def caught(self) -> tuple[bool, bool]:
        """Whether the claim is refuted by the canary, and by the losses."""
        by_canary = any(result is not None and result.passed is False for result in self.canary)
        return by_canary, self.black_box is not None and self.black_box.passed is False


def screen(
    train: Train,
    model_fn: Callable[[], nn.Module],
    loss_fn: Loss,
    example: Data,
    *,
    repeats: int = 300,
    canaries: int = 120,
    confidence: float = 0.999,
    seed: int = 0,
) -> Screening:
    """Audit a training function twice, holding it to the epsilon that its settings imply.

    Parameters
    ----------
    train, model_fn, loss_fn
        As for :func:`noisewise.debugging.check`.
    example : (inputs, targets)
        Gives shapes and dtypes; inputs are numbers or numbers of tokens, targets class numbers
        or numbers.
    repeats : int
        Runs in each world of the canary audits: one step on all records, and three.
    canaries : int
        Records of the one training of the black-box audit, each in by a fair coin.
    confidence : float
        For all audits together.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_fn()
        init = {name: value.detach().clone() for name, value in model.state_dict().items()}
        others = records_like(example, 4)
        canary = records_like(example, 1, scale=12.0)
        drawn = records_like(example, canaries)
    level = 1 - (1 - confidence) / 3
    norm = float(np.median([_gradient_norm(model, loss_fn, one) for one in _split(others)]))
    clip = 0.2 * norm
    size = float(torch.stack([p.detach().square().sum() for p in model.parameters()]).sum().sqrt())

    def by_canary(steps: int) -> AuditResult | None:
        return _try(
            lambda: audit(
                train,
                **_claim(_NOISE, steps),
                attack="two-worlds",
                confidence=level,
                init=init,
                data=others,
                canary=canary,
                clip=clip,
                noise_multiplier=_NOISE,
                repeats=repeats,
                lr=size / clip / 1e2,
                steps=steps,
                seed=seed,
            )
        )

    black_box = _try(
        lambda: audit(
            train,
            **_claim(_LARGE_NOISE, _LONG),
            attack="one-run",
            confidence=level,
            init=init,
            model_fn=model_fn,
            loss_fn=_per_record(loss_fn),
            data=others,
            canaries=drawn,
            settings={
                # Records that are learnt by heart need their whole gradients, and large steps.
                "clip": norm,
                "noise_multiplier": _LARGE_NOISE,
                # At least as many as there are records, so that everybody is in every batch.
                "batch_size": len(others[0]) + canaries,
                "steps": _LONG,
                "lr": 6.0 * size / norm,
            },
            seed=seed,
        )
    )
    one = by_canary(1)
    # Whoever is caught in one step need not be watched for three.
    longer = () if one is not None and one.passed is False else (by_canary(_STEPS),)
    return Screening((one, *longer), black_box)


def mutant_columns(
    train: Train, model_fn: Callable[[], nn.Module], loss_fn: Loss, example: Data
) -> tuple[bool, bool]:
    """Say whether a canary audit and a black-box audit notice that something is wrong."""
    return screen(train, model_fn, loss_fn, example).caught


def _try(run: Callable[[], AuditResult]) -> AuditResult | None:
    """Scores that are not finite, or a canary without effect, are no evidence of anything."""
    try:
        return run()
    except ValueError:
        return None


class _Claim(TypedDict):
    claimed: float
    delta: float
    noise: NoiseModel


def _claim(noise: float, steps: int) -> _Claim:
    """Return the claim of somebody else's settings: to be refuted, and no promise of ours."""
    epsilon = epsilon_of(PoissonGaussian(noise, 1.0, steps), delta=DELTA)
    return {"claimed": epsilon, "delta": DELTA, "noise": NoiseModel(1.0, steps)}


def records_like(example: Data, count: int, scale: float = 1.0) -> Data:
    """Return random records of the form of an example; numbers of tokens have no scale."""
    x, y = example
    if x.is_floating_point():
        inputs = scale * torch.randn((count, *x.shape[1:]), dtype=x.dtype)
    else:
        inputs = torch.randint(int(x.max()) + 1, (count, *x.shape[1:]), dtype=x.dtype)
    if y.is_floating_point():
        return inputs, torch.randn((count, *y.shape[1:]), dtype=y.dtype)
    return inputs, torch.randint(int(y.max()) + 1, (count, *y.shape[1:]), dtype=y.dtype)


def _split(records: Data) -> list[Data]:
    return [(x[None], y[None]) for x, y in zip(*records, strict=True)]


def _gradient_norm(model: nn.Module, loss_fn: Loss, record: Data) -> float:
    parameters = [p for p in model.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(loss_fn(model(record[0]), record[1]).mean(), parameters)
    return float(torch.stack([g.square().sum() for g in gradients]).sum().sqrt())


def _per_record(loss_fn: Loss) -> Loss:
    """One loss per record, whatever the reduction of the user's loss."""

    def losses(output: Tensor, target: Tensor) -> Tensor:
        rows = zip(output, target, strict=True)
        return torch.stack([loss_fn(o[None], t[None]).mean() for o, t in rows])

    return losses
