"""A ledger of units: every charge says of how many rows it is, and only charges of one kind add up.

Why, and what a total is true for: docs/proofs/units.md#ledger.
"""

import json
from fractions import Fraction

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import noisewise as nw
from noisewise import ecdf
from noisewise.cli import app
from noisewise.errors import RelationError, StatementError, UnsoundError
from noisewise.estimators import PrivateClassifier
from noisewise.federated import LocalAggregator
from noisewise.privacy import (
    Gaussian,
    Ledger,
    PoissonGaussian,
    PoissonRows,
    Pure,
    Sensitivity,
    epsilon_of,
    verify,
)
from noisewise.privacy.statement import digest
from noisewise.release import IntegerNoise, MemoryAccount, Query, ThisProcess, Units, release


def rewritten(statement, **changes):
    """The file of somebody who changes fields and knows how the digest is made."""
    content = {k: change for k, change in statement.to_dict().items() if k != "digest"}
    for name, change in changes.items():
        content[name] = change(content[name])
    return json.dumps({**content, "digest": digest(content)})


RNG = np.random.default_rng(0)
ROWS = 120
Y, P, WHOSE = RNG.integers(0, 2, ROWS), RNG.random(ROWS), RNG.integers(0, 30, ROWS)
BINS = {"bins": 16}
#: Everything that releases a curve, by name.
CURVES = {
    "dp_ecdf": ((P,), {"bounds": (0, 1), **BINS}),
    "dp_ecdf by masks": ((P,), {"bounds": (0, 1), **BINS, "aggregator": LocalAggregator()}),
    "dp_ecdf with delta": ((P,), {"bounds": (0, 1), **BINS, "delta": 1e-6}),
    "dp_quantile": ((P, [0.2, 0.5]), {"bounds": (0, 1)}),
    "dp_quantile of a curve": ((P, 0.5), {"bounds": (0, 1), **BINS, "mechanism": "curve"}),
    "dp_histogram": ((P, 8, (0, 1)), {}),
    "private_roc": ((Y, P), BINS),
    "dp_roc_auc_score": ((Y, P), BINS),
    "private_calibration": ((Y, P), {"strategy": "quantile", "n_bins": 3, **BINS}),
    "dp_hosmer_lemeshow": ((Y, P), {"draws": 5, **BINS}),
    "dp_hosmer_lemeshow directly": ((Y, P), {"draws": 5, "method": "statistic", **BINS}),
    "private_evaluation": ((Y, P), BINS),
    "private_confusion": ((Y, Y), {"classes": [0, 1]}),
    "private_regression_errors": ((P, P), {"bounds": (0, 1)}),
}


def asked(name, rows, epsilon, ledger, seed=1):
    arguments, options = CURVES[name]
    units = Units(WHOSE, name="one patient")
    if "aggregator" in options:  # one party, so that the bound is that of one
        arguments, units = ([P],), Units([WHOSE], name="one patient")
    call = getattr(ecdf, name.split()[0])
    options = {"units": units, "max_per_unit": rows, "ledger": ledger, "seed": seed, **options}
    return call(*arguments, epsilon=epsilon, **options)


@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize("rows", [1, 7])
def test_a_curve_is_charged_as_it_is_stated_and_fits_a_budget_of_its_epsilon(name, rows, tmp_path):
    """0.06 is no multiple of a float by seven: what a row costs is rounded up, and still fits."""
    delta = 1e-6 if name == "dp_ecdf with delta" else 0.0
    path = tmp_path / "l"
    with Ledger.create(path, epsilon=0.06, delta=delta, unit="one patient") as ledger:
        stated = asked(name, rows, 0.06, ledger).statement()
        charged = ledger.statement(mechanism="all")
    assert charged.unit_rows == stated.unit_rows == rows
    assert charged.history == stated.history
    assert charged.epsilon <= 0.06
    assert "all rows of a unit carry its identifier" in "".join(charged.assumptions)
    assert verify(charged).ok


