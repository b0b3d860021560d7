"""Curves across parties are those of one machine, to the bit, and say which protocol made them."""

import json

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from sklearn.metrics import roc_auc_score

from noisewise.ecdf import dp_ecdf, dp_hosmer_lemeshow, private_histogram, private_roc
from noisewise.ecdf.estimate import smooth_counts
from noisewise.errors import UnsoundError
from noisewise.federated import (
    Domain,
    EcdfQuestion,
    FunctionSharing,
    GroupSumsQuestion,
    HistogramQuestion,
    LocalAggregator,
    MaskedAggregator,
    Records,
    RocQuestion,
    Sums,
    ecdf,
    histogram,
    hosmer_lemeshow,
    quantiles,
    question_from_dict,
    roc,
    without_noise,
)
from noisewise.federated.masking import AggregationError
from noisewise.federated.measuring import measure_modulo
from noisewise.privacy import verify
from noisewise.privacy.randomness import Randomness
from noisewise.release import Block

AGGREGATORS = [
    pytest.param(LocalAggregator(), id="local"),
    pytest.param(MaskedAggregator(), id="masked"),
    pytest.param(MaskedAggregator(threshold=2, absent={3: "reveal"}), id="masked-drop"),
    pytest.param(FunctionSharing(), id="function-sharing"),
    pytest.param(FunctionSharing(compiled=False), id="function-sharing-numpy"),
    pytest.param(FunctionSharing(servers=4), id="four-servers"),
]


@pytest.fixture
def silent(monkeypatch):
    """The curves of one machine without noise (and so without a statement worth reading)."""
    monkeypatch.setattr(Block, "draw", lambda self, rng: np.zeros(self.size, np.int64))


def parties(seed=0, sizes=(40, 1, 300)):
    """Three parties' labels and scores, with ties and values on thresholds."""
    rng = np.random.default_rng(seed)
    found = []
    for size in sizes:
        score = rng.beta(2, 3, size)
        score[: size // 3] = np.round(score[: size // 3] * 16) / 16
        found.append((rng.random(size) < score, score))
    return found


def merged(data):
    return tuple(np.concatenate([part[k] for part in data]) for k in (0, 1))


@pytest.mark.parametrize("aggregator", AGGREGATORS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"relation": "add-remove"},
        {"mechanism": "thesis"},
        {"mechanism": "histogram"},
        {"delta": 1e-6, "mechanism": "sqrt"},
        {"delta": 1e-6, "mechanism": "circulant"},
        {"delta": 1e-6},
        {"thresholds": [0.1, 0.25, 0.5, 0.75]},
        {"smooth": None},
    ],
)
def test_a_federated_curve_is_the_local_one_to_the_bit(aggregator, options, silent):
    data = [score for _, score in parties()]
    asked = {"relation": "replace-one", "bounds": (0, 1), "epsilon": 1.0, "bins": 64, **options}
    local = dp_ecdf(np.concatenate(data), **asked)
    found = ecdf(data, without_noise(aggregator), **asked)
    assert found.noisy_counts.tobytes() == local.noisy_counts.tobytes()
    assert found.counts.tobytes() == local.counts.tobytes()
    assert found.mean() == local.mean()
    if options.get("smooth", "auto") is not None:
        q = np.linspace(0, 1, 21)
        wanted = quantiles(data, q, without_noise(aggregator), **asked)
        assert wanted.tobytes() == local.quantile(q).tobytes()
    # The inverse by bisection, which needs no monotone curve.
    inverse, expected = (
        curve.quantile(np.linspace(0, 1, 21), method="bisection", raw=True)
        for curve in (found, local)
    )
    assert inverse.tobytes() == expected.tobytes()


@pytest.mark.parametrize("aggregator", AGGREGATORS)
@pytest.mark.parametrize("options", [{}, {"bins": 64}], ids=["searched", "of a curve"])
def test_quantiles_of_parties_have_a_statement_and_limits(aggregator, options):
    """All looks of a search are stated, and not the last alone; bounds may be far too wide."""
    data = [score for _, score in parties()]
    bounds = (0, 1) if options else (-1e9, 1e9)
    asked = {"bounds": bounds, "epsilon": 1.0, "seed": 1, **options}
    found = quantiles(data, [0.75, 0.25, 0.5], aggregator, **asked)
    stated = found.statement()
    assert 1 - 1e-6 < stated.epsilon <= 1.0
    assert verify(stated).ok
    assert any(said.startswith("protocol: ") for said in stated.assumptions)
    low, high = found.confidence_interval(0.9)
    assert np.all((low <= found) & (found <= high) & (high - low < 1))
    with pytest.raises(ValueError, match=r"in \[0, 1\]"):
        quantiles(data, 1.5, aggregator, **asked)


