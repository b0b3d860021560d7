"""Every operation rounds upwards, checked against exact rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

from hypothesis import given, strategies as st

from noisewise.arithmetic import hypotenuse, loose, product, quotient, root, total

sizes = st.floats(min_value=1e-100, max_value=1e100)


@given(st.lists(sizes, max_size=6))
def test_a_product_is_never_below_the_exact_one(factors: list[float]) -> None:
    exact = math.prod((Fraction(f) for f in factors), start=Fraction(1))
    result = product(*factors)
    assert math.isinf(result) or Fraction(result) >= exact


@given(st.lists(sizes, max_size=6))
def test_a_sum_is_never_below_the_exact_one(terms: list[float]) -> None:
    assert Fraction(total(*terms)) >= sum((Fraction(t) for t in terms), start=Fraction(0))


@given(sizes, sizes)
def test_a_quotient_is_never_below_the_exact_one(one: float, other: float) -> None:
    assert Fraction(quotient(one, other)) >= Fraction(one) / Fraction(other)


@given(sizes)
def test_a_root_squared_is_never_below_the_number(value: float) -> None:
    assert Fraction(root(value)) ** 2 >= Fraction(value)
    assert root(value) <= math.sqrt(value) * (1 + 1e-15)


@given(st.lists(st.floats(min_value=1e-60, max_value=1e60), min_size=1, max_size=5))
def test_a_hypotenuse_squared_is_never_below_the_sum_of_squares(terms: list[float]) -> None:
    assert Fraction(hypotenuse(*terms)) ** 2 >= sum((Fraction(t) ** 2 for t in terms), Fraction(0))


def test_zero_and_infinity_are_read_safely() -> None:
    assert product(0.0, math.inf) == math.inf
    assert quotient(1.0, 0.0) == math.inf
    assert product(0.0, 5.0) == 0.0
    assert total() == 0.0
    assert root(9.0) == 3.0
    assert loose(math.exp(1.0)) > math.e
    assert product(32.0, 1.0) == 32.0
