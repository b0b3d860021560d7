"""Discrete noise: the samples follow their exact law, at every scale.

Statistical tests use fixed seeds; each alarms falsely with probability at most 1e-6.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import stats

from noisewise.privacy.randomness import Randomness, discrete
from noisewise.privacy.randomness.discrete import (
    bernoulli_exp,
    discrete_gaussian,
    discrete_gaussian_pmf,
    discrete_gaussian_variance,
    discrete_laplace,
    discrete_laplace_pmf,
    discrete_laplace_variance,
    exact_scale,
)
from noisewise.privacy.randomness.exponential import Exponentials, _high_product, exponentials

ALARM = 1e-6
SMALL = [Fraction(1, 3), 1, 2.5, Fraction(17, 3), 20]


def assert_follows(sample, pmf):
    """Chi-square against the probabilities, with rare values of both ends lumped."""
    size = np.abs(sample)
    reach = np.arange(1, 3000)
    beyond = 1 - np.cumsum(np.append(pmf(0), 2 * pmf(reach)))
    # The last cell holds everything beyond `last` on both sides, at least ten expected.
    last = int(np.flatnonzero(beyond * sample.size >= 10)[-1])
    values = np.arange(-last, last + 1)
    counts = np.bincount(sample[size <= last] + last, minlength=values.size)
    observed = np.append(counts, np.sum(size > last))
    expected = np.append(pmf(values), beyond[last]) * sample.size
    assert stats.chisquare(observed, expected).pvalue > ALARM


# -------------------------------------------------------------------- laws


@pytest.mark.parametrize("scale", SMALL)
def test_discrete_laplace_follows_its_law(scale):
    sample = discrete_laplace(300_000, scale, 1)
    assert sample.dtype == np.int64
    assert_follows(sample, lambda x: discrete_laplace_pmf(x, scale))


@pytest.mark.parametrize("sigma2", [*SMALL, Fraction(1, 10), 1e4, Fraction(10**9 + 1, 10**8)])
def test_discrete_gaussian_follows_its_law(sigma2):
    sample = discrete_gaussian(200_000, sigma2, 2)
    assert sample.dtype == np.int64
    assert_follows(sample, lambda x: discrete_gaussian_pmf(x, sigma2))


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_the_law_holds_when_nearly_every_comparison_needs_further_digits(bits):
    # With so few digits in a word, ties and carries are frequent instead of once in 2^64.
    rng, scale = Randomness.seeded(bits), Fraction(5, 2)
    laplace = discrete._in_blocks(
        20_000, lambda count: discrete._laplace_candidates(rng, count, scale, bits)
    )
    assert_follows(laplace, lambda x: discrete_laplace_pmf(x, scale))
    gaussian = discrete._in_blocks(
        10_000, lambda count: discrete._gaussian_candidates(rng, count, scale, bits)
    )
    assert_follows(gaussian, lambda x: discrete_gaussian_pmf(x, scale))


@pytest.mark.parametrize("scale", [10**6, 1e9, Fraction(2**70 + 1, 2**41), 2.0**52])
def test_a_large_scale_has_the_shape_and_the_size(scale):
    sample = discrete_laplace(40_000, scale, 3)
    assert stats.kstest(sample / float(scale), "laplace").pvalue > ALARM
    # The variance of a squared Laplace number is 20 scale^4.
    ratio = np.mean((sample / float(scale)) ** 2) / 2
    assert abs(ratio - 1) < 5 * math.sqrt(20 / 4 / sample.size)
    residues = np.bincount(sample % 5, minlength=5)
    assert stats.chisquare(residues).pvalue > ALARM


@pytest.mark.parametrize("sigma", [10**6, 10**9, 2**40, Fraction(2**70 + 1, 2**41)])
def test_a_large_gaussian_has_the_shape_and_the_size(sigma):
    sample = discrete_gaussian(20_000, sigma**2, 4)
    assert stats.kstest(sample / float(sigma), "norm").pvalue > ALARM
    assert stats.chisquare(np.bincount(sample % 5, minlength=5)).pvalue > ALARM


def test_a_tiny_scale_gives_nearly_always_zero():
    assert not discrete_laplace(20_000, 1e-3, 1).any()
    assert not discrete_gaussian(20_000, 1e-6, 1).any()
    assert_follows(discrete_laplace(100_000, 0.2, 1), lambda x: discrete_laplace_pmf(x, 0.2))


@pytest.mark.parametrize("scale", [1, Fraction(17, 3), 1e6])
def test_signs_are_balanced_and_zero_is_not_doubled(scale):
    for sample in (discrete_laplace(300_000, scale, 5), discrete_gaussian(100_000, scale, 5)):
        positive, negative = int((sample > 0).sum()), int((sample < 0).sum())
        assert stats.binomtest(positive, positive + negative).pvalue > ALARM


def test_neighbouring_samples_are_independent():
    sample = np.clip(discrete_laplace(400_000, 1, 6), -1, 1) + 1
    table = np.bincount(sample[::2] * 3 + sample[1::2], minlength=9).reshape(3, 3)
    assert stats.chi2_contingency(table).pvalue > ALARM


@pytest.mark.parametrize("exponent", [0, Fraction(1, 1000), 0.3, 1, 2.75, Fraction(22, 7)])
def test_events_of_exponential_probability(exponent):
    events = bernoulli_exp((500, 1000), exponent, 7)
    assert events.shape == (500, 1000)
    law = stats.binom(events.size, math.exp(-float(exponent)))
    assert law.cdf(events.sum()) > ALARM / 2
    assert law.sf(events.sum() - 1) > ALARM / 2


def test_events_of_vanishing_probability_do_not_happen():
    assert not bernoulli_exp(1000, 10**30, 1).any()
    assert not bernoulli_exp(1000, 200, 1).any()


def test_exponential_numbers_are_exponential():
    for bits, count in ((64, 300_000), (20, 200_000)):
        drawn = exponentials(Randomness.seeded(8), count, bits)
        numbers = drawn.whole + (drawn.word + 0.5) * 2.0**-bits
        assert stats.kstest(numbers, "expon").pvalue > ALARM
        assert int(drawn.whole.max()) > 8


# -------------------------------------------------------------------- arithmetic


def held(whole, word, further=None, bits=64):
    """Given exponential numbers, for arithmetic that can be checked by hand."""
    numbers = {0: list(further)} if further else {}
    return Exponentials(
        np.array([whole], np.uint64),
        np.array([word], np.uint64),
        numbers,
        Randomness.seeded(1),
        bits,
    )


words = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 2**63, 2**64 - 1]))
tops = st.one_of(st.integers(1, 2**64), st.integers(1, 2**20), st.integers(2**54, 2**58))


@given(st.integers(0, 60), words, tops, st.integers(1, 2**66))
def test_the_floor_is_that_of_unbounded_integers(whole, word, top, bottom):
    factor = Fraction(top, bottom)
    number = held(whole, word)
    value = whole * 2**64 + word
    low = value * factor.numerator // (factor.denominator << 64)
    high = ((value + 1) * factor.numerator - 1) // (factor.denominator << 64)
    if high >= 2**63:
        with pytest.raises(OverflowError, match="scale is too large"):
            held(whole, 2**64 - 1).floor_times(factor)
        return
    assert low <= int(number.floor_times(factor)[0]) <= high
    if number.further:
        assert low != high, "digits were drawn that were not needed"


@given(st.integers(0, 9), st.integers(2, 2**57), st.integers(1, 9), st.data())
def test_a_floor_that_hangs_on_further_digits_uses_them(whole, top, bottom, data):
    # The first word ends just where the product passes an integer.
    passed = data.draw(st.integers(1, top - 1))
    word = (passed * 2**64) // top
    for second in (0, 1, 2**63, 2**64 - 1):
        value = Fraction((whole * 2**64 + word) * 2**64 + second, 2**128)
        factor = Fraction(top, bottom)
        low, high = value * factor, (value + Fraction(1, 2**128)) * factor
        if math.floor(low) == math.ceil(high) - 1:
            assert int(held(whole, word, [second]).floor_times(factor)[0]) == math.floor(low)


class Script:
    """A source whose digits of four bits are written down."""

    def __init__(self, *digits):
        self.digits = list(digits)

    def uint64(self, count):
        return np.array([self.digits.pop(0) << 60 for _ in range(count)], np.uint64)


def test_digits_that_were_drawn_for_a_comparison_stay_with_their_number():
    # X = 5..., U1 = 5...: further digits 9 and 3, so U1 > X: no descent, X is kept as 5 3.
    drawn = exponentials(Script(5, 5, 9, 3), 1, bits=4)
    assert (drawn.whole[0], drawn.word[0], drawn.further) == (0, 5, {0: [3]})
    # Digits 1 and 3: one descent, to U1 = 5 1. Then U2 = 5 2 is above it: odd, refused.
    # The next X = 2 meets U1 = 8 and is kept, with nothing left of the first one.
    drawn = exponentials(Script(5, 5, 1, 3, 5, 2, 2, 8), 1, bits=4)
    assert (drawn.whole[0], drawn.word[0], drawn.further) == (1, 2, {})
    # X = 9, U1 = 6, U2 = 6: a tie of two others leaves X without further digits.
    drawn = exponentials(Script(9, 6, 6, 1, 7, 8), 1, bits=4)
    assert (drawn.whole[0], drawn.word[0], drawn.further) == (0, 9, {})


@given(words, st.integers(0, 2**64 - 1))
def test_the_high_half_of_a_product_is_exact(word, factor):
    product = _high_product(np.array([word], np.uint64), np.uint64(factor))
    assert int(product[0]) == word * factor >> 64


@given(
    st.integers(0, 5),
    words,
    st.integers(0, 2**64 - 1),
    st.one_of(st.integers(1, 2**52 - 1), st.integers(1, 2**80)),
    st.booleans(),
)
def test_a_comparison_with_a_ratio_is_that_of_fractions(whole, word, top, bottom, close):
    if close:  # the ratio that agrees with the number in as many digits as it can
        top = min((whole * 2**64 + word) * bottom >> 64, 2**64 - 1)
    second = 2**63 + 12345
    number = held(whole, word, [second])
    value = Fraction((whole * 2**64 + word) * 2**64 + second, 2**128)
    bound = Fraction(top, bottom)
    if value <= bound < value + Fraction(1, 2**128):
        return  # decided by digits that are not drawn yet
    expected = value >= bound
    assert bool(number.at_least_ratios(np.array([top], np.uint64), bottom)[0]) == expected
    assert bool(number.at_least_ratios(np.array([top], object), bottom)[0]) == expected
    assert bool(number.at_least(bound)[0]) == expected


def test_an_exact_tie_with_all_drawn_digits_counts_as_at_least():
    half = held(1, 2**63)
    assert bool(half.at_least(Fraction(3, 2))[0])
    assert bool(half.at_least_ratios(np.array([3], np.uint64), 2)[0])


def test_a_scale_beyond_the_integers_is_refused_instead_of_wrapped():
    with pytest.raises(OverflowError, match="larger units"):
        discrete_laplace(1000, 2**70, 1)
    with pytest.raises(OverflowError, match="larger units"):
        discrete_gaussian(1000, 2**140, 1)


@pytest.mark.parametrize("top", [2**56 - 1, 2**56 + 1, 2**62 + 1])
def test_both_sides_of_the_narrow_path_agree(top):
    factor = Fraction(top, 2**30)
    drawn = exponentials(Randomness.seeded(9), 2000)
    assert int(drawn.whole.max()) >= 4, "a product of 2^62 must leave 64 bits"
    slow = [drawn._floor(index, factor) for index in range(2000)]
    assert drawn.floor_times(factor).tolist() == slow


# -------------------------------------------------------------------- scales


@given(st.floats(1e-300, 1e300))
def test_the_scale_that_is_used_is_never_smaller_and_hardly_larger(scale):
    exact = exact_scale(scale)
    assert Fraction(scale) <= exact <= Fraction(scale) * (1 + Fraction(1, 2**23))


@given(st.fractions(min_value=Fraction(1, 10**6)), st.integers(1, 2**24))
def test_rational_and_short_scales_are_used_as_they_are(fraction, short):
    assert exact_scale(fraction) == fraction
    assert exact_scale(short) == short
    assert exact_scale(float(short)) == short
    assert exact_scale(short / 1024) == Fraction(short, 1024)


@pytest.mark.parametrize("bad", [0, 0.0, -1, Fraction(-1, 2), math.inf, math.nan, Fraction(0)])
def test_a_scale_without_noise_is_refused(bad):
    for draw in (discrete_laplace, discrete_gaussian):
        with pytest.raises(ValueError, match=r"scale|sigma2"):
            draw(3, bad, 1)


@pytest.mark.parametrize("bad", ["1", None, True])
def test_a_scale_that_is_no_number_is_refused(bad):
    with pytest.raises(TypeError, match="scale"):
        discrete_laplace(3, bad, 1)


def test_a_negative_exponent_is_refused():
    for bad in (-1, -0.5, Fraction(-1, 3), math.nan):
        with pytest.raises(ValueError, match="exponent"):
            bernoulli_exp(3, bad, 1)


# -------------------------------------------------------------------- probabilities


@pytest.mark.parametrize("scale", [Fraction(1, 10), Fraction(1, 3), 1, 2.5, 40])
def test_probabilities_sum_to_one_and_give_the_variance(scale):
    x = np.arange(-3000, 3001)
    laplace = discrete_laplace_pmf(x, scale)
    assert math.fsum(laplace) == pytest.approx(1, rel=1e-12)
    assert math.fsum(laplace * x**2) == pytest.approx(discrete_laplace_variance(scale), rel=1e-9)
    ratio = discrete_laplace_pmf(1, scale) / discrete_laplace_pmf(0, scale)
    assert ratio == pytest.approx(math.exp(-1 / float(scale)), rel=1e-12)
    gaussian = discrete_gaussian_pmf(x, scale)
    assert math.fsum(gaussian) == pytest.approx(1, rel=1e-12)
    assert math.fsum(gaussian * x**2) == pytest.approx(discrete_gaussian_variance(scale), rel=1e-9)


def test_the_gaussian_sums_agree_where_the_formula_changes():
    x = np.arange(-2000, 2001)
    for sigma2 in (99, 100, 101, 400):
        assert math.fsum(discrete_gaussian_pmf(x, sigma2)) == pytest.approx(1, rel=1e-12)
    assert discrete_gaussian_variance(10**18) == pytest.approx(1e18, rel=1e-12)
    assert discrete_gaussian_variance(Fraction(1, 10)) < 0.1


def test_probabilities_are_of_integers_only():
    for pmf in (discrete_laplace_pmf, discrete_gaussian_pmf):
        with pytest.raises(TypeError, match="integers"):
            pmf(0.5, 1)


# -------------------------------------------------------------------- shapes and seeds


def test_shapes():
    for draw in (discrete_laplace, discrete_gaussian):
        assert draw((), 3, 1).shape == ()
        assert draw(0, 3, 1).shape == (0,)
        assert draw((2, 0, 3), 3, 1).shape == (2, 0, 3)
        assert draw((40_000, 2), 3, 1).shape == (40_000, 2)
        assert not np.array_equal(draw(50, 100), draw(50, 100))


def test_seeded_samples_are_those_of_the_first_release():
    assert discrete_laplace(8, 10, 7).tolist() == GOLDEN["laplace"]
    assert discrete_laplace(4, Fraction(10**15 + 1, 3), 7).tolist() == GOLDEN["large laplace"]
    assert discrete_gaussian(8, 100, 7).tolist() == GOLDEN["gaussian"]
    assert discrete_gaussian(3, 10**18 + 1, 7).tolist() == GOLDEN["large gaussian"]
    assert bernoulli_exp(8, Fraction(1, 2), 7).tolist() == GOLDEN["events"]


GOLDEN = {
    "laplace": [3, -12, -36, -7, 4, -31, 5, -3],
    "large laplace": [-122501608919196, 223732600110022, 105047208265779, -814338520137664],
    "gaussian": [4, -14, -8, 5, -34, 5, -3, -14],
    "large gaussian": [-367504827, -671197801, 315141625],
    "events": [False, True, True, True, False, True, True, True],
}
