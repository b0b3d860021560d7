"""Certified norms of matrices against the singular values, and exactly where they are rational."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from noisewise.bounds.norms import NormBound, eigenvalue, matrix as matrix_module, spectral_norm
from noisewise.bounds.norms.eigenvalue import certify_below, gram, largest_eigenvalue

METHODS = ("auto", "frobenius", "orthogonal", "gram", "cholesky", "eigenvalue")
SVD_ERROR = 1e-12  # relative error granted to the reference


def truth(weight: Tensor) -> float:
    return float(torch.linalg.matrix_norm(weight.double(), 2))


def gaussian(rows: int, columns: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator, dtype=torch.float64)


def orthogonal(size: int, seed: int = 0) -> Tensor:
    return torch.linalg.qr(gaussian(size, size, seed))[0]


def hadamard(order: int) -> Tensor:
    H = torch.ones(1, 1, dtype=torch.float64)
    for _ in range(order):
        H = torch.cat([torch.cat([H, H], 1), torch.cat([H, -H], 1)])
    return H


def power_iteration_trap(size: int) -> Tensor:
    """Top singular vector orthogonal to the vectors that our own guess starts from."""
    generator = torch.Generator().manual_seed(size)
    start = torch.randn(size, 4, generator=generator).double()
    basis = torch.linalg.qr(torch.cat([start, gaussian(size, size - 4)], 1))[0]
    values = torch.ones(size, dtype=torch.float64)
    values[-1] = 1.2  # slow enough that rounding does not save the iteration
    return basis @ torch.diag(values) @ basis.T


ADVERSARIAL = {
    "gaussian": gaussian(70, 50),
    "wide": gaussian(5, 300),
    "orthogonal": orthogonal(64),
    "slow decay": orthogonal(150, 1) @ torch.diag(torch.linspace(1, 0.97, 150).double()),
    "rank one": torch.outer(gaussian(90, 1)[:, 0], gaussian(40, 1, 1)[:, 0]),
    "power iteration trap": power_iteration_trap(160),
    "hadamard": hadamard(7),
    "checkerboard": torch.tensor([[1.0, -1.0] * 20, [-1.0, 1.0] * 20] * 20),
    "huge dynamic range": torch.diag(torch.logspace(-200, 200, 41, dtype=torch.float64)),
    "jordan": torch.eye(60) + torch.diag(torch.ones(59), 1),
    "one row": gaussian(1, 50),
    "all equal": torch.full((130, 140), 0.1),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ADVERSARIAL)
def test_no_adversarial_matrix_has_a_norm_above_its_bound(name: str, method: str) -> None:
    weight = ADVERSARIAL[name]
    assert float(spectral_norm(weight, method=method)) >= truth(weight) * (1 - SVD_ERROR)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 40),
    seed=st.integers(0, 10**6),
    method=st.sampled_from(METHODS),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
    transposed=st.booleans(),
)
def test_random_matrices_stay_below_their_bound(
    rows: int, columns: int, seed: int, method: str, dtype: torch.dtype, transposed: bool
) -> None:
    weight = gaussian(rows, columns, seed).to(dtype)
    weight = weight.T if transposed else weight  # not contiguous
    bound = float(spectral_norm(weight, method=method))
    assert bound >= truth(weight) * (1 - SVD_ERROR)
    if method in ("auto", "cholesky", "eigenvalue"):
        assert bound <= 1.01 * truth(weight)


def krylov_trap(size: int) -> torch.Tensor:
    """A largest singular vector that is orthogonal to the vector every guess starts from."""
    start = eigenvalue._start(size, 1).double()[:, 0]
    basis, _ = torch.linalg.qr(torch.cat([start[:, None], gaussian(size, size - 1)], dim=1))
    values = torch.linspace(0.1, 1.0, size, dtype=torch.float64)
    values[-1] = 1.05  # close enough that rounding does not help the guess in its few steps
    return (basis * values) @ basis.T


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_auto_over_estimates_by_at_most_a_hundredth(name: str) -> None:
    weight = ADVERSARIAL[name]
    assert float(spectral_norm(weight)) <= 1.01 * truth(weight) * (1 + SVD_ERROR)


@pytest.mark.parametrize("size", [200, 333])
def test_a_larger_gaussian_is_bounded_within_the_tolerance_asked_for(size: int) -> None:
    weight = gaussian(size, size + 30)
    for tolerance in (0.1, 0.01, 1e-4):
        bound = float(spectral_norm(weight, tolerance=tolerance))
        assert truth(weight) <= bound <= (1 + tolerance) * truth(weight) * (1 + 1e-8)


def test_auto_takes_the_cheapest_method_that_is_tight() -> None:
    assert spectral_norm(ADVERSARIAL["orthogonal"]).method == "orthogonal"
    assert spectral_norm(3.0 * orthogonal(40)).method == "orthogonal"
    assert spectral_norm(gaussian(1, 9)).method == "frobenius"
    one_hot = torch.zeros(50, 50)
    one_hot[3, 4] = 7.0
    assert spectral_norm(one_hot).method == "frobenius"
    assert spectral_norm(gaussian(300, 300)).method == "cholesky"
    assert spectral_norm(gaussian(20, 20)).method == "eigenvalue"
    assert spectral_norm(power_iteration_trap(160)).method == "cholesky"
    assert spectral_norm(krylov_trap(160)).method == "eigenvalue"


@pytest.mark.parametrize("method", METHODS)
@given(seed=st.integers(0, 10**6), rows=st.integers(1, 12), columns=st.integers(1, 12))
@settings(max_examples=15, deadline=None)
def test_rounding_is_on_the_safe_side_to_the_last_bit_for_integer_rank_one(
    method: str, seed: int, rows: int, columns: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    u = torch.randint(-999, 1000, (rows,), generator=generator)
    v = torch.randint(-999, 1000, (columns,), generator=generator)
    exact = int(u.square().sum()) * int(v.square().sum())
    bound = spectral_norm(torch.outer(u, v).double(), method=method).value
    assert Fraction(bound) ** 2 >= exact


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("order", [1, 3, 5, 7])
def test_rounding_is_on_the_safe_side_to_the_last_bit_for_hadamard(method: str, order: int) -> None:
    bound = spectral_norm(hadamard(order), method=method).value
    assert Fraction(bound) ** 2 >= 2**order


@pytest.mark.parametrize("exponent", [-1070, -1000, -300, -30, 30, 300, 1000])
@pytest.mark.parametrize("method", METHODS)
def test_the_bound_follows_the_scale_from_subnormal_to_huge(exponent: int, method: str) -> None:
    weight = hadamard(3) * math.ldexp(1.0, exponent)
    bound = spectral_norm(weight, method=method).value
    assert Fraction(bound) ** 2 >= 8 * Fraction(2) ** (2 * exponent)
    worst = 3.0 if method == "frobenius" else 1.1
    assert bound <= worst * math.sqrt(8.0) * math.ldexp(1.0, exponent) + 5e-324


def test_single_precision_extremes_are_scaled_before_they_are_squared() -> None:
    for size in (1e-30, 1e30, 1e-44):
        weight = torch.full((20, 30), size, dtype=torch.float32)
        assert truth(weight) * (1 - SVD_ERROR) <= float(spectral_norm(weight))
        assert float(spectral_norm(weight)) <= 1.01 * truth(weight)


def test_zero_and_empty_matrices_have_norm_zero() -> None:
    assert spectral_norm(torch.zeros(3, 4)) == NormBound(0.0, "zero")
    assert float(spectral_norm(torch.zeros(0, 4))) == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_entries_that_are_not_finite_are_refused_by_name(bad: float) -> None:
    weight = torch.ones(4, 5)
    weight[1, 2] = bad
    with pytest.raises(ValueError, match=r"\(4, 5\) has 1 NaN or infinite"):
        spectral_norm(weight)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="use conv_norm"):
        spectral_norm(torch.ones(2, 2, 3, 3))
    with pytest.raises(ValueError, match="method must be one of"):
        spectral_norm(torch.ones(2, 2), method="power")
    with pytest.raises(TypeError, match="real floating-point"):
        spectral_norm(torch.ones(2, 2, dtype=torch.int64))
    with pytest.raises(TypeError, match="real floating-point"):
        spectral_norm(torch.ones(2, 2, dtype=torch.complex64))
    with pytest.raises(ValueError, match="exceeds the largest binary64"):
        spectral_norm(torch.full((4, 4), 1.7e308, dtype=torch.float64))


def test_the_weight_is_left_as_it_was() -> None:
    weight = torch.nn.Parameter(torch.randn(6, 5))
    before, version = weight.detach().clone(), weight._version
    spectral_norm(weight)
    assert torch.equal(weight, before)
    assert weight._version == version


# --- twins: the same claims must break when the proof is broken ---


def test_a_bound_shrunk_by_a_tenth_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = matrix_module.root
    monkeypatch.setattr(matrix_module, "root", lambda value: 0.9 * honest(value))
    for name in ("gaussian", "orthogonal", "power iteration trap", "rank one"):
        assert float(spectral_norm(ADVERSARIAL[name])) < truth(ADVERSARIAL[name])


def test_without_the_certificate_the_trap_would_catch_us(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = krylov_trap(160)
    monkeypatch.setattr(
        eigenvalue, "certify_below", lambda P, threshold: torch.ones(len(P), dtype=torch.bool)
    )
    assert float(spectral_norm(weight)) < 0.98 * truth(weight)


def test_without_rounding_slack_hadamard_would_be_below(monkeypatch: pytest.MonkeyPatch) -> None:
    """All slack off: rounding to nearest then falls below the irrational truth somewhere."""
    from noisewise.bounds.norms import rounding

    for module in (rounding, matrix_module, eigenvalue):
        monkeypatch.setattr(module, "up", lambda value: value)
        monkeypatch.setattr(module, "relative", lambda terms: 0.0)
    below = 0
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        v = torch.randint(-999, 1000, (7,), generator=generator)
        bound = spectral_norm(v.double()[None], method="frobenius").value
        below += Fraction(bound) ** 2 < int(v.square().sum())
    assert below > 0


# --- tall and wide matrices, whose Gram matrix is computed in single precision ---


def wide(name: str) -> torch.Tensor:
    if name == "constant":
        return torch.full((200, 801), 1 / 3)
    if name == "orthogonal":
        return orthogonal(1000)[:200].float()
    if name == "mixed scales":
        return (gaussian(200, 900) * torch.logspace(0, -30, 900, dtype=torch.float64)).float()
    if name == "tiny":
        return (gaussian(250, 1000) * 1e-38).float()
    if name == "huge":
        return (gaussian(1100, 256) * 1e36).float()
    return gaussian(256, 3072).float()


WIDE = ["constant", "orthogonal", "mixed scales", "tiny", "huge", "gaussian"]


@pytest.mark.parametrize("method", ["auto", "cholesky"])
@pytest.mark.parametrize("name", WIDE)
def test_single_precision_gram_matrices_pay_for_their_rounding(name: str, method: str) -> None:
    weight = wide(name)
    assert matrix_module._single_suffices(weight, 0.01)
    for narrow in (weight, weight.bfloat16()):
        bound = float(spectral_norm(narrow, method=method))
        assert truth(narrow.double()) <= bound <= 1.01 * truth(narrow.double())


def test_orthogonal_rows_are_recognised_whatever_the_precision() -> None:
    assert spectral_norm(wide("orthogonal")).method == "orthogonal"
    assert float(spectral_norm(wide("orthogonal"))) <= 1 + 1e-4


def test_without_their_error_term_single_precision_would_be_below(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(eigenvalue, "_INNER_ERROR", 0.0)
    below = 0
    for third in range(3, 40):
        weight = torch.full((200, 801), 1.0 / third)
        below += float(spectral_norm(weight)) < float(weight[0, 0]) * math.sqrt(200 * 801)
    assert below > 0


def test_a_tighter_tolerance_is_met_in_double_precision() -> None:
    weight = wide("gaussian")
    assert not matrix_module._single_suffices(weight, 1e-3)
    assert float(spectral_norm(weight, tolerance=1e-3)) <= (1 + 1e-3) * truth(weight.double())


def test_reduced_float32_kernels_do_not_reach_a_certificate() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        bound = float(spectral_norm(wide("gaussian")))
    finally:
        torch.set_float32_matmul_precision(before)
    assert bound == float(spectral_norm(wide("gaussian")))


# --- the certificate itself ---


@settings(max_examples=40, deadline=None)
@given(size=st.integers(2, 30), seed=st.integers(0, 10**6), gap=st.sampled_from([1e-3, 1e-9]))
def test_cholesky_refuses_every_threshold_below_the_eigenvalue(
    size: int, seed: int, gap: float
) -> None:
    P, _, _ = gram(gaussian(size + 3, size, seed)[None])
    top = float(torch.linalg.eigvalsh(P)[0, -1])
    assert not bool(certify_below(P, top * (1 - gap)))
    assert bool(certify_below(P, top * (1 + 1e-9)))


def test_a_batch_is_bounded_by_its_largest_member_wherever_it_hides() -> None:
    A = torch.complex(gaussian(40 * 20, 20), gaussian(40 * 20, 20, 1)).reshape(40, 20, 20)
    A[17] *= 3.0
    P, error, _ = gram(A)
    bound, _ = largest_eigenvalue(P, tolerance=0.01, error=error)
    top = float(torch.linalg.eigvalsh(P).max())
    assert top <= bound <= 1.0101 * top


def test_a_loud_member_that_every_estimate_missed_is_still_found() -> None:
    """Nine matrices of norm 1.05 hide one of norm 1.2 that looks like norm one to the guess."""
    size = 40
    quiet = 1.05 * torch.eye(size, dtype=torch.float64).expand(9, -1, -1)
    A = torch.cat([quiet, power_iteration_trap(size)[None]])
    P, error, _ = gram(A)
    bound, _ = largest_eigenvalue(P, tolerance=0.01, error=error)
    assert 1.44 * (1 - 1e-12) <= bound <= 1.46
    alone, _ = largest_eigenvalue(P[:9], tolerance=0.01, error=error)
    assert 1.1025 * (1 - 1e-12) <= alone <= 1.12


def test_single_precision_factors_pay_for_their_rounding() -> None:
    """Batches of 24 to 128 rows are factorised in single precision: never below the truth."""
    for size in (24, 64, 128):
        A = gaussian(3 * size, size, size).reshape(3, size, size)
        A[0] = orthogonal(size) * float(torch.linalg.matrix_norm(A, 2).max())  # flat spectrum
        P, error, _ = gram(A)
        top = float(torch.linalg.eigvalsh(P).max())
        for tolerance in (1e-12, 1e-3):
            bound, _ = largest_eigenvalue(P, tolerance=tolerance, error=error)
            assert top * (1 - 1e-13) <= bound <= top * (1.02 + tolerance)
