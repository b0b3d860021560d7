"""Units across parties: what is bounded with and without a common name, whole parties, devices."""

import itertools
import json

import numpy as np
import pytest

from noisewise import ecdf, federated
from noisewise.errors import RelationError, UnsoundError
from noisewise.federated import (
    Domain,
    EcdfQuestion,
    FunctionSharing,
    GroupSumsQuestion,
    HistogramQuestion,
    LocalAggregator,
    MaskedAggregator,
    Protected,
    Records,
    RocQuestion,
    question_from_dict,
    without_noise,
)
from noisewise.federated.protected import EACH_RECORD, canonical
from noisewise.privacy import Ledger, verify
from noisewise.privacy.randomness import Randomness
from noisewise.release import Units

GENERATOR = np.random.default_rng(0)
X = [GENERATOR.random(40) for _ in range(3)]
Y = [(GENERATOR.random(40) < x).astype(int) for x in X]
IDS = [[f"patient-4711-{i}" for i in GENERATOR.integers(0, 12, 40)] for _ in range(3)]
PAIRS = list(zip(Y, X, strict=True))
QUIET = without_noise(LocalAggregator())
E = {"epsilon": 2.0, "bins": 16}

CURVES = {
    "ecdf": lambda aggregator, **o: federated.ecdf(X, aggregator, bounds=(0, 1), **{**E, **o}),
    "histogram": lambda aggregator, **o: federated.histogram(
        X, aggregator, range=(0, 1), **{**E, **o}
    ),
    "roc": lambda aggregator, **o: federated.roc(PAIRS, aggregator, **{**E, **o}),
    "hosmer-lemeshow": lambda aggregator, **o: federated.hosmer_lemeshow(
        PAIRS, aggregator, draws=20, **{**E, **o}
    ),
}
AGGREGATORS = {
    "curator": LocalAggregator(),
    "masks": MaskedAggregator(threshold=3),
    "functions": FunctionSharing(),
}
UNITS = {
    "known to all": (IDS, 2 * 3, "at most 3 parties hold rows of one unit"),
    "known to one": (Units(IDS, parties=1), 2, "no unit has rows at more than one party"),
    "common": (Units(IDS, common=True), 2, "a unit has the same identifier at every party"),
    "party": ("party", 2, "all records of a party are one unit"),
    "device": ("device", 2, "all records of a device are one unit"),
}


@pytest.mark.parametrize("kind", UNITS)
@pytest.mark.parametrize("curve", CURVES)
def test_statement_and_ledger_speak_of_the_unit(curve, kind, tmp_path):
    units, rows, said = UNITS[kind]
    path = tmp_path / "l"
    found = CURVES[curve](LocalAggregator(), units=units, max_per_unit=2, seed=1, ledger=path)
    statement = found.statement()
    assert verify(statement).ok
    assert statement.epsilon <= 2.0 * (1 + 1e-9)
    assert any(said in sentence for sentence in statement.assumptions)
    assert "4711" not in statement.to_json() + repr(vars(found))
    with Ledger.open(path) as ledger:
        assert ledger.unit == statement.unit
        told = [event.per_row(rows) for event in ledger.history]
        assert sorted(map(repr, told)) == sorted(map(repr, statement.history))
    assert statement.unit_rows == rows
    with pytest.raises(RelationError):
        CURVES[curve](LocalAggregator(), ledger=path)
    if curve == "ecdf":
        of_one = CURVES[curve](LocalAggregator(), seed=1).mechanism.noise[0].scale
        assert found.mechanism.noise[0].scale == rows * of_one


@pytest.mark.parametrize("name", AGGREGATORS)
def test_every_protocol_counts_what_the_bound_lets_through(name):
    for curve in ("ecdf", "roc"):
        found = CURVES[curve](AGGREGATORS[name], units=IDS, max_per_unit=2, seed=1, epsilon=400.0)
        total = (
            found.total if curve == "ecdf" else found.release.negatives + found.release.positives
        )
        held = sum(np.minimum(np.unique(ids, return_counts=True)[1], 2).sum() for ids in IDS)
        assert abs(total - held) < 3
        assert verify(found.statement()).ok


