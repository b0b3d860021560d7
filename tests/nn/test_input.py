"""BoundedInput: every record in the ball or on the sphere, whatever it was."""

from __future__ import annotations

import colorsys
import math

import pytest
import torch
from hypothesis import given, settings, strategies as st

from noisewise.nn import BoundedInput


@settings(max_examples=80, deadline=None)
@given(
    scale=st.sampled_from([0.0, 1e-30, 1e-6, 0.3, 1.0, 1e6, 1e30, 1e38]),
    norm=st.floats(1e-3, 1e3),
    mode=st.sampled_from(["clip", "normalise"]),
    seed=st.integers(0, 10**6),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_no_record_leaves_the_ball(
    scale: float, norm: float, mode: str, seed: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = scale * torch.randn(5, 3, 4, generator=generator, dtype=dtype)
    y = BoundedInput((3, 4), norm, mode)(x)
    assert torch.isfinite(y).all()
    assert float(y.double().flatten(1).norm(dim=1).max()) <= norm


def test_short_records_stay_as_they_are_under_clip_and_grow_under_normalise() -> None:
    x = torch.tensor([[0.3, 0.4]])
    assert torch.equal(BoundedInput(2, 1.0)(x), x)
    assert float(BoundedInput(2, 1.0, "normalise")(x).norm()) == pytest.approx(1.0, rel=1e-5)


def test_zero_stays_zero_and_has_a_finite_gradient() -> None:
    for mode in ("clip", "normalise"):
        x = torch.zeros(2, 3, requires_grad=True)
        y = BoundedInput(3, 1.0, mode)(x)
        assert torch.equal(y, torch.zeros(2, 3))
        y.sum().backward()
        assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_record_that_is_not_finite_becomes_zero_and_leaves_others_alone(poison: float) -> None:
    x = torch.ones(3, 4)
    clean = BoundedInput(4, 1.0)(x)
    x[1, 2] = poison
    y = BoundedInput(4, 1.0)(x)
    assert torch.equal(y[1], torch.zeros(4))
    assert torch.equal(y[[0, 2]], clean[[0, 2]])


def test_the_shape_is_checked() -> None:
    with pytest.raises(ValueError, match="shape"):
        BoundedInput((3, 4), 1.0)(torch.zeros(2, 4, 3))
    with pytest.raises(ValueError, match="height"):
        BoundedInput((4,), 1.0, colour="hsv")


@pytest.mark.parametrize(
    ("colour", "convert"), [("hsv", colorsys.rgb_to_hsv), ("yiq", colorsys.rgb_to_yiq)]
)
def test_colours_agree_with_the_standard_library(colour: str, convert: object) -> None:
    torch.manual_seed(0)
    x = torch.rand(1, 3, 4, 5, dtype=torch.float64)
    x[0, :, 0, 0] = torch.tensor([0.5, 0.5, 0.5])
    x[0, :, 0, 1] = 0.0
    y = BoundedInput((3, 4, 5), 1e6, colour=colour)(x)
    for i in range(4):
        for j in range(5):
            expected = convert(*(float(v) for v in x[0, :, i, j]))
            assert y[0, :, i, j].tolist() == pytest.approx(expected, abs=0.011)


@pytest.mark.parametrize("colour", [None, "rgb", "hsv", "yiq", "yuv", "grayscale"])
def test_the_largest_norm_of_an_image_is_never_exceeded(colour: str | None) -> None:
    torch.manual_seed(0)
    layer = BoundedInput((3, 2, 2), 1e6, colour=colour)
    x = torch.cat([torch.rand(200, 3, 2, 2), torch.rand(200, 3, 2, 2).round()])
    lengths = layer(x).flatten(1).norm(dim=1)
    assert float(lengths.max()) <= layer.largest_norm()
    assert float(lengths.max()) >= 0.7 * layer.largest_norm()


def test_grayscale_has_one_channel() -> None:
    assert BoundedInput((3, 2, 2), 1.0, colour="grayscale")(torch.rand(4, 3, 2, 2)).shape == (
        4,
        1,
        2,
        2,
    )
