"""Predictions of logistic regression on the three datasets of Section 6.6.2 (b).

Every record is predicted by a model that was fitted without it (five folds), so that the
private evaluation is one of held-out records. The models themselves are not private: the
thesis, and these experiments, protect the evaluation data only.
"""

from __future__ import annotations

import hashlib
import tempfile
from fractions import Fraction
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict

from noisewise.datasets import load_table
from noisewise.ecdf.budget import Budget
from noisewise.ecdf.counting import noisy_counts
from noisewise.ecdf.mechanisms import Mechanism, Setting, thesis_mechanism
from noisewise.ecdf.mechanisms.protocol import Block
from noisewise.ecdf.roc import PrivateROC
from noisewise.ecdf.two_class import TwoClassCounts, join, mirrored_grid, smooth_both
from noisewise.privacy.randomness import Randomness
from noisewise.privacy.relation import REPLACE_ONE
from noisewise.release import Promise

__all__ = ["DATASETS", "predictions", "published_thesis_roc"]

DATASETS = {
    "heart": ("framingham", 0.5),
    "bank": ("bank_marketing", 0.2),
    "diabetes": ("diabetes130", 0.05),
}


def predictions(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and held-out probabilities; kept in the temporary folder between runs."""
    dataset, _ = DATASETS[name]
    key = hashlib.sha256(f"{dataset} five shuffled folds".encode()).hexdigest()[:12]
    cache = Path(tempfile.gettempdir()) / f"noisewise-predictions-{key}.npz"
    if cache.exists():
        stored = np.load(cache)
        return stored["y"], stored["p"]
    features, labels = load_table(dataset).encode()
    labels = np.asarray(labels)
    if name == "diabetes":
        labels = readmitted(dataset)
    y = (labels == labels.max()).astype(int)
    # Shuffled: the bank's records are in the order of time, and its customers changed.
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    model = LogisticRegression(max_iter=300)
    p = cross_val_predict(model, features, y, cv=folds, method="predict_proba")[:, 1]
    np.savez(cache, y=y, p=p)
    return y, p


def readmitted(dataset: str) -> np.ndarray:
    """The thesis's positive class: readmitted at all (46 %)."""
    return np.asarray(load_table(dataset).frame["readmitted"] != "NO").astype(int)


def published_thesis_roc(
    y: np.ndarray, score: np.ndarray, *, epsilon: float, bins: int, smooth: str | None, rng: int
) -> PrivateROC:
    """Release as in Section 6.5.1: two curves, epsilon / 2 and scale 2 (L + 1) / epsilon each."""
    single = thesis_mechanism(Setting(bins, False), Budget(epsilon / 2))
    levels = single.strategy.height + 1  # type: ignore[attr-defined]
    scale = Fraction(levels) / Fraction(epsilon / 2)
    noise = (Block("laplace", scale.limit_denominator(1 << 20), single.noise[0].size),)
    joint = join(Mechanism(single.strategy, noise, "joint"), "joint", False)
    grid = mirrored_grid((0.0, 1.0), bins)
    counts = np.concatenate([grid.count(-score[y == label]) for label in (0, 1)])
    noisy = noisy_counts(joint, counts, Randomness.seeded(rng)).reshape(2, -1)
    return PrivateROC(
        TwoClassCounts(
            grid=grid,
            noisy=noisy,
            counts=smooth_both(noisy, joint, smooth, None),
            mechanism=joint,
            budget=Budget(epsilon),
            relation=REPLACE_ONE,
            smoothing="none" if smooth is None else smooth,
            records=None,
            promise=Promise((joint.event,), 0.0, "experiment", REPLACE_ONE, "seeded"),
        )
    )
