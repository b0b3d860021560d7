"""DP training of a linear classifier without torch: a script that only speaks files.

Correct, unless ``--bug`` says otherwise. Reads and writes .npz or .safetensors.
"""

from __future__ import annotations

import argparse

import numpy as np


def read(path):
    if path.endswith(".npz"):
        return dict(np.load(path))
    from safetensors.numpy import load_file

    return load_file(path)


def write(path, arrays):
    if path.endswith(".npz"):
        np.savez(path, **arrays)
        return
    from safetensors.numpy import save_file

    save_file(arrays, path)


def main():
    parser = argparse.ArgumentParser()
    for name in ("clip", "sigma", "lr"):
        parser.add_argument(f"--{name}", type=float, required=True)
    for name in ("bs", "seed", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("data", "init", "out"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--bug", default="")
    given = parser.parse_args()
    records, weights = read(given.data), read(given.init)
    x, y = records["x"].astype(np.float64), records["y"]
    rng = np.random.default_rng(given.seed)
    for _ in range(given.steps):
        batch = rng.random(len(x)) < given.bs / len(x)
        ones = np.ones((int(batch.sum()), 1))
        inputs = np.concatenate([x[batch], ones], axis=1)
        matrix = np.concatenate([weights["weight"], weights["bias"][:, None]], axis=1)
        with np.errstate(all="ignore"):
            logits = inputs @ matrix.T
            logits -= logits.max(1, keepdims=True, initial=-np.inf)
            chance = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
            chance[np.arange(len(chance)), y[batch]] -= 1
            gradients = chance[:, :, None] * inputs[:, None, :]
            norms = np.sqrt((gradients**2).sum((1, 2)))
            scales = np.minimum(1.0, given.clip / np.maximum(norms, 1e-12))
        good = np.isfinite(norms)
        total = np.einsum("i,ijk->jk", scales[good], gradients[good])
        deviation = given.sigma * (1.0 if given.bug == "noise-without-clip" else given.clip)
        noisy = total + deviation * rng.standard_normal(total.shape)
        step = given.lr * noisy / given.bs
        weights["weight"] = (weights["weight"] - step[:, :-1]).astype(np.float32)
        weights["bias"] = (weights["bias"] - step[:, -1]).astype(np.float32)
    write(given.out, weights)


if __name__ == "__main__":
    main()