@pytest.mark.parametrize("options", [{}, {"delta": 1e-6}])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_stream_is_charged_by_its_items_of_a_unit(options, rows, tmp_path):
    counter = ecdf.StreamingCounter(
        epsilon=0.7, max_per_unit=rows, ledger=tmp_path / "l", seed=1, **options
    )
    counter.extend([1] * 40, units=[1, 2] * 20)
    stated = counter.statement()
    counter.close()
    with Ledger.open(tmp_path / "l") as ledger:
        charged = ledger.statement(mechanism="all")
    assert charged.unit_rows == stated.unit_rows == rows
    assert charged.history == stated.history
    assert options or stated.epsilon <= 0.7
    assert verify(charged).ok


def ledger_of_everything(tmp_path):
    """Training by units and by rows, two curves with other bounds, and a classifier."""
    path = tmp_path / "l"
    Ledger.create(path, delta=1e-6, unit="one patient").close()
    x, y = torch.randn(ROWS, 3, generator=torch.manual_seed(0)), torch.from_numpy(Y)
    for rule in ({"unit_rule": "units"}, {"unit_rule": "rows", "unit_rows": 2}):
        model = torch.nn.Linear(3, 2)
        plan = nw.Plan(noise_multiplier=5.0, delta=1e-6, steps=2, sample_rate=0.1,
                       unit="one patient", seed=1, **rule)  # fmt: skip
        with nw.make_private(
            model, torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.CrossEntropyLoss(),
            (x, y), plan, units=WHOSE, ledger=path, name=str(rule),
        ) as run:  # fmt: skip
            for batch in run.loader:
                run.step(*batch)
    asked("dp_ecdf", 3, 0.5, path)
    asked("private_roc", 7, 0.5, path, seed=2)
    return path


def test_charges_with_other_bounds_on_rows_add_up_for_the_unit_and_a_forged_one_fails(tmp_path):
    with Ledger.open(ledger_of_everything(tmp_path)) as ledger:
        statement = ledger.statement(mechanism="all")
        kinds = [type(event).__name__ for event in ledger.history]
    assert kinds == ["PoissonGaussian", "PoissonRows", "Pure", "Pure"]
    assert statement.unit_rows == 7
    assert "at most 7 of its rows count in releases that say so" in str(statement)
    assert "each unit independently with its rows, with probability 0.1" in statement.sampler
    assert "each row of a unit independently, with probability 0.1" in statement.sampler
    whole = [PoissonGaussian(5.0, 0.1, 2), PoissonRows(5.0, 0.1, 2, 2), Pure(0.5), Pure(0.5)]
    assert statement.epsilon == pytest.approx(epsilon_of(whole, delta=1e-6), rel=1e-2)
    assert verify(statement).ok

    def fewer(history):
        return [{**event, "rows": 1} if "rows" in event else event for event in history]

    with pytest.raises(StatementError, match="unit_rows"):
        verify(rewritten(statement, history=fewer))
    with pytest.raises(StatementError, match="one record"):
        verify(rewritten(statement, unit=lambda _: "one record", assumptions=about_records))
    for forged in (
        rewritten(statement, history=fewer, unit_rows=lambda _: 1),
        rewritten(statement, history=lambda events: [*events[:3], {**events[3], "rows": 8}],
                  unit_rows=lambda _: 8),
        rewritten(statement, epsilon=lambda value: 0.9 * value),
    ):  # fmt: skip
        assert not verify(forged).ok


def about_records(sentences):
    return [
        sentence.replace("one patient (added", "one record (one record added")
        for sentence in sentences
    ]


def test_what_rows_of_a_unit_cost_is_not_charged_to_a_ledger_of_single_rows(tmp_path):
    with Ledger.create(tmp_path / "l", epsilon=100.0, delta=1e-6) as ledger:
        for event in (Pure(0.1, rows=3), Gaussian(9.0, rows=1), PoissonRows(9.0, 0.1, 2)):
            for charge in (
                lambda event: ledger.charge(event),
                lambda event: ledger.charge([Pure(0.1), event]),
                lambda event: ledger.require_room(event),
                lambda event: ledger.charge_once(event, key="k", digest="d"),
            ):
                with pytest.raises(RelationError, match="one patient"):
                    charge(event)
        assert ledger.charges == ()


