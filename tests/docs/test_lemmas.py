"""Small lemmas of docs/proofs/layers.md, drawn or enumerated."""

import itertools
import math

import numpy as np
import pytest

RNG = np.random.default_rng(0)


def test_the_jacobian_of_log_softmax_has_the_norm_of_its_projection() -> None:
    for _ in range(300):
        size = int(RNG.integers(2, 9))
        p = RNG.dirichlet(np.full(size, 0.3))
        jacobian = np.eye(size) - np.outer(np.ones(size), p)
        assert np.linalg.norm(jacobian, 2) == pytest.approx(math.sqrt(size) * np.linalg.norm(p))


def test_the_jacobian_of_softmax_is_at_most_one_half_and_reaches_it() -> None:
    def norm(p: np.ndarray) -> float:
        return float(np.linalg.norm(np.diag(p) - np.outer(p, p), 2))

    for _ in range(300):
        assert norm(RNG.dirichlet(np.full(int(RNG.integers(2, 9)), 0.3))) <= 0.5 + 1e-12
    assert norm(np.array([0.5, 0.5, 0.0])) == pytest.approx(0.5)


def test_a_pixel_is_read_no_more_often_than_the_formula_says_and_sometimes_as_often() -> None:
    reached = 0
    for size, stride, dilation, out in itertools.product(range(1, 7), repeat=4):
        reads = [stride * o + dilation * j for o in range(out) for j in range(size)]
        most = max(reads.count(place) for place in set(reads))
        claim = min(math.ceil(size * math.gcd(stride, dilation) / stride), out)
        assert most <= claim
        reached += most == claim
    assert reached > 1000


@pytest.mark.parametrize("f", [np.tanh, lambda v: v / (1 + abs(v))], ids=["tanh", "softsign"])
def test_equal_entries_make_a_saturating_activation_longest(f) -> None:
    for _ in range(1000):
        x = RNG.normal(size=int(RNG.integers(1, 20))) * RNG.exponential(3)
        even = np.linalg.norm(x) / math.sqrt(x.size)
        assert np.linalg.norm(f(x)) <= math.sqrt(x.size) * f(even) * (1 + 1e-12)
