"""Intervals are as wide as the noise asks for, and hardly wider: a reach cut by 10 % fails here.

Noise that is just within what an interval allows is put on known numbers, from every direction:
the truth must be inside. Noise 2 % larger must throw it out at both ends. And what an interval
allows is as likely as it says, by another way to compute the law.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import gammainc
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

from noisewise.ecdf import private_calibration, private_confusion, private_regression_errors
from noisewise.ecdf.auc import pivot_covers, trapezoid
from noisewise.ecdf.budget import Budget
from noisewise.ecdf.group_sums import ROUNDED, SUM_UNIT
from noisewise.ecdf.laplace_reach import sizes_within, sum_within
from noisewise.ecdf.prediction_errors import _SUMS
from noisewise.ecdf.roc import private_roc
from noisewise.ecdf.roc_band import limits_at, spread_at
from noisewise.ecdf.two_class import two_curve_mechanism

WITHIN, BEYOND = 0.999, 1.02  # of what an interval allows
LEVEL = 0.9


def size_of_a_sum(terms: int, limit: float) -> float:
    """P(|L1 + ... + Lk| <= limit), from the characteristic function."""

    def density(t: float) -> float:
        return float(np.sinc(t * limit / math.pi)) * limit * (1 + t * t) ** -terms

    return 2 / math.pi * quad(density, 0, 60, limit=2000)[0]


@pytest.mark.parametrize("terms", [2, 3, 6, 20])
@pytest.mark.parametrize("level", [0.5, 0.95, 0.99])
def test_laplace_sums_are_within_their_reach_as_often_as_is_said(terms: int, level: float) -> None:
    assert size_of_a_sum(terms, sum_within(terms, level)) == pytest.approx(level, abs=1e-5)
    assert gammainc(terms, sizes_within(terms, level)) == pytest.approx(level, abs=1e-7)


def test_one_number_and_very_many() -> None:
    assert sum_within(1, 0.95) == pytest.approx(-math.log(0.05))
    assert sum_within(0, 0.95) == 0.0
    # 100 classes have 9,900 wrong cells: nearly a normal sum, of variance 2 each.
    assert sum_within(9900, 0.95) == pytest.approx(1.95996 * math.sqrt(2 * 9900), rel=1e-3)


def test_scales_are_those_of_the_noise() -> None:
    """The mean size of 14,700 Laplace numbers is within 5 deviations (0.042) of the scale."""
    y = np.zeros(1)
    sizes = []
    for seed in range(3):
        found = private_confusion(y, y, classes=list(range(70)), epsilon=0.5, seed=seed)
        noise = found.counts.copy()
        noise[0, 0] -= 1
        sizes.append(np.abs(noise) / found.sums.scales["0,0"])
    assert np.mean(sizes) == pytest.approx(1.0, abs=0.042)
    errors = private_regression_errors(y, y, bounds=(0, 1), epsilon=0.5, seed=1)
    for name, share in _SUMS.items():
        assert errors.sums.scales[name] == pytest.approx(1 / (0.5 * share), rel=1e-6)


def reach_of_one(scale: float, level: float) -> float:
    return -scale * math.log(1 - level) + 1 / SUM_UNIT


def test_limits_of_r2_mae_and_rmse_are_sharp() -> None:
    rng = np.random.default_rng(3)
    y = rng.uniform(10, 30, 2000)
    guess = np.clip(y + rng.normal(0, 3, 2000), 10, 30)
    measured = private_regression_errors(y, guess, bounds=(10, 30), epsilon=1.0, seed=1)
    place, error = (y - 10) / 20, (guess - y) / 20
    exact = {
        "count": 2000.0,
        "absolute": float(np.abs(error).sum()),
        "square": float((error**2).sum()),
        "target": float(place.sum()),
        "target_square": float((place**2).sum()),
    }
    truth = {
        "r2": r2_score(y, guess),
        "mean_absolute_error": mean_absolute_error(y, guess),
        "root_mean_squared_error": root_mean_squared_error(y, guess),
    }
    reach = {
        name: reach_of_one(measured.sums.scales[name], LEVEL ** (1 / 5))
        + (0 if name == "count" else 2000 * ROUNDED)
        for name in exact
    }
    thrown_out = set()
    for part in (WITHIN, BEYOND):
        for signs in itertools.product((-1, 1), repeat=5):
            columns = {
                name: np.array([exact[name] + part * sign * reach[name]])
                for name, sign in zip(exact, signs, strict=True)
            }
            found = replace(measured, sums=replace(measured.sums, columns=columns))
            for name, value in truth.items():
                low, high = getattr(found, f"{name}_interval")(LEVEL)
                if part == WITHIN:
                    assert low <= value <= high, (name, signs)
                thrown_out |= {(name, "below")} if value < low else set()
                thrown_out |= {(name, "above")} if value > high else set()
    assert thrown_out == set(itertools.product(truth, ("below", "above")))


def test_limits_of_accuracy_are_sharp() -> None:
    rng = np.random.default_rng(3)
    y = rng.integers(0, 3, 1000)
    said = np.where(rng.random(1000) < 0.7, y, (y + 1) % 3)
    measured = private_confusion(y, said, classes=[0, 1, 2], epsilon=0.5, seed=1)
    exact = np.zeros((3, 3))
    np.add.at(exact, (y, said), 1)
    truth, same = float((y == said).mean()), np.eye(3, dtype=bool)
    scale, part_level = measured.sums.scales["0,0"], math.sqrt(LEVEL)
    right, wrong = scale * sum_within(3, part_level), scale * sum_within(6, part_level)
    outside = set()
    for part in (WITHIN, BEYOND):
        for one, other in itertools.product((-1, 1), repeat=2):
            noise = np.where(same, one * part * right / 3, other * part * wrong / 6)
            low, high = replace(measured, counts=exact + noise).accuracy_interval(LEVEL)
            if part == WITHIN:
                assert low <= truth <= high
            outside |= {"below"} if truth < low else {"above"} if truth > high else set()
    assert outside == {"below", "above"}


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_limits_of_the_calibration_error_are_sharp(relation: str) -> None:
    rng = np.random.default_rng(3)
    p = rng.random(3000)
    y = (rng.random(3000) < p**2).astype(float)
    measured = private_calibration(y, p, epsilon=1.0, relation=relation, seed=1)
    group = np.minimum((p * 10).astype(int), 9)
    residual = np.bincount(group, y - p, 10)
    truth = float(np.abs(residual).sum()) / 3000
    public = measured.records is not None
    level = LEVEL if public else (1 + LEVEL) / 2
    scales, shares = measured.sums.scales, np.full(10, 0.1)
    outside = set()
    for part in (WITHIN, BEYOND):
        for one, other in itertools.product((-1, 1), repeat=2):
            size = one * part * scales["residual"] * sizes_within(10, level)
            more = other * part * scales["count"] * sum_within(10, level)
            columns = {
                **measured.sums.columns,
                "residual": residual + np.sign(residual) * size * shares,
                "count": np.bincount(group, minlength=10) + (0 if public else more * shares),
            }
            found = replace(measured, sums=replace(measured.sums, columns=columns))
            low, high = found.ece_interval(LEVEL)
            if part == WITHIN:
                assert low <= truth <= high
            outside |= {"below"} if truth < low else {"above"} if truth > high else set()
    assert outside == {"below", "above"}


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_noise_at_a_threshold_is_as_large_as_is_allowed_for(relation: str) -> None:
    """The share of 20,000 draws within a factor from 20,000 others has deviation 0.003."""
    mechanism = two_curve_mechanism(8, relation, Budget(1.0))
    spread = spread_at(mechanism, 3, LEVEL, draws=20_000)
    noise = mechanism.simulate(np.random.default_rng(7), 20_000).reshape(-1, 2, 8)
    here, rest = noise[:, :, 3] / spread.own, (noise[:, :, 3] - noise[:, :, -1]) / spread.rest
    assert np.mean(here**2) == pytest.approx(1.0, abs=0.1)
    assert np.mean(rest**2) == pytest.approx(1.0, abs=0.1)
    inside = np.maximum(np.abs(here), np.abs(rest)).max(axis=1) <= spread.factor
    assert inside.mean() == pytest.approx(LEVEL, abs=0.016)


def test_a_level_close_to_one_gets_as_many_draws_as_it_needs() -> None:
    mechanism = two_curve_mechanism(8, "add-remove", Budget(1.0))
    usual, rare = (spread_at(mechanism, 3, level).factor for level in (0.999, 0.9999))
    assert rare > 1.1 * usual


@pytest.mark.parametrize("place", [0, 3, 6])
@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
def test_limits_of_recall_false_alarms_and_precision_are_sharp(relation: str, place: int) -> None:
    rng = np.random.default_rng(3)
    y = rng.random(2000) < 0.4
    p = rng.beta(2 + 2 * y, 3)
    release = private_roc(y, p, epsilon=3.0, bins=8, relation=relation, seed=1).release
    yes = p >= release.thresholds[place]
    exact = np.array([[(yes & (y == label)).sum(), (y == label).sum()] for label in (0, 1)])
    truth = {
        "false_positive_rate": exact[0, 0] / exact[0, 1],
        "recall": exact[1, 0] / exact[1, 1],
        "precision": exact[1, 0] / exact[:, 0].sum(),
    }
    spread = spread_at(release.mechanism, place, LEVEL)
    thrown_out = set()
    for part in (WITHIN, BEYOND):
        for signs in itertools.product((-1, 1), repeat=4):
            here, rest = np.reshape(signs, (2, 2)).T * part * spread.factor
            noisy = release.noisy.copy()
            noisy[:, place] = exact[:, 0] + here * spread.own
            noisy[:, -1] = exact[:, 1] + here * spread.own - rest * spread.rest
            limits = limits_at(replace(release, noisy=noisy), place, LEVEL)
            for name, value in truth.items():
                low, high = limits[name]
                if part == WITHIN:
                    assert low <= value <= high, (name, signs)
                thrown_out |= {(name, "below")} if value < low else set()
                thrown_out |= {(name, "above")} if value > high else set()
    assert thrown_out == set(itertools.product(truth, ("below", "above")))


@pytest.mark.slow
def test_the_interval_of_the_area_misses_no_more_often_than_it_says() -> None:
    """Of 12,000 releases at level 0.9: 0.084 miss it (deviation 0.0026), since a tenth of what
    may be missed is kept back. A false alarm has probability below 1e-9; with the reach cut by
    10 % the share is 0.115, which fails.
    """
    rng = np.random.default_rng(3)
    y = rng.random(3000) < 0.4
    release = private_roc(y, rng.beta(2 + 2 * y, 3), epsilon=1.0, bins=8, seed=1).release
    exact = release.noisy  # stands for the true counts
    area = float(trapezoid(*exact) / (exact[0, -1] * exact[1, -1]))
    noise = release.mechanism.simulate(rng, 12_000).reshape(-1, 2, 8)
    kept = [
        pivot_covers(replace(release, noisy=exact + one), area, LEVEL, draws=499, seed=seed)
        for seed, one in enumerate(noise)
    ]
    assert 0.06 < 1 - np.mean(kept) <= 1 - LEVEL
