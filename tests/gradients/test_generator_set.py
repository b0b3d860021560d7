"""A program that sets torch's generator draws the same for whoever has a place in a batch."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.random import set_rng_state as bound_before
from torch.utils.checkpoint import checkpoint

import noisewise as nw
from noisewise.gradients.engine import GradientEngine

torch.manual_seed(0)
STATE = torch.get_rng_state()


def by_method(h):
    torch.default_generator.set_state(STATE)
    return h * torch.rand(len(h), 8)


def by_a_name_of_before(h):
    bound_before(STATE)
    return h * torch.rand(len(h), 8)


def seeded_aside(h):
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(0)
        h = functional.dropout(h, 0.5)
    return functional.dropout(h, 0.1)


def recomputed(h):
    return checkpoint(functional.dropout, h, 0.5, use_reentrant=False)


def drawn(h):
    return functional.dropout(h + torch.rand(len(h), 8), 0.5)


class Drawing(nn.Module):
    def __init__(self, draw):
        super().__init__()
        torch.manual_seed(0)
        self.draw, self.first, self.last = draw, nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(functional.relu(self.draw(self.first(x))))


def losses(output, target):
    return functional.cross_entropy(output, target, reduction="none")


def batch(records):
    torch.manual_seed(2)
    x, y = 3 * torch.randn(records, 6), torch.randint(3, (records,))
    torch.manual_seed(0)  # what the program sets it to is what it is at the moment
    return x, y


def summed(draw, x, y):
    engine = GradientEngine(Drawing(draw), losses, nw.Clipped(1.0), chunk=8)
    return engine, engine.sum(x, y)


@pytest.mark.parametrize("draw", [by_method, by_a_name_of_before, seeded_aside])
def test_one_record_moves_the_sum_by_at_most_its_bound(draw):
    x, y = batch(20)
    engine, _ = summed(draw, x, y)
    assert engine.own_places
    for gone in (0, 11):
        kept = torch.arange(len(x)) != gone
        batch(1)
        rest = nw.bounded_sum(Drawing(draw), losses, x[kept], y[kept], nw.Clipped(1.0), chunk=8)
        batch(1)
        full = nw.bounded_sum(Drawing(draw), losses, x, y, nw.Clipped(1.0), chunk=8)
        for one, other in zip(full.groups, rest.groups, strict=True):
            moved = [one.gradients[name] - other.gradients[name] for name in one.names]
            assert torch.cat([m.flatten() for m in moved]).norm() <= one.sensitivity


@pytest.mark.parametrize("draw", [recomputed, drawn])
def test_who_only_draws_needs_no_places_and_draws_on(draw):
    engine, _ = summed(draw, *batch(20))
    assert not engine.own_places
    state = torch.get_rng_state()
    summed(draw, *batch(20))
    assert torch.equal(state, torch.get_rng_state())  # watching draws nothing of its own
