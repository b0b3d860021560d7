"""The accountants against dp-accounting, an independent accountant, and brute force."""

import math
import time

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import Phase, example, given, settings, strategies as st
from scipy.stats import norm

from noisewise import privacy
from noisewise.privacy import Gaussian, Laplace, PoissonGaussian, Pure, ZeroConcentrated, accounting
from noisewise.privacy.accountants import pld
from noisewise.privacy.independent import estimate_epsilon

noises = st.floats(0.5, 30)
rates = st.one_of(st.floats(1e-4, 1.0), st.just(1.0))
steps = st.integers(1, 3000)
deltas = st.sampled_from([1e-9, 1e-6, 1e-5, 1e-3])
# An example takes up to a second, so a failure is shown as found, not shrunk.
quick = (Phase.explicit, Phase.reuse, Phase.generate)
slow_reference = settings(max_examples=12, deadline=None, phases=quick)


def reference(accountant, noise, rate, count, delta):
    event = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise))
    return accountant.compose(event, count).get_epsilon(delta)


@slow_reference
@given(noises, rates, steps, deltas)
@example(1.0, 0.01, 1000, 1e-5)
@example(0.5, 1.0, 3, 1e-5)
def test_no_training_costs_less_than_dp_accounting_says(noise, rate, count, delta):
    for name, accountant in (("pld", PLDAccountant()), ("rdp", RdpAccountant())):
        ours = privacy.epsilon(
            noise_multiplier=noise, sample_rate=rate, steps=count, delta=delta, accountant=name
        )
        theirs = reference(accountant, noise, rate, count, delta)
        assert ours >= theirs * (1 - 1e-9)
        assert ours <= theirs * 1.01 + 1e-3


@slow_reference
@given(st.floats(0.1, 30), st.integers(1, 1000), deltas)
def test_no_plain_release_costs_less_than_dp_accounting_says(noise, count, delta):
    gaussian = accounting.epsilon_of(Gaussian(noise, count), delta=delta)
    assert gaussian >= get_epsilon_gaussian(noise / math.sqrt(count), delta)
    laplace = accounting.epsilon_of(Laplace(noise, count), delta=delta)
    event = dp_event.LaplaceDpEvent(noise)
    ours_or_sum = min(PLDAccountant().compose(event, count).get_epsilon(delta), count / noise)
    assert laplace >= ours_or_sum * (1 - 1e-9)


@settings(max_examples=25, deadline=None, phases=quick)
@given(noises, rates, steps, st.sampled_from(["add-remove", "replace-one"]))
@example(1.0, 0.01, 1000, "replace-one")
@example(0.6, 0.001, 100_000, "replace-one")
def test_a_second_implementation_agrees(noise, rate, count, relation):
    history = PoissonGaussian(noise, rate, count)
    tight = accounting.epsilon_of(history, delta=1e-5, relation=relation)
    loose = accounting.epsilon_of(history, delta=1e-5, relation=relation, accountant="rdp")
    estimate = estimate_epsilon(history, delta=1e-5, relation=relation)
    # Finer than 1e-4 the grid does not go, which shows at tiny epsilons only.
    assert estimate * (1 - 1e-4) - 1e-4 <= tight <= estimate * 1.03 + 2e-3
    assert estimate * (1 - 1e-4) - 1e-4 <= loose


def test_a_mixed_history_agrees_with_the_second_implementation():
    history = [PoissonGaussian(1.0, 0.01, 500), Laplace(10.0, 5), Gaussian(4.0, 2), Pure(0.1, 3)]
    for relation in ("add-remove", "replace-one"):
        tight = accounting.epsilon_of(history, delta=1e-6, relation=relation)
        assert tight == pytest.approx(
            estimate_epsilon(history, delta=1e-6, relation=relation), rel=5e-3
        )
        loose = accounting.epsilon_of(history, delta=1e-6, relation=relation, accountant="rdp")
        assert tight < loose < 1.3 * tight


def hockey_stick(first, second, rate, gamma, grid):
    """Brute force: integral of (P - gamma Q)+ over a plane, unit noise."""
    x, y = np.meshgrid(grid, grid)
    density = lambda u: norm.pdf(x - u[0]) * norm.pdf(y - u[1])  # noqa: E731
    p = (1 - rate) * density((0, 0)) + rate * density(first)
    q = (1 - rate) * density((0, 0)) + rate * density(second)
    return np.maximum(p - gamma * q, 0).sum() * (grid[1] - grid[0]) ** 2


@settings(max_examples=25, deadline=None, phases=quick)
@given(
    st.floats(0.05, 1.0),
    st.floats(0.2, 4.0),
    *(st.tuples(st.floats(0, 1), st.floats(0, 2 * math.pi)) for _ in range(2)),
)
def test_opposite_records_are_the_worst_pair_under_replace_one(rate, gamma, first, second):
    grid = np.linspace(-7, 7, 281)
    points = [
        (length * math.cos(turn), length * math.sin(turn)) for length, turn in (first, second)
    ]
    worst = hockey_stick((1, 0), (-1, 0), rate, gamma, grid)
    assert hockey_stick(*points, rate, gamma, grid) <= worst + 1e-6


