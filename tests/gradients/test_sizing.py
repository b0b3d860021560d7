"""Pieces are halved only where that saves memory, and from public numbers alone."""

import pytest
import torch
from torch import nn

import noisewise as nw
from noisewise.gradients.engine import GradientEngine
from noisewise.gradients.sizing import cost_of_a_call, piece_size, saves_memory


class Words(nn.Module):
    """Few activations beside a large table."""

    def __init__(self, words):
        super().__init__()
        self.embed, self.head = nn.Embedding(words, 32), nn.Linear(32, 3)

    def forward(self, x):
        return self.head(self.embed(x).mean(1))


def image_model():
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 3))


@pytest.mark.parametrize(
    ("model", "x", "halved"),
    [
        (Words(20_000), torch.randint(20_000, (64, 4)), False),
        (image_model(), torch.randn(64, 1, 8, 8), True),
    ],
)
def test_a_batch_is_cut_only_where_activations_outweigh_parameters(model, x, halved):
    loss, y = nn.CrossEntropyLoss(), torch.randint(3, (64,))
    engine = GradientEngine(model, loss, nw.Clipped(1.0), expected=64.0)
    engine.sum(x, y)
    assert (engine._size < 64) == halved


def test_what_a_call_writes_does_not_depend_on_the_records():
    model = image_model()
    costs = {cost_of_a_call(model, torch.randn(n, 1, 8, 8)) for n in (1, 5)}
    assert len(costs) == 1
    (cost,) = costs
    # Two layers of 8 x 64 numbers and three logits, at least.
    assert cost.activations >= 2 * 512 + 3


def test_the_choice_is_the_sum_of_what_is_saved_and_spent():
    assert saves_memory(10, 10, 3.0)
    assert not saves_memory(10, 100, 3.0)
    assert piece_size(100.0, 0.1, True) < piece_size(100.0, 50.0, False)
