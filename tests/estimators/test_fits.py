"""Fits on the same records add up in a ledger, and are counted where there is none."""

import json
import pickle
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from joblib import parallel_backend
from sklearn.base import clone
from sklearn.exceptions import FitFailedWarning
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from typer.testing import CliRunner

import noisewise.estimators.fits as fits
from noisewise.cli import app
from noisewise.errors import (
    BudgetExceededError,
    LedgerError,
    LedgerRolledBackError,
    RelationError,
)
from noisewise.estimators import (
    PrivateClassifier,
    PrivateRegressor,
    load_estimator,
    save_estimator,
)
from noisewise.privacy import Ledger, Statement
from noisewise.training.checkpoints import read
from noisewise.training.streams import Streams


@pytest.fixture(autouse=True)
def no_fits_before(monkeypatch):
    monkeypatch.setattr(fits, "_fits", 0)


def data(rows=240, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (rows, 3))
    return x, (x[:, 0] > 0).astype(int)


def classifier(**settings):
    # Delta far below 1/n, equal in all folds, so that one ledger serves them all.
    # Without counts for calibration, so that one fit is one charge.
    common = {"epsilon": 1.0, "delta": 1e-5, "classes": [0, 1], "calibration_share": 0}
    return PrivateClassifier(**{**common, **settings})


def caveat(model):
    return next(line for line in model.statement_.assumptions if "ledger" in line.lower())


def count(path):
    with Ledger.open(path) as ledger:
        return len(ledger.charges)


def test_a_grid_search_charges_every_fit_and_the_statement_tells_the_sum(tmp_path):
    path = tmp_path / "all.ledger"
    search = GridSearchCV(
        classifier(steps=5, ledger=str(path)), {"learning_rate": [0.1, 1.0]}, cv=5
    ).fit(*data())
    with Ledger.open(path) as ledger:
        assert len(ledger.charges) == 11
        assert sum(event.count for event in ledger.history) == 11 * 5
        spent = ledger.spent(delta=1e-5)
    best = search.best_estimator_
    assert spent > 3 * best.statement_.epsilon
    assert "held 11 charges" in caveat(best)
    stated = float(caveat(best).split("cost epsilon ")[1].split(" at")[0])
    assert stated >= spent
    assert stated == pytest.approx(spent, rel=1e-3)


@pytest.mark.parametrize("parallel", [None, pytest.param(2, marks=pytest.mark.slow)])
def test_fits_in_other_processes_are_charged_too(tmp_path, parallel):
    path = tmp_path / "all.ledger"
    cross_val_score(classifier(steps=3, ledger=path), *data(), cv=3, n_jobs=parallel)
    assert count(path) == 3


def test_fits_in_threads_all_end_and_are_those_of_one_thread(tmp_path):
    """Threads of joblib share torch's generator, and start while others fit: two of six were
    refused in the middle, after they had been charged."""
    path, over = tmp_path / "all.ledger", threading.Event()

    def start_others():
        while not over.wait(0.002):
            threading.Thread(target=over.wait, daemon=True).start()

    model = classifier(steps=6, random_state=3)
    alone = cross_val_score(model, *data(), cv=4)
    others = threading.Thread(target=start_others)
    others.start()
    try:
        with parallel_backend("threading", n_jobs=3):
            found = cross_val_score(
                clone(model).set_params(ledger=path), *data(), cv=4, n_jobs=3, error_score="raise"
            )
    finally:
        over.set()
        others.join()
    assert found.tolist() == alone.tolist()
    assert count(path) == 4


def test_a_fit_does_not_begin_while_another_thread_fits(monkeypatch):
    """Not by luck: the second fit stands at the door, and is not let in before the first is out."""
    import noisewise.estimators.base as base

    inside, original, doors = [], base.fit, base.one_fit_at_a_time
    began, waits = threading.Event(), threading.Event()

    def door():
        if began.is_set():
            waits.set()
        return doors()

    def watched(*given, **options):
        inside.append(threading.get_ident())
        first = len(inside) == 1
        began.set()
        if first:
            assert waits.wait(60)
            time.sleep(0.3)  # for it to come in, if it could
            assert inside == [threading.get_ident()]
        return original(*given, **options)

    monkeypatch.setattr(base, "fit", watched)
    monkeypatch.setattr(base, "one_fit_at_a_time", door)
    x, y = data()
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(classifier(steps=3).fit, x, y)
        assert began.wait(60)
        other = pool.submit(classifier(steps=3).fit, x, y)
        one.result()
        other.result()
    assert len(set(inside)) == 2


def test_a_forked_process_does_not_wait_for_the_fit_of_a_thread_that_is_not_there():
    held = fits.one_fit_at_a_time()
    with held:
        fits._renew_turn()
        turn = fits.one_fit_at_a_time()

        def is_free():
            taken = turn.acquire(timeout=5)
            if taken:
                turn.release()  # or every later fit would wait for a thread that is gone
            return taken

        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(is_free).result()


