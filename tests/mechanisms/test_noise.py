import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy import stats

from noisewise import privacy
from noisewise.errors import RelationError
from noisewise.privacy import Sensitivity

MECHANISMS = {
    "gaussian": lambda value, **kw: privacy.gaussian(value, epsilon=1.0, delta=1e-5, **kw),
    "laplace": lambda value, **kw: privacy.laplace(value, epsilon=1.0, **kw),
    "discrete_laplace": lambda value, **kw: privacy.discrete_laplace(value, epsilon=1.0, **kw),
    "discrete_gaussian": lambda value, **kw: privacy.discrete_gaussian(
        value, epsilon=1.0, delta=1e-5, **kw
    ),
}
EXACT_INTEGERS = ("discrete_laplace", "discrete_gaussian")
every = pytest.mark.parametrize("name", MECHANISMS)


@every
def test_a_value_comes_back_as_what_it_was(name):
    release = MECHANISMS[name]
    scalar = release(3, sensitivity=1, rng=1).value
    assert isinstance(scalar, int if name in EXACT_INTEGERS else float)
    array = release(np.arange(6).reshape(2, 3), sensitivity=1, rng=1).value
    assert array.shape == (2, 3)
    tensor = release(torch.arange(4), sensitivity=1, rng=1).value
    assert tensor.dtype == (torch.int64 if name in EXACT_INTEGERS else torch.float64)
    assert tensor.shape == (4,)
    if name not in EXACT_INTEGERS:
        assert release(torch.zeros(4), sensitivity=1, rng=1).value.dtype == torch.float32


@every
@pytest.mark.parametrize("kind", ["uint8", "int8", "uint32", "uint64"])
def test_whole_numbers_come_back_with_their_sign_and_size(name, kind):
    # Noise of deviation 20 and more on zeros: in a kind without a sign, minus one was 2^64 - 1.
    for value in (np.zeros(200, kind), torch.zeros(200, dtype=getattr(torch, kind))):
        found = MECHANISMS[name](value, sensitivity=20, rng=1).value
        numbers = np.asarray(found, np.float64)
        assert numbers.min() < 0 < numbers.max() < 2000


@every
def test_the_statement_keeps_the_target_verifies_and_names_a_seed(name):
    _, statement = MECHANISMS[name](5, sensitivity=2, rng=3)
    assert 0.99 < statement.epsilon <= 1.0
    assert privacy.verify(statement).ok
    assert "seed" in statement.randomness
    assert "operating system" in MECHANISMS[name](5, sensitivity=2).statement.randomness


@every
def test_a_seed_repeats_and_the_default_does_not(name):
    release = MECHANISMS[name]
    many = np.zeros(50, dtype=np.int64)
    first, again = (release(many, sensitivity=1e3, rng=7).value for _ in range(2))
    assert (first == again).all()
    assert (release(many, sensitivity=1e3).value != release(many, sensitivity=1e3).value).any()


@every
def test_relations_and_norms_are_checked(name):
    release = MECHANISMS[name]
    replaced = Sensitivity(1.0, "l1", "replace-one")
    assert release(1, sensitivity=replaced).statement.relation.name == "replace-one"
    with pytest.raises(RelationError):
        release(1, sensitivity=replaced, relation="add-remove")
    with pytest.raises(ValueError, match="norm"):
        release(1, sensitivity=Sensitivity(1.0, "linf"))


@every
@pytest.mark.parametrize("value", [math.nan, math.inf, "three", None, True, np.array([1j])])
def test_values_that_are_no_numbers_are_refused(name, value):
    with pytest.raises((TypeError, ValueError)):
        MECHANISMS[name](value, sensitivity=1)


@every
@pytest.mark.parametrize("sensitivity", [0, -1, math.nan, math.inf])
def test_absurd_sensitivities_are_refused(name, sensitivity):
    with pytest.raises(ValueError, match="sensitivity"):
        MECHANISMS[name](1, sensitivity=sensitivity)


@pytest.mark.parametrize("name", EXACT_INTEGERS)
def test_counts_must_be_integers(name):
    with pytest.raises(TypeError, match="integers"):
        MECHANISMS[name](1.5, sensitivity=1)
    with pytest.raises(ValueError, match="2\\^61"):
        MECHANISMS[name](2**62, sensitivity=1)


