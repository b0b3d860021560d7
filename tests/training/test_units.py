"""Training on units of several rows: what is drawn, bounded, accounted for and said."""

import copy
import json
import math
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import noisewise as nw
from noisewise.errors import RelationError, UnsoundError
from noisewise.privacy import Ledger, PoissonGaussian, PoissonRows, Randomness, verify
from noisewise.privacy.units import unit_codes
from noisewise.release import digest_of
from noisewise.release.steps import Step
from noisewise.training import StepError, Streamed
from noisewise.training.units import UnitTable

LOSS = nn.CrossEntropyLoss()
SECRETS = ["Ada-1815", "Emmy-1882", "Sofia-1850", "Mary-1780", "Hypatia-0370"]


def table(units=60, most=5, seed=0):
    """Rows of units that have one to `most` of them, in no order."""
    rng = np.random.default_rng(seed)
    ids = np.repeat(np.arange(units), rng.integers(1, most + 1, units))
    rng.shuffle(ids)
    x = torch.from_numpy(rng.normal(size=(len(ids), 4))).float()
    return x, (x[:, 0] > 0).long(), ids


def plan(**changes):
    options = {"epsilon": 3.0, "delta": 1e-5, "epochs": 3, "batch_size": 12, "seed": 1, **changes}
    return nw.Plan(gradients=nw.Clipped(0.5), **options)


def private(planned, data, units, **options):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    return nw.make_private(model, optimizer, LOSS, data, planned, units=units, **options)


def test_a_step_draws_whole_units_and_bounds_each_as_one():
    x, y, ids = table()
    run = private(plan(), (x, y), ids)
    seen = []
    find = {tuple(row.tolist()): i for i, row in enumerate(x)}
    for inputs, targets in run.loader:
        rows = [find[tuple(row.tolist())] for row in inputs]
        drawn = set(ids[rows].tolist())
        # All rows of everybody who is there.
        assert sorted(rows) == np.flatnonzero(np.isin(ids, list(drawn))).tolist()
        told = nw.bounded_sum(copy.deepcopy(run.plain_model), LOSS, inputs, targets,
                              nw.Clipped(0.5), ids[rows])  # fmt: skip
        found = run._engine.sum(inputs, targets, run.loader.units((0, 0)))
        for name, gradient in told.gradients.items():
            torch.testing.assert_close(found.gradients[name], gradient)
        assert found.records == len(drawn)
        run.step(inputs, targets)
        seen.append(len(drawn))
    assert len(seen) == 15
    # 12 of 60 on average; 15 steps: false alarm below 1e-9.
    assert 8 < np.mean(seen) < 16
    statement = run.statement()
    assert statement.history == (PoissonGaussian(run.resolved.noise_multiplier, 0.2, 15),)
    assert statement.unit == "one unit (all rows with one identifier)"
    assert statement.sampler.startswith("Poisson: each unit independently")
    assert "The number of units, 60, was read from the data" in str(statement)
    assert verify(statement).ok


def test_of_a_drawn_unit_a_few_rows_are_chosen_anew():
    x, y, ids = table(units=30, most=9)
    run = private(plan(unit_rows=2, sampling="full", batch_size=30, epochs=40), (x, y), ids)
    find = {tuple(row.tolist()): i for i, row in enumerate(x)}
    times = np.zeros(len(ids))
    for inputs, targets in run.loader.take(40):
        rows = np.array([find[tuple(row.tolist())] for row in inputs])
        np.add.at(times, rows, 1)
        counts = np.bincount(ids[rows], minlength=30)
        assert (counts == np.minimum(2, np.bincount(ids, minlength=30))).all()
        run.step(inputs, targets)
    expected = 40 * np.minimum(1, 2 / np.bincount(ids, minlength=30)[ids])
    # Binomial with at least sd 0 to 3.2; six deviations: false alarm below 1e-6 for 150 rows.
    assert (np.abs(times - expected) <= 6 * math.sqrt(40) / 2).all()
    assert (times > 0).all()
    assert "at most 2 of its rows" in run.statement().mechanism


