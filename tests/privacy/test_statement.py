import json
from dataclasses import FrozenInstanceError, replace

import jsonschema
import pytest
from hypothesis import given, settings, strategies as st

from noisewise.errors import RelationError, StatementError, UnsoundError
from noisewise.privacy import (
    Gaussian,
    Laplace,
    PoissonGaussian,
    Pure,
    Statement,
    ZeroConcentrated,
    statement_schema,
    verify,
)
from noisewise.privacy.statement import round_up


@pytest.fixture(scope="module")
def training():
    return Statement.derive(
        PoissonGaussian(1.0, 0.01, 1000),
        delta=1e-5,
        mechanism="DP-SGD",
        assumptions=["the number of records is public"],
        randomness="a test",
    )


def histories():
    return st.lists(
        st.one_of(
            st.builds(PoissonGaussian, st.sampled_from([0.8, 2.0]), st.just(0.01), st.just(50)),
            st.builds(Gaussian, st.sampled_from([1.0, 5.0])),
            st.builds(Laplace, st.sampled_from([1.0, 5.0])),
            st.builds(Pure, st.sampled_from([0.1, 1.0])),
        ),
        max_size=3,
    )


@settings(max_examples=25)
@given(histories(), st.sampled_from(["pld", "rdp"]), st.sampled_from(["add-remove", "replace-one"]))
def test_a_statement_survives_json_fits_its_schema_and_verifies(history, accountant, relation):
    statement = Statement.derive(
        history, delta=1e-6, mechanism="m", accountant=accountant, relation=relation
    )
    fields = json.loads(statement.to_json())
    jsonschema.Draft202012Validator(statement_schema()).validate(fields)
    assert Statement.from_json(statement.to_json()) == statement
    assert verify(statement).problems == ()


def test_a_concentrated_statement_verifies():
    statement = Statement.derive(
        ZeroConcentrated(0.05, 3), delta=1e-6, mechanism="m", accountant="rdp"
    )
    outcome = verify(statement)
    assert outcome.ok
    assert outcome.other is None
    assert outcome.independent == pytest.approx(outcome.stated, rel=1e-2)


def test_every_promised_field_is_there(training):
    fields = training.to_dict()
    names = "epsilon delta relation unit mechanism noise_multiplier sample_rate steps accountant"
    for name in (names + " sampler randomness assumptions versions version").split():
        assert name in fields
    assert (training.noise_multiplier, training.sample_rate, training.steps) == (1.0, 0.01, 1000)
    assert "Poisson" in training.sampler


def test_it_prints_for_a_terminal_and_for_a_card(training):
    text, card = str(training), training.card()
    for shown in ("1.829", "1e-05", "add-remove", "the number of records is public"):
        assert shown in text
        assert shown in card
    assert card.startswith("## ")


def test_it_is_frozen_and_infinite_epsilons_are_never_stated(training):
    with pytest.raises(FrozenInstanceError):
        training.epsilon = 0.1
    with pytest.raises(UnsoundError, match="no finite epsilon"):
        Statement.derive(Gaussian(1.0), delta=0.0, mechanism="m")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epsilon", 0.5),
        ("delta", 1e-3),
        ("relation", "replace-one"),
        ("steps", 10),
        ("noise_multiplier", 2.0),
        ("assumptions", ["trust me"]),
        ("accountant", "rdp"),
        ("unit", "one patient"),
        ("history", []),
    ],
)
def test_any_changed_field_is_noticed(training, field, value):
    fields = training.to_dict() | {field: value}
    with pytest.raises(StatementError, match="digest"):
        Statement.from_json(json.dumps(fields))


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": 1.7},
        {"epsilon": 2.0},
        {"delta": 1e-7},
        {"history": (PoissonGaussian(0.9, 0.01, 1000),)},
        {"history": (PoissonGaussian(1.0, 0.01, 1200),)},
        {
            "relation": Statement.derive(
                Pure(1.0), delta=0, mechanism="m", relation="replace-one"
            ).relation
        },
    ],
)
def test_a_forged_statement_with_a_matching_digest_is_still_found_out(training, change):
    forged = Statement.from_json(replace(training, **change).to_json())
    outcome = verify(forged)
    assert not outcome.ok
    assert "is stated as" in outcome.problems[0]


