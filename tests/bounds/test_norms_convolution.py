"""Certified norms of convolutions against the dense matrix of the torch operator itself."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings, strategies as st
from torch import Tensor, nn

from noisewise.bounds.norms import conv_norm, conv_reuse, convolution as convolution_module
from noisewise.bounds.norms.convolution import kernel_factor
from noisewise.bounds.norms.geometry import depth_to_space, space_to_depth
from noisewise.errors import UnsupportedModelError

SVD_ERROR = 1e-11
CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


def dense(layer: nn.Module, channels: int, size: list[int]) -> Tensor:
    """Matrix of a bias-free layer, column by column: apply it to every basis vector."""
    basis = torch.eye(channels * math.prod(size), dtype=torch.float64)
    with torch.no_grad():
        return layer.double()(basis.reshape(-1, channels, *size)).flatten(1).T


def norm(matrix: Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix, 2))


def operator_norm(weight: Tensor, size: list[int], **options: Any) -> float:
    """Dense norm of a torch convolution with this kernel."""
    transposed = options.pop("transposed", False)
    groups = options.get("groups", 1)
    kind = (TRANSPOSED if transposed else CONV)[weight.dim() - 2]
    first, second = weight.shape[0], weight.shape[1] * groups
    inputs, outputs = (first, second) if transposed else (second, first)
    layer = kind(inputs, outputs, tuple(weight.shape[2:]), bias=False, **options)
    layer.weight.data = weight.double()
    return norm(dense(layer, inputs, size))


def random_kernel(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@st.composite
def cases(draw: st.DrawFn, transposed: bool = False) -> tuple[Tensor, list[int], dict[str, Any]]:
    count = draw(st.integers(1, 3))
    most = {1: 7, 2: 4, 3: 3}[count]
    each = lambda low, high: tuple(draw(st.integers(low, high)) for _ in range(count))  # noqa: E731
    kernel, stride, dilation = each(1, most), each(1, 4), each(1, 3)
    groups = draw(st.integers(1, 2))
    mode = "zeros" if transposed else draw(st.sampled_from(["zeros"] * 3 + MODES))
    size = list(each(1, {1: 12, 2: 7, 3: 4}[count]))
    padding = list(each(0, 3))
    for i in range(count):
        reach = dilation[i] * (kernel[i] - 1) + 1
        if transposed:
            out = (size[i] - 1) * stride[i] + reach - 2 * padding[i]
            if out < 1:
                padding[i] = 0
        else:
            padding[i] = min(padding[i], size[i] - 1) if mode != "zeros" else padding[i]
            size[i] = max(size[i], reach - 2 * padding[i])
    shape = (groups * draw(st.integers(1, 3)), draw(st.integers(1, 3)), *kernel)
    kind = draw(st.sampled_from(["gaussian", "box", "checkerboard", "spike"]))
    weight = random_kernel(draw(st.integers(0, 10**6)), *shape)
    if kind == "box":
        weight = torch.ones_like(weight)
    elif kind == "checkerboard":
        signs = sum(torch.meshgrid(*(torch.arange(k) for k in kernel), indexing="ij"))
        weight = weight.abs() * (1.0 - 2.0 * (signs % 2)).double()
    elif kind == "spike":
        weight = torch.zeros_like(weight)
        weight[(0, 0, *(k - 1 for k in kernel))] = 2.5
    options = {"stride": stride, "padding": tuple(padding), "dilation": dilation, "groups": groups}
    if transposed:
        options["transposed"] = True
    else:
        options["padding_mode"] = mode
    return weight, size, options


MODES = ["circular", "reflect", "replicate"]


def assert_bounded(weight: Tensor, size: list[int], options: dict[str, Any]) -> None:
    exact = operator_norm(weight, size, **options)
    for method in ("auto", "grid", "reshape", "flat", "sums", "dense"):
        for known in (None, size) if method != "dense" else (size,):
            bound = float(conv_norm(weight, **options, input_size=known, method=method))
            assert bound >= exact * (1 - SVD_ERROR), (method, known, bound, exact)


@settings(max_examples=150, deadline=None)
@given(cases())
def test_no_convolution_exceeds_its_bound(case: tuple[Tensor, list[int], dict[str, Any]]) -> None:
    assert_bounded(*case)


@settings(max_examples=60, deadline=None)
@given(cases(transposed=True))
def test_no_transposed_convolution_exceeds_its_bound(
    case: tuple[Tensor, list[int], dict[str, Any]],
) -> None:
    assert_bounded(*case)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("size", [4, 5, 6])
def test_padding_that_copies_pixels_is_paid_for(mode: str, stride: int, size: int) -> None:
    """A kernel that reads the copies most: a replicated corner, a wrapped or mirrored image."""
    for weight in (torch.ones(1, 1, 7), torch.ones(1, 1, 3), random_kernel(size, 2, 2, 7)):
        options = {"stride": stride, "padding": 3, "padding_mode": mode}
        assert_bounded(weight, [size], options)


def test_zero_padding_rule_would_be_too_small_for_replicate_padding() -> None:
    """Why the padding factor is there: dropping it breaks the bound."""
    weight = torch.zeros(1, 1, 7)
    weight[..., :4] = 1.0
    exact = operator_norm(weight, [4], padding=3, padding_mode="replicate")
    assert exact > float(conv_norm(weight, padding=3))


def test_the_circular_grid_of_the_image_size_is_no_bound_for_zero_padding() -> None:
    weight = torch.tensor([[[-1.0, 2.0, -1.0]]])
    exact = operator_norm(weight, [3], padding=1)
    circular = operator_norm(weight, [3], padding=1, padding_mode="circular")
    assert exact > 1.05 * circular
    assert float(conv_norm(weight, padding=1, input_size=3)) >= exact


@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_the_embedding_is_large_enough_for_kernels_that_peak_between_its_points(
    stride: int, dilation: int
) -> None:
    """Binomial kernels moved to the frequencies 0, pi/2, 2 pi/3 and pi, on images of any size."""
    for size in range(1, 14):
        for kernel in ([1.0, 2.0, 1.0], [-1.0, 2.0, -1.0], [1.0, 0.0, -1.0], [1.0, -1.0, -0.5]):
            weight = torch.tensor([[kernel]], dtype=torch.float64)
            options = {"stride": stride, "dilation": dilation, "padding": dilation}
            exact = operator_norm(weight, [size], **options)
            bound = conv_norm(weight, **options, input_size=size, method="grid")
            assert float(bound) >= exact * (1 - SVD_ERROR)


def test_unknown_padding_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="symmetric"):
        conv_norm(torch.ones(1, 1, 3), padding_mode="symmetric")
    with pytest.raises(UnsupportedModelError, match="zero padding only"):
        conv_norm(torch.ones(1, 1, 3), padding_mode="circular", transposed=True)


# --- tightness ---


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("channels", [(1, 1), (3, 16), (16, 8), (24, 24)])
def test_three_by_three_kernels_are_over_estimated_by_at_most_a_tenth(
    channels: tuple[int, int], stride: int
) -> None:
    """The reference is the norm on the infinite plane: a fine grid, itself a lower bound."""
    for seed in range(3):
        weight = random_kernel(seed, *channels, 3, 3)
        deep = space_to_depth(weight, [stride, stride])
        symbols = torch.fft.fft2(deep, s=(48, 48)).permute(2, 3, 0, 1)
        plane = float(torch.linalg.svdvals(symbols)[..., 0].max())
        bound = float(conv_norm(weight, stride=stride, padding=1))
        assert plane * (1 - SVD_ERROR) <= bound <= 1.10 * plane


@pytest.mark.parametrize("tolerance", [0.3, 0.09, 0.02])
@pytest.mark.parametrize("shape", [(4, 4, 9), (4, 4, 5, 2), (2, 3, 3, 3, 3)])
def test_the_grid_is_as_fine_as_the_tolerance_asks(
    shape: tuple[int, ...], tolerance: float
) -> None:
    weight = random_kernel(1, *shape)
    count = len(shape) - 2
    fine = 64 if count < 3 else 24
    symbols = torch.fft.fftn(weight, s=(fine,) * count, dim=tuple(range(2, 2 + count)))
    plane = float(torch.linalg.svdvals(symbols.flatten(2).permute(2, 0, 1))[:, 0].max())
    bound = float(conv_norm(weight, tolerance=tolerance, method="grid"))
    assert plane * (1 - SVD_ERROR) <= bound <= (1 + tolerance) * plane * 1.002


def test_a_known_image_size_tightens_the_bound() -> None:
    weight = random_kernel(2, 12, 12, 5, 5)
    anywhere = conv_norm(weight, padding=2)
    known = conv_norm(weight, padding=2, input_size=(6, 6))
    assert (anywhere.method, known.method) == ("grid", "embedding")
    exact = operator_norm(weight, [6, 6], padding=2)
    assert exact <= float(known) < float(anywhere)


@given(cases())
@settings(max_examples=40, deadline=None)
def test_tiny_images_are_bounded_to_half_a_percent_whatever_the_padding(
    case: tuple[Tensor, list[int], dict[str, Any]],
) -> None:
    weight, size, options = case
    exact = operator_norm(weight, size, **options)
    bound = conv_norm(weight, **options, input_size=size, method="dense")
    assert exact * (1 - SVD_ERROR) <= float(bound) <= 1.0051 * exact + 1e-12


def test_equal_taps_are_bounded_without_the_correction_of_the_grid() -> None:
    """The same matrix at every tap: its norm times nine, on a ring."""
    matrix = random_kernel(9, 8, 8)
    weight = matrix[..., None, None].expand(8, 8, 3, 3)
    exact = 9.0 * norm(matrix)
    bound = conv_norm(weight, padding=1, padding_mode="circular")
    assert bound.method == "flat"
    assert exact * (1 - SVD_ERROR) <= float(bound) <= 1.01 * exact


def test_kernels_too_large_for_a_grid_fall_back_to_reshaping() -> None:
    weight = random_kernel(10, 1, 1, 65, 65)
    bound = conv_norm(weight)
    assert bound.method in ("reshape", "flat")
    symbols = torch.fft.fft2(weight[0, 0], s=(256, 256))
    assert float(bound) >= float(symbols.abs().max()) * (1 - SVD_ERROR)


def test_dilation_does_not_change_the_bound_and_stride_only_by_the_reduced_step() -> None:
    weight = random_kernel(3, 3, 2, 4, 3)
    plain = float(conv_norm(weight))
    assert float(conv_norm(weight, dilation=(2, 5))) == plain
    assert float(conv_norm(weight, stride=(2, 3), dilation=(2, 3))) == plain
    assert float(conv_norm(weight, stride=2, dilation=3)) == float(conv_norm(weight, stride=2))
    assert float(conv_norm(weight, stride=2)) < plain


@given(cases())
@settings(max_examples=60, deadline=None)
def test_a_kernel_is_bounded_by_the_factor_times_its_length(
    case: tuple[Tensor, list[int], dict[str, Any]],
) -> None:
    weight, size, options = case
    exact = operator_norm(weight, size, **options)
    options.pop("groups")
    factor = kernel_factor(weight.shape, **options)
    assert exact <= factor * float(weight.norm()) * (1 + SVD_ERROR)


# --- exact values and edges ---


@pytest.mark.parametrize("method", ["auto", "grid", "sums", "reshape"])
def test_integer_box_kernels_are_bounded_to_the_last_bit(method: str) -> None:
    """A constant image on a ring is stretched by exactly the sum of the kernel."""
    generator = torch.Generator().manual_seed(5)
    for _ in range(20):
        weight = torch.randint(1, 9999, (1, 1, 3, 3), generator=generator)
        options = {"padding": 1, "padding_mode": "circular", "method": method}
        bound = conv_norm(weight.double(), **options).value
        assert Fraction(bound) >= int(weight.sum())


def test_scale_zero_and_bad_entries() -> None:
    weight = random_kernel(4, 3, 3, 3, 3)
    plain = float(conv_norm(weight))
    for size in (2.0**-1000, 2.0**900):
        assert float(conv_norm(weight * size)) == pytest.approx(plain * size, rel=1e-12)
    assert float(conv_norm(torch.zeros(2, 2, 3, 3))) == 0.0
    weight[0, 0, 0, 0] = math.nan
    with pytest.raises(ValueError, match="NaN or infinite"):
        conv_norm(weight)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="use spectral_norm"):
        conv_norm(torch.ones(3, 3))
    with pytest.raises(ValueError, match="groups=2"):
        conv_norm(torch.ones(3, 1, 3), groups=2)
    with pytest.raises(ValueError, match="stride must have 2 entries"):
        conv_norm(torch.ones(3, 1, 3, 3), stride=(1, 1, 1))
    with pytest.raises(ValueError, match="needs input_size"):
        conv_norm(torch.ones(1, 1, 5), method="dense")
    with pytest.raises(ValueError, match="smaller than the kernel"):
        conv_norm(torch.ones(1, 1, 5), input_size=3)
    with pytest.raises(ValueError, match="'same' or 'valid'"):
        conv_norm(torch.ones(1, 1, 5), padding="full")


@pytest.mark.parametrize("padding", ["same", "valid"])
def test_named_padding(padding: str) -> None:
    assert_bounded(
        random_kernel(6, 2, 2, 4),
        [6],
        {"padding": padding, "dilation": 2} if padding == "same" else {"padding": padding},
    )


def test_half_precision_and_views_are_accepted() -> None:
    weight = random_kernel(7, 3, 4, 3, 3).to(torch.bfloat16)
    view = weight.permute(1, 0, 3, 2)
    assert float(conv_norm(view)) == float(conv_norm(view.contiguous()))
    assert float(conv_norm(view)) == float(conv_norm(view.double()))


def test_a_bound_shrunk_by_a_tenth_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = convolution_module.root
    monkeypatch.setattr(convolution_module, "root", lambda value: 0.9 * honest(value))
    with pytest.raises(AssertionError):
        assert_bounded(random_kernel(8, 2, 2, 3), [24], {"padding": 1})
    with pytest.raises(AssertionError):
        assert_bounded(torch.ones(1, 1, 3, 3), [10, 10], {"padding": 1, "padding_mode": "circular"})


def test_without_the_riesz_correction_a_peak_between_grid_points_is_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(convolution_module, "_riesz", lambda taps, points: 1.0)
    missed = 0
    for seed in range(20):
        weight = random_kernel(seed, 1, 1, 5)
        missed += float(conv_norm(weight, method="grid", tolerance=0.5)) < operator_norm(
            weight, [200], padding=2
        )
    assert missed > 0


# --- geometry ---


@settings(max_examples=60, deadline=None)
@given(data=st.data(), count=st.integers(1, 3))
def test_space_to_depth_can_be_undone(data: st.DataObject, count: int) -> None:
    kernel = [data.draw(st.integers(1, 5)) for _ in range(count)]
    steps = [data.draw(st.integers(1, 4)) for _ in range(count)]
    weight = random_kernel(0, 2, 3, *kernel)
    deep = space_to_depth(weight, steps)
    assert torch.equal(depth_to_space(deep, steps, kernel), weight)
    assert float(deep.square().sum()) == pytest.approx(float(weight.square().sum()))


@settings(max_examples=100, deadline=None)
@given(
    kernel=st.integers(1, 7),
    stride=st.integers(1, 6),
    dilation=st.integers(1, 6),
    size=st.integers(1, 40),
)
def test_reuse_counts_the_outputs_that_read_one_input(
    kernel: int, stride: int, dilation: int, size: int
) -> None:
    """Count by brute force; the formula is met once the image is long enough."""
    outputs = (size - dilation * (kernel - 1) - 1) // stride + 1
    assume(outputs >= 1)
    reads = torch.zeros(size, dtype=torch.int64)
    for t in range(outputs):
        for j in range(kernel):
            reads[t * stride + j * dilation] += 1
    most = int(reads.max())
    assert most <= conv_reuse(kernel, stride, dilation, outputs)
    if outputs > kernel * dilation:
        assert most == conv_reuse(kernel, stride, dilation)


def test_reuse_takes_sequences_and_numbers() -> None:
    assert conv_reuse((3, 3)) == 9
    assert conv_reuse(3, (1, 1), (1, 1), (32, 32)) == 9
    assert conv_reuse((7, 7), 2) == 16
    assert conv_reuse((5, 5), 1, 1, (2, 9)) == 10