def test_rows_of_units_are_chosen_once_and_accounted_together():
    x, y, ids = table(units=40, most=9)
    run = private(plan(unit_rule="rows", unit_rows=3), (x, y), ids)
    find = {tuple(row.tolist()): i for i, row in enumerate(x)}
    ever = set()
    for inputs, targets in run.loader:
        ever.update(find[tuple(row.tolist())] for row in inputs)
        run.step(inputs, targets)
    assert np.bincount(ids[sorted(ever)], minlength=40).max() <= 3
    statement = run.statement()
    (event,) = statement.history
    assert event == PoissonRows(run.resolved.noise_multiplier, 0.3, 3, run.steps)
    assert statement.unit_rows == 3
    assert statement.epsilon <= 3.0
    assert statement.sampler.startswith("Poisson: each row of a unit independently")
    assert verify(statement).ok
    # The noise of single rows would not do for three of them.
    assert run.resolved.noise_multiplier > 1.5 * plan().resolve(40).noise_multiplier


def test_auto_takes_the_smaller_noise_from_public_numbers():
    many = plan(records=1000, batch_size=100, unit_rows=4, rows=4000)
    assert many.resolve(of_units=True).unit_rule == "rows"
    skewed = plan(records=1000, batch_size=100, unit_rows=8, rows=1400)
    assert skewed.resolve(of_units=True).unit_rule == "units"
    for chosen in (many, skewed):
        noise = {}
        for rule in ("units", "rows"):
            fixed = chosen.with_(unit_rule=rule).resolve(of_units=True)
            noise[rule] = fixed.noise_multiplier / fixed.batch_size
        best = min(noise, key=noise.get)
        assert chosen.resolve(of_units=True).unit_rule == best
    # What is not declared is not read from the data.
    assert plan(records=1000, unit_rows=4).resolve(of_units=True).unit_rule == "units"
    x, y, ids = table()
    run = private(plan(unit_rows=5), (x, y), ids)
    assert run.resolved.unit_rule == "units"
    replaced = plan(records=1000, unit_rows=4, rows=4000, relation="replace-one")
    assert replaced.resolve(of_units=True).unit_rule == "units"


def test_plans_that_cannot_be_true_are_refused():
    with pytest.raises(ValueError, match="unit_rows"):
        plan(unit_rule="rows")
    with pytest.raises(UnsoundError, match="replace-one"):
        plan(unit_rule="rows", unit_rows=3, relation="replace-one")
    with pytest.raises(ValueError, match="unit_rule"):
        plan(unit_rule="people")
    with pytest.raises(ValueError, match="unit_rows"):
        plan(unit_rows=0)
    x, y, _ = table()
    for told in ({"unit_rule": "units"}, {"unit_rows": 3}, {"rows": 100}):
        with pytest.raises(ValueError, match="give units="):
            private(plan(**told), (x, y), None)
    with pytest.raises(ValueError, match="units belong to the rows of data"):
        private(plan(records=60), None, [1, 2])
    again = nw.Plan.from_json(plan(unit_rule="rows", unit_rows=3, rows=9).to_json())
    assert (again.unit_rule, again.unit_rows, again.rows) == ("rows", 3, 9)


def test_a_stream_whose_order_may_change_has_no_units():
    x, y, ids = table()
    stream = Streamed([(a, b) for a, b in zip(x, y, strict=True)], len(x))
    with pytest.raises(UnsoundError, match="another order"):
        private(plan(), stream, ids)


def test_no_row_can_be_bounded_by_itself_by_mistake():
    x, y, ids = table()
    run = private(plan(), (x, y), ids)
    with pytest.raises(StepError, match="units="):
        run.step(x[:5], y[:5])
    with pytest.raises(StepError, match="units="):
        run.model(x[:5])
    assert run.steps_taken == 0
    run.step(x[:5], y[:5], units=ids[:5])
    assert "promises that each unit" in str(run.statement())
    inputs, targets = next(iter(run.loader))
    with pytest.raises(StepError, match="known"):
        run.step(inputs, targets, units=[0] * len(inputs))
    rows = private(plan(unit_rule="rows", unit_rows=2), (x, y), ids)
    with pytest.raises(StepError, match="units="):
        rows.step(x[:5], y[:5])
    with pytest.raises(StepError, match="more than 2 rows"):
        rows.step(x[:5], y[:5], units=[1, 2, 1, 2, 1])
    assert rows.steps_taken == 0
    rows.step(x[:5], y[:5], units=[1, 2, 1, 2, 3])
    assert "promises that each row, of the at most 2 of its unit" in str(rows.statement())
    plain = private(plan(), (x, y), None)
    with pytest.raises(StepError, match="single rows"):
        plain.step(x[:5], y[:5], units=ids[:5])


