"""What is run: one seeded function for each thing whose result must not change.

Each entry names only public doors of the library, so that it outlives the code behind them.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

import noisewise as nw
from noisewise import ecdf, federated, nn as layers, privacy

CATALOGUE = {}

#: Their noise is searched with an accountant whose last bit depends on where arrays lie in memory.
SEARCHED = {"training: target epsilon"}


def golden(name):
    """Put a function into the catalogue."""

    def enter(function):
        assert name not in CATALOGUE, name
        CATALOGUE[name] = function
        return function

    return enter


# ------------------------------------------------------------------------------ training


def table(records=300):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(records, 5, generator=generator)
    return x, (x.sum(1) > 0).long()


def pictures(records=120):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(records, 1, 6, 6, generator=generator)
    return x, (x.mean((1, 2, 3)) > 0).long()


def dense():
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2))


def convolutional():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)
    )


def recurrent():
    return nn.Sequential(nn.Embedding(7, 4), nn.LayerNorm(4), nn.Flatten(), nn.Linear(12, 2))


def words(records=200):
    generator = torch.Generator().manual_seed(2)
    x = torch.randint(0, 7, (records, 3), generator=generator)
    return x, (x.sum(1) > 9).long()


def lipschitz():
    return nn.Sequential(
        layers.BoundedInput((5,), 2.0),
        layers.SpectralLinear(5, 8),
        layers.GroupSort(2),
        layers.SpectralLinear(8, 2),
    )


def trained(make, data, gradients, loss=None, **plan):
    """The weights, the statement and the plan's constants after a few seeded steps."""
    torch.manual_seed(0)
    model = make()
    fixed = dict(noise_multiplier=1.1, steps=6, batch_size=40, delta=1e-5, seed=3)
    changes = {**fixed, **plan}
    the_plan = nw.Plan(
        gradients=gradients, **{name: v for name, v in changes.items() if v is not None}
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = nw.make_private(model, optimizer, loss or nn.CrossEntropyLoss(), data, the_plan)
    for x, y in run.loader:
        run.step(x, y)
    run.close()
    return {
        "weights": dict(run.plain_model.state_dict()),
        "statement": run.statement(),
        "plan": the_plan.to_dict(),
    }


TRAININGS = {
    "clipped": (dense, table, nw.Clipped(1.0), {}),
    "clipped per layer": (dense, table, nw.Clipped(0.5, per="layer"), {}),
    "clipped per parameter, noise per layer": (
        dense, table, nw.Clipped(0.5, per="parameter"), {"noise": "per-layer"},
    ),
    "clipped per layer, global noise": (
        dense, table, nw.Clipped((0.5, 1.0), per="layer"), {"noise": "global"},
    ),
    "automatic": (dense, table, nw.Clipped(1.0, rule="automatic"), {}),
    "global": (dense, table, nw.Clipped(1.0, rule="global"), {}),
    "normalise": (dense, table, nw.Clipped(1.0, rule="normalise"), {}),
    "schedule": (
        dense, table, nw.Schedule([(0.0, nw.Clipped(1.0)), (0.5, nw.Clipped(1.0, rule="global"))]),
        {},
    ),
    "factored": (dense, table, nw.Factored(0.7), {}),
    "factored convolution": (convolutional, pictures, nw.Factored(0.7), {"batch_size": 20}),
    "clipped convolution": (convolutional, pictures, nw.Clipped(1.0), {"batch_size": 20}),
    "clipped embedding": (recurrent, words, nw.Clipped(1.0), {}),
    "input-scaled": (lipschitz, table, nw.InputScaled(loss_clip=0.5), {}),
    "propagated": (lipschitz, table, nw.Propagated(loss_clip=0.5), {}),
    "propagated, replace-one": (lipschitz, table, nw.Propagated(), {"relation": "replace-one"}),
    "full batch": (
        dense, table, nw.Clipped(1.0), {"sampling": "full", "batch_size": None, "steps": 3},
    ),
    "replace-one by rdp": (
        dense, table, nw.Clipped(1.0), {"relation": "replace-one", "accountant": "rdp"},
    ),
    "target epsilon": (
        dense, table, nw.Clipped(1.0),
        {"noise_multiplier": None, "epsilon": 2.0, "steps": None, "epochs": 1},
    ),
}  # fmt: skip
for _name, (_model, _data, _gradients, _plan) in TRAININGS.items():
    golden(f"training: {_name}")(
        lambda m=_model, d=_data, g=_gradients, p=_plan: trained(m, d(), g, **p)
    )


@golden("training: charged to a ledger")
def charged():
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        model = dense()
        run = nw.make_private(
            model,
            torch.optim.Adam(model.parameters(), lr=0.01),
            nn.CrossEntropyLoss(),
            table(),
            nw.Plan(noise_multiplier=1.0, steps=4, batch_size=30, delta=1e-5, seed=5),
            ledger=Path(folder) / "ledger",
        )
        for x, y in run.loader:
            run.step(x, y)
        run.close()
        with privacy.Ledger.open(Path(folder) / "ledger") as ledger:
            return {
                "weights": dict(run.plain_model.state_dict()),
                "spent": ledger.spent(delta=1e-5),
                "digest": [charge.digest for charge in ledger.charges],
                "statement": ledger.statement(mechanism="training", delta=1e-5),
            }


# ------------------------------------------------------------------------------ mechanisms

MECHANISMS = {
    "gaussian": lambda **o: privacy.gaussian(
        np.arange(4.0), sensitivity=2.0, epsilon=1.0, delta=1e-6, **o
    ),
    "gaussian tensor": lambda **o: privacy.gaussian(
        torch.arange(3.0), sensitivity=1.0, epsilon=3.0, delta=1e-6, **o
    ),
    "laplace": lambda **o: privacy.laplace(np.arange(4.0), sensitivity=2.0, epsilon=1.0, **o),
    "discrete laplace": lambda **o: privacy.discrete_laplace(
        np.arange(4), sensitivity=2, epsilon=0.5, **o
    ),
    "discrete gaussian": lambda **o: privacy.discrete_gaussian(
        np.arange(4), sensitivity=2, epsilon=0.5, delta=1e-6, **o
    ),
    "discrete gaussian of rho": lambda **o: privacy.discrete_gaussian(
        np.arange(4), sensitivity=2, rho=0.1, delta=1e-6, **o
    ),
    "exponential": lambda **o: privacy.exponential(
        [1.0, 3.0, 2.5, 7.0, 6.0], sensitivity=1.0, epsilon=0.8, **o
    ),
    "permute and flip": lambda **o: privacy.permute_and_flip(
        [1.0, 3.0, 2.5, 7.0, 6.0], sensitivity=1.0, epsilon=0.8, **o
    ),
    "output perturbation": lambda **o: privacy.output_perturbation(
        privacy.LogisticProblem(
            np.random.default_rng(0).normal(size=(200, 3)),
            np.random.default_rng(1).integers(0, 2, 200),
            regularisation=5.0,
            norm_bound=1.0,
        ),
        epsilon=1.0,
        delta=1e-6,
        **o,
    ),
}
for _name, _mechanism in MECHANISMS.items():
    for _relation in ("add-remove", "replace-one"):
        golden(f"mechanism: {_name}, {_relation}")(
            lambda m=_mechanism, r=_relation: list(m(relation=r, rng=7, unit="one patient"))
        )

# ------------------------------------------------------------------------------ curves


def scored(records=600):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, records)
    return y, np.clip(rng.normal(0.35 + 0.3 * y, 0.15), 0, 1)


