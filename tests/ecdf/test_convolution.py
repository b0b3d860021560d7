"""Integer convolutions are exact; series are inverted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from noisewise.ecdf.mechanisms.convolution import convolve, exact_convolve, series_inverse


def slow(a: np.ndarray, b: np.ndarray) -> list[int]:
    left, right = [int(v) for v in a], [int(v) for v in b]
    return [sum(left[k] * right[i - k] for k in range(i + 1)) for i in range(len(left))]


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 60), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_integer_products_are_exact_up_to_62_bits(size: int, bits: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    left_bits = min(bits, 18)
    left = generator.integers(0, 2**left_bits, size)
    right = generator.integers(0, 2 ** min(bits, 37), size)
    assert exact_convolve(left, right, size).tolist() == slow(left, right)


def test_long_products_are_exact() -> None:
    generator = np.random.default_rng(1)
    size = 1500
    left = np.sort(generator.integers(1, 2**20, size))[::-1].copy()
    right = generator.integers(0, 2**30, size)
    assert exact_convolve(left, right, size).tolist() == slow(left, right)


def test_products_beyond_64_bits_are_refused() -> None:
    big = np.full(10, 2**40)
    with pytest.raises(OverflowError):
        exact_convolve(big, big, 10)


@given(st.integers(1, 300), st.integers(0, 100))
def test_series_inverse_times_series_is_one(size: int, seed: int) -> None:
    series = np.cumprod(np.random.default_rng(seed).uniform(0.3, 0.99, size))
    product = convolve(series, series_inverse(series), size)
    product[0] -= 1
    assert np.abs(product).max() < 1e-9