@every
def test_an_empty_value_is_released_as_such(name):
    assert MECHANISMS[name](np.zeros((0, 3), dtype=np.int64), sensitivity=1).value.shape == (0, 3)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_gaussian_noise_has_the_analytic_deviation(epsilon):
    """KS test at level 1e-6, fixed seed."""
    value, statement = privacy.gaussian(
        np.zeros(100_000), sensitivity=2.0, epsilon=epsilon, delta=1e-6, rng=11
    )
    deviation = 2 * privacy.gaussian_deviation(epsilon, 1e-6)
    assert stats.kstest(value / deviation, "norm").pvalue > 1e-6
    assert statement.noise_multiplier == pytest.approx(deviation / 2)


@settings(max_examples=30)
@given(st.floats(0.01, 50), st.sampled_from([1e-8, 1e-5, 1e-2]))
def test_analytic_calibration_is_tight_at_every_epsilon(epsilon, delta):
    deviation = privacy.gaussian_deviation(epsilon, delta)
    cost = privacy.epsilon_of(privacy.Gaussian(deviation), delta=delta)
    assert epsilon * (1 - 1e-5) <= cost <= epsilon


def test_laplace_noise_has_the_right_law_and_sits_on_a_public_grid():
    """KS test at level 1e-6, fixed seed."""
    value, statement = privacy.laplace(np.full(50_000, 0.3), sensitivity=1.0, epsilon=0.5, rng=5)
    assert stats.kstest((value - 0.3) / 2, "laplace").pvalue > 1e-6
    grid = 2.0 ** (1 - 30)
    assert (value / grid == np.round(value / grid)).all()
    assert statement.epsilon <= 0.5


def test_laplace_counts_rounding_into_its_sensitivity():
    """A wide vector pays for rounding each coordinate, visibly if the grid were coarse."""
    _, narrow = privacy.laplace(np.zeros(1), sensitivity=1.0, epsilon=1.0)
    _, wide = privacy.laplace(np.zeros(200_000), sensitivity=1.0, epsilon=1.0)
    assert wide.epsilon <= 1.0
    assert narrow.epsilon <= 1.0


@pytest.mark.parametrize("exact", [1e15, -3.7e9, 1e300])
def test_laplace_holds_for_values_far_larger_than_the_noise(exact):
    value, _ = privacy.laplace(exact, sensitivity=1.0, epsilon=1.0, rng=2)
    assert value == pytest.approx(exact, rel=1e-6)


def brute_force_loss(mechanism_pmf, shift, reach):
    x = np.arange(-reach, reach + 1)
    return np.max(np.abs(np.log(mechanism_pmf(x)) - np.log(mechanism_pmf(x - shift))))


@pytest.fixture
def scales(monkeypatch):
    """The scales of the discrete Laplace noise that is really drawn."""
    from noisewise.release import noise

    drawn, draw = [], noise.discrete_laplace

    def watched(shape, scale, rng):
        drawn.append(float(scale))
        return draw(shape, scale, rng)

    monkeypatch.setattr(noise, "discrete_laplace", watched)
    return drawn


@pytest.mark.parametrize(("sensitivity", "epsilon"), [(1, 0.5), (3, 1.0), (2, 0.1)])
def test_the_exact_privacy_loss_of_discrete_laplace_is_the_stated_epsilon(
    sensitivity, epsilon, scales
):
    from noisewise.privacy.randomness.discrete import discrete_laplace_pmf

    _, statement = privacy.discrete_laplace(0, sensitivity=sensitivity, epsilon=epsilon)
    (scale,) = scales
    loss = brute_force_loss(lambda x: discrete_laplace_pmf(x, scale), sensitivity, 50)
    assert loss <= epsilon * (1 + 1e-9)
    assert loss == pytest.approx(statement.epsilon, rel=1e-6)


def delta_of_counts(scale, sensitivity, releases, epsilon):
    """Exact delta of several counts with integer noise, whose losses are whole over its scale."""
    from noisewise.privacy.randomness.discrete import discrete_laplace_pmf

    x = np.arange(-60 * math.ceil(scale), 60 * math.ceil(scale))
    losses = np.abs(x - sensitivity) - np.abs(x) + sensitivity
    once = np.bincount(losses, discrete_laplace_pmf(x, scale), minlength=2 * sensitivity + 1)
    mass = np.ones(1)
    for _ in range(releases):
        mass = np.convolve(mass, once)
    loss = (np.arange(mass.size) - releases * sensitivity) / scale
    above = loss > epsilon
    return float((mass[above] * -np.expm1(epsilon - loss[above])).sum())