def _ecdf(**options):
    options = {"relation": "replace-one", **options}
    found = ecdf.dp_ecdf(scored()[1], bounds=(0, 1), rng=3, **options)
    delta = 1e-6 if "rho" in options else None
    return {
        "noisy": found.noisy_counts,
        "counts": found.counts,
        "probabilities": found.probabilities,
        "variance": found.variance(),
        "statement": found.statement(delta),
    }


for _name, _options in {
    "pure": {"epsilon": 0.7, "bins": 64},
    "add-remove": {"epsilon": 0.7, "bins": 64, "relation": "add-remove"},
    "approximate": {"epsilon": 0.7, "delta": 1e-6, "bins": 64},
    "concentrated": {"rho": 0.1, "bins": 64},
    "kary": {"epsilon": 0.7, "bins": 64, "mechanism": "kary"},
    "kary, shrunk": {"epsilon": 0.7, "bins": 64, "mechanism": "kary", "smooth": "shrink"},
    "thesis": {"epsilon": 0.7, "bins": 64, "mechanism": "thesis", "base": 2},
    "thesis, l1": {"epsilon": 0.7, "bins": 64, "mechanism": "thesis", "base": 2, "smooth": "l1"},
    "histogram": {"epsilon": 0.7, "bins": 16, "mechanism": "histogram"},
    "square root": {"epsilon": 0.7, "delta": 1e-6, "bins": 64, "mechanism": "sqrt"},
    "adaptive": {"epsilon": 0.7, "bins": 64, "mechanism": "adaptive"},
    "thresholds": {"epsilon": 0.7, "thresholds": [0.1, 0.4, 0.9]},
}.items():
    golden(f"curve: dp_ecdf, {_name}")(lambda o=_options: _ecdf(**o))

