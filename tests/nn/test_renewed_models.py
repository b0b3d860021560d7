"""Presets with renewed cotangents: they certify, train by their own recipe, and export."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import noisewise as nw
from noisewise.nn.models import (
    Recipe,
    RenewedNet,
    renewed_cifar,
    renewed_fashion,
    renewed_mnist,
)


def stripes(rows: int, shape: tuple[int, ...], classes: int) -> tuple[Tensor, Tensor]:
    """Stripes of as many widths as there are classes, with noise: a task for convolutions."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(classes, (rows,), generator=generator)
    position = torch.arange(shape[-1])
    phase = 6.3 * torch.rand(rows, 1, generator=generator)
    waves = torch.sin(position * (y[:, None] + 1) * 0.5 + phase)
    x = waves[:, None, None, :].expand(rows, *shape)
    return x + 0.5 * torch.randn(x.shape, generator=generator), y


@pytest.mark.parametrize("best", [True, False])
@pytest.mark.parametrize("preset", [renewed_mnist, renewed_fashion, renewed_cifar])
def test_presets_have_finite_bounds_and_a_plan(preset: type[RenewedNet], best: bool) -> None:
    model = preset() if best else preset(recipe=Recipe())
    plan = model.recommended_plan(epsilon=2.7, records=60_000, delta=1e-5)
    assert plan.resolve().epsilon <= 2.7
    bounds = nw.certify(model, model.input_shape, loss=nw.nn.losses.CrossEntropy())
    recipe = model.recipe
    found = {layer.cotangent for layer in bounds.layers if layer.gradients}
    assert best or found == {recipe.conv_clip, recipe.dense_clip}
    x = torch.randn(2, *model.input_shape)
    assert torch.allclose(nw.nn.to_plain(model)(x), model(x), atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "recipe"),
    [
        ({}, {}),
        ({"residual": True}, {"exact": None}),
        (
            {"activation": "tanh", "pooling": "max"},
            {"conv_clip": None, "exact": 0.1, "dense_clip": 0.1, "knee": None, "rate": 5.0},
        ),
    ],
)
def test_every_kind_trains_by_its_recipe(
    settings: dict[str, object], recipe: dict[str, float]
) -> None:
    """Above 60 % on four classes of stripes (a quarter by chance), with a fixed seed."""
    torch.manual_seed(0)
    x, y = stripes(600, (1, 8, 8), 4)
    chosen = Recipe(**{"batch_size": 200.0, "epochs": 12.0, **recipe})
    model = RenewedNet((1, 8, 8), 4, (8, 8), (16,), recipe=chosen, **settings)
    plan = model.recommended_plan(epsilon=20.0, records=600, delta=1e-4, seed=0)
    fitted = nw.fit(
        model, (x, y), plan, **model.recommended_training(plan), progress=False, metrics=False
    )
    assert fitted.statement().epsilon <= 20.0
    with torch.no_grad():
        accuracy = float((fitted.model(x).argmax(1) == y).double().mean())
    assert accuracy > 0.6, accuracy


def test_settings_that_bound_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="conv_clip, exact"):
        Recipe(conv_clip=None, exact=None)
    with pytest.raises(ValueError, match="leave nothing"):
        RenewedNet((1, 8, 8), 3, (4, 4, 4, 4))
    with pytest.raises(ValueError, match="pooling"):
        RenewedNet((1, 8, 8), 3, (4,), pooling="least")