@pytest.mark.parametrize("sensitivity", [1, 3])
@pytest.mark.parametrize(("epsilon", "releases"), [(1.0, 10), (0.1, 100), (2.0, 5)])
@pytest.mark.parametrize("delta", [1e-5, 1e-2])
def test_composed_counts_cost_what_integer_noise_costs(
    sensitivity, epsilon, releases, delta, scales
):
    """Accounted for as continuous noise, ten counts of epsilon 1 would be stated 14 % too low."""
    _, one = privacy.discrete_laplace(0, sensitivity=sensitivity, epsilon=epsilon)
    (scale,) = scales
    stated = privacy.Statement.compose([one] * releases, delta=delta).epsilon
    assert delta_of_counts(scale, sensitivity, releases, stated) <= delta
    continuous = privacy.epsilon_of(privacy.Laplace(1 / one.epsilon, releases), delta=delta)
    assert delta_of_counts(scale, sensitivity, releases, continuous) > delta


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 1), (2.5, 3), (7.0, 1), (20.0, 50)])
@pytest.mark.parametrize("releases", [1, 4])
def test_noise_on_a_grid_costs_at_most_continuous_noise_of_a_smaller_multiplier(
    scale, shift, releases
):
    """The factor that `laplace` takes off, on grids coarse enough that it matters."""
    event = privacy.Laplace(scale / shift * (1 - 1 / (4 * shift * scale)), releases)
    without = privacy.Laplace(scale / shift, releases)
    worst = 0.0
    for epsilon in np.linspace(0.0, 0.99 * releases * shift / scale, 23):
        truth = delta_of_counts(scale, shift, releases, epsilon)
        assert truth <= privacy.delta_of(event, epsilon=epsilon)
        worst = max(worst, truth / privacy.delta_of(without, epsilon=epsilon))
    assert worst > 1.0003  # it is needed


@pytest.mark.parametrize(("sensitivity", "epsilon"), [(1, 0.5), (3, 2.0)])
def test_the_exact_delta_of_discrete_gaussian_is_within_the_stated_one(sensitivity, epsilon):
    from noisewise.privacy.randomness.discrete import discrete_gaussian_pmf

    _, statement = privacy.discrete_gaussian(
        0, sensitivity=sensitivity, epsilon=epsilon, delta=1e-4
    )
    sigma2 = sensitivity**2 / (2 * statement.history[0].rho)
    x = np.arange(-400, 401)
    p, q = (discrete_gaussian_pmf(x - shift, sigma2) for shift in (0, sensitivity))
    true_delta = np.maximum(p - math.exp(statement.epsilon) * q, 0).sum()
    assert 0 < true_delta <= 1e-4


def test_discrete_gaussian_takes_rho_or_epsilon():
    _, statement = privacy.discrete_gaussian(1, sensitivity=1, rho=0.125, delta=1e-6)
    assert statement.history[0].rho == pytest.approx(0.125, rel=1e-6)
    assert statement.history[0].rho <= 0.125
    for wrong in ({}, {"rho": 1.0, "epsilon": 1.0}):
        with pytest.raises(ValueError, match="exactly one"):
            privacy.discrete_gaussian(1, sensitivity=1, delta=1e-6, **wrong)


def test_epsilons_and_deltas_out_of_range_are_refused():
    for epsilon in (0, -1, math.inf, math.nan):
        with pytest.raises(ValueError, match="epsilon"):
            privacy.laplace(1.0, sensitivity=1, epsilon=epsilon)
    for delta in (0, 1, -1):
        with pytest.raises(ValueError, match="delta"):
            privacy.gaussian(1.0, sensitivity=1, epsilon=1, delta=delta)


@pytest.mark.parametrize("mechanism", [privacy.laplace, privacy.gaussian])
def test_numbers_that_float64_would_round_are_refused(mechanism):
    # 2^60 + 128 and 2^60 + 129 are one apart, and 256 apart as float64.
    options = {} if mechanism is privacy.laplace else {"delta": 1e-6}
    with pytest.raises(ValueError, match="2\\^53"):
        mechanism(2**60 + 129, sensitivity=1.0, epsilon=1.0, **options)
