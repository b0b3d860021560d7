"""Data and models after Bu, Wang, Dai and Long (2021), at the size of a laptop's processor.

Images are halved in both directions (14 x 14 and 16 x 16 pixels), which makes a step several
times cheaper. Images and features are scaled by public constants, never by statistics of the data.
Models are smaller relatives of those the paper names: two convolutions and two dense layers for
images, perceptrons for regression. The text model is ours: no pre-trained BERT is at hand, so a
one-block transformer over hashed words stands for it.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from noisewise.datasets import load_images, load_table

__all__ = [
    "Task",
    "california",
    "cifar",
    "mnist",
    "sentiment",
    "small_cifar",
    "small_mnist",
    "tabular",
    "wine",
]


@dataclass(frozen=True, eq=False)
class Task:
    """Training and test records, the model, the loss."""

    name: str
    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    model: Callable[[], nn.Module]
    loss: Any
    classify: bool = True
    held: tuple[Tensor, Tensor] | None = None  # records that choose settings, never trained on


def mnist(records: int = 12_000, test: int = 10_000, held: int = 0) -> Task:
    """MNIST, and a CNN like that of the DP libraries' examples (21,802 parameters)."""
    return _images("mnist", records, test, held, mnist_cnn)


def cifar(records: int = 10_000, test: int = 2_000, held: int = 0) -> Task:
    """The 10,000 CIFAR10 images at hand, and a CNN like PyTorch's tutorial (39,338 parameters)."""
    return _images("cifar10_small", records, test, held, cifar_cnn)


def small_mnist(records: int = 12_000, test: int = 10_000, held: int = 0) -> Task:
    """MNIST with one hidden layer (13,258 parameters): small enough for many seeds."""
    return dataclasses.replace(mnist(records, test, held), model=lambda: perceptron(196))


def small_cifar(records: int = 10_000, test: int = 2_000, held: int = 0) -> Task:
    """CIFAR10 with one hidden layer (49,866 parameters): small enough for many seeds."""
    return dataclasses.replace(cifar(records, test, held), model=lambda: perceptron(768))


def perceptron(inputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 10))


def _images(name: str, records: int, test: int, held: int, model: Callable[[], nn.Module]) -> Task:
    data = load_images(name)
    parts = []
    for pixels, labels, size in (
        (data.x_train, data.y_train, slice(records)),
        (data.x_test, data.y_test, slice(test)),
        (data.x_train, data.y_train, slice(records, records + held)),
    ):
        x = torch.as_tensor(np.asarray(pixels[size]), dtype=torch.float32) / 127.5 - 1
        x = x.unsqueeze(1) if x.dim() == 3 else x.permute(0, 3, 1, 2)
        x = nn.functional.avg_pool2d(x, 2) if len(x) else x
        parts += [x, torch.as_tensor(np.asarray(labels[size]).astype(np.int64))]
    kept = (parts[4], parts[5]) if held else None
    return Task(name, *parts[:4], model, nn.CrossEntropyLoss(), held=kept)


def mnist_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def cifar_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def wine() -> Task:
    """Red wine: quality by eleven features, 1,279 training records."""
    table = load_table("wine_quality_red")
    features, _ = table.encode()
    quality = np.asarray(table.frame["quality"], np.float32)
    # The documented score goes from 0 to 10; about its middle, in units of 2.5.
    return _regression("wine", features, (quality - 5.0) / 2.5, 64)


def california() -> Task:
    """California housing: value by eight features, 16,512 training records."""
    table = load_table("california_housing")
    features, _ = table.encode()
    value = np.asarray(table.frame["MedHouseVal"], np.float32)
    # The survey caps values at 5 (hundred thousand dollars).
    return _regression("california", features, value - 2.5, 64)


def _regression(name: str, features: Any, target: Any, width: int) -> Task:
    x = torch.as_tensor(np.asarray(features), dtype=torch.float32)
    y = torch.as_tensor(np.asarray(target), dtype=torch.float32).reshape(-1, 1)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    cut = int(0.8 * len(x))
    inputs = x.shape[1]

    def model() -> nn.Module:
        return nn.Sequential(
            nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
            nn.Linear(width, 1),
        )  # fmt: skip

    return Task(name, x[:cut], y[:cut], x[cut:], y[cut:], model, nn.MSELoss(), classify=False)


def tabular(name: str) -> Task:
    """One of the tables of Barczewski and Ramon (2024), with a perceptron of one hidden layer."""
    table = load_table(name)
    features, labels = table.encode()
    x = torch.as_tensor(np.asarray(features), dtype=torch.float32)
    y = torch.as_tensor(np.asarray(labels).astype(np.int64)).reshape(-1)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    cut = int(0.8 * len(x))
    inputs, classes = x.shape[1], int(y.max()) + 1

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, classes))

    return Task(name, x[:cut], y[:cut], x[cut:], y[cut:], model, nn.CrossEntropyLoss())


LENGTH = 24


class Transformer(nn.Module):
    """One block of self-attention over hashed words; the mean of its outputs goes to the head.

    Written with plain linear layers, so that every gradient engine can follow it.
    """

    def __init__(self, words: int, deviation: float, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.embedding = nn.Embedding(words, width)
        nn.init.normal_(self.embedding.weight, std=deviation)
        self.before = nn.LayerNorm(width)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.between = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.head = nn.Linear(width, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        present = (tokens > 0).to(torch.float32)
        h = self.embedding(tokens)
        z = self.before(h)
        shape = (*tokens.shape, self.heads, -1)
        q, k, v = (
            layer(z).reshape(shape).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        scores = scores - 1e4 * (1 - present)[:, None, None, :]
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        h = h + self.out(mixed)
        h = h + self.narrow(torch.relu(self.wide(self.between(h))))
        pooled = (h * present[..., None]).sum(1) / present.sum(1, keepdim=True).clamp_min(1.0)
        return self.head(pooled)


def tokens(sentence: str, words: int) -> list[int]:
    """Words by a public hash: a vocabulary counted on the training data would not be private."""
    found = [1 + zlib.crc32(word.encode()) % (words - 1) for word in sentence.lower().split()]
    return (found + [0] * LENGTH)[:LENGTH]


def sentiment(words: int = 32_768, records: int = 67_349, percent: int = 5) -> Task:
    """SST-2: the training split's phrases; whole sentences of dev choose settings, of test report.

    Held-back phrases could not choose: they are parts of the sentences that one trains on.
    `percent` is the deviation of the initial embeddings, of which 100 is PyTorch's own.
    """
    frame = load_table("sst2").frame
    parts = []
    for split in ("train", "test", "dev"):
        part = frame[frame["split"] == split]
        part = part.sample(records, random_state=0) if split == "train" else part
        parts += [
            torch.tensor([tokens(text, words) for text in part["sentence"]]),
            torch.tensor(np.asarray(part["label"], np.int64)),
        ]
    return Task(
        "sst2", *parts[:4], lambda: Transformer(words, percent / 100), nn.CrossEntropyLoss(),
        held=(parts[4], parts[5]),
    )  # fmt: skip