@pytest.mark.parametrize("kind", UNITS)
@pytest.mark.parametrize("curve", ["ecdf", "histogram", "roc"])
def test_no_unit_moves_a_sum_by_more_than_stated_whoever_holds_its_rows(kind, curve):
    # All ways in which the rows of one unit can lie at two parties, among others that stay.
    places = [(0.1, 0), (0.6, 1), (0.9, 0)]
    limit, parties = 1, 2
    others = [[(0.3, 1), (0.3, 0)], [(0.7, 1)]]
    domain = Domain(
        0, 1, 4, labelled=curve == "roc", closed="above" if curve == "ecdf" else "below"
    )
    make = {"ecdf": EcdfQuestion, "histogram": HistogramQuestion, "roc": RocQuestion}[curve]
    shape = UNITS[kind][0]
    if kind not in ("party", "device"):
        shape = Units([[], []], parties=getattr(shape, "parties", None),
                      common=getattr(shape, "common", False))  # fmt: skip
    protects = Protected.of(shape, limit, parties)
    question = make(domain, 1.0, protects=protects)
    (bound, *_) = (part.value for part in question.query.sensitivity)

    def sums(mine):
        held, names = [], []
        for party, (own, theirs) in enumerate(zip(mine, others, strict=True)):
            # A party or device that is the unit holds nobody else's rows.
            rows = [*own] if kind in ("party", "device") and party == 0 else [*theirs, *own]
            values = np.array([value for value, _ in rows])
            held.append(Records(values, np.array([label for _, label in rows], bool)))
            names.append([f"other {party} {i}" for i in range(len(rows) - len(own))])
            names[-1] += ["unit"] * len(own)
        given = Units(names, parties=shape.parties, common=shape.common) if kind not in (
            "party", "device") else kind  # fmt: skip
        counted = protects.at_parties(held, given, Randomness.seeded(7))
        return sum(question.domain.count(part) for part in counted)

    ways = [w for n in range(3) for w in itertools.combinations_with_replacement(places, n)]
    second = [()] if kind in ("party", "device", "known to one") else ways
    without = sums([(), ()])
    worst = 0
    for mine in itertools.product(ways, second):
        worst = max(worst, int(np.abs(sums(mine) - without).sum()))
    assert (
        worst == protects.contribution.rows
    )  # exactly reached: the bound is no larger than needed
    # Of the strategy's own measurements one row moves them by at most bound / rows.
    one = make(domain, 1.0)
    assert bound == protects.contribution.rows * one.query.sensitivity[0].value


def test_curves_of_ecdf_count_on_every_party_that_may_know_a_unit():
    # In an earlier version identifiers were bounded at each party and accounted for as if no two
    # knew the same person.
    three = ecdf.private_roc(Y, X, aggregator=LocalAggregator(), units=IDS, seed=1, **E)
    one = ecdf.private_roc(
        Y, X, aggregator=LocalAggregator(), units=Units(IDS, parties=1), seed=1, **E
    )
    common = ecdf.private_roc(
        Y, X, aggregator=LocalAggregator(), units=Units(IDS, common=True), seed=1, **E
    )
    assert three.release.variance[0, -1] == pytest.approx(9 * one.release.variance[0, -1])
    # Whole rows instead of weights, for the same bound.
    assert common.release.variance[0, -1] < 1.1 * one.release.variance[0, -1]
    assert "3 parties hold rows of one unit" in str(three.statement().assumptions)
    assert "no unit has rows at more than one party" in str(one.statement().assumptions)
    known = len({name for ids in IDS for name in ids})
    exact = ecdf.private_roc(
        Y, X, aggregator=LocalAggregator(), units=Units(IDS, common=True), seed=1, bins=16,
        epsilon=400.0,
    )  # fmt: skip
    assert exact.release.negatives + exact.release.positives == pytest.approx(known, abs=1)


