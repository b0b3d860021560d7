"""The cache: never below the truth, and seldom at work."""

from __future__ import annotations

import copy
import gc
import math
import pickle

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from noisewise.bounds import cache as cache_module
from noisewise.bounds.cache import NormCache
from noisewise.nn import SpectralLinear


def matrix_truth(weight: Tensor) -> float:
    return float(torch.linalg.matrix_norm(weight.detach().double(), 2))


def plane_truth(weight: Tensor, points: int = 16) -> float:
    """Largest symbol on a grid: a lower bound of the norm on the infinite plane."""
    symbols = torch.fft.fft2(weight.detach().double(), s=(points, points)).permute(2, 3, 0, 1)
    return float(torch.linalg.svdvals(symbols)[..., 0].max())


def walk(weight: Tensor, generator: torch.Generator, step: int) -> None:
    """Moves of every kind: small noise, drift, jumps, growth, single entries, sign flips."""
    with torch.no_grad():
        noise = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
        kind = int(torch.randint(0, 12, (1,), generator=generator))
        if kind < 6:
            weight.add_(noise, alpha=1e-4)
        elif kind == 6:
            weight.add_(torch.ones_like(weight), alpha=1e-3)
        elif kind == 7:
            weight.mul_(1.003)
        elif kind == 8:
            weight.flatten()[step % weight.numel()] += 0.05
        elif kind == 9:
            weight.neg_()
        elif kind == 10:
            weight.data.add_(noise, alpha=1e-2)  # not counted by _version
        else:
            weight.mul_(0.99)


def test_the_cached_bound_never_falls_below_the_truth_in_500_updates() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(24, 16, generator=generator)
    cache = NormCache(tolerance=0.05)
    for step in range(500):
        walk(weight, generator, step)
        bound = float(cache.spectral_norm(weight))
        assert matrix_truth(weight) <= bound <= 1.07 * matrix_truth(weight)
    assert cache.drifted > 150
    assert cache.computed > 20


def test_the_cached_bound_of_a_convolution_never_falls_below_the_truth() -> None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(8, 6, 3, 3, generator=generator)
    cache = NormCache(tolerance=0.05)
    for step in range(500):
        walk(weight, generator, step)
        bound = float(cache.conv_norm(weight, padding=1))
        # The anchor was at most 1.10 above its truth, which was at most 1/0.95 above the present.
        assert plane_truth(weight) <= bound <= 1.10 * 1.05 / 0.95 * plane_truth(weight, 24)
    assert cache.drifted > 100


