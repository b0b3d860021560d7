"""What a quantile misses on average, by the law of its mechanism: no more than other libraries."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.quantile_laws import of_diffprivlib, of_noisewise, of_opendp
from benchmarks.quantiles import CASES, missed, records

from noisewise.ecdf import dp_quantile
from noisewise.privacy.randomness import resolve
from noisewise.release.decimals import Decimals, code_of

SHAPES = ("one value for nine tenths", "Cauchy, wide", "lognormal")


@pytest.mark.parametrize("epsilon", [0.05, 0.2, 0.5, 2.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_median_misses_no_more_than_other_libraries(shape: str, epsilon: float) -> None:
    """The cases of the benchmark that need no table; all of them: benchmarks.quantile_laws."""
    source, bounds = next((case[1], case[3]) for case in CASES if case[0] == shape)
    x = records(source, "")
    ours = of_noisewise(x, 0.5, bounds, epsilon)
    assert ours <= of_diffprivlib(x, 0.5, bounds, epsilon)
    assert ours <= of_opendp(x, 0.5, bounds, epsilon)


def test_the_law_is_that_of_what_is_drawn() -> None:
    """False alarms: 1e-6 (4.9 standard errors); a mean that is a third off is found."""
    x, q, bounds, runs = np.random.default_rng(3).lognormal(3.0, 1.0, 300), 0.9, (0.0, 1e4), 300
    rng, wanted = resolve(5), np.array([q])
    found = np.array([dp_quantile(x, q, bounds=bounds, epsilon=0.3, seed=rng) for _ in range(runs)])
    errors = np.array([missed(np.sort(x), wanted, one) for one in found[:, None]])
    off = errors.mean() - of_noisewise(x, q, bounds, 0.3)
    assert abs(off) < 4.9 * errors.std() / runs**0.5


def test_no_number_is_much_likelier_than_those_beside_it() -> None:
    """What is likelier draws quantiles along: by its logarithm over epsilon, in records."""
    domain = Decimals(-1e12, 1e12)
    for power in range(-3, 9):
        for digit in (1, 2, 3, 5, 7):
            value = digit * 10.0**power
            codes = code_of([0.9 * value, value, 1.1 * value]).tolist()
            low, before, upto, high = domain.upto([codes[0], codes[1] - 1, codes[1], codes[2]])
            assert 0.9 < (before - low) / (high - upto) < 4
            assert upto - before < 0.3 * (high - upto)
