"""Features of patches of drawings: public, one record at a time, reproducible, of length one."""

import pytest
import torch
from torch import nn

import noisewise as nw
from noisewise.nn import PatchFeatures
from noisewise.nn.drawings import dead_leaves

SMALL = {"atoms": (4, 6, 4), "directions": 12, "drawings": 80}


@pytest.fixture(scope="module")
def layers(tmp_path_factory):
    """One layer for each kind of picture, kept in a folder of their own."""
    patch = pytest.MonkeyPatch()
    patch.setenv("NOISEWISE_CACHE", str(tmp_path_factory.mktemp("cache")))
    shapes = [(1, 14, 14), (3, 16, 12), (2, 12, 12), (3, 50, 80), (1, 5, 7)]
    yield {shape: PatchFeatures(shape, **SMALL) for shape in shapes}
    patch.undo()


def test_pictures_of_any_size_and_colour_become_rows_of_length_one(layers):
    for shape, layer in layers.items():
        rows = layer(torch.rand(5, *shape))
        assert rows.shape == (5, layer.output_size)
        assert layer.output_size == 12 * (2 if shape[0] == 2 else 1)
        length = rows.norm(dim=1)
        assert (length <= 1).all()
        assert (length > 0.999).all()
        assert torch.allclose(layer.features(torch.zeros(3, *shape)), layer(torch.zeros(3, *shape)))


def test_a_record_has_its_own_features_whatever_is_beside_it(layers):
    for shape, layer in layers.items():
        x = torch.rand(6, *shape)
        alone = torch.cat([layer(x[i : i + 1]) for i in range(6)])
        assert torch.allclose(layer(x), alone, atol=1e-5)


def test_separation_is_proven(layers):
    for shape in ((1, 14, 14), (3, 16, 12), (2, 12, 12)):
        layer = layers[shape]
        model = nn.Sequential(layer, nn.Linear(layer.output_size, 3))
        proof = nw.prove_apart(
            model, nn.CrossEntropyLoss(), torch.rand(4, *shape), torch.tensor([0, 1, 2, 0])
        )
        assert proof.proven, proof


def test_the_bound_is_certified_and_no_radius_is(layers):
    layer = layers[1, 14, 14]
    model = nn.Sequential(layer, nn.Linear(layer.output_size, 2))
    certificate = nw.certify(model, (1, 14, 14), loss=nn.CrossEntropyLoss())
    assert certificate.enforced
    assert certificate.sensitivities()["1.weight"] < 1.5
    with pytest.raises(nw.UnsupportedModelError, match="no bounded slope"):
        nw.certified_radius(model, torch.rand(2, 1, 14, 14), torch.tensor([0, 1]))


def test_the_same_seed_gives_the_same_features_with_and_without_the_cache(layers):
    x = torch.rand(3, 1, 14, 14)
    again = PatchFeatures((1, 14, 14), **SMALL)
    anew = PatchFeatures((1, 14, 14), **SMALL, cache=False)
    other = PatchFeatures((1, 14, 14), **SMALL, seed=1, cache=False)
    assert torch.equal(layers[1, 14, 14](x), again(x))
    assert torch.allclose(anew(x), again(x), atol=1e-4)
    assert not torch.allclose(other(x), again(x), atol=1e-2)


def test_mirror_images_have_the_same_features_if_asked_for():
    # Of 14 pixels, and of 32, patches of 6 with a step of 2 reach from edge to edge, so that
    # mirroring permutes them.
    for side in (14, 32):
        layer = PatchFeatures((3, side, side), **SMALL, cache=False)
        x = torch.rand(4, 3, side, side)
        assert torch.allclose(layer(x), layer(x.flip(3)), atol=1e-4)
        assert not torch.allclose(layer(x), layer(x.flip(2)), atol=1e-2)
    upright = PatchFeatures((3, 14, 14), **SMALL, mirror=False, cache=False)
    x = torch.rand(4, 3, 14, 14)
    assert not torch.allclose(upright(x), upright(x.flip(3)), atol=1e-2)


def test_fields_are_averages_symmetric_about_the_middle():
    from noisewise.nn.patches import _fields

    for size, cells in ((14, 3), (11, 2), (13, 3), (5, 2), (4, 4), (2, 3)):
        fields = _fields(size, cells)
        assert torch.allclose(fields.sum(1), torch.ones(cells))
        assert torch.equal(fields, fields.flip(0, 1))
        assert (fields.sum(0) > 0).all()


def test_values_that_are_no_numbers_do_no_harm(layers):
    x = torch.rand(2, 1, 14, 14)
    broken = x.clone()
    broken[0, 0, 3, 3] = float("nan")
    broken[0, 0, 4, 4] = float("inf")
    rows = layers[1, 14, 14](broken)
    assert torch.isfinite(rows).all()
    assert torch.allclose(rows[1], layers[1, 14, 14](x)[1], atol=1e-5)


def test_nothing_of_it_is_learnt_in_training(layers):
    assert not list(layers[1, 14, 14].parameters())


def test_drawings_follow_from_their_seed():
    first, again, other = (dead_leaves(4, 1, 12, 12, seed=s) for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert 0 <= float(first.min()) < float(first.max()) <= 1


@pytest.mark.parametrize(
    ("shape", "changes", "message"),
    [
        ((28, 28), {}, "channels, height"),
        ((1, 9, 9), {"atoms": (0, 0, 0)}, "atoms must be three"),
        ((1, 9, 9), {"atoms": (4, 4)}, "atoms must be three"),
    ],
)
def test_bad_arguments_are_named(shape, changes, message):
    with pytest.raises(ValueError, match=message):
        PatchFeatures(shape, **{**SMALL, **changes}, cache=False)
