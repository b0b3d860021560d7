"""The curves of one machine, given an aggregator: its threat model, its noise, its accounting."""

from __future__ import annotations

import importlib.util
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from noisewise.ecdf import Budget, dp_ecdf, dp_roc_curve, plan, private_roc
from noisewise.errors import UnsoundError
from noisewise.federated import (
    AcrossParties,
    FlowerAggregator,
    FunctionSharing,
    LocalAggregator,
    MaskedAggregator,
    SharedNoise,
    ThreatModel,
    ecdf,
    roc,
    without_noise,
)
from noisewise.federated.masking import AggregationError
from noisewise.privacy import verify
from noisewise.privacy.randomness import Randomness

AGGREGATORS = [
    pytest.param(LocalAggregator(), id="local"),
    pytest.param(MaskedAggregator(), id="masked"),
    pytest.param(MaskedAggregator(threshold=3, colluding=1), id="masked-colluding"),
    pytest.param(FunctionSharing(), id="two-servers"),
    pytest.param(FunctionSharing(servers=4, honest=2), id="four-servers"),
    pytest.param(
        FlowerAggregator(),
        id="flower",
        marks=pytest.mark.skipif(
            importlib.util.find_spec("flwr") is None,
            reason="the extra 'flower' is not installed (pip install flwr)",
        ),
    ),
]
#: What every threat model must answer.
SAID = (
    "protocol:", "adversary:", "must not collude:", "a server sees:", "the result goes to:",
    "drop-outs:", "noise:",
)  # fmt: skip
ECDF: dict[str, Any] = {
    "bounds": (0, 1), "epsilon": 0.7, "bins": 16, "relation": "replace-one",
}  # fmt: skip


def parties(sizes=(40, 5, 300)):
    rng = np.random.default_rng(0)
    return [
        (y, np.clip(rng.normal(0.4 + 0.2 * y, 0.2), 0, 1))
        for y in (rng.integers(0, 2, size) for size in sizes)
    ]


def released(aggregator, **options):
    """One release of each curve that takes an aggregator."""
    labels, scores = zip(*parties(), strict=True)
    asked = {**ECDF, **options}
    return [
        dp_ecdf(list(scores), aggregator=aggregator, **asked),
        private_roc(list(labels), list(scores), aggregator=aggregator, **asked),
    ]


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
@pytest.mark.parametrize("aggregator", AGGREGATORS)
def test_the_statement_names_the_threat_model_once(aggregator, relation):
    for curve in released(aggregator, relation=relation):
        statement = curve.statement()
        for word in SAID:
            assert sum(said.startswith(word) for said in statement.assumptions) == 1, word
        sentences = aggregator.threat_for(3, aggregator.noise_for(3)).sentences
        assert set(sentences) <= set(statement.assumptions)
        assert statement.epsilon <= 0.7 * (1 + 1e-9)
        assert verify(statement).ok
        assert all(word in statement.to_json() for word in SAID)


def test_a_local_aggregator_says_that_its_curator_is_trusted():
    for curve in released(LocalAggregator()):
        assumptions = curve.statement().assumptions
        assert "protocol: trusted curator" in assumptions
        assert "noise: added once, in full, by the one who sums" in assumptions


def test_servers_that_add_vectors_do_not_claim_keys():
    assumptions = released(FunctionSharing())[0].statement().assumptions
    assert any("additive secret sharing between 2 servers" in said for said in assumptions)
    assert not any("keys that look random" in said for said in assumptions)


def test_without_an_aggregator_nothing_is_said_of_protocols():
    labels, scores = (np.concatenate(part) for part in zip(*parties(), strict=True))
    for curve in (dp_ecdf(scores, **ECDF), private_roc(labels, scores, **ECDF)):
        assert not any(said.startswith("protocol") for said in curve.statement().assumptions)


def test_an_aggregator_without_a_threat_model_is_the_callers_promise():
    class Parties:
        def count(self, data: Any) -> int:
            return sum(map(len, data))

        def noisy_sum(self, data: Any, statistic: Any, noise: Any, rng: Randomness) -> Any:
            return sum(statistic(part) for part in data) + noise(rng)

    for curve in released(Parties()):
        said = [a for a in curve.statement().assumptions if "Parties" in a]
        assert len(said) == 1
        assert "states no threat model" in said[0]
        assert "caller's promise" in said[0]


# ------------------------------------------------------------------ the noise behind it


@given(
    servers=st.integers(2, 6),
    honest=st.integers(1, 6),
    delta=st.sampled_from([0.0, 1e-6]),
    relation=st.sampled_from(["replace-one", "add-remove"]),
)
@settings(max_examples=25, deadline=None)
def test_the_accountant_gets_what_survives_and_the_band_what_was_added(
    servers, honest, delta, relation
):
    honest = min(honest, servers)
    options = {**ECDF, "delta": delta, "relation": relation}
    values = [score for _, score in parties()]
    shared = dp_ecdf(values, aggregator=FunctionSharing(servers, honest), rng=1, **options)
    alone = dp_ecdf(np.concatenate(values), rng=1, **options)
    surviving = asdict(shared.mechanism.event)
    planned = asdict(alone.mechanism.event)
    # Parts of Gaussian noise are nearly Gaussian; the distance is accounted for.
    assert surviving.pop("variation", 0.0) >= planned.pop("variation", 0.0)
    assert surviving == planned
    expected = alone.mechanism.variance * servers / honest
    assert np.allclose(shared.mechanism.variance, expected, rtol=1e-12)
    same = ecdf(values, FunctionSharing(servers, honest), **options)
    assert same.mechanism.noise == shared.mechanism.noise