X = np.c_[P, P**2]
#: What releases, of rows or of units: every one refuses a ledger of the other.
RELEASES = {
    "curve": lambda units, ledger: ecdf.dp_ecdf(
        P, bounds=(0, 1), **BINS, epsilon=0.1, units=units, ledger=ledger
    ),
    "quantile": lambda units, ledger: ecdf.dp_median(
        P, bounds=(0, 1), epsilon=0.1, units=units, ledger=ledger
    ),
    "evaluation": lambda units, ledger: ecdf.private_evaluation(
        Y, P, **BINS, epsilon=0.1, units=units, ledger=ledger
    ),
}


@pytest.mark.parametrize("name", RELEASES)
def test_rows_and_units_are_never_added_up(name, tmp_path):
    """Neither promise follows from the other, so no total of both is true for anybody."""
    for unit, units in (("one record", Units(WHOSE, name="one patient")), ("one patient", None)):
        path = tmp_path / unit
        with Ledger.create(path, epsilon=9.0, unit=unit) as ledger:
            with pytest.raises(RelationError, match="one promise cannot mix them"):
                RELEASES[name](units, ledger)
            assert ledger.charges == ()


def test_a_row_of_a_patient_may_cost_twice_what_the_patient_does():
    """Why a charge for patients is none for rows: one who loses a row is not one who leaves."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    x, y = torch.tensor([[1.0], [1.0]]), torch.tensor([[30.0], [-10.0]])

    def bounded(kept):
        found = nw.bounded_sum(
            model, torch.nn.MSELoss(), x[kept], y[kept], nw.Clipped(1.0), units=[7] * len(kept)
        )
        (group,) = found.groups
        return group.gradients["weight"].double(), group.sensitivity

    (both, bound), (left, _) = bounded([0, 1]), bounded([1])
    moved = float((both - left).norm())
    assert moved > 1.99 * bound
    assert max(float(both.norm()), float(left.norm())) <= bound


def test_the_door_takes_no_cost_that_is_silent_about_rows():
    one = Sensitivity(3.0, "l1")

    for event, ok in (
        (Pure(0.5), False),
        (Pure(0.5).per_row(2), False),
        (Pure(0.5).per_row(3), True),
    ):
        noise = IntegerNoise("laplace", Fraction(6), one, event, "noise")
        query = Query.of(len, one, "rows", unit="one patient", unit_rows=3)
        account = MemoryAccount()
        if ok:
            assert release(query, noise, ThisProcess([1]), account, rng=1).statement.unit_rows == 3
            continue
        with pytest.raises(UnsoundError, match="does not say so"):
            release(query, noise, ThisProcess([1]), account, rng=1)
        assert account.history == ()


def test_the_command_shows_the_bound_of_every_release(tmp_path):
    path = ledger_of_everything(tmp_path)
    shown = CliRunner().invoke(app, ["ledger", "show", str(path)])
    assert shown.exit_code == 0, shown.output
    assert "rows of a unit" in shown.output
    assert "of which at most 7 rows count in releases that say so" in " ".join(shown.output.split())
    told = json.loads(CliRunner().invoke(app, ["ledger", "show", str(path), "--json"]).output)
    assert told["unit_rows"] == 7
    assert [row["unit_rows"] for row in told["charges"]] == [None, 2, 3, 7]


def test_a_classifier_and_its_calibration_share_a_ledger_of_patients(tmp_path):
    path = tmp_path / "l"
    model = PrivateClassifier(epsilon=1.0, steps=3, ledger=path, classes=[0, 1], random_state=1)
    model.fit(X, Y, units=Units(WHOSE, name="one patient"))
    with Ledger.open(path) as ledger:
        assert ledger.unit == "one patient"
        statement = ledger.statement(mechanism="all", delta=model.statement_.delta)
    assert statement.epsilon <= 1.0
    assert verify(statement).ok


def test_a_ledger_of_patients_says_what_releases_without_identifiers_rest_on(tmp_path):
    """A plan that names a patient, without `units=`, takes each row for one: the ledger says so."""
    with Ledger.create(tmp_path / "a", epsilon=3.0, delta=1e-5, unit="one patient") as book:
        said = book.statement(mechanism="counts").assumptions
        assert any("took each row for all that there is of one patient" in line for line in said)
    with Ledger.create(tmp_path / "b", epsilon=3.0, delta=1e-5) as book:
        said = book.statement(mechanism="counts").assumptions
        assert not any("took each row" in line for line in said)
