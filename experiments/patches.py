"""Accuracy of `PrivateClassifier(features="auto")` on CIFAR-10, Fashion-MNIST and MNIST.

    python experiments/patches.py cifar10 --epsilon 3 1 --seeds 0 1 2
    python experiments/patches.py fashion_mnist --epsilon 2.7

Features are computed once and shared by all fits, which is what a single fit does as well. With
``--validate`` the last 5,000 training records judge instead of the test images. Seeded noise, so
that runs can be repeated; a release takes none. Results are printed as JSON lines.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
import torch

from noisewise.datasets import load_images
from noisewise.estimators import PrivateClassifier
from noisewise.estimators.pictures import PictureFeatures


class Encoded(PrivateClassifier):
    """The same classifier on features that were computed before."""

    rows: Any = None

    def _prepare(self, x: Any) -> None:
        self.pictures_ = PictureFeatures(1, 1, 1, 1.0, kind="patches")

    def _encode(self, x: Any) -> Any:
        return np.asarray(x, dtype=np.float32)


def main() -> None:
    """Encode once, fit for every epsilon and seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", choices=("cifar10", "fashion_mnist", "mnist"))
    parser.add_argument("--epsilon", type=float, nargs="+", default=[3.0])
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--validate", action="store_true")
    parser.add_argument("--settings", type=json.loads, default={}, help="of the classifier, JSON")
    args = parser.parse_args()
    torch.set_num_threads(1)
    start = time.process_time()
    images = load_images(args.dataset)
    features = PictureFeatures.patches(images.x_train)
    x, y = features.transform(images.x_train), images.y_train
    if args.validate:
        x, xv, y, yv = x[:-5000], x[-5000:], y[:-5000], y[-5000:]
    else:
        xv, yv = features.transform(images.x_test), images.y_test
    encoded = time.process_time() - start
    for epsilon in args.epsilon:
        for seed in args.seeds:
            before = time.process_time()
            model = Encoded(
                epsilon=epsilon,
                delta=args.delta,
                classes=list(range(10)),
                features="auto",
                random_state=seed,
                preflight=False,
                **args.settings,
            ).fit(x, y)
            line = {
                "dataset": args.dataset,
                "judged_by": "held-back records" if args.validate else "test images",
                "epsilon": epsilon,
                "stated": model.statement_.epsilon,
                "delta": args.delta,
                "seed": seed,
                "settings": args.settings,
                "accuracy": round(100 * float((model.predict(xv) == yv).mean()), 2),
                "seconds_of_features": round(encoded),
                "seconds_of_fit": round(time.process_time() - before),
            }
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
