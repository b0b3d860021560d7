"""Composed statements include what integer noise costs at the epsilon that is stated."""

from __future__ import annotations

import math

import numpy as np
import pytest

from noisewise.ecdf import StreamingCounter
from noisewise.ecdf.evaluation import private_evaluation
from noisewise.privacy import Gaussian, verify
from noisewise.privacy.accounting import delta_of


@pytest.mark.parametrize(("epsilon", "delta"), [(0.3, 1e-5), (1.0, 1e-6), (4.0, 1e-5)])
def test_delta_of_integer_noise_fits_at_the_composed_epsilon(epsilon: float, delta: float) -> None:
    rng = np.random.default_rng(0)
    p = rng.random(300)
    y = rng.random(300) < p
    found = private_evaluation(
        y, p, epsilon=epsilon, delta=delta, rng=1, bins=256, relation="replace-one"
    )
    whole = found.statement()
    assert verify(whole).ok
    assert whole.epsilon <= epsilon
    mechanism = found.roc.release.mechanism
    assert mechanism.kind == "gaussian"
    assert found.calibration is not None
    real = delta_of(
        [Gaussian(1 / math.sqrt(mechanism.ratio_squared)), *found.calibration.statement().history],
        epsilon=whole.epsilon,
        relation=whole.relation,
    )
    # Rounded Gaussian noise, and the way there and back for every number of both curves.
    deviation = math.sqrt(min(block.scale for block in mechanism.noise))
    coordinates = sum(block.size for block in mechanism.noise)
    cost = (1 + math.exp(whole.epsilon)) * coordinates / (24 * deviation**2)
    assert cost > 0
    assert real + cost <= delta * (1 + 1e-6)


def test_releases_with_a_large_epsilon_and_delta_compose() -> None:
    generator = np.random.default_rng(0)
    p = generator.random(500)
    y = (generator.random(500) < p).astype(int)
    statement = private_evaluation(
        y, p, epsilon=40.0, delta=1e-6, rng=1, relation="replace-one"
    ).statement()
    assert statement.epsilon <= 40.0 * (1 + 1e-9)


def test_streams_with_a_large_epsilon_and_delta_are_stated() -> None:
    counter = StreamingCounter(epsilon=20.0, delta=1e-6, horizon=64, rng=1)
    counter.extend([1, 0, 1])
    assert 0.9 * 20 < counter.statement().epsilon <= 20.0
