"""Each bound against its definition, a slow reference or a number from its paper."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.stats import beta, binom, nct

from noisewise.auditing import NoiseModel, Scores, bounds as b
from noisewise.auditing.bounds.joint_beta import _outside
from noisewise.auditing.bounds.normal import _exceeds
from noisewise.auditing.bounds.one_run import Guesses, guesses, p_value, refutes

rate = st.floats(0.001, 0.999)


@given(alarm=rate, miss=rate, delta=st.floats(0, 0.3))
def test_epsilon_from_rates_is_the_smallest_that_allows_the_test(
    alarm: float, miss: float, delta: float
) -> None:
    epsilon = b.epsilon_from_rates(alarm, miss, delta)

    def allowed(e: float) -> bool:
        growth = math.exp(e)
        slack = 1e-9
        return (
            1 - miss <= growth * alarm + delta + slack
            and 1 - alarm <= growth * miss + delta + slack
        )

    assert allowed(epsilon)
    assert epsilon == 0 or not allowed(epsilon - 1e-6)


@pytest.mark.parametrize("method", [b.clopper_pearson, b.gaussian, b.joint_beta])
def test_more_separated_scores_give_larger_bounds_up_to_the_largest(method) -> None:
    rng = np.random.default_rng(0)
    noise_in, noise_out = rng.normal(0, 1, 300), rng.normal(0, 1, 300)
    found = [
        method(Scores(noise_in + shift, noise_out), delta=1e-5) for shift in (0.0, 1.0, 3.0, 50.0)
    ]
    values = [bound.epsilon for bound in found]
    assert values == sorted(values)
    assert values[0] < 0.5
    assert all(bound.epsilon <= bound.largest + 1e-9 for bound in found)
    assert values[-1] == pytest.approx(found[-1].largest, rel=0.2)


@given(
    st.lists(st.floats(-5, 5), min_size=2, max_size=30),
    st.lists(st.floats(-5, 5), min_size=2, max_size=30),
)
@settings(max_examples=40)
def test_bounds_do_not_depend_on_the_scale_of_the_scores(
    inside: list[float], outside: list[float]
) -> None:
    plain = Scores(inside, outside)
    doubled = Scores(4.0 * plain.inside, 4.0 * plain.outside)  # exact in binary
    assert (
        b.clopper_pearson(plain, delta=0.0).epsilon == b.clopper_pearson(doubled, delta=0.0).epsilon
    )
    assert b.gaussian(plain, delta=1e-5).epsilon == b.gaussian(doubled, delta=1e-5).epsilon


def test_the_gaussian_bound_is_tight_in_the_limit() -> None:
    rng = np.random.default_rng(0)
    scores = Scores(rng.normal(1, 1, 10**6), rng.normal(0, 1, 10**6), midpoint=0.5)
    assert 4.33 < b.gaussian(scores, delta=1e-5).epsilon < 4.3772


def test_gaussian_beats_clopper_pearson_where_its_assumption_holds() -> None:
    """The measured order of the notes: 500 canaries each, true epsilon 4.38."""
    rng = np.random.default_rng(0)
    scores = Scores(rng.normal(1, 1, 500), rng.normal(0, 1, 500), midpoint=0.5, coins=True)
    direct = b.clopper_pearson(scores, delta=1e-5).epsilon
    assert 0.6 < direct < 1.8
    assert 2.2 < b.gaussian(scores, delta=1e-5).epsilon < 4.3772
    assert direct < b.one_run_tradeoff(scores, delta=1e-5).epsilon


def test_a_refuted_model_falls_back_to_the_error_rates_alone() -> None:
    scores = Scores(np.ones(200), np.zeros(200))
    model = NoiseModel(0.1, 1, "step")
    bound = b.gaussian(scores, delta=1e-5, model=model)
    assert bound.noise_multiplier is None
    assert bound.epsilon == b.clopper_pearson(scores, delta=1e-5).epsilon
    assert any("refuted" in text for text in bound.assumptions)


# --- joint beta


@given(
    counts=st.tuples(st.integers(0, 20), st.integers(0, 20)),
    epsilon=st.floats(0, 4),
    delta=st.floats(0, 0.1),
)
@settings(max_examples=25)
def test_the_posterior_mass_outside_the_region_agrees_with_sampling(
    counts: tuple[int, int], epsilon: float, delta: float
) -> None:
    fp, fn = counts
    size, draws = 20, 200_000
    rng = np.random.default_rng(0)
    p = beta.rvs(fp + 0.5, size - fp + 0.5, size=draws, random_state=rng)
    n = beta.rvs(fn + 0.5, size - fn + 0.5, size=draws, random_state=rng)
    growth = math.exp(epsilon)
    broken = np.zeros(draws, dtype=bool)
    for x, y in ((p, n), (n, p), (1 - p, 1 - n), (1 - n, 1 - p)):
        broken |= 1 - y > growth * x + delta
    # Six deviations of the sampled frequency, and the quadrature.
    assert _outside((fp, size, fn, size), epsilon, delta) == pytest.approx(
        broken.mean(), abs=6 * 0.5 / math.sqrt(draws) + 2e-3
    )


def test_joint_beta_says_that_it_is_credible() -> None:
    bound = b.joint_beta(Scores([1.0] * 9, [0.0] * 9), delta=0.0)
    assert bound.kind == "credible"
    assert any("not frequentist" in text for text in bound.assumptions)


# --- one run


@given(made=st.integers(1, 200), part=st.floats(0, 1), epsilon=st.floats(0, 4))
def test_without_delta_the_p_value_is_the_binomial_tail(
    made: int, part: float, epsilon: float
) -> None:
    right = int(part * made)
    truth = 1 / (1 + math.exp(-epsilon))
    assert p_value(Guesses(made, made, right), epsilon, 0.0) == pytest.approx(
        binom.sf(right - 1, made, truth), rel=1e-9, abs=1e-300
    )


@given(made=st.integers(1, 60), part=st.floats(0, 1), epsilon=st.floats(0, 3))
@settings(max_examples=40)
def test_with_delta_the_p_value_is_the_formula_of_the_paper_written_out(
    made: int, part: float, epsilon: float
) -> None:
    right, canaries, delta = int(part * made), 2 * made, 1e-3
    truth = 1 / (1 + math.exp(-epsilon))
    tail = binom.sf(right - 1, made, truth)
    worst, mass = 0.0, 0.0
    for i in range(1, right + 1):
        mass += binom.pmf(right - i, made, truth)
        worst = max(worst, mass / i)
    expected = min(1.0, tail + 2 * canaries * delta * worst)
    assert p_value(Guesses(canaries, made, right), epsilon, delta) == pytest.approx(expected)


def test_a_hundred_right_guesses_certify_about_three_and_a_half() -> None:
    guess = Guesses(100, 100, 100)
    assert p_value(guess, 3.4, 0.0) < 0.05 < p_value(guess, 3.6, 0.0)


def test_guesses_are_made_in_shrinking_numbers_fixed_in_advance() -> None:
    inside, outside = np.arange(10.0, 50.0), np.arange(-40.0, 0.0)
    found = guesses(Scores(inside, outside, coins=True))
    sizes = [40, 28, 19, 13, 9, 6]
    assert [g.made for g in found] == [made for size in sizes for made in (2 * size, size)]
    assert all(g.right == g.made for g in found)
    shuffled = guesses(Scores(-inside, -outside, coins=True))
    assert [g.made for g in shuffled] == [g.made for g in found]
    assert all(g.right == 0 for g in shuffled)


def test_ties_are_not_broken_in_favour_of_the_attack() -> None:
    scores = Scores(np.zeros(500), np.zeros(500), coins=True)
    right = [g.right / g.made for g in guesses(scores) if g.made >= 100]
    assert max(right) < 0.65


def best_possible(canaries: int, mu: float, count: int) -> float:
    """Probability that the best guesser of independent Gaussian coins has `count` right."""
    from scipy.stats import norm

    return float(binom.sf(count - 1, canaries, norm.cdf(mu / 2)))


@given(canaries=st.integers(2, 40), part=st.floats(0.5, 1.0), noise=st.floats(0.4, 3.0))
@settings(max_examples=60)
def test_the_trade_off_bound_never_refutes_what_a_gaussian_mechanism_can_do(
    canaries: int, part: float, noise: float
) -> None:
    """Independent Gaussian canaries are allowed, so their probability cannot be refuted."""
    right = round(part * canaries)
    probability = best_possible(canaries, 1 / noise, right)
    inverse = NoiseModel().blow_up_inverse(noise)
    if probability > 1e-12:
        assert not refutes(Guesses(canaries, canaries, right), inverse, probability * (1 - 1e-9))


@pytest.mark.parametrize(("canaries", "right"), list(itertools.product([6, 12], [0.8, 1.0])))
def test_the_trade_off_recursion_is_the_best_that_linear_programming_can_prove(
    canaries: int, right: float
) -> None:
    """For a piecewise linear curve the largest probability is a linear programme."""
    from scipy.optimize import linprog

    count = round(right * canaries)
    epsilons = np.array([0.0, 0.5, 1.0])
    deltas = np.array([0.3, 0.15, 0.05])
    slopes = np.concatenate([np.exp(epsilons), np.exp(-epsilons)])
    offsets = np.concatenate([deltas, 1 - np.exp(-epsilons) * (1 - deltas)])

    def inverse(value: float) -> float:
        return max(0.0, float(np.max((value - offsets) / slopes)))

    # Variables p_0..p_c; constraints R_{t+1} <= offset + slope H_t for every t and line.
    index = np.arange(canaries + 1)
    rows, limits = [], []
    for t in range(canaries):
        hits = np.where(index >= t + 1, index, 0) / canaries
        misses = np.where(index >= t, canaries - index, 0) / canaries
        for slope, offset in zip(slopes, offsets, strict=True):
            rows.append(hits - slope * misses)
            limits.append(offset)
    best = linprog(
        -(index >= count).astype(float),
        A_ub=np.array(rows),
        b_ub=np.array(limits),
        A_eq=np.ones((1, canaries + 1)),
        b_eq=[1.0],
        bounds=(0, 1),
    )
    largest = -best.fun
    guess = Guesses(canaries, canaries, count)
    if largest < 0.999:
        assert refutes(guess, inverse, largest * 1.001)
    assert not refutes(guess, inverse, largest * 0.999)


def test_one_run_bounds_insist_on_fair_coins() -> None:
    for method in (b.one_run, b.one_run_tradeoff):
        with pytest.raises(ValueError, match="fair coin"):
            method(Scores([1.0], [0.0]), delta=1e-5)


# --- normal estimate


def test_scores_that_are_not_normal_get_no_normal_estimate() -> None:
    rng = np.random.default_rng(0)
    heavy = Scores(rng.standard_t(2, 500), rng.normal(0, 1, 500))
    with pytest.raises(ValueError, match="not normal"):
        b.normal_estimate(heavy, delta=1e-5)
    spread = Scores(rng.normal(0, 3, 500), rng.normal(0, 1, 500))
    with pytest.raises(ValueError, match="variance"):
        b.normal_estimate(spread, delta=1e-5)
    mixed = Scores(rng.normal(0, 1, 50), rng.normal(0, 1, 50))
    with pytest.raises(ValueError, match="mixture"):
        b.normal_estimate(mixed, delta=1e-5, model=NoiseModel(0.1, 1, "step"))


@given(t=st.floats(0.1, 25), noncentrality=st.floats(0, 25))
def test_the_approximation_of_the_noncentral_t_is_good_where_it_takes_over(
    t: float, noncentrality: float
) -> None:
    exact = float(nct.sf(t, 1001, noncentrality))
    assert _exceeds(t, 1001, noncentrality) == pytest.approx(exact, abs=3e-3)
