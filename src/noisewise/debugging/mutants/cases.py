"""Small models with their losses and records, on which bugs and correct variants are run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from noisewise.debugging.trainer import Data

__all__ = ["Case", "cases"]


@dataclass(frozen=True)
class Case:
    """A model, its loss, and a batch that shows what its records look like."""

    model: Callable[[], nn.Module]
    loss: Callable[[Tensor, Tensor], Tensor]
    example: Data


def _mlp(inputs: int = 8, outputs: int = 4, dropout: float = 0.0) -> nn.Module:
    hidden: list[nn.Module] = [nn.Linear(inputs, 16), nn.ReLU()]
    hidden += [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(*hidden, nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, outputs))


def _cnn() -> nn.Module:
    front = [nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Conv2d(4, 6, 3, stride=2), nn.GroupNorm(2, 6)]
    return nn.Sequential(*front, nn.ReLU(), nn.Flatten(), nn.Linear(6 * 4, 3))


class _Reader(nn.Module):
    """A transformer of one layer that classifies short texts."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 12)
        self.layer = nn.TransformerEncoderLayer(12, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(12, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits."""
        out: Tensor = self.head(self.layer(self.embedding(tokens)).mean(1))
        return out


def cases() -> dict[str, Case]:
    """Return the models by name: hard and soft labels, numbers, images, texts."""
    soft = torch.softmax(torch.arange(16.0).reshape(4, 4).sin(), -1)
    return {
        "MLP": Case(_mlp, functional.cross_entropy, (torch.zeros(4, 8), torch.arange(4))),
        "MLP, soft labels": Case(_mlp, functional.cross_entropy, (torch.zeros(4, 8), soft)),
        "MLP, regression": Case(
            lambda: _mlp(6, 2), functional.mse_loss, (torch.zeros(4, 6), soft[:, :2] + 1)
        ),
        "MLP, binary": Case(
            lambda: _mlp(5, 1),
            functional.binary_cross_entropy_with_logits,
            (torch.zeros(4, 5), torch.tensor([[0.0], [1.0], [1.0], [0.0]])),
        ),
        "CNN": Case(
            _cnn, functional.cross_entropy, (torch.zeros(2, 1, 8, 8), torch.tensor([0, 2]))
        ),
        "transformer": Case(
            _Reader,
            functional.cross_entropy,
            (torch.zeros(2, 5, dtype=torch.long), torch.tensor([0, 2])),
        ),
        "MLP with dropout": Case(
            lambda: _mlp(dropout=0.3),
            functional.cross_entropy,
            (torch.zeros(4, 8), torch.arange(4)),
        ),
    }
