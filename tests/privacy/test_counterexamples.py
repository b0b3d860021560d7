"""Accounting mistakes found in published methods, each shown wrong by its documented size.

Where they were found and why they are wrong: docs/proofs/published.md.
"""

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from noisewise import privacy
from noisewise.privacy import Gaussian, accounting, split_noise


def cost(noise, rate, steps, relation="add-remove"):
    return privacy.epsilon(
        noise_multiplier=noise, sample_rate=rate, steps=steps, delta=1e-5, relation=relation
    )


@pytest.mark.parametrize(("layers", "truth"), [(2, 4.48), (6, 25.9)])
def test_noise_per_layer_is_not_the_noise_of_the_step(layers, truth):
    claimed = cost(1.0, 0.01, 1000)
    assert claimed == pytest.approx(1.83, abs=0.01)
    joint = split_noise([1.0] * layers, [1.0] * layers)
    assert cost(joint, 0.01, 1000) == pytest.approx(truth, rel=0.01)


def test_layers_of_one_batch_compose_before_the_sampling_amplifies():
    as_if_sampled_apart = cost(1.0, 0.01, 6)
    assert as_if_sampled_apart == pytest.approx(0.33, abs=0.02)
    assert cost(split_noise([1.0] * 6, [1.0] * 6), 0.01, 1) == pytest.approx(5.33, abs=0.05)


def test_resampling_empty_batches_raises_the_sample_rate():
    records, rate = 1, 0.01
    effective = rate / (1 - (1 - rate) ** records)
    assert effective == pytest.approx(1.0)
    assert cost(1.0, effective, 1) > 5 * cost(1.0, rate, 1)


def test_replacing_a_record_costs_more_than_adding_one():
    added, replaced = cost(1.0, 0.01, 1000), cost(1.0, 0.01, 1000, "replace-one")
    assert added == pytest.approx(1.83, abs=0.01)
    assert replaced == pytest.approx(2.84, abs=0.01)
    # Halving sigma inside an add-remove accountant is a bound, and a useless one.
    assert cost(0.5, 0.01, 1000) == pytest.approx(13.4, rel=0.02)


def test_the_drawn_batch_size_alone_can_tell_more_than_was_claimed():
    """Dividing by the drawn batch size shows it through the noise scale."""
    records, rate = 60, 32 / 569
    claimed = cost(50.0, rate, 1)
    sizes = np.arange(records + 2)
    with_record = binom.pmf(sizes, records + 1, rate)
    without = binom.pmf(sizes, records, rate)
    leaked = np.maximum(with_record - math.exp(claimed) * without, 0).sum()
    assert claimed < 0.02
    assert leaked > 1000 * 1e-5


@pytest.mark.parametrize(
    ("noise", "claimed", "at_least"), [(0.5, 3.24, 10.0), (0.8, 0.30, 5.2), (1.0, 0.15, 2.9)]
)
def test_a_shuffled_epoch_is_not_a_poisson_epoch(noise, claimed, at_least):
    """Shuffling hides which batch a record is in, never that it is in one.

    Lower bound after Chua et al. (2024): other records contribute -1, ours +1 or 0, and
    the event is that the largest of the T projections exceeds a threshold.
    """
    steps, delta = 1000, 1e-5
    assert cost(noise, 1 / steps, steps) == pytest.approx(claimed, rel=0.05)
    threshold = np.linspace(0, 2 + 14 * noise, 4000)
    others = (steps - 1) * norm.logcdf(threshold / noise)
    present = -np.expm1(norm.logcdf((threshold - 2) / noise) + others)
    absent = -np.expm1(norm.logcdf((threshold - 1) / noise) + others)
    usable = (present > delta) & (absent > 0)
    lower = np.log((present[usable] - delta) / absent[usable]).max()
    assert lower >= 0.99 * at_least
    assert lower > 3 * claimed


def test_the_classic_lemma_understates_epsilon_above_one():
    for epsilon, truth in ((10, 10.4), (20, 25.4)):
        deviation = math.sqrt(2 * math.log(1.25e5)) / epsilon
        cost_of_one = accounting.epsilon_of(Gaussian(deviation), delta=1e-5)
        assert cost_of_one == pytest.approx(truth, rel=0.01)
