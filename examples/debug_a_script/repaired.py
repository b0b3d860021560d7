"""The same training, repaired: each comment is one finding less."""

from __future__ import annotations

import torch
from model import build
from torch.nn.functional import cross_entropy


def train(*, clip, noise_multiplier, batch_size, seed, data, init, steps, lr):
    torch.manual_seed(seed)
    model = build()
    model.load_state_dict(init)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    parameters = list(model.parameters())
    x, y = data
    for _ in range(steps):
        # Poisson sampling: every record by itself; an empty batch is a step like any other.
        batch = torch.nonzero(torch.rand(len(x)) < batch_size / len(x)).flatten()
        total = [torch.zeros_like(p) for p in parameters]
        for i in batch:
            # Each record's own gradient is clipped, over all parameters together.
            gradients = torch.autograd.grad(
                cross_entropy(model(x[i : i + 1]), y[i : i + 1]), parameters
            )
            norm = torch.stack([g.norm() for g in gradients]).norm()
            # A record whose gradient is not finite counts as nothing; the step is taken.
            factor = min(1.0, clip / max(float(norm), 1e-12)) if torch.isfinite(norm) else 0.0
            for t, g in zip(total, gradients, strict=True):
                t.add_(torch.nan_to_num(g, 0.0, 0.0, 0.0), alpha=factor)
        for p, t in zip(parameters, total, strict=True):
            # Noise of deviation sigma times C, on the sum, divided by the *expected* size.
            p.grad = (t + noise_multiplier * clip * torch.randn_like(p)) / batch_size
        optimizer.step()
    return model.state_dict()