LABELLED = {
    "dp_roc_curve": (ecdf.dp_roc_curve, {"bins": 64}),
    "dp_roc_auc_score": (ecdf.dp_roc_auc_score, {"bins": 64}),
    "dp_precision_recall_curve": (ecdf.dp_precision_recall_curve, {"bins": 64}),
    "dp_average_precision_score": (ecdf.dp_average_precision_score, {"bins": 64}),
    "dp_det_curve": (ecdf.dp_det_curve, {"bins": 64}),
    "dp_calibration_curve": (ecdf.dp_calibration_curve, {}),
    "dp_expected_calibration_error": (ecdf.dp_expected_calibration_error, {}),
}
for _name, (_curve, _options) in LABELLED.items():
    for _word, _relation in (("replace", "replace-one"), ("add-remove", "add-remove")):
        for _delta in (0.0, 1e-6):
            golden(f"curve: {_name}, {_word}, delta {_delta:g}")(
                lambda c=_curve, o=_options, n=_relation, d=_delta: c(
                    *scored(), epsilon=0.8, delta=d, relation=n, rng=3, **o
                )
            )


@golden("curve: private_roc")
def roc():
    found = ecdf.private_roc(*scored(), epsilon=0.8, bins=32, rng=4, relation="replace-one")
    return {
        "fpr": found.fpr,
        "tpr": found.tpr,
        "auc": found.auc,
        "interval": found.auc_interval(0.9),
        "statement": found.statement(),
    }


@golden("curve: private_calibration by quantiles")
def calibration():
    found = ecdf.private_calibration(
        *scored(), epsilon=2.0, strategy="quantile", rng=4, relation="replace-one"
    )
    return {"true": found.prob_true, "ece": found.ece, "statement": found.statement()}


for _name, _options in {
    "cumulative": {},
    "independent": {"noise": "independent"},
    "add-remove": {"relation": "add-remove"},
    "approximate": {"delta": 1e-6},
}.items():
    golden(f"curve: dp_histogram, {_name}")(
        lambda o=_options: ecdf.dp_histogram(
            scored()[1], 16, (0, 1), epsilon=0.8, rng=3, **{"relation": "replace-one", **o}
        )
    )


def _hosmer_lemeshow(**options):
    found = ecdf.dp_hosmer_lemeshow(
        *scored(), epsilon=2.0, relation="replace-one", rng=3, draws=500, **options
    )
    return {"p": found.p_value, "statistic": found.statistic, "statement": found.statement()}


for _method in ("residual", "thesis", "statistic"):
    golden(f"curve: dp_hosmer_lemeshow, {_method}")(
        lambda m=_method: _hosmer_lemeshow(method=m, groups=5)
    )


@golden("curve: private_evaluation")
def evaluation():
    found = ecdf.private_evaluation(*scored(), epsilon=3.0, bins=64, rng=3, relation="replace-one")
    return {"auc": found.roc.auc, "statement": found.statement()}


def _stream(**options):
    items = np.random.default_rng(5).integers(0, 2, 50)
    with ecdf.StreamingCounter(rng=3, **options) as counter:
        return {
            "counts": counter.extend(items),
            "variance": counter.variance,
            "statement": counter.statement(),
        }


for _name, _options in {
    "kary": {"epsilon": 1.0, "horizon": 50},
    "kary without end": {"epsilon": 1.0},
    "thesis": {"epsilon": 1.0, "horizon": 64, "mechanism": "thesis"},
    "square root": {"epsilon": 1.0, "delta": 1e-6, "horizon": 50},
    "square root without end": {"epsilon": 1.0, "delta": 1e-6},
    "bound": {"epsilon": 1.0, "horizon": 50, "bound": 3},
}.items():
    golden(f"stream: {_name}")(lambda o=_options: _stream(**o))


@golden("stream: resumed, and charged to a ledger")
def resumed():
    items = np.random.default_rng(5).integers(0, 2, 60)
    with tempfile.TemporaryDirectory() as folder:
        path, ledger = Path(folder) / "state", Path(folder) / "ledger"
        counts = []
        options = dict(epsilon=1.0, delta=1e-6)
        with ecdf.StreamingCounter(path=path, ledger=ledger, rng=3, **options) as counter:
            counts.append(counter.extend(items[:25]))
        with ecdf.StreamingCounter.resume(path, ledger=ledger, rng=4) as counter:
            counts.append(counter.extend(items[25:]))
            statement = counter.statement()
        with privacy.Ledger.open(ledger) as book:
            return {"counts": counts, "statement": statement, "spent": book.spent()}