def test_renyi_divergence_under_replace_one_matches_quadrature_and_the_full_batch():
    from scipy.integrate import quad

    from noisewise.privacy.events.poisson_gaussian import replace_one_divergence

    for noise, rate, order in [(1.0, 0.1, 2.5), (0.7, 0.3, 8.0), (3.0, 0.01, 32.0)]:

        def integrand(x, noise=noise, rate=rate, order=order):
            upper, lower = (
                np.logaddexp(
                    math.log(1 - rate) + norm.logpdf(x, 0, noise),
                    math.log(rate) + norm.logpdf(x, sign, noise),
                )
                for sign in (1, -1)
            )
            return math.exp(order * upper + (1 - order) * lower)

        peaks = [0, 1, order, 2 * order - 1]
        moment, _ = quad(integrand, -30, 2 * order + 30, limit=2000, points=peaks)
        ours = replace_one_divergence(noise, rate, order)
        assert ours == pytest.approx(math.log(moment) / (order - 1), rel=1e-5)
    nearly_full = replace_one_divergence(2.0, 1 - 1e-12, 4.0)
    assert nearly_full == pytest.approx(2 * 4.0 / 2.0**2, rel=1e-6)


@settings(max_examples=15, deadline=None, phases=quick)
@given(
    st.floats(0.05, 20),
    st.floats(1e-3, 1.0),
    st.integers(1, 10_000),
    deltas,
    st.sampled_from(["pld", "rdp"]),
    st.sampled_from(["add-remove", "replace-one"]),
)
def test_calibrated_noise_never_exceeds_the_target_and_comes_within_half_a_percent(
    epsilon, rate, count, delta, accountant, relation
):
    common = dict(
        sample_rate=rate, steps=count, delta=delta, accountant=accountant, relation=relation
    )
    noise = privacy.noise_multiplier(epsilon=epsilon, **common)
    cost = privacy.epsilon(noise_multiplier=noise, **common)
    assert cost <= epsilon
    assert cost >= 0.995 * epsilon


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_one_step_more_than_the_most_would_exceed_the_budget(relation):
    common = dict(noise_multiplier=1.0, sample_rate=0.01, delta=1e-5, relation=relation)
    most = privacy.max_steps(epsilon=3.0, **common)
    assert privacy.epsilon(steps=most, **common) <= 3.0 < privacy.epsilon(steps=most + 1, **common)
    assert privacy.max_steps(epsilon=1e-3, **common) == 0


def test_delta_and_epsilon_are_inverse():
    common = dict(noise_multiplier=1.0, sample_rate=0.01, steps=1000)
    for accountant in ("pld", "rdp"):
        epsilon = privacy.epsilon(delta=1e-5, accountant=accountant, **common)
        delta = privacy.delta(epsilon=epsilon, accountant=accountant, **common)
        assert delta == pytest.approx(1e-5, rel=1e-3)
        assert delta <= 1e-5 * (1 + 1e-9)


def test_a_hundred_thousand_steps_cost_at_most_a_few_times_one_step():
    def seconds(count):
        pld._one.cache_clear()
        start = time.perf_counter()
        privacy.epsilon(noise_multiplier=0.6, sample_rate=1e-3, steps=count, delta=1e-5)
        return time.perf_counter() - start

    seconds(10)
    assert min(seconds(100_000) for _ in range(3)) < 20 * max(seconds(1000) for _ in range(3))


def test_pure_releases_add_up_and_gaussian_noise_is_never_pure():
    history = [Laplace(2.0, 3), Pure(0.1)]
    assert accounting.epsilon_of(history, delta=0.0) == pytest.approx(1.6)
    assert math.isinf(accounting.epsilon_of([*history, Gaussian(1.0)], delta=0.0))
    assert accounting.epsilon_of([], delta=1e-5) == 0.0
    assert accounting.delta_of(history, epsilon=1.7) == 0.0


def test_many_pure_releases_cost_less_than_their_sum_at_positive_delta():
    history = Pure(0.01, 1000)
    for accountant in ("pld", "rdp"):
        assert accounting.epsilon_of(history, delta=1e-6, accountant=accountant) < 1.6
    exact = estimate_epsilon(history, delta=1e-6)
    assert exact <= accounting.epsilon_of(history, delta=1e-6) < 1.05 * exact


