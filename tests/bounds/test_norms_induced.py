"""Norms from l_p to l_q against brute force over the extreme points of the unit ball."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from noisewise.bounds.norms import induced, induced_norm

P = (1, 2, math.inf)


def gaussian(rows: int, columns: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator, dtype=torch.float64)


def signs(count: int) -> Tensor:
    return torch.tensor(list(itertools.product((1.0, -1.0), repeat=count)), dtype=torch.float64)


def brute(A: Tensor, p: float, q: float) -> float:
    """A convex function is largest at an extreme point, of one ball or of the dual one."""
    if p == 1:
        return float(torch.linalg.vector_norm(A, q, dim=0).max())
    if p == math.inf:
        return float(torch.linalg.vector_norm(A @ signs(A.shape[1]).T, q, dim=0).max())
    if q == math.inf:
        return float(torch.linalg.vector_norm(A, 2, dim=1).max())
    if q == 1:
        return float(torch.linalg.vector_norm(A.T @ signs(A.shape[0]).T, 2, dim=0).max())
    return float(torch.linalg.matrix_norm(A, 2))


@pytest.mark.parametrize("p", P)
@pytest.mark.parametrize("q", P)
@given(rows=st.integers(1, 9), columns=st.integers(1, 9), seed=st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_every_pair_is_bounded_and_all_but_one_are_exact(
    p: float, q: float, rows: int, columns: int, seed: int
) -> None:
    A = gaussian(rows, columns, seed)
    exact, bound = brute(A, p, q), float(induced_norm(A, p, q))
    assert bound >= exact * (1 - 1e-13)
    if (p, q) != (math.inf, 1):
        assert bound <= exact * (1 + 1e-9)


@settings(max_examples=25, deadline=None)
@given(rows=st.integers(13, 15), columns=st.integers(1, 20), seed=st.integers(0, 10**6))
def test_beyond_enumeration_the_bound_holds_and_is_within_a_third(
    rows: int, columns: int, seed: int
) -> None:
    A = gaussian(rows, columns, seed)
    exact = brute(A, 2, 1)
    bound = induced_norm(A, 2, 1)
    assert exact * (1 - 1e-13) <= float(bound) <= 1.34 * exact
    assert float(induced_norm(A.T, math.inf, 2)) == pytest.approx(float(bound), rel=1e-9)


@pytest.mark.parametrize("name", ["orthogonal", "equal", "spread"])
def test_structured_matrices_beyond_enumeration(name: str) -> None:
    A = {
        "orthogonal": torch.linalg.qr(gaussian(14, 14))[0],
        "equal": torch.full((15, 4), 0.3, dtype=torch.float64),
        "spread": torch.diag(torch.logspace(-3, 3, 14, dtype=torch.float64)),
    }[name]
    assert float(induced_norm(A, 2, 1)) >= brute(A, 2, 1) * (1 - 1e-13)
    assert float(induced_norm(A, 2, 1)) <= brute(A, 2, 1) * 1.05


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 30), columns=st.integers(1, 30), seed=st.integers(0, 10**6))
def test_integer_sums_are_rounded_up_to_the_last_bit(rows: int, columns: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    A = torch.randint(-(10**6), 10**6, (rows, columns), generator=generator)
    third = A.double() / 3.0  # not representable, so the sums do round
    exact = [[abs(Fraction(float(x))) for x in row] for row in third]
    row_sum = max(sum(row) for row in exact)
    column_sum = max(sum(column) for column in zip(*exact, strict=True))
    row_square = max(sum(x * x for x in row) for row in exact)
    assert Fraction(induced_norm(third, math.inf).value) >= row_sum
    assert Fraction(induced_norm(third, 1).value) >= column_sum
    assert Fraction(induced_norm(third, 2, math.inf).value) ** 2 >= row_square


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="p must be 1, 2 or infinity"):
        induced_norm(torch.ones(2, 2), 3)
    with pytest.raises(ValueError, match="takes a matrix"):
        induced_norm(torch.ones(2, 2, 3), 1)
    with pytest.raises(ValueError, match="NaN or infinite"):
        induced_norm(torch.tensor([[math.nan]]), 1)
    assert float(induced_norm(torch.zeros(2, 3), 1)) == 0.0


def test_the_scale_is_followed() -> None:
    A = gaussian(14, 6)
    for p, q in itertools.product(P, P):
        small = float(induced_norm(A * 2.0**-900, p, q))
        assert small == pytest.approx(float(induced_norm(A, p, q)) * 2.0**-900, rel=1e-9)


def test_a_bound_shrunk_by_a_tenth_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = induced.up
    monkeypatch.setattr(induced, "up", lambda value: 0.9 * honest(value))
    A = gaussian(6, 5)
    assert float(induced_norm(A, 1)) < brute(A, 1, 1)
    assert float(induced_norm(A, 2, 1)) < brute(A, 2, 1)
