"""What Opacus tests of its own engine, asked of any training.

`opacus/tests/privacy_engine_test.py` of Opacus 1.6 drives its `PrivacyEngine`; the same questions,
with the same settings and tolerances, can be put to a training function. They are written down
here again, since the originals know no other engine. What looks inside (the sampler, the modules,
checkpoints, accountants) has no counterpart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from noisewise.auditing import records_like
from noisewise.debugging import Data, StateDict
from noisewise.debugging.mutants import AnyTraining, Case, Training

__all__ = ["failed_tests"]

_LR = 0.5
_NO_CLIP = 99_999.0


def failed_tests(case: Case, train: AnyTraining) -> list[str]:
    """Return the names of Opacus' tests that a training fails.

    The length of the noise is tested with a loss of zero, which a whole program does not accept:
    it is asked the other tests.
    """
    torch.manual_seed(1337)
    init = {n: v.clone() for n, v in case.model().state_dict().items()}
    data = records_like(case.example, 16)
    tests = _TESTS if isinstance(train, Training) else _TESTS[:-1]
    return [test.__name__[1:] for test in tests if not test(case, train, init, data)]


def _trained(
    train: AnyTraining,
    init: StateDict,
    data: Data,
    *,
    clip: float = 1.0,
    sigma: float = 0.0,
    steps: int = 1,
    seed: int = 0,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> StateDict:
    if loss is not None and isinstance(train, Training):
        train = replace(train, loss_fn=loss)
    return train(
        clip=clip,
        noise_multiplier=sigma,
        batch_size=len(data[0]),
        seed=seed,
        data=data,
        init={n: v.clone() for n, v in init.items()},
        steps=steps,
        lr=_LR,
    )


def _vanilla(case: Case, init: StateDict, data: Data, steps: int) -> StateDict:
    model: nn.Module = case.model()
    model.load_state_dict(init)
    optimizer = torch.optim.SGD(model.parameters(), lr=_LR)
    for _ in range(steps):
        optimizer.zero_grad()
        case.loss(model(data[0]), data[1]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return {n: v.detach() for n, v in model.state_dict().items()}


def _alike(one: StateDict, other: StateDict) -> bool:
    return all(torch.allclose(one[n], other[n], atol=1e-8, rtol=1e-3) for n in other)


def _compare_to_vanilla(case: Case, train: AnyTraining, init: StateDict, data: Data) -> bool:
    """Without clipping and noise it is plain training; with one of them it is not."""
    for steps in (1, 4):
        plain = _vanilla(case, init, data, steps)
        if not _alike(_trained(train, init, data, clip=_NO_CLIP, steps=steps), plain):
            return False
        if _alike(_trained(train, init, data, clip=0.1, steps=steps), plain):
            return False
        if _alike(_trained(train, init, data, clip=1.0, sigma=1.0, steps=steps), plain):
            return False
    return True


def _flat_clipping(case: Case, train: AnyTraining, init: StateDict, data: Data) -> bool:
    """A batch of one long record moves the weights by exactly C."""
    one = (4 * data[0][:1] if data[0].is_floating_point() else data[0][:1], data[1][:1])
    moved = _trained(train, init, one, clip=0.5)
    length = torch.stack([(init[n] - moved[n]).norm() for n in init]).norm() / _LR
    return abs(float(length) - 0.5) < 5e-4


def _noise_changes_every_time(case: Case, train: AnyTraining, init: StateDict, data: Data) -> bool:
    """Another seed moves every tensor elsewhere."""
    one, other = (_trained(train, init, data, sigma=1.0, seed=seed) for seed in (1, 2))
    return all(not torch.allclose(one[n], other[n]) for n in init)


def _deterministic_run(case: Case, train: AnyTraining, init: StateDict, data: Data) -> bool:
    """The same seed ends at the same weights."""
    one, other = (_trained(train, init, data, sigma=1.0, steps=4) for _ in range(2))
    return _alike(one, other)


def _noise_level(case: Case, train: AnyTraining, init: StateDict, data: Data) -> bool:
    """With gradients of zero the weights move by the noise alone, to 15 % of its square."""
    for sigma, steps in ((0.5, 3), (1.3, 5), (5.0, 4)):
        moved = _trained(
            train, init, data, sigma=sigma, steps=steps, loss=lambda out, y: 0 * out.sum()
        )
        squares = sum(float((init[n] - moved[n]).square().sum()) for n in init)
        numbers = sum(v.numel() for v in init.values())
        expected = steps * numbers * (sigma * _LR / len(data[0])) ** 2
        if not abs(squares - expected) <= 0.15 * expected:
            return False
    return True


_TESTS = (
    _compare_to_vanilla,
    _flat_clipping,
    _noise_changes_every_time,
    _deterministic_run,
    _noise_level,
)