def test_an_open_ledger_survives_a_clone_and_is_the_same_file(tmp_path):
    with Ledger.create(tmp_path / "one.ledger", delta=1e-5) as ledger:
        model = classifier(steps=3, ledger=ledger)
        cross_val_score(model, *data(), cv=2)
        clone(model).fit(*data())
        pickle.loads(pickle.dumps(model)).fit(*data())
        assert len(ledger.charges) == 4


def test_a_fit_beyond_the_budget_is_refused_before_any_record_is_read(tmp_path):
    class Untouchable:
        """A table of which only the number of rows may be asked."""

        shape = (240, 3)

        def __len__(self):
            return 240

        def read(self, *args, **kwargs):
            raise AssertionError("a record was read")

        __array__ = __iter__ = __getitem__ = read

    path = tmp_path / "small.ledger"
    Ledger.create(path, epsilon=1.2, delta=1e-5).close()
    model = classifier(steps=5, ledger=path).fit(*data())
    before = [matrix.copy() for matrix, _ in model.weights_]
    with pytest.raises(BudgetExceededError, match=r"No record was used"):
        model.fit(Untouchable(), Untouchable())
    assert count(path) == 1
    assert all(np.array_equal(a, b) for a, (b, _) in zip(before, model.weights_, strict=True))
    with pytest.raises(BudgetExceededError):
        PrivateRegressor(delta=1e-5, ledger=path).fit(Untouchable(), Untouchable())


def test_a_ledger_that_was_deleted_is_not_replaced_by_one_without_a_budget(tmp_path):
    path = tmp_path / "small.ledger"
    Ledger.create(path, epsilon=1.2, delta=1e-5).close()
    classifier(steps=5, ledger=path).fit(*data())
    path.unlink()
    for _ in range(2):
        with pytest.raises(LedgerRolledBackError, match="Put it back"):
            classifier(steps=5, ledger=path).fit(*data())
        assert not path.exists()


def test_an_older_copy_of_the_ledger_pays_for_no_further_fit(tmp_path):
    path = tmp_path / "small.ledger"
    Ledger.create(path, epsilon=1.2, delta=1e-5).close()
    older = path.read_bytes()
    model = classifier(steps=5, ledger=path).fit(*data())
    path.write_bytes(older)
    for each in (model, clone(model), pickle.loads(pickle.dumps(model))):
        with pytest.raises(LedgerRolledBackError):
            each.fit(*data())


def test_a_fitted_model_remembers_its_ledger_if_nothing_beside_the_ledger_does(tmp_path):
    path = tmp_path / "small.ledger"
    model = classifier(steps=5, ledger=path).fit(*data())
    path.unlink()
    path.with_name("small.ledger.seen").unlink()
    with pytest.raises(LedgerRolledBackError, match="another ledger"):
        pickle.loads(pickle.dumps(model)).fit(*data())
    classifier(steps=5, ledger=tmp_path / "other.ledger").fit(*data())


def test_a_grid_search_stops_paying_at_the_budget(tmp_path):
    path = tmp_path / "small.ledger"
    Ledger.create(path, epsilon=2.0, delta=1e-5).close()
    search = GridSearchCV(
        classifier(steps=5, ledger=path), {"learning_rate": [0.1, 1.0]}, cv=3, refit=False
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitFailedWarning)
        warnings.simplefilter("ignore", UserWarning)
        search.fit(*data())
    with Ledger.open(path) as ledger:
        assert 1 <= len(ledger.charges) < 6
        assert ledger.spent() <= 2.0
    search.set_params(error_score="raise")
    with pytest.raises(BudgetExceededError):
        search.fit(*data())


def test_a_table_that_cannot_be_read_costs_nothing(tmp_path):
    x, y = data()
    x[5, 1] = np.nan
    path = tmp_path / "all.ledger"
    with pytest.raises(ValueError, match="NaN"):
        classifier(ledger=path).fit(x, y)
    assert count(path) == 0


def test_a_ledger_of_another_promise_is_refused(tmp_path):
    Ledger.create(tmp_path / "a", delta=1e-5, relation="replace-one").close()
    with pytest.raises(RelationError):
        classifier(ledger=tmp_path / "a").fit(*data())
    (tmp_path / "b").write_text("no ledger")
    with pytest.raises(LedgerError):
        classifier(ledger=tmp_path / "b").fit(*data())
    with pytest.raises(TypeError, match="ledger must be a path"):
        classifier(ledger=3).fit(*data())


def test_the_ledger_is_no_part_of_a_stored_model(tmp_path):
    model = classifier(steps=3, ledger=str(tmp_path / "all.ledger")).fit(*data())
    save_estimator(model, tmp_path / "model")
    assert load_estimator(tmp_path / "model").ledger is None
    assert str(tmp_path) not in (tmp_path / "model" / "estimator.json").read_text()


# ------------------------------------------------------------------ without a ledger


def test_a_refitted_model_says_how_many_fits_its_statement_does_not_cover():
    search = GridSearchCV(classifier(steps=3), {"learning_rate": [0.1, 1.0]}, cv=5).fit(*data())
    said = caveat(search.best_estimator_)
    assert "10 further fits of this process are not covered by this statement" in said
    again = Statement.from_json(search.best_estimator_.statement_.to_json())
    assert said in again.assumptions


