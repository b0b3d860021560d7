"""Gradients that would be made twice are kept, as far as there is room, and change no sum."""

import pytest
import torch
from torch import nn

import noisewise as nw
from noisewise.gradients import GradientEngine, tape
from noisewise.gradients.contractions import ConvolutionContraction


@pytest.mark.parametrize("room", [0, 300_000, 64 << 20])
def test_kept_or_made_again_the_sum_is_the_same_and_room_is_not_exceeded(room, monkeypatch):
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(2, 16, 3), nn.Tanh(), nn.Conv2d(16, 32, 3), nn.Tanh()),
        *(nn.Conv2d(32, 32, 3), nn.Flatten(), nn.Linear(1152, 3)),
    )
    x, y = 5 * torch.randn(12, 2, 12, 12), torch.randint(3, (12,))
    told = GradientEngine(model, nn.CrossEntropyLoss(), nw.Clipped(0.1)).sum(x, y)
    kept = []
    condensed = ConvolutionContraction.condensed

    def noted(self, room=0):
        found = condensed(self, room)
        if found is not self:
            entries = self.groups * self.sizes[0] * self.sizes[1]
            if entries > self.factor_entries:
                kept.append(4 * entries * self.records)
        return found

    monkeypatch.setattr(tape, "KEPT_BYTES", room)
    monkeypatch.setattr(ConvolutionContraction, "condensed", noted)
    found = GradientEngine(model, nn.CrossEntropyLoss(), nw.Clipped(0.1), chunk=12).sum(x, y)
    for name, value in found.gradients.items():
        torch.testing.assert_close(value, told.gradients[name], rtol=1e-4, atol=1e-6)
    assert bool(kept) == bool(room)
    assert all(size <= room for size in kept)
