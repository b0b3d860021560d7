"""Rows are not people: ``python units.py`` on the visits of diabetic patients (Strack et al. 2014).

101,766 hospital stays of 71,518 patients; the task is whether a patient comes back. A linear
`PrivateClassifier` is trained at the same epsilon, once protecting every stay by itself and once
every patient with all stays. Patients, not stays, are held out: seed s tests on every fifth of
them. Three hospitals that hold all stays release one ROC curve of a public score. What the
statement about stays is worth to a patient with k of them is accounted for by
`PoissonRows`, and by group privacy, the bad bound.

Every fit is stored when it is done (``docs/images/units.json``): a command that was stopped, or
given ``--seconds``, goes on where it was. With all fits at hand the tables go into
``docs/units.md`` and ``docs/units-details.md``.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score

from noisewise import datasets, federated
from noisewise.estimators import PrivateClassifier
from noisewise.federated import MaskedAggregator
from noisewise.privacy import (
    PoissonGaussian,
    PoissonRows,
    epsilon_of,
    group_privacy_of,
    noise_multiplier,
    verify,
)
from noisewise.privacy.statement import round_up
from noisewise.release import Units

DOCS = Path(__file__).parents[1] / "docs"
STORE, PAGES = DOCS / "images" / "units.json", (DOCS / "units.md", DOCS / "units-details.md")
EPSILONS, SEEDS, PARTS = (0.01, 0.1, 1.0, 3.0, 10.0), (0, 1, 2, 3, 4), 5
#: Of which statements about stays is said what they are worth to a patient.
WORTH = (1.0, 3.0)
ROC_EPSILONS, ROC_RUNS, HOSPITALS = (0.1, 1.0), 20, 3
DELTA = 1e-6
STAYS = (1, 2, 3, 5, 10, 20, 40)
UNFINISHED = 75


def read() -> tuple[pd.DataFrame, datasets.Schema]:
    """Stays, with a yes or no whether the patient came back."""
    table = datasets.load_table("diabetes130")
    assert table.schema is not None
    frame = table.frame.assign(readmitted=np.where(table.frame["readmitted"] == "NO", "NO", "YES"))
    return frame, replace(table.schema, classes=("NO", "YES"), unit="patient_nbr")


def fitted(frame: pd.DataFrame, schema: datasets.Schema, job: dict[str, Any]) -> dict[str, Any]:
    """One fit: its noise, and how it does on patients it has not seen."""
    patients = frame["patient_nbr"].to_numpy()
    names = np.unique(patients)
    held = np.random.default_rng(job["seed"]).permutation(len(names)) % PARTS == 0
    test = held[np.searchsorted(names, patients)]
    own = schema if job["unit"] == "patient" else replace(schema, unit=None)
    model = PrivateClassifier(
        epsilon=job["epsilon"],
        schema=own,
        classes=["NO", "YES"],
        calibration_share=0.0,
        hidden_layer_sizes=(),
        learning_rate=0.05,
        random_state=job["seed"],
    )
    train = frame[~test].reset_index(drop=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(train, train["readmitted"].to_numpy())
    statement = model.statement_
    assert statement.epsilon <= job["epsilon"]
    truth = (frame["readmitted"][test] == "YES").to_numpy()
    return {
        **job,
        "auc": float(roc_auc_score(truth, model.decision_function(frame[test]))),
        "noise_multiplier": statement.noise_multiplier,
        "sample_rate": statement.sample_rate,
        "steps": statement.steps,
        "delta": statement.delta,
    }


def across_hospitals(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """One ROC curve of three hospitals, protecting a stay, or a patient in different ways."""
    earlier = frame[["number_inpatient", "number_emergency", "number_outpatient"]].sum(axis=1)
    p = 1 - 0.8 ** earlier.to_numpy(np.float64)
    truth = (frame["readmitted"] == "YES").to_numpy()
    patients = frame["patient_nbr"].to_numpy()
    # A stay is at any hospital, so that a patient is known to up to all of them.
    at = np.random.default_rng(1).integers(HOSPITALS, size=len(p))
    parties = [(truth[at == h].astype(int), p[at == h]) for h in range(HOSPITALS)]
    ids = [patients[at == h] for h in range(HOSPITALS)]
    # What the curve of patients is compared with: every stay of a patient with c weighs 1 / c.
    sizes = pd.Series(patients).map(pd.Series(patients).value_counts()).to_numpy()
    ways: dict[str, tuple[Any, Any]] = {
        "one stay": (None, None),
        "one patient, known to any hospital": (Units(ids, name="one patient"), 1 / sizes),
        "one patient, known to one hospital": (Units(ids, "one patient", parties=1), 1 / sizes),
        "one patient, common pseudonym": (Units(ids, "one patient", common=True), 1 / sizes),
    }
    found = []
    for epsilon in ROC_EPSILONS:
        for unit, (units, weights) in ways.items():
            exact = float(roc_auc_score(truth, p, sample_weight=weights))
            errors = []
            for seed in range(ROC_RUNS):
                curve = federated.roc(
                    parties, MaskedAggregator(), epsilon=epsilon, bins=256, units=units, seed=seed
                )
                errors.append(curve.auc - exact)
            statement = curve.statement()
            assert statement.epsilon <= epsilon * (1 + 1e-9)
            assert verify(statement).ok
            found.append(
                {
                    "unit": unit,
                    "epsilon": epsilon,
                    "auc": exact,
                    "error": float(np.sqrt(np.mean(np.square(errors)))),
                }
            )
    return found


def worth(epsilon: float) -> list[dict[str, Any]]:
    """What a statement about single stays says of patients with several, by the defaults."""
    rate, steps = PrivateClassifier().sample_rate, PrivateClassifier().steps
    sigma = noise_multiplier(epsilon=epsilon, delta=DELTA, sample_rate=rate, steps=steps)
    single = PoissonGaussian(sigma, rate, steps)
    found = []
    for stays in STAYS:
        group = group_privacy_of(single, size=stays, delta=DELTA)
        own = epsilon_of(PoissonRows(sigma, rate, stays, steps), delta=DELTA)
        found.append(
            {"stays": stays, "epsilon": own, "group": None if math.isinf(group) else group}
        )
    return found


def jobs() -> list[dict[str, Any]]:
    """All fits of the page."""
    return [
        {"unit": unit, "epsilon": epsilon, "seed": seed}
        for seed in SEEDS
        for epsilon in EPSILONS
        for unit in ("stay", "patient")
    ]


def tables(stored: dict[str, Any]) -> dict[str, str]:
    """The parts of the page, by name."""
    cost = ["| epsilon | unit | AUC | noise multiplier |", "|---|---|---|---|"]
    for epsilon in EPSILONS:
        for unit in ("stay", "patient"):
            fits = [f for f in stored["fits"] if (f["epsilon"], f["unit"]) == (epsilon, unit)]
            auc = [f["auc"] for f in fits]
            cost.append(
                f"| {epsilon:g} | one {unit} | {np.mean(auc):.3f} ({min(auc):.3f} to "
                f"{max(auc):.3f}) | {fits[0]['noise_multiplier']:.3g} |"
            )
    patients = stored["patients"]
    head = " | ".join(f"stated {epsilon:g}" for epsilon in WORTH)
    value = [
        f"| stays | patients with as many or more | {head} | group privacy of {WORTH[0]:g} |",
        "|---|---|" + "---|" * (len(WORTH) + 1),
    ]
    for index, stays in enumerate(STAYS):
        rows = [stored["worth"][f"{epsilon:g}"][index] for epsilon in WORTH]
        group = rows[0]["group"]
        cells = " | ".join(round_up(row["epsilon"], 3) for row in rows)
        told = "nothing" if group is None else round_up(group, 3)
        value.append(f"| {stays} | {patients[str(stays)]:,} | {cells} | {told} |")
    roc = ["| epsilon | unit | AUC without noise | error of the private AUC |", "|---|---|---|---|"]
    roc += [
        f"| {one['epsilon']:g} | {one['unit']} | {one['auc']:.3f} | {one['error']:.4f} |"
        for one in stored["roc"]
    ]
    return {"cost": "\n".join(cost), "worth": "\n".join(value), "hospitals": "\n".join(roc)}


def main() -> int:
    """Do what is missing, then write the page."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=math.inf)
    limit = time.monotonic() + options.parse_args().seconds
    stored = json.loads(STORE.read_text()) if STORE.exists() else {"fits": []}
    frame, schema = read()
    counts = frame["patient_nbr"].value_counts()
    stored["patients"] = {str(k): int((counts >= k).sum()) for k in STAYS}
    stored["worth"] = {f"{epsilon:g}": worth(epsilon) for epsilon in WORTH}
    STORE.write_text(json.dumps(stored, indent=1) + "\n", "utf-8")
    done = [{name: fit[name] for name in ("unit", "epsilon", "seed")} for fit in stored["fits"]]
    for job in jobs():
        if job in done:
            continue
        if time.monotonic() > limit:
            return UNFINISHED
        stored["fits"].append(fitted(frame, schema, job))
        STORE.write_text(json.dumps(stored, indent=1) + "\n", "utf-8")
        print(stored["fits"][-1], flush=True)
    if "roc" not in stored:
        stored["roc"] = across_hospitals(frame)
    STORE.write_text(json.dumps(stored, indent=1) + "\n", "utf-8")
    for place in PAGES:
        page = place.read_text("utf-8")
        for name, table in tables(stored).items():
            begin, end = f"<!-- begin of {name} -->", f"<!-- end of {name} -->"
            if begin in page:
                before, rest = page.split(begin)
                page = f"{before}{begin}\n{table}\n{end}{rest.split(end)[1]}"
        place.write_text(page, "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
