"""What was paid for is found again: value and charge come into the world in one act."""

from fractions import Fraction

import numpy as np
import pytest

from noisewise.errors import BudgetExceededError, LedgerError
from noisewise.privacy import Ledger, Pure, Sensitivity
from noisewise.privacy.ledger import Ledger as LedgerClass
from noisewise.release import IntegerNoise, Query, SealedAccount, ThisProcess, release

ONE = Sensitivity(1.0, "l1")


class PowerCutError(Exception):
    """The process ends here."""


@pytest.fixture
def folder(tmp_path):
    Ledger.create(tmp_path / "a.ledger", epsilon=1.0).close()
    return tmp_path


def measure(folder, records=tuple(range(40)), of="weights", times=1, epsilon=0.25):
    """Count the records as a process does that has just been started."""
    query = Query.of(lambda held: np.full(8, len(held) // 8), ONE, "counts")
    noise = IntegerNoise("laplace", 1 / Fraction(epsilon), ONE, Pure(epsilon), "Laplace noise")
    with Ledger.open(folder / "a.ledger") as ledger:
        account = SealedAccount(ledger, "run 7", folder)
        account.begin(of)
        found = [release(query, noise, ThisProcess(records), account) for _ in range(times)]
    return found[-1].value


def charges(folder):
    with Ledger.open(folder / "a.ledger") as ledger:
        return ledger.charges


def cut(monkeypatch, when):
    """Let the power fail before or after the charge reaches the disk."""
    real = LedgerClass.charge_once

    def charge_once(self, *arguments, **options):
        if when == "after":
            real(self, *arguments, **options)
        raise PowerCutError

    monkeypatch.setattr(LedgerClass, "charge_once", charge_once)


def test_a_death_after_the_charge_loses_nothing_and_costs_nothing(folder, monkeypatch):
    with monkeypatch.context() as patch:
        cut(patch, "after")
        with pytest.raises(PowerCutError):
            measure(folder)
    assert len(charges(folder)) == 1
    first = measure(folder)
    assert len(charges(folder)) == 1
    # Other records, the same answer: nothing was measured again.
    assert np.array_equal(measure(folder, records=tuple(range(9000))), first)
    assert len(charges(folder)) == 1
    assert charges(folder)[0].note == "run 7: counts"


def test_a_death_before_the_charge_leaves_a_value_that_nobody_can_read(folder, monkeypatch):
    with monkeypatch.context() as patch:
        cut(patch, "before")
        with pytest.raises(PowerCutError):
            measure(folder)
    assert charges(folder) == ()
    (sealed,) = folder.glob("measured-*.sealed")
    assert b"NUMPY" not in sealed.read_bytes()
    measure(folder)
    assert len(charges(folder)) == 1  # paid when it was seen, for the first time


def test_several_measurements_are_found_in_their_order(folder):
    second = measure(folder, times=2)
    assert len(charges(folder)) == 2
    assert np.array_equal(measure(folder, times=2), second)
    measure(folder, times=3)
    assert len(charges(folder)) == 3


def test_what_was_measured_of_other_weights_is_not_taken_for_these(folder):
    measure(folder)
    measure(folder, of="other weights")
    assert len(charges(folder)) == 2


@pytest.mark.parametrize("harm", ["removed", "changed", "another cost"])
def test_a_paid_value_that_is_gone_is_an_error_and_never_drawn_again(folder, harm):
    measure(folder)
    (sealed,) = folder.glob("measured-*.sealed")
    if harm == "removed":
        sealed.unlink()
    elif harm == "changed":
        sealed.write_bytes(sealed.read_bytes()[:-1] + b"x")
    with pytest.raises(LedgerError, match="Nothing was charged now"):
        measure(folder, epsilon=0.5 if harm == "another cost" else 0.25)
    assert len(charges(folder)) == 1


def test_of_two_processes_with_one_run_one_is_paid_and_the_other_shows_nothing(folder, monkeypatch):
    monkeypatch.setattr(
        SealedAccount, "recalled", lambda self, event, rng: None
    )  # both came at once
    measure(folder)
    with pytest.raises(LedgerError, match="another process"):
        measure(folder)
    assert len(charges(folder)) == 1
    assert len(list(folder.glob("measured-*.sealed"))) == 1


def test_what_does_not_fit_the_budget_is_neither_measured_nor_kept(folder):
    with pytest.raises(BudgetExceededError):
        measure(folder, epsilon=2.0)
    assert charges(folder) == ()
    assert not list(folder.glob("measured-*.sealed"))
