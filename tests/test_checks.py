import math

import numpy as np
import pytest
import torch

from noisewise import checks


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_refused_by_name(value):
    with pytest.raises(ValueError, match="epsilon"):
        checks.positive("epsilon", value)


@pytest.mark.parametrize("value", ["1", None, True, [1.0, 2.0], np.bool_(True)])
def test_what_is_no_number_is_a_type_error(value):
    with pytest.raises(TypeError, match="epsilon"):
        checks.positive("epsilon", value)


def test_numbers_of_other_libraries_are_accepted():
    assert checks.positive("x", np.float32(2)) == 2.0
    assert checks.positive("x", torch.tensor(2.0)) == 2.0
    assert checks.integer("x", np.int64(3)) == 3


def test_the_message_has_name_value_and_range():
    with pytest.raises(ValueError, match=r"sample_rate must lie in \(0, 1\], got 1.5"):
        checks.probability("sample_rate", 1.5)
    with pytest.raises(ValueError, match=r"delta must lie in \[0, 1\), got 1"):
        checks.probability("delta", 1, zero=True, one=False)
    with pytest.raises(ValueError, match=r"steps must be a whole number >= 1, got 0"):
        checks.integer("steps", 0, minimum=1)
    with pytest.raises(ValueError, match=r"steps must be a whole number, got 2.5"):
        checks.integer("steps", 2.5)
    with pytest.raises(ValueError, match="'pld', 'rdp', got 'prv'"):
        checks.choice("accountant", "prv", ("pld", "rdp"))


def test_large_integers_keep_every_digit():
    assert checks.integer("n", 2**63 - 1) == 2**63 - 1
