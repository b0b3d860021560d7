"""Draws that are said to take a fixed number of random numbers, tried on values of every kind."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from noisewise.separation.registry import _STEADY

#: Values with which a kernel might draw more or fewer numbers: none, all, of both signs, extreme.
VALUES = (torch.zeros(40), torch.ones(40), torch.linspace(0, 1, 40), torch.full((40,), 0.999999))
CALLS = {
    "rand_like": torch.rand_like,
    "randn_like": torch.randn_like,
    "randint_like": lambda x: torch.randint_like(x, 5),
    "bernoulli": torch.bernoulli,
    "bernoulli_": lambda x: torch.empty(40).bernoulli_(x),
    "normal": lambda x: torch.normal(x - 0.5, x + 0.1),
    "normal_": lambda x: x.clone().normal_(),
    "uniform_": lambda x: x.clone().uniform_(),
    "random_": lambda x: x.clone().random_(),
    "exponential_": lambda x: x.clone().exponential_(),
    "geometric_": lambda x: x.clone().geometric_(0.3),
    "cauchy_": lambda x: x.clone().cauchy_(),
    "log_normal_": lambda x: x.clone().log_normal_(),
    "multinomial": lambda x: torch.multinomial(x + 0.1, 7),
    "native_dropout": lambda x: torch.native_dropout(x, 0.5, True),
    "poisson": lambda x: torch.poisson(5 * x),
    "rrelu_with_noise": lambda x: torch.rrelu(x - 0.5, training=True),
}


def drawn(call: object, values: Tensor) -> bytes:
    torch.manual_seed(0)
    call(values)  # type: ignore[operator]
    return torch.get_rng_state().numpy().tobytes()


@pytest.mark.parametrize("name", sorted(CALLS))
def test_a_steady_draw_takes_as_many_numbers_whatever_it_is_given(name: str) -> None:
    states = {drawn(CALLS[name], values) for values in VALUES}
    if name in _STEADY:
        assert len(states) == 1


@pytest.mark.parametrize("name", ["poisson", "rrelu_with_noise"])
def test_draws_that_are_not_steady_are_found(name: str) -> None:
    assert name not in _STEADY
    assert len({drawn(CALLS[name], values) for values in VALUES}) > 1