@pytest.mark.parametrize("aggregator", AGGREGATORS)
@pytest.mark.parametrize("options", [{}, {"relation": "add-remove"}, {"delta": 1e-6}])
def test_a_federated_roc_curve_is_the_local_one_to_the_bit(aggregator, options, silent):
    data = parties()
    y, score = merged(data)
    asked = {"relation": "replace-one", "epsilon": 1.0, "bins": 32, **options}
    local = private_roc(y, score, **asked)
    found = roc(data, without_noise(aggregator), **asked)
    assert found.fpr.tobytes() == local.fpr.tobytes()
    assert found.tpr.tobytes() == local.tpr.tobytes()
    assert found.auc == local.auc
    rounded = np.floor(score * 32) / 32
    assert found.auc == pytest.approx(roc_auc_score(y, np.minimum(rounded, 31 / 32)), abs=1e-9)


@pytest.mark.parametrize("aggregator", AGGREGATORS)
@pytest.mark.parametrize(
    "options", [{}, {"noise": "independent"}, {"bins": np.array([0.0, 0.1, 0.5, 1.0])}]
)
def test_a_federated_histogram_is_the_local_one_to_the_bit(aggregator, options, silent):
    data = [score for _, score in parties()]
    asked = {"relation": "replace-one", "epsilon": 1.0, "range": (0.0, 1.0), "bins": 16, **options}
    local = private_histogram(np.concatenate(data), **asked)
    found = histogram(data, without_noise(aggregator), **asked)
    assert found.counts.tobytes() == local.counts.tobytes()
    assert found.edges.tolist() == local.edges.tolist()
    plain = np.histogram(np.concatenate(data), asked["bins"], (0.0, 1.0))[0]
    assert np.rint(found.counts).astype(int).tolist() == plain.tolist()


@pytest.mark.parametrize("aggregator", AGGREGATORS)
@pytest.mark.parametrize("method", ["residual", "thesis"])
def test_a_federated_hosmer_lemeshow_test_is_the_local_one_to_the_bit(aggregator, method, silent):
    data = parties()
    if isinstance(aggregator, FunctionSharing):
        # Servers know cells, not predictions: the local result is that of rounded predictions.
        data = [(y, np.maximum(np.ceil(p * 64), 1) / 64) for y, p in data]
    y, p = merged(data)
    asked = {
        "relation": "replace-one",
        "epsilon": 1.0,
        "groups": 4,
        "bins": 64,
        "method": method,
        "draws": 200,
    }
    local = dp_hosmer_lemeshow(y, p, **asked)
    found = hosmer_lemeshow(data, without_noise(aggregator), **asked)
    assert found.statistic == local.statistic
    if isinstance(aggregator, LocalAggregator):
        assert found.p_value == local.p_value
        assert found.noise_aware_p_value == local.noise_aware_p_value
    else:  # p-values allow for the noise of all contributors
        assert found.p_value == pytest.approx(local.p_value, abs=0.3)
    assert {k: v.tolist() for k, v in found.table.items()} == {
        k: v.tolist() for k, v in local.table.items()
    }


def test_comparison_keys_give_the_same_counts_at_a_few_thresholds(silent):
    data = [np.round(score * 2**20) / 2**20 for _, score in parties()]
    asked = {
        "relation": "replace-one",
        "bounds": (0, 1),
        "epsilon": 1.0,
        "thresholds": [0.125, 0.25, 0.5],
        "bins": 4,
    }
    local = dp_ecdf(np.concatenate(data), **asked)
    found = ecdf(data, without_noise(FunctionSharing(keys="comparison")), **asked)
    assert found.counts.tobytes() == local.counts.tobytes()
    with pytest.raises(ValueError, match="comparison keys"):
        roc(parties(), FunctionSharing(keys="comparison"), epsilon=1.0)


def test_the_same_seed_gives_the_curator_the_noise_of_one_machine():
    data = [score for _, score in parties()]
    asked = {"relation": "replace-one", "bounds": (0, 1), "epsilon": 0.5, "bins": 64, "rng": 7}
    local = dp_ecdf(np.concatenate(data), **asked)
    assert (ecdf(data, LocalAggregator(), **asked).counts == local.counts).all()


