"""What calibrated probabilities cost and give, on seven tables: ``python calibration.py``.

For each table of Barczewski and Ramon (2024): `PrivateClassifier` as it comes at epsilon 1, with
and without the part of epsilon that goes into calibration. Expected calibration error over 15
intervals of confidence (Guo et al. 2017) and accuracy, both on held-out rows without noise, means
over the seeds. The table is printed as Markdown, for docs/estimators.md.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np

from noisewise.cli.training_job import read_data
from noisewise.estimators import PrivateClassifier

TABLES = {
    "Adult": "adult",
    "Android": "naticusdroid",
    "Breast cancer": "breast_cancer_wdbc",
    "Default credit": "default_credit",
    "Dropout": "students_dropout",
    "German credit": "german_credit",
    "Nursery": "nursery",
}


def calibration_error(p: np.ndarray, right: np.ndarray, bins: int = 15) -> float:
    """Mean distance of confidence and accuracy over intervals of confidence."""
    place = np.minimum((p * bins).astype(int), bins - 1)
    return float(np.abs(np.bincount(place, p - right, bins)).sum() / len(p))


def measure(name: str, share: float, seed: int, epsilon: float) -> tuple[float, float]:
    """Return calibration error and accuracy of one fit."""
    data = read_data(name, None, None, 0.2, seed)
    model = PrivateClassifier(
        epsilon,
        schema=data.schema,
        classes=list(data.classes or ()),
        calibration_share=share,
        random_state=seed,
    )
    model.fit(data.x_train, data.y_train)
    assert model.statement_.epsilon <= epsilon
    probabilities = model.predict_proba(data.x_test)
    right = model.classes_[probabilities.argmax(1)] == data.y_test
    return calibration_error(probabilities.max(1), right), float(right.mean())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tables", nargs="*", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--epsilon", type=float, default=1.0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    print("| table | ECE, not calibrated | ECE | accuracy, not calibrated | accuracy |")
    print("|---|---:|---:|---:|---:|")
    for title in options.tables:
        name = TABLES[title]
        found = np.array(
            [
                [measure(name, share, seed, options.epsilon) for seed in range(options.seeds)]
                for share in (0.0, 0.05)
            ]
        ).mean(axis=1)
        (before, plain), (after, accuracy) = found
        print(
            f"| {title} | {before:.1%} | **{after:.1%}** | {plain:.4f} | {accuracy:.4f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
