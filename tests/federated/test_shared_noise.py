"""Shares of noise: exact laws, and a guarantee that counts on the honest ones only."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats

from noisewise.ecdf import Budget, plan
from noisewise.ecdf.mechanisms.protocol import Block
from noisewise.errors import UnsoundError
from noisewise.federated import SharedNoise
from noisewise.federated.noise import SharedBlock, gaussian_sum_distance
from noisewise.privacy.randomness import Randomness
from noisewise.privacy.randomness.discrete import discrete_gaussian_pmf, discrete_laplace_pmf
from noisewise.release import polya as polya_module
from noisewise.release.polya import _bounds, _decide, _estimate, _exact, polya, polya_pmf


def chi_square_p(sample, probabilities):
    """p-value of counts of 0, 1, ... against a law, small cells merged."""
    size = probabilities.size
    counts = np.bincount(np.minimum(sample, size), minlength=size + 1).astype(float)
    expected = np.append(probabilities, max(1 - probabilities.sum(), 0.0)) * sample.size
    order = np.argsort(-expected)
    counts, expected = counts[order], expected[order]
    large = int((expected >= 10).sum())
    counts = np.append(counts[:large], counts[large:].sum())
    expected = np.append(expected[:large], expected[large:].sum())
    if expected[-1] < 10:
        counts, expected = (np.append(v[:-2], v[-2] + v[-1]) for v in (counts, expected))
    if counts.size == 1:
        return 1.0
    return stats.chi2.sf(((counts - expected) ** 2 / expected).sum(), counts.size - 1)


# Each statistical test below has a fixed seed and rejects at p < 1e-7.
LEVEL = 1e-7


@pytest.mark.parametrize("shares", [1, 2, 3, 10, 500])
@pytest.mark.parametrize("scale", [Fraction(1, 3), 1, Fraction(7, 2), 40])
def test_polya_numbers_have_their_law(shares, scale):
    sample = polya(60_000, shares, scale, Randomness.seeded(shares))
    assert chi_square_p(sample, polya_pmf(2000, shares, scale)) > LEVEL


@pytest.mark.parametrize("shares", [2, 7])
def test_large_polya_numbers_have_their_law(shares):
    # Beyond the table: compare with the closed form of the distribution function.
    scale = 10**7
    sample = polya(40_000, shares, scale, Randomness.seeded(3))
    law = stats.nbinom(1 / shares, -math.expm1(-1 / scale))
    cuts = [law.ppf(q) for q in (0.5, 0.7, 0.9, 0.99)]
    for cut in cuts:
        q = law.cdf(cut)
        z = ((sample <= cut).mean() - q) / math.sqrt(q * (1 - q) / sample.size)
        assert abs(z) < 5.7  # 8 tests, false alarm 1e-7


@pytest.mark.parametrize("shares", [2, 5])
def test_shares_of_honest_contributors_sum_to_discrete_laplace_noise_exactly(shares):
    block = SharedBlock("laplace", Fraction(3), 30_000, contributors=shares, honest=shares)
    sample = block.draw(Randomness.seeded(5))
    law = discrete_laplace_pmf(np.arange(-60, 61), 3)
    assert chi_square_p(sample + 60, law) > LEVEL


def test_the_convolution_of_share_laws_is_the_discrete_laplace_law():
    # No sampling: the laws themselves, for h = 3 and scale 2.
    size = 400
    one = polya_pmf(size, 3, 2)
    geometric = np.convolve(np.convolve(one, one), one)[:size]
    q = math.exp(-1 / 2)
    assert np.allclose(geometric, (1 - q) * q ** np.arange(size), atol=1e-14)
    difference = np.correlate(geometric, geometric, "full")
    middle = difference[size - 1 - 30 : size + 30]
    assert np.allclose(middle, discrete_laplace_pmf(np.arange(-30, 31), 2), atol=1e-14)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 3000), st.integers(1, 50))
def test_the_floating_point_estimate_is_far_within_its_margin(k, shares):
    exact = float(_exact(k, shares))
    assert _estimate(np.array([k]), shares)[0] == pytest.approx(exact, rel=1e-12)


@settings(max_examples=8, deadline=None)
@given(st.integers(4096, 6000), st.integers(2, 50))
def test_stirling_bounds_contain_the_exact_probability(k, shares):
    low, high = _bounds(k, shares)
    exact = _exact(k, shares)
    assert low <= exact <= high
    assert high - low < exact * Fraction(1, 10**25)
    assert float(exact) == pytest.approx(_estimate(np.array([k]), shares)[0], rel=1e-12)


@pytest.mark.parametrize("k", [7, 5000])
def test_close_calls_are_decided_exactly(k):
    value = _exact(k, 3) * 2**64
    word = math.floor(value)
    rng = Randomness.seeded(1)
    assert _decide(k, 3, Fraction(1), word - 1, rng)
    assert not _decide(k, 3, Fraction(1), word + 1, rng)
    hits = [_decide(k, 3, Fraction(1), word, rng) for _ in range(600)]
    chance = float(value - word)
    assert abs(np.mean(hits) - chance) < 5.5 * 0.5 / math.sqrt(600)


def test_exact_comparisons_decide_like_the_fast_ones(monkeypatch):
    fast = polya(300, 3, Fraction(11, 2), Randomness.seeded(4))
    monkeypatch.setattr(polya_module, "_MARGIN", 2.0)
    exact = polya(300, 3, Fraction(11, 2), Randomness.seeded(4))
    assert exact.tolist() == fast.tolist()


@pytest.mark.parametrize(("sigma2", "shares"), [(0.5, 2), (1.0, 2), (2.0, 4), (3.0, 3), (9.0, 6)])
def test_the_distance_of_gaussian_sums_is_a_true_bound(sigma2, shares):
    reach = int(12 * math.sqrt(sigma2)) + 6
    whole = np.arange(-reach, reach + 1)
    part = discrete_gaussian_pmf(whole, Fraction(sigma2) / shares)
    total = part
    for _ in range(shares - 1):
        total = np.convolve(total, part)
    middle = total[total.size // 2 - reach : total.size // 2 + reach + 1]
    target = discrete_gaussian_pmf(whole, Fraction(sigma2))
    bound = gaussian_sum_distance(sigma2, shares)
    near = np.abs(whole) < 6 * math.sqrt(sigma2)
    assert np.abs(np.log(middle[near] / target[near])).max() <= bound
    assert np.abs(middle - target).sum() / 2 <= bound
    # And not a wild one: for two shares at most three times what it bounds.
    if shares == 2:
        assert bound < 3 * np.abs(np.log(middle[near] / target[near])).max()


def test_a_smaller_bound_would_be_false():
    # Half of the bound is violated, so the factor is not decoration.
    sigma2, shares = 0.5, 2
    whole = np.arange(-20, 21)
    part = discrete_gaussian_pmf(whole, Fraction(1, 4))
    total = np.convolve(part, part)[20:61]
    ratio = np.log(total[15:26] / discrete_gaussian_pmf(whole, Fraction(1, 2))[15:26])
    assert np.abs(ratio).max() > gaussian_sum_distance(sigma2, shares) / 2


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
@pytest.mark.parametrize(("contributors", "honest"), [(1, 1), (2, 1), (5, 3), (9, 9)])
def test_the_guarantee_is_that_of_the_honest_and_the_variance_that_of_all(
    relation, contributors, honest
):
    noise = SharedNoise(contributors, honest)
    pure = plan(32, relation, Budget(0.8))
    shared = noise.apply(pure)
    assert shared.epsilon == pure.epsilon
    assert np.allclose(shared.variance, pure.variance * contributors / honest)
    close = plan(32, relation, Budget(0.8, 1e-6), mechanism="sqrt")
    gaussian = noise.apply(close)
    assert gaussian.ratio_squared == close.ratio_squared
    assert gaussian.variation >= close.variation
    assert gaussian.delta(0.8) <= 1e-6
    assert np.allclose(gaussian.variance, close.variance * contributors / honest)


def test_simulated_noise_has_the_variance_of_all_shares():
    for kind in ("laplace", "gaussian"):
        block = SharedBlock(kind, Fraction(20), 40_000, contributors=5, honest=2)
        for drawn in (
            block.simulate(np.random.default_rng(0), 2),
            block.draw(Randomness.seeded(1)),
        ):
            # The fourth moment of Laplace shares is below 4 variances squared: six deviations.
            assert drawn.var() == pytest.approx(block.variance, rel=6 * math.sqrt(3 / 40_000))


def test_the_distance_of_divided_gaussian_noise_is_charged():
    # At the scales that budgets buy it is far below 1e-300; here it can be seen.
    coarse = replace(
        plan(16, "replace-one", Budget(1.0, 1e-6), mechanism="sqrt"),
        noise=(Block("gaussian", Fraction(3), 15),),
    )
    whole, divided = (SharedNoise(2, honest).apply(coarse) for honest in (1, 2))
    assert whole.variation == coarse.variation
    expected = coarse.variation + 15 * gaussian_sum_distance(3.0, 2)
    assert divided.variation == pytest.approx(min(1.0, expected), rel=1e-12)
    assert divided.variation > whole.variation


def test_divided_gaussian_noise_claims_no_zcdp():
    mechanism = SharedNoise(4, 2).apply(
        plan(16, "replace-one", Budget(1.0, 1e-6), mechanism="sqrt")
    )
    with pytest.raises(UnsoundError, match="zCDP"):
        _ = mechanism.rho
    assert (
        SharedNoise(4, 1).apply(plan(16, "replace-one", Budget(1.0, 1e-6), mechanism="sqrt")).rho
        > 0
    )


def test_tiny_gaussian_shares_get_no_guarantee():
    # Shares below the size where the proof holds: the distance is infinite, delta is one.
    assert gaussian_sum_distance(0.05, 5) == math.inf


@pytest.mark.parametrize(("contributors", "honest"), [(0, 1), (3, 0), (3, 4)])
def test_impossible_contributors_are_refused(contributors, honest):
    with pytest.raises(ValueError, match=r"contributors|honest"):
        SharedNoise(contributors, honest)


def test_polya_refuses_scales_that_it_cannot_draw_exactly():
    with pytest.raises(ValueError, match="2\\^40"):
        polya(1, 2, 2**41, Randomness.seeded(1))