def test_a_loop_by_hand_learns_the_same():
    x, y, ids = table()
    one, two = private(plan(), (x, y), ids), private(plan(), (x, y), ids)
    for inputs, targets in one.loader:
        one.step(inputs, targets)
    for inputs, targets in two.loader:
        output = two.model(inputs)
        torch.testing.assert_close(output.detach(), two.plain_model(inputs).detach())
        two.loss(output, targets).backward()
        two.optimizer.step()
        two.optimizer.zero_grad()
    torch.testing.assert_close(one.plain_model.weight, two.plain_model.weight)


def test_half_a_batch_keeps_its_units():
    x, y, ids = table()
    run = private(plan(sampling="full", batch_size=60), (x, y), ids)
    inputs, targets = next(iter(run.loader))
    codes = run.loader.units((0, 0))
    assert torch.equal(run.loader.units((3, 4)), codes[3:-4])
    run.step(inputs[3:-4], targets[3:-4])
    assert run.steps_taken == 1


@pytest.mark.parametrize("gradients", [nw.Factored(0.5), nw.Clipped(0.5, per="layer")], ids=repr)
def test_all_units_in_one_row_each_train_like_rows(gradients):
    x, y, _ = table()
    trained = []
    for units in (None, [f"row {i}" for i in range(len(x))]):
        run = private(plan(sampling="full", batch_size=len(x)).with_(gradients=gradients), (x, y),
                      units)  # fmt: skip
        for inputs, targets in run.loader:
            run.step(inputs, targets)
        trained.append(run.plain_model.weight.detach())
    torch.testing.assert_close(trained[0], trained[1])


