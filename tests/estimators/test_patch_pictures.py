"""``features="auto"``: pictures of any size and colour, by patches of drawings."""

import functools

import numpy as np
import pytest

from noisewise.estimators import PrivateClassifier, load_estimator, pictures, save_estimator


@pytest.fixture(autouse=True)
def small_dictionary(monkeypatch):
    """The product's own layer with a small dictionary, so that tests take seconds."""
    from noisewise import nn

    @functools.lru_cache
    def layer(channels, height, width):
        return nn.PatchFeatures(
            (channels, height, width), atoms=(8, 8, 8), directions=40, drawings=200, cache=False
        )

    monkeypatch.setattr(pictures, "_patch_layer", layer)


def stripes(rows=600, colours=None, seed=0):
    """Horizontal or vertical stripes with noise."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, rows)
    wave = (np.arange(14) // 2 % 2) * 120.0
    x = np.where(y[:, None, None] == 1, wave[:, None], wave) + rng.normal(60, 20, (rows, 14, 14))
    x = x.clip(0, 255).astype(np.uint8)
    return (x if colours is None else np.repeat(x[..., None], colours, 3)), y


@pytest.mark.parametrize("colours", [None, 3])
def test_pictures_are_learnt(colours, tmp_path):
    x, y = stripes(colours=colours)
    model = PrivateClassifier(
        epsilon=4.0, delta=1e-5, classes=[0, 1], features="auto", steps=40, random_state=0
    ).fit(x, y)
    assert model.score(*stripes(200, colours, seed=1)) > 0.9
    assert model.statement_.epsilon <= 4.0
    assert any("patches of random drawings" in said for said in model.statement_.assumptions)
    save_estimator(model, tmp_path / "model")
    again = load_estimator(tmp_path / "model")
    assert np.allclose(again.predict_proba(x[:20]), model.predict_proba(x[:20]), atol=1e-5)


def test_colours_may_come_first_or_last():
    x, _ = stripes(20, 3)
    last = pictures.PictureFeatures.patches(x)
    first = pictures.PictureFeatures.patches(np.moveaxis(x, 3, 1))
    assert last == first
    assert np.allclose(last.transform(x), first.transform(np.moveaxis(x, 3, 1)))


def test_public_pictures_are_for_scattering_only():
    x, y = stripes(20)
    with pytest.raises(ValueError, match="drawings alone"):
        PrivateClassifier(features="auto", public_images=x).fit(x, y)
    with pytest.raises(ValueError, match="'auto' or 'scattering'"):
        PrivateClassifier(features="wavelets").fit(x, y)
