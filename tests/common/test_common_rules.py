"""Every clipping rule of the registry keeps its promise by itself, without the tape's cut."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from noisewise.gradients.rules import LARGEST, LEAST, RULES, SMALLEST, Rule, clipped, held

LIMITS = (1e-6, 0.3, 1.0, 1e6)


def norms(limit: float) -> Tensor:
    """From nothing to the largest number, and around the limit."""
    powers = torch.logspace(-300, 300, 1201, dtype=torch.float64)
    near = limit * (1 + torch.linspace(-1e-3, 1e-3, 201, dtype=torch.float64))
    return torch.cat([torch.zeros(1, dtype=torch.float64), powers, near])


def excess(rule: Rule) -> float:
    """Largest factor times norm over the limit: a rule promises one."""
    worst = 0.0
    for limit in LIMITS:
        measured = norms(limit)
        factors = rule.factors(measured, limit)
        assert bool(torch.isfinite(factors).all())
        assert bool((factors >= 0).all())
        worst = max(worst, float((factors * measured).max()) / limit)
    return worst


@pytest.mark.parametrize("name", sorted(RULES))
def test_a_rule_keeps_its_promise(name: str) -> None:
    assert excess(RULES[name]()) <= 1 + 1e-12


@pytest.mark.parametrize("name", sorted(RULES))
def test_a_rule_whose_claim_is_a_tenth_too_small_is_found_out(name: str) -> None:
    honest = RULES[name]()

    class Greedy(Rule):
        def factors(self, norms: Tensor, limit: float) -> Tensor:
            return 1.1 * honest.factors(norms, limit)

    assert excess(Greedy()) > 1.05


@pytest.mark.parametrize("name", sorted(RULES))
def test_the_cut_changes_nothing_that_an_honest_rule_says(name: str) -> None:
    for limit in LIMITS:
        measured = norms(limit)
        factors = RULES[name]().factors(measured, limit)
        small = (factors <= LARGEST) & ((factors >= LEAST) | (factors == 0))
        cut = held(factors, measured, limit)
        torch.testing.assert_close(cut[small], factors[small], rtol=1e-15, atol=0)


def test_whatever_a_rule_says_the_cut_keeps_the_promise() -> None:
    measured = torch.tensor([0.0, 1e-30, 1.0, 1e30, torch.inf, torch.nan], dtype=torch.float64)
    for said in (-1.0, 0.0, 5.0, 1e300, torch.inf, torch.nan):
        cut = held(torch.full_like(measured, said), measured, 2.0)
        assert bool(((cut >= 0) & (cut <= LARGEST)).all())
        assert bool((cut[:4] * measured[:4] <= 2.0 * (1 + 1e-15)).all())
        assert not cut[4:].any()
        # What is left is a normal number of float32, so its conversion rounds by 6e-8 of it.
        assert bool(((cut == 0) | (cut >= LEAST)).all())
    assert float(held(torch.ones(1), torch.tensor([1e39], dtype=torch.float64), 1.0)) == 0
    assert SMALLEST * LARGEST <= 1


@pytest.mark.parametrize("limit", [1e-38, 1e-6, 1.0, 3.7, 1e30])
def test_the_usual_rule_in_one_go_is_the_same_to_the_bit(limit: float) -> None:
    ends = [0.0, 1e-300, SMALLEST, limit, limit * (1 + 1e-15), 1e300, math.inf, math.nan]
    measured = torch.cat([torch.tensor(ends, dtype=torch.float64), norms(limit)])
    expected = held(RULES["clip"]().factors(measured, limit), measured, limit)
    assert torch.equal(clipped(measured, limit).view(torch.int64), expected.view(torch.int64))
