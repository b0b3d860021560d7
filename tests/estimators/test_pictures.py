"""Pictures: scattering features, public whitening, what the statement says about both."""

import numpy as np
import pytest
import torch

from noisewise.estimators import PrivateClassifier, load_estimator, save_estimator
from noisewise.estimators.pictures import PictureFeatures
from noisewise.estimators.whitening import Whitening, drawings

SIZE = 8


def stripes(rows, seed=0):
    """Pictures of stripes across or along, with noise; the label is the direction."""
    rng = np.random.default_rng(seed)
    across = rng.integers(0, 2, rows)
    wave = 0.5 + 0.5 * np.sin(np.arange(SIZE) * 1.8 + rng.uniform(0, 6, (rows, 1)))
    plain = np.repeat(wave[:, :, None], SIZE, axis=2)
    pictures = np.where(across[:, None, None] == 1, plain, plain.transpose(0, 2, 1))
    return np.clip(pictures + 0.1 * rng.normal(size=pictures.shape), 0, 1), across


@pytest.fixture(scope="module")
def public_features():
    rng = torch.Generator().manual_seed(0)
    scales = torch.logspace(0, -3, 30)
    mixed = torch.linalg.qr(torch.randn(30, 30, generator=rng))[0]
    return torch.randn(4000, 30, generator=rng) * scales @ mixed + 3.0


def test_drawings_are_pictures_and_come_again():
    first = drawings(50, 10, 14)
    assert first.shape == (50, 10, 14)
    assert float(first.min()) >= 0
    assert float(first.max()) <= 1
    assert torch.equal(first, drawings(50, 10, 14))
    assert not torch.equal(first, drawings(50, 10, 14, seed=2))
    assert float(first.flatten(1).std(1).median()) > 0.05


def test_public_features_are_centred_and_decorrelated(public_features):
    white = Whitening.of(public_features, components=10)(public_features)
    covariance = np.cov(white.numpy().T)
    np.testing.assert_allclose(white.mean(0), 0, atol=1e-3)
    np.testing.assert_allclose(white.square().mean(), 1, rtol=1e-3)
    off = covariance - np.diag(np.diag(covariance))
    assert np.abs(off).max() < 1e-3
    # Without the ridge variances would differ by nothing, without the division by 1000.
    assert 1 < np.diag(covariance).max() / np.diag(covariance).min() < 10


def test_no_whitened_row_exceeds_its_bound(public_features):
    white = Whitening.of(public_features)
    rng = torch.Generator().manual_seed(1)
    rows = torch.randn(2000, 30, generator=rng)
    rows = 7 * rows / rows.norm(dim=1, keepdim=True)
    steepest = torch.from_numpy(white.matrix)[:, -1:]
    worst = -7 * (steepest / steepest.norm()).T
    found = white(torch.cat([rows, worst])).double().norm(dim=1).max()
    assert float(found) <= white.largest_norm(7.0) * (1 + 1e-5)
    centred = Whitening(np.zeros_like(white.mean), white.matrix)
    attained = float(centred(worst).double().norm())
    assert attained == pytest.approx(centred.largest_norm(7.0), rel=1e-4)


@pytest.mark.parametrize("shape", [(5, 8, 8), (5, 3, 8, 9)])
@pytest.mark.parametrize("public", ["drawings", None])
def test_features_of_a_picture_depend_on_it_alone_and_stay_within_the_bound(
    shape, public, monkeypatch
):
    monkeypatch.setattr("noisewise.estimators.pictures._DRAWINGS", 300)
    x = np.random.default_rng(0).uniform(size=shape)
    pictures = PictureFeatures.of(x).whitened_by(public)
    features = pictures.transform(x)
    np.testing.assert_allclose(pictures.transform(x[2:3]), features[2:3], rtol=1e-4, atol=1e-4)
    assert np.linalg.norm(features, axis=1).max() <= pictures.norm_bound


@pytest.mark.parametrize(
    ("public", "sentence"),
    [
        ("drawings", "statistics of random drawings"),
        (None, "not whitened"),
        ("given", "pictures given as public_images"),
    ],
)
def test_pictures_are_learnt_and_the_statement_says_what_was_public(
    public, sentence, monkeypatch, tmp_path
):
    monkeypatch.setattr("noisewise.estimators.pictures._DRAWINGS", 300)
    x, y = stripes(1200)
    given = stripes(600, seed=9)[0] if public == "given" else public
    model = PrivateClassifier(
        4.0,
        classes=[0, 1],
        features="scattering",
        public_images=given,
        steps=30,
        random_state=0,
    ).fit(x, y)
    assert model.score(*stripes(300, seed=1)) > 0.9
    assert sentence in str(model.statement_)
    assert "clamped" not in str(model.statement_)
    save_estimator(model, tmp_path / "model")
    again = load_estimator(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(x), model.predict_proba(x))


def test_public_pictures_of_another_size_are_refused_before_training():
    x, y = stripes(50)
    with pytest.raises(ValueError, match="9 x 9, but X holds pictures of 8 x 8"):
        PrivateClassifier(features="scattering", public_images=np.zeros((5, 9, 9))).fit(x, y)
    with pytest.raises(ValueError, match="public_images"):
        PrivateClassifier(features="scattering", public_images="photographs").fit(x, y)
