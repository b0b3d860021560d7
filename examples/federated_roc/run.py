"""Three banks, two servers, one private ROC curve: ``python examples/federated_roc/run.py``.

Everything that would stand on separate machines runs here as separate processes that talk over
TLS on this machine: two aggregation servers (``noisewise serve``), three branches of a bank, each
with its own customers (``noisewise contribute``), and an analyst (``noisewise collect``). The
scores come from a logistic regression on the Bank marketing data; each record is scored by a
model that was fitted without it. The models are not private: what is protected here is the
evaluation data. The picture also shows the true curve, which nobody in the protocol can draw:
this script can, because it plays all the parts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score, roc_curve
from sklearn.model_selection import StratifiedKFold, cross_val_predict

from noisewise.datasets import load_table
from noisewise.federated.network.trial import Trial, make_trial

COMMAND = [sys.executable, "-c", "from noisewise.cli import main; main()"]
BRANCHES = {"lisbon": 0.5, "porto": 0.3, "braga": 0.2}


def scored_records() -> pd.DataFrame:
    """Return labels and held-out scores of the Bank marketing data."""
    features, labels = load_table("bank_marketing").encode()
    labels = np.asarray(labels)
    y = (labels == labels.max()).astype(int)
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    model = LogisticRegression(max_iter=300)
    scores = cross_val_predict(model, features, y, cv=folds, method="predict_proba")[:, 1]
    return pd.DataFrame({"y": y, "score": scores})


def divide(records: pd.DataFrame, folder: Path) -> None:
    """Give each branch its own records, as a file of its own."""
    order = np.random.default_rng(0).permutation(len(records))
    ends = np.cumsum([round(share * len(records)) for share in BRANCHES.values()])[:-1]
    for name, rows in zip(BRANCHES, np.split(order, ends), strict=True):
        records.iloc[rows].to_parquet(folder / f"{name}.parquet")
        print(f"{name}: {len(rows):,} records")


def command(*words: str) -> None:
    subprocess.run([*COMMAND, *words], check=True)


def contribute(trial: Trial, name: str) -> None:
    """Run one branch's process."""
    command(
        "contribute", "--data", str(trial.folder / f"{name}.parquet"), "--column", "score",
        "--label", "y", "--config", str(trial.config(name)),
    )  # fmt: skip


@contextmanager
def running_servers(trial: Trial) -> Iterator[None]:
    processes = [
        subprocess.Popen([*COMMAND, "serve", "--config", str(trial.config(name))])
        for name in trial.servers
    ]
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(30)


def draw(records: pd.DataFrame, folder: Path, epsilon: float, servers: str, picture: Path) -> None:
    curve = pd.read_csv(folder / "roc.csv")
    found = json.loads((folder / "numbers.json").read_text())
    low, high = found["AUC, 95 % interval"]
    figure, axes = plt.subplots(figsize=(6.0, 5.6), layout="constrained")
    fpr, tpr, _ = roc_curve(records["y"], records["score"])
    truth = roc_auc_score(records["y"], records["score"])
    label = f"private (AUC {found['AUC']:.3f}, 95 %: {low:.3f} to {high:.3f})"
    axes.plot(curve["fpr"], curve["tpr"], label=label)
    axes.plot(fpr, tpr, "k:", linewidth=1.2, label=f"true, known to nobody (AUC {truth:.3f})")
    axes.plot([0, 1], [0, 1], color="0.8", linewidth=0.8)
    axes.set(xlabel="false positive rate", ylabel="true positive rate", aspect="equal")
    axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01))
    axes.set_title(
        f"{len(records):,} customers of three branches, {servers}, epsilon = {epsilon:g}",
        fontsize="medium",
    )
    axes.legend(loc="lower right", fontsize="small")
    figure.savefig(picture, dpi=120)
    plt.close(figure)
    print(f"AUC: private {found['AUC']:.4f} ({low:.4f} to {high:.4f}), true {truth:.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epsilon", type=float, default=0.5)
    parser.add_argument("--bins", type=int, default=1024)
    parser.add_argument("--route", choices=("functions", "vectors", "masks"), default="functions")
    parser.add_argument("--folder", type=Path, help="Keep all files here.")
    parser.add_argument("--picture", type=Path, default=Path(__file__).parent / "federated_roc.png")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="noisewise-federated-"))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    records = scored_records()
    trial = make_trial(
        folder,
        servers=["alpha"] if arguments.route == "masks" else ["alpha", "beta"],
        parties=list(BRANCHES),
        bins=arguments.bins,
        route=arguments.route,
        epsilon=arguments.epsilon,
        minimum_parties=3,
        name="bank",
    )
    divide(records, folder)
    began = time.monotonic()
    with running_servers(trial):
        # All at once: with masks they need each other.
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda name: contribute(trial, name), BRANCHES))
        command(
            "collect", "--config", str(trial.config("analyst")), "--curve", "roc",
            "--epsilon", str(arguments.epsilon), "--report", str(folder / "roc.html"),
            "--table", str(folder / "roc.csv"), "--statement", str(folder / "statement.json"),
        )  # fmt: skip
        # The same question again: the same answer, and nothing more is spent.
        again = subprocess.run(
            [*COMMAND, "collect", "--config", str(trial.config("analyst")), "--curve", "roc",
             "--epsilon", str(arguments.epsilon), "--json"],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        (folder / "numbers.json").write_text(again.stdout)
    command("verify", str(folder / "statement.json"))
    servers = "one server" if arguments.route == "masks" else "two servers"
    draw(records, folder, arguments.epsilon, servers, arguments.picture)
    print(f"{time.monotonic() - began:.0f} seconds; files in {folder}; picture {arguments.picture}")


if __name__ == "__main__":
    main()
