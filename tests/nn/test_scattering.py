"""Scattering against sums written out in space, and its bounds against dense Jacobians."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

import noisewise as nw
from noisewise.bounds import propagate, trace
from noisewise.bounds.rules.scattering import Band, bank_energy, line_spectrum
from noisewise.nn import BoundedInput, LipschitzGroupNorm, SpectralLinear
from noisewise.nn.plain import to_plain
from noisewise.nn.scattering import Scattering2d, _energy, _slope


# ---------------------------------------------------------------- the slow obvious reference
def gabor(height, width, deviation, angle, frequency, slant):
    """Periodic Gabor function, written out in space."""
    result = np.zeros((height, width), complex)
    for y in range(-2 * height, 3 * height):
        for x in range(-2 * width, 3 * width):
            along = y * math.cos(angle) + x * math.sin(angle)
            across = x * math.cos(angle) - y * math.sin(angle)
            bell = math.exp(-(along**2 + slant**2 * across**2) / (2 * deviation**2))
            wave = complex(math.cos(frequency * along), math.sin(frequency * along))
            result[y % height, x % width] += bell * wave
    return result * slant / (2 * math.pi * deviation**2)


def morlet(height, width, j, index, L):
    angle = (int(L - L / 2 - 1) - index) * math.pi / L
    settings = (0.8 * 2**j, angle)
    wave = gabor(height, width, *settings, 0.75 * math.pi / 2**j, 4 / L)
    envelope = gabor(height, width, *settings, 0.0, 4 / L)
    return wave - wave.sum() / envelope.sum() * envelope


def coarse(kernel, level):
    """The kernel on every 2^level-th point: only the frequencies that this grid has."""
    if level == 0:
        return kernel
    for axis in (0, 1):
        size = kernel.shape[axis]
        small = size // 2**level
        f = np.arange(-(small // 2), small - small // 2)
        analysis = np.exp(-2j * np.pi * np.outer(f, np.arange(size)) / size)
        synthesis = np.exp(2j * np.pi * np.outer(np.arange(small), f) / small) / small
        kernel = np.moveaxis(np.tensordot(synthesis @ analysis, kernel, (1, axis)), 0, axis)
    return kernel


def convolve(image, kernel, step):
    """Periodic convolution as a sum over shifted kernels; every step-th point."""
    result = np.zeros(image.shape, complex)
    for y in range(image.shape[0]):
        for x in range(image.shape[1]):
            result += image[y, x] * np.roll(kernel, (y, x), (0, 1))
    return result[::step, ::step]


def reference(image, J, L, order):
    padded = [((size + 2**J) // 2**J + 1) * 2**J for size in image.shape]
    pads = [((p - s) // 2, p - s - (p - s) // 2) for s, p in zip(image.shape, padded, strict=True)]
    start = np.pad(image, pads, mode="reflect")
    average = gabor(*padded, 0.8 * 2 ** (J - 1), 0.0, 0.0, 1.0)
    waves = {(j, i): morlet(*padded, j, i, L) for j in range(J) for i in range(L)}

    def out(values, level):
        smooth = convolve(values, coarse(average, level), 2 ** (J - level))
        assert abs(smooth.imag).max() < 1e-9
        return smooth.real[1:-1, 1:-1]

    def modulus(values, level, j, i):
        return abs(convolve(values, coarse(waves[j, i], level), 2 ** (j - level)))

    zero, first, second = [out(start, 0)], [], []
    for j in range(J if order else 0):
        for i in range(L):
            u = modulus(start, 0, j, i)
            first.append(out(u, j))
            for j2 in range(j + 1, J) if order == 2 else ():
                second += [out(modulus(u, j, j2, i2), j2) for i2 in range(L)]
    return np.stack(zero + first + second)


@pytest.mark.parametrize(
    ("shape", "J", "L", "order"),
    [
        ((7, 9), 2, 2, 2),
        ((9, 6), 2, 3, 2),
        ((5, 4), 1, 8, 2),
        ((8, 8), 2, 4, 1),
        ((6, 6), 2, 5, 0),
        ((9, 10), 3, 1, 2),
    ],
)
def test_it_equals_direct_convolution_in_space(shape, J, L, order):
    image = np.random.default_rng(J).normal(size=shape)
    layer = Scattering2d(shape, J, L, order, dtype=torch.float64)
    found = layer(torch.tensor(image)[None])[0].numpy()
    expected = reference(image, J, L, order)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_single_precision_differs_by_rounding_only():
    x = torch.rand(3, 1, 28, 28, dtype=torch.float64)
    exact = Scattering2d((28, 28), dtype=torch.float64)(x)
    assert float((Scattering2d((28, 28))(x.float()) - exact).abs().max()) < 2e-6 * float(
        exact.abs().max()
    )


def test_a_constant_image_has_only_its_average():
    layer = Scattering2d((20, 17), J=2, dtype=torch.float64)
    found = layer(torch.full((1, 1, 20, 17), 3.0, dtype=torch.float64))
    torch.testing.assert_close(found[0, 0], torch.full((5, 4), 3.0, dtype=torch.float64))
    assert float(found[0, 1:].abs().max()) < 1e-12


# ---------------------------------------------------------------- what a layer promises
@st.composite
def layers(draw, largest=9, **fixed):
    J = draw(st.integers(1, 2))
    sizes = st.integers(2**J + 1, largest)
    return Scattering2d(
        (draw(sizes), draw(sizes)),
        J,
        draw(st.integers(1, 4)),
        draw(st.integers(0, 2)),
        channels=draw(st.integers(1, 2)),
        dtype=torch.float64,
        **fixed,
    )


def draw_images(layer: Scattering2d, count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = (count, layer.channels, *layer.shape)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@given(layers(), st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_each_record_and_each_colour_is_transformed_by_itself(layer, seed):
    x = draw_images(layer, 3, seed)
    together = layer(x)
    assert together.shape == (3, *layer.output_shape)
    torch.testing.assert_close(layer(x[1:2]), together[1:2], rtol=0, atol=1e-13)
    single = Scattering2d(layer.shape, layer.J, layer.L, layer.order, dtype=torch.float64)
    apart = torch.cat([single(x[:, c]) for c in range(layer.channels)], dim=1)
    torch.testing.assert_close(apart, together, rtol=0, atol=1e-13)


def test_a_record_that_is_not_finite_spoils_only_itself():
    layer = Scattering2d((8, 8), normalise=9)
    x = torch.rand(3, 1, 8, 8)
    clean = layer(x)
    x[1, 0, 2, 2] = math.nan
    found = layer(x)
    assert torch.equal(found[[0, 2]], clean[[0, 2]])


def test_normalisation_is_group_normalisation_of_each_record():
    x = torch.rand(4, 2, 12, 12)
    layer = Scattering2d((12, 12), L=4, channels=2, normalise=10, alpha=1e-2)
    raw = Scattering2d((12, 12), L=4, channels=2)
    assert raw.paths == 25
    torch.testing.assert_close(layer(x), LipschitzGroupNorm(10, 50, alpha=1e-2)(raw(x)))


def test_features_are_the_forward_pass_in_pieces():
    layer = Scattering2d((10, 9), normalise=1)
    x = torch.rand(7, 10, 9)
    found = layer.features(x, batch_size=3)
    assert not found.requires_grad
    torch.testing.assert_close(found, layer(x), rtol=0, atol=1e-5)
    assert layer.features(x[:0]).shape == (0, 81, 2, 2)


def test_an_empty_batch_has_no_features():
    layer = Scattering2d((10, 9), channels=2, normalise=2)
    x = torch.zeros(0, 2, 10, 9, requires_grad=True)
    found = layer(x)
    assert found.shape == (0, *layer.output_shape)
    found.sum().backward()
    assert x.grad.shape == x.shape


def test_nothing_is_learnt_or_saved_and_copies_agree():
    layer = Scattering2d((9, 9), normalise=27)
    assert not layer.state_dict()
    assert not list(layer.parameters())
    x = torch.rand(2, 1, 9, 9)
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))
    assert layer(x).dtype == torch.float32
    assert layer(x.double()).dtype == torch.float64


def test_gradients_pass_through_it():
    layer = Scattering2d((6, 6), J=2, L=2, dtype=torch.float64)
    x = draw_images(layer, 1, 3).requires_grad_()
    assert torch.autograd.gradcheck(layer, (x,))


def test_a_zero_image_has_a_finite_gradient():
    x = torch.zeros(1, 1, 9, 9, requires_grad=True)
    Scattering2d((9, 9), normalise=81)(x).square().sum().backward()
    assert torch.isfinite(x.grad).all()


def test_the_plain_form_computes_the_same_without_noisewise():
    model = nn.Sequential(Scattering2d((9, 12), L=3, normalise=8), nn.Flatten())
    plain = to_plain(model)
    kinds = {type(part).__module__.partition(".")[0] for part in plain.modules()}
    assert kinds == {"torch"}
    x = torch.rand(3, 1, 9, 12)
    torch.testing.assert_close(plain(x), model(x), rtol=0, atol=1e-6)
    assert not plain.state_dict()


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (dict(shape=(28,)), "height and width"),
        (dict(shape=(3, 28, 28)), "channels="),
        (dict(shape=(28, 4)), "smaller J"),
        (dict(shape=(28, 28), J=0), "J"),
        (dict(shape=(28, 28), L=0), "L"),
        (dict(shape=(28, 28), order=3), "order"),
        (dict(shape=(28, 28), normalise=4), "multiple of 4"),
        (dict(shape=(28, 28), alpha=0.0, normalise=1), "alpha"),
        (dict(shape=(28, 28), dtype=torch.float16), "dtype"),
    ],
)
def test_impossible_settings_are_refused_with_the_reason(arguments, part):
    with pytest.raises(ValueError, match=part):
        Scattering2d(**arguments)


def test_wrong_input_is_refused_with_the_reason():
    layer = Scattering2d((28, 28))
    with pytest.raises(ValueError, match=r"\(1, 28, 28\)"):
        layer(torch.zeros(2, 3, 28, 28))
    with pytest.raises(ValueError, match=r"\(3, 28, 28\)"):
        Scattering2d((28, 28), channels=3)(torch.zeros(2, 28, 28))
    with pytest.raises(TypeError, match="/ 255"):
        layer(torch.zeros(2, 1, 28, 28, dtype=torch.uint8))


# ---------------------------------------------------------------- bounds
def bank_matrix(bands: list[Band]) -> Tensor:
    """Every band applied to every pixel: filter, keep every k-th point, weigh."""
    height, width = bands[0].spectra.shape[-2:]
    pixels = torch.eye(height * width, dtype=torch.float64).reshape(-1, 1, height, width)
    rows = []
    for band in bands:
        filtered = torch.fft.ifft2(torch.fft.fft2(pixels) * band.spectra)
        kept = filtered[..., :: band.factor, :: band.factor].flatten(1) * math.sqrt(band.weight)
        rows += [kept.real.T, kept.imag.T]
    return torch.cat(rows)


@given(st.integers(0, 10**6), st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_the_energy_of_a_bank_bounds_its_matrix(seed, count):
    generator = torch.Generator().manual_seed(seed)
    bands = [
        Band(
            torch.randn(2, 4, 8, generator=generator, dtype=torch.float64),
            int(2 ** torch.randint(0, 3, (), generator=generator)),
            float(torch.rand((), generator=generator)),
        )
        for _ in range(count)
    ]
    true = float(torch.linalg.matrix_norm(bank_matrix(bands), 2)) ** 2
    assert true <= bank_energy(bands) * (1 + 1e-12)


def test_the_energy_of_one_alias_class_is_reached():
    # Equal values at all aliases: Cauchy-Schwarz is an equality.
    assert bank_energy([Band(torch.full((1, 4, 4), 2.0), 4, 0.5)]) == pytest.approx(2.0)


@pytest.mark.parametrize("louder", [1.0, 4.0])
@pytest.mark.parametrize(("J", "order"), [(1, 1), (2, 1), (2, 0), (3, 0)])
def test_the_energy_of_wavelets_is_nearly_that_of_their_matrix(J, order, louder):
    layer = Scattering2d((2 * 2**J, 3 * 2**J), J=J, order=order, dtype=torch.float64)
    for name, filters in layer.named_buffers():
        if name.startswith("wavelet"):  # otherwise the average decides, whatever the rest is
            filters.mul_(louder)
    lines = [line_spectrum(layer.get_buffer(f"average_0_{axis}")) for axis in (0, 1)]
    bands = [Band(torch.outer(*lines)[None], 2**J, 1.0)]
    for j in range(J if order else 0):
        after = _energy(layer, j, 0, range(0))
        bands.append(Band(layer.get_buffer(f"wavelet_0_{j}"), 2**j, after))
    true = float(torch.linalg.matrix_norm(bank_matrix(bands), 2)) ** 2
    bound = _energy(layer, 0, order, range(J))
    assert 0.85 * bound <= true <= bound  # Schur's test is not exact


def slope_at(layer: Scattering2d, x: Tensor) -> float:
    jacobian = torch.autograd.functional.jacobian(lambda v: layer(v).flatten(), x)
    return float(torch.linalg.matrix_norm(jacobian.flatten(1), 2))


@given(layers(largest=7), st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_no_jacobian_exceeds_the_slope(layer, seed):
    assert slope_at(layer, draw_images(layer, 1, seed)) <= _slope(layer) * (1 + 1e-9)


@given(layers(normalise=1, alpha=0.05), st.integers(0, 10**6), st.floats(1e-3, 10))
@settings(max_examples=25, deadline=None)
def test_neither_distances_nor_norms_exceed_their_bounds(layer, seed, size):
    x, y = draw_images(layer, 2, seed) * size
    node = propagate(trace(layer, tuple(x.shape)), float(x.norm()), 1.0)
    found = layer(torch.stack([x, y]))
    distance = float((x - y).norm())
    assert float((found[0] - found[1]).norm()) <= node.input_cotangent * distance * (1 + 1e-9)
    assert float(found[0].norm()) <= node.output_norm * (1 + 1e-9)
    raw = Scattering2d(
        layer.shape, layer.J, layer.L, layer.order, channels=layer.channels, dtype=torch.float64
    )
    found = raw(torch.stack([x, y]))
    assert float((found[0] - found[1]).norm()) <= _slope(raw) * distance * (1 + 1e-9)


def test_a_model_that_starts_with_it_is_certified():
    model = nn.Sequential(
        BoundedInput((1, 12, 12), norm=6.0),
        Scattering2d((12, 12), L=4, normalise=5, alpha=0.05),
        nn.Flatten(),
        SpectralLinear(25 * 9, 4),
    )
    certificate = nw.certify(model, (1, 12, 12), input_norm=6.0, loss=nn.CrossEntropyLoss())
    x = torch.rand(64, 1, 12, 12, dtype=torch.float64) * 2
    y = torch.randint(0, 4, (64,))
    model = model.double()
    bound = certificate.gradients["3.weight"]
    for record, label in zip(x, y, strict=True):
        model.zero_grad()
        nn.functional.cross_entropy(model(record[None]), label[None]).backward()
        assert float(model[3].weight.grad.norm()) <= bound


def test_a_replaced_or_hooked_normalisation_is_refused():
    layer = Scattering2d((6, 6), J=1, L=1)
    layer.norm = nn.BatchNorm2d(2, affine=False)
    with pytest.raises(nw.UnsupportedModelError, match="replaced by BatchNorm2d"):
        propagate(trace(layer, (1, 6, 6)), 1.0, 1.0)
    layer = Scattering2d((6, 6), J=1, L=1, normalise=1)
    layer.norm.register_forward_hook(lambda module, inputs, output: 2 * output)
    with pytest.raises(nw.UnsupportedModelError, match="hook"):
        propagate(trace(layer, (1, 6, 6)), 1.0, 1.0)


def test_without_the_factor_of_the_mirrors_the_bound_would_be_false():
    layer = Scattering2d((16, 16), J=2, order=0, dtype=torch.float64)
    true = slope_at(layer, torch.zeros(1, 1, 16, 16, dtype=torch.float64))
    bank = math.sqrt(_energy(layer, 0, 0, range(0)))
    assert 1.05 * bank < true <= _slope(layer)


def test_the_certified_slope_is_not_idle():
    # Found by iterating Jacobian products at a random image: above half of the bound.
    layer = Scattering2d((28, 28), dtype=torch.float64)
    x, v = draw_images(layer, 2, 0)
    for _ in range(8):
        _, forward = torch.autograd.functional.jvp(lambda z: layer(z[None]), x, v)
        _, v = torch.autograd.functional.vjp(lambda z: layer(z[None]), x, forward)
        v = v / v.norm()
    assert 0.55 * _slope(layer) <= float(forward.norm()) <= _slope(layer) < 0.549