# ------------------------------------------------------------------------- statements


@pytest.mark.parametrize("aggregator", AGGREGATORS)
def test_every_statement_names_protocol_and_trust_and_verifies(aggregator):
    data = parties()
    curves = [
        ecdf([s for _, s in data], aggregator, bounds=(0, 1), epsilon=0.7, bins=16),
        roc(data, aggregator, epsilon=0.7, bins=16),
        histogram([s for _, s in data], aggregator, epsilon=0.7, bins=16, range=(0, 1)),
        hosmer_lemeshow(data, aggregator, epsilon=0.7, bins=16, groups=3, draws=100),
    ]
    for curve in curves:
        statement = curve.statement()
        assert statement.epsilon <= 0.7 * (1 + 1e-9)
        for word in ("protocol", "adversary", "must not collude", "a server sees", "drop-outs"):
            assert sum(said.startswith(f"{word}:") for said in statement.assumptions) == 1
        assert any(said.startswith("noise:") for said in statement.assumptions)
        assert verify(statement).ok


@pytest.mark.parametrize("aggregator", AGGREGATORS)
def test_without_noise_no_epsilon_can_be_stated(aggregator):
    data = parties()
    quiet = without_noise(aggregator)
    values = [s for _, s in data]
    curves = [
        ecdf(values, quiet, bounds=(0, 1), epsilon=1.0, bins=16),
        roc(data, quiet, epsilon=1.0, bins=16),
        histogram(values, quiet, epsilon=1.0, bins=16, range=(0, 1)),
        hosmer_lemeshow(data, quiet, epsilon=1.0, bins=16, groups=3, draws=50),
    ]
    for curve in curves:
        with pytest.raises(UnsoundError, match="switched off"):
            curve.statement()
    if not getattr(aggregator, "absent", None):
        with pytest.raises(UnsoundError, match="pass for private"):
            dp_ecdf(values, bounds=(0, 1), epsilon=1.0, bins=16, aggregator=quiet)


@pytest.mark.parametrize("aggregator", [a for a in AGGREGATORS if a.id != "masked-drop"])
def test_the_curves_of_one_machine_accept_these_aggregators(aggregator):
    data = [score for _, score in parties()]
    curve = dp_ecdf(data, bounds=(0, 1), epsilon=20.0, bins=16, aggregator=aggregator, rng=3)
    truth = np.concatenate(data)
    assert abs(curve(0.5) - (truth <= 0.5).mean()) < 0.1


def test_noise_from_two_servers_widens_the_band():
    data = [score for _, score in parties()]
    asked = {"relation": "replace-one", "bounds": (0, 1), "epsilon": 1.0, "bins": 16, "rng": 1}
    one = ecdf(data, LocalAggregator(), **asked)
    two = ecdf(data, FunctionSharing(), **asked)
    assert np.allclose(two.variance()[:-1], 2 * one.variance()[:-1])
    width = [
        (b.high.probabilities - b.low.probabilities).mean()
        for b in (one.confidence_band(0.9), two.confidence_band(0.9))
    ]
    assert width[1] > width[0]


def test_shrinking_reckons_with_the_noise_of_all_servers():
    data = [score for _, score in parties()]
    asked = {
        "relation": "replace-one",
        "bounds": (0, 1),
        "epsilon": 0.5,
        "bins": 64,
        "mechanism": "kary",
    }
    found = ecdf(data, FunctionSharing(servers=4), smooth="shrink", rng=7, **asked)
    same = smooth_counts(found.noisy_counts, found.mechanism, "shrink")
    alone = smooth_counts(found.noisy_counts, dp_ecdf(data[0], **asked).mechanism, "shrink")
    assert (found.counts == same).all()
    assert not np.allclose(found.counts, alone)


# ----------------------------------------------------------- questions and their domains

domains = st.builds(
    Domain,
    st.floats(-10, 0),
    st.floats(1, 10),
    st.integers(2, 40),
    labelled=st.booleans(),
    closed=st.sampled_from(["above", "below"]),
)


@given(domains)
def test_domains_survive_json(domain):
    again = Domain.from_dict(json.loads(json.dumps(domain.to_dict())))
    assert again == domain
    assert again.digest == domain.digest