def test_an_understated_epsilon_is_also_found_by_the_independent_accountant(training):
    outcome = verify(replace(training, epsilon=1.7))
    assert any("independent accountant" in problem for problem in outcome.problems)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "not a noisewise"),
        ('{"format": "noisewise-privacy-statement", "version": 99}', "version"),
        ('{"format": "noisewise-privacy-statement", "version": 2}', "missing fields"),
    ],
)
def test_what_is_no_statement_is_refused(text, message):
    with pytest.raises(StatementError, match=message):
        Statement.from_json(text)


def test_fields_of_the_wrong_type_or_name_are_refused(training):
    for change in ({"history": "none"}, {"versions": []}, {"surprise": 1}, {"unit": 3}):
        with pytest.raises(StatementError):
            Statement.from_dict(training.to_dict() | change)


def test_statements_compose_under_one_relation_only(training):
    other = Statement.derive(Laplace(2.0), delta=0.0, mechanism="mean age")
    both = Statement.compose([training, other])
    assert training.epsilon < both.epsilon < training.epsilon + other.epsilon + 1e-9
    assert both.delta == training.delta
    assert both.steps == 1001
    replaced = Statement.derive(Laplace(2.0), delta=0.0, mechanism="m", relation="replace-one")
    with pytest.raises(RelationError):
        Statement.compose([training, replaced])
    with pytest.raises(ValueError, match="at least one"):
        Statement.compose([])


@given(st.floats(1e-9, 1e6))
def test_a_printed_epsilon_is_never_below_the_truth(value):
    assert float(round_up(value)) >= value * (1 - 1e-12)
    assert float(round_up(value)) <= value * 1.002


def test_no_epsilon_is_stated_under_an_assumption_known_to_be_false():
    with pytest.raises(UnsoundError, match="read from the private records"):
        Statement.derive(
            Pure(1.0),
            delta=0.0,
            mechanism="m",
            assumptions=["NOT SOUND: its ranges were read from the private records"],
        )


THEN = "discrete Laplace mechanism, exact sampling"


def of_the_first_version(releases, delta):
    """A statement as version 0.1 made it of counts with integer noise."""
    statement = Statement.derive(Laplace(1.0, releases), delta=delta, mechanism="a")
    return replace(statement, mechanism=THEN)


def test_statements_that_were_composed_compose_again_and_verify(training):
    pure = Statement.derive(Pure(0.1), delta=0.0, mechanism="Laplace noise")
    once = Statement.compose([training, pure])
    twice = Statement.compose([once, pure, once])
    assert twice.sampler == once.sampler
    assert verify(twice.to_json()).ok


def test_a_count_of_the_first_version_holds_but_many_composed_do_not():
    assert verify(of_the_first_version(1, 0.0).to_json()).ok
    assert verify(of_the_first_version(10, 0.0).to_json()).ok
    composed = of_the_first_version(10, 0.01)
    outcome = verify(composed.to_json())
    assert not outcome.ok
    assert composed.epsilon < 8.4
    assert outcome.recomputed > 9.7


def test_what_is_derived_again_from_the_first_version_is_true():
    again = Statement.derive(Laplace(1.0, 10), delta=0.01, mechanism=f"{THEN}; {THEN}")
    assert again.epsilon > 9.7
    assert verify(again).ok


def test_counts_of_the_first_version_are_composed_as_what_they_are():
    fresh = Statement.derive(Laplace(2.0), delta=0.0, mechanism="Laplace mechanism on a grid")
    composed = Statement.compose([*[of_the_first_version(1, 0.0)] * 10, fresh], delta=0.01)
    assert {type(event) for event in composed.history} == {Pure, Laplace}
    assert composed.epsilon > 9.7
    # It says so in today's words, and is not taken for one of the first version again.
    assert "discrete Laplace" not in composed.mechanism
    assert verify(composed.to_json()).ok
