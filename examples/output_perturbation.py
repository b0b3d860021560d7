"""Private logistic regression on the Adult census table, at epsilon 1.

Load bundled data, encode it by its *public* schema, fit by output perturbation (Gaussian
noise on the minimiser of a strongly convex problem), and print accuracy beside the
non-private fit and the majority class, with the privacy statement. Run it with
``python examples/output_perturbation.py``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import LogisticRegression

from noisewise import datasets, privacy

EPSILON, DELTA = 1.0, 1e-6
# Public choices, made before looking at these records.
REGULARISATION = 30.0
TRAINING_ROWS = 32_561  # the census bureau's own split: the file adult.data


def main() -> None:
    console = Console(highlight=False)
    adult = datasets.load_table("adult")
    schema = adult.schema
    assert schema is not None
    features, names = schema.encode(adult.frame, unit_norm=True)
    labels = schema.encode_target(adult.frame)
    train, test = slice(0, TRAINING_ROWS), slice(TRAINING_ROWS, None)
    console.print(
        f"Adult: {len(labels):,} people, {len(names)} features by public ranges and categories"
    )

    problem = privacy.LogisticProblem(
        features[train], labels[train], regularisation=REGULARISATION, norm_bound=1.0
    )
    weights, statement = privacy.output_perturbation(
        problem, epsilon=EPSILON, delta=DELTA, preprocessing=schema
    )
    plain = LogisticRegression(C=1.0, max_iter=1000).fit(features[train], labels[train])
    majority = np.bincount(labels[train]).argmax()

    def score(predicted: np.ndarray) -> str:
        return f"{100 * np.mean(predicted == labels[test]):.2f} %"

    private = features[test] @ weights[:-1] + weights[-1] > 0
    table = Table("model", "accuracy on the test file", "epsilon")
    table.add_row("majority class", score(np.full(len(labels[test]), majority)), "none")
    table.add_row("logistic regression, private", score(private), f"{EPSILON:g}")
    table.add_row("logistic regression, not private", score(plain.predict(features[test])), "none")
    console.print(table)
    console.print(str(statement))

    folder = Path("demo-output")
    folder.mkdir(exist_ok=True)
    path = folder / "statement.json"
    path.write_text(statement.to_json(), encoding="utf-8")
    outcome = privacy.verify(path)
    console.print(
        f"\nWritten to {path}. Verified by an independent accountant: epsilon "
        f"{outcome.independent:.4f}, {'it holds' if outcome.ok else 'MISMATCH'}."
    )


if __name__ == "__main__":
    main()
