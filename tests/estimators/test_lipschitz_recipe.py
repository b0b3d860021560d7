"""``gradients="input-scaled"``: the word stands for all that makes Lipschitz networks learn."""

import numpy as np
import torch

import noisewise as nw
from noisewise.estimators import PrivateClassifier, PrivateRegressor, load_estimator, save_estimator
from noisewise.nn.losses import CrossEntropy


def table(rows=2000, seed=0):
    """Three classes, by the largest of three sums of columns."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, size=(rows, 6))
    return x, (x[:, :3] + 0.5 * x[:, 3:]).argmax(1)


def test_the_word_brings_loss_clip_temperature_and_an_isometric_start():
    model = PrivateClassifier(gradients="input-scaled", hidden_layer_sizes=(5,), weight_limit=0.7)
    assert model._gradients().loss_clip == 0.3
    assert isinstance(model._loss(), CrossEntropy)
    assert model._loss().temperature == model._temperature > 1
    network = model._network(np.zeros((1, 8), np.float32), 3, 0, 1000)
    hidden, last = (layer for layer in network if isinstance(layer, torch.nn.Linear))
    assert torch.allclose(torch.linalg.svdvals(hidden.weight), torch.full((5,), 0.7), atol=1e-3)
    assert not last.weight.any()


def test_a_rule_is_taken_as_it_is():
    rule = nw.InputScaled()
    model = PrivateClassifier(gradients=rule)
    assert model._gradients() is rule
    assert model._temperature == 1.0
    assert PrivateRegressor(gradients="input-scaled")._gradients() == rule


def test_the_recipe_learns_what_the_bare_rule_does_not():
    x, y = table()
    unseen = table(seed=1)
    options = {"hidden_layer_sizes": (16,), "classes": [0, 1, 2], "random_state": 0, "steps": 60}
    recipe = PrivateClassifier(0.3, gradients="input-scaled", **options).fit(x, y)
    bare = PrivateClassifier(0.3, gradients=nw.InputScaled(), **options).fit(x, y)
    assert recipe.statement_.epsilon <= 0.3
    assert recipe.score(*unseen) > 0.9
    assert recipe.score(*unseen) > bare.score(*unseen) + 0.03


def test_probabilities_are_of_the_stretched_scores(tmp_path):
    x, y = table(800)
    model = PrivateClassifier(
        4.0, gradients="input-scaled", hidden_layer_sizes=(), classes=[0, 1, 2], steps=20,
        calibration_share=0.0, random_state=0,
    ).fit(x, y)  # fmt: skip
    matrix, bias = model.weights_[0]
    assert np.linalg.norm(matrix, 2) <= 1 + 1e-6
    scores = torch.from_numpy(x.astype(np.float32) @ matrix.T + bias) * model._temperature
    assert np.allclose(model.predict_proba(x), scores.softmax(1).numpy(), atol=1e-4)
    save_estimator(model, tmp_path / "model")
    again = load_estimator(tmp_path / "model")
    assert np.allclose(again.predict_proba(x), model.predict_proba(x))


def test_the_word_and_the_rule_it_stands_for_draw_different_noise(monkeypatch):
    from noisewise.estimators import base

    seen = []

    def watched(*given):
        seen.append(original(*given))
        return seen[-1]

    original = base.digest_of_fit
    monkeypatch.setattr(base, "digest_of_fit", watched)
    x, y = table(200)
    for gradients in ("input-scaled", "input-scaled", nw.InputScaled(loss_clip=0.3)):
        PrivateClassifier(
            4.0, gradients=gradients, hidden_layer_sizes=(), classes=[0, 1, 2], steps=1,
            learning_rate=0.1, random_state=0, preflight=False,
        ).fit(x, y)  # fmt: skip
    assert seen[0] == seen[1] != seen[2]