def test_concentrated_releases_need_the_renyi_accountant():
    history = ZeroConcentrated(0.1)
    with pytest.raises(ValueError, match="accountant must be 'rdp'"):
        accounting.epsilon_of(history, delta=1e-6)
    ours = accounting.epsilon_of(history, delta=1e-6, accountant="rdp")
    assert estimate_epsilon(history, delta=1e-6) <= ours
    assert ours <= privacy.zero_concentrated_to_approximate(0.1, 1e-6).epsilon


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise_multiplier": 0}, "noise_multiplier must be > 0, got 0"),
        ({"noise_multiplier": -1.0}, "noise_multiplier must be > 0"),
        ({"noise_multiplier": math.nan}, "noise_multiplier must be a number, got NaN"),
        ({"sample_rate": 1.5}, r"sample_rate must lie in \(0, 1\], got 1.5"),
        ({"sample_rate": 0.0}, "sample_rate"),
        ({"delta": 1.0}, r"delta must lie in \[0, 1\), got 1.0"),
        ({"delta": -1e-5}, "delta"),
        ({"delta": 1e-15}, "use accountant='rdp'"),
        ({"steps": -1}, "steps must be a whole number >= 0"),
        ({"steps": 1.5}, "steps must be a whole number"),
        ({"steps": 10**12}, "steps"),
        ({"accountant": "prv"}, "accountant must be one of 'pld', 'rdp'"),
        ({"relation": "swap"}, "relation must be one of"),
    ],
)
def test_absurd_arguments_are_refused_by_name(change, message):
    arguments = dict(noise_multiplier=1.0, sample_rate=0.1, steps=10, delta=1e-5) | change
    with pytest.raises(ValueError, match=message):
        privacy.epsilon(**arguments)


def test_targets_out_of_range_are_refused():
    for epsilon in (0, -1.0, math.inf):
        with pytest.raises(ValueError, match="epsilon"):
            privacy.noise_multiplier(epsilon=epsilon, delta=1e-5, steps=1)
    with pytest.raises(ValueError, match="delta"):
        privacy.noise_multiplier(epsilon=1, delta=0.0, steps=1)


def test_full_batches_without_steps_cost_nothing():
    assert privacy.epsilon(noise_multiplier=1.0, steps=0, delta=1e-5) == 0.0


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_rounding_never_makes_a_release_free(relation):
    """dp-accounting alone answers 0 here: its Renyi divergences round to below zero."""
    history = PoissonGaussian(1e5, 1e-6, 10**9)
    bare = RdpAccountant()
    event = dp_event.PoissonSampledDpEvent(1e-6, dp_event.GaussianDpEvent(1e5))
    assert bare.compose(event, 10**9).get_epsilon(1e-9) == 0.0
    ours = accounting.epsilon_of(history, delta=1e-9, relation=relation, accountant="rdp")
    assert ours > estimate_epsilon(history, delta=1e-9, relation=relation) >= 0
    assert accounting.delta_of(history, epsilon=0.0, relation=relation, accountant="rdp") > 0


@pytest.mark.parametrize("steps_", [10**6, 10**9])
def test_absurd_numbers_of_steps_are_answered(steps_):
    cost = privacy.epsilon(noise_multiplier=1.0, sample_rate=0.01, steps=steps_, delta=1e-5)
    assert 100 < cost < math.inf


def test_huge_losses_do_not_overflow():
    assert accounting.epsilon_of(Pure(1e4, 5), delta=1e-6) <= 5e4
    assert math.isfinite(accounting.epsilon_of([Pure(800.0), Gaussian(1e-3)], delta=1e-6))
    tiny = PoissonGaussian(1e-3, 0.5, 10)
    assert math.isfinite(accounting.epsilon_of(tiny, delta=1e-5, relation="replace-one"))


def test_noise_on_a_grid_costs_its_distance_from_real_noise():
    exact = accounting.epsilon_of(Gaussian(1.0), delta=1e-5)
    near = Gaussian(1.0, variation=1e-9)
    cost = accounting.epsilon_of(near, delta=1e-5)
    spent = (1 + math.exp(cost)) * 1e-9
    assert exact < cost
    assert accounting.epsilon_of(Gaussian(1.0), delta=1e-5 - spent) <= cost * (1 + 1e-6)
    assert accounting.delta_of(near, epsilon=cost) <= 1e-5 * (1 + 1e-6)
    assert estimate_epsilon(near, delta=1e-5) == pytest.approx(cost, rel=1e-3)
    assert math.isinf(accounting.epsilon_of(Gaussian(1.0, variation=1e-5), delta=1e-5))
    many = [Gaussian(1.0, 3, variation=1e-9), PoissonGaussian(1.0, 0.01, 10)]
    for accountant in ("pld", "rdp"):
        plain = accounting.epsilon_of(
            [Gaussian(1.0, 3), many[1]], delta=1e-5, accountant=accountant
        )
        assert accounting.epsilon_of(many, delta=1e-5, accountant=accountant) > plain


@pytest.mark.parametrize("releases", [10_000, 100_001, 200_000])
@pytest.mark.parametrize("delta", [1e-12, 1e-11, 1e-10, 1e-9, 1e-8])
def test_very_many_releases_at_a_tiny_delta_are_not_stated_too_low(releases, delta):
    # All of them together are one Gaussian of which everything is known. The FFT, raised to a
    # power, rounds by more than such a delta.
    shift = 0.632
    event = PoissonGaussian(math.sqrt(releases) / shift, 1.0, releases)
    if delta < 2e-15 * releases:
        with pytest.raises(ValueError, match="rdp"):
            privacy.epsilon_of(event, delta=delta)
        return
    epsilon = privacy.epsilon_of(event, delta=delta)
    spent = norm.cdf(shift / 2 - epsilon / shift)
    spent -= math.exp(epsilon + norm.logcdf(-shift / 2 - epsilon / shift))
    assert spent <= delta