def test_propagated_bounds_train_on_units():
    x, y, ids = table()
    torch.manual_seed(0)
    model = nn.Sequential(nw.nn.BoundedInput((4,), 2.0), nw.nn.SpectralLinear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    planned = plan().with_(gradients=nw.Propagated())
    run = nw.make_private(model, optimizer, LOSS, (x, y), planned, units=ids)
    for inputs, targets in run.loader:
        run.step(inputs, targets)
    assert verify(run.statement()).ok


def test_neighbours_that_differ_in_a_unit_are_within_the_noise():
    # Whole steps of training with the same noise and the same draws, with and without one unit
    # whose rows all pull the same way: the weights move by at most clip / batch size times rate.
    x, y, ids = table(units=20, most=3)
    x = torch.cat([x, torch.full((40, 4), 50.0)])
    y = torch.cat([y, torch.zeros(40, dtype=torch.long)])
    ids = np.concatenate([ids, np.full(40, 77)])
    weights = []
    for keep in (ids >= 0, ids != 77):
        kept = torch.from_numpy(keep)
        options = plan(sampling="full", batch_size=21, records=None, steps=1, epochs=None)
        run = private(options, (x[kept], y[kept]), ids[keep])
        inputs, targets = next(iter(run.loader))
        run.step(inputs, targets)
        weights.append(torch.cat([p.detach().flatten() for p in run.plain_model.parameters()]))
    moved = float((weights[0] - weights[1]).norm())
    assert moved <= 0.3 * 0.5 / 21 * 1.002
    assert moved > 0.3 * 0.5 / 21 * 0.9  # and the unit had its full say


@pytest.mark.parametrize("most", [1, 3])
def test_neighbours_that_differ_in_a_unit_are_within_the_noise_of_its_chosen_rows(most):
    # The same where rows are bounded one by one: of forty rows that pull the same way `most` count.
    x, y, ids = table(units=20, most=most)  # of the others all rows count, with and without the one
    x = torch.cat([x, torch.full((40, 4), 50.0)])
    y = torch.cat([y, torch.zeros(40, dtype=torch.long)])
    ids = np.concatenate([ids, np.full(40, 77)])
    weights = []
    for keep in (ids >= 0, ids != 77):
        kept = torch.from_numpy(keep)
        options = plan(sampling="full", batch_size=21, steps=1, epochs=None, unit_rule="rows",
                       unit_rows=most)  # fmt: skip
        run = private(options, (x[kept], y[kept]), ids[keep])
        assert run.statement().unit_rows in (None, most)
        inputs, targets = next(iter(run.loader))
        run.step(inputs, targets)
        assert run.statement().unit_rows == most
        weights.append(torch.cat([p.detach().flatten() for p in run.plain_model.parameters()]))
    moved = float((weights[0] - weights[1]).norm())
    bound = most * 0.3 * 0.5 / run.resolved.batch_size
    assert 0.9 * bound < moved <= 1.002 * bound


# ------------------------------------------------------------------------------ identifiers


IDENTIFIERS = {
    "numbers": [7, 7, 3, 3, 3],
    "text": ["a", "a", "b", "b", "b"],
    "tuples": [("x", 1), ("x", 1), ("y", 2), ("y", 2), ("y", 2)],
    "bytes": [b"1", b"1", b"2", b"2", b"2"],
    "floats": np.array([1.5, 1.5, 2.5, 2.5, 2.5]),
    "tensor": torch.tensor([4, 4, 9, 9, 9]),
    "pandas text": pd.Series(["a", "a", "b", "b", "b"], index=[9, 8, 7, 6, 5]),
    "pandas category": pd.Series(["a", "a", "b", "b", "b"], dtype="category"),
    "pandas numbers": pd.Series([1, 1, 2, 2, 2], dtype="Int64"),
    "times": pd.to_datetime(pd.Series(["2020-01-01"] * 2 + ["2021-01-01"] * 3)),
    "column": np.array([[1], [1], [2], [2], [2]]),
    "booleans": [True, True, False, False, False],
}


@pytest.mark.parametrize("kind", sorted(IDENTIFIERS))
def test_identifiers_may_be_of_any_type(kind):
    assert unit_codes(IDENTIFIERS[kind], 5).tolist() == [0, 0, 1, 1, 1]


MISSING = {
    "none": ["Ada-1815", None],
    "nan": ["Ada-1815", math.nan],
    "array": np.array([1.0, math.nan]),
    "pandas": pd.Series(["Ada-1815", None]),
    "pandas number": pd.Series([1815, None], dtype="Int64"),
    "time": pd.to_datetime(pd.Series(["2020-01-01", None])),
    "category": pd.Series(["Ada-1815", None], dtype="category"),
}


@pytest.mark.parametrize("kind", sorted(MISSING))
def test_a_missing_identifier_is_an_error_that_names_no_value(kind):
    with pytest.raises(ValueError, match="missing") as caught:
        unit_codes(MISSING[kind], 2)
    assert "1815" not in str(caught.value)
    assert caught.value.__context__ is None


def test_identifiers_that_cannot_be_told_apart_are_refused_without_a_value():
    for wrong in ([["Ada-1815"], ["b"]], "Ada-1815", {"Ada-1815": 1}, np.zeros((2, 3)), 7):
        with pytest.raises(TypeError) as caught:
            unit_codes(wrong)
        assert "1815" not in str(caught.value)
    with pytest.raises(ValueError, match="each of the 3 rows, got 2"):
        unit_codes(["Ada-1815", "b"], 3)
    with pytest.warns(UserWarning, match="text and numbers"):
        unit_codes(["17", 17])


def test_identifiers_are_nowhere(tmp_path, capsys):
    rng = np.random.default_rng(0)
    ids = [SECRETS[i] for i in rng.integers(5, size=40)]
    x = torch.from_numpy(rng.normal(size=(40, 4))).float()
    data = (x, (x[:, 0] > 0).long())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.manual_seed(0)
        fitted = nw.fit(nn.Linear(4, 2), data, plan(batch_size=2), loss=LOSS, units=ids,
                        checkpoint=tmp_path / "run", progress=True)  # fmt: skip
    texts = [str(fitted.statement()), fitted.statement().card(), fitted.statement().to_json(),
             repr(fitted.run.__dict__), str(fitted.history), *map(str, said),
             *capsys.readouterr()]  # fmt: skip
    texts += [path.read_bytes().decode("latin-1") for path in tmp_path.iterdir()]
    for secret in SECRETS:
        assert not any(secret in text for text in texts)
    assert fitted.statement().epsilon <= 3.0


def test_a_ledger_of_units_is_not_one_of_rows(tmp_path):
    x, y, ids = table()
    patient = plan(unit="one patient")
    with private(patient, (x, y), ids, ledger=tmp_path / "a") as run:
        for inputs, targets in run.loader.take(2):
            run.step(inputs, targets)
    with Ledger.open(tmp_path / "a") as ledger:
        assert ledger.unit == "one patient"
    with pytest.raises(RelationError, match="one patient"):
        private(plan(seed=2), (x, y), None, ledger=tmp_path / "a", name="other")


def test_a_checkpoint_of_units_is_continued(tmp_path):
    x, y, ids = table()
    whole = private(plan(), (x, y), ids)
    for inputs, targets in whole.loader:
        whole.step(inputs, targets)
    with private(plan(), (x, y), ids, ledger=tmp_path / "l") as first:
        for inputs, targets in first.loader.take(5):
            first.step(inputs, targets)
        first.save(tmp_path / "c")
    with private(plan(), (x, y), ids, ledger=tmp_path / "l", resume=tmp_path / "c") as second:
        for inputs, targets in second.loader:
            second.step(inputs, targets)
        torch.testing.assert_close(second.plain_model.weight, whole.plain_model.weight)
        assert second.statement().epsilon == whole.statement().epsilon
        said = "".join(second.statement().assumptions)
        assert "continued from a checkpoint, with the same units as before" in said
        assert "checkpoint" not in "".join(whole.statement().assumptions)


def test_a_checkpoint_of_a_secret_run_does_not_tell_how_many_units_there_are(tmp_path):
    """Their number is private unless it is declared."""
    x, y, ids = table()
    secret = plan(seed=None, sample_rate=0.2, batch_size=10)
    with private(secret, (x, y), ids, ledger=tmp_path / "l") as run:
        run.step(*next(iter(run.loader)))
        run.save(tmp_path / "c")
        known = run.batches_known_by
        assert not run.resolved.size_used
    assert known.encode() not in (tmp_path / "c").read_bytes()
    assert b" units" not in (tmp_path / "c").read_bytes().replace(b"no other unit", b"")


def test_seeded_noise_is_not_used_again_for_other_units(tmp_path, monkeypatch):
    released, pay = [], Step.pay

    def watched(self, mean=None):
        paid = pay(self, mean)
        if paid:
            released.append((self.number, digest_of(mean)))
        return paid

    monkeypatch.setattr(Step, "pay", watched)
    x, y, ids = table()
    with private(plan(), (x, y), ids, ledger=tmp_path / "l") as first:
        for inputs, targets in first.loader.take(3):
            first.step(inputs, targets)
        first.save(tmp_path / "c")
        for inputs, targets in first.loader.take(2):
            first.step(inputs, targets)
    others = [ids[-1], *ids[:-1]]  # as many, and other people's rows
    options = {"ledger": tmp_path / "l", "resume": tmp_path / "c"}
    with private(plan(), (x, y), others, **options) as second:
        for inputs, targets in second.loader:
            second.step(inputs, targets)
        assert second.steps_taken == max(number for number, _ in released) + 1
    # One noise belongs to one release: no step was released twice with different values.
    assert len(dict(released)) == len(set(released)) > 5


def test_workers_read_ahead_and_units_stay_with_their_rows():
    class Rows(torch.utils.data.Dataset):
        def __init__(self, x, y):
            self.x, self.y = x, y

        def __len__(self):
            return len(self.x)

        def __getitem__(self, i):
            return self.x[i], self.y[i]

    x, y, ids = table()
    trained = []
    for data, workers in (((x, y), 0), (Rows(x, y), 0)):
        run = private(plan(), data, ids, workers=workers)
        for inputs, targets in run.loader:
            run.step(inputs, targets)
        trained.append(run.plain_model.weight.detach())
    torch.testing.assert_close(trained[0], trained[1])


def test_rows_of_units_come_whole_and_in_the_order_of_units():
    found = UnitTable.of(["b", "a", "b", "c", "b"])
    rng = Randomness.seeded(0)
    assert found.rows_of(torch.tensor([2, 0]), None, rng).tolist() == [3, 0, 2, 4]
    few = found.rows_of(torch.tensor([0, 1]), 2, rng).tolist()
    assert few[-1] == 1
    assert len(few) == 3
    assert set(few[:2]) < {0, 2, 4}
    assert found.rows_of(torch.tensor([], dtype=torch.long), 2, rng).tolist() == []


def test_the_statement_of_units_is_json_that_names_no_unit():
    x, y, ids = table()
    run = private(plan(unit="one patient", records=60), (x, y), ids)
    for inputs, targets in run.loader.take(1):
        run.step(inputs, targets)
    content = json.loads(run.statement().to_json())
    assert content["unit"] == "one patient"
    assert "each unit independently" in content["sampler"]
    assert "unit_rows" not in content


def test_a_plan_for_patients_without_identifiers_says_that_each_has_one_row():
    """Rows are drawn and bounded one by one; of a patient with three nothing is promised."""
    x, y, ids = table()
    said = "each row is all that there is of one patient"
    alone = private(plan(unit="one patient"), (x, y), None).statement()
    assert any(said in sentence for sentence in alone.assumptions)
    of_units = private(plan(unit="one patient"), (x, y), ids).statement()
    assert not any(said in sentence for sentence in of_units.assumptions)
