"""DP training as a newcomer might write it. It runs, it learns, and it is not private.

How many mistakes do you see? ``noisewise debug`` finds them; see README.md.
"""

from __future__ import annotations

import argparse

import torch
from model import build
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


def train(*, clip, noise_multiplier, batch_size, seed, data, init, steps, lr):
    torch.manual_seed(seed)
    model = build()
    model.load_state_dict(init)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    loader = DataLoader(TensorDataset(*data), batch_size=batch_size, shuffle=True)
    done = 0
    while done < steps:
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            for parameter in model.parameters():
                noise = noise_multiplier * torch.randn_like(parameter)
                parameter.grad += noise / len(x)
            optimizer.step()
            done += 1
            if done == steps:
                break
    return model.state_dict()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("clip", "sigma", "lr"):
        parser.add_argument(f"--{name}", type=float, required=True)
    for name in ("bs", "seed", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("data", "init", "out"):
        parser.add_argument(f"--{name}", required=True)
    given = parser.parse_args()
    records = torch.load(given.data, weights_only=True)
    weights = train(
        clip=given.clip,
        noise_multiplier=given.sigma,
        batch_size=given.bs,
        seed=given.seed,
        data=(records["x"], records["y"]),
        init=torch.load(given.init, weights_only=True),
        steps=given.steps,
        lr=given.lr,
    )
    torch.save(weights, given.out)