def test_two_classes_get_the_noise_of_all_servers_too():
    labels, scores = zip(*parties(), strict=True)
    one = private_roc(np.concatenate(labels), np.concatenate(scores), **ECDF)
    four = private_roc(labels, scores, aggregator=FunctionSharing(4, 2), **ECDF)
    assert np.allclose(four.release.variance, 2 * one.release.variance, rtol=1e-12)
    same = roc(parties(), FunctionSharing(4, 2), **ECDF)
    assert same.release.mechanism.noise == four.release.mechanism.noise
    widths = []
    for curve in (one, four):
        low, high = curve.auc_interval(0.9)
        widths.append(high - low)
    assert widths[1] > widths[0]


@pytest.mark.parametrize(
    ("aggregator", "factor"),
    [
        (LocalAggregator(), 1.0),
        (FunctionSharing(), 2.0),
        (FunctionSharing(4, 2), 2.0),
        (MaskedAggregator(threshold=3, colluding=1), 1.5),
    ],
)
def test_the_noise_has_the_variance_that_the_curve_states(aggregator, factor):
    values = [score for _, score in parties()]
    asked = {**ECDF, "bins": 12_000, "mechanism": "histogram", "relation": "add-remove"}
    found = dp_ecdf(values, aggregator=aggregator, rng=5, smooth=None, **asked)
    truth = found.grid.count(np.concatenate(values))
    noise = np.diff(found.noisy_counts, prepend=0.0) - truth
    single = plan(12_000, "add-remove", Budget(0.7), mechanism="histogram").noise[0].variance
    # 12,000 independent numbers, whose squares have a deviation of at most sqrt(5) times their
    # mean (discrete Laplace; sums of several have lighter tails): 5 deviations, for a false alarm
    # of 1e-6, are 10.2 %, and full noise from everybody would be off by 100 %.
    assert abs(np.mean(noise**2) / (factor * single) - 1) < 0.102


def test_a_trusted_curator_releases_what_one_machine_does():
    values = [score for _, score in parties()]
    for options in ({}, {"delta": 1e-6}, {"relation": "add-remove"}):
        apart = dp_ecdf(values, aggregator=LocalAggregator(), rng=3, **{**ECDF, **options})
        alone = dp_ecdf(np.concatenate(values), rng=3, **{**ECDF, **options})
        assert apart.counts.tobytes() == alone.counts.tobytes()


# ---------------------------------------------------------------------------- refusals


class Untouchable(list):
    """Parties whose records nobody may read."""

    def __iter__(self):
        return iter([_Sealed() for _ in range(len(self))])


class _Sealed:
    ndim = 1
    shape = (3,)

    def __len__(self):
        return 3

    def __array__(self, *_, **__):
        raise AssertionError("the data were touched")


def test_noise_without_an_accounting_is_refused_before_the_data_are_touched():
    with pytest.raises(UnsoundError, match="zCDP"):
        dp_ecdf(
            Untouchable([1, 2, 3, 4]), bounds=(0, 1), rho=0.1, bins=16,
            aggregator=FunctionSharing(4, 2),
        )  # fmt: skip
    with pytest.raises(ValueError, match="leaves no honest party"):
        dp_ecdf(Untouchable([1, 2, 3]), aggregator=MaskedAggregator(colluding=3), **ECDF)


@pytest.mark.parametrize("aggregator", AGGREGATORS[:5])
def test_a_curve_without_noise_is_refused(aggregator):
    labels, scores = zip(*parties(), strict=True)
    quiet = without_noise(aggregator)
    with pytest.raises(UnsoundError, match="pass for private"):
        dp_ecdf(scores, aggregator=quiet, **ECDF)
    with pytest.raises(UnsoundError, match="pass for private"):
        dp_roc_curve(labels, scores, aggregator=quiet, **ECDF)


@pytest.mark.parametrize("aggregator", AGGREGATORS[:5])
def test_what_is_no_list_of_parties_is_refused(aggregator):
    with pytest.raises(ValueError, match="one array of records for each party"):
        dp_ecdf(np.array([0.1, 0.2, 0.3]), aggregator=aggregator, **ECDF)
    with pytest.raises(ValueError, match="no parties"):
        dp_ecdf([], aggregator=aggregator, **ECDF)


def test_simulated_drop_outs_are_for_the_functions_that_see_them():
    values = [score for _, score in parties()]
    with pytest.raises(AggregationError, match="drop-outs"):
        dp_ecdf(values, aggregator=MaskedAggregator(absent={3: "reveal"}), **ECDF)


def test_a_protocol_of_ones_own_needs_three_answers():
    class Broadcast(AcrossParties):
        """Every party shouts its sums; the last one to shout adds the noise."""

        noiseless = False
        noise = SharedNoise()
        threat = ThreatModel(
            "shouting", "none", "nobody", "everything", "everybody", "not heard", "by the last"
        )

        def add_up(self, vectors, noise, rng):
            return sum(vectors) + noise(rng)

    for curve in released(Broadcast()):
        assert "protocol: shouting" in curve.statement().assumptions
