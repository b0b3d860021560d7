"""A release: charged once, stored with its noise, full noise from every server."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest

pytest.importorskip("aiohttp")

from federated.network.one_process import OneProcess
from noisewise.federated.network import reservations
from noisewise.federated.network.errors import ConfigurationError, RefusedError
from noisewise.federated.network.manifest import set_digest, unframe
from noisewise.federated.network.measurement import Measurement
from noisewise.federated.network.releases import Releases
from noisewise.federated.questions import RocQuestion


@pytest.fixture
def both(tmp_path):
    made = OneProcess(tmp_path, epsilon=1000.0)
    yield made
    made.close()


def test_a_name_has_one_answer_and_one_charge(both):
    first = both.ask("alpha")
    assert both.ask("alpha") == first
    both.close()
    both.open()
    assert both.ask("alpha") == first
    assert len(both.ledgers["alpha"].entries) == 1


def test_the_same_question_in_other_words_is_the_same_release(both):
    domain = both.made.question().domain
    first = Measurement.of(both.study, RocQuestion(domain, 1.0, relation="replace-one"))
    for other in (
        RocQuestion(domain, 1, relation="replace-one"),
        RocQuestion(domain, 1.0, 0, relation="replace-one"),
        RocQuestion(domain, 1.0, relation=both.study.relation),
        RocQuestion(domain, 1.0, relation="replace-one", smooth=None),
    ):
        assert Measurement.of(both.study, other).digest == first.digest
    assert (
        Measurement.of(both.study, RocQuestion(domain, 0.5, relation="replace-one")).digest
        != first.digest
    )


def test_a_charge_whose_release_was_never_stored_is_used_and_not_paid_again(both, monkeypatch):
    monkeypatch.setattr(reservations, "finish", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        both.ask("alpha")
    (charge,) = both.ledgers["alpha"].charges
    monkeypatch.undo()
    both.close()
    both.open()
    answer = both.ask("alpha")
    assert hashlib.sha256(answer).hexdigest() == charge.digest
    assert both.ledgers["alpha"].charges == (charge,)


def test_what_fails_before_it_is_paid_for_costs_nothing_and_holds_nobody(both, monkeypatch):
    monkeypatch.setattr(Releases, "_make", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        both.ask("alpha")
    assert both.ledgers["alpha"].entries == ()
    both.withdraw("alpha", both.members[0])


def test_a_ledger_that_forgot_a_release_is_refused(both):
    both.ask("alpha")
    both.close()
    (both.folder / "alpha-state" / "budget.ledger").unlink()
    with pytest.raises(ConfigurationError, match="was deleted"):
        both.open()


def test_nothing_is_stored_if_the_charge_fails(both, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr(both.ledgers["alpha"], "charge_once", fail)
    with pytest.raises(OSError, match="disk full"):
        both.ask("alpha")
    assert both.releases["alpha"].find("first") is None


def test_a_name_is_not_given_to_another_question_or_set(both):
    both.ask("alpha")
    with pytest.raises(RefusedError, match="another question"):
        both.ask("alpha", measurement=both.measurement(0.5))
    with pytest.raises(RefusedError, match="other contributions"):
        both.ask("alpha", members=both.members[1:], excluded=both.members[:1])
    with pytest.raises(RefusedError, match="reserve the contributions"):
        both.make("alpha", name="never reserved")
    with pytest.raises(RefusedError, match="changed since"):
        both.ask("alpha", name="second", members=both.members[1:])
    assert len(both.ledgers["alpha"].entries) == 1


def test_a_subset_can_be_asked_for_and_is_exact(tmp_path):
    made = OneProcess(tmp_path, noiseless_test=True)
    sums = made.sums(members=made.members[1:], excluded=made.members[:1])
    names = list(made.made.data)[1:]
    assert np.array_equal(sums, made.made.truth(names))
    made.close()


def test_fewer_contributions_than_the_study_allows_are_refused(tmp_path):
    made = OneProcess(tmp_path, minimum_parties=3)
    with pytest.raises(RefusedError, match="2 parties are complete; this study answers from 3"):
        made.ask("alpha", members=made.members[1:], excluded=made.members[:1])
    assert made.ledgers["alpha"].entries == ()
    made.close()


def test_the_budget_of_the_round_is_enforced_before_anything_is_made(tmp_path):
    made = OneProcess(tmp_path, epsilon=1.5)
    made.ask("alpha")
    with pytest.raises(RefusedError, match="exceed the budget"):
        made.ask("alpha", name="second")
    assert made.releases["alpha"].find("second") is None
    assert len(made.ledgers["alpha"].entries) == 1
    made.close()


def test_every_server_adds_the_full_noise_to_its_own_share(tmp_path):
    """The variance of one server's noise is the planned one, of both together twice as much.

    Noise is read off as the difference of two releases of the same set by one server, which
    has twice the variance. Such a difference has a kurtosis of at most 4.5, so the mean of 200 x
    16 squares has a relative deviation of at most sqrt(3.5 / 3200) < 3.4 %; the limits of 20 % are
    almost six deviations away (false alarm below 1e-6).
    """
    made = OneProcess(tmp_path, epsilon=1e6)
    measurement = made.measurement()
    planned = np.concatenate(
        [np.full(block.size, block.variance) for block in measurement.question.planned.noise]
    )
    differences = {}
    members = tuple(sorted(made.members))
    for server in made.names:
        answers = (
            made.releases[server]._make(
                reservations.Reservation(f"many {number}", measurement.encoded, members),
                measurement,
            )
            for number in range(400)
        )
        words = np.array([np.frombuffer(unframe(answer)[1], "<i8") for answer in answers])
        differences[server] = words[::2] - words[1::2]
        ratio = (differences[server] ** 2 / (2 * spread(made, planned))).mean()
        assert 0.8 < ratio < 1.2, (server, ratio)
    both = differences["alpha"] + differences["beta"]
    ratio = (both**2 / (2 * spread(made, planned))).mean()
    assert 1.6 < ratio < 2.4
    made.close()


def spread(made, planned):
    """Variance of each measurement: the strategy sorts the blocks of noise by curve."""
    strategy = made.measurement().question.planned.strategy
    unit = np.eye(planned.size)
    rows = np.asarray(strategy.spread(unit), np.float64)
    return (rows**2 * planned[:, None]).sum(0)


def test_the_sum_of_all_answers_is_the_truth_and_noise(both):
    gap = both.sums() - both.made.truth()
    assert 0 < np.abs(gap).max() < 1000


def test_one_servers_answer_alone_is_spread_over_all_words(both):
    """Without the other server's share an answer is a uniform word, with noise or without.

    Of 26 uniform words all are below 2^55 in absolute value with probability below 2^-200.
    """
    words = np.frombuffer(unframe(both.ask("alpha"))[1], "<i8")
    assert np.abs(words.astype(np.float64)).max() > 2.0**55


def test_an_answer_says_what_it_answers(both):
    head = json.loads(unframe(both.ask("beta"))[0])
    assert head["server"] == "beta"
    assert head["set"] == set_digest(both.members)
    assert head["request"] == both.measurement().digest
    assert head["records"] == sum(len(part) for part in both.made.data.values())
    assert "operating system" in head["noise"]


def test_a_study_with_noise_cannot_be_served_without_a_ledger(both):
    state = both.states["alpha"]
    with pytest.raises(ValueError, match="has a ledger"):
        Releases(both.study, "alpha", state.store, both.route, None, state.marks)
