"""Noise reaches every number of an array, and what lies under a mask is neither counted nor shown.

Arithmetic on a masked array leaves out what lies under its mask: noise was added to the others, and
the number below was released as it was.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from noisewise import ecdf, privacy
from noisewise.privacy import Ledger, Sensitivity
from noisewise.release import GaussianNoise, MemoryAccount, Query, ThisProcess, release

SECRET = 77_123
HIDDEN = np.ma.array([1, SECRET], mask=[False, True])

MECHANISMS: dict[str, Callable[..., Any]] = {
    "gaussian": lambda v, **k: privacy.gaussian(v, sensitivity=1.0, epsilon=1.0, delta=1e-5, **k),
    "laplace": lambda v, **k: privacy.laplace(v, sensitivity=1.0, epsilon=1.0, **k),
    "discrete_laplace": lambda v, **k: privacy.discrete_laplace(
        v, sensitivity=1.0, epsilon=1.0, **k
    ),
    "discrete_gaussian": lambda v, **k: privacy.discrete_gaussian(
        v, sensitivity=1.0, epsilon=1.0, delta=1e-5, **k
    ),
    "exponential": lambda v, **k: privacy.exponential(v, sensitivity=1.0, epsilon=1.0, **k),
}

LABELS = np.ma.array([0, 1, 1], mask=[False, True, False])
SCORES = [0.1, 0.5, 0.9]

CURVES: dict[str, Callable[[], Any]] = {
    "roc": lambda: ecdf.private_roc(LABELS, SCORES, epsilon=1.0),
    "calibration": lambda: ecdf.private_calibration(LABELS, SCORES, epsilon=1.0),
    "hosmer-lemeshow": lambda: ecdf.dp_hosmer_lemeshow(LABELS, SCORES, epsilon=1.0),
    "confusion, true": lambda: ecdf.private_confusion(
        LABELS, [0, 1, 1], classes=[0, 1], epsilon=1.0
    ),
    "confusion, predicted": lambda: ecdf.private_confusion(
        [0, 1, 1], LABELS, classes=[0, 1], epsilon=1.0
    ),
    "regression, true": lambda: ecdf.private_regression_errors(
        LABELS, SCORES, bounds=(0, 1), epsilon=1.0
    ),
    "regression, predicted": lambda: ecdf.private_regression_errors(
        SCORES, LABELS, bounds=(0, 1), epsilon=1.0
    ),
    "ecdf": lambda: ecdf.dp_ecdf(LABELS, bounds=(0, 1), epsilon=1.0, bins=4),
    "median": lambda: ecdf.dp_median(LABELS, bounds=(0, 1), epsilon=1.0),
    "stream": lambda: ecdf.StreamingCounter(epsilon=1.0).extend(LABELS),
}


@pytest.mark.parametrize("kind", [np.int64, np.float64])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_mechanisms_refuse_masked_entries_before_they_cost_anything(mechanism, kind, tmp_path):
    path = tmp_path / "of.ledger"
    Ledger.create(path, epsilon=10.0, delta=1e-4).close()
    values = HIDDEN.astype(kind)
    with pytest.raises((ValueError, TypeError)) as refused:
        MECHANISMS[mechanism](values, ledger=path)
    assert str(SECRET) not in str(refused.value)
    with Ledger.open(path) as ledger:
        assert not ledger.charges


@pytest.mark.parametrize("curve", CURVES)
def test_curves_refuse_masked_entries(curve):
    with pytest.raises(ValueError, match="mask"):
        CURVES[curve]()


def test_noise_reaches_every_number_of_a_query_whatever_the_kind_of_its_array():
    noise = GaussianNoise(1.0, Sensitivity(1.0, "l2"), "Gaussian noise")
    query = Query.of(lambda rows: HIDDEN.astype(float), Sensitivity(1.0, "l2"), "numbers")
    found = release(query, noise, ThisProcess([]), MemoryAccount(), delta=1e-5, rng=1)
    # Continuous noise is exactly zero with probability zero.
    assert np.asarray(found.value)[1] != SECRET


@pytest.mark.parametrize("where", ["y", "predicted"])
@pytest.mark.parametrize("cell", ["Zaphod", 10**400, b"Zaphod", 3 + 4j], ids=range(4))
def test_a_regression_shows_no_cell_that_is_no_number(where, cell):
    given = {"y": [0.1, 0.2], "predicted": [0.1, 0.2], where: np.array([0.5, cell], object)}
    with pytest.raises(TypeError, match=f"{where} must hold real numbers") as refused:
        ecdf.private_regression_errors(**given, bounds=(0, 1), epsilon=1.0)
    assert "Zaphod" not in str(refused.value)