QUESTIONS = [
    EcdfQuestion(Domain(0, 1, 8), 1.0, 1e-6, mechanism="sqrt"),
    EcdfQuestion(Domain(0, 1, 8, thresholds=(0.1, 0.3)), 1.0),
    RocQuestion(Domain(0, 1, 8, labelled=True, closed="below"), 0.3, relation="add-remove"),
    HistogramQuestion(Domain(-1, 1, 8, closed="below"), 2.0, noise="independent"),
    GroupSumsQuestion(Domain(0, 1, 8, labelled=True), 0.5, cuts=(0.25, 0.5), method="thesis"),
]


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: q.kind)
def test_questions_survive_json_and_plan_the_same_noise(question):
    again = question_from_dict(json.loads(json.dumps(question.to_dict())))
    assert again == question
    assert again.digest == question.digest
    assert again.planned.noise == question.planned.noise


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "secrets"}, "kind"),
        ({"epsilon": 0}, "epsilon"),
        ({"relation": "none"}, "relation"),
        ({"domain": None}, "domain"),
        ({"extra": 1}, "no fields"),
        ({"domain": {"lower": 0, "upper": 1, "bins": 8, "closed": "below"}}, "closed"),
        ({"domain": {"lower": 1, "upper": 0, "bins": 8}}, "increase"),
        ({"domain": {"lower": 0, "upper": 1, "bins": 8, "thresholds": "x"}}, "thresholds"),
    ],
)
def test_questions_from_strangers_are_checked(change, message):
    fields = {**QUESTIONS[0].to_dict(), **change}
    with pytest.raises(ValueError, match=message):
        question_from_dict(fields)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(2, 70),
    st.sampled_from(["kary", "thesis", "histogram", "sqrt", "circulant"]),
    st.sampled_from(["replace-one", "add-remove"]),
    st.integers(0, 2**32),
)
def test_measurements_of_shares_sum_to_the_measurements(bins, mechanism, relation, seed):
    delta = 1e-6 if mechanism in ("sqrt", "circulant") else 0.0
    both_classes = Domain(0, 1, bins, labelled=True, closed="below")
    if mechanism == "circulant":
        questions = [
            EcdfQuestion(Domain(0, 1, bins), 1.0, delta, "replace-one", mechanism=mechanism)
        ]
    else:
        questions = [
            EcdfQuestion(Domain(0, 1, bins), 1.0, delta, relation, mechanism=mechanism),
            RocQuestion(both_classes, 1.0, delta, relation, mechanism=mechanism),
        ]
    for question in questions:
        counts = np.random.default_rng(seed).integers(0, 1000, question.domain.cells)
        share = Randomness.seeded(seed).uint64(counts.size).view(np.int64)
        strategy = question.planned.strategy
        both = measure_modulo(strategy, share) + measure_modulo(strategy, counts - share)
        assert both.tolist() == strategy.measure(counts).tolist()


@pytest.mark.parametrize("mechanism", ["sqrt", "circulant"])
def test_measurements_of_shares_of_fine_grids_sum_to_the_measurements(mechanism):
    # Where a floating-point transform of whole words would be wrong.
    question = EcdfQuestion(Domain(0, 1, 700), 1.0, 1e-6, "replace-one", mechanism=mechanism)
    counts = np.random.default_rng(0).integers(0, 1000, 700)
    share = Randomness.seeded(0).uint64(700).view(np.int64)
    strategy = question.planned.strategy
    both = measure_modulo(strategy, share) + measure_modulo(strategy, counts - share)
    assert both.tolist() == strategy.measure(counts).tolist()


def test_what_cannot_be_accounted_or_smoothed_is_refused_before_anything_is_spent():
    values = [np.linspace(0, 1, 50)] * 4
    asked = {"relation": "replace-one", "bounds": (0, 1), "bins": 16}
    with pytest.raises(UnsoundError, match="zCDP"):
        ecdf(values, MaskedAggregator(), epsilon=12.0, delta=1e-6, mechanism="sqrt", **asked)
    sharing = FunctionSharing(servers=3, honest=2)
    with pytest.raises(UnsoundError, match="zCDP"):
        ecdf(values, sharing, epsilon=12.0, delta=1e-6, mechanism="sqrt", **asked)
    full = FunctionSharing(servers=3)
    curve = ecdf(values, full, epsilon=12.0, delta=1e-6, mechanism="sqrt", **asked)
    local = dp_ecdf(values[0], epsilon=12.0, delta=1e-6, mechanism="sqrt", **asked)
    assert curve.statement().epsilon == local.statement().epsilon
    with pytest.raises(ValueError, match="l1"):
        ecdf(values, full, epsilon=1.0, mechanism="kary", smooth="l1", **asked)


