"""Compiled models run as they were written: the same sums, proven as ever."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import noisewise as nw
from noisewise.gradients.compiled import CompiledWarning

LOSS = nn.CrossEntropyLoss()


def plain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def batch():
    torch.manual_seed(1)
    return torch.randn(6, 4), torch.randint(3, (6,))


def whole():
    return torch.compile(plain(), backend="eager")


def in_place():
    model = plain()
    model.compile(backend="eager")
    return model


def within():
    model = plain()
    model[0] = torch.compile(model[0], backend="eager")
    return model


class Decorated(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = plain()

    @torch.compile(backend="eager")
    def forward(self, x):
        return self.inner(x)


@pytest.mark.parametrize("build", [whole, in_place, within])
def test_sums_are_those_of_the_model_as_written(build):
    model, (x, y) = build(), batch()
    expected = nw.bounded_sum(plain(), LOSS, x, y, nw.Clipped(0.3))
    with pytest.warns(CompiledWarning):
        found = nw.bounded_sum(model, LOSS, x, y, nw.Clipped(0.3))
    pairs = zip(expected.gradients.values(), found.gradients.values(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_compiled_code_inside_a_model_and_a_compiled_loss_run_as_written():
    x, y = batch()
    expected = nw.bounded_sum(plain(), LOSS, x, y, nw.Clipped(0.3))

    @torch.compile(backend="eager")
    def losses(output, target):
        return nn.functional.cross_entropy(output, target, reduction="none")

    found = nw.bounded_sum(Decorated(), losses, x, y, nw.Clipped(0.3))
    pairs = zip(expected.gradients.values(), found.gradients.values(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_what_mixes_records_is_found_in_compiled_code_too():
    class Mixing(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = plain()

        @torch.compile(backend="eager")
        def forward(self, x):
            return self.inner(x - x.mean(0))

    with pytest.raises(nw.UnsupportedModelError, match=r"mean at .* mixes records"):
        nw.bounded_sum(Mixing(), LOSS, *batch(), nw.Clipped(0.3))


def test_a_run_trains_the_weights_that_the_compiled_model_evaluates_with():
    compiled, (x, y) = whole(), batch()
    plan = nw.Plan(
        gradients=nw.Clipped(1.0), noise_multiplier=1.0, steps=2, batch_size=3, records=6
    )
    optimizer = torch.optim.SGD(compiled.parameters(), 0.5)
    before = compiled(x).detach()
    with pytest.warns(CompiledWarning):
        run = nw.make_private(compiled, optimizer, LOSS, (x, y), plan)
    for part in run.loader:
        run.step(*part)
    assert run.steps_taken == 2
    assert not torch.equal(compiled(x).detach(), before)
