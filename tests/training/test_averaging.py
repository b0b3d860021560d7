"""Averages are functions of the public weights after each step."""

import pytest
import torch
from making_runs import plan, same, small_model, start, weights

from noisewise.training import Ema, Polyak


def trajectory(averaging, steps=10):
    model = small_model()
    run = start(model, the_plan=plan(steps=steps), averaging=averaging)
    seen = []
    for x, y in run.loader:
        run.step(x, y)
        seen.append(weights(model))
    return run, seen


def test_polyak_is_the_mean_of_the_weights_from_its_start_on():
    run, seen = trajectory(Polyak(start=0.4))
    for name, value in run.averaged_model().state_dict().items():
        expected = torch.stack([held[name] for held in seen[4:]]).double().mean(0)
        torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("warmup", [True, False])
def test_ema_forgets_at_its_decay(warmup):
    run, seen = trajectory(Ema(decay=0.7, warmup=warmup))
    expected = {name: value.double() for name, value in seen[0].items()}
    for t, held in enumerate(seen[1:], start=1):
        decay = min(0.7, (1 + t) / (10 + t)) if warmup else 0.7
        for name in expected:
            expected[name] = decay * expected[name] + (1 - decay) * held[name].double()
    for name, value in run.averaged_model().state_dict().items():
        torch.testing.assert_close(value.double(), expected[name], rtol=1e-5, atol=1e-6)


def test_averaging_does_not_change_training_and_its_copy_is_a_copy():
    run, seen = trajectory("ema")
    plain, expected = trajectory(None)
    assert same(seen[-1], expected[-1])
    with torch.no_grad():
        next(run.averaged_model().parameters()).zero_()
    assert same(seen[-1], weights(run.plain_model))
    with pytest.raises(ValueError, match="averages nothing"):
        plain.averaged_model()
    with pytest.raises(ValueError, match="averaging must be one of"):
        start(averaging="median")
    with pytest.raises(ValueError, match="decay"):
        Ema(decay=1.0)