def test_records_are_checked():
    with pytest.raises(ValueError, match="labelled"):
        roc([np.array([0.5])], LocalAggregator(), epsilon=1.0)
    with pytest.raises(ValueError, match="no parties"):
        ecdf([], LocalAggregator(), bounds=(0, 1), epsilon=1.0)
    with pytest.raises(ValueError, match="NaN"):
        Records.of(np.array([np.nan]))
    with pytest.raises(UnsoundError, match="bounds"):
        ecdf([np.array([0.5])], LocalAggregator(), bounds=None, epsilon=1.0)
    with pytest.raises(ValueError, match="not a sum over records"):
        hosmer_lemeshow(parties(), LocalAggregator(), epsilon=1.0, method="statistic")
    with pytest.raises(ValueError, match="no records"):
        ecdf([np.array([])], LocalAggregator(), bounds=(0, 1), epsilon=1.0, relation="replace-one")
    empty = ecdf(
        [np.array([])], LocalAggregator(), bounds=(0, 1), epsilon=1.0, relation="add-remove"
    )
    assert empty.counts.size


def test_one_upload_answers_several_questions():
    from noisewise.federated.fss import generate_point
    from noisewise.federated.fss.server import KeyStore, combine_shares, noisy_share, paired

    domain = Domain(0, 1, 32, labelled=True)
    stores = [KeyStore(domain, server, "autumn") for server in (0, 1)]
    data = [Records.of(party) for party in parties()]
    for party in data:
        pair = generate_point(domain.place(party), domain.levels, stores[0].tag)
        for store, keys in zip(stores, pair, strict=True):
            store.accept(keys.to_bytes())
    names = paired(stores[0].roster(), stores[1].roster())
    shares = [store.histogram_share(names) for store in stores]
    sharing = FunctionSharing()
    for question in (
        EcdfQuestion(domain, 1.0),
        EcdfQuestion(domain, 0.5, mechanism="thesis"),
        GroupSumsQuestion(domain, 1.0, cuts=(0.5,)),
    ):
        noisy = [
            noisy_share(question, share, sharing.noise, Randomness.secure(), noiseless=True)
            for share in shares
        ]
        sums = combine_shares(
            question, noisy, sharing.noise, sharing.threat, records=len(names), randomness="none"
        )
        direct = LocalAggregator(noiseless=True).ask(question, data, Randomness.secure())
        if isinstance(question, EcdfQuestion):
            assert sums.noisy.tolist() == direct.noisy.tolist()
        else:  # predictions rounded up to the cells
            assert np.abs(sums.noisy - direct.noisy).max() <= len(names) * 2**20 / 32


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: q.kind)
def test_words_that_do_not_belong_together_give_an_error_and_no_curve(question):
    mechanism = LocalAggregator().noise.apply(question.planned)
    size = question.planned.draw(Randomness.seeded(1)).size
    words = Randomness.seeded(2).uint64(size).view(np.int64)
    for records in (100, None):
        sums = Sums(words, mechanism, LocalAggregator().threat, "seeded", records)
        with pytest.raises(AggregationError, match="do not belong together"):
            question.answer(sums)


def test_a_missing_share_gives_an_error_and_no_curve():
    question = QUESTIONS[1]
    sharing = FunctionSharing()
    records = [Records.of(np.linspace(0, 1, 50))]
    stolen = sharing.ask(question, records, Randomness.seeded(1))
    lost = Randomness.seeded(3).uint64(stolen.noisy.size).view(np.int64)
    broken = Sums(
        stolen.noisy - lost, stolen.mechanism, stolen.threat, stolen.randomness, stolen.records
    )
    with pytest.raises(AggregationError, match="spoiled"):
        question.answer(broken)


def test_more_records_than_64_bits_hold_are_refused():
    question = QUESTIONS[0]
    mechanism = LocalAggregator().noise.apply(question.planned)
    zero = np.zeros(question.planned.draw(Randomness.seeded(1)).size, np.int64)
    with pytest.raises(OverflowError, match="kary"):
        question.answer(Sums(zero, mechanism, LocalAggregator().threat, "seeded", 2**60))
