"""What a private choice of settings costs and gains on tables: ``python experiments/tuning.py``.

Three classifiers of the same epsilon: the default setting, the best of a random number of settings
by `tune=` (its epsilon covers the choice), and the setting that is best on the test rows (which no
epsilon covers; a bound on what tuning could gain). Several dealings of the rows.
"""

from __future__ import annotations

import argparse
import json
import statistics

import numpy as np
import torch

from noisewise.datasets import load_table
from noisewise.estimators import PrivateClassifier, Tuning

GRID = [
    {"learning_rate": rate, "hidden_layer_sizes": hidden}
    for rate in (0.25, 1.0, 4.0)
    for hidden in ((), (64,))
]


def main() -> None:
    """Fit all three for every dealing, and print a line for each table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="+")
    parser.add_argument("--epsilon", type=float, default=2.0)
    parser.add_argument("--dealings", type=int, default=3)
    parser.add_argument("--trials", type=float, default=4.0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.tables:
        table = load_table(name)
        y = table.frame[table.target].to_numpy()
        frame = table.frame.drop(columns=table.target)
        found: dict[str, list[float]] = {"default": [], "tuned": [], "best on the test rows": []}
        for seed in range(args.dealings):
            order = np.random.default_rng(seed).permutation(len(frame))
            cut = len(order) * 4 // 5
            train, test = frame.iloc[order[:cut]], frame.iloc[order[cut:]]
            common = {
                "epsilon": args.epsilon,
                "delta": 1e-5,
                "schema": name,
                "classes": np.unique(y),
                "random_state": seed,
                "calibration_share": 0.0,
                "preflight": False,
            }

            def score(common=common, train=train, test=test, order=order, cut=cut, y=y, **changes):
                model = PrivateClassifier(**common, **changes).fit(train, y[order[:cut]])
                return 100 * float((model.predict(test) == y[order[cut:]]).mean())

            found["default"].append(score())
            found["tuned"].append(score(tune=Tuning(GRID, trials=args.trials)))
            found["best on the test rows"].append(max(score(**setting) for setting in GRID))
        line = {key: round(statistics.mean(values), 2) for key, values in found.items()}
        print(json.dumps({"table": name, "epsilon": args.epsilon, **line}), flush=True)


if __name__ == "__main__":
    main()
