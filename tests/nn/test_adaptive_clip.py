"""A clip that follows a quantile: its own gradient is bounded, noised and charged like others."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import noisewise as nw
from noisewise.gradients import GradientEngine
from noisewise.nn import AdaptiveClipGradient, BoundedInput, losses

LOSS = losses.CrossEntropy()
RULES = [
    nw.InputScaled(),
    nw.Propagated(),
    nw.PerLayer({"": nw.InputScaled(), "1": nw.Clipped(0.1)}),
]


def network(start: float = 0.4, **settings: float) -> nn.Sequential:
    torch.manual_seed(0)
    clip = AdaptiveClipGradient(start, **settings)
    return nn.Sequential(BoundedInput((5,), 3.0), nn.Linear(5, 4), clip)


def records(rows: int = 40) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(rows, 5, generator=generator),
        torch.randint(4, (rows,), generator=generator),
    )


def lengths(model: nn.Sequential, x: Tensor, y: Tensor) -> Tensor:
    output = model[:2](x)
    (cotangent,) = torch.autograd.grad(LOSS(output, y).sum(), output)
    return cotangent.norm(dim=1)


@pytest.mark.parametrize("rule", RULES)
def test_the_limit_learns_from_how_many_are_shorter(rule: object) -> None:
    model, (x, y) = network(0.9, quantile=0.7, gain=0.05), records()
    found = GradientEngine(model, LOSS, rule, chunk=8).sum(x, y)
    shorter = (lengths(model, x, y) <= 0.9).double()
    assert 0 < float(shorter.sum()) < 40
    expected = 0.05 * (shorter - 0.7).sum()
    moved = found.gradients["2.log_clip"].double()[0]
    torch.testing.assert_close(moved, expected, rtol=1e-5, atol=0)
    (group,) = (g for g in found.groups if "2.log_clip" in g.names)
    assert group.sensitivity == pytest.approx(0.05 * 0.7 * 1.001)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("factor", [1.0, 1e6, 0.0, math.nan])
def test_leaving_one_out_moves_no_sum_further_than_stated(rule: object, factor: float) -> None:
    model, (x, y) = network(quantile=0.2), records(9)
    x[0] *= factor
    engine = GradientEngine(model, LOSS, rule, chunk=4)
    whole, less = engine.sum(x, y), engine.sum(x[1:], y[1:])
    for a, b in zip(whole.groups, less.groups, strict=True):
        squares = [(a.gradients[n] - b.gradients[n]).double().square().sum() for n in a.names]
        assert math.sqrt(float(sum(squares))) <= a.sensitivity


def test_the_limit_finds_its_quantile_within_one_accounted_mechanism() -> None:
    model, (x, y) = network(quantile=0.7, gain=0.05), records()
    plan = nw.Plan(
        gradients=nw.InputScaled(), epsilon=5.0, delta=1e-5, steps=60, batch_size=20, records=40,
        seed=0,
    )  # fmt: skip
    fitted = nw.fit(
        model, (x, y), plan, loss=LOSS, optimizer=lambda p: torch.optim.SGD(p, 1.0),
        progress=False, metrics=False,
    )  # fmt: skip
    # Seeded noise. It started at 0.4, where nobody is shorter.
    share = float((lengths(model, x, y) <= model[2].clip).double().mean())
    assert 0.55 <= share <= 0.85
    statement = fitted.statement()
    assert statement.epsilon <= 5.0
    assert nw.privacy.verify(statement).ok


def test_limits_stay_between_least_and_most() -> None:
    layer = AdaptiveClipGradient(0.4, least=0.1, most=0.5)
    for value, clip in ((-50.0, 0.1), (50.0, 0.5), (1e30, 0.5)):
        with torch.no_grad():
            layer.log_clip.fill_(value)
        assert layer.clip == pytest.approx(clip)
        x = torch.zeros(2, 3, requires_grad=True)
        (layer(x) * 100.0).sum().backward()
        assert float(x.grad.norm(dim=1).max()) == pytest.approx(clip, rel=1e-5)
    with pytest.raises(ValueError, match="between least"):
        AdaptiveClipGradient(2.0, most=1.0)
    with pytest.raises(ValueError, match="quantile"):
        AdaptiveClipGradient(1.0, quantile=1.5)
