"""Algorithms of papers 000 and 004 as printed, so that the tests can be run on them."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn.functional import cross_entropy


def network():
    layers = [nn.Linear(8, 16, bias=False), nn.ReLU(), nn.Linear(16, 16, bias=False), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(16, 4, bias=False))


def lipschitz_training(input_norm: str):
    """Bound each layer by its input norm times a propagated cotangent bound.

    ``batch`` divides by the largest input norm of the batch (paper 004, algorithm 8), ``own``
    by each record's own. Every layer has noise of sigma times its own bound (paper 000,
    algorithm 2), empty batches are drawn again, and the sum is divided by the size drawn.
    """

    def train(*, clip, noise_multiplier, batch_size, seed, data, init, steps, lr):
        torch.manual_seed(seed)
        model = network()
        model.load_state_dict(init)
        layers = [layer for layer in model if isinstance(layer, nn.Linear)]
        weights = [layer.weight for layer in layers]
        x, y = data
        for _ in range(steps):
            batch: list[int] = []
            while not batch:
                batch = torch.nonzero(torch.rand(len(x)) < batch_size / len(x)).flatten().tolist()
            gradients, inputs = [], []
            for i in batch:
                hidden, seen = x[i : i + 1], []
                for layer in model:
                    seen += [float(hidden.detach().norm())] if isinstance(layer, nn.Linear) else []
                    hidden = layer(hidden)
                loss = cross_entropy(hidden, y[i : i + 1])
                gradients.append(torch.autograd.grad(loss, weights))
                inputs.append(seen)
            norms = [float(torch.linalg.matrix_norm(w.detach(), 2)) for w in weights]
            with torch.no_grad():
                for k, weight in enumerate(weights):
                    cotangent = math.sqrt(2) * math.prod(norms[k + 1 :])
                    largest = max(seen[k] for seen in inputs)
                    total = torch.zeros_like(weight)
                    for gradient, seen in zip(gradients, inputs, strict=True):
                        scale = largest if input_norm == "batch" else max(seen[k], 1e-12)
                        total += gradient[k] * clip / cotangent / scale
                    noise = noise_multiplier * clip * torch.randn_like(weight)
                    weight -= lr * (torch.nan_to_num(total, 0, 0, 0) + noise) / len(batch)
        return model.state_dict()

    return train
