"""The model of the example, and a batch that shows the form of its records."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def example() -> tuple[Tensor, Tensor]:
    return torch.zeros(2, 8), torch.tensor([0, 2])