def test_records_that_were_not_bounded_are_refused():
    patient = Protected("identifier", "one patient", rows=2)
    question = RocQuestion(Domain(0, 1, 8, labelled=True, closed="below"), 1.0, protects=patient)
    records = Records.of(PAIRS[0])
    for aggregator in AGGREGATORS.values():
        with pytest.raises(UnsoundError, match="not bounded"):
            aggregator.ask(question, [records] * 3, Randomness.seeded(1))
    other = Protected("identifier", "one patient", rows=3)
    marked = Records(records.values, records.positive, np.arange(40))
    with pytest.raises(UnsoundError, match="not bounded"):
        question.statistic(other.bounded(marked, Randomness.seeded(1)))
    with pytest.raises(UnsoundError, match="not bounded"):
        question.statistic(marked)
    with pytest.raises(ValueError, match="identifiers"):
        patient.bounded(records, Randomness.seeded(1))
    with pytest.raises(ValueError, match="single records"):
        EACH_RECORD.bounded(marked, Randomness.seeded(1))
    assert question.statistic(patient.bounded(marked, Randomness.seeded(1))).size


def test_a_choice_follows_from_the_rows_and_not_from_their_order():
    # What a party sends twice under one mask must be the same to the bit.
    generator = np.random.default_rng(3)
    codes = generator.integers(0, 5, 30)
    records = Records(np.round(generator.random(30), 1), generator.random(30) < 0.5, codes)
    order = generator.permutation(30)
    mixed = Records(
        records.values[order], records.positive[order], generator.permutation(5)[codes][order]
    )
    patient = Protected("identifier", "one patient", rows=2)
    one, two = (patient.bounded(r, Randomness.seeded(4)) for r in (records, mixed))
    assert np.array_equal(one.values, two.values)
    assert np.array_equal(one.positive, two.positive)
    assert len(one) == 10
    assert len(canonical(Records(np.zeros(0), None, np.zeros(0, np.int64)))) == 0


def test_questions_travel_with_their_unit_and_old_ones_as_before():
    domain = Domain(0, 1, 8, labelled=True)
    plain = EcdfQuestion(domain, 1.0)
    assert "protects" not in plain.to_dict()
    for unit in (Protected("party", rows=7), Protected("identifier", "one patient", 3, 2)):
        for question in (EcdfQuestion(domain, 1.0, protects=unit),
                         GroupSumsQuestion(domain, 1.0, cuts=(0.5,), protects=unit)):  # fmt: skip
            again = question_from_dict(json.loads(json.dumps(question.to_dict())))
            assert again == question
            assert again.digest != plain.digest
    for wrong in ({"kind": "person"}, {"kind": "record", "rows": 2}, {"who": 1}, 7,
                  {"kind": "party", "parties": 2}, {"kind": "identifier", "rows": 0},
                  {"kind": "identifier", "common": "yes"}):  # fmt: skip
        with pytest.raises((ValueError, TypeError)):
            question_from_dict({**plain.to_dict(), "protects": wrong})


def test_what_cannot_be_true_is_refused():
    with pytest.raises(UnsoundError, match="add-remove"):
        CURVES["ecdf"](QUIET, units=IDS, relation="replace-one")
    found = CURVES["ecdf"](QUIET, units=Units(IDS, parties=1), relation="replace-one")
    assert found.total == sum(len(set(ids)) for ids in IDS)
    with pytest.raises(ValueError, match="each party"):
        CURVES["ecdf"](QUIET, units=IDS[0])
    with pytest.raises(ValueError, match="each of the 40 rows") as caught:
        CURVES["ecdf"](QUIET, units=[ids[1:] for ids in IDS])
    assert "4711" not in str(caught.value)
    with pytest.raises(ValueError, match="no units="):
        CURVES["ecdf"](QUIET, max_per_unit=2)
    with pytest.raises(ValueError, match="units must be"):
        CURVES["ecdf"](QUIET, units="patients")
    with pytest.raises(ValueError, match="common"):
        Units(IDS, parties=2, common=True)


def test_what_is_said_of_a_whole_party_is_no_more_than_its_noise_hides():
    """Two sets of records of a party are two changes apart: one row leaves, and another comes."""
    sums = []
    for mine in ([], [0.1], [0.9]):
        found = federated.ecdf(
            [np.array(mine), np.full(5, 0.5)], QUIET, bounds=(0, 1), bins=4, epsilon=1.0,
            mechanism="histogram", smooth=None, units="party", seed=1,
        )  # fmt: skip
        sums.append(np.diff(found.noisy_counts, prepend=0.0))
    empty, low, high = sums
    assert np.abs(low - empty).sum() == 1
    assert np.abs(low - high).sum() == 2
    said = Protected("party", rows=1).contribution.sentences
    assert any("is a change of two units" in sentence for sentence in said)