@pytest.mark.parametrize("channels", [1, 8])
@pytest.mark.parametrize("growth", [0.004, 0.03, 0.07, 0.2])
def test_drift_is_paid_in_full_where_the_certificate_has_no_slack(
    channels: int, growth: float
) -> None:
    """Equal entries: the norm is 9 * channels * entry, certified exactly, and so is its growth."""
    weight = torch.ones(channels, channels, 3, 3, dtype=torch.float64)
    cache = NormCache(tolerance=0.05)
    for step in range(10):
        exact = 9.0 * channels * float(weight[0, 0, 0, 0])
        bound = float(cache.conv_norm(weight, padding=1))
        assert exact * (1 - 1e-12) <= bound <= 1.05 * exact * (1 + 1e-9), step
        weight += growth


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), dtype=st.sampled_from([torch.float32, torch.bfloat16]))
def test_rescaling_carries_the_certificate_along(seed: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(12, 9, generator=generator).to(dtype)
    kernel = torch.randn(3, 2, 3, 3, generator=generator).to(dtype)
    cache = NormCache(tolerance=0.05)
    for step in range(40):
        cache.rescale_(weight, 0.7 + 0.02 * step)
        cache.rescale_(kernel, 0.7 + 0.02 * step)
        assert matrix_truth(weight) <= float(cache.spectral_norm(weight))
        assert plane_truth(kernel) <= float(cache.conv_norm(kernel))
        walk(weight, generator, step)


def test_rescaling_needs_no_new_computation() -> None:
    weight = torch.randn(50, 40)
    cache = NormCache(tolerance=0.01)
    before = float(cache.spectral_norm(weight))
    cache.rescale_(weight, 0.5)
    assert float(cache.spectral_norm(weight)) == pytest.approx(0.5 * before, rel=1e-5)
    assert cache.computed == 1


def test_an_unchanged_weight_costs_nothing_and_changes_nothing() -> None:
    weight = nn.Parameter(torch.randn(10, 10))
    cache = NormCache()
    first = cache.spectral_norm(weight)
    assert [cache.spectral_norm(weight) for _ in range(5)] == [first] * 5
    assert (cache.computed, cache.reused) == (1, 5)


@pytest.mark.parametrize("trust", [True, False])
def test_an_in_place_change_is_seen(trust: bool) -> None:
    weight = torch.eye(5)
    cache = NormCache(trust_versions=trust)
    cache.spectral_norm(weight)
    weight.mul_(3.0)
    assert float(cache.spectral_norm(weight)) >= 3.0


def test_a_write_behind_the_version_counter_is_seen_unless_versions_are_trusted() -> None:
    for trust, seen in ((False, True), (True, False)):
        weight = torch.eye(5)
        cache = NormCache(trust_versions=trust)
        cache.spectral_norm(weight)
        weight.numpy()[0, 0] = 9.0
        assert (float(cache.spectral_norm(weight)) >= 9.0) is seen


def test_replaced_storage_shape_and_type_are_seen() -> None:
    weight = nn.Parameter(torch.eye(5))
    cache = NormCache(trust_versions=True)
    cache.spectral_norm(weight)
    weight.data = 4.0 * torch.eye(5)
    assert float(cache.spectral_norm(weight)) >= 4.0
    weight.data = 5.0 * torch.eye(7)
    assert float(cache.spectral_norm(weight)) >= 5.0
    weight.data = 6.0 * torch.eye(7, dtype=torch.float64)
    assert float(cache.spectral_norm(weight)) >= 6.0


def test_options_are_part_of_the_question() -> None:
    weight = torch.randn(4, 4, 3, 3)
    cache = NormCache()
    plain = cache.conv_norm(weight, stride=[1, 1])
    strided = cache.conv_norm(weight, stride=[2, 2])
    assert plain.value > strided.value
    assert cache.conv_norm(weight, stride=[1, 1]) == plain


def test_entries_die_with_their_weights_and_ids_are_not_confused() -> None:
    cache = NormCache()
    for size in range(1, 30):
        weight = torch.full((3, 3), float(size))
        assert float(cache.spectral_norm(weight)) >= 3.0 * size * (1 - 1e-12)
        del weight
    gc.collect()
    assert len(cache) == 0


def test_a_copy_starts_empty_and_keeps_its_settings() -> None:
    cache = NormCache(tolerance=0.3, trust_versions=True)
    weight = torch.eye(3)
    cache.spectral_norm(weight)
    for twin in (copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))):
        assert (len(twin), twin.tolerance, twin.trust_versions) == (0, 0.3, True)


def test_a_weight_that_became_nan_is_refused_and_forgotten() -> None:
    weight = torch.eye(3)
    cache = NormCache()
    cache.spectral_norm(weight)
    weight[0, 0] = math.nan
    for _ in range(2):
        with pytest.raises(ValueError, match="NaN"):
            cache.spectral_norm(weight)
    weight[0, 0] = 1.0
    assert float(cache.spectral_norm(weight)) >= 1.0


def test_zero_tolerance_recomputes_at_every_change() -> None:
    weight = torch.eye(4)
    cache = NormCache(tolerance=0.0)
    for _ in range(3):
        weight.add_(1e-6)
        cache.spectral_norm(weight)
    assert (cache.computed, cache.drifted) == (3, 0)


def test_ignoring_the_distance_moved_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twin: a drift bound of almost nothing must fall below the truth in the same walk."""
    monkeypatch.setattr(
        cache_module, "_matrix_drift", lambda weight, entry, options, limit: 1e-9 * limit
    )
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(24, 16, generator=generator)
    cache = NormCache(tolerance=0.05)
    below = 0
    for step in range(200):
        walk(weight, generator, step)
        below += matrix_truth(weight) > float(cache.spectral_norm(weight))
    assert below > 0


def test_versions_are_trusted_only_while_nobody_else_touches_the_weights() -> None:
    cache, weight = NormCache(tolerance=0.0), torch.randn(6, 4)
    first = cache.spectral_norm(weight)
    with cache.undisturbed():
        assert cache.spectral_norm(weight) is first
        cache.rescale_(weight, 0.5)
        assert matrix_truth(weight) <= float(cache.spectral_norm(weight)) <= 0.501 * float(first)
    weight.data.mul_(8.0)  # which no version counts
    assert float(cache.spectral_norm(weight)) >= matrix_truth(weight)


def test_a_projection_sees_what_was_written_behind_torchs_back() -> None:
    layer = SpectralLinear(8, 6, projection="clip")
    layer.weight.data.mul_(8.0)
    layer.project_()
    assert matrix_truth(layer.weight) <= 1.0