# ------------------------------------------------------------------------------ parties


def _parties():
    y, score = scored(345)
    ends = (40, 45)
    return list(zip(np.split(y, ends), np.split(score, ends), strict=True))


AGGREGATORS = {
    "one machine": federated.LocalAggregator,
    "masked": federated.MaskedAggregator,
    "masked, one colluding": lambda: federated.MaskedAggregator(threshold=3, colluding=1),
    "two servers": federated.FunctionSharing,
    "four servers": lambda: federated.FunctionSharing(servers=4, honest=2),
}


def _across(aggregator, **options):
    scores = [score for _, score in _parties()]
    asked = dict(epsilon=0.7, bins=16, relation="replace-one", rng=3)
    curve = federated.ecdf(scores, aggregator, bounds=(0, 1), **asked)
    area = federated.roc(_parties(), aggregator, **asked)
    counts = federated.histogram(scores, aggregator, range=(0, 1), **asked)
    test = federated.hosmer_lemeshow(
        _parties(), aggregator, groups=4, draws=200, **{**asked, "epsilon": 2.0, "bins": 64}
    )
    return {
        "ecdf": [curve.noisy_counts, curve.probabilities, curve.statement()],
        "roc": [area.fpr, area.tpr, area.auc, area.statement()],
        "histogram": [counts.counts, counts.statement()],
        "hosmer-lemeshow": [test.p_value, test.statement()],
    }


for _name, _aggregator in AGGREGATORS.items():
    golden(f"parties: {_name}")(lambda a=_aggregator: _across(a()))

# ------------------------------------------------------------------------------ accountants

HISTORIES = {
    "poisson": [privacy.PoissonGaussian(1.1, 0.02, 500)],
    "poisson, little noise": [privacy.PoissonGaussian(0.4, 0.1, 3)],
    "poisson, many steps": [privacy.PoissonGaussian(8.0, 0.001, 300_000)],
    "full batch": [privacy.PoissonGaussian(20.0, 1.0, 30)],
    "gaussian": [privacy.Gaussian(4.0, 3)],
    "gaussian on a grid": [privacy.Gaussian(4.0, 3, variation=1e-12)],
    "laplace": [privacy.Laplace(5.0, 20)],
    "pure": [privacy.Pure(0.05, 40)],
    "concentrated": [privacy.ZeroConcentrated(0.01, 5)],
    "mixed": [
        privacy.PoissonGaussian(1.5, 0.05, 50),
        privacy.Gaussian(10.0, variation=1e-13),
        privacy.Laplace(10.0, 2),
        privacy.Pure(0.1),
    ],
    "mixed with concentrated": [privacy.ZeroConcentrated(0.01), privacy.Pure(0.1)],
    "nothing": [],
}


def _refused(function, *arguments, **options):
    try:
        return function(*arguments, **options)
    except ValueError as error:
        return f"{type(error).__name__}: {error}"


def _accounted(history):
    from noisewise.privacy.independent import estimate_epsilon

    found = {}
    for relation in ("add-remove", "replace-one"):
        for accountant in ("pld", "rdp"):
            options = {"relation": relation, "accountant": accountant}
            found[f"{relation}, {accountant}"] = [
                *(_refused(privacy.epsilon_of, history, delta=d, **options) for d in (0.0, 1e-6)),
                _refused(privacy.epsilon_of, history, delta=1e-13, **options),
                _refused(privacy.delta_of, history, epsilon=0.9, **options),
            ]
        found[f"{relation}, independent"] = _refused(
            estimate_epsilon, history, delta=1e-6, relation=relation
        )
    return found


for _name, _history in HISTORIES.items():
    golden(f"accountant: {_name}")(lambda h=_history: _accounted(h))


@golden("accountant: searches")
def searches():
    return {
        f"{relation}, {accountant}": [
            privacy.noise_multiplier(
                epsilon=2.0, delta=1e-6, steps=200, sample_rate=0.02,
                relation=relation, accountant=accountant,
            ),
            privacy.max_steps(
                noise_multiplier=1.0, epsilon=2.0, delta=1e-6, sample_rate=0.02,
                relation=relation, accountant=accountant,
            ),
        ]
        for relation in ("add-remove", "replace-one")
        for accountant in ("pld", "rdp")
    }  # fmt: skip


@golden("statement: of every event")
def statements():
    found = []
    for name, history in HISTORIES.items():
        if not history:
            continue
        statement = privacy.Statement.derive(
            history,
            delta=1e-6,
            mechanism=name,
            accountant="rdp" if "concentrated" in name else "pld",
        )
        found.append([statement, str(statement).replace(nw.__version__, "")])
    return found
