"""The whole way, over real sockets: the same curves as on one machine, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("aiohttp")

from federated.network.harness import Federation
from noisewise import federated
from noisewise.errors import UnsoundError
from noisewise.federated import LocalAggregator, Records, without_noise
from noisewise.federated.network import (
    ClientSettings,
    NetworkError,
    RefusedError,
    RemoteAggregator,
    contribute,
    progress_of,
    withdraw,
)

ALL = ["roc", "ecdf", "histogram", "hosmer-lemeshow"]


def give(federation, *names):
    for name in names or federation.trial.parties:
        settings = ClientSettings.read(federation.trial.config(name))
        contribute(settings, federation.data[name])


def analyst(federation, **options):
    return RemoteAggregator(ClientSettings.read(federation.trial.config("analyst")), **options)


def rounded(records, bins):
    """Predictions as servers know them: rounded up to the grid."""
    return Records(np.ceil(records.values * bins) / bins, records.positive)


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
@pytest.mark.parametrize(("route", "servers"), [("functions", 2), ("vectors", 2), ("vectors", 3)])
def test_without_noise_every_curve_equals_the_local_one_to_the_bit(
    tmp_path, route, servers, relation
):
    names = ("alpha", "beta", "gamma")[:servers]
    made = Federation.create(
        tmp_path, np.random.default_rng(3), records=200, curves=ALL, bins=16, route=route,
        servers=names, relation=relation, noiseless_test=True, patience=60.0, seconds=15.0,
    )  # fmt: skip
    parties = list(made.data.values())
    quiet = without_noise(LocalAggregator())
    options = {"epsilon": 1.0, "bins": 16, "relation": relation}
    with made:
        give(made)
        remote = analyst(made)
        roc = federated.roc(None, remote, **options)
        histogram = federated.histogram(None, remote, range=(0, 1), **options)
        test = federated.hosmer_lemeshow(None, remote, draws=200, **options)
        curve = test.curve
    local = federated.roc(parties, quiet, **options)
    assert np.array_equal(roc.tpr, local.tpr)
    assert np.array_equal(roc.fpr, local.fpr)
    assert roc.auc == local.auc
    bars = federated.histogram(parties, quiet, range=(0, 1), **options)
    assert np.array_equal(histogram.counts, bars.counts)
    coarse = [rounded(part, 16) for part in parties]
    there = federated.hosmer_lemeshow(coarse, quiet, draws=200, **options)
    assert test.statistic == there.statistic
    assert {name: part.tolist() for name, part in test.table.items()} == {
        name: part.tolist() for name, part in there.table.items()
    }
    assert np.array_equal(curve.counts, there.curve.counts)
    levels = np.linspace(0.05, 0.95, 7)
    assert np.array_equal(curve.quantile(levels), there.curve.quantile(levels))
    for result in (roc, histogram, test, curve):
        with pytest.raises(UnsoundError):
            result.statement()


@pytest.fixture
def federation(tmp_path):
    made = Federation.create(
        tmp_path, np.random.default_rng(1), epsilon=2.0, patience=60.0, seconds=15.0
    )
    with made:
        yield made


def test_a_missing_party_is_named_and_nothing_is_spent(federation):
    give(federation, "north", "west")
    remote = analyst(federation)
    with pytest.raises(NetworkError, match=r"2 contributions .* waits for: south"):
        federated.roc(None, remote, epsilon=1.0, bins=8, relation="replace-one")
    assert {state["epsilon_spent"] for state in progress_of(remote.settings).values()} == {0.0}
    taken = []
    two = analyst(federation, parties=2, told=taken.append)
    federated.roc(None, two, epsilon=1.0, bins=8, relation="replace-one")
    assert taken[0].contributions == 2
    assert taken[0].records == len(federation.data["north"]) + len(federation.data["west"])


def test_the_same_question_costs_once_and_keeps_its_answer(federation):
    give(federation, "north", "south")
    first = federated.roc(
        None, analyst(federation, parties=2), epsilon=1.0, bins=8, relation="replace-one"
    )
    give(federation, "west")
    federation.restart("alpha")
    federation.restart("beta")
    again = federated.roc(None, analyst(federation), epsilon=1.0, bins=8, relation="replace-one")
    assert np.array_equal(first.release.noisy, again.release.noisy)
    unsmoothed = federated.roc(
        None, analyst(federation), epsilon=1.0, bins=8, smooth=None, relation="replace-one"
    )
    assert np.array_equal(first.release.noisy, unsmoothed.release.noisy)
    anew = federated.roc(
        None, analyst(federation, name="all-three"), epsilon=1.0, bins=8, relation="replace-one"
    )
    assert anew.release.records == sum(len(part) for part in federation.data.values())
    states = progress_of(analyst(federation).settings)
    assert all(1.9 < state["epsilon_spent"] <= 2.0 for state in states.values())
    with pytest.raises(RefusedError, match="exceed the budget"):
        federated.roc(
            None,
            analyst(federation, name="once-more"),
            epsilon=0.5,
            bins=8,
            relation="replace-one",
        )
    assert progress_of(analyst(federation).settings) == states


def test_a_contribution_can_be_taken_back_until_a_release_has_used_it(federation):
    give(federation)
    settings = ClientSettings.read(federation.trial.config("south"))
    other = Records(np.array([0.5, 0.6]), np.array([True, False]))
    before = contribute(settings, federation.data["south"])
    after = contribute(settings, other, replace=True)
    assert before["contribution"] != after["contribution"]
    roc = federated.roc(None, analyst(federation), epsilon=1.0, bins=8, relation="replace-one")
    assert roc.release.records == len(federation.data["north"]) + len(federation.data["west"]) + 2
    with pytest.raises(RefusedError, match="cannot be taken back"):
        withdraw(settings)


def test_other_data_is_not_mixed_into_a_contribution_that_is_under_way(federation):
    federation.kill("beta")
    settings = ClientSettings.read(federation.trial.config("north"))
    brief = ClientSettings(
        settings.signer,
        settings.study,
        settings.authority,
        settings.state,
        seconds=15,
        patience=0.3,
    )
    with pytest.raises(NetworkError, match="1 of 2 servers have their share"):
        contribute(brief, federation.data["north"])
    federation.start("beta")
    with pytest.raises(NetworkError, match="other records was prepared"):
        contribute(settings, federation.data["west"])
    contribute(settings, federation.data["north"])
    assert not list(settings.state.rglob("*.share")), "shares are deleted once delivered"


def test_the_statement_names_the_protocol_and_its_epsilon_is_that_of_one_servers_noise(federation):
    give(federation)
    roc = federated.roc(None, analyst(federation), epsilon=1.0, bins=8, relation="replace-one")
    statement = roc.statement()
    assert statement.epsilon <= 1.0
    text = " ".join(statement.assumptions)
    assert "function secret sharing" in text
    assert "must not collude" in text
    planned = federation.question().planned
    assert statement.epsilon == pytest.approx(planned.epsilon)
    assert roc.release.mechanism.max_variance == pytest.approx(2 * planned.max_variance)


def test_a_server_will_not_start_with_a_changed_study(federation, tmp_path):
    from noisewise.federated.network import ConfigurationError, ServerSettings
    from noisewise.federated.network.service import Service

    give(federation)
    federation.kill("alpha")
    study = tmp_path / "study.toml"
    study.write_text(study.read_text().replace("epsilon = 2.0", "epsilon = 20.0"))
    with pytest.raises(ConfigurationError, match="belongs to another study"):
        Service(ServerSettings.read(federation.trial.config("alpha")))
    federation.start("alpha")


def test_large_contributions_travel_in_pieces(tmp_path):
    made = Federation.create(
        tmp_path, np.random.default_rng(5), parties=["one"], curves=["ecdf"], bins=1 << 12,
        route="functions", noiseless_test=True, patience=30.0, seconds=20.0,
    )  # fmt: skip
    rng = np.random.default_rng(6)
    made.data["one"] = Records(rng.random(6000), rng.random(6000) < 0.5)
    with made:
        give(made)
        receipt = json.loads(next((tmp_path / "one-state").rglob("receipt.json")).read_text())
        assert receipt["bytes"]["alpha"] > 1 << 20
        question = made.question()
        sums = analyst(made).ask(question, (), None)
    assert np.array_equal(sums.noisy, made.truth())


def test_a_question_that_the_budget_can_never_meet_is_refused_in_words(federation):
    give(federation)
    gaussian = {"epsilon": 1.0, "delta": 1e-6, "bins": 8, "mechanism": "sqrt"}
    gaussian["relation"] = "replace-one"
    with pytest.raises(RefusedError, match="budget"):
        federated.roc(None, analyst(federation), **gaussian)
    with pytest.raises(RefusedError, match="no such cells"):
        federated.roc(None, analyst(federation), epsilon=1.0, bins=16, relation="replace-one")
    with pytest.raises(RefusedError, match="counts under"):
        federated.roc(None, analyst(federation), epsilon=1.0, bins=8, relation="add-remove")
    states = progress_of(analyst(federation).settings).values()
    assert {state["epsilon_spent"] for state in states} == {0.0}


def test_a_contribution_that_one_server_lacks_is_left_out_by_both(federation):
    give(federation, "north", "west")
    federation.kill("beta")
    settings = ClientSettings.read(federation.trial.config("south"))
    brief = replace(settings, seconds=15.0, patience=0.3)
    with pytest.raises(NetworkError, match="1 of 2 servers have their share"):
        contribute(brief, federation.data["south"])
    federation.start("beta")
    taken = []
    federated.roc(
        None,
        analyst(federation, parties=2, told=taken.append),
        epsilon=1.0,
        bins=8,
        relation="replace-one",
    )
    assert taken[0].contributions == 2
    assert taken[0].records == len(federation.data["north"]) + len(federation.data["west"])
