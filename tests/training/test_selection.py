"""A private choice among settings: charged first, as a whole, and nothing but the best leaves."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import noisewise as nw
from noisewise.privacy import Ledger, Pure, Selection, verify
from noisewise.release import best
from noisewise.training import Candidate, Plan, TrialNumber, select, selection
from noisewise.training.selection_plans import Plans

LOSS = nn.CrossEntropyLoss()


def table(rows=600, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 4, generator=g)
    return x, (x[:, 0] + 0.3 * x[:, 1] > 0).long()


def build(setting):
    model = nn.Linear(4, 2)
    return model, torch.optim.SGD(model.parameters(), lr=setting["rate"])


def plan(**changes):
    fields = {"epsilon": 4.0, "delta": 1e-5, "steps": 15, "sample_rate": 0.2, "seed": 3}
    return Plan(**{**fields, **changes})


SETTINGS = [{"rate": 1e-6}, {"rate": 1.0}]


def test_the_statement_covers_all_trials_and_is_verified():
    chosen = select(build, table(), plan(), settings=SETTINGS, loss=LOSS, trials=4)
    statement = chosen.statement()
    assert 3.9 < statement.epsilon <= 4.0
    (event,) = statement.history
    assert isinstance(event, Selection)
    assert event.mean == pytest.approx(4.0)
    assert verify(statement).ok
    assert any("Of all trials nothing was seen" in said for said in statement.assumptions)
    assert not any("hyperparameters were not chosen" in said for said in statement.assumptions)


@pytest.mark.slow
def test_the_better_setting_wins():
    # Both settings were tried with probability above 1 - 2 E[2^-K]; the seeds are fixed.
    number = TrialNumber.of_mean(12.0, "poisson")
    chosen = select(build, table(2000), plan(), settings=SETTINGS, loss=LOSS, trials=number)
    assert chosen.setting == {"rate": 1.0}
    x, y = table(2000, seed=9)
    assert (chosen.model(x).argmax(1) == y).float().mean() > 0.85
    assert abs(chosen.score - 0.9) < 0.15


def test_the_whole_is_charged_before_the_first_trial_and_before_it_fails(tmp_path):
    ledger = tmp_path / "ledger"
    built = []

    def fails_later(setting):
        built.append(setting)
        # The preflight has built every setting once, and one of them twice with one seed.
        if len(built) > len(SETTINGS) + 2:
            with Ledger.open(ledger) as book:
                assert book.spent(delta=1e-5) == pytest.approx(4.0, rel=0.01)
            raise RuntimeError("the machine stops")
        return build(setting)

    with pytest.raises(RuntimeError, match="the machine stops"):
        select(fails_later, table(), plan(), settings=SETTINGS, loss=LOSS, ledger=ledger)
    with Ledger.open(ledger) as book:
        assert len(book.charges) == 1


def test_a_selection_that_does_not_fit_trains_nothing(tmp_path, monkeypatch):
    Ledger.create(tmp_path / "ledger", epsilon=1.0, delta=1e-5).close()

    def never(*_):
        raise AssertionError("a trial was made")

    monkeypatch.setattr(best.BestOf, "applied", never)
    with pytest.raises(nw.BudgetExceededError):
        select(build, table(), plan(), settings=SETTINGS, loss=LOSS, ledger=tmp_path / "ledger")


def test_a_seed_is_taken_once_by_a_ledger(tmp_path):
    def again(rows):
        return select(
            build, table(rows), plan(), settings=SETTINGS, loss=LOSS, trials=1.5,
            ledger=tmp_path / "ledger",
        )  # fmt: skip

    again(600)
    with pytest.raises(nw.NoisewiseError):
        again(599)


def test_what_is_wrong_is_found_before_anything_is_charged(tmp_path):
    ledger = tmp_path / "ledger"
    data = table()

    def wrong_shape(setting):
        model = nn.Linear(5, 2)
        return model, torch.optim.SGD(model.parameters(), lr=1.0)

    def mixing(setting):
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        return model, torch.optim.SGD(model.parameters(), lr=1.0)

    for bad, error in ((wrong_shape, RuntimeError), (mixing, nw.UnsupportedModelError)):
        with pytest.raises(error):
            select(bad, data, plan(), settings=SETTINGS, loss=LOSS, ledger=ledger)
    with pytest.raises(TypeError, match="Candidate or a pair"):
        select(lambda s: nn.Linear(4, 2), data, plan(), settings=SETTINGS, loss=LOSS)
    with pytest.raises(TypeError, match="list of settings"):
        select(build, data, plan(), settings="rate", loss=LOSS)
    with pytest.raises(ValueError, match="no options"):
        Candidate(nn.Linear(4, 2), options={"callbacks": [print]})
    with pytest.raises(ValueError, match="assume_apart"):
        select(build, data, plan(assume_apart=True), settings=SETTINGS, loss=LOSS)
    study = nw.BatchMaxScaled(study=True)
    with pytest.raises(nw.UnsoundError):
        select(build, data, plan(gradients=study), settings=SETTINGS, loss=LOSS)
    assert not ledger.exists()


def test_a_trial_that_spends_more_than_was_paid_is_refused():
    number = TrialNumber.of_mean(2.0)
    planned = nw.privacy.Sensitivity(1.0, "linf")
    paid = ((Pure(0.5),),)
    noise = best.BestOf(number, paid, planned, lambda *_: best.Outcome(1.0, None, ((Pure(0.6),),)))
    with pytest.raises(nw.BudgetExceededError, match="not paid for"):
        noise.applied(None, nw.privacy.Randomness.seeded(1))


@pytest.mark.slow
def test_several_plans_are_paid_for_together():
    plans = {"short": plan(steps=5), "long": plan(steps=40, sample_rate=0.1)}

    def named(setting):
        model = nn.Linear(4, 2)
        return Candidate(
            model, torch.optim.SGD(model.parameters(), lr=1.0), plan=setting["plan"],
            gradients=nw.Factored(1.0),
        )  # fmt: skip

    settings = [{"plan": "short"}, {"plan": "long"}]
    number = TrialNumber.of_mean(3.0)
    chosen = select(named, table(), plans, settings=settings, loss=LOSS, trials=number)
    (event,) = chosen.statement().history
    assert len(event.trials) == 3  # two trainings, and the score
    assert chosen.statement().epsilon <= 4.0
    with pytest.raises(ValueError, match="paid for"):
        select(named, table(), plans, settings=[{"plan": "other"}], loss=LOSS)
    with pytest.raises(ValueError, match="one epsilon"):
        select(named, table(), {**plans, "x": plan(epsilon=5.0)}, settings=settings, loss=LOSS)


@pytest.mark.slow
def test_public_records_score_without_noise():
    x, y = table(200, seed=4)
    chosen = select(
        build, table(), plan(), settings=SETTINGS, loss=LOSS, trials=3, public_validation=(x, y)
    )
    exact = float((chosen.model(x).argmax(1) == y).float().mean())
    assert chosen.score == pytest.approx(exact)
    (event,) = chosen.statement().history
    assert len(event.trials) == 1


def test_optuna_spaces_are_proposals():
    optuna = pytest.importorskip("optuna")
    space = {"rate": optuna.distributions.FloatDistribution(0.1, 10.0, log=True)}
    for settings in (space, lambda trial: {"rate": trial.suggest_float("rate", 0.1, 10.0)}):
        chosen = select(build, table(300), plan(), settings=settings, loss=LOSS, trials=2)
        assert 0.1 <= chosen.setting["rate"] <= 10.0
        assert "Optuna" in str(chosen.statement())


def test_a_score_of_one_record_counts_for_at_most_one():
    def huge(output, target):
        return torch.full((len(target),), math.inf)

    chosen = select(build, table(), plan(), settings=SETTINGS, loss=LOSS, score=huge, trials=2)
    assert 0.5 < chosen.score < 1.5  # the expected share of records that were held back


def test_held_back_records_are_not_trained_on_and_each_is_in_one_part():
    from noisewise.privacy import Randomness
    from noisewise.training.records import records_of
    from noisewise.training.selection_parts import Split

    rows = torch.arange(1000)
    parts = Split.of(records_of((rows, rows)), 0.2, Randomness.seeded(1))
    train, held = parts.training.tensors[0], parts.held.tensors[0]
    assert torch.equal(torch.cat([train, held]).sort().values, rows)
    assert 100 < len(held) < 300


@pytest.mark.slow
def test_secret_noise_is_the_default():
    chosen = select(build, table(300), plan(seed=None), settings=SETTINGS, loss=LOSS, trials=1.5)
    assert "operating system" in chosen.statement().randomness


def test_workers_of_a_team_are_refused(monkeypatch):
    from noisewise.training import selection

    monkeypatch.setattr(selection, "default_team", object)
    with pytest.raises(nw.UnsupportedModelError, match="one process"):
        select(build, table(50), plan(), settings=SETTINGS, loss=LOSS)


@pytest.mark.slow
def test_full_batches_and_replaced_records():
    full = Plan(epsilon=4.0, delta=1e-5, steps=5, sampling="full", relation="replace-one", seed=1)
    chosen = select(build, table(200), full, settings=SETTINGS, loss=LOSS, trials=1.5)
    assert chosen.statement().relation.name == "replace-one"
    assert chosen.statement().epsilon <= 4.0


# -------------------------------------------------------------------------------------- units


def of_units(rows=600, seed=0):
    """Rows of 100 units; one of them has a third."""
    numbers = torch.randint(0, 100, (rows,), generator=torch.Generator().manual_seed(seed))
    numbers[::3] = 7
    return [f"patient {number}" for number in numbers.tolist()]


@pytest.mark.parametrize(
    "changes",
    [
        {"unit_rule": "rows", "unit_rows": 3},
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"unit_rule": "units", "unit_rows": 2}, marks=pytest.mark.slow),
    ],
)
def test_a_selection_on_units_states_what_is_promised_about_one(changes, tmp_path):
    path = tmp_path / "l"
    chosen = select(
        build,
        table(),
        plan(unit="one patient", **changes),
        settings=SETTINGS,
        loss=LOSS,
        trials=3,
        units=of_units(),
        ledger=path,
    )
    statement = chosen.statement()
    assert statement.unit == "one patient"
    assert statement.epsilon <= 4.0
    assert statement.unit_rows == (3 if changes.get("unit_rule") == "rows" else None)
    assert verify(statement).ok
    assert any("Each unit, with all its rows, was held back" in s for s in statement.assumptions)
    known = f"The number of units, {len(set(of_units()))}, "
    assert any(known in said for said in statement.assumptions)
    assert "patient 7" not in statement.to_json()
    with Ledger.open(path) as ledger:
        assert ledger.unit == "one patient"
        assert ledger.history == statement.history


def test_a_unit_is_held_back_or_trained_on_with_all_its_rows(monkeypatch):
    seen = []
    split = selection.Split.of

    def watched(records, share, rng, units=None):
        seen.append((units, split(records, share, rng, units)))
        return seen[-1][1]

    monkeypatch.setattr(selection.Split, "of", staticmethod(watched))
    x, y = table()
    x[:, 3] = torch.arange(len(x))
    select(build, (x, y), plan(), settings=SETTINGS, loss=LOSS, trials=2, units=of_units())
    ((whole, found),) = seen
    parts = [found.training.tensors[0][:, 3].long(), found.held.tensors[0][:, 3].long()]
    assert sorted(torch.cat(parts).tolist()) == list(range(len(x)))
    trained, held = (set(whole.codes[part].tolist()) for part in parts)
    assert not trained & held
    assert 0 < len(held) < 40
    for part, units in zip(parts, (found.units, found.held_units), strict=True):
        codes = whole.codes[part]
        same = codes[:, None] == codes
        assert torch.equal(same, units.codes[:, None] == units.codes)


@pytest.mark.parametrize("rows", [1, 3, 1000])
def test_a_unit_adds_at_most_one_to_the_score(rows):
    """Whatever its rows score, and however many they are."""
    units = selection.UnitTable.of([0, 1, *[2] * rows])
    rest = selection.UnitTable.of([0, 1])
    for score in (0, 1, selection._UNITS // 3, selection._UNITS):
        whole = selection.summed([5, 7, *[score] * rows], units)
        assert 0 <= whole - selection.summed([5, 7], rest) <= selection._UNITS
    # The twin: rows that count one by one.
    assert rows == 1 or rows * selection._UNITS > selection._UNITS


def test_units_are_read_before_anything_is_charged(tmp_path):
    for wrong in (of_units()[:-1], [None, *of_units()[1:]]):
        with pytest.raises(ValueError, match="units"):
            select(
                build, table(), plan(), settings=SETTINGS, loss=LOSS, units=wrong,
                ledger=tmp_path / "l",
            )  # fmt: skip
    assert not (tmp_path / "l").exists()


@pytest.mark.parametrize("rows", [60, 61])
def test_a_plan_that_needs_no_size_is_told_none(rows):
    # It was refused with the private number of records in the message, unless that happened to fit.
    fixed = plan(batch_size=20, delta=0.05, steps=1, sample_rate=0.5)
    chosen = select(build, table(rows), fixed, settings=SETTINGS[:1], loss=LOSS, trials=2)
    assert not any("number of records" in said for said in chosen.statement().assumptions)


def test_nothing_public_follows_from_a_size_that_is_not():
    drawn = plan(batch_size=20, unit_rule="rows", unit_rows=4, rows=200)
    number = TrialNumber.of_mean(2.0, "poisson")
    found = [Plans.of(drawn, units, number, scored=True, of_units=True).first for units in (60, 90)]
    assert found[0] == found[1]
