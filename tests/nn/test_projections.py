"""Projections: feasible as stored, nearest where they claim to be, and honest about it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from noisewise.bounds.norms import NormBound, conv_norm, induced_norm, spectral_norm
from noisewise.nn import projections
from noisewise.nn.conv import SpectralConv2d
from noisewise.nn.linear import FrobeniusLinear, SpectralLinear
from noisewise.nn.projections import (
    bjorck_,
    clip_absolute_sums,
    clip_singular_values,
    clip_weights,
    fix_weights,
    project,
)

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
FUNCTIONS: dict[str, Callable[[Tensor, float], NormBound]] = {
    "clip": clip_weights,
    "fix": fix_weights,
    "singular-values": clip_singular_values,
    "bjorck": bjorck_,
    "rows": clip_absolute_sums,
    "columns": partial(clip_absolute_sums, p=1),
    "clip p=1": lambda weight, limit: clip_weights(weight, limit, partial(induced_norm, p=1)),
}


def gaussian(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def singular_values(weight: Tensor) -> Tensor:
    return torch.linalg.svdvals(weight.double())


@settings(max_examples=120, deadline=None)
@given(
    name=st.sampled_from(list(FUNCTIONS)),
    rows=st.integers(1, 12),
    columns=st.integers(1, 12),
    seed=st.integers(0, 10**6),
    limit=st.sampled_from([0.01, 0.3, 1.0, 7.0]),
    size=st.sampled_from([1e-4, 1.0, 3e3]),
    dtype=st.sampled_from(DTYPES),
)
def test_the_stored_weight_is_certified_to_be_within_the_limit(
    name: str, rows: int, columns: int, seed: int, limit: float, size: float, dtype: torch.dtype
) -> None:
    weight = (gaussian(seed, rows, columns) * size).to(dtype)
    bound = FUNCTIONS[name](weight, limit)
    assert bound.value <= limit
    if name in ("rows", "columns", "clip p=1"):
        p = math.inf if name == "rows" else 1
        assert induced_norm(weight, p).value <= limit
    else:
        assert float(singular_values(weight)[0]) <= bound.value * (1 + 1e-13)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("size", [1e-40, 1e-30, 1e30, 3e38])
def test_extreme_weights_are_projected_too(name: str, size: float) -> None:
    weight = torch.full((4, 6), size, dtype=torch.float32)
    weight[0, 0] = -size
    assert FUNCTIONS[name](weight, 1.0).value <= 1.0
    assert bool(torch.isfinite(weight).all())
    if name == "fix" or size > 1.0:
        assert float(singular_values(weight)[0]) > 0.15


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_weight_with_nan_is_refused_and_left_alone(name: str) -> None:
    weight = torch.ones(3, 3)
    weight[1, 1] = math.nan
    before = weight.clone()
    with pytest.raises(ValueError, match="NaN or infinite"):
        FUNCTIONS[name](weight, 1.0)
    assert torch.equal(
        weight,
        before,
    ) or bool(torch.isnan(weight[1, 1]))
    assert torch.equal(weight.nan_to_num(5.0), before.nan_to_num(5.0))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_zero_stays_zero_and_bad_limits_are_refused(name: str) -> None:
    weight = torch.zeros(3, 4)
    assert FUNCTIONS[name](weight, 1.0).value == 0.0
    assert not bool(weight.any())
    for limit in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="limit must be"):
            FUNCTIONS[name](weight, limit)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_projection_counts_as_an_in_place_change(name: str) -> None:
    weight = nn.Parameter(5.0 * torch.randn(4, 4))
    version = weight._version
    FUNCTIONS[name](weight, 0.5)
    assert weight._version > version
    assert weight.requires_grad


@pytest.mark.parametrize("name", ["clip", "singular-values", "rows", "columns"])
def test_a_feasible_weight_is_not_touched(name: str) -> None:
    weight = gaussian(0, 5, 5)
    before = weight.clone()
    FUNCTIONS[name](weight, 100.0)
    assert torch.equal(weight, before)


def test_the_loop_that_shrinks_ends_even_for_a_norm_that_never_yields() -> None:
    """Whatever the certificate says, zeros come after finitely many turns."""
    turns = []

    def stubborn(weight: Tensor) -> NormBound:
        turns.append(1)
        return NormBound(2.0 if bool(weight.any()) else 0.0, "stubborn")

    weight = torch.ones(2, 2)
    assert clip_weights(weight, 1.0, stubborn).value == 0.0
    assert len(turns) < 60


# --- radial ---


def test_clip_keeps_the_direction_and_fix_reaches_the_limit() -> None:
    for seed in range(5):
        weight = gaussian(seed, 6, 4).float()
        before = weight.clone()
        clip_weights(weight, 0.5)
        cosine = float((weight * before).sum() / weight.norm() / before.norm())
        assert cosine == pytest.approx(1.0, abs=1e-6)
        assert float(singular_values(weight)[0]) == pytest.approx(0.5, rel=1e-5)
        fix_weights(weight, 3.0)
        assert float(singular_values(weight)[0]) == pytest.approx(3.0, rel=1e-5)


# --- true projections ---


def descend(change: Callable[[Tensor, float], NormBound]) -> Tensor:
    """Projected gradient descent on ||W - diag(2, 1/2)||^2 / 2 with spectral norm <= 1."""
    target = torch.diag(torch.tensor([2.0, 0.5], dtype=torch.float64))
    weight = torch.zeros(2, 2, dtype=torch.float64)
    for _ in range(300):
        weight -= 0.1 * (weight - target)
        change(weight, 1.0)
    return weight


def test_descent_with_singular_value_clipping_finds_the_optimum_and_radial_does_not() -> None:
    optimum = torch.diag(torch.tensor([1.0, 0.5], dtype=torch.float64))
    radial = torch.diag(torch.tensor([1.0, 0.25], dtype=torch.float64))
    assert torch.allclose(descend(clip_singular_values), optimum, atol=1e-3)
    assert torch.allclose(descend(clip_weights), radial, atol=1e-3)


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 9), columns=st.integers(1, 9), seed=st.integers(0, 10**6))
def test_cut_singular_values_are_nearest(rows: int, columns: int, seed: int) -> None:
    """Optimality: <W0 - W, Z - W> <= 0 for every feasible Z, here the worst one."""
    original = gaussian(seed, rows, columns)
    weight = original.clone()
    clip_singular_values(weight, 1.0)
    residual = original - weight
    # The worst feasible Z is the polar factor of the residual: <R, Z> = nuclear norm of R.
    gap = float(torch.linalg.matrix_norm(residual, "nuc") - (residual * weight).sum())
    assert gap <= 2e-3 * float(torch.linalg.matrix_norm(original, "nuc")) + 1e-9
    kept = singular_values(original)
    expected = kept.clamp_max(1.0)
    assert torch.allclose(singular_values(weight), expected, rtol=1.1e-3, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 6),
    columns=st.integers(1, 8),
    seed=st.integers(0, 10**6),
    p=st.sampled_from([1, math.inf]),
    limit=st.sampled_from([0.2, 1.0, 4.0]),
)
def test_clipped_sums_meet_the_optimality_conditions(
    rows: int, columns: int, seed: int, p: float, limit: float
) -> None:
    """A row r projected to x on the l1 ball: <r - x, x> = limit * max|r - x|, ||x||_1 <= limit."""
    original = gaussian(seed, rows, columns)
    weight = original.clone()
    clip_absolute_sums(weight, limit, p)
    pairs = (
        zip(original, weight, strict=True)
        if p == math.inf
        else zip(original.T, weight.T, strict=True)
    )
    for before, after in pairs:
        residual = before - after
        assert float(after.abs().sum()) <= limit
        assert float(residual @ after) == pytest.approx(
            limit * float(residual.abs().max()), abs=1e-9
        )


def test_clipped_sums_agree_with_brute_force_over_supports() -> None:
    """Nearest point of the l1 ball by trying every support: three entries, eight supports."""
    row = torch.tensor([0.9, -0.5, 0.3], dtype=torch.float64)
    best = (math.inf, row)
    for mask in range(1, 8):
        chosen = torch.tensor([bool(mask >> i & 1) for i in range(3)])
        threshold = (row[chosen].abs().sum() - 1.0) / chosen.sum()
        point = torch.where(chosen, row.sign() * (row.abs() - threshold), torch.zeros(3).double())
        if bool((point * row >= 0).all()):
            best = min(best, (float((point - row).norm()), point), key=lambda pair: pair[0])
    weight = row[None].clone()
    clip_absolute_sums(weight, 1.0)
    assert torch.allclose(weight[0], best[1], atol=1e-9)


# --- Bjorck ---


@pytest.mark.parametrize("shape", [(8, 8), (12, 5), (5, 12)])
@pytest.mark.parametrize("limit", [1.0, 2.5])
def test_bjorck_gives_orthonormal_rows_or_columns(shape: tuple[int, int], limit: float) -> None:
    weight = 40.0 * gaussian(1, *shape)  # far outside sqrt(3): it would diverge unscaled
    bjorck_(weight, limit)
    assert torch.allclose(singular_values(weight), torch.tensor(limit).double(), rtol=1.1e-3)


def test_bjorck_unscaled_diverges_beyond_the_square_root_of_three() -> None:
    growing = projections.orthogonalise(torch.eye(3).double() * 2.3, 6)
    assert float(growing.abs().max()) > 100.0


# --- the model ---


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        SpectralConv2d(3, 8, 3, padding=1, limit=2.0),
        nn.ReLU(),
        nn.Flatten(),
        SpectralLinear(8 * 16, 10),
        FrobeniusLinear(10, 4, limit=5.0),
    )


def test_the_report_names_the_layers_on_their_limit() -> None:
    net = model()
    with torch.no_grad():
        net[0].weight.mul_(100.0)
        net[3].weight.mul_(0.5)
    report = project(net)
    assert report.boundary == ("0",)
    assert [layer.name for layer in report] == ["0", "3", "4"]
    assert [layer.limit for layer in report] == [2.0, 1.0, 5.0]
    assert all(0.0 < layer.ratio <= 1.0 for layer in report)
    assert "on the boundary" in str(report).splitlines()[1]
    assert "on the boundary" not in str(report).splitlines()[2]
    bound = conv_norm(net[0].weight, padding=1)
    assert bound.value <= 2.0


def test_one_bad_layer_leaves_all_layers_as_they_were() -> None:
    net = model()
    with torch.no_grad():
        net[0].weight.mul_(100.0)
        net[3].bias[2] = math.inf
    before = net[0].weight.detach().clone()
    with pytest.raises(ValueError, match=r"'3\.bias' has NaN or infinite"):
        project(net)
    assert torch.equal(net[0].weight, before)


def test_a_model_without_constrained_layers_gives_an_empty_report() -> None:
    report = project(nn.Linear(2, 2))
    assert report.layers == ()
    assert report.boundary == ()


def test_the_projected_norm_agrees_with_an_independent_certificate() -> None:
    weight = gaussian(3, 30, 20).float()
    assert clip_weights(weight, 1.0).value == spectral_norm(weight).value


def test_skipping_the_final_certificate_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twin: without the last rescaling, rounding to half precision leaves the ball."""
    monkeypatch.setattr(
        projections, "clip_weights", lambda weight, limit, norm, rescale=None: norm(weight)
    )
    outside = 0
    for seed in range(10):
        weight = gaussian(seed, 20, 20).to(torch.bfloat16)
        clip_singular_values(weight, 1.0)
        outside += float(singular_values(weight)[0]) > 1.0
    assert outside > 5
