"""Accuracy of networks with renewed cotangents, trained without any per-record gradient.

    python experiments/renewed.py fashion_mnist --epsilon 2.7 --seeds 0 1 2
    python experiments/renewed.py cifar10 --epsilon 8 --validate --recipe '{"epochs": 10}'
    python experiments/renewed.py --report

A line of ``experiments/renewed_runs.jsonl`` for each finished run; what is there already is not
trained again. With ``--validate`` the last 10,000 training records judge instead of the test
images, which no epsilon covers. Seeded noise, so that runs can be repeated.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn

import noisewise as nw
from noisewise.datasets import load_images
from noisewise.nn.models import Recipe, RenewedNet, renewed_cifar, renewed_fashion, renewed_mnist

RUNS = Path(__file__).with_name("renewed_runs.jsonl")
MODELS = {"mnist": renewed_mnist, "fashion_mnist": renewed_fashion, "cifar10": renewed_cifar}


def prepare(images: Any) -> Tensor:
    """Each image by itself: mean zero, mean square one, channels first."""
    x = torch.from_numpy(images).float()
    x = x[:, None] if x.dim() == 3 else x
    x = x.permute(0, 3, 1, 2) if x.shape[-1] == 3 else x
    flat = x.flatten(1)
    flat = flat - flat.mean(1, keepdim=True)
    return (flat / flat.square().mean(1, keepdim=True).sqrt().clamp_min(1.0)).view(x.shape)


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """In per cent."""
    model.eval()
    with torch.no_grad():
        found = torch.cat([model(part).argmax(1) for part in x.split(500)])
    return round(100 * float((found == y).double().mean()), 2)


def trained(args: argparse.Namespace, seed: int) -> dict[str, Any]:
    """One run."""
    images = load_images(args.dataset)
    x, xt = prepare(images.x_train), prepare(images.x_test)
    y, yt = torch.from_numpy(images.y_train).long(), torch.from_numpy(images.y_test).long()
    if args.validate:
        x, xt, y, yt = x[:-10000], x[-10000:], y[:-10000], y[-10000:]
    torch.manual_seed(seed)
    chosen = {"recipe": Recipe(**args.recipe)} if args.recipe else {}
    model: RenewedNet = MODELS[args.dataset](**chosen, **args.model)
    plan = model.recommended_plan(epsilon=args.epsilon, records=len(x), delta=1e-5, seed=seed)
    start = time.process_time()
    fitted = nw.fit(
        model, (x, y), plan, **model.recommended_training(plan), metrics=False, progress=False
    )
    return {
        "accuracy": accuracy(fitted.model, xt, yt),
        "spent": round(fitted.statement().epsilon, 4),
        "steps": plan.resolve().steps,
        "seconds": round(time.process_time() - start, 1),
    }


def done() -> list[dict[str, Any]]:
    """What was trained before."""
    return [json.loads(line) for line in RUNS.read_text().splitlines()] if RUNS.exists() else []


def report() -> None:
    """Print one line for every setting."""
    keys = ("dataset", "epsilon", "validate", "recipe", "model")
    found: dict[str, list[dict[str, Any]]] = {}
    for run in done():
        found.setdefault(json.dumps({key: run[key] for key in keys}), []).append(run)
    for setting, runs in sorted(found.items()):
        shown = ", ".join(f"{run['accuracy']:.2f}" for run in runs)
        print(f"{setting}: {mean(r['accuracy'] for r in runs):.2f} ({shown})")


def main() -> None:
    """Train what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", nargs="?", choices=tuple(MODELS))
    parser.add_argument("--epsilon", type=float, default=2.7)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--validate", action="store_true")
    parser.add_argument("--recipe", type=json.loads, default={}, help="of Recipe, JSON")
    parser.add_argument("--model", type=json.loads, default={}, help="of RenewedNet, JSON")
    parser.add_argument("--report", action="store_true")
    args = parser.parse_args()
    if args.report or args.dataset is None:
        report()
        return
    torch.set_num_threads(1)
    for seed in args.seeds:
        setting = {
            "dataset": args.dataset,
            "epsilon": args.epsilon,
            "validate": args.validate,
            "recipe": args.recipe,
            "model": args.model,
            "seed": seed,
        }
        if any(all(run[k] == v for k, v in setting.items()) for run in done()):
            continue
        line = {**setting, **trained(args, seed)}
        with RUNS.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