def test_fits_of_all_kinds_count_and_a_statement_does_not_tell_who_was_in_which():
    """One that told whether two fits had a row in common would say who is in a table."""
    x, y = data()
    strangers, labels = data(seed=9)
    said = []
    for first in (x, strangers):
        fits._fits = 0
        PrivateClassifier(0.1, delta=1e-5, steps=2, learning_rate=2.0).fit(first[::7], labels[::7])
        classifier(steps=3).fit(first[:100], labels[:100])
        said.append(caveat(classifier(steps=3).fit(x, y)))
    assert said[0] == said[1]
    assert "2 further fits of this process are not covered" in said[0]


def test_fits_of_a_pipeline_count():
    pipe = make_pipeline(StandardScaler(), classifier(steps=3))
    search = GridSearchCV(pipe, {"privateclassifier__learning_rate": [0.1, 1.0]}, cv=3)
    assert "6 further fits" in caveat(search.fit(*data()).best_estimator_[-1])


def test_a_first_fit_says_what_it_does_not_know():
    model = classifier(steps=3).fit(*data())
    assert "covers this fit alone" in caveat(model)
    assert "other processes" in caveat(model)
    assert "further" not in caveat(model)


# ------------------------------------------------------------------ noise of seeded fits


def noise_seeds(monkeypatch):
    """The first numbers that each fit will draw as noise."""
    import noisewise.estimators.base as base

    seen, original = [], base.fit

    def watched(network, records, plan, **options):
        seen.append(Streams(plan.seed, bound_to=options["bound_to"]).noise(0).bytes(16))
        return original(network, records, plan, **options)

    monkeypatch.setattr(base, "fit", watched)
    return seen


def test_seeded_fits_that_differ_share_no_noise_and_equal_ones_are_equal(monkeypatch):
    seen = noise_seeds(monkeypatch)
    x, y = data()
    one = classifier(steps=3, random_state=4).fit(x, y)
    two = classifier(steps=3, random_state=4).fit(x, y)
    assert seen[0] == seen[1]
    assert np.array_equal(one.weights_[0][0], two.weights_[0][0])
    changed = x.copy()
    changed[17, 1] = 0.25
    relabelled = y.copy()
    relabelled[3] = 1 - relabelled[3]
    classifier(steps=3, random_state=4).fit(changed, y)
    classifier(steps=3, random_state=4).fit(x, relabelled)
    classifier(steps=3, random_state=4).fit(x[1:], y[1:])
    classifier(steps=3, random_state=4, learning_rate=0.7).fit(x, y)
    classifier(steps=3, random_state=4, epsilon=1.1).fit(x, y)
    classifier(steps=3, random_state=4, hidden_layer_sizes=4).fit(x, y)
    classifier(steps=3, random_state=4, gradients="factored").fit(x, y)
    classifier(steps=3, random_state=5).fit(x, y)
    assert len(set(seen[1:])) == len(seen[1:])


def test_no_two_folds_share_noise(monkeypatch):
    seen = noise_seeds(monkeypatch)
    cross_val_score(classifier(steps=3, random_state=4), *data(), cv=4)
    assert len(set(seen)) == 4


def test_verify_shows_what_a_statement_does_not_cover(tmp_path):
    classifier(steps=3).fit(*data())
    model = classifier(steps=3).fit(*data())
    path = tmp_path / "statement.json"
    path.write_text(model.statement_.to_json())
    shown = CliRunner().invoke(app, ["verify", str(path)])
    assert shown.exit_code == 0
    text = " ".join(shown.output.split())
    assert "1 further fit of this process is not covered by this statement" in text
    plain = CliRunner().invoke(app, ["verify", str(path), "--json"])
    assert caveat(model) in json.loads(plain.output)["assumptions"]


def test_a_seeded_fit_states_nothing_that_depends_on_a_record(monkeypatch):
    x, y = data()
    changed, relabelled = x.copy(), y.copy()
    changed[7, 1] += 0.125
    relabelled[9] = 1 - y[9]
    shown = []
    for inputs, labels in ((x, y), (changed, y), (x, relabelled)):
        monkeypatch.setattr(fits, "_fits", 0)
        model = classifier(steps=3, random_state=4).fit(inputs, labels)
        shown.append((model.statement_.to_json(), str(model.statement_), model.statement_.card()))
    assert shown[0] == shown[1] == shown[2]
    assert model.statement_.randomness.startswith("seeded generator (seed 4 and the records): ")
    assert "NOT secret" in model.statement_.randomness


def test_a_checkpoint_of_a_seeded_fit_holds_the_users_seed_alone(tmp_path):
    x, y = data()
    plans = []
    for row in (0.1, 0.2):
        path = tmp_path / f"{row}.safetensors"
        model = classifier(steps=3, random_state=4)
        model._more_options = lambda inputs, target, path=path: {"checkpoint": path}
        x[3, 0] = row
        model.fit(x, y)
        content = read(path)
        plans.append((content["plan"], content["name"]))
    assert plans[0] == plans[1]
    assert json.loads(plans[0][0])["seed"] == 4
