"""How often a pixel is read, and norms of pooling operators, against brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings, strategies as st
from torch import nn
from torch.nn import functional

from noisewise.bounds import Call, Signal, registered
from noisewise.bounds.norms import conv_reuse
from noisewise.bounds.rules.windows import adaptive_windows, copies_of_entries, padding_sources

small = st.integers(1, 4)


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    torch.manual_seed(0)


def called(layer: nn.Module, shape: tuple[int, ...]) -> Call[nn.Module]:
    output = layer.double()(torch.zeros(1, *shape, dtype=torch.float64))
    return Call(layer, "layer", (Signal(shape, 1.0),), tuple(output.shape[1:]))


@settings(max_examples=120, deadline=None)
@given(
    size=st.integers(1, 12), kernel=small, stride=small, dilation=st.integers(1, 3),
    padding=st.integers(0, 4), mode=st.sampled_from(["zeros", "reflect", "replicate", "circular"]),
)  # fmt: skip
def test_reads_are_counted_exactly(
    size: int, kernel: int, stride: int, dilation: int, padding: int, mode: str
) -> None:
    assume(size + 2 * padding >= dilation * (kernel - 1) + 1)
    assume(mode == "zeros" or padding < size)
    layer = nn.Conv1d(1, 1, kernel, stride, padding, dilation, bias=False, padding_mode=mode)
    call = called(layer, (1, size))
    # The kernel of ones sums what each window reads, so its adjoint counts the reads.
    with torch.no_grad():
        layer.weight.fill_(1.0)
    x = torch.zeros(1, 1, size, dtype=torch.float64, requires_grad=True)
    (counted,) = torch.autograd.grad(layer(x).sum(), x)
    rule = registered()[nn.Conv1d]
    assert rule.reads(call) == int(counted.max())
    if mode == "zeros":
        assert rule.reads(call) <= conv_reuse(
            (kernel,), (stride,), (dilation,), call.output_shape[1:]
        )


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(2, 8), kernel=st.integers(1, 4), stride=st.integers(1, 4),
    ceil=st.booleans(), include=st.booleans(), data=st.data(),
)  # fmt: skip
def test_the_norm_of_an_average_pool_is_exact(
    size: int, kernel: int, stride: int, ceil: bool, include: bool, data: st.DataObject
) -> None:
    padding = data.draw(st.integers(0, kernel // 2))
    assume(size + 2 * padding >= kernel)
    layer = nn.AvgPool2d(kernel, stride, padding, ceil_mode=ceil, count_include_pad=include)
    call = called(layer, (1, size, size))
    x = torch.eye(size * size, dtype=torch.float64).reshape(-1, 1, size, size)
    dense = layer(x).flatten(1)
    exact = float(torch.linalg.matrix_norm(dense, 2))
    bound = registered()[nn.AvgPool2d].lipschitz(call)
    assert exact <= bound <= exact * (1 + 1e-3)


@given(size=st.integers(1, 20), outputs=st.integers(1, 20))
def test_adaptive_windows_are_torch_s(size: int, outputs: int) -> None:
    windows = adaptive_windows(size, outputs)
    x = torch.randn(1, 1, size, dtype=torch.float64)
    pooled = functional.adaptive_avg_pool1d(x, outputs).flatten()
    ours = [float(x[0, 0, window[window >= 0]].mean()) for window in windows]
    assert np.allclose(pooled.numpy(), ours)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_copies_of_padding_are_counted(mode: str) -> None:
    sources = padding_sources(4, 2, 3, mode)
    expected = functional.pad(torch.arange(4.0).reshape(1, 1, 4), (2, 3), mode=mode).flatten()
    assert sources.tolist() == expected.long().tolist()
    assert copies_of_entries(sources, 4) == int(torch.bincount(expected.long()).max())


@pytest.mark.parametrize(
    ("kernel", "stride", "expected"),
    [(3, 1, 3.0), (3, 2, 2.0), (2, 2, 1.0), (4, 2, 2.0), (5, 2, 3.0)],
)
def test_max_pooling_follows_the_table_where_nothing_is_cut_off(
    kernel: int, stride: int, expected: float
) -> None:
    call = called(nn.MaxPool2d(kernel, stride), (1, 16, 16))
    assert registered()[nn.MaxPool2d].lipschitz(call) == expected == math.ceil(kernel / stride)


def test_global_average_follows_the_table() -> None:
    call = called(nn.AdaptiveAvgPool2d(1), (3, 7, 7))
    assert registered()[nn.AdaptiveAvgPool2d].lipschitz(call) == pytest.approx(1 / 7)
