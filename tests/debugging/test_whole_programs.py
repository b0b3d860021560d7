"""Whole programs train: from the weights they are given, alike for a seed, and as they say."""

from __future__ import annotations

import pytest
import torch

from noisewise.auditing.screening import records_like
from noisewise.debugging.mutants import CORRECT, PROGRAMS, mutants, with_bug, with_variant
from noisewise.debugging.mutants.programs import Run, per_record, program, twin
from noisewise.debugging.mutants.training import Training

BROKEN = [mutant.bug for mutant in mutants("ninth freeze")]


def trained(program_, *, seed=3, sigma=1.0, clip=0.3, steps=9, batch_size=5):
    torch.manual_seed(0)
    init = {n: v.clone() for n, v in program_.case.model().state_dict().items()}
    before = {n: v.clone() for n, v in init.items()}
    data = records_like(program_.case.example, 23)
    given = {"clip": clip, "noise_multiplier": sigma, "batch_size": batch_size, "lr": 0.1}
    after = program_(seed=seed, data=data, init=init, steps=steps, **given)
    assert all(torch.equal(init[n], before[n]) for n in init)
    assert set(after) == set(init)
    return torch.cat([after[n].flatten() for n in init])


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_one_training(name):
    ends = trained(PROGRAMS[name])
    assert torch.isfinite(ends).all()
    assert torch.equal(ends, trained(PROGRAMS[name]))
    assert not torch.equal(ends, trained(PROGRAMS[name], seed=4))


def test_outer_products_are_the_gradients_of_each_record():
    """The short cut for stacks of layers gives what torch gives for one record after another."""
    torch.manual_seed(0)
    net = twin()
    w = {n: p.detach().clone() for n, p in net.named_parameters()}
    x, y = torch.randn(5, 8), torch.tensor([0, 2, 1, 1, 0])
    fast = per_record(net, w, x, y)
    for row in range(5):
        net.zero_grad()
        torch.nn.functional.cross_entropy(net(x[row : row + 1]), y[row : row + 1]).backward()
        for n, p in net.named_parameters():
            assert torch.allclose(fast[n][row], p.grad, atol=1e-6)


def test_the_right_pieces_keep_their_bound():
    run = Run(0.2, 1.0, 4, 0, (torch.randn(9, 8), torch.arange(9) % 3), twin().state_dict(), 1, 0.1)
    model, w = run.begin(twin)
    for row in range(9):
        total = run.clipped_sum(model, w, torch.tensor([row]))
        length = torch.cat([g.flatten() for g in total.values()]).norm()
        assert float(length) == pytest.approx(0.2, rel=1e-5)


def test_two_programs_of_one_name_are_refused():
    with pytest.raises(ValueError, match="two programs"):
        program(BROKEN[0])(lambda run: run.init)


def test_a_bug_is_a_whole_program_or_a_switch_of_the_one_program():
    assert with_bug(BROKEN[0]).train is PROGRAMS[BROKEN[0]]
    assert isinstance(with_bug("no-noise").train, Training)
    whole = [variant for variant in CORRECT if variant.name in PROGRAMS]
    assert len(whole) == 28
    assert all(with_variant(variant).train is PROGRAMS[variant.name] for variant in whole)
