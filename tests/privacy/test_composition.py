"""The textbook theorems against dp-accounting and brute force on randomised response."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting.rdp import compute_epsilon
from hypothesis import given, strategies as st

from noisewise import privacy
from noisewise.privacy import Pure, accounting

small = st.floats(0.01, 2)


def divergence(p, q, epsilon):
    return float(np.maximum(np.asarray(p) - math.exp(epsilon) * np.asarray(q), 0).sum())


def response(epsilon):
    """The worst pair of distributions that are epsilon-indistinguishable."""
    truth = 1 / (1 + math.exp(-epsilon))
    return np.array([truth, 1 - truth]), np.array([1 - truth, truth])


def product(pairs):
    first = [math.prod(c) for c in itertools.product(*(p for p, _ in pairs))]
    second = [math.prod(c) for c in itertools.product(*(q for _, q in pairs))]
    return first, second


@given(st.lists(small, min_size=1, max_size=6))
def test_simple_composition_bounds_the_product_of_worst_pairs_tightly(epsilons):
    total = privacy.simple_composition((epsilon, 0.0) for epsilon in epsilons)
    pair = product([response(epsilon) for epsilon in epsilons])
    assert divergence(*pair, total.epsilon) <= 1e-12
    assert divergence(*pair, 0.9 * total.epsilon) > 0


@given(st.floats(0.01, 1), st.integers(1, 12), st.floats(1e-8, 0.1))
def test_advanced_composition_bounds_the_product_of_worst_pairs(epsilon, count, slack):
    bound = privacy.advanced_composition(epsilon, 0.0, count, slack)
    assert divergence(*product([response(epsilon)] * count), bound.epsilon) <= bound.delta + 1e-12
    assert bound.epsilon <= count * epsilon


def test_the_accountant_is_tighter_than_advanced_composition():
    bound = privacy.advanced_composition(0.1, 0.0, 100, 1e-6)
    assert accounting.epsilon_of(Pure(0.1, 100), delta=1e-6) < bound.epsilon < 100 * 0.1


@given(small, st.floats(0, 0.05), st.integers(1, 4))
def test_group_privacy_holds_along_a_chain_of_neighbours(epsilon, delta, size):
    # A chain of distributions, each (epsilon, delta)-close to the next, as far apart as they go.
    chain = [0.2 * math.exp(-size * epsilon)]
    for _ in range(size):
        chain.append(min(1.0, math.exp(epsilon) * chain[-1] + delta))
    bound = privacy.group_privacy(epsilon, delta, size)
    excess = chain[-1] - math.exp(bound.epsilon) * chain[0]
    assert excess <= bound.delta + 1e-12
    if chain[-1] < 1.0:
        assert excess == pytest.approx(bound.delta, abs=1e-12)
    thesis = size * math.exp(size * epsilon) * delta
    assert bound.delta <= thesis + 1e-15


@given(small, st.floats(0.01, 1))
def test_sampling_amplifies_the_worst_pair_exactly(epsilon, rate):
    p, q = response(epsilon)
    mixed = (1 - rate) * q + rate * p  # the record takes part with probability `rate`
    amplified = privacy.amplification_by_sampling(epsilon, 0.0, rate)
    for first, second in ((mixed, q), (q, mixed)):
        assert divergence(first, second, amplified.epsilon) <= 1e-12
    assert divergence(mixed, q, 0.95 * amplified.epsilon) > 0


def test_amplification_does_not_overflow():
    assert privacy.amplification_by_sampling(1000.0, 1e-6, 0.5).epsilon == pytest.approx(
        1000 + math.log(0.5)
    )


@given(st.floats(1.1, 60), st.floats(0.05, 5), st.floats(1e-9, 0.1))
def test_renyi_conversion_is_dp_accountings_and_never_above_mironovs(order, divergence_, delta):
    ours = privacy.renyi_to_approximate(order, divergence_, delta).epsilon
    theirs, _ = compute_epsilon([order], [divergence_], delta)
    if theirs > 0:
        assert ours == pytest.approx(theirs)
    assert ours <= divergence_ + math.log(1 / delta) / (order - 1) + 1e-12


def test_the_classic_gaussian_lemma_is_refused_where_it_is_wrong():
    for epsilon, truth in ((10.0, 10.4), (20.0, 25.4)):
        with pytest.raises(ValueError, match="epsilon must be <= 1"):
            privacy.classic_gaussian_deviation(epsilon, 1e-5, 1.0)
        deviation = math.sqrt(2 * math.log(1.25e5)) / epsilon
        really = accounting.epsilon_of(privacy.Gaussian(deviation), delta=1e-5)
        assert really == pytest.approx(truth, abs=0.05)
        ours = privacy.gaussian_deviation(epsilon, 1e-5)
        assert accounting.epsilon_of(privacy.Gaussian(ours), delta=1e-5) <= epsilon
    assert privacy.classic_gaussian_deviation(1.0, 1e-5, 1.0) > privacy.gaussian_deviation(1, 1e-5)


@pytest.mark.parametrize(
    "call",
    [
        lambda: privacy.simple_composition([(-1, 0)]),
        lambda: privacy.advanced_composition(1, 0, 0, 0.1),
        lambda: privacy.advanced_composition(1, 0, 3, 0),
        lambda: privacy.group_privacy(1, 0, 0),
        lambda: privacy.amplification_by_sampling(1, 0, 2),
        lambda: privacy.renyi_to_approximate(1, 1, 0.1),
        lambda: privacy.zero_concentrated_to_approximate(-1, 0.1),
    ],
)
def test_arguments_out_of_range_are_refused(call):
    with pytest.raises(ValueError, match="must"):
        call()
