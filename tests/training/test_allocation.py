"""All three ways to spread noise are the same Gaussian mechanism; the optimal one is quietest."""

import math

import pytest
from hypothesis import given, strategies as st

from noisewise.privacy import split_noise
from noisewise.release.allocation import ALLOCATIONS
from noisewise.training import deviations

positive = st.floats(1e-3, 1e3)
groups = st.lists(st.tuples(positive, st.integers(1, 10**6)), min_size=1, max_size=8)


@pytest.mark.parametrize("allocation", ALLOCATIONS)
@given(groups=groups, sigma=st.floats(0.1, 50.0))
def test_the_step_has_exactly_the_noise_multiplier_and_never_less(allocation, groups, sigma):
    bounds, sizes = zip(*groups, strict=True)
    s = deviations(bounds, sizes, sigma, allocation)
    reached = split_noise(bounds, s)
    assert sigma <= reached <= sigma * (1 + 1e-9)


@given(groups=groups, sigma=st.floats(0.1, 50.0))
def test_the_optimal_allocation_has_the_least_energy(groups, sigma):
    bounds, sizes = zip(*groups, strict=True)

    def energy(allocation):
        s = deviations(bounds, sizes, sigma, allocation)
        return math.fsum(d * v * v for d, v in zip(sizes, s, strict=True))

    expected = (sigma * math.fsum(b * math.sqrt(d) for b, d in groups)) ** 2
    assert energy("optimal") == pytest.approx(expected, rel=1e-9)
    assert energy("optimal") <= min(energy("per-layer"), energy("global")) * (1 + 1e-9)


@given(groups=groups, nudge=st.floats(0.5, 2.0), which=st.integers(0, 7))
def test_moving_noise_from_the_optimum_at_equal_privacy_costs_energy(groups, nudge, which):
    bounds, sizes = zip(*groups, strict=True)
    s = deviations(bounds, sizes, 1.0, "optimal")
    moved = list(s)
    moved[which % len(s)] *= nudge
    scale = 1.0 / split_noise(bounds, moved)
    energy = math.fsum(d * (scale * v) ** 2 for d, v in zip(sizes, moved, strict=True))
    assert energy >= math.fsum(d * v * v for d, v in zip(sizes, s, strict=True)) * (1 - 1e-9)


def test_formulas_by_hand():
    assert deviations([3.0, 4.0], [1, 1], 2.0, "global") == pytest.approx([10.0, 10.0])
    assert deviations([3.0, 4.0], [9, 9], 2.0, "per-layer") == pytest.approx(
        [6.0 * math.sqrt(2), 8.0 * math.sqrt(2)]
    )
    # s_1^2 = 4 * (1/2) * (2 + 3) and s_2^2 = 4 * (3/1) * (2 + 3)
    assert deviations([1.0, 3.0], [4, 1], 2.0, "optimal") == pytest.approx(
        [math.sqrt(10), math.sqrt(60)]
    )


def test_a_group_that_no_record_moves_needs_no_noise():
    for allocation in ("optimal", "per-layer"):
        s = deviations([0.0, 2.0], [10, 10], 1.5, allocation)
        assert s[0] == 0.0
        assert s[1] == pytest.approx(3.0)


def test_bad_groups_are_refused():
    with pytest.raises(ValueError, match="as many"):
        deviations([1.0], [1, 2], 1.0)
    with pytest.raises(ValueError, match="sensitivity"):
        deviations([-1.0], [1], 1.0)
    with pytest.raises(ValueError, match="noise must be one of"):
        deviations([1.0], [1], 1.0, "loud")
